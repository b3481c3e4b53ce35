//! A memory server as a member of a group: its acceptor, its lease, and what clients may do on its memory.
//!
//! Without a view the server is alone, and everything is allowed. With one, a verb is executed only for a connection
//! that has entered the newest view that the server knows, while the server has a lease, and on copies that it may serve
//! ([`ServerLease`]). The lease is checked again before answers are sent: the process may have been stopped in between.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::codec::BadField;
use pando_fabric::{FabricError, MemoryServerId, Nanos, Result};
use pando_member::{
    Acceptor, AcceptorId, FIRST_EPOCH, HeldCopy, Renew, Renewed, Request as Ask, Role, ServerLease, Serves,
    Terms, View, VolumeId,
};

use super::filling::Filling;
use super::outside::OutsideRegister;
use crate::group::{MemberCondition, RegisterAddress, kind};
use crate::wire::{Op, Request};

/// What a group must know of its member.
pub(super) struct Member {
    known: Mutex<Known>,
    changed: Condvar,
    /// Whether there is a view, so that requests must be checked.
    is_grouped: AtomicBool,
    /// Incarnation of the memory. A server that is out of the view counts its memory as new, and gets another one.
    incarnation: AtomicU64,
    /// Incarnation of the acceptor.
    of_acceptor: u64,
    /// Number of this start of the process.
    pub process: u64,
    pub terms: Terms,
    started: Instant,
    /// Whether it has become the server that knows which processes live.
    becomes_home: AtomicBool,
    /// Whether it is about to end, and changes no primary any more.
    is_leaving: AtomicBool,
    /// File that keeps the acceptor, for memory that outlives the process.
    kept: Option<PathBuf>,
    last_view: Option<View>,
    /// The register outside the servers that this server was given.
    pub register: Option<RegisterAddress>,
    /// Where its members are reached.
    pub register_at: Vec<String>,
    /// Whether it was said that a group has another register.
    has_told_register: AtomicBool,
    /// Why this server cannot be in a group.
    refusal: Option<&'static str>,
}

#[derive(Default)]
pub(super) struct Known {
    acceptor: Option<Acceptor>,
    pub lease: Option<ServerLease>,
    pub view: Option<View>,
    /// The view, encoded.
    bytes: Vec<u8>,
    /// Copies of this server that are being filled.
    fillings: Vec<Arc<Filling>>,
    /// Processes that others gave up for dead while this server was not in the view, and whether it has to ask which.
    fenced: HashSet<u64>,
    lacks_fences: bool,
    /// Since when an acceptor has accepted a newer view than is known here.
    pub behind_since: Option<Nanos>,
    /// When the latest question was sent that the register outside the servers answered.
    pub register_heard: Option<Nanos>,
    pub is_stopping: bool,
}

/// What the requests of one batch may do.
pub(super) struct Allowed {
    group: Option<Group>,
    fillings: Vec<Arc<Filling>>,
}

struct Group {
    epoch: u64,
    has_lease: bool,
    /// Whether it knows which processes were given up for dead.
    knows_fences: bool,
    /// Whether it serves volume 0, and with it knows which processes live.
    is_home: bool,
    slot_bytes: u64,
    /// By slot of this server.
    slots: Vec<Slot>,
}

/// What may be done with the copy in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slot {
    Empty,
    /// A primary that another server may still serve.
    Waits,
    /// A primary of a server that is about to end: it is only read.
    Leaves,
    Served,
}

impl Allowed {
    /// Copies that are being filled.
    pub fn fillings(&self) -> &[Arc<Filling>] {
        &self.fillings
    }

    /// Checks whether a request of a connection that has entered view `entered` may be executed.
    ///
    /// # Errors
    /// `NotConnected` with the reason, since the request has no effect.
    #[inline]
    pub fn check(&self, entered: u64, server: MemoryServerId, request: &Request<'_>) -> Result<()> {
        match &self.group {
            None => Ok(()),
            Some(group) => {
                group.check(entered, request).map_err(|reason| FabricError::NotConnected { server, reason })
            }
        }
    }
}

impl Allowed {
    /// Checks whether a connection that has entered view `entered` may give processes up for dead.
    ///
    /// # Errors
    /// `NotConnected` with the reason: in a newer view, more servers must be told.
    pub fn check_fence(&self, entered: u64, server: MemoryServerId) -> Result<()> {
        match &self.group {
            Some(group) if entered != group.epoch => {
                let reason = format!("it has view {} of the memory servers", group.epoch);
                Err(FabricError::NotConnected { server, reason })
            }
            _ => Ok(()),
        }
    }

    /// Checks whether this server may say which processes live, and give the lock.
    ///
    /// # Errors
    /// `NotConnected` with the reason.
    pub fn check_home(&self, server: MemoryServerId) -> Result<()> {
        match &self.group {
            None => Ok(()),
            Some(group) => group.check_home().map_err(|reason| FabricError::NotConnected { server, reason }),
        }
    }
}

impl Group {
    fn check(&self, entered: u64, request: &Request<'_>) -> Result<(), String> {
        let offset = match *request {
            Request::Chain(verbs) => {
                return verbs.into_iter().try_for_each(|verb| self.check(entered, &verb));
            }
            Request::Call { .. } => return Err("memory servers with copies execute no calls".to_owned()),
            Request::Read { offset, .. }
            | Request::Write { offset, .. }
            | Request::CompareSwap { offset, .. }
            | Request::MaskedCompareSwap { offset, .. }
            | Request::FetchAdd { offset, .. }
            | Request::Reserve { offset, .. }
            | Request::Persist { offset, .. } => offset,
            _ => return Ok(()),
        };
        if entered != self.epoch {
            return Err(format!(
                "it has view {} of the memory servers, and this is for view {entered}",
                self.epoch
            ));
        }
        if !self.knows_fences {
            return Err("it does not know yet which processes were given up for dead".to_owned());
        }
        if !self.has_lease {
            return Err("too few other memory servers answer it, so it may have been replaced".to_owned());
        }
        let slot = (offset / self.slot_bytes) as usize;
        match self.slots.get(slot).unwrap_or(&Slot::Empty) {
            Slot::Served => Ok(()),
            Slot::Leaves if matches!(request, Request::Read { .. }) => Ok(()),
            Slot::Leaves => Err("it is about to end".to_owned()),
            Slot::Waits => Err("the server that had it before may still serve it".to_owned()),
            Slot::Empty => Err("there is no copy at this place".to_owned()),
        }
    }

    fn check_home(&self) -> Result<(), String> {
        match self.is_home && self.has_lease {
            true => Ok(()),
            false => Err("another memory server knows which processes live, or soon will".to_owned()),
        }
    }
}

impl Member {
    /// A server with memory of this `incarnation`.
    ///
    /// # Errors
    /// Errors of the files that keep what it knew; `InvalidData` if it was in a group with another register, or the
    /// register does not have the view that it must have.
    pub fn new(
        incarnation: u64,
        terms: Terms,
        kept: Option<PathBuf>,
        register: Option<OutsideRegister>,
        refusal: Option<&'static str>,
    ) -> io::Result<Self> {
        let acceptor = kept.as_deref().map(read_acceptor).transpose()?.flatten();
        let later = kept.as_deref().map(read_incarnation).transpose()?.flatten();
        let last_view = kept.as_deref().map(read_view).transpose()?.flatten();
        let of_acceptor = acceptor.as_ref().map_or(incarnation, |acceptor| acceptor.id().incarnation);
        let incarnation = later.unwrap_or(incarnation);
        let (register, register_at, found) = match register {
            Some(OutsideRegister { address, endpoints, found }) => (Some(address), endpoints, found),
            None => (None, Vec::new(), None),
        };
        if let Some(last) = &last_view {
            check_last_view(last, register.as_ref(), found.as_ref(), incarnation)
                .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))?;
        }
        let last_view = last_view.or_else(|| found.filter(|view| names(view, incarnation)));
        // It must not serve by itself what others may serve by now. Clients that ask find its group.
        let is_grouped = AtomicBool::new(acceptor.is_some() || last_view.is_some());
        let bytes = last_view.as_ref().map_or_else(Vec::new, View::encode);
        Ok(Self {
            known: Mutex::new(Known { acceptor, bytes, ..Known::default() }),
            changed: Condvar::new(),
            is_grouped,
            incarnation: AtomicU64::new(incarnation),
            of_acceptor,
            process: crate::random_nonzero(),
            terms,
            started: Instant::now(),
            becomes_home: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            kept,
            last_view,
            register,
            register_at,
            has_told_register: AtomicBool::new(false),
            refusal,
        })
    }

    pub fn now(&self) -> Nanos {
        self.started.elapsed().as_nanos() as Nanos
    }

    pub fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changed, for at most `time`.
    pub fn rest(&self, time: Duration) {
        let known = self.known();
        if !known.is_stopping {
            drop(self.changed.wait_timeout(known, time));
        }
    }

    /// Whether this server has begun to serve volume 0 since this was asked last: then it does not know yet which processes
    /// live.
    pub fn became_home(&self) -> bool {
        self.becomes_home.swap(false, AcqRel)
    }

    /// Refuses to change primaries from now on. It still serves READs, and changes backups: that ends atomics and WRITEs
    /// which were begun. Returns whether it is in a group.
    pub fn leave(&self) -> bool {
        self.is_leaving.store(true, Release);
        self.known().view.is_some()
    }

    /// Ends the threads that work for the group.
    pub fn stop(&self) {
        self.known().is_stopping = true;
        self.changed.notify_all();
    }

    /// What requests may do now.
    pub fn allowed(&self) -> Allowed {
        if !self.is_grouped.load(Acquire) {
            return Allowed { group: None, fillings: Vec::new() };
        }
        let (known, now) = (self.known(), self.now());
        let (Some(view), Some(lease)) = (&known.view, &known.lease) else {
            // It is out of the view.
            let (epoch, slot_bytes) = (known.view.as_ref().map_or(0, View::epoch), 1);
            let (knows_fences, is_home, slots) = (true, false, Vec::new());
            let group = Group { epoch, has_lease: false, knows_fences, is_home, slot_bytes, slots };
            return Allowed { group: Some(group), fillings: Vec::new() };
        };
        let me = lease.me();
        let (is_leaving, mut slots) =
            (self.is_leaving.load(Acquire), vec![Slot::Empty; view.replicas().into()]);
        for copy in view.held_by(me) {
            slots[usize::from(copy.slot)] = match copy.role == Role::Primary {
                true if lease.serves_volume(copy.volume, now) != Serves::Yes => Slot::Waits,
                true if is_leaving => Slot::Leaves,
                _ => Slot::Served,
            };
        }
        let group = Group {
            epoch: view.epoch(),
            has_lease: lease.serves(now),
            knows_fences: !known.lacks_fences,
            is_home: lease.serves_volume(VolumeId(0), now) == Serves::Yes,
            slot_bytes: view.slot_bytes(),
            slots,
        };
        Allowed { group: Some(group), fillings: known.fillings.clone() }
    }

    /// Whether what was allowed still was when it had been done, so that it may be answered.
    pub fn was_allowed(&self, allowed: &Allowed) -> bool {
        let Some(group) = &allowed.group else { return true };
        let known = self.known();
        let lease = known.lease.as_ref();
        !group.has_lease
            || lease.is_some_and(|lease| lease.serves(self.now()) && lease.epoch() == group.epoch)
    }

    /// Checks that a view is in the register that this server was given; says once if it is not.
    ///
    /// # Errors
    /// The reason.
    fn check_register(&self, view: &View) -> Result<(), String> {
        let checked = is_in_register(view, self.register.as_ref());
        if let Err(reason) = &checked
            && !self.has_told_register.swap(true, AcqRel)
        {
            tracing::error!("this memory server cannot be in its group: {reason}");
        }
        checked
    }

    /// Takes a decided view, unless it is in another register.
    pub fn learn(&self, view: View) {
        if self.check_register(&view).is_err() {
            return;
        }
        let now = self.now();
        let mut known = self.known();
        if known.view.as_ref().is_some_and(|old| old.epoch() >= view.epoch()) {
            return;
        }
        let incarnation = self.incarnation();
        let named = (0..)
            .map(MemoryServerId)
            .zip(view.servers())
            .find(|(_, named)| named.incarnation() == incarnation);
        match named {
            // Another memory that this process had before is named.
            None if known.lease.is_none() => return,
            Some((me, named)) if named.is_in() => self.take_part(&mut known, me, &view, now),
            // It has missed writes.
            _ => {
                if let Err(error) = self.count_as_new(&mut known) {
                    tracing::error!("this memory server cannot come back to its group: {error}");
                }
            }
        }
        (known.bytes, known.behind_since) = (view.encode(), None);
        if let Some(path) = &self.kept
            && let Err(error) = replace(&beside(path, "view"), &known.bytes)
        {
            tracing::error!("{error}: after a restart, this memory server may not find its group");
        }
        known.view = Some(view);
        self.is_grouped.store(true, Release);
        drop(known);
        self.changed.notify_all();
    }

    /// Serves by a view that this server is in.
    fn take_part(&self, known: &mut Known, me: MemoryServerId, view: &View, now: Nanos) {
        if known.lease.is_none() && view.epoch() > FIRST_EPOCH {
            known.lacks_fences = true;
        }
        let lease = known.lease.get_or_insert_with(|| {
            let acceptors: Vec<AcceptorId> = view.acceptors().collect();
            ServerLease::new(me, self.incarnation(), self.process, &acceptors, self.terms)
        });
        lease.learn(view, now);
        let serves_first = |view: &View| view.primary(VolumeId(0)).is_some_and(|copy| copy.server == me);
        if serves_first(view) && !known.view.as_ref().is_some_and(serves_first) {
            self.becomes_home.store(true, Release);
        }
        let (old, bytes) = (std::mem::take(&mut known.fillings), view.slot_bytes());
        for HeldCopy { volume, slot, .. } in view.held_by(me).filter(|copy| copy.role == Role::Syncing) {
            let same = old.iter().find(|filling| (filling.volume, filling.slot) == (volume, slot));
            let begin = u64::from(slot) * bytes;
            let new = || Arc::new(Filling::new(volume, slot, begin..begin + bytes));
            known.fillings.push(same.map_or_else(new, Arc::clone));
        }
    }

    /// How this server is in its group; `None` if there is none.
    pub fn condition(&self) -> Option<MemberCondition> {
        let (known, now) = (self.known(), self.now());
        let view = known.view.as_ref()?;
        let mut condition = MemberCondition { epoch: view.epoch(), ..MemberCondition::default() };
        let Some(lease) = &known.lease else { return Some(condition) };
        (condition.is_in, condition.lease_left_ns) = (true, lease.left(now));
        for HeldCopy { volume, role, .. } in view.held_by(lease.me()) {
            match role {
                Role::Primary if lease.serves_volume(volume, now) != Serves::Yes => {}
                Role::Primary => condition.serves.push(volume),
                Role::Backup => condition.backs_up.push(volume),
                Role::Syncing => {}
            }
        }
        condition.fills = known.fillings.iter().map(|filling| filling.progress()).collect();
        Some(condition)
    }

    /// Gives the memory another incarnation, as if it were empty.
    fn count_as_new(&self, known: &mut Known) -> io::Result<()> {
        (known.lease, known.fillings) = (None, Vec::new());
        let incarnation = crate::random_nonzero();
        if let Some(path) = &self.kept {
            replace(&beside(path, "incarnation"), &incarnation.to_le_bytes())?;
        }
        self.incarnation.store(incarnation, Release);
        tracing::warn!("the others went on without this memory server; its memory counts as empty");
        Ok(())
    }

    /// Incarnation of the memory.
    pub fn incarnation(&self) -> u64 {
        self.incarnation.load(Acquire)
    }

    /// Number of this server in its group.
    pub fn me(&self) -> Option<MemoryServerId> {
        self.known().lease.as_ref().map(ServerLease::me)
    }

    /// A copy that is to be filled; `None` if there is none, or the server stops. A server that does not know yet which processes were
    /// given up fills none: whole copies may make it the only one that could tell.
    pub fn next_filling(&self) -> Option<Arc<Filling>> {
        let known = self.known();
        if known.is_stopping || known.lacks_fences { None } else { known.fillings.first().map(Arc::clone) }
    }

    /// The view in which this server has to ask the others which processes were given up for dead.
    pub fn view_without_fences(&self) -> Option<View> {
        let known = self.known();
        known.view.clone().filter(|_| known.lacks_fences && !known.is_stopping)
    }

    /// Takes what all other servers of view `epoch` said.
    pub fn take_fences(&self, epoch: u64, fenced: HashSet<u64>) {
        let mut known = self.known();
        if known.view.as_ref().is_some_and(|view| view.epoch() == epoch) {
            known.fenced.extend(fenced);
            known.lacks_fences = false;
        }
    }

    /// Adds the processes that others gave up for dead to `fenced`.
    pub fn add_fenced(&self, fenced: &mut Vec<u64>) {
        fenced.extend(&self.known().fenced);
    }

    /// Whether a process was given up for dead while this server was not in the view.
    pub fn is_fenced(&self, process: u64) -> bool {
        self.is_grouped.load(Acquire) && self.known().fenced.contains(&process)
    }

    /// Whether a copy is still to be filled.
    pub fn is_filling(&self, filling: &Filling) -> bool {
        let known = self.known();
        !known.is_stopping && known.fillings.iter().any(|other| std::ptr::eq(&raw const **other, filling))
    }

    /// Answers a round of a server, also of this one. With a register outside the servers, it tells which decided view it
    /// knows, and decides nothing.
    pub fn renew(&self, renew: &Renew) -> Renewed {
        let known = self.known();
        let accepted = match (&self.register, &known.acceptor) {
            (Some(_), _) => known.view.as_ref().map_or(0, View::epoch),
            (None, Some(acceptor)) => View::epoch_of(acceptor.value()).unwrap_or(0),
            (None, None) => 0,
        };
        Renewed { acceptor: self.of_acceptor, ..renew.answer(self.incarnation(), accepted) }
    }

    /// Checks that the register outside the servers, if there is one, answered this server within a lease. If not, this one
    /// is silent too, so that others go on without it: it cannot serve.
    fn check_contact(&self) -> Result<(), String> {
        let heard = self.known().register_heard;
        let has_contact = |at: Nanos| self.now() < at.saturating_add(self.terms.lease);
        match &self.register {
            Some(register) if !heard.is_some_and(has_contact) => {
                Err(format!("{register} does not answer it"))
            }
            _ => Ok(()),
        }
    }

    /// Answers a request to the acceptor of this server, which others know as `number`, once the answer is kept.
    fn ask(&self, number: MemoryServerId, ask: &Ask<'_>) -> Result<Vec<u8>, String> {
        let mut known = self.known();
        let id = AcceptorId { server: number, incarnation: self.of_acceptor };
        let mut acceptor = known.acceptor.clone().unwrap_or_else(|| Acceptor::new(id));
        if acceptor.id() != id {
            return Err(format!("it is memory server {} of its group, not {number}", acceptor.id().server));
        }
        let before = acceptor.encode();
        let answer = acceptor.answer(ask).encode();
        if let Some(path) = &self.kept
            && acceptor.encode() != before
        {
            replace(path, &acceptor.encode())
                .map_err(|error| format!("{} cannot be written: {error}", path.display()))?;
        }
        known.acceptor = Some(acceptor);
        Ok(answer)
    }

    /// Answers a message to this server, which others know as `number`. `entered` becomes the epoch of the view that its
    /// connection enters.
    ///
    /// # Errors
    /// `Refused` if the message makes no sense here, `NotConnected` for a view that is not the newest.
    pub fn answer(
        &self,
        number: MemoryServerId,
        of_kind: u16,
        body: &[u8],
        entered: &mut u64,
    ) -> Result<Vec<u8>> {
        let refuse = |reason: String| FabricError::Refused { server: number, op: Op::Group as u16, reason };
        if let Some(reason) = self.refusal {
            return if of_kind == kind::VIEW { Ok(Vec::new()) } else { Err(refuse(reason.to_owned())) };
        }
        let bad = |error: BadField| refuse(error.to_string());
        match of_kind {
            kind::REGISTER => self.ask(number, &Ask::decode(body).map_err(bad)?).map_err(refuse),
            kind::RENEW => {
                self.check_contact().map_err(refuse)?;
                Ok(self.renew(&Renew::decode(body).map_err(bad)?).encode())
            }
            kind::WHICH_REGISTER => {
                Ok(self.register.as_ref().map_or_else(Vec::new, |register| register.to_string().into_bytes()))
            }
            kind::VIEW => Ok(self.known().bytes.clone()),
            kind::ENTER => {
                let view = View::decode(body).map_err(bad)?;
                self.check_register(&view).map_err(refuse)?;
                let epoch = view.epoch();
                self.learn(view);
                let newest = self.known().view.as_ref().map_or(0, View::epoch);
                if newest != epoch {
                    let reason = format!("it has view {newest} of the memory servers, not {epoch}");
                    return Err(FabricError::NotConnected { server: number, reason });
                }
                *entered = epoch;
                Ok(Vec::new())
            }
            other => Err(refuse(format!("there is no message of kind {other}"))),
        }
    }

    /// The newest decided view that this server knew when it ended, if its memory outlives it: where to ask for the current
    /// one.
    pub fn last_view(&self) -> Option<View> {
        self.last_view.clone()
    }
}

/// Whether a server with memory of this `incarnation` is in a view.
fn names(view: &View, incarnation: u64) -> bool {
    view.servers().iter().any(|server| server.is_in() && server.incarnation() == incarnation)
}

/// Checks that a view is in the register that a server was given.
fn is_in_register(view: &View, given: Option<&RegisterAddress>) -> Result<(), String> {
    let given = given.map(ToString::to_string);
    if view.register() == given.as_deref() {
        return Ok(());
    }
    let say = |register: Option<&str>| register.map_or("none outside the servers".to_owned(), str::to_owned);
    Err(format!(
        "the register of its group is {}, and it was started with {}",
        say(view.register()),
        say(given.as_deref())
    ))
}

/// Checks what a server knew when it ended, and what the register has that it was given.
fn check_last_view(
    last: &View,
    given: Option<&RegisterAddress>,
    found: Option<&View>,
    incarnation: u64,
) -> Result<(), String> {
    is_in_register(last, given)
        .map_err(|reason| format!("this memory server cannot be in its group: {reason}"))?;
    let Some(given) = given else { return Ok(()) };
    match found {
        None => {
            Err(format!("the register {given} has no view, but this memory server is in a group with one"))
        }
        Some(found) if found.pool() != last.pool() && !names(found, incarnation) => {
            Err(format!("the register {given} has the view of another pool than this memory server's"))
        }
        Some(found) if found.epoch() < last.epoch() => Err(format!(
            "the register {given} has view {}, although view {} was decided: its data is lost, or it is not the same etcd",
            found.epoch(),
            last.epoch()
        )),
        Some(_) => Ok(()),
    }
}

/// File beside the acceptor's: `incarnation` of the memory, if it is not the first one; newest decided `view`.
fn beside(acceptor: &Path, what: &str) -> PathBuf {
    acceptor.with_extension(what)
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn damaged(path: &Path, error: BadField) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}

fn read_acceptor(path: &Path) -> io::Result<Option<Acceptor>> {
    let decode = |bytes: Vec<u8>| Acceptor::decode(&bytes).map_err(|error| damaged(path, error));
    read(path)?.map(decode).transpose()
}

fn read_incarnation(acceptor: &Path) -> io::Result<Option<u64>> {
    let bytes = read(&beside(acceptor, "incarnation"))?;
    Ok(bytes.and_then(|bytes| bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))))
}

fn read_view(acceptor: &Path) -> io::Result<Option<View>> {
    let path = beside(acceptor, "view");
    let decode = |bytes: Vec<u8>| View::decode(&bytes).map_err(|error| damaged(&path, error));
    read(&path)?.map(decode).transpose()
}

/// Replaces a file by a complete one, which is on the disk when this returns.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = fs::File::create(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => fs::File::open(".")?.sync_all(),
    }
}
