//! The memory server's side: its region, registered with a device, and a queue pair for each client.
//!
//! The processor takes part only in pairing and in calls. Calls arrive in one shared receive queue; each
//! client is assigned to one of the threads that execute them. A queue pair ends with the connection over
//! which it was requested, and when that is fenced off. After that no call or verb sent over it is executed.

mod caller;
mod lane;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use pando_fabric::{FabricError, Result};
use pando_fabric_local::ServedRegion;
use pando_fabric_net::{Calls, OtherWay, random_nonzero};
use zerocopy::{FromBytes, IntoBytes};

use crate::VerbsOptions;
use crate::completions::CompletionQueue;
use crate::device::{Device, OpenRegion};
use crate::hello::{Answer, Peer, Place};
use crate::queue::{QueuePair, Receives};
use crate::receives::{MessageBuffers, SharedReceives};
use caller::Caller;
use lane::Lane;

/// Maximum number of calls in flight of one client over its queue pair.
const CALLS: u32 = 16;
/// Maximum number of clients whose calls use their queue pairs; calls of others use their connections.
const CALLERS_MAX: u32 = 1024;
/// Maximum number of threads that execute calls.
const LANES_MAX: usize = 16;

/// Opens the region of a memory server to its clients by RDMA
/// ([`pando_fabric_net::ServerConfig::other_way`]).
pub struct VerbsOffer {
    device: Arc<Device>,
    region: Arc<OpenRegion>,
    /// Completion queue of queue pairs that only answer, which produce no completions.
    completions: Arc<CompletionQueue>,
    desk: Option<Desk>,
}

/// Receiver of calls, if the device has shared receive queues.
struct Desk {
    receives: Arc<SharedReceives>,
    buffers: Arc<MessageBuffers>,
    lanes: Vec<Arc<Lane>>,
    threads: Vec<JoinHandle<()>>,
    /// Number of clients so far.
    dealt: AtomicUsize,
}

/// A client's queue pair, and the memory that it accesses.
struct Paired {
    // Dropped in this order.
    _way: Box<dyn Send>,
    _region: Arc<OpenRegion>,
}

/// A client whose calls use its queue pair, until it is dropped.
struct Calling {
    caller: Arc<Caller>,
    lane: Arc<Lane>,
    receives: Arc<SharedReceives>,
}

impl VerbsOffer {
    /// Registers `region` with the device that `options` name; all of it is locked in memory. Calls are
    /// executed by `threads` threads, 1 to 16.
    ///
    /// # Errors
    /// `Open` if there is no such device or the region is a file, `System` if the device refuses it.
    pub fn new(region: ServedRegion, options: &VerbsOptions, threads: usize) -> Result<Self> {
        let device = Device::open(options)?;
        let region = Arc::new(OpenRegion::new(&device, region)?);
        let completions = Arc::new(CompletionQueue::new(&device, 1)?);
        let desk = Desk::new(&device, threads)?;
        Ok(Self { device, region, completions, desk })
    }

    /// Makes a queue pair for a client. Returns it, its address, and the maximum number of calls in flight: 0
    /// if there is no room for another calling client.
    fn way(&self, calls: Calls, theirs: &Peer) -> Result<(Box<dyn Send>, Peer, u32)> {
        let (psn, depth) = (random_nonzero() as u32, self.device.depth_in);
        if let Some(desk) = &self.desk {
            match desk.enter(calls, psn, depth) {
                Ok(Some((calling, peer))) => {
                    calling.caller.answer(theirs)?;
                    return Ok((Box::new(calling), peer, CALLS));
                }
                Ok(None) => {}
                Err(error) => tracing::warn!("calls of a client go over its connection: {error}"),
            }
        }
        let queue_pair = QueuePair::new(&self.completions, 1, &Receives::Own(1), psn)?;
        queue_pair.answer(theirs)?;
        let peer = queue_pair.peer(depth);
        Ok((Box::new(queue_pair), peer, 0))
    }
}

impl Desk {
    fn new(device: &Arc<Device>, threads: usize) -> Result<Option<Self>> {
        // Each call may have a received and a sent message whose completions were not taken yet.
        let callers_max =
            CALLERS_MAX.min(device.receives_max / CALLS).min(device.completions_max / (2 * CALLS));
        if callers_max == 0 {
            tracing::warn!("{} has no shared receive queue: calls go over connections", device.name);
            return Ok(None);
        }
        let receives = Arc::new(SharedReceives::new(device, callers_max, CALLS)?);
        let buffers = Arc::new(MessageBuffers::new(device));
        let lane = || Lane::new(device, 2 * CALLS * callers_max, &receives).map(Arc::new);
        let lanes = (0..threads.clamp(1, LANES_MAX)).map(|_| lane()).collect::<Result<Vec<_>>>()?;
        let mut desk = Self { receives, buffers, lanes, threads: Vec::new(), dealt: AtomicUsize::new(0) };
        for (number, lane) in desk.lanes.iter().enumerate() {
            let lane = Arc::clone(lane);
            let thread = thread::Builder::new().name(format!("pando-call.{number}"));
            let started = thread.spawn(move || lane.run());
            desk.threads.push(started.map_err(|error| FabricError::System {
                path: "pando-call".to_owned(),
                reason: format!("cannot be started: {error}"),
            })?);
        }
        Ok(Some(desk))
    }

    /// Makes a queue pair for a calling client, if there is room for one more.
    fn enter(&self, calls: Calls, psn: u32, depth: u8) -> Result<Option<(Calling, Peer)>> {
        let lane = &self.lanes[self.dealt.fetch_add(1, Relaxed) % self.lanes.len()];
        let receives = Receives::Shared(&self.receives);
        let queue_pair = QueuePair::new(lane.completions(), CALLS, &receives, psn)?;
        if !self.receives.enter(&self.buffers)? {
            return Ok(None);
        }
        let (number, peer) = (queue_pair.number(), queue_pair.peer(depth));
        let caller = Arc::new(Caller::new(calls, &self.buffers, queue_pair, CALLS));
        lane.enter(number, &caller);
        let receives = Arc::clone(&self.receives);
        Ok(Some((Calling { caller, lane: Arc::clone(lane), receives }, peer)))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.lanes.iter().for_each(|lane| lane.stop());
        for thread in self.threads.drain(..) {
            // A panic was already reported.
            let _ = thread.join();
        }
    }
}

impl Drop for Calling {
    /// When this returns, no call of the client is being executed, and none will be.
    fn drop(&mut self) {
        if let Some(queue_pair) = self.caller.close() {
            self.lane.leave(queue_pair);
        }
        self.receives.leave();
    }
}

impl OtherWay for VerbsOffer {
    fn pair(&self, request: &[u8], calls: Calls, reply: &mut Vec<u8>) -> Result<Box<dyn Send>, String> {
        let theirs = Peer::read_from_bytes(request)
            .map_err(|_| "what it was told of a queue pair makes no sense".to_owned())?;
        theirs.check(self.device.port.link_layer)?;
        let (way, peer, calls) = self.way(calls, &theirs).map_err(|error| error.to_string())?;
        let region = &self.region;
        let (address, bytes, key) = (region.address().into(), region.bytes().into(), region.key().into());
        let place = Place { address, bytes, key, calls: calls.into() };
        reply.extend_from_slice(Answer { peer, place }.as_bytes());
        Ok(Box::new(Paired { _way: way, _region: Arc::clone(region) }))
    }
}

impl std::fmt::Debug for VerbsOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "VerbsOffer({} bytes by {:?})", self.region.bytes(), self.device)
    }
}
