//! A cluster in virtual time: servers with an acceptor, a lease and a clock each, which propose views to one
//! another, while messages are lost, late and repeated, the network is cut, and servers stop and crash.
//!
//! - Decided views form one chain, and a proposal never decides one that is older than one decided before.
//! - At no moment do two servers serve a volume. The primary of a volume was a whole copy in the view before.
//! - Servers that join are in use in the end: there are as many volumes, whole before anybody uses them. Those that leave for good
//!   have no copies in the end, and do not decide any more.
//! - Some time after the last fault, if enough acceptors are left, dead servers are out of the view if that loses no
//!   volume, and living primaries serve.

mod chain;
mod node;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::rc::Rc;

use pando_fabric::{MemoryServerId, Random};
use pando_member::{Acceptor, AcceptorId, Server, ServerLease, Serves, Terms, View, VolumeId};

use crate::{below, seeds};
use chain::Chain;
use node::{Clock, Node, Process};

/// Times are in units of a thousandth of a lease.
const LEASE: u64 = 1000;
/// Duration of the faults.
const FAULTS: u64 = 9 * LEASE;
/// Time for messages, the changes of several views included, that suffices after the last fault, besides the times for
/// which servers must wait.
const SLACK: u64 = 2 * LEASE;
const SEEDS: u64 = 2000;
const LOSS_SEEDS: u64 = 300;
/// Time in which servers are back and copies are made after the last fault, besides the times for which they must wait.
const RECOVERY: u64 = 60 * LEASE;

#[derive(Clone)]
enum What {
    Deliver {
        to: usize,
        from: usize,
        bytes: Rc<[u8]>,
    },
    Tick {
        node: usize,
        process: u64,
    },
    /// A wait of a server may be over.
    Look {
        node: usize,
    },
    Fault,
    /// No message reaches this server.
    CutOff {
        node: usize,
    },
    Resume {
        node: usize,
    },
    Restart {
        node: usize,
    },
}

impl What {
    fn node(&self) -> Option<usize> {
        match *self {
            Self::Deliver { to, .. } => Some(to),
            Self::Tick { node, .. } | Self::Look { node } => Some(node),
            _ => None,
        }
    }
}

struct Event {
    at: u64,
    order: u64,
    what: What,
}

impl Event {
    fn key(&self) -> (u64, u64) {
        (self.at, self.order)
    }
}

impl PartialEq for Event {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

struct Network {
    /// By sender, then receiver.
    cut: Vec<Vec<bool>>,
    /// Of 100 messages, so many are lost, as many come twice, and as many are late.
    faulty: u64,
}

struct Sim {
    random: Random,
    now: u64,
    events: BinaryHeap<Reverse<Event>>,
    order: u64,
    network: Network,
    nodes: Vec<Node>,
    terms: Terms,
    first: View,
    chain: Rc<RefCell<Chain>>,
    /// Number of the next process; also of the next incarnation.
    number: u64,
    /// Memories that may still be lost.
    losses: u64,
    /// Whether no fault happens.
    calm: bool,
    /// Whether no server comes back to the view, and no copy is made, any more.
    over: bool,
}

impl Sim {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let n = [2, 3, 3, 3, 3, 4, 4, 5, 5, 7][below(&random, 10) as usize];
        let replicas = 2 + below(&random, (n as u64 - 1).min(2)) as u16;
        let terms = Terms { lease: LEASE, suspect_after: LEASE / 2 + below(&random, 3 * LEASE / 2) };
        let servers = (0..n).map(|i| pando_member::Server::new(format!("server-{i}:1"), 1)).collect();
        let ids = (0..n).map(|i| AcceptorId { server: MemoryServerId(i as u16), incarnation: 1 });
        let ids: Vec<_> = ids.collect();
        let first = ids.iter().map(|id| (*id, ids.clone()));
        // They join, and are no acceptors.
        let joining = below(&random, 3) as usize;
        let later = (n..n + joining)
            .map(|i| (AcceptorId { server: MemoryServerId(i as u16), incarnation: 1 }, Vec::new()));
        let nodes: Vec<_> = first
            .chain(later)
            .map(|(id, knows)| Node::new(Clock::any(&random), Acceptor::new(id).encode(), knows))
            .collect();
        let all = nodes.len();
        let losses = if below(&random, 8) == 0 { n as u64 } else { below(&random, (n as u64).div_ceil(2)) };
        let mut sim = Self {
            now: 0,
            events: BinaryHeap::new(),
            order: 0,
            network: Network {
                cut: vec![vec![false; all]; all],
                faulty: [0, 1, 5, 15][below(&random, 4) as usize],
            },
            nodes,
            terms,
            first: View::new(7, replicas, servers).expect("as many servers as copies"),
            chain: Rc::default(),
            number: 2,
            losses,
            calm: false,
            over: false,
            random,
        };
        (0..all).for_each(|node| sim.start(node));
        sim.after(2 * LEASE / 3, What::Fault);
        sim
    }

    fn below(&self, end: u64) -> u64 {
        below(&self.random, end)
    }

    fn any_node(&self) -> usize {
        self.below(self.nodes.len() as u64) as usize
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    fn after(&mut self, delay: u64, what: What) {
        self.order += 1;
        self.events.push(Reverse(Event { at: self.now + delay, order: self.order, what }));
    }

    fn send(&mut self, from: usize, to: usize, bytes: &Rc<[u8]>) {
        let faulty = if self.calm { 0 } else { self.network.faulty };
        if self.network.cut[from][to] || self.below(100) < faulty {
            return;
        }
        let copies = 1 + u64::from(self.below(100) < faulty);
        for _ in 0..copies {
            let most = if self.below(100) < faulty { 2 * LEASE } else { 20 };
            let delay = 1 + if from == to { 0 } else { self.below(most) };
            self.after(delay, What::Deliver { to, from, bytes: Rc::clone(bytes) });
        }
    }

    /// Starts a process on `node`, with what the memory of the server holds.
    fn start(&mut self, node: usize) {
        let number = self.next_number();
        let lease = self.lease(node, number);
        let acceptor = Acceptor::decode(&self.nodes[node].stored).expect("as it was stored");
        self.nodes[node].process = Some(Process::new(number, acceptor, lease));
        let delay = self.below(50);
        self.after(delay, What::Tick { node, process: number });
    }

    fn lease(&self, node: usize, process: u64) -> ServerLease {
        let Node { incarnation, acceptors, .. } = &self.nodes[node];
        ServerLease::new(MemoryServerId(node as u16), *incarnation, process, acceptors, self.terms)
    }

    fn handle(&mut self, what: What) -> Result<(), String> {
        if let Some(node) = what.node() {
            if let Some(waiting) = &mut self.nodes[node].stopped {
                waiting.push(what);
                return Ok(());
            }
            match what {
                What::Deliver { to, from, bytes } => self.deliver(to, from, &bytes)?,
                What::Tick { node, process } => self.tick(node, process),
                _ => {}
            }
            return self.check_serving(node);
        }
        match what {
            What::Fault => self.fault(),
            What::CutOff { node } if !self.calm => self.cut_off(node),
            What::Resume { node } => {
                for event in self.nodes[node].stopped.take().into_iter().flatten() {
                    self.handle(event)?;
                }
            }
            What::Restart { node } if self.nodes[node].process.is_none() && !self.calm => self.start(node),
            _ => {}
        }
        Ok(())
    }

    fn serves(&self, node: usize, volume: VolumeId) -> Serves {
        let Node { process, clock, .. } = &self.nodes[node];
        process.as_ref().map_or(Serves::Elsewhere, |it| it.lease.serves_volume(volume, clock.at(self.now)))
    }

    /// Checks that nobody else serves what `node` serves. Done whenever a server may have begun to serve.
    fn check_serving(&mut self, node: usize) -> Result<(), String> {
        for v in 0..self.nodes.len() {
            let volume = VolumeId(v as u16);
            match self.serves(node, volume) {
                Serves::Yes => {
                    let mut others = (0..self.nodes.len()).filter(|other| *other != node);
                    if let Some(other) = others.find(|other| self.serves(*other, volume) == Serves::Yes) {
                        return Err(format!("{node} and {other} serve volume {v} at {}", self.now));
                    }
                    let view = self.nodes[node].process.as_ref().and_then(|process| process.view.as_ref());
                    if !self
                        .is_alive(node, view.and_then(|view| view.incarnation(MemoryServerId(node as u16))))
                    {
                        return Err(format!("{node} serves volume {v} without its memory at {}", self.now));
                    }
                }
                Serves::Waits(time) if self.nodes[node].looks_at < self.now => {
                    // Clocks run too fast, if not right.
                    let delay = (time * 1000).div_ceil(self.nodes[node].clock.rate).max(1);
                    self.nodes[node].looks_at = self.now + delay;
                    self.after(delay, What::Look { node });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn fault(&mut self) {
        let (node, n) = (self.any_node(), self.nodes.len());
        match self.below(10) {
            0..2 => {
                let side = self.below(1 << n);
                let cut = |from: usize, to: usize| (side >> from ^ side >> to) & 1 == 1;
                self.network.cut = (0..n).map(|from| (0..n).map(|to| cut(from, to)).collect()).collect();
            }
            2 => (0..n).filter(|to| *to != node).for_each(|to| self.network.cut[node][to] = true),
            3 => self.cut_off(node),
            4 => {
                let other = self.any_node();
                self.network.cut[node][other] = node != other;
            }
            5..7 => self.heal(),
            7 if self.nodes[node].stopped.is_none() => {
                self.nodes[node].stopped = Some(Vec::new());
                let delay = self.below(3 * LEASE);
                self.after(delay, What::Resume { node });
            }
            kind => {
                self.nodes[node].process = None;
                if kind == 9 && self.losses > 0 {
                    self.losses -= 1;
                    self.lose_memory(node);
                }
                let most = [LEASE / 10, 3 * LEASE][self.below(2) as usize];
                let delay = self.below(most);
                self.after(delay, What::Restart { node });
            }
        }
        let delay = self.below(LEASE);
        self.after(delay, What::Fault);
    }

    fn lose_memory(&mut self, node: usize) {
        let (server, incarnation) = (MemoryServerId(node as u16), self.next_number());
        let stored = Acceptor::new(AcceptorId { server, incarnation }).encode();
        let clock = self.nodes[node].clock;
        let stopped = self.nodes[node].stopped.take();
        self.nodes[node] = Node { incarnation, stopped, ..Node::new(clock, stored, Vec::new()) };
    }

    fn lose_any(&mut self) {
        let node = self.any_node();
        self.lose(node);
    }

    /// A server whose memory may be lost without the last copy of a volume.
    fn any_spare(&self) -> Option<usize> {
        let chain = self.chain.borrow();
        let (_, newest) = chain.decided.last_key_value()?;
        let view = View::decode(newest).expect("a decided view");
        let spare = |node: &usize| view.without(MemoryServerId(*node as u16)).is_ok();
        let spares: Vec<_> = (0..self.nodes.len()).filter(spare).collect();
        (!spares.is_empty()).then(|| spares[self.below(spares.len() as u64) as usize])
    }

    fn lose(&mut self, node: usize) {
        self.lose_memory(node);
        let delay = self.below(3 * LEASE);
        self.after(delay, What::Restart { node });
    }

    fn cut_off(&mut self, node: usize) {
        (0..self.nodes.len())
            .filter(|from| *from != node)
            .for_each(|from| self.network.cut[from][node] = true);
    }

    fn heal(&mut self) {
        self.network.cut.iter_mut().for_each(|to| to.fill(false));
    }

    fn run_until(&mut self, end: u64) -> Result<(), String> {
        while let Some(Reverse(event)) = self.events.pop() {
            if event.at >= end {
                self.events.push(Reverse(event));
                break;
            }
            self.now = event.at;
            self.handle(event.what)?;
            self.chain.borrow_mut().broken.take().map_or(Ok(()), Err)?;
        }
        self.now = end;
        Ok(())
    }

    /// No fault happens any more.
    fn calm_down(&mut self) -> Result<(), String> {
        self.heal();
        self.events.retain(|event| !matches!(event.0.what, What::Fault | What::Restart { .. }));
        self.calm = true;
        (0..self.nodes.len()).try_for_each(|node| self.handle(What::Resume { node }))
    }

    /// No fault happens any more, and some of the dead servers never come back.
    fn end(&mut self) -> Result<(), String> {
        self.calm_down()?;
        self.over = true;
        for node in 0..self.nodes.len() {
            if self.nodes[node].process.is_none() && self.below(3) > 0 {
                self.start(node);
            }
        }
        Ok(())
    }

    fn is_alive(&self, node: usize, incarnation: Option<u64>) -> bool {
        self.nodes[node].process.is_some() && incarnation == Some(self.nodes[node].incarnation)
    }

    /// Whether some server knows acceptors of which a majority live and are named by the `newest` view.
    fn can_decide(&self, newest: &View) -> bool {
        let lives = |id: &AcceptorId| {
            let process = self.nodes[usize::from(id.server.0)].process.as_ref();
            process.is_some_and(|process| process.acceptor.id() == *id)
        };
        let living: Vec<_> = newest.acceptors().filter(lives).collect();
        let knows = |node: &Node| node.acceptors.iter().filter(|id| living.contains(id)).count();
        let suffice = |node: &Node| knows(node) > newest.acceptors().count().max(node.acceptors.len()) / 2;
        self.nodes.iter().filter(|node| node.process.is_some()).any(suffice)
    }

    /// The newest view, and what each server knows: for messages.
    fn state(&self) -> String {
        let chain = self.chain.borrow();
        let newest = chain.decided.last_key_value().and_then(|(_, newest)| View::decode(newest).ok());
        let mut state = format!("{newest:?}");
        for (i, node) in self.nodes.iter().enumerate() {
            let process = node.process.as_ref().map(|process| {
                let (id, accepted) = (process.acceptor.id(), View::epoch_of(process.acceptor.value()));
                let serves = process.lease.serves(node.clock.at(self.now));
                (process.lease.epoch(), process.lease.is_out(), serves, id.incarnation, accepted)
            });
            let of_acceptors: Vec<_> = node.acceptors.iter().map(|id| id.incarnation).collect();
            state += &format!("\n{i} {} asks {of_acceptors:?}, runs as {process:?}", node.incarnation);
        }
        state
    }

    /// Whether a server of the newest view is dead that no whole copy can take the place of.
    fn has_lost(&self) -> bool {
        let chain = self.chain.borrow();
        let newest = chain.decided.last_key_value().and_then(|(_, newest)| View::decode(newest).ok());
        newest.is_some_and(|view| {
            let mut dead = view
                .members()
                .filter(|server| !self.is_alive(usize::from(server.0), view.incarnation(*server)));
            dead.any(|server| view.without(server).is_err())
        })
    }

    /// Whether all servers are in the newest view and know it, and all copies that find a place are there and whole.
    fn has_recovered(&self) -> bool {
        let chain = self.chain.borrow();
        let Some((epoch, newest)) = chain.decided.last_key_value() else { return false };
        let view = View::decode(newest).expect("a decided view");
        let complete = |node: usize| {
            let server = MemoryServerId(node as u16);
            if view.servers().get(node).is_some_and(Server::has_left) {
                return !view.acceptors().any(|id| id.server == server);
            }
            let process = self.nodes[node].process.as_ref();
            self.is_alive(node, view.incarnation(server))
                && process.is_some_and(|process| {
                    let mut acceptors = view.acceptors().filter(|id| id.server == server);
                    process.lease.epoch() == *epoch && acceptors.all(|id| id == process.acceptor.id())
                })
        };
        // A volume may lack a copy when the only free slot is on a server that has one.
        let fits =
            |volume| view.free_slots().any(|place| view.with_copy(volume, place.server, place.slot).is_ok());
        let mut copies = (0..view.volumes()).flat_map(|v| view.backups(VolumeId(v as u16)));
        let is_whole = !view.wanting().any(fits) && !copies.any(|copy| copy.syncing);
        let all_joined = view.volumes_in_use() == self.nodes.len() || view.wanting().next().is_some();
        (0..self.nodes.len()).all(complete) && is_whole && all_joined && view.next_step().is_none()
    }

    /// Faults for some time, then a calm until all is well again. Returns false if faults took the last copy of a
    /// volume.
    fn recover(&mut self, faults: u64) -> Result<bool, String> {
        self.calm = false;
        self.after(0, What::Fault);
        self.run_until(self.now + faults)?;
        self.calm_down()?;
        for node in 0..self.nodes.len() {
            if self.nodes[node].process.is_none() {
                self.start(node);
            }
        }
        let end = self.now + self.terms.suspect_after + self.terms.wait() + RECOVERY;
        while !self.has_recovered() {
            if self.now >= end {
                if self.has_lost() {
                    return Ok(false);
                }
                return Err(format!("not recovered at {}: {}", self.now, self.state()));
            }
            self.run_until(self.now + LEASE / 4)?;
        }
        Ok(true)
    }

    /// Whether there had to be progress.
    fn check_progress(&self) -> Result<bool, String> {
        let chain = self.chain.borrow();
        let Some((_, newest)) = chain.decided.last_key_value() else { return Ok(false) };
        let view = View::decode(newest).map_err(|error| error.to_string())?;
        let lives = |server: &MemoryServerId| self.is_alive(usize::from(server.0), view.incarnation(*server));
        if !self.can_decide(&view) || !view.members().any(|server| lives(&server)) {
            return Ok(false);
        }
        for server in view.members().filter(|server| !lives(server)) {
            if view.without(server).is_ok() {
                return Err(format!("{server} is dead, but in the view {}", view.epoch()));
            }
        }
        for v in 0..view.volumes() {
            let volume = VolumeId(v as u16);
            let Some(primary) = view.primary(volume).map(|copy| copy.server) else { continue };
            let serves = self.serves(usize::from(primary.0), volume);
            if lives(&primary) && serves != Serves::Yes {
                return Err(format!(
                    "{serves:?} says {primary} of volume {v} in the view {}: {}",
                    view.epoch(),
                    self.state()
                ));
            }
        }
        Ok(true)
    }
}

/// Number of decided views of a random run, and whether progress was demanded at its end.
#[derive(Debug, Default)]
pub struct Outcome {
    pub views: usize,
    pub progress: bool,
    /// Memories that were lost one after the other, after each of which the cluster recovered.
    pub lost: u64,
}

/// # Errors
/// Which property does not hold.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let mut sim = Sim::new(seed);
    sim.run_until(FAULTS)?;
    sim.end()?;
    sim.run_until(FAULTS + sim.terms.suspect_after + sim.terms.wait() + SLACK)?;
    sim.chain.borrow().check()?;
    let progress = sim.check_progress()?;
    let views = sim.chain.borrow().decided.len();
    Ok(Outcome { views, progress, lost: 0 })
}

/// Number of decided views of a random run in which servers lose their memory one after the other, as often as there
/// are servers or more, and the next one when the cluster has recovered; in some runs others earlier at last.
///
/// # Errors
/// Which property does not hold.
pub fn run_losses(seed: u64) -> Result<Outcome, String> {
    let mut sim = Sim::new(seed);
    let (n, mut lost) = (sim.nodes.len() as u64, 0);
    sim.losses = 0;
    // The majority of two is both.
    let losses = if sim.first.servers().len() == 2 { 0 } else { n + sim.below(n) };
    let mut is_well = sim.recover(sim.below(2 * LEASE))?;
    for _ in 0..losses {
        if let Some(node) = sim.any_spare().filter(|_| is_well) {
            sim.lose(node);
            let faults = [0, sim.below(4 * LEASE)][sim.below(2) as usize];
            is_well = sim.recover(faults)?;
            lost += u64::from(is_well);
        }
    }
    if sim.below(4) == 0 {
        sim.calm = false;
        for _ in 0..2 + sim.below(n) {
            sim.lose_any();
            sim.run_until(sim.now + sim.below(3 * LEASE))?;
        }
    }
    sim.end()?;
    sim.run_until(sim.now + sim.terms.suspect_after + sim.terms.wait() + SLACK)?;
    sim.chain.borrow().check()?;
    let progress = sim.check_progress()?;
    let views = sim.chain.borrow().decided.len();
    Ok(Outcome { views, progress, lost })
}

fn run_all(seeds: Range<u64>, run: impl Fn(u64) -> Result<Outcome, String>) {
    let (mut views, mut progress, mut lost) = (0, 0, 0);
    for seed in seeds.clone() {
        let outcome = run(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        views += outcome.views;
        progress += u64::from(outcome.progress);
        lost += outcome.lost;
    }
    println!(
        "seeds {seeds:?}: {views} views; progress was demanded of {progress}; recovered from {lost} losses"
    );
    assert!(progress >= (seeds.end - seeds.start) / 2, "only {progress} of {seeds:?} could show progress");
}

#[test]
fn servers_lose_their_memory_one_after_the_other() {
    run_all(seeds(LOSS_SEEDS), run_losses);
}

#[test]
fn a_cluster_with_faults_keeps_its_promises() {
    run_all(seeds(SEEDS), run);
}
