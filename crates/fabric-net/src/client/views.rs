//! What a process knows of the view of its memory servers, if their memory has copies.
//!
//! Any server tells the newest decided view that it knows. A thread asks one of them from time to time, and all of them
//! at once when a verb had no answer.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pando_fabric::{FabricError, MemoryServerId, Nanos, Result};
use pando_member::{View, VolumeCopy, VolumeId};
use pando_replica::{Placement, Replica, Views, Volume};

use crate::group::{Line, kind};
use crate::secret::Secret;

/// Pause between two questions while nothing fails, and while something does.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_SUSPECTING: Duration = Duration::from_millis(20);
/// Longest time for an answer.
const ANSWER: Duration = Duration::from_millis(300);
/// Number of views that are kept for endpoints that have not entered the newest one yet.
const VIEWS_KEPT: usize = 16;

/// A view with what endpoints need of it.
#[derive(Clone)]
struct Known {
    view: Arc<View>,
    /// The view, encoded.
    bytes: Arc<[u8]>,
    placement: Arc<Placement>,
}

impl Known {
    fn new(view: View) -> Self {
        let (placement, bytes) = (Arc::new(placement_of(&view)), view.encode().into());
        Self { view: Arc::new(view), bytes, placement }
    }
}

/// The views of a group of memory servers, as one process knows them.
pub(super) struct Group {
    state: Mutex<State>,
    changed: Condvar,
    /// Epoch of the newest view.
    epoch: AtomicU64,
    secret: Secret,
    patience: Nanos,
}

struct State {
    /// The newest view is last.
    known: VecDeque<Known>,
    /// Whether a verb had no answer in the newest view.
    suspects: bool,
    is_stopping: bool,
}

impl Group {
    pub fn new(view: View, secret: Secret, patience: Nanos) -> Self {
        let epoch = AtomicU64::new(view.epoch());
        let known = VecDeque::from([Known::new(view)]);
        let state = Mutex::new(State { known, suspects: false, is_stopping: false });
        Self { state, changed: Condvar::new(), epoch, secret, patience }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn newest(&self) -> Known {
        self.state().known.back().expect("there is always one").clone()
    }

    /// The newest view that is known.
    pub fn view(&self) -> Arc<View> {
        self.newest().view
    }

    /// Epoch of the newest view that is known.
    #[inline]
    pub fn newest_epoch(&self) -> u64 {
        self.epoch.load(Acquire)
    }

    /// View `epoch`, encoded; the newest one if it is not kept any more.
    pub fn bytes(&self, epoch: u64) -> Arc<[u8]> {
        let state = self.state();
        let known = state.known.iter().find(|known| known.view.epoch() == epoch);
        Arc::clone(&known.or(state.known.back()).expect("there is always one").bytes)
    }

    /// Takes a decided view.
    pub fn learn(&self, view: View) {
        let mut state = self.state();
        if state.known.back().is_some_and(|newest| newest.view.epoch() >= view.epoch()) {
            return;
        }
        let epoch = view.epoch();
        tracing::info!("the memory servers have view {epoch}");
        state.known.push_back(Known::new(view));
        if state.known.len() > VIEWS_KEPT {
            state.known.pop_front();
        }
        state.suspects = false;
        self.epoch.store(epoch, Release);
    }

    /// Asks servers of the group for newer views until it is told to stop.
    fn watch(&self) {
        let mut turn = 0;
        loop {
            let (view, suspects) = {
                let mut state = self.state();
                if !state.suspects && !state.is_stopping {
                    state = self.changed.wait_timeout(state, PAUSE).unwrap_or_else(PoisonError::into_inner).0;
                }
                if state.is_stopping {
                    return;
                }
                (Arc::clone(&state.known.back().expect("there is always one").view), state.suspects)
            };
            let servers: Vec<usize> = match (suspects, view.servers().len()) {
                (true, count) => (0..count).collect(),
                (false, count) => vec![turn % count],
            };
            turn += 1;
            thread::scope(|scope| {
                for number in servers {
                    let address = view.servers()[number].address();
                    scope.spawn(move || {
                        if let Some(newer) = ask(number, address, &self.secret) {
                            self.learn(newer);
                        }
                    });
                }
            });
            if suspects {
                thread::sleep(PAUSE_SUSPECTING);
                // Whoever still has no answer says so again.
                let mut state = self.state();
                state.suspects = false;
            }
        }
    }
}

impl Views for Group {
    fn epoch(&self, _: Nanos) -> u64 {
        self.newest_epoch()
    }

    fn placement(&self) -> Arc<Placement> {
        self.newest().placement
    }

    fn suspect(&self, epoch: u64, _: MemoryServerId, _: Nanos) {
        if self.newest_epoch() == epoch {
            self.look();
        }
    }

    fn look(&self) {
        self.state().suspects = true;
        self.changed.notify_all();
    }

    fn patience(&self) -> Nanos {
        self.patience
    }
}

/// The newest view that the server at `address` knows.
fn ask(number: usize, address: &str, secret: &Secret) -> Option<View> {
    let mut line = Line::new(number as u16, address, secret);
    View::decode(&line.ask(kind::VIEW, &[], ANSWER).ok()?).ok()
}

/// The thread that learns of views. It ends when this is dropped.
pub(super) struct Watcher {
    group: Arc<Group>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub fn start(group: Arc<Group>) -> Result<Self> {
        let name = "pando-views".to_owned();
        let watched = Arc::clone(&group);
        let thread = thread::Builder::new().name(name.clone()).spawn(move || watched.watch());
        let thread = thread.map_err(|error| FabricError::System {
            path: name,
            reason: format!("cannot be started: {error}"),
        })?;
        Ok(Self { group, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.group.state().is_stopping = true;
        self.group.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

/// The copies of a view, as endpoints use them.
fn placement_of(view: &View) -> Placement {
    let slot_bytes = view.slot_bytes();
    let replica = |copy: &VolumeCopy| Replica {
        server: copy.server,
        shift: copy.shift(slot_bytes),
        is_syncing: copy.syncing,
    };
    let volume = |id: VolumeId| match view.primary(id) {
        Some(primary) => Volume {
            len: slot_bytes,
            primary: replica(&primary),
            backups: view.backups(id).iter().map(replica).collect(),
        },
        // It is retired, and has no bytes.
        None => {
            let primary = Replica { server: MemoryServerId(id.0), shift: 0, is_syncing: false };
            Volume { len: 0, primary, backups: Vec::new() }
        }
    };
    let volumes = (0..view.volumes_in_use() as u16).map(|number| volume(VolumeId(number))).collect();
    Placement { epoch: view.epoch(), volumes }
}

#[cfg(test)]
mod tests {
    use pando_member::Server;

    use super::*;

    #[test]
    fn a_retired_volume_has_no_bytes_and_the_others_are_where_they_were() {
        let servers = (0..3).map(|number| Server::new(format!("host-{number}:1"), 1)).collect();
        let view = View::new(7, 2, servers).expect("enough servers").with_slots_of(4096);
        let (before, after) =
            (placement_of(&view), placement_of(&view.retiring(MemoryServerId(2)).expect("two are left")));
        assert_eq!(after.volumes[..2], before.volumes[..2]);
        assert_eq!((after.volumes[2].len, after.volumes.len()), (0, 3));
    }
}
