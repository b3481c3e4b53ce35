//! What a process knows of the current view.
//!
//! It changes beside the verbs: a verb asks for its epoch before it is sent, when it has no answer, and when it is
//! done.

use std::sync::Arc;

use pando_fabric::{MemoryServerId, Nanos};

use crate::placement::Placement;

/// The views of a pool as a process learns of them; its endpoints share it.
pub trait Views: Send + Sync {
    /// Epoch of the newest view that is known at `now`. Every verb asks, so it must be cheap.
    fn epoch(&self, now: Nanos) -> u64;

    /// The newest placement that is known.
    fn placement(&self) -> Arc<Placement>;

    /// A verb in view `epoch` got no answer from `server` of the fabric below.
    fn suspect(&self, epoch: u64, server: MemoryServerId, now: Nanos);

    /// A verb goes to a volume that the newest known placement lacks: there may be a newer one.
    fn look(&self) {}

    /// Longest time for which a verb waits for another view, or for the server to answer again.
    fn patience(&self) -> Nanos;
}
