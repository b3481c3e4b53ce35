//! The memory server's side: its region, registered with a device, and a queue pair for each client that asks.
//!
//! The processor takes part in pairing and in nothing else. A queue pair goes with the connection over which it was asked for,
//! and when that is fenced off; nothing that a client sent over it is executed after that.

use std::sync::Arc;

use pando_fabric::{FabricError, Result};
use pando_fabric_local::ServedRegion;
use pando_fabric_net::{OtherWay, random_nonzero};
use zerocopy::{FromBytes, IntoBytes};

use crate::VerbsOptions;
use crate::device::{Device, OpenRegion};
use crate::hello::{Answer, Peer, Place};
use crate::queue::{CompletionQueue, QueuePair};

/// Lets clients of a memory server reach its region by RDMA ([`pando_fabric_net::ServerConfig::other_way`]).
pub struct VerbsOffer {
    device: Arc<Device>,
    region: Arc<OpenRegion>,
    completions: Arc<CompletionQueue>,
}

/// A client's queue pair, and the memory that it reaches.
struct Paired {
    // Dropped in this order.
    _queue_pair: QueuePair,
    _region: Arc<OpenRegion>,
}

impl VerbsOffer {
    /// Registers `region` with the device that `options` name. All of it is kept in memory from now on.
    ///
    /// # Errors
    /// `Open` if there is no such device or the region is in a file, `System` if the device does not take it.
    pub fn new(region: ServedRegion, options: &VerbsOptions) -> Result<Self> {
        let device = Device::open(options)?;
        let region = Arc::new(OpenRegion::new(&device, region)?);
        // Who only answers has no completions.
        let completions = Arc::new(CompletionQueue::new(&device, 1)?);
        Ok(Self { device, region, completions })
    }
}

impl OtherWay for VerbsOffer {
    fn pair(&self, request: &[u8], reply: &mut Vec<u8>) -> Result<Box<dyn Send>, String> {
        let theirs = Peer::read_from_bytes(request)
            .map_err(|_| "what it was told of a queue pair makes no sense".to_owned())?;
        let words = |error: FabricError| error.to_string();
        let psn = random_nonzero() as u32;
        let queue_pair = QueuePair::new(&self.completions, 1, psn).map_err(words)?;
        let peer = queue_pair.peer(self.device.depth_in);
        peer.check(&theirs)?;
        queue_pair.answer(&theirs).map_err(words)?;
        let region = &self.region;
        let (address, bytes, key) = (region.address().into(), region.bytes().into(), region.key().into());
        let place = Place { address, bytes, key, zero: 0.into() };
        reply.extend_from_slice(Answer { peer, place }.as_bytes());
        Ok(Box::new(Paired { _queue_pair: queue_pair, _region: Arc::clone(region) }))
    }
}

impl std::fmt::Debug for VerbsOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsOffer({} bytes by {:?})", self.region.bytes(), self.device)
    }
}
