//! Checks of the documents about experiments: each experiment is explained with its parameters, and all links
//! between pages lead to a page and heading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use pando_lab::experiments;

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All pages, by their paths below `docs`.
fn pages() -> BTreeMap<PathBuf, String> {
    let mut pages = BTreeMap::new();
    for folder in ["", "lab"] {
        for entry in fs::read_dir(docs().join(folder)).expect("readable") {
            let path = entry.expect("readable").path();
            if path.extension().is_some_and(|extension| extension == "md") {
                let name = path.strip_prefix(docs()).expect("below docs").to_owned();
                pages.insert(name, read(&path));
            }
        }
    }
    pages
}

/// Anchor of a heading in links.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// Targets of the links of a page that lead to pages.
fn links(page: &str) -> impl Iterator<Item = &str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && (target.starts_with('#') || target.contains(".md")))
}

#[test]
fn every_experiment_is_explained() {
    let pages = pages();
    let lab = anchors(&pages[Path::new("lab.md")]);
    let model = &pages[Path::new("sim.md")];
    for experiment in experiments::all() {
        let name = experiment.name;
        assert!(lab.contains(name), "docs/lab.md has no heading {name}");
        let table = &pages[&Path::new("lab").join(format!("{name}.md"))];
        assert!(table.contains(&format!("](../lab.md#{name})")), "docs/lab/{name}.md leads nowhere");
        assert!(docs().join(format!("lab/{name}.svg")).exists(), "{name} has no plot");
        for parameter in experiment.fitted.iter().chain(experiment.estimated) {
            assert!(model.contains(&format!("{parameter}`")), "docs/sim.md does not say what {parameter} is");
            assert!(
                table.contains(&format!("`{parameter}`")),
                "docs/lab/{name}.md does not name {parameter}"
            );
        }
    }
}

#[test]
fn the_table_over_all_results_is_that_of_the_results() {
    let page = &pages()[Path::new("lab/summary.md")];
    let made = experiments::summary(&docs().join("lab")).expect("there are results");
    assert_eq!(*page, made, "`pando lab summary docs/lab` makes docs/lab/summary.md");
}

#[test]
fn links_between_pages_lead_to_headings() {
    let pages = pages();
    for (name, page) in &pages {
        for link in links(page) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => name.clone(),
                file if file.starts_with("../") && name.starts_with("lab") => PathBuf::from(&file[3..]),
                file => name.with_file_name(file),
            };
            let Some(there) = pages.get(&target) else {
                // Outside of `docs`, only the file must exist.
                let path = docs().join(name).with_file_name(file);
                assert!(path.exists(), "{}: {link} leads to no page", name.display());
                continue;
            };
            let is_there = anchor.is_empty() || anchors(there).contains(anchor);
            assert!(is_there, "{}: {link} leads to no heading", name.display());
        }
    }
}
