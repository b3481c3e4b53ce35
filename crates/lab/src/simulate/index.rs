//! Interface of a run to an index of any system.
//!
//! The index lies on a simulated cluster with all its compute servers, and each thread has its own state.
//! Everything else, from the drawing of operations to the checks of their answers, is the same for all
//! systems.

use pando_dex::ScanRange;

use super::client::{Client, Gathered};
use super::cluster::ClusterError;
use super::history::{Answer, Key, Op};
use crate::copies::SimEndpoint;

/// An index under test.
#[allow(async_fn_in_trait, reason = "everything runs on one thread")]
pub trait Index: Sized {
    /// Reason of a failed operation, in a sentence.
    type Error: std::error::Error;
    /// State of one thread.
    type Thread;

    /// Whether the index has swaps and flushes.
    const SWAPS: bool;
    /// Whether scans may be descending.
    const DESCENDS: bool;

    /// Begins the use of the index by a thread.
    fn begin_thread(&self, ep: &SimEndpoint) -> Self::Thread;

    /// Ends the use of the index by a thread.
    fn end_thread(&self, _: &Self::Thread) {}

    /// Whether a change that failed with `error` may have taken effect, according to the error.
    fn may_have_taken_effect(error: &Self::Error) -> bool;

    /// Performs an operation other than a scan.
    async fn answer(client: &Client<Self>, op: &Op) -> Result<Answer, Self::Error>;

    /// Whether a move of keys was interrupted, so that it must be repeated.
    fn has_to_move(&self) -> bool {
        false
    }

    /// Called before each operation: a process of the index may die now, and this slot becomes its heir.
    async fn live(_: &Client<Self>) {}

    /// Called once faults have ended: every process finishes what failed operations left. Operations elsewhere would
    /// wait for that.
    async fn settle(_: &Client<Self>) {}

    /// Called once all operations have ended: the process of the index may die, and recover. Returns whether it did.
    async fn fall(_: &Client<Self>) -> Result<bool, ClusterError> {
        Ok(false)
    }

    /// Performs a scan. Its entries count even if it fails.
    async fn scan(
        client: &Client<Self>,
        range: &ScanRange<'_>,
        found: &Gathered<'_>,
    ) -> Result<(), Self::Error>;

    /// Whether an operation on `key` uses the thread's own compute server. Always true without such an
    /// assignment.
    fn is_at_home(_: &Client<Self>, _: Key) -> bool {
        true
    }

    /// Whether one operation may look up both keys.
    fn go_together(client: &Client<Self>, one: Key, other: Key) -> bool;

    /// Number of threads, from the first on, that have views of their own.
    fn views(&self) -> usize {
        1
    }

    /// Returns all violations that an audit finds, leaks included. The index is at rest, and is not used
    /// afterwards. If any operation `failed`, blocks and marks that the system documents as left behind by
    /// failures are no violations.
    fn audit(&self, ep: &SimEndpoint, failed: bool) -> Result<Vec<String>, ClusterError>;
}
