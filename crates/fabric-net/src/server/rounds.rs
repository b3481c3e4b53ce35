//! The threads of a memory server that work for its group.
//!
//! One begins the rounds of the server's lease, one for each other server asks it, and one changes the view without
//! servers that do not answer. They begin when the server learns its first view. If the register is outside the servers,
//! one more asks it, from the start on.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender, TrySendError};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use pando_fabric::{MemoryServerId, Nanos};
use pando_fabric_local::ServedRegion;
use pando_member::{AcceptorId, OUTSIDE, Renew, Renewed, View};

use super::member::Member;
use super::refill::Refill;
use crate::group::{Etcd, Line, Register, RegisterAddress, kind};
use crate::secret::Secret;

/// Time between two looks at the clock, as a part of a lease.
const LOOKS: Nanos = 20;
/// Longest time for a change of the view, in leases.
const CHANGE: u32 = 4;

/// Ends the threads when it is dropped.
pub(super) struct Rounds {
    member: Arc<Member>,
    thread: Option<JoinHandle<()>>,
}

/// What copies are filled with.
pub(super) struct Copying {
    pub region: ServedRegion,
    /// Most bytes to READ from other servers in a second.
    pub bytes_per_s: u64,
}

impl Rounds {
    pub fn start(member: Arc<Member>, secret: Secret, copying: Copying) -> std::io::Result<Self> {
        let work = Work { member: Arc::clone(&member), secret, copying };
        let thread = thread::Builder::new().name("pando-group".to_owned()).spawn(move || work.run())?;
        Ok(Self { member, thread: Some(thread) })
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        self.member.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// What the thread for changes of the view is asked to do.
enum Change {
    /// Find out which view is decided.
    Read,
    /// Go on without these servers, if their memory still has these incarnations.
    Without(Vec<(MemoryServerId, u64)>),
    /// Take back a server whose memory and whose acceptor have these incarnations, which view `epoch` lacks.
    Readmit { server: MemoryServerId, incarnation: u64, acceptor: u64, epoch: u64 },
    /// Let this server have copies that volumes lack.
    Adopt(MemoryServerId),
    /// The next step on the way to as many volumes as servers.
    Grow,
}

impl Change {
    /// What server `me` wants to change, so that all copies are there, and as many volumes as servers.
    fn for_copies(view: &View, me: MemoryServerId) -> Option<Self> {
        let adopts = Self::Adopt(me);
        if adopts.of(view).is_some() {
            return Some(adopts);
        }
        // One of them suffices.
        (view.members().next() == Some(me) && view.next_step().is_some()).then_some(Self::Grow)
    }

    /// What becomes of a view; `None` if it stays.
    fn of(&self, view: &View) -> Option<View> {
        let mut next = view.clone();
        match self {
            Self::Read => {}
            Self::Without(servers) => {
                for (server, incarnation) in servers {
                    if next.incarnation(*server) != Some(*incarnation) {
                        continue;
                    }
                    match next.without(*server) {
                        Ok(without) => next = without,
                        Err(error) => tracing::error!("{error}"),
                    }
                }
            }
            // Another server may have been faster.
            Self::Readmit { epoch, .. } if *epoch != view.epoch() => {}
            Self::Readmit { server, incarnation, acceptor, .. } => {
                if let Ok(with) = next.readmit(*server, *incarnation) {
                    next = with.with_acceptor(*server, *acceptor);
                }
            }
            Self::Adopt(server) => {
                for volume in view.wanting() {
                    let mut free = next.free_slots();
                    let Some(place) = free.find(|place| place.server == *server) else { break };
                    drop(free);
                    if let Ok(with) = next.with_copy(volume, *server, place.slot) {
                        next = with;
                    }
                }
            }
            Self::Grow => next = view.next_step()?,
        }
        (next.epoch() > view.epoch()).then_some(next)
    }

    /// Says what has become of the view.
    fn tell(&self, view: &View) {
        let epoch = view.epoch();
        match self {
            Self::Without(servers)
                if servers.iter().any(|(server, _)| view.incarnation(*server).is_none()) =>
            {
                let servers: Vec<_> = servers.iter().map(|(server, _)| server.0).collect();
                tracing::warn!(
                    "view {epoch} of the memory servers goes on without {servers:?}, which do not answer"
                );
            }
            Self::Readmit { server, incarnation, .. } if view.incarnation(*server) == Some(*incarnation) => {
                tracing::info!("memory server {server} is back in view {epoch}");
            }
            Self::Grow => {
                let (volumes, servers) = (view.volumes_in_use(), view.servers().len());
                tracing::info!("in view {epoch}, {volumes} volumes of {servers} memory servers are in use");
            }
            _ => {}
        }
    }
}

struct Work {
    member: Arc<Member>,
    secret: Secret,
    copying: Copying,
}

impl Work {
    fn lease(&self) -> Duration {
        Duration::from_nanos(self.member.terms.lease)
    }

    fn run(&self) {
        thread::scope(|scope| {
            let (changes, to_change) = mpsc::sync_channel(1);
            let mut peers: BTreeMap<MemoryServerId, Sender<Renew>> = BTreeMap::new();
            scope.spawn(move || self.change_views(&to_change));
            let register = self.member.register.as_ref().map(|register| {
                let (sender, receiver) = mpsc::channel();
                scope.spawn(move || self.ask_register(register, &receiver));
                sender
            });
            let mut filling: Option<ScopedJoinHandle<'_, ()>> = None;
            let mut asking: Option<ScopedJoinHandle<'_, ()>> = None;
            let tick = Duration::from_nanos((self.member.terms.lease / LOOKS).max(1_000_000));
            loop {
                let mut known = self.member.known();
                if known.is_stopping {
                    // The other threads end with their channels.
                    break;
                }
                let now = self.member.now();
                let view = known.view.clone();
                let lease = known.lease.as_mut();
                let (me, renew, suspects) = match lease {
                    Some(lease) => {
                        let named = |server| Some((server, view.as_ref()?.incarnation(server)?));
                        (lease.me(), lease.round(now), lease.suspects(now).filter_map(named).collect())
                    }
                    None => (MemoryServerId(0), None, Vec::new()),
                };
                let is_admitted = known.lease.as_ref().is_some_and(|lease| lease.serves(now));
                let is_behind =
                    known.behind_since.is_some_and(|since| now - since > self.member.terms.lease / 2);
                drop(known);
                if let (Some(register), Some(renew)) = (&register, renew) {
                    // A thread runs as long as its channel.
                    let _ = register.send(renew);
                }
                if let (Some(view), Some(renew)) = (&view, renew) {
                    let others = (0..).map(MemoryServerId).zip(view.servers());
                    let others = others.filter(|(number, server)| *number != me && !server.has_left());
                    for (number, server) in others {
                        let peer = peers.entry(number).or_insert_with(|| {
                            let (sender, receiver) = mpsc::channel();
                            let (address, changes) = (server.address().to_owned(), changes.clone());
                            scope.spawn(move || self.ask_peer(number, &address, &receiver, &changes));
                            sender
                        });
                        let _ = peer.send(renew);
                    }
                    self.take(me, &self.member.renew(&renew));
                }
                let begins = view.is_none() && self.member.last_view().is_some();
                let change = if !suspects.is_empty() {
                    Some(Change::Without(suspects))
                } else if is_behind || begins {
                    Some(Change::Read)
                } else {
                    view.as_ref().filter(|_| is_admitted).and_then(|view| Change::for_copies(view, me))
                };
                change.into_iter().for_each(|change| ask_for(&changes, change));
                if self.member.view_without_fences().is_some() && is_idle(asking.as_ref()) {
                    asking = Some(scope.spawn(|| self.ask_for_fences()));
                }
                if self.member.next_filling().is_some() && is_idle(filling.as_ref()) {
                    filling = Some(scope.spawn(|| self.refill()));
                }
                self.member.rest(if view.is_none() { self.lease() } else { tick });
            }
        });
    }

    /// Sends rounds to another server.
    fn ask_peer(
        &self,
        number: MemoryServerId,
        address: &str,
        rounds: &Receiver<Renew>,
        changes: &SyncSender<Change>,
    ) {
        let mut line = Line::new(number.0, address, &self.secret);
        let (patience, mut told, mut has_told) = (self.lease() / 2, 0, false);
        while let Ok(mut renew) = rounds.recv() {
            // Rounds that waited for an answer to an earlier one are out of date.
            while let Ok(later) = rounds.try_recv() {
                renew = later;
            }
            let view = self.member.known().view.clone();
            if let Some(view) = view.filter(|view| view.epoch() > told)
                && line.ask(kind::ENTER, &view.encode(), patience).is_ok()
            {
                told = view.epoch();
            }
            let Ok(bytes) = line.ask(kind::RENEW, &renew.encode(), patience) else { continue };
            let Ok(renewed) = Renewed::decode(&bytes) else { continue };
            self.take(number, &renewed);
            if let Some(change) = self.readmission(number, &renewed)
                && self.has_same_register(&mut line, &mut has_told)
            {
                ask_for(changes, change);
            }
            if renewed.accepted > renew.epoch
                && let Ok(bytes) = line.ask(kind::VIEW, &[], patience)
                && let Ok(view) = View::decode(&bytes)
            {
                self.member.learn(view);
            }
        }
    }

    /// Sends rounds to the register outside the servers, and asks it from time to time without one: what it has is decided.
    fn ask_register(&self, address: &RegisterAddress, rounds: &Receiver<Renew>) {
        let mut etcd = Etcd::new(address).reached_at(&self.member.register_at);
        let (patience, mut is_silent) = (self.lease() / 2, false);
        loop {
            let mut renew = match rounds.recv_timeout(patience) {
                Ok(renew) => Some(renew),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            // Rounds that waited for an answer to an earlier one are out of date.
            while let Ok(later) = rounds.try_recv() {
                renew = Some(later);
            }
            let asked = self.member.now();
            match etcd.view(Instant::now() + patience) {
                Ok(found) => {
                    self.member.known().register_heard = Some(asked);
                    if let Some(renew) = renew {
                        let decided = found.as_ref().map_or(0, View::epoch);
                        self.take(OUTSIDE.server, &renew.answer_outside(decided));
                    }
                    if let Some(view) = found {
                        self.member.learn(view);
                    }
                    is_silent = false;
                }
                Err(error) if !is_silent => {
                    is_silent = true;
                    tracing::warn!("{error}");
                }
                Err(_) => {}
            }
        }
    }

    /// Asks all other servers of the view which processes were given up for dead. They must have this view first: whoever gives up
    /// a process in an earlier one has told them before.
    fn ask_for_fences(&self) {
        let Some(view) = self.member.view_without_fences() else { return };
        let (me, encoded, mut fenced) = (self.member.me(), view.encode(), HashSet::new());
        for server in view.members().filter(|server| Some(*server) != me) {
            let address = view.servers()[usize::from(server.0)].address();
            let mut line = Line::new(server.0, address, &self.secret);
            let entered = line.ask(kind::ENTER, &encoded, self.lease());
            let Ok(bytes) = entered.and_then(|_| line.ask(kind::FENCES, &[], self.lease())) else { return };
            fenced.extend(bytes.as_chunks().0.iter().map(|number| u64::from_le_bytes(*number)));
        }
        self.member.take_fences(view.epoch(), fenced);
    }

    fn refill(&self) {
        let Copying { region, bytes_per_s } = &self.copying;
        Refill { member: &self.member, region, secret: &self.secret, bytes_per_s: *bytes_per_s }.run();
    }

    /// Whether a server was given the register of this one; says once if not. Another one cannot be in this group.
    fn has_same_register(&self, line: &mut Line, has_told: &mut bool) -> bool {
        let Ok(given) = line.ask(kind::WHICH_REGISTER, &[], self.lease() / 2) else { return false };
        let own = self.member.register.as_ref().map_or_else(String::new, ToString::to_string);
        let is_same = given == own.as_bytes();
        if !is_same && !std::mem::replace(has_told, true) {
            let address = line.destination().address.clone();
            tracing::error!(
                "{address} is not taken back: it was not started with the register of this group"
            );
        }
        is_same
    }

    /// The change that takes a server back which answers again, but has lost or missed something.
    fn readmission(&self, from: MemoryServerId, renewed: &Renewed) -> Option<Change> {
        let known = self.member.known();
        let named = known.view.as_ref()?.servers().get(usize::from(from.0))?;
        let is_new = !named.is_in() && named.stays() && named.incarnation() != renewed.incarnation;
        let epoch = known.view.as_ref()?.epoch();
        let Renewed { incarnation, acceptor, .. } = *renewed;
        (is_new && known.lease.as_ref()?.serves(self.member.now())).then_some(Change::Readmit {
            server: from,
            incarnation,
            acceptor,
            epoch,
        })
    }

    /// Takes the answer to a round.
    fn take(&self, from: MemoryServerId, renewed: &Renewed) {
        let now = self.member.now();
        let mut known = self.member.known();
        let Some(lease) = &mut known.lease else { return };
        lease.answered(from, renewed, now);
        let (epoch, id) = (lease.epoch(), AcceptorId { server: from, incarnation: renewed.acceptor });
        let is_acceptor =
            known.view.as_ref().is_some_and(|view| view.acceptors().any(|acceptor| acceptor == id));
        // Some acceptors have another view: a newer one may be decided, or a new acceptor needs this one.
        if renewed.accepted > epoch || (is_acceptor && renewed.accepted < epoch) {
            known.behind_since.get_or_insert(now);
        }
    }

    /// Changes the view, or finds out which one is decided.
    fn change_views(&self, changes: &Receiver<Change>) {
        while let Ok(change) = changes.recv() {
            let view = self.member.known().view.clone().or_else(|| self.member.last_view());
            let Some(view) = view else { continue };
            let silent: Vec<_> = match &change {
                Change::Without(servers) => servers.iter().map(|(server, _)| *server).collect(),
                _ => Vec::new(),
            };
            let until = Instant::now() + self.lease() * CHANGE;
            let changed = Register::of(&view, &self.secret, self.member.process).and_then(|register| {
                let mut register = register.without_asking(&silent);
                register.change(until, |view| Ok(view.and_then(|view| change.of(&view))))
            });
            match changed {
                Ok(Some(decided)) => {
                    change.tell(&decided);
                    self.member.learn(decided);
                    self.member.known().behind_since = None;
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("the view of the memory servers cannot be changed: {error}"),
            }
        }
    }
}

fn is_idle(thread: Option<&ScopedJoinHandle<'_, ()>>) -> bool {
    thread.is_none_or(ScopedJoinHandle::is_finished)
}

/// Asks for a change, unless one is under way.
fn ask_for(changes: &SyncSender<Change>, change: Change) {
    match changes.try_send(change) {
        Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
    }
}
