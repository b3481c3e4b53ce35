//! What a run asks of an index, whichever system it is.
//!
//! The index stands on a simulated cluster with all its compute servers, and every thread has something of its own. Everything else,
//! from drawing operations to judging what they answered, is the same for all systems.

use pando_dex::ScanRange;
use pando_sim::SimEndpoint;

use super::client::{Client, Gathered};
use super::cluster::ClusterError;
use super::history::{Answer, Key, Op};

/// An index under test.
#[allow(async_fn_in_trait, reason = "everything runs on one thread")]
pub trait Index: Sized {
    /// Why an operation failed, in a sentence.
    type Error: std::error::Error;
    /// What a thread has of its own.
    type Thread;

    /// Whether there are swaps and flushes.
    const SWAPS: bool;
    /// Whether scans may go down.
    const DESCENDS: bool;

    /// A thread begins to use the index.
    fn begin_thread(&self, ep: &SimEndpoint) -> Self::Thread;

    /// It does not use the index any more.
    fn end_thread(&self, _: &Self::Thread) {}

    /// Whether a change that failed with this may have been made all the same, by what the error says.
    fn may_have_taken_effect(error: &Self::Error) -> bool;

    /// Performs an operation that is no scan.
    async fn answer(client: &Client<Self>, op: &Op) -> Result<Answer, Self::Error>;

    /// Whether a move of keys ended in the middle, so that it has to be made again.
    fn has_to_move(&self) -> bool {
        false
    }

    /// Performs a scan; what it found stands also if it fails.
    async fn scan(
        client: &Client<Self>,
        range: &ScanRange<'_>,
        found: &Gathered<'_>,
    ) -> Result<(), Self::Error>;

    /// Whether an operation on this key is one of the thread's own compute server, where each has threads and keys of its own.
    fn is_at_home(_: &Client<Self>, _: Key) -> bool {
        true
    }

    /// Whether both keys may be looked up by one operation.
    fn go_together(client: &Client<Self>, one: Key, other: Key) -> bool;

    /// How many of the threads, from the first on, have a view of the index of their own.
    fn views(&self) -> usize {
        1
    }

    /// Everything that an audit says is wrong, leaks included. Nothing uses the index meanwhile or afterwards. What operations that
    /// failed leave behind, by what is written about the system, is nothing wrong if any `failed`.
    fn audit(&self, ep: &SimEndpoint, failed: bool) -> Result<Vec<String>, ClusterError>;
}
