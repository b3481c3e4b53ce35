//! A handle to an open index, and what the process knows about it.
//!
//! Either sessions use an index, any number of them, or one piece of work has it at rest (a bulk load, a check,
//! closing). The latter fails while sessions are open; it does not wait, because a session of its own thread would
//! never go. Only [`Cluster::close_within`](crate::Cluster::close_within) waits, with a bound, and lets no new session in
//! meanwhile.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_dex::KeyRange;

use crate::cluster::{IndexInfo, Shared, lock};
use crate::error::{Error, Result};
use crate::integers::IntegerSession;
use crate::options::{IndexLayout, Ownership};
use crate::servers::{Past, Servers};
use crate::session::Session;
use crate::stats::IndexStats;

pub(crate) const CLOSING: &str = "closing the cluster";

/// An open index. Clones are the same index, and may be used by any number of threads; each opens a
/// [`Session`] for its operations.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let index = cluster.create_index("squares", &IndexOptions::integers())?;
/// std::thread::scope(|scope| {
///     for thread in 0..4 {
///         let index = &index;
///         scope.spawn(move || {
///             let session = index.integers().expect("it is open");
///             for n in thread * 100..thread * 100 + 100 {
///                 session.put(n, n * n).expect("there is room");
///             }
///         });
///     }
/// });
/// assert_eq!(index.integers()?.get(399)?, Some(399 * 399));
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone)]
pub struct Index {
    pub(crate) shared: Arc<Shared>,
    pub(crate) data: Arc<IndexData>,
}

/// An index as this process has it open.
pub(crate) struct IndexData {
    pub name: String,
    pub own: Ownership,
    /// The boundaries were chosen without knowing any keys, so a bulk load may choose better ones.
    pub recut_by_load: bool,
    /// `None` once it is closed, or unsettled.
    servers: Mutex<Option<Arc<Servers>>>,
    /// What failed midway and why, after which the compute servers may have another root than the catalog.
    unsettled: Mutex<Option<(&'static str, Box<str>)>>,
    /// Changes whenever `servers` does.
    generation: AtomicU64,
    gate: Mutex<Gate>,
    /// Somebody at the gate has gone.
    gone: Condvar,
    /// Held by who moves keys between compute servers, and who needs them to stay where they are.
    moving: Mutex<()>,
    /// What earlier compute servers of this index counted.
    pub past: Mutex<Past>,
}

/// Who may use the index: any number of sessions and of moves, or one piece of work that needs it at rest.
#[derive(Default)]
struct Gate {
    sessions: usize,
    /// Moves of keys, those that wait for another one too.
    moves: usize,
    exclusive: Option<&'static str>,
    /// Those that wait for all of them to be gone; no session is opened meanwhile.
    waiting: usize,
}

/// Lets no new session in while it lives.
pub(crate) struct Waiting<'i>(&'i IndexData);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.gate).waiting -= 1;
    }
}

/// Keeps sessions out while it lives.
pub(crate) struct Exclusive<'i>(&'i IndexData);

/// The right to say who owns which keys, while it lives.
pub(crate) struct Moving<'i> {
    data: &'i IndexData,
    _only: MutexGuard<'i, ()>,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        lock(&self.data.gate).moves -= 1;
        self.data.gone.notify_all();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        lock(&self.0.gate).exclusive = None;
        self.0.gone.notify_all();
    }
}

impl IndexData {
    pub fn new(name: &str, own: Ownership, recut_by_load: bool, servers: Servers) -> Self {
        Self {
            name: name.to_owned(),
            own,
            recut_by_load,
            servers: Mutex::new(Some(Arc::new(servers))),
            unsettled: Mutex::default(),
            generation: AtomicU64::new(0),
            moving: Mutex::default(),
            gate: Mutex::default(),
            gone: Condvar::new(),
            past: Mutex::default(),
        }
    }

    pub fn servers(&self) -> Result<Arc<Servers>> {
        let servers = lock(&self.servers).clone();
        servers.ok_or_else(|| match &*lock(&self.unsettled) {
            Some((what, reason)) => {
                Error::Unsettled { index: self.name.clone(), what, reason: reason.clone() }
            }
            None => Error::Closed,
        })
    }

    /// Lets go of compute servers whose root may be another one by now, so that nothing of theirs is written over it. The
    /// caller is [`Exclusive`] and has written back what they had.
    pub fn unsettle(&self, what: &'static str, error: &Error) {
        *lock(&self.unsettled) = Some((what, error.to_string().into()));
        self.close();
    }

    pub fn is_unsettled(&self) -> bool {
        lock(&self.unsettled).is_some()
    }

    /// Grows whenever there are other compute servers; to be asked before they are looked at.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Puts other compute servers in place; what those before counted that are not among them any more is kept. The caller is
    /// [`Exclusive`] or [`Moving`].
    pub fn replace(&self, servers: Servers) {
        // So that nobody sees their counts twice, or not at all.
        let mut past = lock(&self.past);
        let servers = Arc::new(servers);
        let before = lock(&self.servers).replace(Arc::clone(&servers));
        if let Some(before) = before {
            past.add(&before, &servers);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// What the compute servers counted, and those that are gone.
    pub fn stats(&self) -> Result<IndexStats> {
        let past = lock(&self.past);
        let servers = self.servers()?;
        let mut compute_servers = servers.stats();
        let former = past.add_to(&mut compute_servers, &servers);
        Ok(IndexStats { name: self.name.clone(), compute_servers, former })
    }

    pub fn close(&self) {
        *lock(&self.servers) = None;
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn busy(&self, what: &'static str) -> Error {
        Error::Busy { index: self.name.clone(), what }
    }

    /// Begins work that needs the index at rest. It fails rather than waits: who waits for a session of its own
    /// thread would wait for ever.
    pub fn exclusive(&self, what: &'static str) -> Result<Exclusive<'_>> {
        let mut gate = lock(&self.gate);
        if let Some(other) = gate.exclusive {
            return Err(self.busy(other));
        }
        if gate.sessions > 0 {
            return Err(Error::SessionsOpen { what, index: self.name.clone(), count: gate.sessions });
        }
        if gate.moves > 0 {
            return Err(self.busy("a move of keys between compute servers"));
        }
        gate.exclusive = Some(what);
        Ok(Exclusive(self))
    }

    pub fn begin_session(&self) -> Result<()> {
        let mut gate = lock(&self.gate);
        if let Some(what) = gate.exclusive {
            return Err(self.busy(what));
        }
        if gate.waiting > 0 {
            return Err(self.busy(CLOSING));
        }
        gate.sessions += 1;
        Ok(())
    }

    /// Lets no new session in, and waits until those that there are have gone, and whoever else uses the index, but not longer
    /// than until `end`.
    pub fn await_rest(&self, end: Instant) -> Waiting<'_> {
        let mut gate = lock(&self.gate);
        gate.waiting += 1;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let is_at_rest = gate.sessions == 0 && gate.moves == 0 && gate.exclusive.is_none();
            if is_at_rest || left == Duration::ZERO {
                return Waiting(self);
            }
            gate = self.gone.wait_timeout(gate, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Begins to move keys between compute servers, or to keep them where they are. Waits for others who do, since they end
    /// by themselves, but not for who needs the index at rest.
    pub fn begin_move(&self) -> Result<Moving<'_>> {
        {
            let mut gate = lock(&self.gate);
            if let Some(what) = gate.exclusive {
                return Err(self.busy(what));
            }
            gate.moves += 1;
        }
        Ok(Moving { data: self, _only: lock(&self.moving) })
    }

    pub fn end_session(&self) {
        lock(&self.gate).sessions -= 1;
        self.gone.notify_all();
    }
}

/// The keys of an index that this process owns, whichever of its compute servers has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedKeys {
    /// Grows whenever a boundary moves, until the index is opened anew.
    pub epoch: u64,
    /// In order; ranges that lie side by side are one.
    pub ranges: Vec<KeyRange>,
}

impl Index {
    pub fn name(&self) -> &str {
        &self.data.name
    }

    /// What keys and values look like.
    pub fn layout(&self) -> IndexLayout {
        // A closed index has the layout that no session of it can use any more.
        self.data.servers().map_or(IndexLayout::Bytes, |servers| servers.descriptor.layout)
    }

    /// What the catalog says of this index.
    ///
    /// # Errors
    /// [`Error::UnknownIndex`] if it was dropped.
    pub fn info(&self) -> Result<IndexInfo> {
        crate::Cluster { shared: Arc::clone(&self.shared) }.index_info(self.name())
    }

    /// Keys at which a new partition begins. Of boundaries between partitions of other processes, [`Index::info`] knows the
    /// newest.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn boundaries(&self) -> Result<Vec<Vec<u8>>> {
        Ok(self.data.servers()?.boundaries())
    }

    /// How many compute servers there are, one per partition, whether this process runs them or another.
    ///
    /// When an index is opened they are numbered in the order of their keys, from 0. They keep their numbers while others
    /// [come](Index::add_compute_server), which get new ones, and [go](Index::remove_compute_server).
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn compute_servers(&self) -> Result<usize> {
        Ok(self.data.servers()?.boundaries().len() + 1)
    }

    /// The keys that a compute server owns.
    ///
    /// # Errors
    /// [`Error::Closed`]; [`Error::InvalidOption`] if there is no such compute server.
    pub fn range_of(&self, compute_server: usize) -> Result<KeyRange> {
        self.data.servers()?.range_of(compute_server)
    }

    /// The keys that this process owns.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn owned_keys(&self) -> Result<OwnedKeys> {
        let servers = self.data.servers()?;
        let table = servers.routes.table();
        let mut ranges: Vec<KeyRange> = Vec::new();
        for (partition, &number) in table.owners().iter().enumerate() {
            if !servers.runs(number) {
                continue;
            }
            let range = table.range(partition);
            match ranges.last_mut() {
                Some(last) if last.high == range.low => last.high = range.high,
                _ => ranges.push(range),
            }
        }
        Ok(OwnedKeys { epoch: table.epoch(), ranges })
    }

    /// A number that grows whenever what [`Index::owned_keys`] says may be another thing.
    #[doc(hidden)]
    pub fn owned_keys_version(&self) -> (u64, u64) {
        let epoch = self.data.servers().map_or(u64::MAX, |servers| servers.routes.epoch());
        (self.data.generation(), epoch)
    }

    /// A session for the calling thread, which sends every key to its compute server.
    ///
    /// # Errors
    /// [`Error::Busy`] during a bulk load and the like; [`Error::Closed`].
    pub fn session(&self) -> Result<Session> {
        Session::open(self, None)
    }

    /// A session for a thread of one compute server; keys of others are refused.
    ///
    /// # Errors
    /// As [`Index::session`]; [`Error::InvalidOption`] if this process runs no such compute server.
    pub fn session_of(&self, compute_server: usize) -> Result<Session> {
        Session::open(self, Some(compute_server))
    }

    /// A session for `u64` keys and values.
    ///
    /// # Errors
    /// As [`Index::session`]; [`Error::WrongLayout`] unless keys and values have 8 bytes.
    pub fn integers(&self) -> Result<IntegerSession> {
        let (found, expected) = (self.layout(), IndexLayout::Fixed { key_size: 8, value_size: 8 });
        crate::servers::check_layout(self.name(), found, Some(expected))?;
        Ok(IntegerSession::new(self.session()?))
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index").field("name", &self.name()).finish_non_exhaustive()
    }
}
