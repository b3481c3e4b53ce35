//! Processes of a run, as a pool tells them apart.
//!
//! Compute servers that may die are processes of their own, each with its own attachment to the pool. So is each heir. The
//! process that made the pool stays, so that others may attach while the entry of a dead one is in the table.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use pando_pool::{AttachOptions, ProcessIdentity};

use super::setup::{PATIENCE_NS, Setup};

/// All processes of a run.
#[derive(Clone, Default)]
pub struct Processes(Arc<Mutex<Alive>>);

#[derive(Default)]
struct Alive {
    began: u32,
    dead: BTreeSet<u32>,
}

impl Processes {
    /// Begins a process; returns its number.
    pub fn begin(&self) -> u32 {
        let mut alive = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        alive.began += 1;
        alive.began
    }

    /// The process is dead. None of its verbs takes effect any more.
    pub fn end(&self, pid: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).dead.insert(pid);
    }

    /// How a process attaches to the pool of `setup`.
    pub fn attach_options(&self, setup: &Setup, pid: u32) -> AttachOptions {
        let alive = Arc::clone(&self.0);
        let is_alive = move |process: &ProcessIdentity| {
            !alive.lock().unwrap_or_else(PoisonError::into_inner).dead.contains(&process.pid)
        };
        AttachOptions::new(ProcessIdentity { pid, start_time: 1, host: 1 }, Arc::new(is_alive))
            .wait_ns_max(PATIENCE_NS)
            .verbs_take_ns(setup.verbs_take_ns())
            .keeps_bitmaps(true)
    }
}
