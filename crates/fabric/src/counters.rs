//! Counters of verbs by kind and bytes. The field compares systems by READs, WRITEs, atomics and bytes per
//! operation.
//!
//! Only the owning worker adds to its counters, so counting needs no atomic read-modify-write. A snapshot
//! taken on another thread may be a few verbs old. Refused verbs are not counted; each verb of a chain is.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one worker, on cache lines of their own. Only the worker adds, by a load and a store. Any
/// thread may take a [`VerbCounters::snapshot`].
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct VerbCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    atomics: AtomicU64,
    two_sided: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    bytes_two_sided: AtomicU64,
}

#[inline]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
}

impl VerbCounters {
    #[inline]
    pub fn count_read(&self, bytes: usize) {
        bump(&self.reads, 1);
        bump(&self.bytes_read, bytes as u64);
    }

    #[inline]
    pub fn count_write(&self, bytes: usize) {
        bump(&self.writes, 1);
        bump(&self.bytes_written, bytes as u64);
    }

    /// Counts an atomic. It moves 8 bytes in each direction; by the field's convention only the number of
    /// atomics is reported.
    #[inline]
    pub fn count_atomic(&self) {
        bump(&self.atomics, 1);
    }

    #[inline]
    pub fn count_two_sided(&self, bytes: usize) {
        bump(&self.two_sided, 1);
        bump(&self.bytes_two_sided, bytes as u64);
    }

    /// Counts the verbs of an executed chain ([`Chain::counts`](crate::Chain::counts)).
    #[inline]
    pub fn count_chain(&self, verbs: &VerbCounts) {
        bump(&self.reads, verbs.reads);
        bump(&self.bytes_read, verbs.bytes_read);
        bump(&self.writes, verbs.writes);
        bump(&self.bytes_written, verbs.bytes_written);
        bump(&self.atomics, verbs.atomics);
    }

    /// The current values.
    pub fn snapshot(&self) -> VerbCounts {
        VerbCounts {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            atomics: self.atomics.load(Relaxed),
            two_sided: self.two_sided.load(Relaxed),
            bytes_read: self.bytes_read.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            bytes_two_sided: self.bytes_two_sided.load(Relaxed),
        }
    }
}

/// Snapshot of one worker's counters, or a sum or difference of snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerbCounts {
    pub reads: u64,
    pub writes: u64,
    pub atomics: u64,
    pub two_sided: u64,
    /// Payload of READs.
    pub bytes_read: u64,
    /// Payload of WRITEs.
    pub bytes_written: u64,
    /// Payload of requests and replies.
    pub bytes_two_sided: u64,
}

impl VerbCounts {
    /// Payload in both directions.
    pub fn bytes_total(&self) -> u64 {
        self.bytes_read + self.bytes_written + self.bytes_two_sided
    }

    fn zip(self, other: Self, op: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            reads: op(self.reads, other.reads),
            writes: op(self.writes, other.writes),
            atomics: op(self.atomics, other.atomics),
            two_sided: op(self.two_sided, other.two_sided),
            bytes_read: op(self.bytes_read, other.bytes_read),
            bytes_written: op(self.bytes_written, other.bytes_written),
            bytes_two_sided: op(self.bytes_two_sided, other.bytes_two_sided),
        }
    }
}

impl Add for VerbCounts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_add)
    }
}

impl Sub for VerbCounts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self.zip(other, u64::wrapping_sub)
    }
}

impl std::iter::Sum for VerbCounts {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

const _: () = assert!(size_of::<VerbCounters>() == 128);
