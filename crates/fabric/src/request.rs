//! Two-sided calls: requests that the memory server's processor executes.
//!
//! Offloading (DEX §6) uses them. The bytes of requests and replies are opaque to the fabric, which knows
//! only their operation number and length. Memory servers have little processing power, so operations use
//! one-sided verbs where possible.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::{FabricError, GlobalAddr, MemoryServerId, Result, WORD, Work};

/// When work is offloaded to the memory server that has what it needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadPolicy {
    #[default]
    Never,
    /// Whenever it is possible.
    Always,
    /// If it is expected to take less time than READs.
    CostAware,
}

impl OffloadPolicy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::CostAware => "cost-aware",
        }
    }
}

/// A request and its reply as bytes.
pub trait Request {
    type Reply;
    /// Number that the handler dispatches on; unique among the requests of a fabric.
    const OP: u16;

    /// Appends the body of the request to `out`.
    fn encode(&self, out: &mut Vec<u8>);

    /// Decodes the reply of `server`.
    ///
    /// # Errors
    /// [`crate::FabricError::Refused`] if the bytes are not a reply to this request.
    fn decode_reply(&self, server: MemoryServerId, reply: &[u8]) -> Result<Self::Reply>;
}

/// A handler's access to the region of its memory server.
pub struct ServerMemory<'m> {
    server: MemoryServerId,
    words: &'m [AtomicU64],
    charge: &'m dyn Fn(Work),
}

impl<'m> ServerMemory<'m> {
    /// Access to the region `words` of `server`. `charge` is called with the work of the handler.
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

    /// [`Endpoint::charge`](crate::Endpoint::charge) for the memory server's core.
    pub fn charge(&self, work: Work) {
        (self.charge)(work);
    }
}

/// The memory server's side of a call: executes requests on its own region.
pub trait RequestHandler: Send + Sync {
    /// Executes request `op` and appends the reply to `reply`.
    ///
    /// # Errors
    /// [`crate::FabricError::Refused`] for a request that the handler does not know or cannot execute.
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()>;
}

/// Handlers of several kinds of requests, each with its operation number.
#[derive(Clone)]
pub struct Handlers(pub Vec<(u16, Arc<dyn RequestHandler>)>);

impl RequestHandler for Handlers {
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        match self.0.iter().find(|(number, _)| *number == op) {
            Some((_, handler)) => handler.handle(memory, op, body, reply),
            None => {
                let reason = "it knows no such request".to_owned();
                Err(FabricError::Refused { server: memory.server(), op, reason })
            }
        }
    }
}
