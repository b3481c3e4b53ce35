//! Moves of keys on a small cluster: no operation fails, other servers are not disturbed, a hot spot is
//! balanced.

use std::cell::Cell;

use pando_lab::bench::{BenchError, Phase, Watch};
use pando_lab::elastic::{Clients, ElasticReport, ElasticSpec, PlannedMove, Spread, run};

fn spec() -> ElasticSpec {
    ElasticSpec {
        memory_servers: 2,
        compute_servers: 3,
        spare_servers: 1,
        threads: 4,
        cache_bytes: 1 << 20,
        subtree_level: 1,
        keys: 60_000,
        workload: "write-intensive".to_owned(),
        clients: Clients::OfServers,
        spread: Spread::Workload,
        moves: vec![PlannedMove { at_ns: 5_000_000, from: 1, to: 3, part: 0.5 }],
        flush_workers: 2,
        balance_every_ns: None,
        run_ns: 10_000_000,
        interval_ns: 100_000,
        seed: 5,
    }
}

fn sound(report: &ElasticReport) {
    assert_eq!((report.failed_ops, report.audit_violations), (0, 0), "{:?}", report.complaints);
}

#[test]
fn half_of_a_servers_keys_go_to_a_new_one_and_the_others_do_not_notice() {
    let report = run(&spec(), &()).expect("it runs");
    sound(&report);
    assert_eq!(report.moves.len(), 1);
    assert!(report.bytes_written > 100 << 10, "{} bytes", report.bytes_written);
    let others = report.others_ratio.expect("there are others");
    assert!(others > 0.95, "{others}");
    let new: u64 = report.series[3].iter().sum();
    let before: u64 = report.series[3].iter().take(49).sum();
    assert!(before == 0 && new > 1_000, "{before} and {new} operations");
    let again = run(&spec(), &()).expect("it runs");
    assert_eq!(report.series, again.series, "a run repeats itself");
}

#[test]
fn more_flushing_threads_are_faster() {
    let of = |flush_workers| {
        let moves = vec![PlannedMove { at_ns: 5_000_000, from: 1, to: 3, part: 1.0 }];
        let report = run(&ElasticSpec { flush_workers, moves, ..spec() }, &()).expect("it runs");
        sound(&report);
        report.moves[0].written_ns - report.moves[0].began_ns
    };
    let (one, four) = (of(1), of(4));
    assert!(four * 4 < one * 3, "{four} ns with four, {one} with one");
}

#[test]
fn a_hot_spot_is_evened_out_wherever_it_goes() {
    let spec = |balance_every_ns| ElasticSpec {
        compute_servers: 4,
        spare_servers: 0,
        clients: Clients::Routed { per_thread: 4 },
        spread: Spread::HotSpot { share: 0.9, width: 0.1, spots: vec![0.3, 0.8] },
        moves: Vec::new(),
        balance_every_ns,
        run_ns: 40_000_000,
        ..spec()
    };
    let (without, with) = (spec(None), spec(Some(1_000_000)));
    let (without, with) = (run(&without, &()).expect("runs"), run(&with, &()).expect("runs"));
    sound(&without);
    sound(&with);
    let settled = |report: &ElasticReport| report.settled_imbalance.expect("it was long enough");
    assert!(settled(&without) > 2.0, "{}", settled(&without));
    assert!(settled(&with) < 1.3, "{} after {} moves", settled(&with), with.move_count);
    assert!(with.move_count <= 3 * 2 * 2, "{} moves", with.move_count);
    assert_eq!(with.late_moves, 0, "it has settled");
    assert!(with.ops > without.ops);
}

/// Interrupts at the given call.
struct Impatient(Cell<u32>);

impl Watch for Impatient {
    fn begin(&self, _: Phase, _: u64) {}

    fn advance(&self, _: u64) {}

    fn interrupted(&self) -> bool {
        self.0.set(self.0.get().saturating_sub(1));
        self.0.get() == 0
    }
}

#[test]
fn a_run_stops_when_it_should() {
    let stopped = run(&spec(), &Impatient(Cell::new(500)));
    assert!(matches!(stopped, Err(BenchError::Interrupted)), "{stopped:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let step = PlannedMove { at_ns: 0, from: 1, to: 1, part: 0.5 };
    for broken in [
        ElasticSpec { moves: vec![step], ..spec() },
        ElasticSpec { moves: vec![PlannedMove { to: 4, ..step }], ..spec() },
        ElasticSpec { moves: vec![PlannedMove { to: 2, part: 0.0, ..step }], ..spec() },
        ElasticSpec { flush_workers: 0, ..spec() },
        ElasticSpec { interval_ns: 0, ..spec() },
        ElasticSpec { balance_every_ns: Some(0), ..spec() },
        ElasticSpec { spread: Spread::HotSpot { share: 0.9, width: 0.1, spots: Vec::new() }, ..spec() },
    ] {
        assert!(run(&broken, &()).expect_err("refused").is_bad_input());
    }
}
