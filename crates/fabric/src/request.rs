//! Two-sided calls: a request that the memory server's processor executes.
//!
//! The seam for offloading (DEX §6). Requests and replies are bytes of the caller's choosing; the fabric knows
//! their number and length only. Memory servers have little processor, so whatever can be done by one-sided verbs
//! is.

use std::sync::atomic::AtomicU64;

use crate::{FabricError, GlobalAddr, MemoryServerId, Result, WORD, Work};

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

/// What a handler has to itself of the memory server that it runs on: the bytes of its region, as the processor there
/// sees them.
pub struct ServerMemory<'m> {
    server: MemoryServerId,
    words: &'m [AtomicU64],
    charge: &'m dyn Fn(Work),
}

impl<'m> ServerMemory<'m> {
    /// Of `server`, whose region is `words`; `charge` is told of what the handler computes.
    pub fn new(server: MemoryServerId, words: &'m [AtomicU64], charge: &'m dyn Fn(Work)) -> Self {
        Self { server, words, charge }
    }

    pub fn server(&self) -> MemoryServerId {
        self.server
    }

    /// The words of `len` bytes at `at`.
    ///
    /// # Errors
    /// [`FabricError::UnknownServer`] for an address on another server, [`FabricError::Misaligned`],
    /// [`FabricError::OutOfRegion`].
    pub fn words(&self, at: GlobalAddr, len: usize) -> Result<&'m [AtomicU64]> {
        if at.server() != self.server {
            return Err(FabricError::UnknownServer(at.server()));
        }
        if !at.offset().is_multiple_of(WORD as u64) || !len.is_multiple_of(WORD) {
            return Err(FabricError::Misaligned { at, len });
        }
        let first = at.offset() as usize / WORD;
        let region_len = (self.words.len() * WORD) as u64;
        self.words.get(first..first + len / WORD).ok_or(FabricError::OutOfRegion { at, len, region_len })
    }

    /// As [`Endpoint::charge`](crate::Endpoint::charge), of the memory server's core.
    pub fn charge(&self, work: Work) {
        (self.charge)(work);
    }
}

/// The memory server's half: executes requests against its own region.
pub trait RequestHandler: Send + Sync {
    /// Executes request `op` and appends the reply to `reply`.
    ///
    /// # Errors
    /// [`crate::FabricError::Refused`] for a request that the handler does not know or cannot execute.
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()>;
}
