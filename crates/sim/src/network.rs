//! The way of an operation: out of its NIC, to the server, into its memory, and back.
//!
//! An operation waits for its NIC, travels half a round trip, waits for the server's NIC, takes effect there
//! verb by verb, and returns the same way. It takes effect on the memory of that moment: two verbs are
//! ordered by their arrival at the server, not by their posting. A resource is requested at the moment at
//! which it is needed, so it serves in order of arrival.

use pando_fabric::{FabricError, MemoryServerId, Nanos};

use crate::atomics::Entry;
use crate::events::Event;
use crate::nic::Load;
use crate::op::{Call, OpId, Poster};
use crate::verb::{LINE_WORDS, Verb};
use crate::world::{Power, World};

/// Number of retries to a server that does not answer before an operation fails.
const RETRIES: Nanos = 8;

impl World {
    /// Posts an operation: `fill` adds its verbs, in order and checked, or its call.
    pub fn post(&mut self, poster: Poster, fill: impl FnOnce(&mut crate::op::Op)) -> OpId {
        let id = self.ops.begin(poster);
        let op = self.ops.get(id);
        fill(op);
        op.verbs.reverse();
        op.credits = op.verbs.iter().filter(|verb| verb.is_answered_by_data()).count() as u32;
        let at = poster.posted;
        match self.next_time().is_none_or(|next| at < next) {
            true => self.post_now(id, at),
            false => self.schedule(at, Event::Post(id)),
        }
        id
    }

    /// Posts an operation whose thread's clock was ahead, unless the thread was killed meanwhile.
    pub fn post_late(&mut self, id: OpId) {
        let worker = self.ops.get(id).poster.worker;
        let compute_server = self.worker(worker).compute_server;
        if self.is_killed(compute_server) && self.ops.is_abandoned(id) {
            self.ops.get(id).credits = 0;
            self.ops.forget(id);
            return;
        }
        self.post_now(id, self.now);
    }

    /// Puts the operation into the queue pair, and sends it if the queue pair is not full.
    fn post_now(&mut self, id: OpId, at: Nanos) {
        let op = self.ops.get(id);
        let (Poster { worker, server, .. }, credits) = (op.poster, op.credits);
        let limit = self.model.network.reads_outstanding;
        if self.worker(worker).queue_pairs.enter(server, id, credits, limit) {
            self.send(id, at);
        }
    }

    /// Returns the credits of a completed operation and sends the operations that waited for them.
    pub fn return_credits(&mut self, id: OpId) {
        let op = self.ops.get(id);
        let (Poster { worker, server, .. }, credits) = (op.poster, std::mem::take(&mut op.credits));
        let limit = self.model.network.reads_outstanding;
        self.worker(worker).queue_pairs.give_back(server, credits);
        loop {
            let Self { workers, ops, .. } = self;
            let queue_pairs = &mut workers[worker as usize].queue_pairs;
            let Some(next) = queue_pairs.take_next(server, limit, |id| ops.get(id).credits) else { return };
            self.send(next, self.now);
        }
    }

    /// Sends an operation from the caller's NIC at `at` or later.
    fn send(&mut self, id: OpId, at: Nanos) {
        let op = self.ops.get(id);
        let Poster { worker, server, .. } = op.poster;
        let compute_server = self.worker(worker).compute_server;
        let (link, life) = (self.link(compute_server, server), self.servers[server].life);
        let op = self.ops.get(id);
        (op.link_life, op.server_life) = (link.life, life);
        if link.is_lost {
            let (server, reason) = (MemoryServerId(server as u16), "the connection is lost".to_owned());
            let error = FabricError::NotConnected { server, reason };
            return self.fail(id, at + self.model.network.send_ns, error);
        }
        let Self { ops, nics, servers, model, costs, .. } = self;
        let (network, op) = (&model.network, ops.get(id));
        let atomics = &servers[server].atomics;
        let nic = &mut nics[compute_server];
        let mut sent = at;
        for verb in op.verbs.iter().rev() {
            sent = nic.send(at, verb.request_load(costs));
        }
        let way = match &op.call {
            Some(call) => {
                sent = nic.send(at, costs.message(call.body.len()));
                network.send_ns
            }
            None => {
                let round_trip =
                    |verb: &Verb| verb.round_trip(network, atomics.is_on_chip(verb.at().offset()));
                op.verbs.iter().map(round_trip).max().unwrap_or(0) / 2
            }
        };
        let way = self.delayed(server, way);
        let lost = is_one_of(self.model.faults.lost_answer_share, || self.random.next());
        self.ops.get(id).answer_lost = lost;
        self.schedule(sent + way, Event::Arrive(id));
    }

    /// Duration of a one-way trip to or from a server, with delays by faults.
    fn delayed(&mut self, server: usize, way: Nanos) -> Nanos {
        let faults = &self.model.faults;
        let spike = match is_one_of(faults.spike_share, || self.random.next()) {
            true => self.random.next() % (faults.spike_ns + 1),
            false => 0,
        };
        way * self.servers[server].slowness + spike
    }

    /// Fails the operation at `at`; some of its verbs may have taken effect. The caller learns no earlier
    /// than now.
    pub fn fail(&mut self, id: OpId, at: Nanos, error: FabricError) {
        self.ops.get(id).error = Some(error);
        self.schedule(at, Event::Complete(id));
    }

    /// Fails an operation if its server ended or its connection was lost since it was sent. With `on_its_way`
    /// it has not taken effect yet: a lost connection has lost either its request or its future answer.
    fn is_cut_off(&mut self, id: OpId, on_its_way: bool) -> bool {
        let op = self.ops.get(id);
        let (Poster { worker, server, .. }, lives) = (op.poster, (op.server_life, op.link_life));
        let compute_server = self.worker(worker).compute_server;
        let (server_life, link_life) = (self.servers[server].life, self.link(compute_server, server).life);
        let is_there = lives.0 == server_life;
        if is_there && (lives.1 == link_life || (on_its_way && self.random.next() & 1 == 0)) {
            return false;
        }
        self.fail(id, self.now, FabricError::ServerUnreachable(MemoryServerId(server as u16)));
        true
    }

    /// The operation reaches its server: it waits for the server's NIC, and a call also for a core. If the
    /// server is down, the operation is retried until its timeout.
    pub fn arrive(&mut self, id: OpId) {
        if self.is_cut_off(id, true) {
            return;
        }
        let Self { ops, servers, nics, model, costs, now, .. } = self;
        let now = *now;
        let op = ops.get(id);
        let server = &mut servers[op.poster.server];
        if server.power != Power::On {
            let deadline = (op.poster.posted + model.faults.timeout_ns).max(now);
            let again = now + model.faults.timeout_ns.div_ceil(RETRIES);
            let number = MemoryServerId(op.poster.server as u16);
            return match (again < deadline, server.power) {
                (true, _) => self.schedule(again, Event::Arrive(id)),
                (false, Power::Off) => self.fail(id, deadline, FabricError::ServerUnreachable(number)),
                (false, _) => self.fail(id, deadline, FabricError::TimedOut(number)),
            };
        }
        let nic = &mut nics[server.nic];
        if let Some(call) = &op.call {
            let arrived = nic.receive(now, costs.message(call.body.len()).times(server.slowness));
            match server.idle_cores.checked_sub(1) {
                Some(idle) => {
                    server.idle_cores = idle;
                    let dispatch = model.memory_server.dispatch_ns * server.slowness;
                    self.schedule(arrived + dispatch, Event::Handle(id));
                }
                None => server.waiting.push_back(id),
            }
            return;
        }
        let mut arrived = now;
        for verb in op.verbs.iter().rev() {
            arrived = nic.receive(now, verb.request_load(costs).times(server.slowness));
        }
        self.schedule(arrived, Event::Execute(id));
    }

    /// Executes the next verb of an operation, unless it has to wait, and then the operations that it
    /// blocked.
    pub fn execute(&mut self, id: OpId) {
        let server = self.ops.get(id).poster.server;
        self.execute_verb(id);
        while let Some(behind) = self.servers[server].atomics.next_behind() {
            self.execute_verb(behind);
        }
    }

    fn execute_verb(&mut self, id: OpId) {
        let server_life = self.ops.get(id).server_life;
        if self.servers[self.ops.get(id).poster.server].life != server_life {
            let server = MemoryServerId(self.ops.get(id).poster.server as u16);
            return self.fail(id, self.now, FabricError::ServerUnreachable(server));
        }
        let Self { ops, servers, nics, random, model, costs, now, .. } = self;
        let op = ops.get(id);
        let server = &mut servers[op.poster.server];
        let verb = op.verbs.last().expect("a chain without verbs is not posted");
        // 1. Wait for the unit of an atomic, or behind an operation that blocks.
        if op.torn.is_none() {
            let has_begun = !op.results.is_empty();
            match server.atomics.enter(id, verb, has_begun, *now, model.network.atomics_block) {
                Entry::Now => {}
                Entry::At(at) => return self.schedule(at, Event::Execute(id)),
                Entry::Later => return,
            }
        }
        // 2. Take effect, in two parts if the verb is torn.
        let words = verb.words();
        let is_on_chip = server.atomics.is_on_chip(verb.at().offset());
        let load = verb.reply_load(costs).times(server.slowness);
        let range = match op.torn {
            Some(done) => done..words,
            None if verb.can_tear() && is_one_of(model.faults.torn_share, || random.next()) => {
                let lines = words.div_ceil(LINE_WORDS);
                let first = (1 + random.next() as usize % (lines - 1)) * LINE_WORDS;
                op.torn = Some(first);
                0..first
            }
            None => 0..words,
        };
        let is_whole = range.end == words;
        let found = verb.take_effect(&server.region, range);
        if !is_whole {
            let later = *now + load.longest().max(verb.request_load(costs).longest()).div_ceil(1_000);
            self.schedule(later, Event::Execute(id));
            return;
        }
        // 3. Occupy the server's NIC with the answer, and the unit if the verb is an atomic.
        let verb = op.verbs.pop().expect("just looked at");
        op.answer_load = verb.reply_load(costs);
        let nic = &mut nics[server.nic];
        let mut sent = nic.send(*now, load);
        if verb.fetches(is_on_chip) {
            sent = sent.max(nic.fetch(*now, costs.fetch * server.slowness));
        }
        op.torn = None;
        let mut next = None;
        if verb.is_atomic() {
            let free = *now + verb.unit_ns(&model.network, is_on_chip, found) * server.slowness;
            next = server.atomics.executed(id, verb.at().offset(), *now, free).map(|next| (free, next));
            if is_on_chip {
                sent = sent.max(server.atomics.issue(*now, costs.on_chip * server.slowness));
            }
        }
        // 4. Answer the operation, or continue with its next verb.
        let round_trip = verb.round_trip(&model.network, is_on_chip);
        op.results.push(verb.into_result(found));
        match op.verbs.is_empty() {
            true => self.answer(id, sent, load, round_trip / 2),
            false => self.schedule(self.now, Event::Execute(id)),
        }
        if let Some((at, next)) = next {
            self.schedule(at, Event::Execute(next));
        }
    }

    /// Sends the answer of an operation back: it leaves the server's NIC at `sent` and travels for `way`.
    fn answer(&mut self, id: OpId, sent: Nanos, load: Load, way: Nanos) {
        let op = self.ops.get(id);
        let server = op.poster.server;
        if op.answer_lost {
            let deadline = op.poster.posted + self.model.faults.timeout_ns;
            return self.fail(id, deadline, FabricError::TimedOut(MemoryServerId(server as u16)));
        }
        let way = self.delayed(server, way);
        // The answer enters the caller's NIC while it leaves the server's; only a wait there takes longer.
        self.schedule((sent + way).saturating_sub(load.longest() / 1_000), Event::Return(id));
    }

    /// The answer reaches the caller's NIC.
    pub fn come_back(&mut self, id: OpId) {
        if self.is_cut_off(id, false) {
            return;
        }
        let op = self.ops.get(id);
        let (worker, load) = (op.poster.worker, op.answer_load);
        let nic = self.workers[worker as usize].compute_server;
        let heard = self.nics[nic].receive(self.now, load);
        self.schedule(heard, Event::Complete(id));
    }

    /// Takes the call whose core is ready, and the number of its server; `None` if the server ended
    /// meanwhile.
    pub fn take_call(&mut self, id: OpId) -> Option<(MemoryServerId, Call)> {
        let op = self.ops.get(id);
        let number = MemoryServerId(op.poster.server as u16);
        if self.servers[op.poster.server].life != op.server_life {
            self.fail(id, self.now, FabricError::ServerUnreachable(number));
            return None;
        }
        Some((number, op.call.take().expect("a call is under way")))
    }

    /// Records the result of the handler after `work` ns of charged work.
    pub fn handled(&mut self, id: OpId, call: Call, result: Result<(), FabricError>, work: Nanos) {
        let op = self.ops.get(id);
        op.call = Some(call);
        op.error = result.err();
        let server = op.poster.server;
        let slowness = self.servers[server].slowness;
        let work = work * slowness;
        let dispatch = self.model.memory_server.dispatch_ns * slowness;
        self.servers[server].cores_busy += dispatch + work;
        match work {
            0 => self.answer_call(id),
            _ => self.schedule(self.now + work, Event::Answer(id)),
        }
    }

    /// Sends the reply of a call and gives its core to the next call.
    pub fn answer_call(&mut self, id: OpId) {
        let (now, way) = (self.now, self.model.network.send_ns);
        let op = self.ops.get(id);
        let (server, life) = (op.poster.server, op.server_life);
        if self.servers[server].life != life {
            return self.fail(id, now, FabricError::ServerUnreachable(MemoryServerId(server as u16)));
        }
        let reply = op.call.as_ref().map_or(0, |call| call.reply.len());
        let Self { servers, nics, model, costs, ops, .. } = self;
        let server = &mut servers[server];
        let load = costs.message(reply);
        ops.get(id).answer_load = load;
        let load = load.times(server.slowness);
        let sent = nics[server.nic].send(now, load);
        match server.waiting.pop_front() {
            Some(next) => {
                let dispatch = model.memory_server.dispatch_ns * server.slowness;
                self.schedule(now + dispatch, Event::Handle(next));
            }
            None => server.idle_cores += 1,
        }
        self.answer(id, sent, load, way);
    }
}

/// Whether a random number falls into `share`. No number is drawn if the share is 0.
fn is_one_of(share: f64, random: impl FnOnce() -> u64) -> bool {
    share > 0.0 && (random() >> 11) as f64 * (1.0 / (1u64 << 53) as f64) < share
}
