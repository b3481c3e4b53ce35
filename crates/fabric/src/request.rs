//! Two-sided calls: a request that the memory server's processor executes.
//!
//! The seam for offloading (DEX §6). Requests and replies are bytes of the caller's choosing; the fabric knows
//! their number and length only. Memory servers have little processor, so whatever can be done by one-sided verbs
//! is.

use crate::{MemoryServerId, Result};

/// A request and its reply as bytes.
pub trait Request {
    type Reply;
    /// What the handler dispatches on; unique among the requests of one fabric.
    const OP: u16;

    fn encode(&self, out: &mut Vec<u8>);

    /// # Errors
    /// [`crate::FabricError::Refused`] if the handler's bytes are not a reply to this request.
    fn decode_reply(&self, server: MemoryServerId, reply: &[u8]) -> Result<Self::Reply>;
}

/// The memory server's half: executes requests against its own region.
pub trait RequestHandler: Send + Sync {
    /// Executes request `op` and appends the reply to `reply`.
    ///
    /// # Errors
    /// [`crate::FabricError::Refused`] for a request that the handler does not know or cannot execute.
    fn handle(&self, server: MemoryServerId, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()>;
}
