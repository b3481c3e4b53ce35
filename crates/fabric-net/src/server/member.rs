//! A memory server as a member of a group: its acceptor, its lease, and what clients may do on its memory.
//!
//! Without a view the server is alone, and everything is allowed. With one, a verb is executed only for a connection
//! that has entered the newest view that the server knows, while the server has a lease, and on copies that it may serve
//! ([`ServerLease`]). The lease is checked again before answers are sent: the process may have been stopped in between.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::{FabricError, MemoryServerId, Nanos, Result};
use pando_member::{
    Acceptor, AcceptorId, Renew, Renewed, Request as Ask, ServerLease, Serves, Terms, View, VolumeId,
};

use crate::group::kind;
use crate::wire::{Op, Request};

/// What a group must know of its member.
pub(super) struct Member {
    known: Mutex<Known>,
    changed: Condvar,
    /// Whether there is a view, so that requests must be checked.
    is_grouped: AtomicBool,
    pub incarnation: u64,
    /// Number of this start of the process.
    pub process: u64,
    pub terms: Terms,
    started: Instant,
    /// Whether it has become the server that knows which processes live.
    becomes_home: AtomicBool,
    /// File that keeps the acceptor, for memory that outlives the process.
    kept: Option<PathBuf>,
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
    /// Since when an acceptor has accepted a newer view than is known here.
    pub behind_since: Option<Nanos>,
    pub is_stopping: bool,
}

/// What the requests of one batch may do.
pub(super) struct Allowed {
    group: Option<Group>,
}

struct Group {
    epoch: u64,
    has_lease: bool,
    /// Whether it serves volume 0, and with it knows which processes live.
    is_home: bool,
    slot_bytes: u64,
    /// By slot of this server: why it is not served.
    slots: Vec<Option<String>>,
}

impl Allowed {
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
        if !self.has_lease {
            return Err("too few other memory servers answer it, so it may have been replaced".to_owned());
        }
        match self.slots.get((offset / self.slot_bytes) as usize) {
            Some(None) => Ok(()),
            Some(Some(reason)) => Err(reason.clone()),
            None => Err("there is no copy at this place".to_owned()),
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
    /// Errors of the file that keeps the acceptor.
    pub fn new(
        incarnation: u64,
        terms: Terms,
        kept: Option<PathBuf>,
        refusal: Option<&'static str>,
    ) -> io::Result<Self> {
        let acceptor = kept.as_deref().map(read_acceptor).transpose()?.flatten();
        Ok(Self {
            known: Mutex::new(Known { acceptor, ..Known::default() }),
            changed: Condvar::new(),
            is_grouped: AtomicBool::new(false),
            incarnation,
            process: crate::random_nonzero(),
            terms,
            started: Instant::now(),
            becomes_home: AtomicBool::new(false),
            kept,
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
    pub fn wait<'k>(&self, known: MutexGuard<'k, Known>, time: Duration) -> MutexGuard<'k, Known> {
        self.changed.wait_timeout(known, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether this server has begun to serve volume 0 since this was asked last: then it does not know yet which processes
    /// live.
    pub fn became_home(&self) -> bool {
        self.becomes_home.swap(false, AcqRel)
    }

    /// Ends the threads that work for the group.
    pub fn stop(&self) {
        self.known().is_stopping = true;
        self.changed.notify_all();
    }

    /// What requests may do now.
    pub fn allowed(&self) -> Allowed {
        if !self.is_grouped.load(Acquire) {
            return Allowed { group: None };
        }
        let (known, now) = (self.known(), self.now());
        let (Some(view), Some(lease)) = (&known.view, &known.lease) else { return Allowed { group: None } };
        let me = lease.me();
        let mut slots = vec![Some("there is no copy at this place".to_owned()); view.replicas().into()];
        for volume in (0..view.volumes() as u16).map(VolumeId) {
            let primary = view.primary(volume);
            let copies = primary.iter().chain(view.backups(volume));
            for copy in copies.filter(|copy| copy.server == me) {
                let waits = primary == Some(*copy) && lease.serves_volume(volume, now) != Serves::Yes;
                slots[usize::from(copy.slot)] =
                    waits.then(|| "the server that had it before may still serve it".to_owned());
            }
        }
        let group = Group {
            epoch: view.epoch(),
            has_lease: lease.serves(now),
            is_home: lease.serves_volume(VolumeId(0), now) == Serves::Yes,
            slot_bytes: view.slot_bytes(),
            slots,
        };
        Allowed { group: Some(group) }
    }

    /// Whether what was allowed still was when it had been done, so that it may be answered.
    pub fn was_allowed(&self, allowed: &Allowed) -> bool {
        let Some(group) = &allowed.group else { return true };
        let known = self.known();
        let lease = known.lease.as_ref();
        !group.has_lease
            || lease.is_some_and(|lease| lease.serves(self.now()) && lease.epoch() == group.epoch)
    }

    /// Takes a decided view.
    pub fn learn(&self, view: View) {
        let now = self.now();
        let mut known = self.known();
        if known.view.as_ref().is_some_and(|old| old.epoch() >= view.epoch()) {
            return;
        }
        if known.lease.is_none() {
            // The view names this server by its incarnation.
            let mut servers = (0..).zip(view.servers());
            let Some((me, _)) = servers.find(|(_, server)| server.incarnation() == self.incarnation) else {
                return;
            };
            let acceptors: Vec<AcceptorId> = view.acceptors().collect();
            let me = MemoryServerId(me);
            known.lease = Some(ServerLease::new(me, self.incarnation, self.process, &acceptors, self.terms));
        }
        let lease = known.lease.as_mut().expect("it was just made");
        lease.learn(&view, now);
        let me = lease.me();
        let serves_first = |view: &View| view.primary(VolumeId(0)).is_some_and(|copy| copy.server == me);
        if serves_first(&view) && !known.view.as_ref().is_some_and(serves_first) {
            self.becomes_home.store(true, Release);
        }
        (known.bytes, known.behind_since) = (view.encode(), None);
        known.view = Some(view);
        self.is_grouped.store(true, Release);
        drop(known);
        self.changed.notify_all();
    }

    /// Answers a round of another server.
    fn renew(&self, renew: &Renew) -> Renewed {
        let known = self.known();
        let accepted =
            known.acceptor.as_ref().map_or(0, |acceptor| View::epoch_of(acceptor.value()).unwrap_or(0));
        renew.answer(self.incarnation, accepted)
    }

    /// Answers a round of this server as its own acceptor.
    pub fn renew_own(&self, renew: &Renew) -> Renewed {
        self.renew(renew)
    }

    /// Answers a request to the acceptor of this server, which others know as `number`, once the answer is kept.
    fn ask(&self, number: MemoryServerId, ask: &Ask<'_>) -> Result<Vec<u8>, String> {
        let mut known = self.known();
        let id = AcceptorId { server: number, incarnation: self.incarnation };
        let mut acceptor = known.acceptor.clone().unwrap_or_else(|| Acceptor::new(id));
        if acceptor.id() != id {
            return Err(format!("it is memory server {} of its group, not {number}", acceptor.id().server));
        }
        let before = acceptor.encode();
        let answer = acceptor.answer(ask).encode();
        if let Some(path) = &self.kept
            && acceptor.encode() != before
        {
            write_acceptor(path, &acceptor)
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
        let bad = |error: pando_fabric::codec::BadField| refuse(error.to_string());
        match of_kind {
            kind::REGISTER => self.ask(number, &Ask::decode(body).map_err(bad)?).map_err(refuse),
            kind::RENEW => Ok(self.renew(&Renew::decode(body).map_err(bad)?).encode()),
            kind::VIEW => Ok(self.known().bytes.clone()),
            kind::ENTER => {
                let view = View::decode(body).map_err(bad)?;
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

    /// Views that this server's acceptor has accepted, decided or not: where to ask for the decided one.
    pub fn accepted(&self) -> Option<View> {
        let known = self.known();
        View::decode(known.acceptor.as_ref()?.value()).ok()
    }
}

/// The acceptor in the file at `path`; `None` if there is no file.
fn read_acceptor(path: &Path) -> io::Result<Option<Acceptor>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()));
    Acceptor::decode(&bytes).map(Some).map_err(damaged)
}

/// Replaces the file by a complete one, which is on the disk when this returns.
fn write_acceptor(path: &Path, acceptor: &Acceptor) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let mut file = fs::File::create(&new)?;
    file.write_all(&acceptor.encode())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    match path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        Some(parent) => fs::File::open(parent)?.sync_all(),
        None => fs::File::open(".")?.sync_all(),
    }
}
