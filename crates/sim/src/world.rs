//! The cluster: clock, events, memory, and the resources that verbs wait for.
//!
//! Everything that happens is an event `(time, number, what)`, and events happen in that order, so a run is a function of
//! the seeds and the model alone. An operation (a verb or a chain of them) goes through its NIC, reaches the server after
//! half a round trip, takes effect there verb by verb, and completes after the other half. What it takes effect on is the
//! memory of that moment: two verbs are ordered by when they reach the server, not by when they were posted.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::task::Waker;

use pando_fabric::{FabricError, MemoryServerId, Nanos, Random, VerbResult, WORD};

use crate::model::Model;
use crate::serial::Serial;
use crate::verb::{LINE_WORDS, Verb, message_cost};

pub(crate) type OpId = usize;
pub(crate) type WorkerId = usize;

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    /// An operation reaches its server.
    Arrive(OpId),
    /// The next verb of an operation takes effect, or the rest of one.
    Execute(OpId),
    /// A two-sided call gets its core.
    Handle(OpId),
    /// The caller hears of it.
    Complete(OpId),
    /// A worker polls a slot.
    Run(WorkerId),
}

/// A two-sided call under way.
#[derive(Debug)]
pub(crate) struct Call {
    pub op: u16,
    pub body: Vec<u8>,
    pub reply: Vec<u8>,
}

/// An operation under way.
#[derive(Debug)]
pub(crate) struct Op {
    worker: WorkerId,
    slot_bit: u64,
    server: usize,
    /// Verbs that are still to take effect, the next one last.
    verbs: Vec<Verb>,
    /// Words of the next verb that already took effect, if it is torn: from the front, or all but so many of them.
    torn: Option<usize>,
    pub call: Option<Call>,
    pub results: Vec<VerbResult>,
    pub error: Option<FabricError>,
    stage: Stage,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    UnderWay,
    Done,
    /// Under way, but nobody waits for it any more.
    Abandoned,
}

#[derive(Default)]
struct Nic {
    outbound: Serial,
    inbound: Serial,
}

struct Server {
    region: Vec<u64>,
    nic: Nic,
    cores: Vec<Serial>,
    is_down: bool,
}

struct Worker {
    nic: usize,
    ready: u64,
    /// Whether the cluster polls its slots. If not, whoever drives it looks at the bits.
    is_driven: bool,
    is_scheduled: bool,
    free_at: Nanos,
}

pub(crate) struct World {
    pub model: Model,
    pub now: Nanos,
    number: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    ops: Vec<Option<Op>>,
    free_ops: Vec<OpId>,
    servers: Vec<Server>,
    /// Of the compute servers.
    nics: Vec<Nic>,
    workers: Vec<Worker>,
    atomic_units: HashMap<(usize, u64), Serial>,
    random: Random,
    /// To be woken once the world is not borrowed any more.
    wakers: Vec<Waker>,
}

impl World {
    pub fn new(model: Model, regions: &[u64], compute_servers: usize, seed: u64) -> Self {
        let servers = regions.iter().map(|&bytes| Server {
            region: vec![0; bytes as usize / WORD],
            nic: Nic::default(),
            cores: vec![Serial::default(); model.memory_server.cores],
            is_down: false,
        });
        Self {
            servers: servers.collect(),
            model,
            now: 0,
            number: 0,
            events: BinaryHeap::new(),
            ops: Vec::new(),
            free_ops: Vec::new(),
            nics: (0..compute_servers).map(|_| Nic::default()).collect(),
            workers: Vec::new(),
            atomic_units: HashMap::new(),
            random: Random::new(seed),
            wakers: Vec::new(),
        }
    }

    pub fn add_worker(&mut self, compute_server: usize) -> WorkerId {
        let free_at = self.now;
        self.workers.push(Worker {
            nic: compute_server,
            ready: 0,
            is_driven: false,
            is_scheduled: false,
            free_at,
        });
        self.workers.len() - 1
    }

    pub fn set_down(&mut self, server: usize, is_down: bool) {
        self.servers[server].is_down = is_down;
    }

    fn schedule(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at.max(self.now), self.number, event)));
    }

    /// Sends an operation on its way at `at`. `verbs` are in order and checked; or there is a call.
    pub fn post(
        &mut self,
        (worker, slot_bit): (WorkerId, u64),
        at: Nanos,
        server: MemoryServerId,
        mut verbs: Vec<Verb>,
        call: Option<Call>,
    ) -> OpId {
        let network = &self.model.network;
        let outbound = &mut self.nics[self.workers[worker].nic].outbound;
        let mut sent = at;
        for verb in &verbs {
            sent = outbound.serve(at, verb.request_cost(network));
        }
        let way = match &call {
            Some(call) => {
                sent = outbound.serve(at, message_cost(call.body.len(), network));
                network.send_ns
            }
            None => verbs.iter().map(|verb| verb.round_trip(network)).max().unwrap_or(0) / 2,
        };
        verbs.reverse();
        let op = Op {
            worker,
            slot_bit,
            server: usize::from(server.0),
            verbs,
            torn: None,
            call,
            results: Vec::new(),
            error: None,
            stage: Stage::UnderWay,
            waker: None,
        };
        let id = match self.free_ops.pop() {
            Some(id) => {
                self.ops[id] = Some(op);
                id
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() - 1
            }
        };
        self.schedule(sent + way, Event::Arrive(id));
        id
    }

    /// The next event, without those that only drivers understand.
    pub fn next_event(&mut self) -> Option<Event> {
        let Reverse((at, _, event)) = self.events.pop()?;
        self.now = at;
        Some(event)
    }

    pub fn next_time(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, ..))| *at)
    }

    fn op(&mut self, id: OpId) -> &mut Op {
        self.ops[id].as_mut().expect("an operation lives until it has completed")
    }

    pub fn arrive(&mut self, id: OpId) {
        let Self { ops, servers, model, now, .. } = self;
        let (now, network) = (*now, &model.network);
        let op = ops[id].as_mut().expect("it is under way");
        let server = &mut servers[op.server];
        if server.is_down {
            op.error = Some(FabricError::TimedOut(MemoryServerId(op.server as u16)));
            let timeout = model.faults.timeout_ns;
            self.schedule(now + timeout, Event::Complete(id));
            return;
        }
        if let Some(call) = &op.call {
            let arrived = server.nic.inbound.serve(now, message_cost(call.body.len(), network));
            let core = server.cores.iter_mut().min_by_key(|core| core.free_at()).expect("at least one core");
            let handled = core.serve(arrived, model.memory_server.dispatch_ns * 1_000);
            self.schedule(handled, Event::Handle(id));
            return;
        }
        let mut arrived = now;
        for verb in op.verbs.iter().rev() {
            arrived = server.nic.inbound.serve(now, verb.request_cost(network));
        }
        self.execute_from(id, arrived);
    }

    /// Lets the next verb take effect at `at`, or once the unit for its address is free.
    fn execute_from(&mut self, id: OpId, at: Nanos) {
        let network = &self.model.network;
        let op = self.ops[id].as_ref().expect("it is under way");
        let begin = match op.verbs.last() {
            Some(verb) if verb.is_atomic() => {
                let unit = verb.at().offset() / WORD as u64 % network.atomic_units;
                let unit = self.atomic_units.entry((op.server, unit)).or_default();
                unit.serve(at, network.atomic_unit_ns * 1_000) - network.atomic_unit_ns
            }
            _ => at,
        };
        self.schedule(begin, Event::Execute(id));
    }

    pub fn execute(&mut self, id: OpId) {
        let Self { ops, servers, random, model, now, .. } = self;
        let op = ops[id].as_mut().expect("it is under way");
        let server = &mut servers[op.server];
        let verb = op.verbs.last().expect("a chain without verbs is not posted");
        let words = verb.words();
        let reply = verb.reply_cost(&model.network).max(verb.request_cost(&model.network)).div_ceil(1_000);
        let range = match op.torn {
            Some(done) => done..words,
            None if verb.can_tear() && is_one_of(model.faults.torn_share, random.next()) => {
                let lines = words.div_ceil(LINE_WORDS);
                let first = (1 + random.next() as usize % (lines - 1)) * LINE_WORDS;
                op.torn = Some(first);
                0..first
            }
            None => 0..words,
        };
        let is_whole = range.end == words;
        let found = verb.take_effect(&mut server.region, range);
        if !is_whole {
            let later = *now + reply;
            self.schedule(later, Event::Execute(id));
            return;
        }
        let verb = op.verbs.pop().expect("just looked at");
        let cost = verb.reply_cost(&model.network);
        let sent = server.nic.outbound.serve(*now, cost);
        op.torn = None;
        let round_trip = verb.round_trip(&model.network);
        op.results.push(verb.into_result(found));
        match op.verbs.is_empty() {
            true => self.answer(id, sent, cost, round_trip / 2),
            false => {
                let next = self.now;
                self.execute_from(id, next);
            }
        }
    }

    /// Sends the answer of an operation back: out of the server's NIC at `sent`, `way` long, into the caller's.
    fn answer(&mut self, id: OpId, sent: Nanos, cost: u64, way: Nanos) {
        let worker = self.op(id).worker;
        let nic = self.workers[worker].nic;
        // Into the caller's NIC as it comes out of the server's: only waiting there takes longer.
        let begun = (sent + way).saturating_sub(cost / 1_000);
        let heard = self.nics[nic].inbound.serve(begun, cost).max(sent + way);
        self.schedule(heard, Event::Complete(id));
    }

    /// Takes the call that gets its core now, and the number of its server.
    pub fn take_call(&mut self, id: OpId) -> (MemoryServerId, Call) {
        let op = self.op(id);
        (MemoryServerId(op.server as u16), op.call.take().expect("a call is under way"))
    }

    /// What the handler said.
    pub fn handled(&mut self, id: OpId, call: Call, result: Result<(), FabricError>) {
        let cost = message_cost(call.reply.len(), &self.model.network);
        let (now, way) = (self.now, self.model.network.send_ns);
        let op = self.ops[id].as_mut().expect("it is under way");
        op.call = Some(call);
        op.error = result.err();
        let sent = self.servers[op.server].nic.outbound.serve(now, cost);
        self.answer(id, sent, cost, way);
    }

    pub fn complete(&mut self, id: OpId) {
        let op = self.op(id);
        let (worker, slot_bit) = (op.worker, op.slot_bit);
        if op.stage == Stage::Abandoned {
            self.forget(id);
            return;
        }
        op.stage = Stage::Done;
        let waker = op.waker.take();
        self.wakers.extend(waker);
        self.make_ready(worker, slot_bit);
    }

    pub fn make_ready(&mut self, worker: WorkerId, bits: u64) {
        self.workers[worker].ready |= bits;
        self.schedule_run(worker);
    }

    fn schedule_run(&mut self, id: WorkerId) {
        let worker = &mut self.workers[id];
        if worker.is_driven && !worker.is_scheduled && worker.ready != 0 {
            worker.is_scheduled = true;
            let at = worker.free_at;
            self.schedule(at, Event::Run(id));
        }
    }

    /// The worker polls its slots from the cluster's loop from now on, or not any more.
    pub fn drive(&mut self, worker: WorkerId, is_driven: bool) {
        let now = self.now;
        let worker = &mut self.workers[worker];
        *worker = Worker { nic: worker.nic, ready: 0, is_driven, is_scheduled: false, free_at: now };
    }

    /// Takes one ready slot of a worker whose turn has come: the next after `last`.
    pub fn take_slot(&mut self, id: WorkerId, last: u32) -> Option<u32> {
        let worker = &mut self.workers[id];
        worker.is_scheduled = false;
        let after = worker.ready & u64::MAX.checked_shl(last + 1).unwrap_or(0);
        let candidates = if after != 0 { after } else { worker.ready };
        let slot = (candidates != 0).then(|| candidates.trailing_zeros())?;
        worker.ready &= !(1 << slot);
        Some(slot)
    }

    /// The worker polled a slot until `free_at`, and these others became ready meanwhile.
    pub fn polled(&mut self, id: WorkerId, free_at: Nanos, ready: u64) {
        let worker = &mut self.workers[id];
        worker.free_at = free_at;
        worker.ready |= ready;
        self.schedule_run(id);
    }

    pub fn take_ready(&mut self, worker: WorkerId) -> u64 {
        std::mem::take(&mut self.workers[worker].ready)
    }

    pub fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers)
    }

    /// The operation, if it has completed; if not, `waker` is told when it has.
    pub fn take_done(&mut self, id: OpId, waker: &Waker) -> Option<Op> {
        let op = self.op(id);
        if op.stage != Stage::Done {
            if !op.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
                op.waker = Some(waker.clone());
            }
            return None;
        }
        self.forget(id)
    }

    fn forget(&mut self, id: OpId) -> Option<Op> {
        self.free_ops.push(id);
        self.ops[id].take()
    }

    /// Nobody waits for the operation any more. It goes on: its buffer is the network's until it has completed.
    pub fn abandon(&mut self, id: OpId) {
        let op = self.op(id);
        match op.stage {
            Stage::Done => drop(self.forget(id)),
            _ => op.stage = Stage::Abandoned,
        }
    }
}

/// Whether a random number falls into a share of all.
fn is_one_of(share: f64, random: u64) -> bool {
    share > 0.0 && (random >> 11) as f64 * (1.0 / (1u64 << 53) as f64) < share
}
