//! Tests of whole experiments, at a scale at which figures are meaningless.
//!
//! Real runs are tiny, and their files are compared with each other. Tables and figures are checked with
//! invented reports, complete and missing ones.

use std::cell::Cell as Flag;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use super::results::at;
use super::*;
use crate::bench::BenchSpec;

const TINY: Setting = Setting {
    scale: Scale::Tiny,
    seed: 7,
    hundredths: 1,
    records: scale::PAPER_KEYS,
    slots: None,
    cluster: Cluster::DEX,
};

const ALL_CELLS: RunOptions<'_> = RunOptions { only: "", jobs: None };

/// Two series of two small cells each; the first `broken` of them cannot be loaded.
fn cells(broken: usize) -> Vec<Cell> {
    let mut cells = Vec::new();
    for series in ["lazy", "eager"] {
        for x in [1u64, 2] {
            let mut spec =
                BenchSpec { memory_servers: 1, compute_servers: 1, threads: 1, ..TINY.spec("read-only") };
            spec.cache_bytes = x << 17;
            spec.cache.leaf_admission = if series == "lazy" { 0.1 } else { 1.0 };
            if cells.len() < broken {
                // Too small for the index.
                spec.memory_bytes = Some(4 << 20);
                spec.keys = 400_000;
            }
            cells.push(Cell {
                paper: vec![("reads", 0.33)],
                ..plot::cell("part | one", series, x as f64, format!("{x} places"), spec)
            });
        }
    }
    cells
}

const SOUND: Experiment = Experiment {
    name: "sound",
    title: "A small experiment",
    source: "nowhere",
    shows: "That experiments run.",
    setting: "None.",
    varied: "cache",
    fitted: &["spinner_ns"],
    estimated: &["hand_over_ns", "dispatch_ns"],
    place: Place::CLUSTER,
    cluster: Some(Cluster::DEX),
    sizes: Setting::describe,
    hundredths: 1,
    records: scale::PAPER_KEYS,
    metrics: &[cell::THROUGHPUT, cell::READS, cell::WRITES],
    cells: |_| cells(0),
    claims: |results| {
        let ours = results.ratio("part | one", at("lazy", 1.0), at("eager", 1.0), &cell::READS);
        vec![Claim {
            what: "reads".to_owned(),
            paper: "1.5x".to_owned(),
            ours: ours.map(|ours| format!("{ours:.2}x")),
            place: "§1",
        }]
    },
    figure: |results| {
        plot::figure(results, plot::throughput_lines(results, plot::Spacing::Names), "nothing.")
    },
};

static SOUND_ONE: Experiment = SOUND;
static BROKEN: Experiment = Experiment { name: "broken", cells: |_| cells(1), ..SOUND };

fn files(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("readable");
    entries.map(|entry| entry.expect("readable").file_name().into_string().expect("UTF-8")).collect()
}

fn json(folder: &Path, name: &str) -> Value {
    serde_json::from_slice(&fs::read(folder.join(name)).expect("written")).expect("JSON")
}

#[test]
fn a_run_leaves_four_files_that_agree() {
    let place = tempfile::tempdir().expect("a place");
    let folder = place.path().join("new/results");
    let written = run(&SOUND_ONE, TINY, ALL_CELLS, &folder, &()).expect("it runs");
    assert_eq!((written.cells, written.troubled), (4, 0));
    let expected = ["sound.json", "sound.md", "sound.png", "sound.svg"].map(str::to_owned);
    assert_eq!(files(&folder), expected.into());

    let document = json(&folder, "sound.json");
    assert_eq!((&document["experiment"], &document["seed"]), (&"sound".into(), &7.into()));
    let cells = document["cells"].as_array().expect("a list");
    let reads = cells[3]["report"]["per_op"]["reads"].as_f64().expect("a number");
    assert_eq!((cells.len(), cells[3]["series"].as_str()), (4, Some("eager")));
    assert_eq!(cells[3]["config"]["cache_bytes"], 2 << 17);
    assert_eq!(document["claims"].as_array().map(Vec::len), Some(1));

    let markdown = fs::read_to_string(folder.join("sound.md")).expect("written");
    let rows: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows[3], "| part | series | cache | Mops/s | READs/op | the paper | WRITEs/op | limited by |");
    assert_eq!(rows.len(), 3 + 2 + 4, "{markdown}");
    assert!(rows[8].starts_with("| part \\| one | eager | 2 places | "), "{markdown}");
    assert!(rows[8].contains(&format!(" | {reads:.3} | 0.33 | 0.000 |")), "{markdown}");
    // With the smaller cache, READs are about half more than in the paper, so the value is a link.
    assert!(rows[5].contains("](../lab.md#sound) | 0.33 | 0.000 |"), "{markdown}");
    assert!(rows[2].contains("](../lab.md#sound) | §1 |"), "{markdown}");
    assert!(rows[2].starts_with("| reads | 1.5x | "), "{markdown}");
    assert!(markdown.contains("What is known of the reasons: [lab.md](../lab.md#sound)."), "{markdown}");
    let footing = "Rests on parameters that were *fitted* to published figures, so that agreement with these is no \
                   evidence: `spinner_ns` (to DEX Figure 12(b)). Rests on *estimates*: `hand_over_ns`, `dispatch_ns`.";
    assert!(
        markdown.contains("with the numbers of [dex.toml](../../crates/lab/clusters/dex.toml)"),
        "{markdown}"
    );
    assert!(markdown.contains(footing), "{markdown}");
    assert!(fs::read(folder.join("sound.png")).expect("written").starts_with(b"\x89PNG"));
}

#[test]
fn figures_do_not_depend_on_the_number_of_jobs() {
    let place = tempfile::tempdir().expect("a place");
    let cells = [1, 2, 4].map(|jobs| {
        let folder = place.path().join(jobs.to_string());
        run(&SOUND_ONE, TINY, RunOptions { jobs: Some(jobs), ..ALL_CELLS }, &folder, &()).expect("it runs");
        let mut document = json(&folder, "sound.json");
        for cell in document["cells"].as_array_mut().expect("a list") {
            cell["wall_seconds"] = Value::Null;
            let report = cell["report"].as_object_mut().expect("an object");
            crate::bench::WALL_CLOCK.iter().for_each(|field| drop(report.remove(*field)));
        }
        document
    });
    assert_eq!(cells[0], cells[1]);
    assert_eq!(cells[0], cells[2]);
}

#[test]
fn a_cell_that_fails_is_reported_and_the_others_stand() {
    let place = tempfile::tempdir().expect("a place");
    let written = run(&BROKEN, TINY, ALL_CELLS, place.path(), &()).expect("it runs to its end");
    assert_eq!((written.cells, written.troubled), (4, 1));
    assert!(
        written.markdown.contains("| part \\| one | lazy | 1 places | failed | failed | 0.33 | failed |")
    );
    assert!(written.markdown.contains("- part | one, lazy, 1 places: "), "{}", written.markdown);
    assert!(written.markdown.contains("| reads | 1.5x | failed | §1 |"));
    let document = json(place.path(), "broken.json");
    assert!(document["cells"][0]["error"].is_string() && document["cells"][0].get("report").is_none());
    assert!(document["cells"][1]["report"].is_object());
}

#[test]
fn a_part_is_run_and_says_so() {
    let place = tempfile::tempdir().expect("a place");
    let written = run(&SOUND_ONE, TINY, RunOptions { only: "eager, 2", ..ALL_CELLS }, place.path(), &())
        .expect("it runs");
    assert_eq!((written.cells, written.troubled), (1, 0));
    assert!(written.markdown.contains("Only 1 of its 4 cells were run."), "{}", written.markdown);
    // A claim that needs other cells is left out.
    assert!(!written.markdown.contains("1.5x"), "{}", written.markdown);
    let seconds = |at: usize| json(place.path(), "sound.json")["cells"][at]["wall_seconds"].clone();
    let of_part = seconds(0);
    run(&SOUND_ONE, TINY, ALL_CELLS, place.path(), &()).expect("the whole runs");
    assert_eq!(seconds(3), of_part, "it goes on with the part");
    assert!(!files(place.path()).contains("sound.unfinished.json"));
    let error = run(&SOUND_ONE, TINY, RunOptions { only: "late", ..ALL_CELLS }, place.path(), &())
        .expect_err("there is no such cell");
    assert!(error.is_bad_input() && error.to_string().contains("\"part | one, lazy, 1 places\""), "{error}");
}

/// Interrupts after this number of cells.
struct Impatient(usize, Flag<usize>);

impl Progress for Impatient {
    fn cells(&self, done: usize, _: usize) {
        self.1.set(done);
    }

    fn interrupted(&self) -> bool {
        self.1.get() >= self.0
    }
}

#[test]
fn an_interrupted_run_leaves_no_results_and_goes_on_later() {
    let place = tempfile::tempdir().expect("a place");
    let error =
        run(&SOUND_ONE, TINY, ALL_CELLS, place.path(), &Impatient(1, Flag::new(0))).expect_err("interrupted");
    assert!(matches!(error, LabError::Interrupted) && !error.is_bad_input());
    assert_eq!(files(place.path()), ["sound.unfinished.json".to_owned()].into());
    let kept = json(place.path(), "sound.unfinished.json");
    let kept: Vec<&Value> = kept.as_object().expect("an object").values().map(|kept| &kept[1]).collect();

    run(&SOUND_ONE, TINY, ALL_CELLS, place.path(), &()).expect("it goes on");
    let document = json(place.path(), "sound.json");
    let cells = document["cells"].as_array().expect("a list");
    // Measured again, a cell would have other seconds.
    for seconds in kept {
        assert!(cells.iter().any(|cell| cell["wall_seconds"] == *seconds), "measured again: {seconds}");
    }
    assert!(!files(place.path()).contains("sound.unfinished.json"));
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_before_anything_runs() {
    let place = tempfile::tempdir().expect("a place");
    let file = place.path().join("file");
    fs::write(&file, "").expect("written");
    let error = run(&SOUND_ONE, TINY, ALL_CELLS, &file.join("below"), &()).expect_err("no folder");
    assert!(error.is_bad_input(), "{error}");
}

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
