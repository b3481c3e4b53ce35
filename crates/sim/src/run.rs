//! The loop that runs the threads of a cluster in virtual time.
//!
//! Each step takes the next event in virtual time: an event of the network, or one poll of one slot of one
//! thread. Within a poll that is [preempted](crate::preemption), the loop is entered again.

use std::cell::{Cell, RefCell};
use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use pando_fabric::{Endpoint, Nanos};

use crate::endpoint::SimEndpoint;
use crate::events::Event;
use crate::fabric::SimFabric;
use crate::op::WorkerId;
use crate::preemption::{Preempting, Preemption};
use crate::shared::{Shared, lock};
use crate::world::World;

impl SimFabric {
    /// Runs `slots` futures on each thread, concurrently in virtual time, to completion; returns their
    /// outputs by thread and slot. The endpoints must not be used otherwise meanwhile.
    ///
    /// # Panics
    /// If all futures wait and no event can wake one, if `slots` is not 1 to 64, if an endpoint belongs to no
    /// thread, or if a compute server is killed (see [`SimFabric::run_mortals`]).
    pub fn run<F: Future>(
        &self,
        threads: &[&SimEndpoint],
        slots: u32,
        make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<F::Output>> {
        all_alive(self.run_mortals(threads, slots, make))
    }

    /// [`SimFabric::run`] for compute servers that may be killed. The futures of a killed server are dropped
    /// and have no output.
    ///
    /// # Panics
    /// As [`SimFabric::run`] otherwise.
    pub fn run_mortals<F: Future>(
        &self,
        threads: &[&SimEndpoint],
        slots: u32,
        make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<Option<F::Output>>> {
        let driver = Driver::new(self, threads.to_vec(), slots, make);
        driver.go(Nanos::MAX);
        driver.end()
    }

    /// [`SimFabric::run`] with preempted threads. The loop is reentered within a preempted poll, so endpoints
    /// and futures must be `'static`.
    ///
    /// # Panics
    /// As [`SimFabric::run`].
    pub fn run_preempted<P, F>(
        &self,
        threads: Vec<P>,
        slots: u32,
        preemption: Preemption,
        make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<F::Output>>
    where
        P: Deref<Target = SimEndpoint> + 'static,
        F: Future + 'static,
    {
        all_alive(self.run_mortals_preempted(threads, slots, preemption, make))
    }

    /// [`SimFabric::run_preempted`] for compute servers that may be killed, as in [`SimFabric::run_mortals`].
    ///
    /// # Panics
    /// As [`SimFabric::run_mortals`].
    pub fn run_mortals_preempted<P, F>(
        &self,
        threads: Vec<P>,
        slots: u32,
        preemption: Preemption,
        make: impl FnMut(usize, u32) -> F,
    ) -> Vec<Vec<Option<F::Output>>>
    where
        P: Deref<Target = SimEndpoint> + 'static,
        F: Future + 'static,
    {
        let driver = Rc::new(Driver::new(self, threads, slots, make));
        let inner = Rc::clone(&driver);
        let go = move |until| inner.go(until);
        let preempting = Preempting::begin(Arc::clone(&self.shared), go, preemption);
        driver.runs.iter().for_each(|run| run.borrow().endpoint.is_preemptible.set(true));
        driver.go(Nanos::MAX);
        driver.runs.iter().for_each(|run| run.borrow().endpoint.is_preemptible.set(false));
        drop(preempting);
        Rc::into_inner(driver).expect("nothing stands still any more").end()
    }
}

fn all_alive<T>(outputs: Vec<Vec<Option<T>>>) -> Vec<Vec<T>> {
    let alive = |slot: Option<T>| slot.expect("no compute server was killed");
    outputs.into_iter().map(|slots| slots.into_iter().map(alive).collect()).collect()
}

/// The threads of a run, and the loop over them.
struct Driver<P, F: Future> {
    shared: Arc<Shared>,
    /// A thread is borrowed while it is polled.
    runs: Vec<RefCell<Run<P, F>>>,
    /// Number of futures that have not ended.
    live: Cell<usize>,
    woken: Arc<Woken>,
}

impl<P: Deref<Target = SimEndpoint>, F: Future> Driver<P, F> {
    fn new(fabric: &SimFabric, threads: Vec<P>, slots: u32, mut make: impl FnMut(usize, u32) -> F) -> Self {
        assert!((1..=u64::BITS).contains(&slots), "a thread has 1 to 64 slots, not {slots}");
        let (shared, woken) = (Arc::clone(&fabric.shared), Arc::new(Woken::default()));
        let make_run = |(thread, endpoint)| {
            RefCell::new(Run::new(endpoint, (0..slots).map(|slot| make(thread, slot)), &woken))
        };
        let runs: Vec<_> = threads.into_iter().enumerate().map(make_run).collect();
        for (run, thread) in runs.iter().zip(0..) {
            let run = run.borrow();
            run.endpoint.set_slots(slots);
            let mut world = shared.world();
            world.drive(run.worker, Some(thread));
            world.make_ready(run.worker, u64::MAX >> (u64::BITS - slots));
        }
        let live = Cell::new(runs.iter().map(|run| run.borrow().slots.len()).sum());
        Self { shared, runs, live, woken }
    }

    fn end(self) -> Vec<Vec<Option<F::Output>>> {
        let now = self.shared.world().now;
        let runs = self.runs.into_iter().map(RefCell::into_inner);
        let end = |Run { endpoint, worker, slots }: Run<P, F>| {
            self.shared.world().drive(worker, None);
            // A thread that ended early was idle until the others had ended.
            endpoint.clock.set(endpoint.clock.get().max(now));
            endpoint.wakers.borrow_mut().clear();
            endpoint.set_slots(1);
            endpoint.enter_slot(0);
            slots.into_iter().map(|slot| slot.output).collect()
        };
        runs.map(end).collect()
    }

    fn end_futures(&self, count: usize) {
        self.live.set(self.live.get() - count);
    }

    /// Polls the next slot of a thread.
    #[inline]
    fn run_thread<'w>(&'w self, mut world: MutexGuard<'w, World>, worker: WorkerId) -> MutexGuard<'w, World> {
        let thread = world.worker(worker).thread.expect("only threads of a run are scheduled");
        if world.is_busy(worker) {
            world.run_later(worker);
            return world;
        }
        let (slot, now) = (world.worker(worker).take_slot(), world.now);
        let Some(slot) = slot else { return world };
        drop(world);
        let mut run = self.runs[thread as usize].borrow_mut();
        self.end_futures(usize::from(run.poll(slot, now)));
        let mut world = self.shared.world();
        run.polled(slot, &mut world);
        // The thread was killed while it stood still.
        if world.is_dead(worker) {
            drop(world);
            self.end_futures(run.drop_futures());
            world = self.shared.world();
        }
        world
    }

    /// Drops the futures of killed compute servers.
    fn drop_killed(&self) {
        for run in &self.runs {
            // A thread that stands still is dropped when its poll ends.
            let Ok(mut run) = run.try_borrow_mut() else { continue };
            if self.shared.world().is_dead(run.worker) {
                self.end_futures(run.drop_futures());
            }
        }
    }

    /// Executes all events before `until`, as long as any future has not ended.
    fn go(&self, until: Nanos) {
        let mut world = self.shared.world();
        while self.live.get() > 0 {
            let Some(event) = world.next_event_before(until) else {
                assert!(until < Nanos::MAX, "{} futures wait for nothing that is under way", self.live.get());
                return;
            };
            match event {
                Event::Run(worker) => world = self.run_thread(world, worker),
                Event::Handle(op) => {
                    drop(world);
                    self.shared.handle(op);
                    world = self.shared.world();
                }
                event @ Event::Fault(_) => {
                    world.happen(event);
                    drop(world);
                    self.drop_killed();
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
            for (worker, slot) in self.woken.take() {
                world.make_ready(worker, 1 << slot);
            }
        }
    }
}

/// One thread of a run.
struct Run<P, F: Future> {
    endpoint: P,
    worker: WorkerId,
    slots: Vec<Slot<F>>,
}

struct Slot<F: Future> {
    future: Option<Pin<Box<F>>>,
    output: Option<F::Output>,
    waker: Waker,
}

impl<P: Deref<Target = SimEndpoint>, F: Future> Run<P, F> {
    fn new(endpoint: P, futures: impl Iterator<Item = F>, woken: &Arc<Woken>) -> Self {
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

    /// Polls a slot at the present time of the cluster; returns whether its future ended.
    #[inline]
    fn poll(&mut self, slot: u32, now: u64) -> bool {
        self.endpoint.clock.set(now);
        self.endpoint.enter_slot(slot);
        self.slots[slot as usize].poll()
    }

    /// Reports the result of that poll. A slot that paces continues first.
    #[inline]
    fn polled(&self, slot: u32, world: &mut World) {
        let ep = &*self.endpoint;
        let clock = ep.clock.get();
        let (free_at, next) = match ep.paced.take() {
            true => (clock, Some(slot)),
            false => (clock + world.model.compute.poll_ns, None),
        };
        world.polled(self.worker, free_at, ep.state.take_ready(), next);
    }

    /// Drops the futures of a killed thread; returns their number.
    fn drop_futures(&mut self) -> usize {
        self.slots.iter_mut().filter_map(|slot| slot.future.take()).count()
    }
}

impl<F: Future> Slot<F> {
    /// Polls the future; returns whether it ended.
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

/// Slots whose wakers were called, for futures that wait for events other than verbs.
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
