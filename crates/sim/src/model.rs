//! The numbers of a cluster, each with where it comes from. All can be replaced from one TOML file.
//!
//! What they describe is a cluster of servers with one 100 Gb/s ConnectX-5 each, the hardware of the DEX paper (§8.1).
//! Latencies are those of an idle network; waiting comes on top of them, from the resources that verbs share.

use pando_fabric::Nanos;
use serde::{Deserialize, Serialize};

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    #[error("the cluster model cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    #[error("the cluster model: {name} must be {range}, not {value}")]
    OutOfRange { name: &'static str, range: &'static str, value: String },
}

/// All numbers of a simulated cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    pub network: Network,
    pub memory_server: MemoryServer,
    pub compute: Compute,
    pub faults: Faults,
}

/// NICs and what is between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Round trip of a small READ in ns: 2.0 µs (DEX §2.2).
    pub read_ns: Nanos,
    /// The same of a WRITE until its completion. A public perftest log has 1.58 µs for half of it, with a switch.
    pub write_ns: Nanos,
    /// The same of an atomic: 2.65 µs for a fetch-and-add in that log.
    pub atomic_ns: Nanos,
    /// One way of a SEND: 1.68 µs in that log.
    pub send_ns: Nanos,
    /// Bytes per µs of one NIC and direction: 11.0 GB/s of payload for 64 KiB messages in that log.
    pub bytes_per_us: u64,
    /// Messages per µs of one NIC and direction: 35 million a second for a ConnectX-5.
    pub messages_per_us: u64,
    /// READs of 64 bytes and less that one NIC answers per µs: 19 to 20 million a second for a ConnectX-5.
    pub small_reads_per_us: u64,
    /// Units that execute atomics, by low bits of the address: 4,096 (Sherman §3.2.2).
    pub atomic_units: u64,
    /// How long an atomic on host memory keeps its unit: two PCIe transactions, 2.04 million a second on one address.
    pub atomic_unit_ns: Nanos,
}

/// A memory server besides its NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryServer {
    /// Cores that execute two-sided calls: 4 (DEX §8.1).
    pub cores: usize,
    /// What a core needs for any call, in ns. eRPC does up to 10 million a second on one; a third of that here.
    pub dispatch_ns: Nanos,
}

/// Compute-side work in ns, one thread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compute {
    /// Posting a verb and ringing the doorbell; an estimate.
    pub post_ns: Nanos,
    /// Going to the next slot and looking for completions: a yield costs 10 to 20 ns (`pando_rt`).
    pub poll_ns: Nanos,
    /// One level of a descent. `pando-lab-peers` measured 0.37 to 0.46 µs for five levels of cached nodes.
    pub node_search_ns: Nanos,
    /// Copying 64 bytes; an estimate.
    pub copy_line_ns: Nanos,
    /// Taking and releasing an exclusive latch that nobody else wants; an estimate.
    pub latch_ns: Nanos,
    /// Publishing a page in the cache, and evicting one; estimates.
    pub admit_ns: Nanos,
    pub evict_ns: Nanos,
}

/// What goes wrong, and how long it takes to be noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Share of READs and WRITEs of more than a line that take effect in two parts, with other verbs in between.
    pub torn_share: f64,
    /// After so long a verb to a server that does not answer fails, in ns.
    pub timeout_ns: Nanos,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            read_ns: 2_000,
            write_ns: 2_000,
            atomic_ns: 2_600,
            send_ns: 1_680,
            bytes_per_us: 11_000,
            messages_per_us: 35,
            small_reads_per_us: 20,
            atomic_units: 4_096,
            atomic_unit_ns: 480,
        }
    }
}

impl Default for MemoryServer {
    fn default() -> Self {
        Self { cores: 4, dispatch_ns: 300 }
    }
}

impl Default for Compute {
    fn default() -> Self {
        Self {
            post_ns: 50,
            poll_ns: 15,
            node_search_ns: 80,
            copy_line_ns: 3,
            latch_ns: 20,
            admit_ns: 150,
            evict_ns: 150,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self { torn_share: 0.01, timeout_ns: 1_000_000 }
    }
}

impl Model {
    /// The model of a TOML text; what it leaves out is as in the default.
    ///
    /// # Errors
    /// [`ModelError`] with the name of what is wrong.
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        let model: Self = toml::from_str(text)?;
        model.check()?;
        Ok(model)
    }

    /// # Errors
    /// [`ModelError::OutOfRange`] for a number with which nothing would ever end.
    pub fn check(&self) -> Result<(), ModelError> {
        const LATENCY: &str = "from 1 to 1,000,000,000";
        let Self { network, memory_server, compute, faults } = self;
        let at_least_1 = [
            ("network.read_ns", network.read_ns),
            ("network.write_ns", network.write_ns),
            ("network.atomic_ns", network.atomic_ns),
            ("network.send_ns", network.send_ns),
            ("network.bytes_per_us", network.bytes_per_us),
            ("network.messages_per_us", network.messages_per_us),
            ("network.small_reads_per_us", network.small_reads_per_us),
            ("network.atomic_units", network.atomic_units),
            ("memory_server.cores", memory_server.cores as u64),
            // Two slots that wait for each other would stop the clock.
            ("compute.poll_ns", compute.poll_ns),
            ("faults.timeout_ns", faults.timeout_ns),
        ];
        for (name, value) in at_least_1 {
            if !(1..=1_000_000_000).contains(&value) {
                return Err(ModelError::OutOfRange { name, range: LATENCY, value: value.to_string() });
            }
        }
        if !(0.0..=1.0).contains(&faults.torn_share) {
            let value = faults.torn_share.to_string();
            return Err(ModelError::OutOfRange { name: "faults.torn_share", range: "from 0 to 1", value });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_replaces_what_it_names_and_nothing_else() {
        let model =
            Model::from_toml("[network]\nread_ns = 600\n[memory_server]\ncores = 1\n").expect("valid");
        assert_eq!((model.network.read_ns, model.memory_server.cores), (600, 1));
        assert_eq!(model.compute, Compute::default());
        assert_eq!(Model::from_toml("").expect("valid"), Model::default());
    }

    #[test]
    fn mistakes_are_named() {
        for (text, named) in [
            ("[network]\nread_us = 2", "read_us"),
            ("[network]\nbytes_per_us = 0", "network.bytes_per_us"),
            ("[compute]\npoll_ns = 0", "compute.poll_ns"),
            ("[faults]\ntorn_share = 1.5", "faults.torn_share"),
            ("[faults]\ntorn_share = nan", "faults.torn_share"),
            ("network = 3", "network"),
        ] {
            let error = Model::from_toml(text).expect_err(text).to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
