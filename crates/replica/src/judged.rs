//! Views of a cluster in which it is known whether a server is gone, as in a simulation.
//!
//! There is no register and no lease: all endpoints share one state, and a server that is gone answers nobody. What a
//! lease and a register do is simulated elsewhere (`crates/member`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{MemoryServerId, Nanos};

use crate::placement::Placement;
use crate::views::Views;

/// Says whether a server is gone for good at a time.
type Judge = Box<dyn Fn(MemoryServerId, Nanos) -> bool + Send + Sync>;

/// Views without the servers that are gone. A judge knows which are; a new view begins some time after such a server
/// was suspected first.
pub struct Judged {
    state: Mutex<State>,
    is_gone: Judge,
    takes_ns: Nanos,
    patience_ns: Nanos,
}

struct State {
    placement: Arc<Placement>,
    /// The next placement, and when it begins.
    next: Option<(Nanos, Arc<Placement>)>,
}

impl State {
    fn at(&mut self, now: Nanos) -> &Arc<Placement> {
        if let Some((_, next)) = self.next.take_if(|(begins, _)| *begins <= now) {
            self.placement = next;
        }
        &self.placement
    }
}

impl Judged {
    /// Begins with `placement`. A view without a server begins `takes_ns` after its first suspicion; verbs wait for at
    /// most `patience_ns`.
    pub fn new(
        placement: Placement,
        takes_ns: Nanos,
        patience_ns: Nanos,
        is_gone: impl Fn(MemoryServerId, Nanos) -> bool + Send + Sync + 'static,
    ) -> Self {
        let state = Mutex::new(State { placement: Arc::new(placement), next: None });
        Self { state, is_gone: Box::new(is_gone), takes_ns, patience_ns }
    }

    /// Changes the placement now.
    pub fn change(&self, change: impl FnOnce(&Placement) -> Placement) {
        let mut state = self.state();
        state.placement = Arc::new(change(&state.placement));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Views for Judged {
    fn epoch(&self, now: Nanos) -> u64 {
        self.state().at(now).epoch
    }

    fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.state().placement)
    }

    fn suspect(&self, epoch: u64, server: MemoryServerId, now: Nanos) {
        let mut state = self.state();
        let current = Arc::clone(state.at(now));
        let is_new = state.next.is_none() && current.epoch == epoch;
        if !is_new || !(self.is_gone)(server, now) {
            return;
        }
        if let Some(next) = current.without(server) {
            state.next = Some((now + self.takes_ns, Arc::new(next)));
        }
    }

    fn patience(&self) -> Nanos {
        self.patience_ns
    }
}
