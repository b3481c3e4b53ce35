//! Compute-side work, for fabrics in virtual time.
//!
//! Code above the fabric says what it does ([`Endpoint::charge`](crate::Endpoint::charge)). Real fabrics ignore it, since the
//! work takes its time anyway. A simulation adds the time that its model gives the work.

/// Compute-side work that a simulated fabric charges in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Search of one node: a level of a descent, or the leaf.
    NodeSearch,
    /// Copy of `bytes` of a node or a value.
    Copy { bytes: usize },
    /// `count` entries handed to whoever scans.
    Entries { count: usize },
    /// A look at the mapping table of the cache.
    TableLookup,
    /// A check whether the bytes of a page that was READ are a node.
    PageCheck,
    /// One acquisition of something that only one worker of a compute server holds at a time, for which the others wait.
    Hold(Resource),
    /// Admission of a page to the cache.
    Admit,
    /// One attempt to make a frame free: sampling, cooling, eviction.
    Evict,
}

/// A resource for which the workers of one compute server contend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Resource {
    /// The exclusive latch of a cache frame.
    Frame(u32),
    /// A bucket of the cooling map.
    CoolingBucket(u32),
    /// The one queue of a cache that evicts first in, first out, and the count of its bytes: two cache lines that every
    /// thread changes for each page that enters a full cache, and for each that leaves it.
    FifoQueue,
    /// The one queue in place of the cooling map, whose lock is held while a page is put in, taken out or evicted.
    CoolingQueue,
    /// A part of the local queues in front of remote locks.
    LockQueue(u32),
}
