//! Compute-side work, for fabrics in virtual time.
//!
//! Code above the fabric reports its work ([`Endpoint::charge`](crate::Endpoint::charge)). Real fabrics
//! ignore the report, because the work takes real time. A simulation adds the time that its model assigns to
//! the work.

/// Compute-side work, which a simulated fabric charges in virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Search of one node: a level of a descent, or the leaf.
    NodeSearch,
    /// Copy of `bytes` of a node or a value.
    Copy { bytes: usize },
    /// `count` entries returned by a scan.
    Entries { count: usize },
    /// A lookup in the mapping table of the cache.
    TableLookup,
    /// Verification that a page that was READ is a node.
    PageCheck,
    /// One acquisition of a resource that one worker of a compute server holds at a time while the others
    /// wait.
    Hold(Resource),
    /// A read of what the holders of a resource change, by a worker that does not hold it.
    Observe(Resource),
    /// Admission of a page to the cache.
    Admit,
    /// One attempt to free a frame: sampling, cooling, eviction.
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
    /// A word that the workers of a compute server change by atomic instructions, such as the byte count of a
    /// cache. Nobody spins for it, but its cache line goes from one to the next.
    Word(u32),
    /// The single queue used in place of the cooling map. Its lock is held while a page is inserted, removed
    /// or evicted.
    CoolingQueue,
    /// A partition of the local queues in front of remote locks.
    LockQueue(u32),
}
