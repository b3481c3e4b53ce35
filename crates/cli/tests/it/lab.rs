//! `pando lab`: an experiment from the command line, and refused ones.

use crate::common::Place;
use serde_json::Value;

#[test]
fn every_experiment_is_listed_with_its_source() {
    let listed = Place::new().ok("lab list");
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for name in [
        "table2",
        "fig4",
        "fig6",
        "fig7",
        "fig9",
        "fig12",
        "fig15",
        "fig16",
        "fig17",
        "fig18",
        "sherman-fig5",
        "smart-ycsb",
        "elf-fig3",
        "elf-selectivity",
        "elf-offload",
        "elf-peers",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
    let sources = ["(DEX, ", "(Sherman, ", "(SMART, ", "(DAPD 2022, ", "(no paper)"];
    let is_sourced = |line: &str| sources.iter().any(|from| line.contains(from));
    assert!(listed.lines().all(is_sourced), "{listed}");
}

#[test]
fn a_table_is_made_with_the_papers_values_beside() {
    let place = Place::new();
    let printed = place.ok("lab run table2 --scale tiny --out results --seed 7");
    let files = ["results/table2.json", "results/table2.md", "results/table2.svg", "results/table2.png"];
    assert_eq!(printed.lines().collect::<Vec<_>>(), files);
    let document: Value =
        serde_json::from_slice(&std::fs::read(place.path(files[0])).expect("written")).expect("JSON");
    let cells = document["cells"].as_array().expect("a list");
    // DEX with and without offloading, and four other systems, in two workloads.
    assert_eq!(cells.len(), 12);
    for cell in cells {
        assert_eq!((&cell["config"]["seed"], &cell["report"]["failed_ops"]), (&7.into(), &0.into()));
        assert!(cell["report"]["per_op"]["reads"].as_f64() > Some(0.0), "{cell}");
    }
    let markdown = std::fs::read_to_string(place.path(files[1])).expect("written");
    assert!(markdown.contains("| READs/op | the paper | WRITEs/op | the paper |"), "{markdown}");
    let row = markdown.lines().find(|line| line.contains("| write-intensive |")).expect("a row");
    assert!(row.contains(" | 0.19 | ") && row.contains(" | 524.1 | "), "{row}");
    let svg = std::fs::read_to_string(place.path(files[2])).expect("written");
    assert!(svg.trim_start().starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
}

#[test]
fn one_table_shows_the_results_of_several_runs() {
    let place = Place::new();
    place.ok("lab run table2 --scale tiny --out results");
    place.ok("lab run balance --scale tiny --out results");
    let table = place.ok("lab summary results");
    for part in
        ["## DEX, Table 2", "| [table2](table2.md) | DEX, read-only", "| [balance](balance.md) | ", "`fig6`"]
    {
        assert!(table.contains(part), "{part} in {table}");
    }
    place.write("results/fig6.json", "{");
    let sentence = place.refused("lab summary results", 2);
    assert!(sentence.contains("fig6.json"), "{sentence}");
    assert!(place.refused("lab summary nowhere", 2).contains("nowhere has no results"));
}

#[test]
fn what_cannot_be_run_is_refused_in_a_sentence() {
    let place = Place::new();
    let sentence = place.refused("lab run fig99 --out results", 2);
    assert!(sentence.contains("`fig99`") && sentence.contains("pando lab list"), "{sentence}");
    assert!(place.refused("lab run table2 --scale huge --out results", 2).contains("huge"));
    assert!(place.refused("lab run table2", 2).contains("--out"));
    let sentence = place.refused("lab run table2 --scale tiny --only nobody --out results", 2);
    assert!(sentence.contains("\"nobody\""), "{sentence}");
    place.write("file", "");
    assert!(place.refused("lab run table2 --scale tiny --out file", 2).contains("file"));
    assert!(place.refused("lab run table2 --scale tiny --out file/below", 2).contains("file/below"));
    assert!(!place.path("results").exists());
}
