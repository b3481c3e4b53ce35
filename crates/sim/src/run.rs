//! The loop that runs the threads of a cluster side by side.
//!
//! Whatever happens next in virtual time happens next, and that is all: an event of the network, or one poll of one slot of
//! one thread.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use pando_fabric::Endpoint;

use crate::endpoint::SimEndpoint;
use crate::events::Event;
use crate::fabric::{SimFabric, lock};
use crate::op::WorkerId;
use crate::world::World;

impl SimFabric {
    /// Runs `slots` futures on each of the threads, side by side in virtual time, to their ends; their outputs by
    /// thread and slot. Nothing else may use these endpoints meanwhile.
    ///
    /// # Panics
    /// If all futures wait and nothing is under way that could wake one, if `slots` is not 1 to 64, if an endpoint is
    /// no thread's, or if a compute server is killed: see [`SimFabric::run_mortals`].
    pub fn run<F: Future>(
        &self,
        threads: &[&SimEndpoint],
        slots: u32,
        make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<F::Output>> {
        let outputs = self.run_mortals(threads, slots, make).into_iter();
        let alive = |slot: Option<F::Output>| slot.expect("no compute server was killed");
        outputs.map(|slots| slots.into_iter().map(alive).collect()).collect()
    }

    /// [`SimFabric::run`] for compute servers that may be killed: the futures of such a one are dropped, and have no output.
    ///
    /// # Panics
    /// As [`SimFabric::run`] otherwise.
    pub fn run_mortals<F: Future>(
        &self,
        threads: &[&SimEndpoint],
        slots: u32,
        mut make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<Option<F::Output>>> {
        assert!((1..=u64::BITS).contains(&slots), "a thread has 1 to 64 slots, not {slots}");
        let woken = Arc::new(Woken::default());
        let mut runs: Vec<_> = threads
            .iter()
            .enumerate()
            .map(|(thread, ep)| Run::new(ep, (0..slots).map(|slot| make(thread, slot)), &woken))
            .collect();
        for (run, thread) in runs.iter().zip(0..) {
            run.endpoint.set_slots(slots);
            let mut world = self.shared.world();
            world.drive(run.worker, Some(thread));
            world.make_ready(run.worker, u64::MAX >> (u64::BITS - slots));
        }
        self.run_events(&mut runs, &woken);
        for Run { endpoint, worker, .. } in &runs {
            self.shared.world().drive(*worker, None);
            // Who ended early was idle until the others had ended.
            endpoint.clock.set(endpoint.clock.get().max(self.now()));
            endpoint.wakers.borrow_mut().clear();
            endpoint.set_slots(1);
            endpoint.enter_slot(0);
        }
        runs.into_iter().map(|run| run.slots.into_iter().map(|slot| slot.output).collect()).collect()
    }

    fn run_events<F: Future>(&self, runs: &mut [Run<'_, F>], woken: &Woken) {
        let mut live: usize = runs.iter().map(|run| run.slots.len()).sum();
        let mut world = self.shared.world();
        while live > 0 {
            let event = world.next_event();
            match event.unwrap_or_else(|| panic!("{live} futures wait for nothing that is under way")) {
                Event::Run(worker) => {
                    let thread = world.worker(worker).thread.expect("only threads of a run are scheduled");
                    let (slot, now) = (world.worker(worker).take_slot(), world.now);
                    let Some(slot) = slot else { continue };
                    drop(world);
                    let run = &mut runs[thread as usize];
                    live -= usize::from(run.poll(slot, now));
                    world = self.shared.world();
                    run.polled(slot, &mut world);
                }
                Event::Handle(op) => {
                    drop(world);
                    self.shared.handle(op);
                    world = self.shared.world();
                }
                event @ Event::Fault(_) => {
                    world.happen(event);
                    let killed = runs.iter_mut().filter(|run| world.is_dead(run.worker));
                    let killed: Vec<_> = killed.collect();
                    drop(world);
                    live -= killed.into_iter().map(Run::drop_futures).sum::<usize>();
                    world = self.shared.world();
                }
                event => world.happen(event),
            }
            if world.has_wakers() {
                let wakers = world.take_wakers();
                drop(world);
                wakers.into_iter().for_each(Waker::wake);
                world = self.shared.world();
            }
            for (worker, slot) in woken.take() {
                world.make_ready(worker, 1 << slot);
            }
        }
    }
}

/// One thread of a run.
struct Run<'e, F: Future> {
    endpoint: &'e SimEndpoint,
    worker: WorkerId,
    slots: Vec<Slot<F>>,
}

struct Slot<F: Future> {
    future: Option<Pin<Box<F>>>,
    output: Option<F::Output>,
    waker: Waker,
}

impl<'e, F: Future> Run<'e, F> {
    fn new(endpoint: &'e SimEndpoint, futures: impl Iterator<Item = F>, woken: &Arc<Woken>) -> Self {
        let worker = endpoint.worker.expect("only threads run");
        let slots = futures.zip(0..).map(|(future, slot)| Slot {
            future: Some(Box::pin(future)),
            output: None,
            waker: Waker::from(Arc::new(SlotWaker { worker, slot, woken: Arc::clone(woken) })),
        });
        let slots: Vec<_> = slots.collect();
        *endpoint.wakers.borrow_mut() = slots.iter().map(|slot| slot.waker.clone()).collect();
        Self { endpoint, worker, slots }
    }

    /// Polls a slot at the time that the cluster has come to; whether its future ended.
    #[inline]
    fn poll(&mut self, slot: u32, now: u64) -> bool {
        self.endpoint.clock.set(now);
        self.endpoint.enter_slot(slot);
        self.slots[slot as usize].poll()
    }

    /// Says what became of that poll. A slot that paces goes on where it stopped.
    #[inline]
    fn polled(&self, slot: u32, world: &mut World) {
        let ep = self.endpoint;
        let clock = ep.clock.get();
        let (free_at, next) = match ep.paced.take() {
            true => (clock, Some(slot)),
            false => (clock + world.model.compute.poll_ns, None),
        };
        world.polled(self.worker, free_at, ep.yielded.take(), next);
    }

    /// Its compute server was killed. How many futures that ended.
    fn drop_futures(&mut self) -> usize {
        self.slots.iter_mut().filter_map(|slot| slot.future.take()).count()
    }
}

impl<F: Future> Slot<F> {
    /// Whether the future ended by this poll.
    #[inline]
    fn poll(&mut self) -> bool {
        let Some(future) = &mut self.future else { return false };
        match future.as_mut().poll(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => false,
            Poll::Ready(output) => {
                self.output = Some(output);
                self.future = None;
                true
            }
        }
    }
}

/// Slots whose wakers were called, for futures that wait for something else than verbs.
#[derive(Default)]
struct Woken {
    any: AtomicBool,
    slots: Mutex<Vec<(WorkerId, u32)>>,
}

impl Woken {
    #[inline]
    fn take(&self) -> Vec<(WorkerId, u32)> {
        match self.any.load(Relaxed) {
            true => {
                self.any.store(false, Relaxed);
                std::mem::take(&mut *lock(&self.slots))
            }
            false => Vec::new(),
        }
    }
}

struct SlotWaker {
    worker: WorkerId,
    slot: u32,
    woken: Arc<Woken>,
}

impl Wake for SlotWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        lock(&self.woken.slots).push((self.worker, self.slot));
        self.woken.any.store(true, Relaxed);
    }
}
