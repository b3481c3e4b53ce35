//! Sizes of experiments: those of the papers, or smaller with the same ratios.
//!
//! The DEX paper loads 200 million records and gives each compute server 256 MiB of cache, about 8% of the
//! data (DEX §8.1). Sizes in bytes shrink with the number of records; threads, servers and the network do
//! not.

use std::fmt;

use pando::OffloadPolicy;
use pando_workload::{Distribution, KeySpace, Mix};

use super::Cluster;
use crate::bench::{BenchSpec, FabricKind, Length};

/// Records that the DEX paper loads; more do not fit the memory of one machine.
pub(super) const PAPER_KEYS: u64 = 200_000_000;
/// Cache of a compute server in the DEX paper.
pub(super) const PAPER_CACHE: u64 = 256 << 20;
/// Threads of a compute server, and servers of each kind, in the DEX paper.
pub(super) const SERVER_THREADS: usize = 36;
pub(super) const SERVERS: usize = 4;
/// All compute threads of the DEX paper.
pub(super) const ALL_THREADS: usize = SERVER_THREADS * SERVERS;
/// Popularity of keys in the skewed workloads of the papers.
pub(super) const SKEWED: Distribution = Distribution::Zipf { theta: 0.99 };
/// Smallest cache, in bytes: a smaller one cannot hold the upper levels and the pages under way.
const CACHE_MIN: u64 = 128 << 10;

/// Size of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// One or a few hundredths of the DEX paper's records ([`Setting::hundredths`]): minutes on two cores.
    Quick,
    /// The paper's records, but at most 200 million.
    Full,
    /// For tests that an experiment runs; its figures are meaningless.
    Tiny,
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scale::Quick => "quick",
            Scale::Full => "full",
            Scale::Tiny => "tiny",
        })
    }
}

/// Parameters that cells are made from.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub scale: Scale,
    pub seed: u64,
    /// Hundredths of the DEX paper's records at the quick scale; more for experiments with few cells or tiny
    /// caches.
    pub hundredths: u64,
    /// Number of records that the paper loads.
    pub records: u64,
    /// Operations in flight on each thread. `None`: as in the paper.
    pub slots: Option<usize>,
    pub cluster: Cluster,
}

impl Setting {
    pub const fn new(scale: Scale, seed: u64) -> Setting {
        Setting { scale, seed, hundredths: 1, records: PAPER_KEYS, slots: None, cluster: Cluster::DEX }
    }

    pub fn keys(&self) -> u64 {
        match self.scale {
            Scale::Quick => 2_000_000 * self.hundredths,
            Scale::Full => self.records.min(PAPER_KEYS),
            Scale::Tiny => 20_000,
        }
    }

    /// Numbers of warm-up and of measured operations, for a cell that needs a `share` of the usual work.
    pub fn operations(&self, share: f64) -> (u64, u64) {
        let (warmup, measured) = match self.scale {
            Scale::Quick => (350_000 * self.hundredths.min(4), 150_000 * self.hundredths.min(4)),
            Scale::Full => (30_000_000, 30_000_000),
            Scale::Tiny => (3_000, 6_000),
        };
        ((warmup as f64 * share) as u64, (measured as f64 * share) as u64)
    }

    /// Bytes at this scale that correspond to `papers` bytes in the paper.
    pub fn bytes(&self, papers: u64) -> u64 {
        let scaled = u128::from(papers) * u128::from(self.keys()) / u128::from(self.records);
        (scaled as u64).max(CACHE_MIN)
    }

    /// The DEX paper's cell with 144 threads and 256 MiB caches. Answers are not verified; failures are
    /// counted.
    pub fn spec(&self, workload: &str) -> BenchSpec {
        self.spec_of_share(workload, 1.0)
    }

    /// [`Setting::spec`] with a `share` of its operations.
    pub fn spec_of_share(&self, workload: &str, share: f64) -> BenchSpec {
        let (warmup, ops) = self.operations(share);
        BenchSpec {
            fabric: FabricKind::Sim,
            model: self.cluster.model(),
            memory_servers: SERVERS,
            slots: self.slots.unwrap_or(1),
            offload: OffloadPolicy::CostAware,
            subtree_level: self.subtree_level(),
            keys: self.keys(),
            key_space: match workload.parse() {
                Ok(Mix { insert: 0, .. }) => KeySpace::Packed,
                _ => KeySpace::Dense,
            },
            // So few keys cannot stand for so many.
            ranks: (self.scale != Scale::Tiny).then_some(self.records),
            inner_fill: 0.5,
            // A scan of the paper is a lookup after the other (DEX §7).
            read_ahead: 1,
            cache_bytes: self.bytes(PAPER_CACHE),
            warmup,
            length: Length::Ops(ops),
            workload: workload.to_owned(),
            verify: false,
            audit: false,
            seed: self.seed,
            ..with_threads(BenchSpec::default(), self.threads(ALL_THREADS))
        }
    }

    /// Level M. It is lower if the tree is lower, so that there are many more subtrees than memory servers,
    /// as in the paper.
    fn subtree_level(&self) -> u8 {
        match self.scale {
            Scale::Full => 3,
            Scale::Quick => 2,
            Scale::Tiny => 1,
        }
    }

    /// Compute threads at this scale that correspond to `papers` threads in the paper.
    pub fn threads(&self, papers: usize) -> usize {
        match self.scale {
            Scale::Tiny => papers.div_ceil(SERVER_THREADS),
            _ => papers,
        }
    }

    /// Describes for readers how the scale differs from the paper's.
    pub fn describe(&self) -> String {
        let million = self.records / 1_000_000;
        match self.keys() == self.records {
            true => format!("The paper's {million} million records and caches."),
            false => format!(
                "{} records instead of {million} million, caches smaller in proportion; as many servers, threads and NICs as in \
                 the paper. Keys are drawn as popular as those of {million} million are, as far as so few can be.",
                crate::units::count(self.keys())
            ),
        }
    }
}

/// Sets the number of compute threads: each server is filled with 36 before the next one is used (DEX §8.2).
pub(super) fn with_threads(spec: BenchSpec, threads: usize) -> BenchSpec {
    let compute_servers = threads.div_ceil(SERVER_THREADS).max(1);
    BenchSpec { compute_servers, threads: threads / compute_servers, ..spec }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_the_papers() {
        let full = Setting::new(Scale::Full, 1);
        let quick = Setting { scale: Scale::Quick, ..full };
        assert_eq!(full.bytes(PAPER_CACHE), PAPER_CACHE);
        assert_eq!(quick.bytes(PAPER_CACHE), PAPER_CACHE / 100);
        for setting in [full, quick, Setting { scale: Scale::Tiny, ..full }] {
            setting.spec("read-only").validate().expect("valid");
        }
        let spec = full.spec("read-only");
        assert_eq!((spec.compute_servers, spec.threads, spec.memory_servers), (4, 36, 4));
    }

    #[test]
    fn servers_are_filled_one_after_the_other() {
        for (threads, expected) in [(2, (1, 2)), (36, (1, 36)), (72, (2, 36)), (144, (4, 36))] {
            let spec = with_threads(BenchSpec::default(), threads);
            assert_eq!((spec.compute_servers, spec.threads), expected);
        }
    }
}
