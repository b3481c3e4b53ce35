//! Benchmarks on the simulated cluster: verified, audited, repeatable, and with the costs of this machine's
//! fabrics.

use std::cell::RefCell;

use crate::common::{adds_up, run};
use pando::{CacheOptions, Eviction};
use pando_lab::bench::{self, BenchSpec, FabricKind, LayoutChoice, Length, Phase, System, WALL_CLOCK, Watch};
use pando_workload::{Distribution, KeySpace, Mix};
use serde_json::Value;

/// A cache much smaller than the index, several compute servers and threads, so that most paths are taken.
fn small(workload: &str) -> BenchSpec {
    let scans = workload.starts_with("scan") || workload == "ycsb-e";
    BenchSpec {
        fabric: FabricKind::Sim,
        memory_servers: 2,
        memory_bytes: Some(64 << 20),
        compute_servers: 3,
        threads: 4,
        keys: 10_000,
        cache_bytes: 64 << 10,
        node_size: 512,
        warmup: 1_000,
        length: Length::Ops(if scans { 500 } else { 5_000 }),
        workload: workload.to_owned(),
        ..BenchSpec::default()
    }
}

/// The parts of the report that are equal in every run.
fn history(spec: &BenchSpec) -> Value {
    let mut json: Value = serde_json::from_str(&run(spec).to_json()).expect("valid JSON");
    let fields = json.as_object_mut().expect("an object");
    for field in WALL_CLOCK {
        assert!(fields.remove(field).is_some(), "{field}");
    }
    json
}

#[test]
fn every_workload_is_performed_without_an_error() {
    for name in Mix::names() {
        let report = run(&small(name));
        adds_up(&report);
        assert_eq!(report.latency.len(), report.ops, "every operation is timed");
        // Twelve threads, and each READ takes at least two microseconds.
        let seconds = report.virtual_seconds.expect("a clock of its own");
        assert!(seconds > report.per_op.reads * report.ops as f64 * 1.5e-6 / 12.0, "{name}: {seconds}");
        assert_eq!(report.throughput_ops, report.ops as f64 / seconds);
    }
}

#[test]
fn a_hot_spot_shows_in_the_loads_and_comes_again() {
    let hot = BenchSpec { dist: Some("hotspot:0.8:0.1".parse().expect("valid")), ..small("ycsb-a") };
    let loads = run(&hot).loads.expect("counted");
    // The first of three servers has the hot stretch, and 7 of 27 parts of the rest. One key in 32 is
    // counted.
    assert!((loads[0].share - 0.85).abs() < 0.15 && loads.len() == 3, "{loads:?}");
    assert_eq!(history(&hot), history(&hot));
}

#[test]
fn a_cached_path_is_as_long_with_many_compute_servers_as_with_few() {
    let cell = |servers: usize| BenchSpec {
        compute_servers: servers,
        threads: 1,
        node_size: 256,
        keys: 500 * servers as u64,
        cache_bytes: 1 << 20,
        cache: CacheOptions { leaf_admission: 1.0, ..CacheOptions::default() },
        own_ranks: true,
        dist: Some(Distribution::Uniform),
        warmup: 4_000 * servers as u64,
        length: Length::Ops(500 * servers as u64),
        verify: false,
        ..small("read-only")
    };
    let [few, many] = [4, 64].map(|servers| run(&cell(servers)));
    assert_eq!((few.per_op.reads, many.per_op.reads), (0.0, 0.0), "everything is cached");
    let heights = [&few, &many].map(|report| report.tree.as_ref().expect("audited").height);
    assert!(heights[1] > heights[0], "{heights:?}");
    // A search of a node takes 82 ns, and a lookup of a shared node's child 60 ns more.
    let [few, many] = [few, many].map(|report| report.latency.mean());
    assert!(many < few + 82.0, "{few} and {many} ns");
}

#[test]
fn an_index_grows_from_nothing_on_every_compute_server() {
    let spec = BenchSpec {
        from_empty: true,
        own_ranks: true,
        dist: Some(Distribution::Uniform),
        verify: false,
        ..small("insert-only")
    };
    let report = run(&spec);
    assert_eq!((report.failed_ops, report.audit_violations), (0, Some(0)), "{:?}", report.complaints);
    assert_eq!(report.tree.expect("audited").entries, 6_000, "warm-up and measured inserts");
    assert!(BenchSpec { verify: true, ..spec.clone() }.validate().is_err());
    assert!(BenchSpec { workload: "read-only".to_owned(), ..spec }.validate().is_err());
}

#[test]
fn a_tree_in_local_memory_performs_every_workload_without_a_verb() {
    for name in Mix::names() {
        let spec = BenchSpec { system: System::LocalBTree, compute_servers: 1, ..small(name) };
        let report = run(&spec);
        assert_eq!(report.tree.expect("audited").entries, report.entries.expect("verified"), "{name}");
        assert_eq!((report.per_op.reads, report.per_op.bytes_total), (0.0, 0.0), "{name}");
        assert!(report.virtual_seconds.expect("a clock of its own") > 0.0, "{name}");
    }
    let refused = BenchSpec { system: System::LocalBTree, ..small("read-only") };
    assert!(refused.validate().is_err(), "three compute servers");
}

#[test]
fn slots_batches_layouts_and_key_spaces_all_work() {
    let with = |change: fn(&mut BenchSpec)| {
        let mut spec = small("ycsb-a");
        change(&mut spec);
        run(&spec)
    };
    with(|spec| spec.slots = 8);
    with(|spec| spec.key_space = KeySpace::Random64);
    with(|spec| (spec.layout, spec.key_size) = (LayoutChoice::Slotted, 20));
    with(|spec| (spec.value_size, spec.keys) = (3_000, 2_000));
    with(|spec| spec.dist = Some(Distribution::Uniform));
    with(|spec| (spec.workload, spec.multi_get) = ("read-only".to_owned(), 64));
    with(|spec| (spec.verify, spec.audit) = (false, false));
    with(|spec| spec.compute_servers = 1);
}

#[test]
fn the_same_seed_gives_the_same_history_and_another_seed_another() {
    let tight = |workload: &str, change: fn(&mut BenchSpec)| {
        let mut spec = small(workload);
        change(&mut spec);
        spec
    };
    for spec in [
        tight("write-intensive", |spec| spec.interval_ns = Some(100_000)),
        tight("insert-intensive", |spec| spec.slots = 4),
        tight("scan-intensive", |spec| spec.key_space = KeySpace::Random64),
        tight("ycsb-a", |spec| {
            spec.cache = CacheOptions { fifo: true, eviction: Eviction::Random, ..CacheOptions::default() };
            spec.cache_bytes = 24 << 10;
        }),
    ] {
        let first = history(&spec);
        assert_eq!(first, history(&spec), "{spec:?}");
        let other = history(&BenchSpec { seed: 43, ..spec.clone() });
        for field in ["virtual_seconds", "per_op", "cache"] {
            assert_ne!(first[field], other[field], "{field} of {spec:?}");
        }
    }
}

#[test]
fn an_operation_costs_the_same_as_on_this_machine() {
    for (workload, writes) in [("read-only", false), ("write-intensive", true)] {
        let simulated = BenchSpec {
            keys: 200_000,
            compute_servers: 4,
            threads: 1,
            // A tenth of the nodes.
            cache_bytes: (200_000 / 30 * 1024) / 10 / 4,
            memory_servers: 4,
            node_size: 1024,
            warmup: 200_000,
            length: Length::Ops(400_000),
            ..small(workload)
        };
        let local = run(&BenchSpec { fabric: FabricKind::Local, ..simulated.clone() });
        let simulated = run(&simulated);
        let near = |what: &str, here: f64, there: f64| {
            assert!((here - there).abs() <= 0.02 * here, "{workload}: {here} {what} here, {there} there");
        };
        near("READs", local.per_op.reads, simulated.per_op.reads);
        near("WRITEs", local.per_op.writes, simulated.per_op.writes);
        near("bytes", local.per_op.bytes_total, simulated.per_op.bytes_total);
        assert!(simulated.per_op.reads > 0.2 && (simulated.per_op.writes > 0.1) == writes, "{workload}");
        assert_eq!(simulated.per_op.atomics, 0.0);
    }
}

#[test]
fn time_is_virtual_and_operations_are_counted_over_it() {
    let spec =
        BenchSpec { length: Length::Seconds(0.002), interval_ns: Some(100_000), ..small("write-intensive") };
    let report = run(&spec);
    let seconds = report.virtual_seconds.expect("a clock of its own");
    // Operations under way at the end of time are finished.
    assert!((0.002..0.0021).contains(&seconds), "{seconds}");
    let series = report.series.expect("it was asked for");
    assert_eq!(series.ops.len(), 3);
    let sum: u64 = series.ops.iter().flatten().sum();
    assert_eq!(sum, report.ops);
    for of_server in &series.ops {
        assert_eq!(of_server.len(), series.ops[0].len());
        let full = &of_server[..20];
        let (least, most) = (full.iter().min().expect("20"), full.iter().max().expect("20"));
        assert!(*least > 0 && most / least < 4, "throughput is steady: {of_server:?}");
    }
    let mut slow = spec.clone();
    slow.model.network.read_ns *= 10;
    slow.model.network.write_ns *= 10;
    let slow = run(&slow);
    assert!(slow.throughput_ops < report.throughput_ops / 4.0, "{} of {}", slow.throughput_ops, report.ops);
    assert_ne!(slow.config_hash, report.config_hash);
}

#[test]
fn a_run_can_be_watched_and_interrupted() {
    #[derive(Default)]
    struct Listener {
        phases: RefCell<Vec<Phase>>,
        stop_at: Option<Phase>,
    }
    impl Watch for Listener {
        fn begin(&self, phase: Phase, _: u64) {
            self.phases.borrow_mut().push(phase);
        }
        fn advance(&self, _: u64) {}
        fn interrupted(&self) -> bool {
            self.stop_at.is_some_and(|phase| self.phases.borrow().contains(&phase))
        }
    }
    let patient = Listener::default();
    bench::run(&small("read-only"), &patient).expect("not interrupted");
    let all = [Phase::Load, Phase::WarmUp, Phase::Measure, Phase::Verify, Phase::Audit];
    assert_eq!(patient.phases.into_inner(), all);

    let endless = BenchSpec { length: Length::Seconds(100_000.0), ..small("ycsb-a") };
    for stop_at in [Phase::Load, Phase::Measure] {
        let hasty = Listener { stop_at: Some(stop_at), ..Listener::default() };
        let keys = if stop_at == Phase::Load { 1_000_000 } else { endless.keys };
        let spec = BenchSpec { keys, ..endless.clone() };
        assert!(matches!(bench::run(&spec, &hasty), Err(bench::BenchError::Interrupted)));
        assert_eq!(hasty.phases.borrow().last(), Some(&stop_at));
    }
}

#[test]
fn what_cannot_be_done_is_said_in_one_sentence() {
    let refused = [
        BenchSpec { cache_bytes: 1000, ..small("read-only") },
        BenchSpec { node_size: 1000, ..small("read-only") },
        BenchSpec { layout: LayoutChoice::Fixed, key_size: 100, ..small("read-only") },
        BenchSpec { memory_bytes: Some(1 << 10), ..small("read-only") },
    ];
    for spec in refused {
        let error = bench::run(&spec, &()).expect_err("refused");
        assert!(error.is_bad_input(), "{error:?}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let full = BenchSpec { memory_bytes: Some(4 << 20), keys: 1_000_000, ..small("read-only") };
    let error = bench::run(&full, &()).expect_err("no room");
    assert!(!error.is_bad_input(), "{error:?}");
}
