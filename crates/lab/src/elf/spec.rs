//! What is measured of Elf: table, store, queries, threads, memory model.
//!
//! All fields of a specification determine its result and are part of the file of results. An impossible
//! specification is refused with a sentence before anything is made.

use pando_fabric::OffloadPolicy;
use pando_sim::memory::MemoryModel;
use pando_workload::columns::{LINEITEM, QueryKind, TPCH};
use serde::Serialize;

use crate::bench::BenchError;
use crate::spec::policy_name;

/// A measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ElfSpec {
    pub data: Data,
    pub work: ElfWork,
    pub model: MemoryModel,
    pub exact_costs: SearchCosts,
    pub walk_costs: SearchCosts,
    pub seed: u64,
}

/// Cycles that a search computes, besides the reads of the caches. The example `elf_compute` measures them on this
/// machine with everything in caches; cycles are nanoseconds there at 3.4 GHz.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SearchCosts {
    pub query: f64,
    /// For each piece of a list between two steps down, and for each of its words.
    pub list: f64,
    pub list_word: f64,
    /// For each word of a MonoList.
    pub mono_word: f64,
}

impl SearchCosts {
    /// An exact match.
    pub const EXACT: Self = Self { query: 20.0, list: 18.0, list_word: 1.3, mono_word: 1.3 };
    /// A range or partial match.
    pub const WALK: Self = Self { query: 70.0, list: 54.0, list_word: 1.9, mono_word: 12.0 };
}

/// A table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Data {
    /// Columns of independent, uniform codes.
    Uniform { rows: usize, columns: usize, cardinality: u32 },
    /// A table like TPC-H's lineitem, with 15 columns.
    Lineitem { rows: usize },
}

impl Data {
    pub fn rows(self) -> usize {
        match self {
            Data::Uniform { rows, .. } | Data::Lineitem { rows } => rows,
        }
    }

    pub fn columns(self) -> usize {
        match self {
            Data::Uniform { columns, .. } => columns,
            Data::Lineitem { .. } => LINEITEM.len(),
        }
    }
}

/// What is done with a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum ElfWork {
    /// Builds the linear image: measured here, and what writing it to persistent memory adds, modelled.
    Build,
    /// Copies the image to DRAM: measured here, and modelled from persistent memory.
    Hybrid,
    /// Queries of one thread, in modelled time.
    Queries(QuerySpec),
    /// The same on this machine, in DRAM.
    Measured(QuerySpec),
    /// Each query by several threads, or by one.
    Parallel { queries: QuerySpec, threads: Threads },
    /// Factors of Elf with its gate over the best scan, for random predicates, measured here.
    Selectivity { predicates: usize, rounds: usize },
    /// An Elf with the columns in some order, measured here.
    Order { rule: OrderRule, rounds: usize },
    /// Queries by READs on a simulated cluster, with a cache of so many bytes.
    Remote { cache_bytes: u64, queries: usize, exact: bool },
    /// Queries of an image on one memory server of a simulated cluster, which may search it.
    Offload(OffloadSpec),
    /// The conditions of a query of [`TPCH`] by one of several methods that take turns, measured here.
    Peer { query: usize, method: PeerMethod, rounds: usize },
}

/// Queries that a memory server may answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OffloadSpec {
    #[serde(serialize_with = "policy_name")]
    pub policy: OffloadPolicy,
    pub rule: OrderRule,
    /// Whether the reader keeps all entries of the tree.
    pub is_cached: bool,
    /// Cores of the memory server.
    pub cores: usize,
    /// Threads of the one compute server, which share a reader.
    pub threads: usize,
    /// Shares of the rows that the queries find, in turn.
    pub shares: Vec<f64>,
    /// Queries of each thread.
    pub warm_up: usize,
    pub queries: usize,
}

/// A way to answer the conditions of a query of TPC-H.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PeerMethod {
    /// A scan of narrow columns with the best instructions of this machine.
    Scan,
    /// The same without special instructions.
    PortableScan,
    /// The published Elf: linear, all columns by cardinality.
    Linear,
    /// Linear, all columns in an order for the six queries.
    LinearAdvised,
    /// Columnar, only the columns of the query.
    ColumnarOwn,
    /// Columnar, all columns in an order for the six queries, with the gate.
    ColumnarAdvised,
}

impl PeerMethod {
    pub const ALL: [Self; 6] = [
        Self::Scan,
        Self::PortableScan,
        Self::Linear,
        Self::LinearAdvised,
        Self::ColumnarOwn,
        Self::ColumnarAdvised,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Scan => "scan, best instructions",
            Self::PortableScan => "scan, portable",
            Self::Linear => "linear, by cardinality",
            Self::LinearAdvised => "linear, advised order",
            Self::ColumnarOwn => "columnar, own columns",
            Self::ColumnarAdvised => "columnar, advised order, gate",
        }
    }
}

/// Queries and the store that answers them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QuerySpec {
    pub kind: Kind,
    /// Width of intervals in per cent of a column's domain.
    pub range_percent: u32,
    pub store: Store,
    pub warm_up: u64,
    pub queries: u64,
    /// Number of intervals of equal length whose speeds are reported, from the first query on; 0: none.
    pub intervals: u64,
}

/// A kind of query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    Exact,
    Range,
    Partial,
}

impl Kind {
    pub(super) fn of_workload(self) -> QueryKind {
        match self {
            Kind::Exact => QueryKind::Exact,
            Kind::Range => QueryKind::Range,
            Kind::Partial => QueryKind::Partial,
        }
    }
}

/// Where lists and MonoLists are read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Store {
    pub base: Base,
    /// Static levels in DRAM.
    pub levels: usize,
    /// Whether lists of the static levels are found in a hash table, as in the paper, and not by their pointers. Only
    /// the model knows such a table.
    pub hashed: bool,
    pub cache: Option<Fixed>,
}

/// Memory of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Base {
    Dram,
    Persistent,
    /// Lists from a copy in DRAM, MonoLists from persistent memory.
    DualAccess,
}

impl Store {
    pub fn new(base: Base) -> Self {
        Self { base, levels: 0, hashed: false, cache: None }
    }

    /// Persistent memory with static levels.
    pub fn levels(levels: usize) -> Self {
        Self { levels, ..Self::new(Base::Persistent) }
    }

    /// Static levels whose lists are looked up.
    pub fn hashed(levels: usize) -> Self {
        Self { hashed: true, ..Self::levels(levels) }
    }

    /// With a dynamic cache of `lists` lists below the levels.
    pub fn with_cache(self, policy: PolicyKind, lists: usize) -> Self {
        Self { cache: Some(Fixed { policy, lists }), ..self }
    }
}

/// A dynamic cache of a fixed size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Fixed {
    pub policy: PolicyKind,
    pub lists: usize,
}

/// A policy of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum PolicyKind {
    Naive,
    Lru,
    Lfu,
    TwoQueue,
    Lla,
}

impl PolicyKind {
    pub const ALL: [Self; 5] = [Self::Naive, Self::Lru, Self::Lfu, Self::TwoQueue, Self::Lla];

    pub fn name(self) -> &'static str {
        match self {
            Self::Naive => "naive",
            Self::Lru => "LRU",
            Self::Lfu => "LFU",
            Self::TwoQueue => "2Q",
            Self::Lla => "LLA",
        }
    }
}

/// Threads of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Threads {
    Modelled(usize),
    /// Threads of this machine, with the image in DRAM.
    Measured(usize),
}

impl Threads {
    pub fn number(self) -> usize {
        match self {
            Threads::Modelled(number) | Threads::Measured(number) => number,
        }
    }
}

/// An order of the columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum OrderRule {
    Ascending,
    Descending,
    /// As the table has them.
    Table,
    /// The columns of Q6 first, the others by cardinality.
    ConditionsFirst,
    /// By [`pando_elf::for_workload`].
    Advised,
}

impl ElfSpec {
    pub fn new(data: Data, work: ElfWork, model: MemoryModel, seed: u64) -> Self {
        Self { data, work, model, exact_costs: SearchCosts::EXACT, walk_costs: SearchCosts::WALK, seed }
    }

    /// Costs of a kind of query.
    pub(super) fn costs(&self, kind: Kind) -> SearchCosts {
        if kind == Kind::Exact { self.exact_costs } else { self.walk_costs }
    }

    /// # Errors
    /// The first impossible setting.
    pub fn validate(&self) -> Result<(), BenchError> {
        let wrong = |text: &str| Err(BenchError::Invalid(text.to_owned()));
        let rows = self.data.rows();
        if rows == 0 || rows >= i32::MAX as usize {
            return wrong("an Elf's table must have 1 to 2147483646 rows");
        }
        if let Data::Uniform { columns, cardinality, .. } = self.data
            && (columns == 0 || cardinality == 0 || cardinality > i32::MAX as u32)
        {
            return wrong("a uniform table must have columns, and 1 to 2147483647 values in each");
        }
        match &self.work {
            ElfWork::Queries(queries) | ElfWork::Measured(queries) if queries.queries == 0 => {
                wrong("a measurement must have queries")
            }
            ElfWork::Queries(queries) | ElfWork::Measured(queries) => queries.validate(),
            ElfWork::Parallel { threads, .. } if threads.number() == 0 => wrong("no thread answers no query"),
            ElfWork::Parallel { queries, .. } if queries.store.cache.is_some() => {
                wrong("a dynamic cache belongs to one thread")
            }
            ElfWork::Parallel { queries, .. } => queries.validate(),
            ElfWork::Selectivity { predicates: 0, .. } | ElfWork::Selectivity { rounds: 0, .. } => {
                wrong("a measurement must have predicates and rounds")
            }
            ElfWork::Order { rounds: 0, .. }
            | ElfWork::Remote { queries: 0, .. }
            | ElfWork::Peer { rounds: 0, .. } => wrong("a measurement must have rounds and queries"),
            ElfWork::Peer { query, .. } if *query >= TPCH.len() => wrong("there is no such query of TPC-H"),
            ElfWork::Peer { .. } | ElfWork::Offload(_) if !matches!(self.data, Data::Lineitem { .. }) => {
                wrong("only a table like lineitem has the columns of these queries")
            }
            ElfWork::Offload(offload) => offload.validate(),
            _ => Ok(()),
        }
    }

    /// Whether only modelled times are reported.
    pub fn is_timeless(&self) -> bool {
        match &self.work {
            ElfWork::Queries(_) | ElfWork::Remote { .. } | ElfWork::Offload(_) => true,
            ElfWork::Parallel { threads, .. } => matches!(threads, Threads::Modelled(_)),
            _ => false,
        }
    }

    /// Upper estimate of the memory of the measurement.
    pub fn memory_bytes(&self) -> u64 {
        let (rows, columns) = (self.data.rows() as u64, self.data.columns() as u64);
        // Columns while they are made, the narrow table, the image (wide pointers) with a copy, and the sort.
        rows * (4 * columns + 2 * columns + 2 * (4 * columns + 8) + 16) + (64 << 20)
    }
}

impl OffloadSpec {
    fn validate(&self) -> Result<(), BenchError> {
        let Self { cores, threads, shares, queries, .. } = self;
        if *cores == 0 || *threads == 0 || *queries == 0 || shares.is_empty() {
            return Err(BenchError::Invalid("a cluster must have cores, threads and queries".into()));
        }
        if !shares.iter().all(|share| (0.0..=1.0).contains(share)) {
            return Err(BenchError::Invalid("a share of the rows is from 0 to 1".into()));
        }
        Ok(())
    }
}

impl QuerySpec {
    fn validate(&self) -> Result<(), BenchError> {
        let has_copy = self.store.levels > 0 || self.store.cache.is_some();
        if has_copy && self.store.base != Base::Persistent {
            return Err(BenchError::Invalid("only an image on persistent memory has copies of lists".into()));
        }
        if self.intervals > self.queries {
            return Err(BenchError::Invalid("an interval must have a query".into()));
        }
        Ok(())
    }
}
