//! The executor over the local fabric: order, wakers, panics, and the conformance suite.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use pando_fabric::conformance::{self, Options};
use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId, yield_once};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_rt::{SLOTS_MAX, Worker, block_on, run_slots};

fn fabric() -> LocalFabric {
    LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20], huge_pages: false }).expect("memory")
}

fn endpoint() -> LocalEndpoint {
    fabric().endpoint(1).expect("an endpoint")
}

#[test]
fn the_suite_of_all_fabrics_runs_on_this_executor() {
    let fabric = fabric();
    conformance::run_all(&fabric, &|endpoint, future| block_on(endpoint, future), Options::default());
    let in_a_slot = |endpoint: &LocalEndpoint, future: std::pin::Pin<&mut dyn Future<Output = ()>>| {
        run_slots(endpoint, vec![future]);
    };
    conformance::run_all(&fabric, &in_a_slot, Options { rounds: 1000, ..Options::default() });
}

#[test]
fn slots_take_turns_and_outputs_keep_their_order() {
    let endpoint = endpoint();
    for slots in [1, 2, 3, 16, 63, SLOTS_MAX] {
        let turns = RefCell::new(Vec::new());
        let (turns, endpoint) = (&turns, &endpoint);
        let outputs = Worker::new(endpoint, slots).run(|slot| async move {
            assert_eq!(endpoint.slots() as usize, slots);
            // Later slots have more to do.
            for turn in 0..=slot {
                turns.borrow_mut().push((turn, slot));
                endpoint.yield_now().await;
            }
            slot
        });
        assert!(outputs.into_iter().eq(0..slots as u32));
        assert!(turns.borrow().is_sorted(), "a slot ran twice while another one waited: {turns:?}");
        assert_eq!(turns.borrow().len(), slots * (slots + 1) / 2);
        assert_eq!(endpoint.slots(), 1);
    }
    assert!(run_slots(&endpoint, Vec::<std::future::Ready<()>>::new()).is_empty());
}

#[test]
fn a_pause_inside_a_slot_is_that_slots() {
    let endpoint = endpoint();
    // A slot that waits for another slot's event must be polled through its waker only.
    let polls = Cell::new(0);
    let (polls, endpoint) = (&polls, &endpoint);
    let outputs = Worker::new(endpoint, 2).run(|slot| async move {
        if slot == 0 {
            endpoint.yield_now().await;
        } else {
            yield_once().await;
        }
        polls.set(polls.get() + 1);
        slot
    });
    assert_eq!((outputs, polls.get()), (vec![0, 1], 2));
}

/// A future that is pending until another thread opens it. That thread knows only the waker.
struct Gate {
    open: AtomicBool,
    waker: Mutex<Option<Waker>>,
    polls: AtomicU64,
}

impl Gate {
    fn new() -> Arc<Self> {
        Arc::new(Self { open: AtomicBool::new(false), waker: Mutex::new(None), polls: AtomicU64::new(0) })
    }

    async fn pass(&self) {
        poll_fn(|cx| {
            self.polls.fetch_add(1, SeqCst);
            *self.waker.lock().expect("no panic") = Some(cx.waker().clone());
            if self.open.load(SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Called by another thread: waits until there is a waiter, then releases it.
    fn open(&self) {
        loop {
            if let Some(waker) = self.waker.lock().expect("no panic").take() {
                self.open.store(true, SeqCst);
                return waker.wake();
            }
            std::thread::yield_now();
        }
    }
}

#[test]
fn wakers_of_other_threads_work_while_slots_are_idle_and_while_they_are_busy() {
    for busy in [false, true] {
        let endpoint = endpoint();
        let gates: Vec<_> = (0..8).map(|_| Gate::new()).collect();
        let passed = Cell::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| gates.iter().rev().for_each(|gate| gate.open()));
            let (gates, passed, endpoint) = (&gates, &passed, &endpoint);
            Worker::new(endpoint, 9).run(|slot| async move {
                match gates.get(slot as usize) {
                    Some(gate) => {
                        gate.pass().await;
                        passed.set(passed.get() + 1);
                    }
                    None => {
                        while busy && passed.get() < gates.len() {
                            endpoint.yield_now().await;
                        }
                    }
                }
            });
        });
        assert_eq!(passed.get(), gates.len());
        // Polled once at first and once when woken: a waiting slot is not polled in between.
        assert!(gates.iter().all(|gate| gate.polls.load(SeqCst) <= 2), "idle slots were polled");
    }
}

#[test]
fn block_on_waits_for_other_threads() {
    let endpoint = endpoint();
    let gate = Gate::new();
    std::thread::scope(|scope| {
        scope.spawn(|| gate.open());
        block_on(&endpoint, gate.pass());
    });
    let value = block_on(&endpoint, async {
        for _ in 0..1000 {
            endpoint.yield_now().await;
        }
        7
    });
    assert_eq!(value, 7);
}

#[test]
fn a_panic_leaves_the_endpoint_usable_and_drops_every_future() {
    let endpoint = endpoint();
    let alive = Rc::new(());
    let result = catch_unwind(AssertUnwindSafe(|| {
        let (alive, endpoint) = (&alive, &endpoint);
        Worker::new(endpoint, 5).run(|slot| {
            let held = Rc::clone(alive);
            async move {
                let _held = held;
                for _ in 0..3 {
                    endpoint.yield_now().await;
                }
                assert_ne!(slot, 3, "on purpose");
            }
        })
    }));
    assert!(result.is_err());
    assert_eq!((Rc::strong_count(&alive), endpoint.slots(), endpoint.poll_ready()), (1, 1, 0));
    let word = GlobalAddr::new(MemoryServerId(0), 8);
    assert_eq!(run_slots(&endpoint, vec![endpoint.fetch_add(word, 1)]).len(), 1);
}

#[test]
fn a_future_that_is_done_is_dropped_before_the_others_are() {
    let endpoint = endpoint();
    let alive = Rc::new(());
    let (alive, endpoint) = (&alive, &endpoint);
    Worker::new(endpoint, 2).run(|slot| {
        let held = (slot == 0).then(|| Rc::clone(alive));
        async move {
            let _held = held;
            if slot == 1 {
                endpoint.yield_now().await;
                assert_eq!(Rc::strong_count(alive), 1);
            }
        }
    });
}

#[test]
fn a_worker_has_1_to_64_slots() {
    let endpoint = endpoint();
    for slots in [0, 65] {
        let made = catch_unwind(AssertUnwindSafe(|| Worker::new(&endpoint, slots).run(async |_| ())));
        assert!(made.is_err(), "{slots} slots");
    }
}
