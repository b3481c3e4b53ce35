//! Copies of the memory servers of a simulated cluster, one of which may be lost.
//!
//! All code of the laboratory uses endpoints of this type. Without copies they pass verbs on as they are. A server that is
//! lost is out of the view some time after it was missed first.

use std::sync::Arc;

use pando_fabric::{Fabric, MemoryServerId, Nanos};
use pando_replica::{Judged, Placement, Replicated, Views};
use pando_sim::SimFabric;

/// A thread of a simulated cluster, or direct access to its memory.
pub type SimEndpoint = Replicated<pando_sim::SimEndpoint>;

/// Time from the first suspicion of a lost server to the view without it, in virtual time.
const VIEW_TAKES_NS: Nanos = 200_000;
/// Longest time that a verb waits for another view, in virtual time.
const VIEW_PATIENCE_NS: Nanos = 10_000_000;

/// A memory server that ends at a time, and does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    pub server: MemoryServerId,
    pub at: Nanos,
}

impl Loss {
    /// Time at which all verbs go to other servers.
    pub fn is_over(&self) -> Nanos {
        self.at + VIEW_PATIENCE_NS
    }
}

/// Where the copies are.
#[derive(Clone)]
pub struct Copies {
    views: Option<Arc<dyn Views>>,
}

impl Copies {
    /// `copies` copies of each memory server of `fabric`. If there is a `loss`, that server is out of the view soon after.
    pub fn new(fabric: &SimFabric, copies: usize, loss: Option<Loss>) -> Self {
        let views = (copies > 1).then(|| {
            let placement = Placement::chained(1, fabric.regions(), copies);
            let is_gone = move |server, now| loss.is_some_and(|loss| loss.server == server && now >= loss.at);
            Arc::new(Judged::new(placement, VIEW_TAKES_NS, VIEW_PATIENCE_NS, is_gone)) as Arc<dyn Views>
        });
        Self { views }
    }

    /// One copy, on the memory servers as they are.
    pub fn none() -> Self {
        Self { views: None }
    }

    /// Gives an endpoint access to the copies.
    pub fn endpoint(&self, below: pando_sim::SimEndpoint) -> SimEndpoint {
        match &self.views {
            Some(views) => Replicated::new(below, Arc::clone(views)),
            None => Replicated::single(below),
        }
    }
}
