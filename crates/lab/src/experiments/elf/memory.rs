//! Figure 3 and the hybrid Elf: what persistent memory costs, and what a copy of the whole image costs.
//!
//! Queries are modelled with the image in DRAM and on persistent memory, and measured in the DRAM of this machine. The
//! build is measured here; that it writes to persistent memory adds a modelled time.

use super::super::cell::metric;
use super::super::claims::{claim, percent, times};
use super::super::results::at;
use super::super::{Cell, Claim, Experiment, Metric, Results, Setting, plot};
use super::{CARDINALITY, COMMON, MEASURED_US, US, cell, queries, spec, uniform};
use crate::elf::{Base, ElfWork, Kind, Store};
use crate::figure::YScale;

const DRAM: &str = "DRAM";
const PMEM: &str = "persistent memory";
const HERE: &str = "DRAM of this machine";
const BUILD: &str = "build";
/// Panel, query, width of a range, and the overhead in the paper's text.
const QUERIES: [(&str, Kind, u32, f64); 5] = [
    ("exact match", Kind::Exact, 0, 2.23),
    ("range 2%", Kind::Range, 2, 2.10),
    ("range 100%", Kind::Range, 100, 0.70),
    ("partial match 2%", Kind::Partial, 2, 2.36),
    ("partial match 100%", Kind::Partial, 100, 0.66),
];
const BUILD_OVERHEAD: Metric = metric("build", "build over DRAM", "/overhead", 1.0, 2);
const BUILD_S: Metric = metric("build_s", "measured build, s", "/build_seconds", 1.0, 2);

pub(super) const FIG3: Experiment = Experiment {
    name: "elf-fig3",
    title: "Elf on persistent memory and in DRAM",
    source: "DAPD 2022, Figure 3, §5.3",
    shows: "What it costs to keep the whole Elf on persistent memory.",
    setting: "100 million rows of 10 columns with 100 values each, queries made from rows by Zipf 0.5, one thread. 1M, 10K and 1K \
              queries of the three kinds. The paper does not say which columns a partial match leaves open; here every second one.",
    varied: "query",
    metrics: &[US, MEASURED_US, BUILD_S, BUILD_OVERHEAD],
    cells: fig3_cells,
    claims: fig3_claims,
    figure: |results| {
        let names = QUERIES.map(|(panel, ..)| panel);
        let panels = names.iter().map(|panel| {
            let mut shown = plot::bars(results, panel, &US, "modelled time of a query (µs)");
            let measured = plot::bars(results, panel, &MEASURED_US, "");
            // Each cell has one of the two times.
            for (series, other) in shown.series.iter_mut().zip(measured.series) {
                series.points.extend(other.points);
            }
            shown
        });
        let mut panels: Vec<_> = panels.collect();
        panels.push(plot::bars(results, BUILD, &BUILD_OVERHEAD, "build on persistent memory over DRAM"));
        let says = "persistent memory adds 223% to exact matches, 210% and 70% to ranges of 2% and 100%, 236% and 66% to partial \
                    matches, and 18% to the build.";
        plot::figure(results, panels, says)
    },
    ..COMMON
};

fn fig3_cells(setting: &Setting) -> Vec<Cell> {
    let data = uniform(setting, CARDINALITY);
    let mut cells = Vec::new();
    for (place, (panel, kind, percent, _)) in QUERIES.into_iter().enumerate() {
        let x = place as f64;
        for (series, base) in [(DRAM, Base::Dram), (PMEM, Base::Persistent)] {
            let work = ElfWork::Queries(queries(setting, kind, percent, Store::new(base)));
            cells.push(cell(panel, series, x, panel, spec(setting, data, work)));
        }
        let work = ElfWork::Measured(queries(setting, kind, percent, Store::new(Base::Dram)));
        cells.push(cell(panel, HERE, x, panel, spec(setting, data, work)));
    }
    let x = QUERIES.len() as f64;
    cells.push(cell(BUILD, PMEM, x, BUILD, spec(setting, data, ElfWork::Build)));
    cells
}

fn fig3_claims(results: &Results<'_>) -> Vec<Claim> {
    let mut claims = Vec::new();
    for (place, (panel, _, _, overhead)) in QUERIES.into_iter().enumerate() {
        let x = place as f64;
        let ours = percent(results.ratio(panel, at(PMEM, x), at(DRAM, x), &US));
        let paper = format!("{:+.0}%", overhead * 100.0);
        claims.push(claim(
            format_args!("{panel}: persistent memory over DRAM, modelled"),
            paper,
            ours,
            "§5.3",
        ));
    }
    let built = results.value(BUILD, PMEM, QUERIES.len() as f64, &BUILD_OVERHEAD);
    claims.push(claim(
        "build: persistent memory (modelled) over DRAM (measured)",
        "+18%",
        percent(built),
        "§5.3",
    ));
    claims
}

const COPY_MS: Metric = metric("copy", "modelled copy, ms for 4 GB", "/copy_at_paper_bytes_ms", 1.0, 0);
const COPY_HERE: Metric =
    metric("copy_here", "measured copy in DRAM here, s", "/measured_copy_seconds", 1.0, 3);
const WITH_COPY: Metric = metric("with_copy", "build with copy over build", "/build_with_copy", 1.0, 3);
const RECOVERY: Metric = metric("recovery", "build over copy", "/build_over_recovery", 1.0, 1);

pub(super) const HYBRID: Experiment = Experiment {
    name: "elf-hybrid",
    title: "A copy of the whole Elf in DRAM",
    source: "DAPD 2022, §5.4",
    shows: "What the copy of the hybrid Elf costs after a build, and instead of one at recovery.",
    setting: "100 million rows of 10 columns, about 4 GB; queries run at the speed of DRAM.",
    estimated: &["thread_write_gb_s", "run_ahead_lines", "FAULT_NS"],
    metrics: &[BUILD_S, COPY_MS, COPY_HERE, WITH_COPY, RECOVERY],
    cells: |setting| {
        let data = uniform(setting, CARDINALITY);
        vec![cell("", "hybrid", 0.0, "", spec(setting, data, ElfWork::Hybrid))]
    },
    claims: |results| {
        let value = |metric| results.value("", "hybrid", 0.0, metric);
        vec![
            claim(
                "copy of 4 GB, in ms, modelled",
                "1770",
                value(&COPY_MS).map(|ms| format!("{ms:.0}")),
                "§5.4",
            ),
            claim("build with copy over build (measured here)", "+3%", percent(value(&WITH_COPY)), "§5.4"),
            claim("recovery by copying over building anew", "around 30x", times(value(&RECOVERY)), "§5.4"),
        ]
    },
    figure: |results| {
        let mut panel = plot::bars(results, "", &COPY_MS, "modelled copy of 4 GB (ms)");
        panel.y_scale = YScale::Linear;
        plot::figure(
            results,
            vec![panel],
            "a copy of 4 GB takes 1,770 ms, 3% of a build, and recovery is 30 times faster.",
        )
    },
    ..COMMON
};
