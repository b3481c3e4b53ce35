//! Nodes found locked by other processes, which may be dead.
//!
//! A suspect is noted when a READ finds its lock held, and checked once it has been locked for a while
//! ([`dead_holders`](crate::recovery::dead_holders)).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{GlobalAddr, Nanos};
use pando_pool::AttachSlot;

/// A locked node.
#[derive(Clone, Copy)]
pub(crate) struct Suspect {
    pub holder: AttachSlot,
    /// Time at which it was noted; `None` if the holder is dead.
    pub since: Option<Nanos>,
}

/// Nodes found locked by other processes.
#[derive(Default)]
pub(crate) struct Suspects {
    nodes: Mutex<HashMap<GlobalAddr, Suspect>>,
    /// Whether there are any.
    pub any: AtomicBool,
}

impl Suspects {
    fn nodes(&self) -> MutexGuard<'_, HashMap<GlobalAddr, Suspect>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a node that was found locked, unless the holder is this process.
    pub fn note(&self, addr: GlobalAddr, holder: AttachSlot, own: Option<AttachSlot>, now: Nanos) {
        if Some(holder) == own {
            return;
        }
        let mut nodes = self.nodes();
        let suspect = nodes.entry(addr).or_insert(Suspect { holder, since: Some(now) });
        if suspect.holder != holder {
            *suspect = Suspect { holder, since: Some(now) };
        }
        self.any.store(true, Relaxed);
    }

    /// Notes a node whose holder is dead.
    pub fn condemn(&self, addr: GlobalAddr, holder: AttachSlot) {
        self.nodes().insert(addr, Suspect { holder, since: None });
        self.any.store(true, Relaxed);
    }

    /// Removes and returns a suspect that is due for a check.
    pub fn take_due(&self, now: Nanos, wait: Nanos) -> Option<(GlobalAddr, Suspect)> {
        let mut nodes = self.nodes();
        let is_due = |suspect: &Suspect| suspect.since.is_none_or(|since| now >= since.saturating_add(wait));
        // The smallest address, so that runs of a simulation do not depend on the order of the map.
        let due = nodes.iter().filter(|(_, suspect)| is_due(suspect)).map(|(&addr, _)| addr).min();
        let taken = due.and_then(|addr| nodes.remove_entry(&addr));
        self.any.store(!nodes.is_empty(), Relaxed);
        taken
    }
}
