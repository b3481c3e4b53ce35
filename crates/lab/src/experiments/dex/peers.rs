//! What the DEX paper compares DEX with (§8.1), and the published ratios.
//!
//! Sherman is the authors' with optimistic reads that are sound, so with a READ of the version before and after; under logical
//! partitioning (P-Sherman, P-SMART) what one compute server owns goes without.

use super::super::cell::THROUGHPUT;
use super::super::{Claim, Results};
use super::{claim, times};
use crate::bench::{BenchSpec, System};

pub(super) const DEX: &str = "DEX";
/// The paper's own hardly offloads in its usual cell (Table 2), where ours does if that is expected to be faster.
pub(super) const NEVER: &str = "DEX, never offloading";
pub(super) const SHERMAN: &str = "Sherman";
pub(super) const SMART: &str = "SMART";
pub(super) const P_SHERMAN: &str = "P-Sherman";
pub(super) const P_SMART: &str = "P-SMART";
/// In the order of the paper's lists.
pub(super) const PEERS: [&str; 4] = [SHERMAN, SMART, P_SHERMAN, P_SMART];

/// Compute threads at which the others are measured, among those of DEX.
const THREADS: [usize; 3] = [2, 36, 144];

/// DEX, and all of them if they are measured with so many threads.
pub(super) fn at(threads: usize) -> impl Iterator<Item = &'static str> {
    let others = PEERS.into_iter().filter(move |_| THREADS.contains(&threads));
    std::iter::once(DEX).chain(others)
}

/// What stands behind a name of the figures.
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

/// The same measurement of the system of this name.
pub(super) fn measured_on(name: &str, spec: BenchSpec) -> BenchSpec {
    spec.on_system(system(name))
}

/// DEX over each of the others in the cell at `x`, beside what the paper gives; `dex` is the series that stands for it.
pub(super) fn ratios(
    results: &Results<'_>,
    (panel, dex): (&str, &str),
    x: f64,
    published: [Option<f64>; 4],
    place: &'static str,
) -> Vec<Claim> {
    let claims = PEERS.iter().zip(published).map(|(peer, published)| {
        let ours = results.ratio(panel, (dex, x), (peer, x), &THROUGHPUT);
        let paper = published.map_or("not given".to_owned(), |ratio| format!("{ratio}x"));
        claim(format_args!("{panel}: {dex} over {peer}"), paper, times(ours), place)
    });
    claims.collect()
}
