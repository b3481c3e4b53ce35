//! Costs of offloading (DEX §6.1): the policy, and moving averages of the latencies of both ways to handle a
//! miss.
//!
//! A compute server keeps two averages for each memory server: of READs of a node, and of offloaded
//! operations. A small share of the decisions is reversed on purpose, so that both averages stay up to date.
//! The conditions of offloading, and why it is correct, are in [`offload`](crate::offload).

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Endpoint, MemoryServerId, Nanos, OffloadPolicy};

/// How misses are handled. The defaults are the paper's (DEX §6.1) where it states them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offloading {
    pub policy: OffloadPolicy,
    /// c: factor for the cost of cache management on top of the READs of a descent. "Above 1" in the paper.
    pub coefficient: f64,
    /// Time to search one cached node, in ns.
    pub node_search_ns: Nanos,
    /// Number of samples in a moving average, 50 in the paper.
    pub samples: u32,
    /// Share of decisions that are reversed, so that both averages stay up to date; 1% in the paper.
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
    /// The paper's parameters with `policy`.
    pub fn with_policy(policy: OffloadPolicy) -> Self {
        Self { policy, ..Self::default() }
    }
}

/// Work that an operation offers to the memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Nothing,
    Lookup,
    Change,
}

/// Moving average of a latency: the mean of the first samples, then exponential.
#[derive(Debug, Default)]
struct Average {
    ns: AtomicU64,
    samples: AtomicU64,
}

impl Average {
    /// The threads of a compute server share the average. If two add at once, one sample may be lost, which
    /// is harmless.
    fn add(&self, sample: Nanos, window: u32) {
        let samples = (self.samples.load(Relaxed) + 1).min(u64::from(window.max(1)));
        let before = self.ns.load(Relaxed);
        self.ns.store((before * (samples - 1) + sample).div_ceil(samples), Relaxed);
        self.samples.store(samples, Relaxed);
    }

    /// `None` until it has `window` samples.
    fn get(&self, window: u32) -> Option<Nanos> {
        (self.samples.load(Relaxed) >= u64::from(window.max(1))).then(|| self.ns.load(Relaxed))
    }
}

/// Latencies of one memory server, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct ServerLatencies {
    read: Average,
    offload: Average,
}

/// Measured costs of a compute server.
#[derive(Debug)]
pub(crate) struct Costs {
    config: Offloading,
    /// By memory server.
    latencies: Box<[ServerLatencies]>,
}

/// Start time of a latency that is being measured.
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

    /// Starts a measurement, if the policy needs it.
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

    /// Decides whether to offload the operation below a missing node of `level`. `unadmitted` is the share of
    /// leaves that get no frame. A change of such a leaf is written back at once, which costs one more round
    /// trip.
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
            // One READ of a leaf never costs more than a call.
            (OffloadPolicy::CostAware, Offer::Lookup) if level == 0 => false,
            (OffloadPolicy::CostAware, _) => self.is_cheaper(ep, server, level, offer, unadmitted),
        }
    }

    /// The paper's rule, applied to the averages of this memory server. Each way is first used until its
    /// average has enough samples.
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
