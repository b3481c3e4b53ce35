//! Two-sided calls: requests that a handler executes on the region, whatever carried them.
//!
//! A panic of a handler becomes a refusal, since other clients need the thread. Calls are counted here or
//! with their batch, so a server's counters do not depend on the transport of its clients.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use pando_fabric::{FabricError, MemoryServerId, RequestHandler, Result};
use pando_fabric_local::ServedRegion;

use super::counters::{Batch, ServerCounters};
use crate::wire::{Op, ReplyEncoder};

/// Executor of the calls of all clients.
pub(super) struct Callee {
    pub region: ServedRegion,
    pub handler: Option<Arc<dyn RequestHandler>>,
    pub body_max: u32,
    pub counters: ServerCounters,
}

impl Callee {
    /// Executes a call of a client that knows this memory server as `number`, and appends the handler's reply
    /// to `out`.
    pub fn call(&self, number: MemoryServerId, kind: u16, body: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let refused =
            |reason: &str| FabricError::Refused { server: number, op: kind, reason: reason.to_owned() };
        let Some(handler) = &self.handler else { return Err(refused("it has no handler for requests")) };
        let start = out.len();
        let called = catch_unwind(AssertUnwindSafe(|| self.region.call(number, &**handler, kind, body, out)));
        match called {
            Ok(done) => done?,
            Err(_) => return Err(refused("its handler panicked")),
        }
        if out.len() - start > self.body_max as usize {
            return Err(refused("the reply is longer than a reply may be"));
        }
        Ok(())
    }
}

/// Executes calls of one client that do not come over its connection ([`super::OtherWay`]).
#[derive(Clone)]
pub struct Calls {
    number: MemoryServerId,
    callee: Arc<Callee>,
}

impl Calls {
    pub(super) fn new(number: MemoryServerId, callee: Arc<Callee>) -> Self {
        Self { number, callee }
    }

    /// Maximum bytes of a call or its reply.
    pub fn body_max(&self) -> usize {
        self.callee.body_max as usize
    }

    /// Executes a call and appends its reply in the format of a connection ([`crate::wire::decode_reply`]).
    pub fn execute(&self, kind: u16, body: &[u8], out: &mut Vec<u8>) {
        self.callee.counters.add(Batch { calls: 1, ..Batch::default() });
        let reply = ReplyEncoder::begin(out, Op::Call);
        match self.callee.call(self.number, kind, body, out) {
            Ok(()) => reply.finish(out),
            Err(error) => reply.fail(out, &error),
        }
    }
}

impl std::fmt::Debug for Calls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Calls(of {:?}, as {})", self.callee.region, self.number)
    }
}
