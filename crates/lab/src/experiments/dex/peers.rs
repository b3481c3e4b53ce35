//! Systems that the DEX paper compares DEX with (§8.1), and the published ratios.
//!
//! Sherman is the authors' design with sound optimistic reads: it READs the version before and after a node.
//! With logical partitioning (P-Sherman, P-SMART), readers of nodes that one compute server owns need no such
//! READs.

use super::super::cell::{Cell, THROUGHPUT};
use super::super::results::Position;
use super::super::{Claim, Results, plot};
use super::{claim, times};
use crate::bench::{BenchSpec, System};

pub(super) const DEX: &str = "DEX";
/// DEX for comparison with the paper's, which hardly offloads in its usual cell (Table 2). Ours offloads
/// where that is expected to be faster.
pub(super) const NEVER: &str = "DEX, never offloading";
pub(super) const SHERMAN: &str = "Sherman";
pub(super) const SMART: &str = "SMART";
pub(super) const P_SHERMAN: &str = "P-Sherman";
pub(super) const P_SMART: &str = "P-SMART";
/// In the order of the paper's lists.
pub(super) const PEERS: [&str; 4] = [SHERMAN, SMART, P_SHERMAN, P_SMART];

/// Compute threads at which the peers are measured; a subset of DEX's.
const THREADS: [usize; 3] = [2, 36, 144];

/// DEX, and the peers if they are measured with this number of threads.
pub(super) fn at(threads: usize) -> impl Iterator<Item = &'static str> {
    let others = PEERS.into_iter().filter(move |_| THREADS.contains(&threads));
    std::iter::once(DEX).chain(others)
}

/// The system that a name in the figures denotes.
pub(super) fn system(name: &str) -> System {
    let partitioned = |system: System| system.partitioned(true).expect("its keys can be divided");
    match name {
        SHERMAN => System::sherman().with("version-reads", true).expect("a technique of Sherman"),
        SMART => System::smart(),
        P_SHERMAN => partitioned(System::sherman()),
        P_SMART => partitioned(System::smart()),
        _ => System::Dex,
    }
}

/// A cell of the system with this name. As in the paper, caches of B-link trees hold all inner nodes: 3.02
/// READs of a lookup are a leaf and two versions (Table 2). Their scans READ several leaves together.
pub(super) fn cell(panel: &str, name: &str, x: f64, x_name: impl ToString, spec: BenchSpec) -> Cell {
    let system = system(name);
    let base = if system == System::Dex { spec.clone() } else { BenchSpec::default() };
    let spec = BenchSpec { inner_fill: base.inner_fill, read_ahead: base.read_ahead, ..spec };
    plot::cell(panel, name, x, x_name, spec.on_system(system))
}

/// The cell `dex` over those of the peers at the same x, beside the paper's ratios.
pub(super) fn ratios(
    results: &Results<'_>,
    panel: &str,
    dex: Position<'_>,
    published: [Option<f64>; 4],
    place: &'static str,
) -> Vec<Claim> {
    let claims = PEERS.iter().zip(published).map(|(peer, published)| {
        let ours = results.ratio(panel, dex, Position { series: peer, ..dex }, &THROUGHPUT);
        let paper = published.map_or("not given".to_owned(), |ratio| format!("{ratio}x"));
        claim(format_args!("{panel}: {} over {peer}", dex.series), paper, times(ours), place)
    });
    claims.collect()
}
