//! One suite of checks that every fabric passes (feature `conformance`).
//!
//! A fabric's tests call [`run_all`] with an instance whose memory may be overwritten, a function that drives
//! a future of its endpoints, and [`Options`] that describe the instance. Each check is also a public
//! function, so that a failure can be reproduced alone. A failed check panics with the values that it found.
//!
//! The checks cover the contract of [`crate::Endpoint`]: values, order, errors, counters. No check depends on
//! time. The racing checks assert only properties that hold in every schedule.

mod racing;
mod refusals;
mod verbs;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

pub use racing::{
    changes_come_before_later_reads_of_a_chain, concurrent_atomics_lose_nothing,
    later_writes_imply_earlier_ones, racing_reads_tear_no_word,
};
pub use refusals::{
    a_chain_with_a_bad_verb_does_nothing, addresses_beyond_the_region, misaligned_addresses,
    servers_that_are_down, unknown_servers,
};
pub use verbs::{
    atomics, buffers_come_back, calls, chains_keep_order, clock_and_random_numbers, counters_are_exact,
    endpoints_see_each_other, masked_swaps, pages_round_trip, ranges_are_made_to_last, ranges_are_reserved,
    regions_are_described, windows_limit_what_moves, words_round_trip, yields_set_the_slot_bit,
};

use crate::{
    Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId, Request, RequestHandler, Result, ServerMemory,
};

/// Drives a future of an endpoint to completion.
pub type BlockOn<'a, E> = &'a (dyn Fn(&E, Pin<&mut dyn Future<Output = ()>>) + Sync);

/// Bytes that every memory server of the instance must have from offset 0 on; the suite overwrites them.
pub const SCRATCH: u64 = 1 << 20;

/// Properties of the instance under test.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads of the racing checks, each with an endpoint of its own; 0 skips them.
    pub threads: usize,
    /// Rounds of each racing check.
    pub rounds: u64,
    /// Whether the memory servers answer two-sided calls with [`Echo::handler`]. If not, they must refuse
    /// calls.
    pub echo: bool,
    /// A memory server that is listed but does not answer: every verb to it must fail in bounded time.
    pub down: Option<MemoryServerId>,
}

impl Default for Options {
    fn default() -> Self {
        Self { threads: 4, rounds: 20_000, echo: false, down: None }
    }
}

/// An instance under test.
pub struct Suite<'a, F: Fabric> {
    pub fabric: &'a F,
    pub block_on: BlockOn<'a, F::Endpoint>,
    pub options: Options,
    /// Set when a thread of a racing check panics, so that the other threads stop waiting for it.
    failed: AtomicBool,
}

/// Runs every check.
///
/// # Panics
/// If the fabric breaks its contract.
pub fn run_all<F: Fabric>(fabric: &F, block_on: BlockOn<'_, F::Endpoint>, options: Options) {
    let suite = &Suite::new(fabric, block_on, options);
    regions_are_described(suite);
    pages_round_trip(suite);
    words_round_trip(suite);
    windows_limit_what_moves(suite);
    buffers_come_back(suite);
    atomics(suite);
    masked_swaps(suite);
    chains_keep_order(suite);
    counters_are_exact(suite);
    endpoints_see_each_other(suite);
    ranges_are_reserved(suite);
    ranges_are_made_to_last(suite);
    calls(suite);
    clock_and_random_numbers(suite);
    yields_set_the_slot_bit(suite);
    misaligned_addresses(suite);
    addresses_beyond_the_region(suite);
    unknown_servers(suite);
    a_chain_with_a_bad_verb_does_nothing(suite);
    servers_that_are_down(suite);
    concurrent_atomics_lose_nothing(suite);
    racing_reads_tear_no_word(suite);
    later_writes_imply_earlier_ones(suite);
    changes_come_before_later_reads_of_a_chain(suite);
}

impl<'a, F: Fabric> Suite<'a, F> {
    pub fn new(fabric: &'a F, block_on: BlockOn<'a, F::Endpoint>, options: Options) -> Self {
        Self { fabric, block_on, options, failed: AtomicBool::new(false) }
    }

    /// Runs `check` with a new endpoint on this thread.
    fn with_endpoint(&self, seed: u64, check: impl AsyncFnOnce(&F::Endpoint)) {
        let endpoint = ok(self.fabric.endpoint(seed));
        (self.block_on)(&endpoint, std::pin::pin!(check(&endpoint)));
    }

    /// Memory servers that answer.
    fn servers(&self) -> Vec<MemoryServerId> {
        let servers = self.fabric.regions().iter().map(|region| region.server);
        servers.filter(|&server| Some(server) != self.options.down).collect()
    }

    fn region_len(&self, server: MemoryServerId) -> u64 {
        let region = self.fabric.regions().iter().find(|region| region.server == server);
        region.expect("the server is among the regions").len
    }

    /// Runs `work` on [`Options::threads`] threads, with the thread's number. Panics if one of them panics.
    fn on_threads(&self, work: impl Fn(usize) + Sync) {
        std::thread::scope(|scope| {
            for thread in 0..self.options.threads {
                let work = &work;
                scope.spawn(move || {
                    let _alarm = Alarm(&self.failed);
                    work(thread);
                });
            }
        });
    }

    /// Whether a thread that waits for another one should continue to wait.
    fn all_well(&self) -> bool {
        !self.failed.load(SeqCst)
    }
}

/// The value of a verb that must succeed.
///
/// # Panics
/// If the verb failed.
#[track_caller]
fn ok<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(err) => panic!("a verb failed: {err}"),
    }
}

/// Sets the flag if its thread panics.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, SeqCst);
        }
    }
}

fn at(server: MemoryServerId, offset: u64) -> GlobalAddr {
    GlobalAddr::new(server, offset)
}

/// WRITEs `words` to `place`.
async fn put<E: Endpoint>(endpoint: &E, place: GlobalAddr, words: &[u64]) {
    let buf = endpoint.buffer(words.len() * crate::WORD);
    for (index, &word) in words.iter().enumerate() {
        buf.set(index, word);
    }
    endpoint.recycle(ok(endpoint.write(place, buf).await));
}

/// READs `count` words from `place`.
async fn get<E: Endpoint>(endpoint: &E, place: GlobalAddr, count: usize) -> Vec<u64> {
    let buf = ok(endpoint.read(place, endpoint.buffer(count * crate::WORD)).await);
    let words = (0..count).map(|index| buf.get(index)).collect();
    endpoint.recycle(buf);
    words
}

/// A two-sided call that returns its body reversed. An empty body is refused.
#[derive(Clone, Debug)]
pub struct Echo(pub Vec<u8>);

impl Echo {
    /// Handler that the memory servers must use if [`Options::echo`] is set.
    pub fn handler() -> Arc<dyn RequestHandler> {
        Arc::new(EchoHandler)
    }
}

impl Request for Echo {
    type Reply = (MemoryServerId, Vec<u8>);
    const OP: u16 = 0xEC40;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }

    fn decode_reply(&self, server: MemoryServerId, reply: &[u8]) -> Result<Self::Reply> {
        let refused = |reason: &str| FabricError::Refused { server, op: Self::OP, reason: reason.to_owned() };
        let (number, body) = reply.split_first_chunk().ok_or_else(|| refused("the reply is too short"))?;
        Ok((MemoryServerId(u16::from_le_bytes(*number)), body.to_vec()))
    }
}

struct EchoHandler;

impl RequestHandler for EchoHandler {
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let server = memory.server();
        let refused = |reason: &str| Err(FabricError::Refused { server, op, reason: reason.to_owned() });
        if op != Echo::OP {
            return refused("it knows no such request");
        }
        if body.is_empty() {
            return refused("there is nothing to say back");
        }
        reply.extend_from_slice(&server.0.to_le_bytes());
        reply.extend(body.iter().rev());
        Ok(())
    }
}
