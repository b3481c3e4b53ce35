//! What a seed stands for: servers, nodes, caches, keys, operations, faults.
//!
//! Every aspect is drawn from random numbers of its own, so that an aspect that is added later does not change what the
//! seeds meant before, apart from that aspect.

use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::{OffloadPolicy, Offloading};
use pando_fabric::{Nanos, Random};
use pando_sim::{FaultKind, Faults, Model};
use serde::{Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::faults::FaultSet;
use super::keys::{KeyStyle, Sizes};

/// How nodes are laid out.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nodes {
    Fixed { bytes: usize, fanout: usize },
    Slotted { bytes: usize, fanout: usize },
}

impl Nodes {
    pub fn bytes(self) -> usize {
        match self {
            Self::Fixed { bytes, .. } | Self::Slotted { bytes, .. } => bytes,
        }
    }
}

/// What the index holds before the operations begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    Empty,
    /// Bulk-loaded with every second key.
    Half,
    /// Bulk-loaded with all keys.
    Full,
}

/// How the keys of operations are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skew {
    Uniform,
    /// The square of a uniform number: the first keys are hot.
    Square,
    /// Mostly a few neighbours, which move on as time passes.
    Moving,
}

/// Which operations are frequent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    Balanced,
    /// Mostly stores: the tree grows.
    Growing,
    /// Mostly removals.
    Shrinking,
    /// Mostly looks.
    Looking,
    /// Many scans.
    Scanning,
}

/// A cache, as [`CacheConfig`] has it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheSetup {
    pub frames: u64,
    pub leaf_admission: f64,
    pub random_eviction: bool,
    pub fifo: bool,
    pub swizzle: bool,
    pub cooling_share: f64,
}

/// What is left to memory servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OffloadSetup {
    #[serde(serialize_with = "name_of_policy")]
    pub policy: OffloadPolicy,
    /// Samples of a moving average, and share of decisions that are turned round.
    pub samples: u32,
    pub contrary: f64,
}

fn name_of_policy<S: Serializer>(policy: &OffloadPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

/// What is moved from compute server to compute server while operations run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MoveSetup {
    /// Compute servers that have no keys at first.
    pub spare_servers: usize,
    /// Moves among 1,024 operations.
    pub share: usize,
    /// Shares of writing back at once.
    pub flush_workers: usize,
}

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub seed: u64,
    pub memory_servers: usize,
    /// Processes, each with some of the compute servers. Each moves keys among its own, whatever the others do.
    pub processes: usize,
    /// Compute servers that have keys at first, in all processes together.
    pub compute_servers: usize,
    pub threads: usize,
    pub slots: u32,
    pub nodes: Nodes,
    pub sizes: Sizes,
    pub key_style: KeyStyle,
    pub keys: usize,
    pub long_share: f64,
    pub cache: CacheSetup,
    pub offload: OffloadSetup,
    pub moves: MoveSetup,
    pub read_ahead: usize,
    pub subtree_level: u8,
    pub start: Start,
    pub skew: Skew,
    pub mix: Mix,
    pub operations: usize,
    pub torn_share: f64,
    pub latency_scale: f64,
    pub faults: FaultSet,
}

/// How long an operation waits for others, in virtual time.
pub const PATIENCE_NS: Nanos = 50_000_000;

/// After so long a verb to a server that does not answer fails, in virtual time.
const TIMEOUT_NS: Nanos = 300_000;

/// The random numbers of one aspect of a seed.
struct Draw(Random);

impl Draw {
    fn of(seed: u64, aspect: &str) -> Self {
        Self(random_of(seed, aspect))
    }

    fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[(self.0.next() >> 32) as usize % choices.len()]
    }
}

/// Random numbers for one purpose of a seed.
pub fn random_of(seed: u64, purpose: &str) -> Random {
    Random::new(xxh3_64_with_seed(purpose.as_bytes(), seed))
}

impl Setup {
    /// The configuration of `seed`, with those of `faults` that the seed has.
    pub fn draw(seed: u64, faults: FaultSet) -> Self {
        let mut setup = Self::draw_one_process(seed, faults);
        setup.processes = Draw::of(seed, "processes").one_of(&[1, 1, 1, 2]);
        if setup.processes > 1 {
            // Each has one with keys and one without.
            setup.compute_servers = setup.compute_servers.max(setup.processes);
            setup.moves.spare_servers = setup.moves.spare_servers.max(setup.processes);
        }
        setup
    }

    /// The same, but all compute servers are one process's.
    pub fn draw_one_process(seed: u64, faults: FaultSet) -> Self {
        let servers = Draw::of(seed, "servers");
        let nodes = draw_nodes(&Draw::of(seed, "nodes"));
        let (sizes, key_style, long_share) = draw_keys(&Draw::of(seed, "keys"), nodes);
        let load = Draw::of(seed, "load");
        let faults = faults.draw(&random_of(seed, "faults"));
        let torn = Draw::of(seed, "torn");
        Self {
            seed,
            memory_servers: servers.one_of(&[1, 2, 3]),
            processes: 1,
            compute_servers: servers.one_of(&[1, 2, 2, 3, 3]),
            threads: servers.one_of(&[1, 2, 4, 6, 12]),
            slots: servers.one_of(&[1, 1, 2, 4]),
            nodes,
            sizes,
            key_style,
            keys: load.one_of(&[6, 12, 40, 40, 150, 400]),
            long_share,
            cache: draw_cache(&Draw::of(seed, "cache")),
            offload: draw_offload(&Draw::of(seed, "offload")),
            moves: draw_moves(&Draw::of(seed, "moves")),
            read_ahead: load.one_of(&[1, 2, 8]),
            subtree_level: load.one_of(&[0, 1, 2, 3, 3]),
            start: load.one_of(&[Start::Empty, Start::Half, Start::Full]),
            skew: load.one_of(&[Skew::Uniform, Skew::Square, Skew::Moving]),
            mix: load.one_of(&[
                Mix::Balanced,
                Mix::Balanced,
                Mix::Growing,
                Mix::Shrinking,
                Mix::Looking,
                Mix::Scanning,
            ]),
            operations: load.one_of(&[800, 1_600, 2_400]),
            torn_share: if faults.has(FaultKind::Torn) { torn.one_of(&[0.01, 0.1, 0.5, 1.0]) } else { 0.0 },
            latency_scale: Draw::of(seed, "network").one_of(&[0.2, 1.0, 1.0, 5.0]),
            faults,
        }
    }

    /// The model of the cluster, with the unchanging faults.
    pub fn model(&self) -> Model {
        let mut model = Model::default();
        let network = &mut model.network;
        for ns in [&mut network.read_ns, &mut network.write_ns, &mut network.atomic_ns, &mut network.send_ns]
        {
            *ns = (*ns as f64 * self.latency_scale) as Nanos;
        }
        model.faults = Faults { torn_share: self.torn_share, timeout_ns: TIMEOUT_NS, ..Faults::default() };
        model
    }

    pub fn cache_config(&self) -> CacheConfig {
        let Self { nodes, cache, .. } = self;
        let mut config = CacheConfig::new(cache.frames * nodes.bytes() as u64, nodes.bytes());
        config.admission = Admission::lazy(cache.leaf_admission);
        config.eviction = if cache.random_eviction { Eviction::Random } else { Eviction::PathAware };
        config.fifo = cache.fifo;
        config.swizzle = cache.swizzle;
        config.cooling_share = cache.cooling_share;
        config
    }

    pub fn offloading(&self) -> Offloading {
        let OffloadSetup { policy, samples, contrary } = self.offload;
        Offloading { samples, contrary, ..Offloading::with_policy(policy) }
    }

    /// Compute servers, those without keys included.
    pub fn all_compute_servers(&self) -> usize {
        self.compute_servers + self.moves.spare_servers
    }

    /// The process of a compute server. Those without keys, which come last, are dealt out.
    pub fn process_of(&self, server: usize) -> usize {
        match server.checked_sub(self.compute_servers) {
            None => server * self.processes / self.compute_servers,
            Some(spare) => spare % self.processes,
        }
    }

    /// Operations of each slot.
    pub fn operations_per_slot(&self) -> usize {
        self.operations.div_ceil(self.threads * self.slots as usize)
    }
}

fn draw_nodes(draw: &Draw) -> Nodes {
    let fanout = draw.one_of(&[3, 4, 4]);
    match draw.one_of(&[false, true]) {
        false => Nodes::Fixed { bytes: draw.one_of(&[256, 512]), fanout },
        true => Nodes::Slotted {
            bytes: draw.one_of(&[512, 512, 1024]),
            fanout: draw.one_of(&[fanout, fanout, 8]),
        },
    }
}

fn draw_keys(draw: &Draw, nodes: Nodes) -> (Sizes, KeyStyle, f64) {
    match nodes {
        Nodes::Fixed { bytes, .. } => {
            // Three entries have to fit beside two fences.
            let (key, value) = match bytes {
                256 => draw.one_of(&[(8, 8), (8, 8), (4, 8), (8, 16), (16, 8)]),
                _ => draw.one_of(&[(8, 8), (16, 24), (24, 8), (5, 40)]),
            };
            (
                Sizes { key, value, fixed: true },
                draw.one_of(&[KeyStyle::Words, KeyStyle::Dense, KeyStyle::Prefixed]),
                0.0,
            )
        }
        Nodes::Slotted { bytes, .. } => {
            let sizes = Sizes { key: bytes / 4, value: draw.one_of(&[600, 3_000]), fixed: false };
            let styles = [
                KeyStyle::Words,
                KeyStyle::Dense,
                KeyStyle::Short,
                KeyStyle::Prefixed,
                KeyStyle::Nested,
                KeyStyle::Ragged,
            ];
            (sizes, draw.one_of(&styles), draw.one_of(&[0.0, 0.05, 0.3]))
        }
    }
}

fn draw_offload(draw: &Draw) -> OffloadSetup {
    use OffloadPolicy::{Always, CostAware, Never};
    OffloadSetup {
        policy: draw.one_of(&[Never, Always, CostAware, CostAware]),
        samples: draw.one_of(&[2, 50]),
        contrary: draw.one_of(&[0.01, 0.3]),
    }
}

fn draw_moves(draw: &Draw) -> MoveSetup {
    MoveSetup {
        spare_servers: draw.one_of(&[0, 0, 1, 2]),
        share: draw.one_of(&[0, 4, 16, 64]),
        flush_workers: draw.one_of(&[1, 2, 5]),
    }
}

fn draw_cache(draw: &Draw) -> CacheSetup {
    CacheSetup {
        frames: draw.one_of(&[8, 8, 12, 24, 64, 256, 1024]),
        leaf_admission: draw.one_of(&[0.0, 0.1, 0.5, 1.0]),
        random_eviction: draw.one_of(&[false, false, true]),
        fifo: draw.one_of(&[false, false, true]),
        swizzle: draw.one_of(&[true, true, false]),
        cooling_share: draw.one_of(&[0.1, 0.1, 0.5]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_has_its_share_of_the_compute_servers() {
        let mut setup = Setup::draw(3, FaultSet::NONE);
        (setup.processes, setup.compute_servers, setup.moves.spare_servers) = (2, 3, 2);
        assert_eq!([0, 1, 2, 3, 4].map(|server| setup.process_of(server)), [0, 0, 1, 0, 1]);
        setup.processes = 1;
        assert!((0..5).all(|server| setup.process_of(server) == 0));
        let drawn: Vec<_> = (0..64).map(|seed| Setup::draw(seed, FaultSet::NONE)).collect();
        assert!([1, 2].iter().all(|&processes| drawn.iter().any(|setup| setup.processes == processes)));
    }

    #[test]
    fn a_seed_is_one_configuration_whatever_others_are_drawn() {
        let text = |seed| serde_json::to_string(&Setup::draw(seed, FaultSet::ALL)).expect("plain data");
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        // Faults change nothing else.
        let (with, without) = (Setup::draw(3, FaultSet::ALL), Setup::draw(3, FaultSet::NONE));
        assert_eq!(
            (with.keys, with.threads, with.cache.frames),
            (without.keys, without.threads, without.cache.frames)
        );
        assert_eq!(without.torn_share, 0.0);
    }
}
