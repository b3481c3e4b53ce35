//! The state of an index that this process has open, and the admission of its users.
//!
//! An index is either used by any number of sessions, or at rest for one exclusive piece of work (a bulk
//! load, a check, closing). Exclusive work fails while sessions are open; it does not wait, because a session
//! of its own thread would never end. Only [`Cluster::close_within`](crate::Cluster::close_within) waits, for
//! a bounded time, and admits no new session meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::MemoryServerId;
use pando_log::Log;

use super::servers::{Past, Servers};
use crate::error::{Error, Result};
use crate::options::Ownership;
use crate::shared::lock;
use crate::stats::{IndexStats, LogStats};

pub(crate) const CLOSING: &str = "closing the cluster";

/// State of an index that this process has open.
pub(crate) struct IndexData {
    pub name: String,
    pub own: Ownership,
    /// The boundaries were chosen without knowing any keys, so a bulk load may choose better ones.
    pub recut_by_load: bool,
    /// `None` once the index is closed or unsettled.
    servers: Mutex<Option<Arc<Servers>>>,
    /// The work that failed midway, and the reason. The compute servers may have another root than the
    /// catalog.
    unsettled: Mutex<Option<(&'static str, Box<str>)>>,
    /// Changes whenever `servers` does.
    generation: AtomicU64,
    gate: Mutex<Gate>,
    /// Signalled when a session, a move or exclusive work ends.
    gone: Condvar,
    /// Held while keys move between compute servers, and by work that needs them to stay where they are.
    moving: Mutex<()>,
    /// Counts of earlier compute servers of this index.
    pub past: Mutex<Past>,
    /// Draining memory servers on which nothing was found, and when.
    left: Mutex<HashMap<MemoryServerId, Instant>>,
}

/// Users of the index: any number of sessions and of moves, or one exclusive piece of work.
#[derive(Default)]
struct Gate {
    sessions: usize,
    /// Moves of keys, including those that wait for another one.
    moves: usize,
    exclusive: Option<&'static str>,
    /// Callers that wait for the index to be at rest. No session is opened meanwhile.
    waiting: usize,
}

/// While it lives, no session is opened.
pub(crate) struct Waiting<'i>(&'i IndexData);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.0.gate).waiting -= 1;
    }
}

/// Exclusive use of the index, without sessions and moves, while it lives.
pub(crate) struct Exclusive<'i>(&'i IndexData);

/// The right to move keys between compute servers, while it lives.
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
            left: Mutex::default(),
        }
    }

    /// Whether nothing was found on a draining memory server less than `time` ago.
    pub fn has_left(&self, server: MemoryServerId, time: Duration) -> bool {
        lock(&self.left).get(&server).is_some_and(|at| at.elapsed() < time)
    }

    /// Notes that nothing was found on a draining memory server.
    pub fn note_left(&self, server: MemoryServerId) {
        lock(&self.left).insert(server, Instant::now());
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

    /// Drops compute servers whose root may be outdated, so that they cannot write over the current one. The
    /// caller is [`Exclusive`] and has written back their changes.
    pub fn unsettle(&self, what: &'static str, error: &Error) {
        *lock(&self.unsettled) = Some((what, error.to_string().into()));
        self.close();
    }

    pub fn is_unsettled(&self) -> bool {
        lock(&self.unsettled).is_some()
    }

    /// Grows whenever the compute servers are replaced. Read it before the compute servers.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Replaces the compute servers and keeps the counts of those that are gone. The caller is [`Exclusive`]
    /// or [`Moving`].
    pub fn replace(&self, servers: Servers) {
        // Held across the replacement, so that no reader counts a compute server twice or misses one.
        let mut past = lock(&self.past);
        let servers = Arc::new(servers);
        let before = lock(&self.servers).replace(Arc::clone(&servers));
        if let Some(before) = before {
            past.add(&before, &servers);
        }
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Counts of the compute servers, including former ones.
    pub fn stats(&self) -> Result<IndexStats> {
        let past = lock(&self.past);
        let servers = self.servers()?;
        let mut compute_servers = servers.stats();
        let former = past.add_to(&mut compute_servers, &servers);
        Ok(IndexStats { name: self.name.clone(), compute_servers, former, log: self.log_stats()? })
    }

    /// State of the logs of the compute servers; `None` if they have none.
    pub fn log_stats(&self) -> Result<Option<LogStats>> {
        let servers = self.servers()?;
        let logs = servers.logs();
        let sum = |of: &dyn Fn(&Log) -> u64| logs.iter().map(|log| of(log)).sum();
        Ok((!logs.is_empty()).then(|| LogStats {
            records: sum(&Log::clock),
            bytes: sum(&|log| log.space().bytes()),
            used_bytes: sum(&Log::used),
        }))
    }

    pub fn close(&self) {
        *lock(&self.servers) = None;
        self.generation.fetch_add(1, Ordering::Release);
    }

    fn busy(&self, what: &'static str) -> Error {
        Error::Busy { index: self.name.clone(), what }
    }

    /// Begins exclusive work. Fails instead of waiting: a wait for a session of the calling thread would
    /// never end.
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

    /// Admits no new session, and waits until all sessions, moves and exclusive work have ended, but not past
    /// `end`.
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

    /// Begins a move of keys between compute servers, or work that needs the keys to stay where they are.
    /// Waits for other moves, which end by themselves, but not for exclusive work.
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
