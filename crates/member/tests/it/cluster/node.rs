//! What a server does with messages and time.

use std::collections::BTreeMap;
use std::rc::Rc;

use pando_fabric::{MemoryServerId, Random};
use pando_member::{
    Acceptor, AcceptorId, Answer, Ballot, Proposal, Renew, Renewed, Request, ServerLease, Serves, Step, View,
    VolumeId,
};

use super::{LEASE, Sim, What};
use crate::below;

type Change = Box<dyn FnOnce(&[u8]) -> Vec<u8>>;

const REQUEST: u8 = 0;
const ANSWER: u8 = 1;
const RENEW: u8 = 2;
const RENEWED: u8 = 3;
const DECIDED: u8 = 4;
/// Asks for the decided view that the receiver knows.
const VIEW: u8 = 5;

#[derive(Clone, Copy)]
pub struct Clock {
    /// Advance in 1000 units of time.
    pub rate: u64,
    offset: u64,
}

impl Clock {
    pub fn any(random: &Random) -> Self {
        let rate = [1000, 1100, 1000 + below(random, 101)][below(random, 3) as usize];
        Self { rate, offset: below(random, 100 * LEASE) }
    }

    pub fn at(self, time: u64) -> u64 {
        self.offset + time * self.rate / 1000
    }
}

pub struct Node {
    pub clock: Clock,
    pub incarnation: u64,
    /// The state of the acceptor, as persisted.
    pub stored: Vec<u8>,
    /// Acceptors that a decided view of this epoch names, or the first ones; also persisted. None if the memory was
    /// lost.
    pub acceptors: Vec<AcceptorId>,
    pub named_at: u64,
    pub process: Option<Process>,
    /// What waits for a stopped process.
    pub stopped: Option<Vec<What>>,
    pub looks_at: u64,
}

impl Node {
    pub fn new(clock: Clock, stored: Vec<u8>, acceptors: Vec<AcceptorId>) -> Self {
        Self {
            clock,
            incarnation: 1,
            stored,
            acceptors,
            named_at: 0,
            process: None,
            stopped: None,
            looks_at: 0,
        }
    }
}

struct Attempt {
    proposal: Proposal<Change>,
    began: u64,
    /// Newest decided epoch when it began.
    newest: u64,
}

pub struct Process {
    pub number: u64,
    pub acceptor: Acceptor,
    pub lease: ServerLease,
    pub view: Option<View>,
    highest: Ballot,
    attempt: Option<Attempt>,
    /// Whether an acceptor has another view.
    differs: bool,
    /// What the newest answers of each server to rounds told.
    heard: BTreeMap<MemoryServerId, Renewed>,
    /// It proposes nothing before.
    rests_until: u64,
}

impl Process {
    pub fn new(number: u64, acceptor: Acceptor, lease: ServerLease) -> Self {
        Self {
            number,
            acceptor,
            lease,
            view: None,
            highest: Ballot::ZERO,
            attempt: None,
            differs: false,
            heard: BTreeMap::new(),
            rests_until: 0,
        }
    }
}

impl Process {
    fn renewed(&mut self, from: MemoryServerId, renewed: Renewed, local: u64) {
        self.lease.answered(from, &renewed, local);
        self.heard.insert(from, renewed);
        let id = AcceptorId { server: from, incarnation: renewed.acceptor };
        let is_acceptor =
            self.view.as_ref().is_some_and(|view| view.acceptors().any(|acceptor| acceptor == id));
        let (accepted, epoch) = (renewed.accepted, self.lease.epoch());
        self.differs |= accepted > epoch || (is_acceptor && accepted < epoch);
    }

    /// A server that answers, but has lost or missed something, as it is to be taken back.
    fn comes_back(&self) -> Option<View> {
        let view = self.view.as_ref()?;
        self.heard.iter().find_map(|(server, renewed)| {
            let back = view.readmit(*server, renewed.incarnation).ok()?;
            Some(back.with_acceptor(*server, renewed.acceptor))
        })
    }
}

fn message(kind: u8, bytes: &[u8]) -> Rc<[u8]> {
    std::iter::once(kind).chain(bytes.iter().copied()).collect()
}

impl Sim {
    fn broadcast(&mut self, from: usize, bytes: &Rc<[u8]>) {
        (0..self.nodes.len()).for_each(|to| self.send(from, to, bytes));
    }

    pub fn deliver(&mut self, to: usize, from: usize, bytes: &[u8]) -> Result<(), String> {
        let local = self.nodes[to].clock.at(self.now);
        let node = &mut self.nodes[to];
        let (incarnation, Some(process)) = (node.incarnation, &mut node.process) else { return Ok(()) };
        let server = MemoryServerId(from as u16);
        let (kind, body) = (bytes[0], &bytes[1..]);
        let broken = |error| format!("a message of kind {kind} is broken: {error}");
        match kind {
            REQUEST => {
                let request = Request::decode(body).map_err(broken)?;
                let answer = message(ANSWER, &process.acceptor.answer(&request).encode());
                node.stored = process.acceptor.encode();
                self.send(to, from, &answer);
            }
            ANSWER => {
                let answer = Answer::decode(body).map_err(broken)?;
                self.answered(to, server, &answer);
            }
            RENEW => {
                let renew = Renew::decode(body).map_err(broken)?;
                let accepted = View::epoch_of(process.acceptor.value()).map_err(broken)?;
                let acceptor = process.acceptor.id().incarnation;
                let renewed = Renewed { acceptor, ..renew.answer(incarnation, accepted) };
                let is_behind = process.lease.epoch() < renew.epoch;
                self.send(to, from, &message(RENEWED, &renewed.encode()));
                if is_behind {
                    self.send(to, from, &message(VIEW, &[]));
                }
            }
            RENEWED => {
                let renewed = Renewed::decode(body).map_err(broken)?;
                process.renewed(server, renewed, local);
            }
            VIEW => {
                if let Some(view) = &process.view {
                    let view = message(DECIDED, &view.encode());
                    self.send(to, from, &view);
                }
            }
            _ => {
                let view = View::decode(body).map_err(broken)?;
                self.learn(to, view);
            }
        }
        Ok(())
    }

    fn learn(&mut self, at: usize, view: View) {
        let local = self.nodes[at].clock.at(self.now);
        let node = &mut self.nodes[at];
        if node.named_at < view.epoch() {
            (node.acceptors, node.named_at) = (view.acceptors().collect(), view.epoch());
        }
        let process = node.process.as_mut().expect("a process that runs");
        if process.view.as_ref().is_none_or(|known| known.epoch() < view.epoch()) {
            process.lease.learn(&view, local);
            process.view = Some(view);
        }
    }

    fn answered(&mut self, to: usize, from: MemoryServerId, answer: &Answer<'_>) {
        let rest = self.now + self.below(LEASE / 5);
        let process = self.nodes[to].process.as_mut().expect("a process that runs");
        let Some(attempt) = &mut process.attempt else { return };
        let step = attempt.proposal.answered(from, answer);
        process.highest = process.highest.max(attempt.proposal.to_beat());
        match step {
            Step::Wait => {}
            Step::Accept => self.ask(to),
            Step::Decided => {
                let attempt = process.attempt.take().expect("just used");
                (process.differs, process.rests_until) = (false, rest);
                // Acceptors that have not accepted get the value too.
                self.ask_of(to, &attempt.proposal);
                let value = attempt.proposal.value().expect("decided");
                self.chain.borrow_mut().decided(value, attempt.newest);
                if let Ok(view) = View::decode(value) {
                    self.broadcast(to, &message(DECIDED, value));
                    self.learn(to, view);
                }
            }
            Step::Refused(_) | Step::Hopeless => (process.attempt, process.rests_until) = (None, rest),
        }
    }

    /// Sends what the attempt of a server asks.
    fn ask(&mut self, from: usize) {
        let process = self.nodes[from].process.as_mut().expect("a process that runs");
        if let Some(attempt) = process.attempt.take() {
            self.ask_of(from, &attempt.proposal);
            self.nodes[from].process.as_mut().expect("as before").attempt = Some(attempt);
        }
    }

    fn ask_of(&mut self, from: usize, proposal: &Proposal<Change>) {
        for (to, request) in proposal.requests() {
            self.send(from, usize::from(to.server.0), &message(REQUEST, &request.encode()));
        }
    }

    pub fn tick(&mut self, at: usize, number: u64) {
        let local = self.nodes[at].clock.at(self.now);
        let Some(process) = &mut self.nodes[at].process else { return };
        if process.number != number {
            return;
        }
        if let Some(renew) = process.lease.round(local) {
            self.broadcast(at, &message(RENEW, &renew.encode()));
        }
        let rest = self.now + self.below(LEASE / 2);
        let node = &mut self.nodes[at];
        let knows_acceptors = !node.acceptors.is_empty();
        let process = node.process.as_mut().expect("as before");
        match &process.attempt {
            // In doubt about what comes of it.
            Some(attempt) if self.now > attempt.began + LEASE / 3 => {
                (process.attempt, process.rests_until) = (None, rest);
            }
            Some(_) => self.ask(at),
            None if self.now >= process.rests_until && knows_acceptors => {
                if let Some(change) = self.change(at, local) {
                    self.propose(at, change);
                }
            }
            None => {}
        }
        let process = self.nodes[at].process.as_ref().expect("as before").number;
        let delay = 30 + self.below(90);
        self.after(delay, What::Tick { node: at, process });
    }

    fn propose(&mut self, at: usize, change: Change) {
        let chain = Rc::clone(&self.chain);
        let noted: Change = Box::new(move |before| {
            let after = change(before);
            chain.borrow_mut().changed(before, &after);
            after
        });
        let (newest, began) = (self.chain.borrow().newest(), self.now);
        let node = &mut self.nodes[at];
        let process = node.process.as_mut().expect("a process that runs");
        process.highest = process.highest.next(process.number);
        let known = process.view.as_ref().map_or_else(Vec::new, View::encode);
        let proposal = Proposal::new(&node.acceptors, View::acceptors_of, process.highest, noted);
        let proposal = proposal.after(&known);
        process.attempt = Some(Attempt { proposal, began, newest });
        self.ask(at);
    }

    /// What a server proposes, if anything.
    fn change(&mut self, at: usize, local: u64) -> Option<Change> {
        let process = self.nodes[at].process.as_ref().expect("a process that runs");
        let Some(view) = process.view.clone() else {
            let first = self.first.encode();
            return Some(Box::new(move |now| if now.is_empty() { first } else { now.to_vec() }));
        };
        if process.lease.is_out() {
            self.renew_memory(at);
            return None;
        }
        let me = MemoryServerId(at as u16);
        // Another server asks for it to join.
        let server = view.servers().get(at)?;
        if !self.is_alive(at, server.is_in().then_some(server.incarnation())) {
            if server.is_in() {
                return Some(at_epoch(&view, view.without(me).ok()?));
            }
            if self.over || self.below(8) > 0 {
                return None;
            }
            if server.incarnation() == self.nodes[at].incarnation {
                self.renew_memory(at);
            }
            let back = view.readmit(me, self.nodes[at].incarnation).ok()?;
            let process = self.nodes[at].process.as_ref().expect("as before");
            return Some(at_epoch(&view, back.with_acceptor(me, process.acceptor.id().incarnation)));
        }
        let suspects: Vec<_> = process.lease.suspects(local).collect();
        if !process.lease.serves(local) || process.differs {
            return Some(Box::new(<[u8]>::to_vec));
        }
        if !suspects.is_empty() {
            let suspect = suspects[self.below(suspects.len() as u64) as usize];
            return Some(at_epoch(&view, view.without(suspect).ok()?));
        }
        if let Some(back) = process.comes_back().filter(|_| !self.over && self.below(4) == 0) {
            return Some(at_epoch(&view, back));
        }
        if !self.calm && self.below(16) == 0 {
            // As if a person had asked for it: the server may have renewed its lease a moment ago.
            let server = MemoryServerId(self.any_node() as u16);
            if self.below(2) == 0 {
                let delay = self.below(80);
                self.after(delay, What::CutOff { node: usize::from(server.0) });
            }
            return Some(at_epoch(&view, view.without(server).ok()?));
        }
        let staying = view.servers().iter().filter(|server| server.stays()).count();
        if !self.calm && staying > 3.max(1 + usize::from(view.replicas())) && self.below(16) == 0 {
            let leaver = MemoryServerId(self.any_node() as u16);
            return Some(at_epoch(&view, view.retiring(leaver).ok()?));
        }
        if !self.over && self.below(4) == 0 {
            if let Some(next) = view.next_step() {
                return Some(at_epoch(&view, next));
            }
            let joins = view.servers().len();
            if let Some(Node { incarnation, process: Some(_), .. }) = self.nodes.get(joins) {
                return Some(at_epoch(
                    &view,
                    view.with_server(&format!("server-{joins}:1"), *incarnation).ok()?,
                ));
            }
        }
        self.copy(at, &view)
    }

    /// The server counts its memory as new, since it missed writes; its acceptor missed nothing.
    fn renew_memory(&mut self, at: usize) {
        self.nodes[at].incarnation = self.next_number();
        let number = self.next_number();
        let lease = self.lease(at, number);
        let process = self.nodes[at].process.as_mut().expect("a process that runs");
        (process.number, process.lease, process.view) = (number, lease, None);
    }

    /// Begins or ends a copy of a volume that the server serves.
    fn copy(&mut self, at: usize, view: &View) -> Option<Change> {
        if self.over {
            return None;
        }
        let mine = |volume: &VolumeId| self.serves(at, *volume) == Serves::Yes;
        let volume = (0..view.volumes()).map(|v| VolumeId(v as u16)).filter(mine);
        let volume = volume.collect::<Vec<_>>();
        let volume = *volume.get(self.below(1 + volume.len() as u64) as usize)?;
        if let Some(copy) = view.backups(volume).iter().find(|copy| copy.syncing) {
            let ends = self.below(8) == 0;
            return ends.then(|| at_epoch(view, view.copied(volume, copy.server).expect("it is syncing")));
        }
        let wants = view.wanting().any(|other| other == volume);
        let place = view.free_slots().filter(|_| wants);
        let next = place.filter_map(|place| view.with_copy(volume, place.server, place.slot).ok()).next()?;
        Some(at_epoch(view, next))
    }
}

/// The change to `next` if the value is still of the epoch of `view`.
fn at_epoch(view: &View, next: View) -> Change {
    let epoch = view.epoch();
    Box::new(move |now| if View::epoch_of(now) == Ok(epoch) { next.encode() } else { now.to_vec() })
}
