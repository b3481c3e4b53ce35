//! Figure 11: DEX with a cache that holds everything against a B+-tree that is not distributed.
//!
//! Both have the same memory on compute servers, as much as the nodes of the local tree take; DEX's caches
//! share it evenly. DEX still misses a little, since frames take some of that memory and the partitions are
//! not exactly equal.

use pando_dex::layout::Layout;
use pando_dex::layout::fixed::FixedLayout;

use super::super::cell::{Cell, Metric, READS, THROUGHPUT};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::scale::with_threads;
use super::super::{Claim, Experiment, Results, Setting};
use super::{COMMON, DISTRIBUTIONS, claim, peers, percent, times};
use crate::bench::{BenchSpec, System};
use crate::under_test::local_tree;

const LOCAL: &str = "local B+-tree";
const DEX: &str = peers::DEX;
const WORKLOAD: &str = "read-intensive";
/// Numbers of threads that one server has cores for.
const LOCAL_THREADS: [usize; 3] = [2, 18, 36];
const DEX_THREADS: [usize; 5] = [2, 18, 36, 72, 144];
/// Fill of leaves with which 200 million records take 4.97 GB of nodes; the paper's tree took 4.96 GB.
const FILL: f64 = 0.7;

pub(super) const FIG11: Experiment = Experiment {
    name: "fig11",
    title: "DEX with all in its caches against a B+-tree that is not distributed",
    source: "DEX, Figure 11, §8.3",
    shows: "What it costs to be distributed when nothing is missing, and what the further servers give.",
    setting: "Read-intensive. Compute servers have as much memory in all as the local tree's nodes take, 4.96 GB in the \
              paper, so that 4 have a quarter each (§8.3). Leaves are loaded to 70% here, with which 200 million records \
              take that much; DEX's caches are filled by operations first. The local tree runs on the 36 cores of one server.",
    estimated: &["hand_over_ns"],
    cells,
    claims,
    figure: |results| {
        let says = "with 36 threads and skewed keys DEX is 8% behind the local tree, at about 0.01 verbs an operation; with \
                    144 it is up to 3.3 (skewed) and 4.5 times (uniform) as fast as the local tree's best.";
        plot::figure(results, plot::throughput_lines(results, Spacing::Numbers), says)
    },
    ..COMMON
};

/// Bytes of the local tree's nodes.
fn tree_bytes(spec: &BenchSpec) -> u64 {
    let layout = FixedLayout::new(spec.node_size, spec.key_size, spec.value_size);
    let layout = layout.expect("the experiment's nodes are the paper's");
    local_tree::node_count(layout, spec.keys, spec.fill, spec.inner_fill) * layout.node_size() as u64
}

fn cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    let (warmup, _) = setting.operations(1.0);
    for (panel, dist) in DISTRIBUTIONS {
        let spec = BenchSpec {
            dist: Some(dist),
            fill: FILL,
            // Rarely used leaves enter the cache at their first use, so a long warm-up is needed.
            warmup: 4 * warmup,
            ..setting.spec(WORKLOAD)
        };
        let bytes = tree_bytes(&spec);
        for threads in LOCAL_THREADS {
            let spec = BenchSpec { warmup, ..spec.clone() }.on_system(System::LocalBTree);
            let spec = with_threads(spec, setting.threads(threads));
            cells.push(plot::cell(panel, LOCAL, threads as f64, threads, spec));
        }
        for threads in DEX_THREADS {
            let spec = with_threads(spec.clone(), setting.threads(threads));
            let cache_bytes = bytes / spec.compute_servers as u64;
            let spec = BenchSpec { cache_bytes, ..spec };
            // Caches of the peers hold inner nodes only, so they fill quickly.
            let of_peer = |name| {
                let spec = BenchSpec { warmup, ..spec.clone() };
                peers::cell(panel, name, threads as f64, threads, spec)
            };
            cells.extend(peers::at(threads).filter(|name| *name != DEX).map(of_peer));
            cells.push(plot::cell(panel, DEX, threads as f64, threads, spec));
        }
    }
    cells
}

fn claims(results: &Results<'_>) -> Vec<Claim> {
    let place = "§8.3";
    let number = |metric: &Metric, x: f64| {
        results.value(DISTRIBUTIONS[0].0, DEX, x, metric).map(|value| metric.show(value))
    };
    let mut claims =
        vec![claim("skewed: READs of an operation of DEX, 36 threads", "0.01", number(&READS, 36.0), place)];
    for ((panel, _), (behind, ahead)) in DISTRIBUTIONS.iter().zip([("-8%", "3.3x"), ("not given", "4.5x")]) {
        let ours = results.ratio(panel, at(DEX, 36.0), at(LOCAL, 36.0), &THROUGHPUT);
        claims.push(claim(
            format_args!("{panel}: DEX over the local tree, 36 threads"),
            behind,
            percent(ours),
            place,
        ));
        let ours = results.ratio(panel, at(DEX, 144.0), at(LOCAL, 36.0), &THROUGHPUT);
        let what = format_args!("{panel}: DEX with 144 threads over the local tree with 36").to_string();
        claims.push(claim(what, ahead, times(ours), place));
    }
    claims
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::Scale;

    #[test]
    fn the_local_tree_takes_as_much_memory_as_the_papers() {
        let spec = BenchSpec { fill: FILL, ..Setting::new(Scale::Full, 1).spec(WORKLOAD) };
        let gigabytes = tree_bytes(&spec) as f64 / 1e9;
        assert!((4.9..5.05).contains(&gigabytes), "{gigabytes:.2} GB");
    }
}
