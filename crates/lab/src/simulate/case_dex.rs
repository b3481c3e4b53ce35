//! The case of a seed for DEX: nodes, caches, offloading, moves of keys, processes.
//!
//! Each aspect is drawn from its own random numbers, so that a seed that showed an error keeps showing it
//! when other aspects are added.

use pando_cache::{Admission, CacheConfig, Eviction};
use pando_dex::{OffloadPolicy, Offloading};
use serde::{Serialize, Serializer};

use super::faults::FaultSet;
use super::keys::{KeyStyle, Sizes};
use super::setup::{Case, Draw, DrawnKeys, Setup};
use crate::bench::System;

/// Layout of nodes, with their fanout limit.
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

/// Settings of a cache; see [`CacheConfig`].
#[derive(Clone, Copy, Debug, Serialize)]
pub struct CacheSetup {
    pub frames: u64,
    pub leaf_admission: f64,
    pub random_eviction: bool,
    pub fifo: bool,
    pub swizzle: bool,
    pub cooling_share: f64,
}

/// Offloading to memory servers.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OffloadSetup {
    #[serde(serialize_with = "name_of_policy")]
    pub policy: OffloadPolicy,
    /// Samples in a moving average, and share of decisions that are reversed.
    pub samples: u32,
    pub contrary: f64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(is: &bool) -> bool {
    !is
}

fn name_of_policy<S: Serializer>(policy: &OffloadPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(policy.name())
}

/// Moves of keys between compute servers while operations run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MoveSetup {
    /// Compute servers without keys at the start.
    pub spare_servers: usize,
    /// Moves per 1,024 operations.
    pub share: usize,
    /// Shares of a write-back that run concurrently.
    pub flush_workers: usize,
}

/// DEX with its sizes and ablations.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DexCase {
    /// Processes, each with some of the compute servers. A process moves keys only among its own compute
    /// servers.
    pub processes: usize,
    pub nodes: Nodes,
    pub cache: CacheSetup,
    pub offload: OffloadSetup,
    pub moves: MoveSetup,
    pub subtree_level: u8,
    /// Compute servers are processes with logs, and one dies so often while operations run; its heirs go on.
    #[serde(skip_serializing_if = "is_zero")]
    pub deaths: usize,
    /// The only process keeps logs. It dies once all operations have ended, and what it answered is read after recovery.
    #[serde(skip_serializing_if = "is_false")]
    pub falls: bool,
}

impl DexCase {
    /// Whether the compute servers have logs.
    pub fn is_logged(&self) -> bool {
        self.deaths > 0 || self.falls
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

    /// Process of a compute server if `compute_servers` have keys at the start. The servers without keys,
    /// which are last, are dealt to the processes in turn.
    pub fn process_of(&self, compute_servers: usize, server: usize) -> usize {
        match server.checked_sub(compute_servers) {
            None => server * self.processes / compute_servers,
            Some(spare) => spare % self.processes,
        }
    }
}

impl Setup {
    /// The configuration of `seed` with DEX.
    pub(super) fn draw_dex(seed: u64, faults: FaultSet) -> Self {
        let mut case = draw_case(seed);
        case.processes = Draw::of(seed, "processes").one_of(&[1, 1, 1, 2]);
        if case.processes > 1 {
            case.moves.spare_servers = case.moves.spare_servers.max(case.processes);
        }
        let mut setup = Self::of_case(seed, faults, case);
        // Each process has a compute server with keys and one without.
        setup.compute_servers = setup.compute_servers.max(case.processes);
        setup.may_die()
    }

    /// If the seed has deaths of compute servers: the case in which they have logs.
    fn may_die(mut self) -> Self {
        let draw = Draw::of(self.seed, "death");
        let dies = self.faults.kills_compute() && draw.one_of(&[true, false]);
        if let (Case::Dex(case), true) = (&mut self.case, dies) {
            case.deaths = draw.one_of(&[1, 3, 8]);
            case.processes = 1;
            case.moves = MoveSetup { spare_servers: 0, share: 0, ..case.moves };
            self.compute_servers = draw.one_of(&[1, 1, 2, 3]);
            if self.compute_servers > 1 {
                // Nodes with keys of several compute servers are split and merged often.
                self.keys = self.keys.max(draw.one_of(&[12, 40, 40]));
            }
        } else if let Case::Dex(case) = &mut self.case
            && self.faults.kills_compute()
            && Draw::of(self.seed, "fall").one_of(&[true, true, false])
        {
            case.falls = true;
            case.processes = 1;
        }
        self
    }

    /// The configuration of `seed` with DEX, with all compute servers in one process.
    pub fn draw_one_process(seed: u64, faults: FaultSet) -> Self {
        Self::of_case(seed, faults, draw_case(seed))
    }

    fn of_case(seed: u64, faults: FaultSet, case: DexCase) -> Self {
        let keys = draw_keys(&Draw::of(seed, "keys"), case.nodes);
        Self::drawn(seed, System::Dex, faults, keys, |subtree_level| {
            Case::Dex(DexCase { subtree_level, ..case })
        })
    }
}

fn draw_case(seed: u64) -> DexCase {
    DexCase {
        processes: 1,
        nodes: draw_nodes(&Draw::of(seed, "nodes")),
        cache: draw_cache(&Draw::of(seed, "cache")),
        offload: draw_offload(&Draw::of(seed, "offload")),
        moves: draw_moves(&Draw::of(seed, "moves")),
        subtree_level: 0,
        deaths: 0,
        falls: false,
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

fn draw_keys(draw: &Draw, nodes: Nodes) -> DrawnKeys {
    match nodes {
        Nodes::Fixed { bytes, .. } => (draw.fixed_sizes(bytes), draw.one_of(&KeyStyle::FIXED), 0.0),
        Nodes::Slotted { bytes, .. } => {
            let sizes = Sizes { key: bytes / 4, value: draw.one_of(&[600, 3_000]), fixed: false };
            (sizes, draw.one_of(&KeyStyle::ALL), draw.one_of(&[0.0, 0.05, 0.3]))
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
        let case = DexCase { processes: 2, ..draw_case(3) };
        assert_eq!([0, 1, 2, 3, 4].map(|server| case.process_of(3, server)), [0, 0, 1, 0, 1]);
        let case = DexCase { processes: 1, ..case };
        assert!((0..5).all(|server| case.process_of(3, server) == 0));
        let processes = |seed| match Setup::draw_dex(seed, FaultSet::NONE).case {
            Case::Dex(case) => case.processes,
            other => unreachable!("{other:?}"),
        };
        assert!([1, 2].iter().all(|&wanted| (0..64).any(|seed| processes(seed) == wanted)));
    }
}
