//! Figure 8: ranges by twenty threads and by one, over cardinality and width of the ranges.
//!
//! Twenty threads are modelled on the paper's ten cores. What the two cores of this machine do with the image in DRAM is
//! measured in cells of their own.

use super::super::cell::metric;
use super::super::claims::{claim, times};
use super::super::plot::{self, Spacing};
use super::super::results::at;
use super::super::{Cell, Claim, Experiment, Metric, Results, Scale, Setting};
use super::{COMMON, cell, queries, spec, uniform};
use crate::elf::{Base, ElfWork, Kind, Store, Threads};
use crate::figure::YScale;

/// Cardinalities and widths of the paper's figure that its text mentions, and some between them.
const CARDINALITIES: [u32; 3] = [20, 60, 100];
const WIDTHS: [u32; 4] = [5, 20, 50, 100];
const THREADS: usize = 20;
const ONE: &str = "one thread";
const TWENTY: &str = "20 threads";
const ONE_STATIC: &str = "one thread, static 4";
const TWENTY_STATIC: &str = "20 threads, static 4";
const HERE_ONE: &str = "this machine, one thread";
const HERE_TWO: &str = "this machine, two threads";
const RATE: Metric = metric("rate", "queries/s", "/qps", 1.0, 2);

pub(super) const FIG8: Experiment = Experiment {
    name: "elf-fig8",
    title: "Ranges by several threads",
    source: "DAPD 2022, Figure 8, §5.5",
    shows: "When it pays to divide a query among threads that are created for it.",
    setting: "100 million rows of 10 columns; as many threads as logical cores of a socket (20). Widths apply to all columns.",
    varied: "width of the ranges, %",
    estimated: &[
        "overlapping",
        "run_ahead_lines",
        "page_bytes",
        "shared_core_factor",
        "SPAWN_NS",
        "JOIN_NS",
        "RESULT_NS",
    ],
    metrics: &[RATE],
    cells: fig8_cells,
    claims: fig8_claims,
    figure: |results| {
        let panels = results.panels().into_iter().map(|panel| {
            let mut shown =
                plot::lines(results, panel, Spacing::Names, &RATE, "queries/s; 'this machine' is measured");
            shown.y_scale = YScale::Log;
            shown
        });
        let panels = panels.collect();
        let says = "20 threads are 12 times as fast with 100 values and ranges of 100%, and two orders of magnitude slower with 20 values \
                    and ranges of 5%.";
        plot::figure(results, panels, says)
    },
    ..COMMON
};

fn panel_of(cardinality: u32) -> String {
    format!("{cardinality} values in the paper")
}

fn fig8_cells(setting: &Setting) -> Vec<Cell> {
    let mut cells = Vec::new();
    for cardinality in CARDINALITIES {
        let data = uniform(setting, cardinality);
        let panel = panel_of(cardinality);
        for width in WIDTHS {
            let (persistent, levels, dram) =
                (Store::new(Base::Persistent), Store::levels(4), Store::new(Base::Dram));
            for (series, store, threads) in [
                (ONE, &persistent, Threads::Modelled(1)),
                (TWENTY, &persistent, Threads::Modelled(THREADS)),
                (ONE_STATIC, &levels, Threads::Modelled(1)),
                (TWENTY_STATIC, &levels, Threads::Modelled(THREADS)),
                (HERE_ONE, &dram, Threads::Measured(1)),
                (HERE_TWO, &dram, Threads::Measured(2)),
            ] {
                let mut queries = queries(setting, Kind::Range, width, store.clone());
                let most = if setting.scale == Scale::Tiny { 10 } else { 400 / u64::from(width) };
                (queries.warm_up, queries.queries) = (most / 4, most);
                let work = ElfWork::Parallel { queries, threads };
                cells.push(cell(&panel, series, f64::from(width), width, spec(setting, data, work)));
            }
        }
    }
    cells
}

fn fig8_claims(results: &Results<'_>) -> Vec<Claim> {
    let ratio = |cardinality, width: u32, over, under| {
        let x = f64::from(width);
        times(results.ratio(&panel_of(cardinality), at(over, x), at(under, x), &RATE))
    };
    let mut claims = vec![
        claim("100 values, 100%: 20 threads over one, modelled", "12x", ratio(100, 100, TWENTY, ONE), "§5.5"),
        claim("20 values, 5%: 20 threads over one, modelled", "0.01x", ratio(20, 5, TWENTY, ONE), "§5.5"),
    ];
    for (width, says) in [(5, "helps"), (100, "no gain")] {
        let ours = ratio(100, width, TWENTY_STATIC, TWENTY);
        let what = format!("100 values, {width}%: static 4 over no cache, 20 threads");
        claims.push(claim(what, says, ours, "§5.5"));
    }
    for (cardinality, width) in [(100, 100), (20, 5)] {
        let ours = ratio(cardinality, width, HERE_TWO, HERE_ONE);
        let what = format!("{cardinality} values, {width}%: two threads over one, measured here in DRAM");
        claims.push(claim(what, "not given", ours, "-"));
    }
    claims
}
