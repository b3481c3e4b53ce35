//! Field names of all JSON documents of the laboratory, compared with the committed list `promise.txt`.
//!
//! Readers of these documents rely on the names. A new field must be added to the list; no field may be
//! removed or renamed. The list has one line for each field: the kind of document and the path within it.
//! `[]` is any element of a list.

use std::collections::BTreeSet;
use std::fs;

use pando_lab::bench::{self, BenchSpec, FabricKind, Length, System};
use pando_lab::calibrate::{self, CalibrateOptions};
use pando_lab::elastic::{self, Clients, ElasticSpec, PlannedMove, Spread};
use pando_lab::experiments::{self, Cell, RunOptions, Scale, Setting};
use pando_lab::simulate::{FaultSet, Summary, Systems, run_seed};
use serde_json::Value;

/// The fields found so far, one per line.
#[derive(Default)]
struct Fields(BTreeSet<String>);

impl Fields {
    fn note(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = format!("{path}.{name}");
                    self.0.insert(path.clone());
                    self.note(&path, value);
                }
            }
            Value::Array(elements) => {
                elements.iter().for_each(|element| self.note(&format!("{path}[]"), element));
            }
            _ => {}
        }
    }

    fn note_text(&mut self, kind: &str, json: &str) {
        self.note(kind, &serde_json::from_str(json).expect("JSON"));
    }
}

fn small() -> BenchSpec {
    BenchSpec {
        memory_servers: 2,
        compute_servers: 2,
        cache_bytes: 64 << 10,
        keys: 10_000,
        warmup: 1_000,
        length: Length::Ops(2_000),
        workload: "write-intensive".to_owned(),
        ..BenchSpec::default()
    }
}

fn note_benches(fields: &mut Fields) {
    let simulated = BenchSpec { fabric: FabricKind::Sim, interval_ns: Some(100_000), ..small() };
    let balanced = BenchSpec { balance_every_ns: Some(5_000_000), ..small() };
    let scan = Some(pando_workload::ScanLength::Fixed(10));
    let peer = BenchSpec { system: System::sherman(), scan_length: scan, ..small() };
    for spec in [simulated, balanced, peer] {
        fields.note("spec", &serde_json::to_value(&spec).expect("JSON"));
        fields.note_text("bench", &bench::run(&spec, &()).expect("it runs").to_json());
    }
}

fn note_elastic(fields: &mut Fields) {
    let spec = |clients, spread, moves| ElasticSpec {
        memory_servers: 2,
        compute_servers: 2,
        spare_servers: 1,
        threads: 2,
        cache_bytes: 1 << 20,
        subtree_level: 1,
        keys: 10_000,
        workload: "write-intensive".to_owned(),
        clients,
        spread,
        moves,
        flush_workers: 1,
        balance_every_ns: None,
        run_ns: 2_000_000,
        interval_ns: 100_000,
        seed: 5,
    };
    let moves = vec![PlannedMove { at_ns: 1_000_000, from: 1, to: 2, part: 0.5 }];
    let spot = Spread::HotSpot { share: 0.9, width: 0.1, spots: vec![0.3] };
    for spec in [
        spec(Clients::OfServers, Spread::Workload, moves),
        spec(Clients::Routed { per_thread: 2 }, spot, Vec::new()),
    ] {
        fields.note("elastic-spec", &serde_json::to_value(&spec).expect("JSON"));
        let report = elastic::run(&spec, &()).expect("it runs");
        fields.note("elastic", &serde_json::to_value(&report).expect("JSON"));
    }
}

fn note_simulations(fields: &mut Fields) {
    let faults: FaultSet = "all,cut-off,preempt".parse().expect("known faults");
    for name in ["dex", "sherman", "fg", "smart", "art", "pool"] {
        let systems = Systems::new(name, &[], &[]).expect("a known system");
        let mut summary = Summary::new(&systems, faults);
        for seed in 0..8 {
            let report = run_seed(seed, &systems, faults);
            fields.note("simulate.failed_seeds[]", &serde_json::to_value(&report).expect("JSON"));
            summary.add(report);
        }
        summary.seeds_of.clear();
        fields.note_text("simulate", &summary.to_json());
    }
}

fn note_calibration(fields: &mut Fields) {
    let options = CalibrateOptions { rounds: 1, keys: 20_000 };
    let calibration = calibrate::run(&options, |_, _| ()).expect("it fits into memory");
    // Left out where two cores are not free at the same time.
    fields.0.insert("calibrate.compute.hand_over_ns".to_owned());
    for measured in &calibration.measured {
        fields.0.insert(format!("calibrate.compute.{}", measured.name));
        assert!(calibration.toml().contains(&format!("\n{} = ", measured.name)), "{}", calibration.toml());
    }
}

/// Notes the fields of the document of one cell, for an experiment of each kind.
fn note_experiments(fields: &mut Fields) {
    let folder = tempfile::tempdir().expect("a temporary directory");
    for (name, part) in [("table2", ""), ("fig10", ""), ("scale", "growth")] {
        let experiment = experiments::find(name).expect("a known experiment");
        let setting = Setting::new(Scale::Tiny, 1);
        let names = (experiment.cells)(&setting).iter().map(Cell::name).collect::<Vec<_>>();
        let only = names.into_iter().find(|name| name.contains(part)).expect("it has such a cell");
        experiments::run(
            experiment,
            setting,
            RunOptions { only: &only, ..RunOptions::default() },
            folder.path(),
            &(),
        )
        .expect("it runs");
        let text = fs::read_to_string(folder.path().join(format!("{name}.json"))).expect("it was written");
        fields.note_text(&format!("experiment {name}"), &text);
    }
}

#[test]
fn no_field_has_vanished_or_changed_its_name() {
    let mut fields = Fields::default();
    note_benches(&mut fields);
    note_elastic(&mut fields);
    note_simulations(&mut fields);
    note_calibration(&mut fields);
    note_experiments(&mut fields);
    let found = fields.0;
    let promised: BTreeSet<String> = include_str!("promise.txt").lines().map(str::to_owned).collect();
    let missing: Vec<_> = promised.difference(&found).collect();
    let added: Vec<_> = found.difference(&promised).collect();
    assert!(missing.is_empty(), "fields that were promised are missing: {missing:#?}");
    assert!(added.is_empty(), "fields to be added to promise.txt: {added:#?}");
}
