//! Specification of a benchmark: one struct, with the defaults of the papers where they have one.
//!
//! [`BenchSpec::validate`] rejects impossible settings before anything is allocated, except for sizes of
//! nodes and caches, which the index itself checks.

mod error;
mod system;

use std::path::PathBuf;

use pando::{Access, CacheOptions, Durability, Eviction, OffloadPolicy};
use pando_dex::LOG_PER_CACHE_BYTE;
use pando_sim::Model;
use pando_workload::{
    Distribution, InsertKeys, KeyCodec, KeySpace, Mix, Sample, ScanLength, Scatter, ValueCodec, WorkloadSpec,
};
use serde::{Serialize, Serializer};

pub use error::BenchError;
pub use system::{Design, ShermanSetup, SmartSetup, System};

/// Fabric that carries the verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricKind {
    Local,
    Shm,
    Tcp,
    Verbs,
    /// A simulated cluster, in virtual time.
    Sim,
}

impl FabricKind {
    pub const fn name(self) -> &'static str {
        match self {
            FabricKind::Local => "local",
            FabricKind::Shm => "shm",
            FabricKind::Tcp => "tcp",
            FabricKind::Verbs => "verbs",
            FabricKind::Sim => "sim",
        }
    }
}

/// Layout of entries in nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LayoutChoice {
    /// Fixed if the sizes allow it, else slotted.
    Auto,
    Fixed,
    Slotted,
}

/// End of the measured phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Length {
    /// After this many operations in total; all threads perform equally many.
    Ops(u64),
    /// After this many seconds; virtual ones on the simulated cluster.
    Seconds(f64),
}

/// A benchmark of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct BenchSpec {
    #[serde(flatten)]
    pub system: System,
    pub fabric: FabricKind,
    /// Numbers of the simulated cluster; for the sim fabric only.
    #[serde(skip)]
    pub model: Model,
    /// Cores of each memory server for two-sided calls. `None`: the model's number, or 1 on other fabrics.
    #[serde(skip)]
    pub memory_cores: Option<usize>,
    /// Directory of the pool of the shm fabric, which is kept. `None`: a temporary one, removed afterwards.
    pub pool: Option<PathBuf>,
    /// Addresses of the memory servers of the tcp or the verbs fabric, in the order of their numbers. If
    /// empty, the benchmark starts them on this host and ends them.
    #[serde(skip)]
    pub addresses: Vec<String>,
    /// Access to these memory servers.
    #[serde(skip)]
    pub access: Access,
    pub memory_servers: usize,
    /// Bytes of each memory server. `None`: see [`BenchSpec::memory_server_bytes`].
    pub memory_bytes: Option<u64>,
    pub huge_pages: bool,
    pub compute_servers: usize,
    /// Threads of each compute server.
    pub threads: usize,
    /// Operations in flight on each thread, 1 to 64.
    pub slots: usize,
    /// Bytes of each compute server's cache.
    pub cache_bytes: u64,
    #[serde(serialize_with = "cache_options")]
    pub cache: CacheOptions,
    /// Most leaves that a scan READs in parallel; 1 means one after the other.
    pub read_ahead: usize,
    /// Whether DEX writes a changed leaf that it does not cache as a whole, as in the paper, and not only the words that
    /// changed.
    #[serde(skip_serializing_if = "is_yes")]
    pub whole_leaves: bool,
    /// Policy for offloading: whether memory servers execute operations that miss.
    #[serde(serialize_with = "policy_name")]
    pub offload: OffloadPolicy,
    /// What survives the end of a compute server. The simulated cluster has logs that are not persisted, or none.
    #[serde(serialize_with = "as_text", skip_serializing_if = "is_off")]
    pub durability: Durability,
    /// Copies of each memory server, on the simulated cluster.
    #[serde(skip_serializing_if = "is_one")]
    pub replicas: usize,
    pub node_size: usize,
    /// Level M: each subtree rooted at this level lies on one memory server.
    pub subtree_level: u8,
    pub layout: LayoutChoice,
    pub keys: u64,
    #[serde(serialize_with = "as_text")]
    pub key_space: KeySpace,
    pub key_size: usize,
    pub value_size: usize,
    /// Fullness of leaves and inner nodes after the load, up to 1.
    pub fill: f64,
    pub inner_fill: f64,
    /// Operations before the measured ones, in total.
    pub warmup: u64,
    pub length: Length,
    /// Name of the workload, as [`Mix`] knows it.
    pub workload: String,
    /// Distribution of keys. `None`: the workload's own.
    #[serde(serialize_with = "optional_text")]
    pub dist: Option<Distribution>,
    /// Keys that inserts choose. `None`: as in the workload.
    #[serde(serialize_with = "optional_text")]
    pub insert_keys: Option<InsertKeys>,
    /// Number of records that a scan asks for. `None`: as in the workload.
    #[serde(serialize_with = "scan_length", skip_serializing_if = "Option::is_none")]
    pub scan_length: Option<ScanLength>,
    #[serde(serialize_with = "as_text")]
    pub scatter: Scatter,
    /// Number of records of the data set whose popularity Zipf's law has ([`pando_workload::Sample`]). `None`:
    /// that of the keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ranks: Option<u64>,
    /// Whether each compute server's threads draw from a distribution over the keys of their server, instead of from
    /// one over all keys: then all servers have equally popular keys, and [`BenchSpec::ranks`] counts those of one.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_ranks: bool,
    /// Whether the index is empty at first, with a partition for each compute server. Threads insert new keys.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_empty: bool,
    /// Lookups passed in one call, in workloads of lookups only. 1: one at a time.
    pub multi_get: usize,
    /// Whether every answer is checked, and the whole index at the end.
    pub verify: bool,
    /// Whether the auditor checks the index at the end.
    pub audit: bool,
    /// Interval by which operations are counted over time. `None`: they are not counted.
    pub interval_ns: Option<u64>,
    /// Time between two checks of the load by a balancer, which moves boundaries. `None`: no balancer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance_every_ns: Option<u64>,
    pub seed: u64,
}

impl Default for BenchSpec {
    /// The papers' cell (DEX §8.1) with one thread per compute server, a twentieth of the keys, and caches in
    /// proportion to the keys.
    fn default() -> BenchSpec {
        BenchSpec {
            system: System::Dex,
            fabric: FabricKind::Local,
            model: Model::default(),
            memory_cores: None,
            pool: None,
            addresses: Vec::new(),
            access: Access::default(),
            memory_servers: 4,
            memory_bytes: None,
            huge_pages: true,
            compute_servers: 4,
            threads: 1,
            slots: 1,
            cache_bytes: 13 << 20,
            cache: CacheOptions::default(),
            read_ahead: pando::READ_AHEAD,
            whole_leaves: true,
            offload: OffloadPolicy::Never,
            durability: Durability::Off,
            replicas: 1,
            node_size: 1024,
            subtree_level: 3,
            layout: LayoutChoice::Auto,
            keys: 10_000_000,
            key_space: KeySpace::Dense,
            key_size: 8,
            value_size: 8,
            fill: 0.5,
            inner_fill: 0.9,
            warmup: 4_000_000,
            length: Length::Ops(8_000_000),
            workload: "read-only".to_owned(),
            dist: None,
            insert_keys: None,
            scan_length: None,
            scatter: Scatter::Hash,
            ranks: None,
            own_ranks: false,
            from_empty: false,
            multi_get: 1,
            verify: true,
            audit: true,
            interval_ns: None,
            balance_every_ns: None,
            seed: 42,
        }
    }
}

/// Shortest time between two checks of the load.
const BALANCE_NS_MIN: u64 = 1_000_000;
/// Shortest interval of a series: each thread stores a count for each interval.
const INTERVAL_NS_MIN: u64 = 10_000;
/// Longest key of the fixed layout, in bytes.
const FIXED_KEY_MAX: usize = 64;
/// Least number of entries that a node of the fixed layout must have room for.
const FIXED_ENTRIES_MIN: usize = 4;
/// Upper estimate of a node's bytes that are not entries.
const NODE_HEADER_GUESS: usize = 128;

impl BenchSpec {
    /// Threads of all compute servers.
    pub fn total_threads(&self) -> usize {
        self.compute_servers * self.threads
    }

    /// The same measurement of another system, without the settings of DEX alone.
    #[must_use]
    pub fn on_system(self, system: System) -> Self {
        let offload = if system == System::Dex { self.offload } else { OffloadPolicy::Never };
        Self { system, offload, ..self }
    }

    /// Shares of the workload's kinds of operations, with the overridden settings.
    ///
    /// # Errors
    /// If no workload has this name, or the mix is invalid.
    pub fn mix(&self) -> Result<Mix, BenchError> {
        let mix: Mix = self.workload.parse()?;
        let insert_keys = self.insert_keys.unwrap_or(mix.insert_keys);
        let mix = Mix { insert_keys, scan_length: self.scan_length.unwrap_or(mix.scan_length), ..mix };
        mix.validate()?;
        Ok(mix)
    }

    /// Distribution that keys are drawn from.
    ///
    /// # Errors
    /// If no workload has this name.
    pub fn distribution(&self) -> Result<Distribution, BenchError> {
        Ok(self.dist.unwrap_or(self.mix()?.distribution))
    }

    /// Workload that each thread's stream is drawn from.
    ///
    /// # Errors
    /// If no workload has this name, or the keys do not fit their size.
    pub fn workload_spec(&self) -> Result<WorkloadSpec, BenchError> {
        let keys = KeyCodec::new(self.key_space, self.key_size, self.keys)?;
        let (mix, distribution) = (self.mix()?, self.distribution()?);
        Ok(WorkloadSpec { mix, distribution, scatter: self.scatter, keys, ranks: self.ranks })
    }

    pub fn value_codec(&self) -> ValueCodec {
        ValueCodec::new(self.value_size)
    }

    /// Whether threads draw from all keys. This is so if compute servers share all keys, or if operations are
    /// routed to the owners of their keys. Otherwise each compute server's threads draw keys of their own
    /// server, equally many.
    ///
    /// # Errors
    /// If no workload has this name.
    pub fn is_routed(&self) -> Result<bool, BenchError> {
        let is_hot_spot = matches!(self.distribution()?, Distribution::HotSpot(_));
        Ok(is_hot_spot || self.balance_every_ns.is_some() || !self.system.is_partitioned())
    }

    /// Whether nodes have the fixed layout.
    pub fn is_fixed(&self) -> bool {
        match self.layout {
            LayoutChoice::Fixed => true,
            LayoutChoice::Slotted => false,
            LayoutChoice::Auto => {
                let room = self.node_size.saturating_sub(NODE_HEADER_GUESS);
                self.key_size <= FIXED_KEY_MAX
                    && self.key_size.saturating_add(self.value_size) <= room / FIXED_ENTRIES_MIN
            }
        }
    }

    /// Name of the layout for reports.
    pub(crate) fn layout_name(&self) -> &'static str {
        match self.system {
            System::Sherman(_) => "b-link",
            System::Smart(_) => "radix",
            _ if self.is_fixed() => "fixed",
            _ => "slotted",
        }
    }

    /// Bytes of each memory server: [`BenchSpec::memory_bytes`], or room for twice the keys in half-full
    /// nodes. Memory that is not touched takes none of the host.
    pub fn memory_server_bytes(&self) -> u64 {
        const SLACK: u64 = 256 << 20;
        let entry = (self.key_size + self.value_size + 32) as f64;
        let data = match self.system {
            System::Smart(_) => 2.0 * self.keys as f64 * (entry + self.radix_bytes()),
            _ => 2.0 * self.keys as f64 * entry / self.fill.clamp(0.05, 0.45) * 1.3,
        };
        let logs = match self.durability {
            Durability::Off => 0,
            _ => (self.compute_servers as u64)
                .saturating_mul(self.cache_bytes)
                .saturating_mul(LOG_PER_CACHE_BYTE),
        };
        let each = (data as u64).saturating_add(logs) / self.memory_servers.max(1) as u64;
        self.memory_bytes.unwrap_or_else(|| each.saturating_add(SLACK).next_multiple_of(1 << 21))
    }

    /// Estimated bytes per key of a radix tree beyond the entry: the rest of the leaf, and inner nodes above
    /// it. With random keys, each key may need an inner node of its own.
    fn radix_bytes(&self) -> f64 {
        match self.key_space {
            KeySpace::Dense | KeySpace::Packed => 100.0,
            KeySpace::Random64 => 2_300.0,
        }
    }

    /// Model of the cluster to simulate, with the overridden number of cores.
    pub fn cluster_model(&self) -> Model {
        let mut model = self.model.clone();
        if let Some(cores) = self.memory_cores {
            model.memory_server.cores = cores;
        }
        model
    }

    /// Hash of the configuration: equal for equal specifications, on any machine and in any run. The pool's
    /// directory, addresses and the interval of a series do not count.
    pub fn config_hash(&self) -> String {
        let described = BenchSpec { pool: None, interval_ns: None, ..self.clone() };
        let model = (self.fabric == FabricKind::Sim).then(|| self.cluster_model());
        // A simulated cluster's model contains the cores.
        let cores = self.memory_cores.filter(|_| model.is_none());
        let text = serde_json::to_string(&(described, model, cores));
        let text = text.expect("numbers and texts can be written as JSON");
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }

    /// # Errors
    /// The first impossible setting, in a sentence.
    pub fn validate(&self) -> Result<(), BenchError> {
        let invalid = |sentence: String| Err(BenchError::Invalid(sentence));
        for (name, number, max) in [
            ("memory servers", self.memory_servers, 1 << 15),
            ("compute servers", self.compute_servers, 1 << 10),
            ("threads", self.threads, 1 << 10),
            ("slots", self.slots, 64),
            ("lookups of a batch", self.multi_get, 1 << 16),
            ("leaves read together", self.read_ahead, 1 << 16),
        ] {
            if !(1..=max).contains(&number) {
                return invalid(format!("the number of {name} must be from 1 to {max}, not {number}"));
            }
        }
        for (name, fill) in [("fill of leaves", self.fill), ("fill of inner nodes", self.inner_fill)] {
            if !(fill > 0.0 && fill <= 1.0) {
                return invalid(format!("the {name} must be above 0 and at most 1, not {fill}"));
            }
        }
        match self.length {
            Length::Ops(0) => return invalid("there must be at least one operation to measure".to_owned()),
            Length::Seconds(seconds) if !(seconds > 0.0 && seconds <= 1e6) => {
                return invalid(format!(
                    "the measured time must be above 0 and at most a million seconds, not {seconds}"
                ));
            }
            _ => {}
        }
        let spec = self.workload_spec()?;
        let keys = if self.own_ranks { self.keys / self.compute_servers as u64 } else { self.keys };
        let ranks_max = Sample::ranks_max(keys);
        if self.ranks.is_some_and(|ranks| ranks > ranks_max) {
            return invalid(format!("{keys} keys can be as popular as those of {ranks_max} records at most"));
        }
        if self.own_ranks && (self.is_routed()? || self.key_space == KeySpace::Random64) {
            return invalid(
                "a distribution over the keys of each compute server needs threads that draw these only, and keys in \
                 the order of their records"
                    .to_owned(),
            );
        }
        if self.from_empty && (spec.mix.insert != 100 || self.verify || self.fabric != FabricKind::Sim) {
            return invalid(
                "an index that is empty at first is for workloads that only insert, on the sim fabric, unverified"
                    .to_owned(),
            );
        }
        if self.multi_get > 1 && spec.mix.read != 100 {
            return invalid(format!(
                "lookups can be batched in workloads that only look up, which {} is not",
                self.workload
            ));
        }
        if self.keys < self.total_threads() as u64 {
            return invalid(format!(
                "{} keys are too few for {} threads, which own different keys",
                self.keys,
                self.total_threads()
            ));
        }
        self.cache.check()?;
        self.validate_fabric()
    }

    /// Rejects settings that the fabric does not support.
    fn validate_fabric(&self) -> Result<(), BenchError> {
        let invalid = |sentence: &str| Err(BenchError::Invalid(sentence.to_owned()));
        let is_simulated_only =
            matches!(self.system, System::Plain | System::PlainPartitioned | System::LocalBTree);
        if is_simulated_only && self.fabric != FabricKind::Sim {
            return invalid("a tree without a cache is measured on the sim fabric only");
        }
        if self.system != System::Dex && self.offload != OffloadPolicy::Never {
            return invalid(
                "memory servers execute operations of the system dex only: --offload goes with it",
            );
        }
        if self.durability != Durability::Off {
            self.validate_log()?;
        }
        self.validate_replicas()?;
        if self.system != System::Dex && self.balance_every_ns.is_some() {
            return invalid("boundaries are moved while they are used in the system dex only");
        }
        self.system.validate(self)?;
        if self.system == System::LocalBTree && self.compute_servers != 1 {
            return invalid("a tree in local memory has one compute server");
        }
        if self.pool.is_some() && self.fabric != FabricKind::Shm {
            return invalid("a place for the pool can be named for the shm fabric only");
        }
        if !self.addresses.is_empty() && !matches!(self.fabric, FabricKind::Tcp | FabricKind::Verbs) {
            return invalid("addresses of memory servers go with the fabrics tcp and verbs only");
        }
        if !self.addresses.is_empty() && self.addresses.len() != self.memory_servers {
            return invalid("there must be as many memory servers as addresses of them");
        }
        if self.fabric == FabricKind::Sim {
            self.cluster_model().check()?;
            if !self.memory_server_bytes().is_multiple_of(8) {
                return invalid("the memory of a simulated memory server must be a multiple of 8 bytes");
            }
        } else if self.model != Model::default() {
            return invalid("a model of the cluster can be given for the sim fabric only");
        } else if self.memory_cores.is_some() && self.offload == OffloadPolicy::Never {
            return invalid("cores of memory servers have nothing to do when nothing is offloaded");
        }
        self.validate_balance()?;
        match self.interval_ns {
            Some(ns) if ns < INTERVAL_NS_MIN => {
                let least = crate::units::nanos(INTERVAL_NS_MIN);
                Err(BenchError::Invalid(format!("the intervals of a series must be at least {least} long")))
            }
            _ => Ok(()),
        }
    }
}

impl BenchSpec {
    fn validate_log(&self) -> Result<(), BenchError> {
        let wrong = match self.durability {
            _ if self.system != System::Dex => "only the system dex has a log",
            _ if !matches!(self.fabric, FabricKind::Shm | FabricKind::Sim) => {
                "logs go with the fabrics shm and sim only"
            }
            _ if self.fabric == FabricKind::Shm && self.compute_servers > 1 => {
                "on the shm fabric an index with a log has one compute server: --compute-servers 1"
            }
            Durability::Group(_) | Durability::Immediate if self.fabric == FabricKind::Sim => {
                "a simulated cluster has no disks: its logs have the durability `process`"
            }
            _ => return Ok(()),
        };
        Err(BenchError::Invalid(wrong.to_owned()))
    }

    fn validate_replicas(&self) -> Result<(), BenchError> {
        let wrong = match self.replicas {
            1 => return Ok(()),
            _ if self.fabric != FabricKind::Sim => {
                "copies of memory servers are measured on the sim fabric only"
            }
            0 => "each memory server has at least one copy: its own",
            more if more > self.memory_servers => {
                "each copy of a memory server needs a memory server of its own"
            }
            _ if self.offload != OffloadPolicy::Never => "memory servers with copies execute no operations",
            _ => return Ok(()),
        };
        Err(BenchError::Invalid(wrong.to_owned()))
    }

    fn validate_balance(&self) -> Result<(), BenchError> {
        let Some(every_ns) = self.balance_every_ns else { return Ok(()) };
        let invalid = |sentence: String| Err(BenchError::Invalid(sentence));
        if self.fabric == FabricKind::Sim {
            return invalid(
                "a balancer works during benchmarks on the local and shm fabrics; on simulated clusters there is \
                 the experiment `balance` of the laboratory"
                    .to_owned(),
            );
        }
        if self.compute_servers == 1 {
            return invalid("there is nothing to balance with one compute server".to_owned());
        }
        if every_ns < BALANCE_NS_MIN {
            let least = crate::units::nanos(BALANCE_NS_MIN);
            return invalid(format!("a balancer looks at the load every {least} at most, not more often"));
        }
        Ok(())
    }
}

fn scan_length<S: Serializer>(length: &Option<ScanLength>, serializer: S) -> Result<S::Ok, S::Error> {
    match length {
        Some(ScanLength::Fixed(records)) => serializer.serialize_u32(*records),
        Some(ScanLength::Uniform { min, max }) => serializer.serialize_str(&format!("{min}-{max}")),
        None => serializer.serialize_none(),
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_yes(answer: &bool) -> bool {
    *answer
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_off(durability: &Durability) -> bool {
    *durability == Durability::Off
}

pub(crate) fn policy_name<S: Serializer>(policy: &OffloadPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

fn as_text<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

fn optional_text<S: Serializer>(value: &Option<impl ToString>, serializer: S) -> Result<S::Ok, S::Error> {
    value.as_ref().map(ToString::to_string).serialize(serializer)
}

/// Serialised form of the cache's options. Its names are part of the configuration's identity, so they do not
/// follow renamed fields of [`CacheOptions`].
#[derive(Serialize)]
struct CacheChoices {
    leaf_admission: f64,
    cooling: &'static str,
    eviction: &'static str,
    swizzle: bool,
    cooling_share: f64,
}

fn cache_options<S: Serializer>(options: &CacheOptions, serializer: S) -> Result<S::Ok, S::Error> {
    CacheChoices {
        leaf_admission: options.leaf_admission,
        cooling: if options.fifo { "fifo" } else { "map" },
        eviction: if options.eviction == Eviction::Random { "random" } else { "path-aware" },
        swizzle: options.swizzle,
        cooling_share: options.cooling_share,
    }
    .serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_the_hash_tells_configurations_apart() {
        let spec = BenchSpec::default();
        spec.validate().expect("the defaults are valid");
        let same = BenchSpec { pool: Some("elsewhere".into()), ..spec.clone() };
        assert_eq!(spec.config_hash(), same.config_hash());
        let mut other = spec.clone();
        other.cache.fifo = true;
        for other in [other, BenchSpec { seed: 1, ..spec.clone() }, BenchSpec { slots: 2, ..spec.clone() }] {
            assert_ne!(spec.config_hash(), other.config_hash());
        }
        let simulated = BenchSpec { fabric: FabricKind::Sim, ..spec.clone() };
        let cores = |memory_cores| BenchSpec { memory_cores, ..simulated.clone() }.config_hash();
        assert_ne!(cores(Some(3)), cores(None));
        assert_eq!(cores(Some(4)), cores(None), "4 is what the model has");
        let mut slower = simulated.clone();
        slower.model.network.read_ns += 1;
        assert_ne!(slower.config_hash(), simulated.config_hash());
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let spec = BenchSpec::default();
        let (mut slow, mut stopped) = (Model::default(), Model::default());
        slow.network.read_ns = 3_000;
        stopped.network.bytes_per_us = 0;
        let refused = [
            BenchSpec { threads: 0, ..spec.clone() },
            BenchSpec { slots: 65, ..spec.clone() },
            BenchSpec { fill: 0.0, ..spec.clone() },
            BenchSpec { inner_fill: 1.5, ..spec.clone() },
            BenchSpec { read_ahead: 0, ..spec.clone() },
            BenchSpec { ranks: Some(1 << 60), ..spec.clone() },
            BenchSpec { system: System::Plain, ..spec.clone() },
            BenchSpec { length: Length::Ops(0), ..spec.clone() },
            BenchSpec { length: Length::Seconds(-1.0), ..spec.clone() },
            BenchSpec { workload: "ycsb-z".into(), ..spec.clone() },
            BenchSpec { multi_get: 64, workload: "ycsb-a".into(), ..spec.clone() },
            BenchSpec { keys: 3, ..spec.clone() },
            BenchSpec { key_size: 2, ..spec.clone() },
            BenchSpec { pool: Some("p".into()), ..spec.clone() },
            BenchSpec { pool: Some("p".into()), fabric: FabricKind::Sim, ..spec.clone() },
            BenchSpec { model: slow, ..spec.clone() },
            BenchSpec { model: stopped, fabric: FabricKind::Sim, ..spec.clone() },
            BenchSpec { memory_cores: Some(1), ..spec.clone() },
            BenchSpec { memory_cores: Some(0), fabric: FabricKind::Sim, ..spec.clone() },
            BenchSpec { interval_ns: Some(9_999), ..spec.clone() },
            BenchSpec {
                cache: CacheOptions { leaf_admission: 2.0, ..CacheOptions::default() },
                fabric: FabricKind::Sim,
                ..spec.clone()
            },
        ];
        for spec in refused {
            let error = spec.validate().expect_err("refused");
            assert!(error.is_bad_input(), "{error}");
        }
    }

    #[test]
    fn small_constant_sizes_are_fixed_and_large_ones_slotted() {
        let spec = BenchSpec::default();
        assert!(spec.is_fixed());
        assert!(BenchSpec { key_size: 64, value_size: 100, ..spec.clone() }.is_fixed());
        assert!(!BenchSpec { value_size: 1000, ..spec.clone() }.is_fixed());
        assert!(!BenchSpec { key_size: 65, ..spec.clone() }.is_fixed());
        assert!(!BenchSpec { layout: LayoutChoice::Slotted, ..spec }.is_fixed());
    }
}
