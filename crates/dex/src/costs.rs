//! What offloading costs and gains (DEX §6.1): the policy, and moving averages of both ways to meet a miss.
//!
//! A compute server keeps the two averages for each memory server: of READs of a node, and of offloaded operations. A small
//! share of the decisions is turned round on purpose, so that both averages stay up to date. Where operations are offloaded,
//! and why that is correct, says [`offload`](crate::offload).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, MemoryServerId, Nanos};

/// When what is below a missing node is left to its memory server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OffloadPolicy {
    #[default]
    Never,
    /// Whenever it can be.
    Always,
    /// While it is expected to take less time than READs.
    CostAware,
}

impl OffloadPolicy {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Always => "always",
            Self::CostAware => "cost-aware",
        }
    }
}

/// How misses are met. The defaults are the paper's (DEX §6.1) where it gives them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offloading {
    pub policy: OffloadPolicy,
    /// c: what managing the cache adds to the READs of a way down, as a factor. "Above 1" in the paper.
    pub coefficient: f64,
    /// Search of one cached node, in ns.
    pub node_search_ns: Nanos,
    /// Samples of a moving average, 50 in the paper.
    pub samples: u32,
    /// Share of decisions that are turned round, so that both averages stay up to date; 1% in the paper.
    pub contrary: f64,
}

impl Default for Offloading {
    fn default() -> Self {
        Self {
            policy: OffloadPolicy::Never,
            coefficient: 1.2,
            node_search_ns: 40,
            samples: 50,
            contrary: 0.01,
        }
    }
}

impl Offloading {
    /// The paper's parameters with this policy.
    pub fn with_policy(policy: OffloadPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// What an operation would let its memory server do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Nothing,
    Lookup,
    Change,
}

/// Moving average of a latency: the mean of the first samples, then an exponential one.
#[derive(Debug, Default)]
struct Average {
    ns: AtomicU64,
    samples: AtomicU64,
}

impl Average {
    /// Threads of the compute server share it; that of two samples at once one may be lost does no harm.
    fn add(&self, sample: Nanos, window: u32) {
        let samples = (self.samples.load(Relaxed) + 1).min(u64::from(window.max(1)));
        let before = self.ns.load(Relaxed);
        self.ns.store((before * (samples - 1) + sample).div_ceil(samples), Relaxed);
        self.samples.store(samples, Relaxed);
    }

    /// `None` before it has all its samples.
    fn get(&self, window: u32) -> Option<Nanos> {
        (self.samples.load(Relaxed) >= u64::from(window.max(1))).then(|| self.ns.load(Relaxed))
    }
}

/// Latencies of one memory server, on lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ServerLatencies {
    read: Average,
    offload: Average,
}

/// What a compute server knows of the costs of both ways.
#[derive(Debug)]
pub(crate) struct Costs {
    config: Offloading,
    /// By memory server.
    latencies: Box<[ServerLatencies]>,
}

/// A latency that is being measured.
#[derive(Clone, Copy)]
pub(crate) struct Started(Option<Nanos>);

impl Costs {
    pub fn new(config: Offloading, memory_servers: usize) -> Self {
        Self { config, latencies: (0..memory_servers).map(|_| ServerLatencies::default()).collect() }
    }

    /// Whether nothing is ever offloaded.
    #[inline]
    pub fn never(&self) -> bool {
        self.config.policy == OffloadPolicy::Never
    }

    /// Begins to measure, if anybody wants to know.
    #[inline]
    pub fn start(&self, ep: &impl Endpoint) -> Started {
        Started((self.config.policy == OffloadPolicy::CostAware).then(|| ep.now()))
    }

    pub fn note_read(&self, ep: &impl Endpoint, server: MemoryServerId, started: Started) {
        self.note(ep, server, started, |latencies| &latencies.read);
    }

    pub fn note_offload(&self, ep: &impl Endpoint, server: MemoryServerId, started: Started) {
        self.note(ep, server, started, |latencies| &latencies.offload);
    }

    fn note(
        &self,
        ep: &impl Endpoint,
        server: MemoryServerId,
        Started(started): Started,
        which: impl FnOnce(&ServerLatencies) -> &Average,
    ) {
        if let (Some(started), Some(latencies)) = (started, self.latencies.get(usize::from(server.0))) {
            which(latencies).add(ep.now().saturating_sub(started), self.config.samples);
        }
    }

    /// Whether to offload what is below a missing node of `level`. `unadmitted` is the share of leaves that get no frame:
    /// those that are changed are written back at once, which is one more round trip.
    #[inline]
    pub fn decide(
        &self,
        ep: &impl Endpoint,
        server: MemoryServerId,
        level: u8,
        offer: Offer,
        unadmitted: f64,
    ) -> bool {
        match (self.config.policy, offer) {
            (OffloadPolicy::Never, _) | (_, Offer::Nothing) => false,
            (OffloadPolicy::Always, _) => true,
            // One READ of a leaf is never dearer than a call.
            (OffloadPolicy::CostAware, Offer::Lookup) if level == 0 => false,
            (OffloadPolicy::CostAware, _) => self.is_cheaper(ep, server, level, offer, unadmitted),
        }
    }

    /// The paper's rule, of the averages of this memory server; first each way is tried as often as it takes to know.
    fn is_cheaper(
        &self,
        ep: &impl Endpoint,
        server: MemoryServerId,
        level: u8,
        offer: Offer,
        unadmitted: f64,
    ) -> bool {
        let Some(latencies) = self.latencies.get(usize::from(server.0)) else { return false };
        let Offloading { coefficient, node_search_ns, samples, contrary, .. } = self.config;
        let Some(read) = latencies.read.get(samples) else { return false };
        let Some(offload) = latencies.offload.get(samples) else { return true };
        let way_down = (f64::from(level) + 1.0) * (read + node_search_ns) as f64 * coefficient;
        let write_back = if offer == Offer::Change { unadmitted * read as f64 } else { 0.0 };
        let cheaper = (offload as f64) < way_down + write_back;
        let random = (ep.random() >> 11) as f64 / (1u64 << 53) as f64;
        cheaper != (random < contrary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_average_forgets_what_is_long_ago() {
        let average = Average::default();
        (0..9).for_each(|_| average.add(1_000, 10));
        assert_eq!(average.get(10), None, "too few samples");
        average.add(1_000, 10);
        assert_eq!(average.get(10), Some(1_000));
        (0..100).for_each(|_| average.add(5_000, 10));
        let now = average.get(10).expect("it has its samples");
        assert!((4_900..=5_010).contains(&now), "{now}");
        (0..100).for_each(|_| average.add(0, 10));
        let now = average.get(10).expect("it has its samples");
        assert!(now < 20, "{now}");
    }
}
