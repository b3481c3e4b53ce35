//! Runs of whole experiments, at a scale at which figures are meaningless: tables, documents, failures,
//! interruptions. Their files are compared with each other.

use std::cell::Cell as Flag;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use pando_lab::bench::{BenchSpec, WALL_CLOCK};
use pando_lab::experiments::*;

const TINY: Setting = Setting::new(Scale::Tiny, 7);

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
    cluster: Some(TINY.cluster),
    sizes: Setting::describe,
    hundredths: 1,
    records: TINY.records,
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
            WALL_CLOCK.iter().for_each(|field| drop(report.remove(*field)));
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
