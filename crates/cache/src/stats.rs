//! Counters that a worker keeps about its cache.
//!
//! Only the worker adds, so an addition is a load and a store; any thread may take a snapshot at any time.
//! The counters are those of DEX §8: misses by kind of node, admissions, evictions, and events of the cooling
//! map.

use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of one worker, on cache lines of their own; only the worker adds.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct CacheCounters { $(pub(crate) $name: AtomicU64),* }

        /// A snapshot of [`CacheCounters`], or a sum or difference of snapshots.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CacheCounts { $($(#[$doc])* pub $name: u64),* }

        impl CacheCounters {
            pub fn snapshot(&self) -> CacheCounts {
                CacheCounts { $($name: self.$name.load(Relaxed)),* }
            }
        }

        impl Add for CacheCounts {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_add(other.$name)),* }
            }
        }

        impl Sub for CacheCounts {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self { $($name: self.$name.wrapping_sub(other.$name)),* }
            }
        }
    };
}

counters! {
    /// Leaves that operations accessed.
    leaf_accesses,
    /// Leaves read from remote memory.
    leaf_misses,
    /// Inner nodes that operations traversed, including the root.
    inner_accesses,
    /// Inner nodes read from remote memory.
    inner_misses,
    /// Pages that got a frame after a miss.
    admissions,
    /// Nodes that lost their frame.
    evictions,
    /// Nodes that started cooling.
    coolings,
    /// Cooling nodes that became hot again.
    reheats,
    /// Dirty nodes that were written back.
    write_backs,
    /// Descents that restarted because of a concurrent change.
    restarts,
    /// Operations offloaded to memory servers.
    offloads,
    /// Offloads that a memory server refused.
    offloads_refused,
}

impl CacheCounters {
    #[inline]
    pub(crate) fn bump(counter: &AtomicU64, by: u64) {
        counter.store(counter.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Counts a descent through `inner` inner nodes to a leaf.
    #[inline]
    pub fn count_descent(&self, inner: u64) {
        Self::bump(&self.leaf_accesses, 1);
        Self::bump(&self.inner_accesses, inner);
    }

    /// Counts an inner node traversed after the descent was counted.
    #[inline]
    pub fn count_inner(&self) {
        Self::bump(&self.inner_accesses, 1);
    }

    pub fn count_miss(&self, leaf: bool) {
        Self::bump(if leaf { &self.leaf_misses } else { &self.inner_misses }, 1);
    }

    /// Counts an offload, finished or refused by a memory server.
    pub fn count_offload(&self, refused: bool) {
        Self::bump(&self.offloads, 1);
        Self::bump(&self.offloads_refused, u64::from(refused));
    }

    pub fn count_restart(&self) {
        Self::bump(&self.restarts, 1);
    }
}

impl std::iter::Sum for CacheCounts {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}
