//! State of the cluster, and its next event.
//!
//! All changes are [events](crate::events), so a run is a function of the seeds, the faults and the model
//! alone. The way of an operation is in [`crate::network`]; threads and faults are here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::Waker;

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, Nanos, Random, Resource, VerbResult, WORD};
use zerocopy::FromZeros;

use crate::atomics::Atomics;
use crate::contention::Contended;
use crate::events::{Event, Events};
use crate::faults::Fault;
use crate::model::{Model, ModelError};
use crate::nic::{Costs, Nic};
use crate::op::{OpId, Ops, WorkerId};
use crate::verb::Verb;
use crate::worker::Worker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    /// It does not answer, but may resume.
    Stopped,
    Off,
}

pub(crate) struct Server {
    pub region: Arc<Vec<AtomicU64>>,
    pub nic: usize,
    pub idle_cores: usize,
    /// Total busy time of its cores.
    pub cores_busy: Nanos,
    pub atomics: Atomics,
    /// Calls that wait for a core.
    pub waiting: VecDeque<OpId>,
    pub power: Power,
    /// Number of ends and restarts.
    pub life: u32,
    /// Factor on all durations at this server.
    pub slowness: u64,
}

impl Server {
    fn new(model: &Model, region: Arc<Vec<AtomicU64>>, nic: usize) -> Self {
        Self {
            region,
            nic,
            idle_cores: model.memory_server.cores,
            cores_busy: 0,
            atomics: Atomics::new(&model.network),
            waiting: VecDeque::new(),
            power: Power::On,
            life: 0,
            slowness: 1,
        }
    }
}

/// Connections from one compute server to one memory server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Link {
    pub is_lost: bool,
    /// Number of losses.
    pub life: u32,
}

pub(crate) struct World {
    pub model: Model,
    pub costs: Costs,
    pub now: Nanos,
    pub events: Events,
    pub ops: Ops,
    pub servers: Vec<Server>,
    pub nics: Vec<Nic>,
    /// By compute server, then memory server.
    links: Vec<Vec<Link>>,
    /// Whether a connection was ever lost. Otherwise nobody needs to look at one of a million.
    has_lost: bool,
    pub workers: Vec<Worker>,
    /// Number of threads by compute server.
    threads: Vec<u32>,
    /// Resources for which threads contend, by compute server.
    contended: Vec<Contended>,
    pub random: Random,
    /// The thread whose slot has just become ready; it is polled before the next event.
    due: Option<WorkerId>,
    faults: Vec<Fault>,
    /// Compute servers that were killed; the driver of their threads drops these.
    killed: Vec<bool>,
    /// Wakers to be called once the world is unlocked.
    wakers: Vec<Waker>,
}

impl World {
    /// # Errors
    /// [`ModelError::NoMemory`].
    pub fn new(model: Model, regions: &[u64], compute_servers: usize, seed: u64) -> Result<Self, ModelError> {
        let memory = regions.iter().map(|&bytes| zeroed(bytes).ok_or(ModelError::NoMemory { bytes }));
        let memory = memory.collect::<Result<Vec<_>, _>>()?;
        let servers = memory.into_iter().enumerate().map(|(number, region)| {
            let nic = match model.network.nic_shared && number < compute_servers {
                true => number,
                false => compute_servers + number,
            };
            Server::new(&model, region, nic)
        });
        let costs = Costs::new(&model.network);
        Ok(Self {
            servers: servers.collect(),
            costs,
            now: 0,
            events: Events::default(),
            ops: Ops::default(),
            nics: (0..compute_servers + regions.len()).map(|_| Nic::default()).collect(),
            links: vec![vec![Link::default(); regions.len()]; compute_servers],
            has_lost: false,
            workers: Vec::new(),
            threads: vec![0; compute_servers],
            contended: (0..compute_servers).map(|_| Contended::new(&model.compute)).collect(),
            random: Random::new(seed),
            due: None,
            faults: Vec::new(),
            killed: vec![false; compute_servers],
            wakers: Vec::new(),
            model,
        })
    }

    /// Adds a memory server with its own NIC and connections to all compute servers.
    ///
    /// # Errors
    /// [`ModelError::NoMemory`].
    pub fn add_server(&mut self, bytes: u64) -> Result<(), ModelError> {
        let region = zeroed(bytes).ok_or(ModelError::NoMemory { bytes })?;
        self.servers.push(Server::new(&self.model, region, self.nics.len()));
        let mut nic = Nic::default();
        nic.connect(self.workers.len() as u64, &self.model.network);
        self.nics.push(nic);
        for worker in &self.workers {
            self.nics[worker.compute_server].connect(1, &self.model.network);
        }
        self.links.iter_mut().for_each(|links| links.push(Link::default()));
        Ok(())
    }

    pub fn add_worker(&mut self, compute_server: usize) -> WorkerId {
        let core = self.threads[compute_server];
        self.threads[compute_server] += 1;
        self.workers.push(Worker::new(compute_server, core, self.now));
        self.nics[compute_server].connect(self.servers.len() as u64, &self.model.network);
        for server in &self.servers {
            self.nics[server.nic].connect(1, &self.model.network);
        }
        self.workers.len() as WorkerId - 1
    }

    #[inline]
    pub fn worker(&mut self, id: WorkerId) -> &mut Worker {
        &mut self.workers[id as usize]
    }

    /// The connections of a compute server to a memory server.
    #[inline]
    pub fn link(&self, compute_server: usize, server: usize) -> Link {
        if self.has_lost { self.links[compute_server][server] } else { Link::default() }
    }

    #[inline]
    pub fn schedule(&mut self, at: Nanos, event: Event) {
        self.events.push(at.max(self.now), event);
    }

    /// Takes the next event and advances the time to it.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(worker) = self.due.take() {
            return Some(Event::Run(worker));
        }
        let (at, event) = self.events.pop()?;
        self.now = at;
        Some(event)
    }

    /// Takes the next event if it happens before `until`.
    #[inline]
    pub fn next_event_before(&mut self, until: Nanos) -> Option<Event> {
        let is_due = self.due.is_some() || self.next_time().is_some_and(|at| at < until);
        if is_due { self.next_event() } else { None }
    }

    #[inline]
    pub fn next_time(&self) -> Option<Nanos> {
        self.events.next_time()
    }

    /// Executes an event other than a poll of a thread or a call of a handler.
    #[inline]
    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Post(id) => self.post_late(id),
            Event::Arrive(id) => self.arrive(id),
            Event::Execute(id) => self.execute(id),
            Event::Answer(id) => self.answer_call(id),
            Event::Return(id) => self.come_back(id),
            Event::Complete(id) => self.complete(id),
            Event::Awake(worker, slot) => self.make_ready(worker, 1 << slot),
            Event::Fault(number) => self.apply(self.faults[number as usize]),
            Event::Handle(_) | Event::Run(_) => {
                unreachable!("whoever has handler and threads looks at these")
            }
        }
    }

    fn complete(&mut self, id: OpId) {
        self.return_credits(id);
        if let Some((poster, waker)) = self.ops.complete(id) {
            self.wakers.extend(waker);
            self.make_ready_now(poster.worker, poster.slot_bit);
        }
    }

    #[inline]
    pub fn make_ready(&mut self, worker: WorkerId, bits: u64) {
        self.worker(worker).ready |= bits;
        self.schedule_run(worker);
    }

    /// [`World::make_ready`] after a completion. Most threads that get an answer wait for nothing else, so
    /// they are polled next without an event.
    #[inline]
    fn make_ready_now(&mut self, id: WorkerId, bits: u64) {
        let worker = &mut self.workers[id as usize];
        worker.ready |= bits;
        if worker.thread.is_some() && !worker.is_scheduled && worker.free_at <= self.now {
            worker.is_scheduled = true;
            self.due = Some(id);
        } else {
            self.schedule_run(id);
        }
    }

    #[inline]
    fn schedule_run(&mut self, id: WorkerId) {
        let worker = &mut self.workers[id as usize];
        if worker.thread.is_some() && !worker.is_scheduled && worker.ready != 0 {
            worker.is_scheduled = true;
            let at = worker.free_at;
            self.schedule(at, Event::Run(id));
        }
    }

    /// Whether the worker still computes because it was preempted after being scheduled.
    #[inline]
    pub fn is_busy(&mut self, worker: WorkerId) -> bool {
        let now = self.now;
        self.worker(worker).free_at > now
    }

    /// Schedules a busy worker again for the time when it is free.
    pub fn run_later(&mut self, worker: WorkerId) {
        self.worker(worker).is_scheduled = false;
        self.schedule_run(worker);
    }

    /// Lets a run poll the worker's slots, or ends that.
    pub fn drive(&mut self, worker: WorkerId, thread: Option<u32>) {
        let now = self.now;
        self.worker(worker).drive(thread, now);
    }

    #[inline]
    pub fn polled(&mut self, id: WorkerId, free_at: Nanos, ready: u64, next: Option<u32>) {
        let now = self.now;
        let worker = self.worker(id);
        worker.computed += free_at - now;
        worker.polled(free_at, ready, next);
        self.schedule_run(id);
    }

    #[inline]
    pub fn take_ready(&mut self, worker: WorkerId) -> u64 {
        std::mem::take(&mut self.worker(worker).ready)
    }

    #[inline]
    pub fn has_wakers(&self) -> bool {
        !self.wakers.is_empty()
    }

    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// Reserves a resource of a compute server for its thread from `at` on; returns when it is released.
    #[inline]
    pub fn hold(&mut self, id: WorkerId, resource: Resource, at: Nanos) -> Nanos {
        let worker = &mut self.workers[id as usize];
        let end = self.contended[worker.compute_server].hold(resource, worker.core, at, self.now);
        worker.contended += (end - at).saturating_sub(self.model.compute.held(resource));
        end
    }

    /// Reads what holders of a resource change, at `at`; returns when that is in the core's cache.
    #[inline]
    pub fn observe(&mut self, id: WorkerId, resource: Resource, at: Nanos) -> Nanos {
        let worker = &mut self.workers[id as usize];
        let end = self.contended[worker.compute_server].observe(resource, worker.core, at, self.now);
        worker.contended += end - at;
        end
    }

    /// Checks that the server answers a direct request.
    pub fn check_up(&self, server: MemoryServerId) -> Result<(), FabricError> {
        match self.servers[usize::from(server.0)].power {
            Power::On => Ok(()),
            Power::Stopped => Err(FabricError::TimedOut(server)),
            Power::Off => Err(FabricError::ServerUnreachable(server)),
        }
    }

    /// Executes a checked verb outside of time.
    pub fn take_effect_now(&mut self, server: MemoryServerId, verb: Verb) -> Result<VerbResult, FabricError> {
        self.check_up(server)?;
        let found = verb.take_effect(&self.servers[usize::from(server.0)].region, 0..verb.words());
        Ok(verb.into_result(found))
    }

    /// The memory of a server.
    pub fn region(&self, server: MemoryServerId) -> Option<Arc<Vec<AtomicU64>>> {
        self.servers.get(usize::from(server.0)).map(|server| Arc::clone(&server.region))
    }

    pub fn add_fault(&mut self, at: Nanos, fault: Fault) {
        self.faults.push(fault);
        self.schedule(at, Event::Fault(self.faults.len() as u32 - 1));
    }

    pub fn is_dead(&self, worker: WorkerId) -> bool {
        self.killed[self.workers[worker as usize].compute_server]
    }

    pub fn is_killed(&self, compute_server: usize) -> bool {
        self.killed[compute_server]
    }

    /// Applies a fault, or the end of one, now.
    pub fn apply(&mut self, fault: Fault) {
        let index = |server: MemoryServerId| usize::from(server.0);
        match fault {
            Fault::Slow { server, factor } => self.servers[index(server)].slowness = u64::from(factor.max(1)),
            Fault::Stop { server } => self.servers[index(server)].power = Power::Stopped,
            Fault::Resume { server } => self.servers[index(server)].power = Power::On,
            Fault::Kill { server } => self.kill(index(server)),
            Fault::Restart { server, memory_lost } => {
                self.cut_off(index(server));
                let server = &mut self.servers[index(server)];
                server.life += 1;
                server.power = Power::On;
                if memory_lost {
                    let bytes = (server.region.len() * WORD) as u64;
                    server.region = zeroed(bytes).expect("as much as it had before");
                }
            }
            Fault::KillCompute { compute_server } => {
                self.killed[compute_server] = true;
                let workers =
                    self.workers.iter_mut().filter(|worker| worker.compute_server == compute_server);
                workers.for_each(|worker| worker.ready = 0);
            }
            Fault::Disconnect { compute_server, server } => {
                let link = &mut self.links[compute_server][index(server)];
                link.is_lost = true;
                self.has_lost = true;
                link.life += 1;
            }
            Fault::Reconnect { compute_server, server } => {
                self.links[compute_server][index(server)].is_lost = false;
            }
            Fault::Torn { share } => self.model.faults.torn_share = share,
            Fault::Spikes { share, ns } => {
                (self.model.faults.spike_share, self.model.faults.spike_ns) = (share, ns);
            }
            Fault::LostAnswers { share } => self.model.faults.lost_answer_share = share,
        }
    }

    /// Ends a memory server. Its memory stays until the restart.
    fn kill(&mut self, server: usize) {
        let Server { power, life, idle_cores, waiting, .. } = &mut self.servers[server];
        (*power, *idle_cores) = (Power::Off, self.model.memory_server.cores);
        *life += 1;
        for id in std::mem::take(waiting) {
            self.fail(id, self.now, FabricError::ServerUnreachable(MemoryServerId(server as u16)));
        }
        self.cut_off(server);
    }

    /// Fails the operations that wait for a unit of a server that ended.
    fn cut_off(&mut self, server: usize) {
        for id in self.servers[server].atomics.end() {
            self.fail(id, self.now, FabricError::ServerUnreachable(MemoryServerId(server as u16)));
        }
    }

    /// Places these bytes in the memory of their server's NIC.
    ///
    /// # Errors
    /// [`ModelError::OutOfRegion`], [`ModelError::NoOnChipMemory`].
    pub fn set_on_chip(&mut self, at: GlobalAddr, bytes: u64) -> Result<(), ModelError> {
        let room = self.model.network.on_chip_bytes;
        let server = self.servers.get_mut(usize::from(at.server().0));
        let end = at.offset().checked_add(bytes);
        let (Some(server), Some(end)) = (server, end) else {
            return Err(ModelError::OutOfRegion { at, bytes });
        };
        if end > (server.region.len() * WORD) as u64 {
            return Err(ModelError::OutOfRegion { at, bytes });
        }
        let no_room = |bytes| ModelError::NoOnChipMemory { server: at.server(), bytes, room };
        server.atomics.set_on_chip(at.offset()..end, room).map_err(no_room)
    }
}

/// Zeroed memory of a server, if there is enough. Untouched memory costs nothing.
fn zeroed(bytes: u64) -> Option<Arc<Vec<AtomicU64>>> {
    AtomicU64::new_vec_zeroed(bytes as usize / WORD).map(Arc::new).ok()
}
