//! Tests of all experiments without running one: names, cells, claims and figures.
//!
//! Tables and figures are checked with invented reports, complete and missing ones. Runs are in `tests/it`: here they
//! would compile everything that an experiment may run once more.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

const TINY: Setting = Setting::new(Scale::Tiny, 7);

#[test]
fn every_experiment_has_valid_cells_and_its_own_name() {
    let mut names = BTreeSet::new();
    for experiment in all() {
        assert!(names.insert(experiment.name), "{} twice", experiment.name);
        assert_eq!(find(experiment.name).map(|found| found.name), Some(experiment.name));
        for scale in [Scale::Quick, Scale::Full, Scale::Tiny] {
            let setting = Setting::new(scale, 1);
            let cells = (experiment.cells)(&setting);
            assert!(!cells.is_empty());
            let mut places = BTreeSet::new();
            for cell in &cells {
                cell.work.validate().unwrap_or_else(|error| panic!("{}: {error}", experiment.name));
                let place = (cell.panel.clone(), cell.series.clone(), cell.x.to_bits());
                assert!(places.insert(place), "{}: {cell:?} twice", experiment.name);
            }
        }
    }
    assert!(find("fig99").is_none());
}

/// Invented reports for all cells, which show tables and figures without measuring.
fn made_up(experiment: &'static Experiment) -> Results<'static> {
    let mut report = serde_json::json!({
        "throughput_ops": 1e7,
        "moving_ns": 2_000_000,
        "bytes_written": 1 << 20,
        "others_ratio": 1.0,
        "settled_imbalance": 1.2,
        "move_count": 3,
        "late_moves": 0,
        "imbalance": [3.0, 2.0, 1.2, 1.2],
        "interval_ns": 1_000_000,
        "per_op": {"reads": 0.3, "writes": 0.1, "atomics": 0.0, "two_sided": 0.01, "bytes_total": 300.0},
        "cache": {"hit_ratio_leaf": 0.7},
        "latency_ns": {"p50": 3000, "p90": 5000, "p99": 9000},
        "series": {"interval_ns": 100_000_000u64, "ops": [5, 5, 4, 3]},
    });
    if experiment.name.starts_with("elf-") {
        report = made_up_of_elf();
    }
    if ["fig10", "balance"].contains(&experiment.name) {
        // Elastic reports have one list per compute server.
        report["series"] = serde_json::json!([[5, 5, 4, 3], [5, 5, 5, 5], [5, 4, 5, 5], [0, 1, 1, 2]]);
    }
    let outcomes = (experiment.cells)(&TINY)
        .into_iter()
        .map(|cell| Outcome { cell, report: Ok(report.clone()), wall_seconds: 1.0 })
        .collect();
    Results { experiment, setting: TINY, outcomes, left_out: 0 }
}

/// An invented report with the fields of all measurements of Elf.
fn made_up_of_elf() -> Value {
    let intervals: Vec<Value> =
        (1..=20).map(|i| serde_json::json!({"queries": i * 100, "qps": 2e5 + f64::from(i)})).collect();
    let factors = serde_json::json!({
        "shares": [0.0, 0.5, 1.0], "factors": [0.1, 0.4, 1.2],
        "median": 0.4, "p90": 1.0, "p99": 1.1, "worst": 1.2, "above_limit": 0, "walked": 0.6, "us": 30.0,
    });
    let layout = serde_json::json!({"q6_us": 10.0, "mixed_us": 100.0, "image_bytes": 1 << 20});
    serde_json::json!({
        "qps": 1e5, "us_per_query": 10.0, "measured_us_per_query": 8.0, "held_bytes": 1 << 20, "hit_ratio": 0.5,
        "series": intervals, "overhead": 1.1, "build_seconds": 2.0, "copy_at_paper_bytes_ms": 1_500.0,
        "measured_copy_seconds": 0.3, "build_with_copy": 1.05, "build_over_recovery": 20.0,
        "count": factors, "ids": factors, "bitmap": factors, "linear": layout, "columnar": layout,
        "reads": 1.0, "bytes": 3_000.0, "round_trips": 1.0, "us": 2.5, "cached_levels": 3, "cached_bytes": 8 << 20,
        "calls": 0.5, "cores_busy": 0.3, "result_rows": 100,
    })
}

#[test]
fn every_claim_finds_its_cells_and_every_figure_shows_all_series() {
    for experiment in all() {
        let mut results = made_up(experiment);
        for claim in (experiment.claims)(&results) {
            assert!(claim.ours.is_some(), "{}: {}", experiment.name, claim.what);
        }
        let figure = (experiment.figure)(&results);
        assert!(figure.panels.iter().all(|panel| !panel.y_label.is_empty() && !panel.series.is_empty()));
        let points: usize = figure.panels.iter().flat_map(|p| &p.series).map(|s| s.points.len()).sum();
        let lines: usize = figure.panels.iter().map(|p| p.references.len()).sum();
        assert!(
            points + lines >= results.outcomes.len(),
            "{}: {points} points, {lines} lines",
            experiment.name
        );
        figure.png().expect("it can be drawn");
        assert_eq!(
            crate::figure::tests::collisions(&figure.svg()),
            Vec::<String>::new(),
            "{}",
            experiment.name
        );

        for outcome in &mut results.outcomes {
            outcome.report = Err("it broke".to_owned());
        }
        let none = (experiment.claims)(&results).into_iter().all(|claim| claim.ours.is_none());
        assert!(none, "{}: something came of nothing", experiment.name);
        (experiment.figure)(&results).png().expect("nothing can be drawn too");
    }
}
