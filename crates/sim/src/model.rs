//! Parameters of a simulated cluster, each with its source. A TOML file can replace any of them.
//!
//! The defaults describe servers with one 100 Gb/s ConnectX-5 each, the hardware of the DEX paper (§8.1).
//! Latencies are those of an idle network; the waits for shared resources are added to them.

use std::collections::BTreeMap;

use pando_fabric::{GlobalAddr, LINE, MemoryServerId, Nanos, Resource, Work};
use serde::{Deserialize, Serialize};

/// Error of a model, or of its application to a cluster.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    #[error("the cluster model cannot be read: {0}")]
    Syntax(#[from] toml::de::Error),
    #[error("the cluster model: {name} must be {range}, not {value}")]
    OutOfRange { name: &'static str, range: &'static str, value: String },
    #[error("this machine has no room for a memory server of {bytes} bytes")]
    NoMemory { bytes: u64 },
    #[error("the NIC of memory server {} has {room} bytes of memory, not {bytes}", server.0)]
    NoOnChipMemory { server: MemoryServerId, bytes: u64, room: u64 },
    #[error("there are no {bytes} bytes at {at}")]
    OutOfRegion { at: GlobalAddr, bytes: u64 },
}

/// All parameters of a simulated cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    pub network: Network,
    pub memory_server: MemoryServer,
    pub compute: Compute,
    pub faults: Faults,
    /// Parameters that were chosen so that a published figure comes out, and that figure: it is no evidence.
    pub fitted: BTreeMap<String, String>,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            network: Network::default(),
            memory_server: MemoryServer::default(),
            compute: Compute::default(),
            faults: Faults::default(),
            fitted: [("spinner_ns".to_owned(), "DEX Figure 12(b)".to_owned())].into(),
        }
    }
}

/// NICs and the network between them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// Round trip of a small READ in ns: 2.0 µs (DEX §2.2).
    pub read_ns: Nanos,
    /// Round trip of a small WRITE, until its completion. A public perftest log has 1.58 µs for half of it,
    /// with a switch.
    pub write_ns: Nanos,
    /// Round trip of an atomic: 2.65 µs for a fetch-and-add in that log.
    pub atomic_ns: Nanos,
    /// One-way time of a SEND: 1.68 µs in that log.
    pub send_ns: Nanos,
    /// Bytes per µs of a NIC in one direction: 11.0 GB/s of payload for 64 KiB messages in that log.
    pub bytes_per_us: u64,
    /// Bytes of a message on the wire besides its payload: an InfiniBand packet's local route, transport and
    /// RDMA headers and checksums (8 + 12 + 16 + 6).
    pub header_bytes: u64,
    /// Messages per µs of a NIC in one direction: 35 million per second for a ConnectX-5.
    pub messages_per_us: u64,
    /// READs of host memory that a NIC answers per µs if they are small: 19 to 20 million per second for a
    /// ConnectX-5.
    pub small_reads_per_us: u64,
    /// Connections (queue pairs) whose state a NIC keeps. Estimated from eRPC (NSDI 2019, §4): with 5,000 a
    /// ConnectX-5 answers half as many READs; state takes 375 bytes of about 2 MB for all purposes.
    pub connections_cached: u64,
    /// Time that the state of a connection takes from host memory: 100 ns with that cache halve the rate of
    /// small READs at 5,000 connections.
    pub connection_miss_ns: Nanos,
    /// Maximum number of READs and atomics in flight per queue pair (one thread to one memory server): the
    /// default of verbs.
    pub reads_outstanding: u32,
    /// Whether compute server i and memory server i are one machine with one NIC (DEX §8.1: four machines,
    /// each both).
    pub nic_shared: bool,
    /// Units that execute atomics on host memory, selected by low address bits: 4,096, by 12 bits (Sherman
    /// §3.2.2).
    pub atomic_units: u64,
    /// Time for which an atomic on host memory occupies its unit: two PCIe transactions, 2.04 million per
    /// second on one address. A failed swap writes nothing back and takes half of it (Sherman §3.2.2).
    pub atomic_unit_ns: Nanos,
    /// Whether an atomic that waits for its unit blocks all later requests to its server. No source says so.
    pub atomics_block: bool,
    /// Bytes of NIC memory usable per memory server: 256 KiB of a ConnectX-5 (Sherman §4.3).
    pub on_chip_bytes: u64,
    /// Time between two on-chip atomics without conflict: 110 million per second (Sherman §1). They need no
    /// PCIe transaction.
    pub on_chip_atomic_ns: Nanos,
    /// Time for which an on-chip atomic occupies its unit: 8.65 million per second on one address of a
    /// ConnectX-6.
    pub on_chip_conflict_ns: Nanos,
}

/// A memory server without its NIC.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryServer {
    /// Cores that execute two-sided calls: 4 (DEX §8.1).
    pub cores: usize,
    /// Time that a core needs for any call, in ns. eRPC reaches 10 million per second on a core; this is a
    /// third of that, an estimate.
    pub dispatch_ns: Nanos,
    /// Search of a node, which no cache of the processor has: 400 ns for a page of 1 KiB in memory (DEX §2.3).
    /// All other work costs what it costs on a compute server.
    pub node_search_ns: Nanos,
}

/// Compute-side work of one thread, in ns. Numbers without another source are medians that `pando calibrate`
/// measured on an AMD EPYC (two virtual cores, under other load). The command prints this section for the
/// machine it runs on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Compute {
    /// Posting a verb and ringing the doorbell (an estimate).
    pub post_ns: Nanos,
    /// Switching to the next slot and polling completions. The switch takes 3 ns there; the poll, with a NIC,
    /// is an estimate.
    pub poll_ns: Nanos,
    /// One level of a descent among cached nodes, with keys drawn by Zipf 0.99. Five levels take 0.41 µs.
    pub node_search_ns: Nanos,
    /// Copying 64 bytes of a page that is in no cache of the core.
    pub copy_line_ns: Nanos,
    /// Returning one entry of a scan.
    pub entry_ns: Nanos,
    /// A lookup in the mapping table.
    pub table_lookup_ns: Nanos,
    /// Checking a page of 1 KiB that was READ.
    pub page_check_ns: Nanos,
    /// Holding the exclusive latch of a leaf while a value is replaced.
    pub latch_ns: Nanos,
    /// Holding a bucket of the cooling map, a partition of the queues in front of remote locks, or one queue
    /// that all threads share: an entry is linked or unlinked.
    pub bucket_ns: Nanos,
    /// Taking over a cache line that another core of the socket changed last: 60 to 100 ns on the processors
    /// of the paper. Two virtual cores of the machine above, which may share a core, take 26 ns.
    pub hand_over_ns: Nanos,
    /// Taking over a cache line from another socket: 2 to 3 times as long.
    pub hand_over_far_ns: Nanos,
    /// Addition of each thread that spins on a lock to its hand-over. Fitted to DEX Figure 12(b), where
    /// write-intensive throughput falls beyond 8% of cache, and to nothing else.
    pub spinner_ns: Nanos,
    /// Threads of a compute server per socket: 18 (DEX §8.1: 36 threads on two sockets).
    pub threads_per_socket: u32,
    /// Publishing a page in the cache.
    pub admit_ns: Nanos,
    /// Freeing a frame: two sampled, one cooled, one evicted.
    pub evict_ns: Nanos,
}

/// Rates of faults and the timeout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Share of READs and WRITEs longer than a line that take effect in two parts, with other verbs in
    /// between.
    pub torn_share: f64,
    /// Time in ns after which a verb to a server that does not answer fails.
    pub timeout_ns: Nanos,
    /// Share of one-way trips that take up to `spike_ns` longer.
    pub spike_share: f64,
    pub spike_ns: Nanos,
    /// Share of verbs and calls that take effect but fail after the timeout because their answer is lost.
    pub lost_answer_share: f64,
}

impl Default for Network {
    fn default() -> Self {
        Self {
            read_ns: 2_000,
            write_ns: 2_000,
            atomic_ns: 2_600,
            send_ns: 1_680,
            bytes_per_us: 11_000,
            header_bytes: 42,
            messages_per_us: 35,
            small_reads_per_us: 20,
            connections_cached: 2_500,
            connection_miss_ns: 100,
            reads_outstanding: 16,
            nic_shared: true,
            atomic_units: 4_096,
            atomic_unit_ns: 480,
            atomics_block: false,
            on_chip_bytes: 256 << 10,
            on_chip_atomic_ns: 9,
            on_chip_conflict_ns: 116,
        }
    }
}

impl Default for MemoryServer {
    fn default() -> Self {
        Self { cores: 4, dispatch_ns: 300, node_search_ns: 400 }
    }
}

impl Default for Compute {
    fn default() -> Self {
        Self {
            post_ns: 50,
            poll_ns: 15,
            node_search_ns: 82,
            copy_line_ns: 15,
            entry_ns: 2,
            table_lookup_ns: 60,
            page_check_ns: 38,
            latch_ns: 70,
            bucket_ns: 8,
            hand_over_ns: 80,
            hand_over_far_ns: 200,
            spinner_ns: 35,
            threads_per_socket: 18,
            admit_ns: 245,
            evict_ns: 555,
        }
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            torn_share: 0.01,
            timeout_ns: 1_000_000,
            spike_share: 0.0,
            spike_ns: 20_000,
            lost_answer_share: 0.0,
        }
    }
}

impl Compute {
    /// Time of a piece of work.
    #[inline]
    pub(crate) fn cost(&self, work: Work) -> Nanos {
        match work {
            Work::NodeSearch => self.node_search_ns,
            Work::Copy { bytes } => self.copy_line_ns * bytes.div_ceil(LINE) as u64,
            Work::Entries { count } => self.entry_ns * count as u64,
            Work::TableLookup => self.table_lookup_ns,
            Work::PageCheck => self.page_check_ns,
            Work::Hold(resource) => self.held(resource),
            Work::Admit => self.admit_ns,
            Work::Evict => self.evict_ns,
            _ => 0,
        }
    }

    /// Time for which a resource is held.
    pub(crate) fn held(&self, resource: Resource) -> Nanos {
        match resource {
            Resource::Frame(_) => self.latch_ns,
            // An entry of a table or a list is changed under a lock.
            Resource::CoolingBucket(_)
            | Resource::LockQueue(_)
            | Resource::CoolingQueue
            | Resource::Word(_) => self.bucket_ns,
            _ => 0,
        }
    }
}

impl MemoryServer {
    /// Time of a piece of work of a call.
    pub(crate) fn cost(&self, work: Work, compute: &Compute) -> Nanos {
        match work {
            Work::NodeSearch => self.node_search_ns,
            work => compute.cost(work),
        }
    }
}

impl Model {
    /// Parses a model from TOML; omitted parameters have their defaults.
    ///
    /// # Errors
    /// [`ModelError`] with the name of the faulty parameter.
    pub fn from_toml(text: &str) -> Result<Self, ModelError> {
        let model: Self = toml::from_str(text)?;
        model.check()?;
        Ok(model)
    }

    /// Checks the ranges of all parameters.
    ///
    /// # Errors
    /// [`ModelError::OutOfRange`] for a number with which nothing would ever end, or time would overflow.
    pub fn check(&self) -> Result<(), ModelError> {
        const LATENCY: &str = "from 1 to 1,000,000,000";
        let Self { network, memory_server, compute, faults, .. } = self;
        let at_least_1 = [
            ("network.read_ns", network.read_ns),
            ("network.write_ns", network.write_ns),
            ("network.atomic_ns", network.atomic_ns),
            ("network.send_ns", network.send_ns),
            ("network.bytes_per_us", network.bytes_per_us),
            ("network.messages_per_us", network.messages_per_us),
            ("network.small_reads_per_us", network.small_reads_per_us),
            ("network.reads_outstanding", u64::from(network.reads_outstanding)),
            ("memory_server.cores", memory_server.cores as u64),
            // Otherwise two slots that wait for each other would stop the clock.
            ("compute.poll_ns", compute.poll_ns),
            ("compute.threads_per_socket", u64::from(compute.threads_per_socket)),
            ("faults.timeout_ns", faults.timeout_ns),
        ];
        for (name, value) in at_least_1 {
            if !(1..=1_000_000_000).contains(&value) {
                return Err(ModelError::OutOfRange { name, range: LATENCY, value: value.to_string() });
            }
        }
        let any = [
            ("network.atomic_unit_ns", network.atomic_unit_ns),
            ("network.header_bytes", network.header_bytes),
            ("network.connections_cached", network.connections_cached),
            ("network.connection_miss_ns", network.connection_miss_ns),
            ("network.on_chip_atomic_ns", network.on_chip_atomic_ns),
            ("network.on_chip_conflict_ns", network.on_chip_conflict_ns),
            ("memory_server.dispatch_ns", memory_server.dispatch_ns),
            ("memory_server.node_search_ns", memory_server.node_search_ns),
            ("compute.post_ns", compute.post_ns),
            ("compute.node_search_ns", compute.node_search_ns),
            ("compute.copy_line_ns", compute.copy_line_ns),
            ("compute.entry_ns", compute.entry_ns),
            ("compute.table_lookup_ns", compute.table_lookup_ns),
            ("compute.page_check_ns", compute.page_check_ns),
            ("compute.latch_ns", compute.latch_ns),
            ("compute.bucket_ns", compute.bucket_ns),
            ("compute.hand_over_ns", compute.hand_over_ns),
            ("compute.hand_over_far_ns", compute.hand_over_far_ns),
            ("compute.spinner_ns", compute.spinner_ns),
            ("compute.admit_ns", compute.admit_ns),
            ("compute.evict_ns", compute.evict_ns),
            ("faults.spike_ns", faults.spike_ns),
        ];
        for (name, value) in any {
            if value > 1_000_000_000 {
                let range = "at most 1,000,000,000";
                return Err(ModelError::OutOfRange { name, range, value: value.to_string() });
            }
        }
        if !(1..=1 << 20).contains(&network.atomic_units) {
            let value = network.atomic_units.to_string();
            let (name, range) = ("network.atomic_units", "from 1 to 1,048,576");
            return Err(ModelError::OutOfRange { name, range, value });
        }
        let shares = [
            ("faults.torn_share", faults.torn_share),
            ("faults.spike_share", faults.spike_share),
            ("faults.lost_answer_share", faults.lost_answer_share),
        ];
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Err(ModelError::OutOfRange { name, range: "from 0 to 1", value: share.to_string() });
            }
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
            ("[compute]\nevict_ns = 9000000000000000000", "compute.evict_ns"),
            ("[compute]\nthreads_per_socket = 0", "compute.threads_per_socket"),
            ("[network]\nreads_outstanding = 0", "network.reads_outstanding"),
            ("[network]\natomic_units = 2000000", "network.atomic_units"),
            ("[faults]\nspike_share = -0.1", "faults.spike_share"),
            ("[faults]\ntorn_share = 1.5", "faults.torn_share"),
            ("[faults]\ntorn_share = nan", "faults.torn_share"),
            ("network = 3", "network"),
        ] {
            let error = Model::from_toml(text).expect_err(text).to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
