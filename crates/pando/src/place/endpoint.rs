//! The endpoint of a cluster, of whichever fabric it uses.
//!
//! Verbs of the fabrics within one host complete at once, so they are called directly and cost nothing more.
//! A verb over a network takes microseconds: its future is boxed, which keeps the futures of operations
//! small.

use pando_fabric::{
    Chain, Endpoint, EndpointState, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo, Result,
    TimeLimit, VerbResult, outlined,
};
use pando_fabric_local::LocalEndpoint;
use pando_fabric_net::TcpEndpoint;
#[cfg(feature = "verbs")]
use pando_fabric_verbs::VerbsEndpoint;
use pando_replica::Replicated;

/// One worker thread's access to the memory servers of a cluster.
#[allow(clippy::large_enum_variant, reason = "the endpoint that must be fast is the one that is not boxed")]
pub(crate) enum AnyEndpoint {
    Local(LocalEndpoint),
    Tcp(Box<Replicated<TcpEndpoint>>),
    #[cfg(feature = "verbs")]
    Verbs(Box<VerbsEndpoint>),
}

/// Calls a method that is not asynchronous.
macro_rules! on_either {
    ($self:ident, $ep:ident => $call:expr) => {
        match $self {
            AnyEndpoint::Local($ep) => $call,
            AnyEndpoint::Tcp($ep) => $call,
            #[cfg(feature = "verbs")]
            AnyEndpoint::Verbs($ep) => $call,
        }
    };
}

/// Calls an asynchronous method; boxes its future unless the fabric is local.
macro_rules! await_either {
    ($self:ident, $ep:ident => $call:expr) => {
        match $self {
            AnyEndpoint::Local($ep) => $call.await,
            AnyEndpoint::Tcp($ep) => outlined(Box::pin($call)).await,
            #[cfg(feature = "verbs")]
            AnyEndpoint::Verbs($ep) => outlined(Box::pin($call)).await,
        }
    };
}

impl Endpoint for AnyEndpoint {
    #[inline]
    fn state(&self) -> &EndpointState {
        on_either!(self, ep => ep.state())
    }

    #[inline]
    fn buffer(&self, len: usize) -> PageBuf {
        on_either!(self, ep => ep.buffer(len))
    }

    #[inline]
    fn recycle(&self, buf: PageBuf) {
        on_either!(self, ep => ep.recycle(buf));
    }

    #[inline]
    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        await_either!(self, ep => ep.read(at, into))
    }

    #[inline]
    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        await_either!(self, ep => ep.write(at, from))
    }

    #[inline]
    async fn write_unread(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        await_either!(self, ep => ep.write_unread(at, from))
    }

    #[inline]
    fn write_now(&self, at: GlobalAddr, bytes: &[u8]) -> bool {
        on_either!(self, ep => ep.write_now(at, bytes))
    }

    #[inline]
    fn expect_appends(&self, at: GlobalAddr, len: u64) {
        on_either!(self, ep => ep.expect_appends(at, len));
    }

    fn set_in_use(&self, server: MemoryServerId, is_in_use: bool) {
        on_either!(self, ep => ep.set_in_use(server, is_in_use));
    }

    #[inline]
    async fn write_unlocking(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        await_either!(self, ep => ep.write_unlocking(at, from))
    }

    #[inline]
    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        await_either!(self, ep => ep.read_word(at))
    }

    #[inline]
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        await_either!(self, ep => ep.write_word(at, value))
    }

    #[inline]
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        await_either!(self, ep => ep.compare_swap(at, expected, new))
    }

    #[inline]
    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        await_either!(self, ep => ep.masked_compare_swap(at, expected, compare_mask, new, swap_mask))
    }

    #[inline]
    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        await_either!(self, ep => ep.fetch_add(at, add))
    }

    #[inline]
    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        await_either!(self, ep => ep.submit(chain))
    }

    #[inline]
    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        await_either!(self, ep => ep.call_bytes(server, op, body))
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        await_either!(self, ep => ep.reserve(at, len))
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        await_either!(self, ep => ep.persist(at, len))
    }

    #[inline]
    fn regions(&self) -> &[RegionInfo] {
        on_either!(self, ep => ep.regions())
    }

    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        on_either!(self, ep => ep.time_limit())
    }

    #[inline]
    fn now(&self) -> Nanos {
        on_either!(self, ep => ep.now())
    }

    #[inline]
    fn poll_ready(&self) -> u64 {
        on_either!(self, ep => ep.poll_ready())
    }

    fn idle(&self) -> bool {
        on_either!(self, ep => ep.idle())
    }
}
