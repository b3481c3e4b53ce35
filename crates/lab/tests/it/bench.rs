//! Small but complete benchmarks: all workloads and both layouts, verified and audited.

use std::cell::RefCell;

use crate::common::{adds_up, run};
use pando_lab::bench::{self, BenchSpec, FabricKind, LayoutChoice, Length, Phase, Watch};
use pando_workload::{Distribution, InsertKeys, KeySpace, Mix};

/// A cache much smaller than the index, and several compute servers, so that most paths are taken.
fn small(workload: &str) -> BenchSpec {
    BenchSpec {
        memory_servers: 2,
        compute_servers: 2,
        keys: 20_000,
        cache_bytes: 64 << 10,
        node_size: 512,
        warmup: 2_000,
        length: Length::Ops(if workload.starts_with("scan") || workload == "ycsb-e" {
            2_000
        } else {
            20_000
        }),
        workload: workload.to_owned(),
        ..BenchSpec::default()
    }
}

#[test]
fn every_workload_is_performed_without_an_error() {
    for name in Mix::names() {
        let report = run(&small(name));
        adds_up(&report);
        let entries = report.entries.expect("verified");
        assert!(entries >= report.keys + report.operations.new_keys, "{name}");
    }
}

#[test]
fn half_of_the_papers_inserts_make_the_index_larger() {
    for (name, seed) in [("insert-intensive", 1), ("read-intensive-2", 2), ("scan-intensive", 3)] {
        let length = Length::Ops(if name == "insert-intensive" { 20_000 } else { 40_000 });
        let report = run(&BenchSpec { seed, length, ..small(name) });
        let operations = report.operations;
        let new = operations.new_keys as f64 / operations.inserts as f64;
        // Six standard deviations of 2,000 inserts.
        assert!((new - 0.5).abs() < 0.07, "{name}: {new}");
        assert!(bench::render(&report).contains("new keys"));
    }
    let drawn = BenchSpec { insert_keys: Some(InsertKeys::Drawn), ..small("insert-intensive") };
    let operations = run(&drawn).operations;
    assert!((operations.new_keys as f64) < 0.4 * operations.inserts as f64, "{operations:?}");
    let new = BenchSpec { insert_keys: Some(InsertKeys::New), ..small("insert-intensive") };
    let operations = run(&new).operations;
    assert_eq!(operations.new_keys, operations.inserts);
}

#[test]
fn a_hot_spot_is_one_and_a_balancer_evens_it_out() {
    for (fabric, workload) in [(FabricKind::Local, "ycsb-a"), (FabricKind::Shm, "read-intensive")] {
        let hot = BenchSpec {
            fabric,
            compute_servers: 4,
            slots: 2,
            warmup: 100_000,
            length: Length::Ops(100_000),
            dist: Some("hotspot:0.9:0.1:0.3".parse().expect("valid")),
            ..small(workload)
        };
        let share = |report: &bench::BenchReport, server: usize| {
            let loads = report.loads.as_ref().expect("counted");
            assert!(loads.len() == 4 && loads.iter().map(|load| load.operations).sum::<u64>() >= report.ops);
            loads[server].share
        };
        let still = run(&hot);
        // The second of four servers has the hot stretch, and 15 of the other 90 hundredths of the keys.
        assert!((0.91..0.925).contains(&share(&still, 1)) && still.balance.is_none(), "{:?}", still.loads);
        let moved = run(&BenchSpec { balance_every_ns: Some(1_000_000), ..hot });
        let balance = moved.balance.expect("there was a balancer");
        assert!(balance.moves + balance.warmup_moves >= 2, "{balance:?}");
        assert!(
            share(&moved, 1) < share(&still, 1) - 0.15 && balance.busiest_over_mean < 2.4,
            "{:?}",
            moved.loads
        );
        assert!(bench::render(&moved).contains("boundaries moved"));
    }
}

#[test]
fn what_cannot_be_balanced_is_refused() {
    let with = |change: fn(&mut BenchSpec)| {
        let mut spec = BenchSpec { balance_every_ns: Some(1_000_000), ..small("ycsb-a") };
        change(&mut spec);
        spec.validate().expect_err("refused").to_string()
    };
    assert!(with(|spec| spec.fabric = FabricKind::Sim).contains("`balance`"));
    assert!(with(|spec| spec.compute_servers = 1).contains("one compute server"));
    assert!(with(|spec| spec.balance_every_ns = Some(999_999)).contains("not more often"));
}

#[test]
fn reads_of_a_small_cache_are_counted_and_writes_are_none() {
    let report = run(&small("read-only"));
    assert!(report.per_op.reads > 0.05 && report.per_op.reads < 1.5, "{:?}", report.per_op);
    assert_eq!((report.per_op.writes, report.per_op.atomics, report.per_op.two_sided), (0.0, 0.0, 0.0));
    // READs are of nodes; for the leaf at the boundary, which is shared, also of its lock word.
    let nodes = report.per_op.bytes_read / 512.0;
    assert!((0.99 * report.per_op.reads..=report.per_op.reads).contains(&nodes), "{:?}", report.per_op);
    let hits = report.cache.hit_ratio_leaf.expect("leaves were needed");
    assert!(hits > 0.0 && hits < 1.0);
    assert!(report.latency.len() * u64::from(bench::SAMPLED) <= report.ops + 2 * u64::from(bench::SAMPLED));
}

#[test]
fn slots_batches_threads_layouts_and_key_spaces_all_work() {
    let with = |change: fn(&mut BenchSpec)| {
        let mut spec = small("ycsb-a");
        change(&mut spec);
        run(&spec)
    };
    with(|spec| spec.slots = 16);
    with(|spec| spec.threads = 2);
    with(|spec| spec.key_space = KeySpace::Random64);
    with(|spec| (spec.layout, spec.key_size) = (LayoutChoice::Slotted, 20));
    with(|spec| (spec.value_size, spec.keys) = (3_000, 2_000));
    with(|spec| (spec.key_size, spec.value_size) = (16, 40));
    with(|spec| spec.dist = Some(Distribution::Uniform));
    with(|spec| (spec.workload, spec.multi_get) = ("read-only".to_owned(), 64));
    with(|spec| (spec.verify, spec.audit) = (false, false));
    with(|spec| spec.fabric = FabricKind::Shm);
    let timed = with(|spec| spec.length = Length::Seconds(0.05));
    assert!(timed.ops > 0);
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

    let hasty = Listener { stop_at: Some(Phase::Measure), ..Listener::default() };
    let endless = BenchSpec { length: Length::Seconds(100_000.0), ..small("ycsb-a") };
    assert!(matches!(bench::run(&endless, &hasty), Err(bench::BenchError::Interrupted)));
}

#[test]
fn what_cannot_be_done_is_said_in_one_sentence() {
    let refused = [
        BenchSpec { cache_bytes: 1000, ..small("read-only") },
        BenchSpec { node_size: 1000, ..small("read-only") },
        BenchSpec { layout: LayoutChoice::Fixed, key_size: 100, ..small("read-only") },
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
