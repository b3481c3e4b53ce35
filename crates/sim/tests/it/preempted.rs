//! Preemption of computing threads while all others continue.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::rc::Rc;

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, Nanos, Work};
use pando_sim::{Fault, FaultPlan, Model, Preemption, SimConfig, SimEndpoint, SimFabric};

const LONGEST_NS: Nanos = 40_000;
const THREADS: usize = 6;

struct Thread(Rc<SimEndpoint>);

impl Deref for Thread {
    type Target = SimEndpoint;

    fn deref(&self) -> &SimEndpoint {
        &self.0
    }
}

/// Observations of threads that count in their turns and check in between whether others counted.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// Checks between which others counted, and the maximum number of threads that stood still at once.
    overtaken: u32,
    at_once: u32,
    ended: Vec<Nanos>,
}

impl Seen {
    /// Records that others counted while `standing` threads stood still.
    fn overtaken_by(&mut self, standing: u32) {
        self.overtaken += 1;
        self.at_once = self.at_once.max(standing);
    }
}

fn cluster(compute_servers: usize) -> SimFabric {
    let config = SimConfig { regions: vec![1 << 20], compute_servers, seed: 1, model: Model::default() };
    SimFabric::new(&config).expect("a sound model")
}

fn run(cluster: &SimFabric, work: Work, one_in: u64) -> Seen {
    let threads: Vec<_> = (0..THREADS).map(|i| Rc::new(cluster.thread(0, i as u64))).collect();
    let (count, within) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let seen = Rc::new(RefCell::new(Seen::default()));
    let operate = |thread: usize, slot: u32| {
        let (ep, count, within) = (Rc::clone(&threads[thread]), Rc::clone(&count), Rc::clone(&within));
        let seen = Rc::clone(&seen);
        async move {
            for n in 0..40 {
                let (before, at) = (count.get(), ep.now());
                within.set(within.get() + 1);
                ep.charge(work);
                let standing = within.replace(within.get() - 1);
                if count.get() > before {
                    seen.borrow_mut().overtaken_by(standing);
                }
                assert!(ep.now() - at <= LONGEST_NS + 1_000, "it stood still for {} ns", ep.now() - at);
                count.set(count.get() + 1);
                let word = GlobalAddr::new(MemoryServerId(0), 64 * (1 + u64::from(slot)) + 8 * n);
                ep.fetch_add(word, 1).await.expect("it is up");
            }
            seen.borrow_mut().ended.push(ep.now());
        }
    };
    let preemption = Preemption { seed: 3, one_in, longest_ns: LONGEST_NS };
    let driven = threads.iter().map(|ep| Thread(Rc::clone(ep))).collect();
    cluster.run_preempted(driven, 2, preemption, operate);
    assert_eq!(count.get(), THREADS as u32 * 2 * 40);
    seen.take()
}

#[test]
fn others_go_on_while_a_thread_stands_still_and_the_same_happens_again() {
    let [one, two] = [0, 1].map(|_| run(&cluster(1), Work::TableLookup, 4));
    assert_eq!(one, two);
    assert!(one.overtaken > 20 && one.ended.len() == 2 * THREADS, "{one:?}");
    assert_eq!(one.at_once, 2, "no more than two stand still");
    assert_eq!(run(&cluster(1), Work::TableLookup, u64::MAX).overtaken, 0, "nobody is preempted");
}

#[test]
fn nothing_is_preempted_that_may_have_something_latched() {
    let seen = run(&cluster(1), Work::Hold(pando_fabric::Resource::Frame(1)), 1);
    assert_eq!(seen.overtaken, 0);
}

/// The futures of a killed compute server are dropped, also those of a thread that is standing still.
#[test]
fn a_thread_that_stands_still_can_be_killed() {
    let cluster = cluster(2);
    let threads: Vec<_> = (0..2).map(|server| Rc::new(cluster.thread(server, server as u64))).collect();
    let fault = Fault::KillCompute { compute_server: 0 };
    cluster.plan(&FaultPlan { faults: vec![(60_000, fault)] });
    let ended = Rc::new(Cell::new(0));
    let operate = |thread: usize, _| {
        let (ep, ended) = (Rc::clone(&threads[thread]), Rc::clone(&ended));
        async move {
            while ep.now() < 200_000 {
                ep.charge(Work::NodeSearch);
                ep.yield_now().await;
            }
            ended.set(ended.get() + 1);
        }
    };
    let preemption = Preemption { seed: 5, one_in: 1, longest_ns: LONGEST_NS };
    let driven = threads.iter().map(|ep| Thread(Rc::clone(ep))).collect();
    let outputs = cluster.run_mortals_preempted(driven, 1, preemption, operate);
    assert_eq!(ended.get(), 1);
    assert!(outputs[0][0].is_none() && outputs[1][0].is_some());
}
