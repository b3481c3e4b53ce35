//! Configuration of a seed: a system, servers, keys, operations and faults; and the parameters of the system,
//! its *case*.
//!
//! Each aspect is drawn from its own random numbers, so a new aspect does not change the others of existing
//! seeds.

use std::ops::Range;

use pando_dex::OffloadPolicy;
use pando_fabric::{MemoryServerId, Nanos, Random};
use pando_sim::{FaultKind, Faults, Model, Preemption};
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::case_dex::DexCase;
use super::case_peers::{ShermanCase, SmartCase};
use super::faults::FaultSet;
use super::keys::{KeyStyle, Sizes};
use super::pool_case::PoolCase;
use super::systems::{POOL, Systems};
use crate::bench::System;
use crate::copies::Loss;

/// Entries of the index before the operations begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    Empty,
    /// Bulk-loaded with every second key.
    Half,
    /// Bulk-loaded with all keys.
    Full,
}

/// Distribution of the keys of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skew {
    Uniform,
    /// The product of two uniform numbers: the first keys are hot.
    Square,
    /// Mostly a few neighbours, which change over time.
    Moving,
}

/// Frequent operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    Balanced,
    /// Mostly stores: the tree grows.
    Growing,
    /// Mostly removals.
    Shrinking,
    /// Mostly lookups.
    Looking,
    /// Many scans.
    Scanning,
}

/// Parameters that differ between systems.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Case {
    Dex(DexCase),
    Sherman(ShermanCase),
    Smart(SmartCase),
    /// The pool itself, without an index.
    Pool(PoolCase),
}

/// One configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    pub seed: u64,
    /// The index, with its techniques.
    #[serde(flatten)]
    pub system: System,
    pub memory_servers: usize,
    /// Compute servers with keys at the start.
    pub compute_servers: usize,
    pub threads: usize,
    pub slots: u32,
    pub sizes: Sizes,
    pub key_style: KeyStyle,
    pub keys: usize,
    pub long_share: f64,
    pub read_ahead: usize,
    pub start: Start,
    pub skew: Skew,
    pub mix: Mix,
    pub operations: usize,
    pub torn_share: f64,
    pub latency_scale: f64,
    pub faults: FaultSet,
    /// Copies of each memory server.
    #[serde(skip_serializing_if = "is_one")]
    pub copies: usize,
    /// Preemption of threads while they compute; `None` without it.
    pub preemption: Option<Preemption>,
    #[serde(flatten)]
    pub case: Case,
}

/// Longest time in which an atomic reaches all copies, at the usual latency.
const ATOMIC_NS: f64 = 50_000.0;
/// Longest time that an operation waits for others, in virtual time.
pub const PATIENCE_NS: Nanos = 50_000_000;

/// Time after which a verb to a server that does not answer fails, in virtual time.
const TIMEOUT_NS: Nanos = 300_000;

/// Random choices for one aspect of a seed.
pub struct Draw(Random);

impl Draw {
    pub fn of(seed: u64, aspect: &str) -> Self {
        Self(random_of(seed, aspect))
    }

    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[(self.0.next() >> 32) as usize % choices.len()]
    }

    pub fn below(&self, end: u64) -> u64 {
        (self.0.next() >> 16) % end
    }

    /// Sizes of keys and values of which a node has room for four, or for three beside two fences.
    pub fn fixed_sizes(&self, node_bytes: usize) -> Sizes {
        let (key, value) = match node_bytes {
            256 => self.one_of(&[(8, 8), (8, 8), (4, 8), (8, 16), (16, 8)]),
            512 => self.one_of(&[(8, 8), (16, 24), (24, 8), (5, 40)]),
            1024 => self.one_of(&[(8, 8), (64, 8), (13, 17), (8, 168), (8, 168)]),
            // Entries of several cache lines.
            _ => self.one_of(&[(8, 120), (8, 200), (8, 200), (64, 150)]),
        };
        Sizes { key, value, fixed: true }
    }
}

/// Random numbers for one purpose of a seed.
pub fn random_of(seed: u64, purpose: &str) -> Random {
    Random::new(xxh3_64_with_seed(purpose.as_bytes(), seed))
}

/// Sizes of keys and values, form of keys, and share of long values.
pub type DrawnKeys = (Sizes, KeyStyle, f64);

impl Setup {
    /// The configuration of `seed`, with one of `systems` and those of `faults` that the seed draws.
    pub fn draw(seed: u64, systems: &Systems, faults: FaultSet) -> Self {
        if systems.are_pools() {
            return Self::draw_pool(seed, faults);
        }
        let setup = match systems.draw(seed) {
            System::Sherman(setup) => Self::draw_sherman(seed, setup, faults),
            System::Smart(setup) => Self::draw_smart(seed, setup, faults),
            _ => Self::draw_dex(seed, faults),
        };
        setup.with_copies()
    }

    /// Draws all that does not depend on the system, around the case that a subtree level of the seed gives.
    pub(super) fn drawn(
        seed: u64,
        system: System,
        faults: FaultSet,
        (sizes, key_style, long_share): DrawnKeys,
        case: impl FnOnce(u8) -> Case,
    ) -> Self {
        let servers = Draw::of(seed, "servers");
        let load = Draw::of(seed, "load");
        let faults = faults.draw(&random_of(seed, "faults"));
        let torn = Draw::of(seed, "torn");
        Self {
            seed,
            system,
            memory_servers: servers.one_of(&[1, 2, 3]),
            compute_servers: servers.one_of(&[1, 2, 2, 3, 3]),
            threads: servers.one_of(&[1, 2, 4, 6, 12]),
            slots: servers.one_of(&[1, 1, 2, 4]),
            sizes,
            key_style,
            keys: load.one_of(&[6, 12, 40, 40, 150, 400]),
            long_share,
            read_ahead: load.one_of(&[1, 2, 8]),
            case: case(load.one_of(&[0, 1, 2, 3, 3])),
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
            copies: 1,
            preemption: faults.preempts().then(|| draw_preemption(seed)),
        }
    }

    /// If the seed may lose a memory server: with copies of all of them.
    pub(super) fn with_copies(mut self) -> Self {
        if self.faults.kills_memory() {
            self.copies = Draw::of(self.seed, "copies").one_of(&[2, 2, 3]);
            self.memory_servers = self.memory_servers.max(self.copies);
            if let Case::Dex(case) = &mut self.case {
                case.offload.policy = OffloadPolicy::Never;
            }
        }
        self
    }

    /// The memory server that is lost, and when, in a run whose operations take `span` from `began` on.
    pub fn loss(&self, began: Nanos, span: Nanos) -> Option<Loss> {
        let draw = Draw::of(self.seed, "loss");
        let is_lost = self.copies > 1 && draw.one_of(&[true, true, true, false]);
        // SMART changes data by atomics, and one without an answer may be lost with the primary (docs/replicas.md).
        let is_exposed = matches!(self.system, System::Smart(_)) && self.faults.lose_answers();
        let server = MemoryServerId(draw.below(self.memory_servers as u64) as u16);
        (is_lost && !is_exposed).then(|| Loss { server, at: began + 1 + draw.below(span) })
    }

    /// When atomics were in progress that a loss may have undone, although others have read them. DEX and Sherman change locks by
    /// atomics, and data by WRITEs.
    pub fn undone_by(&self, loss: Loss) -> Range<Nanos> {
        match self.system {
            System::Smart(_) => {
                let takes = (ATOMIC_NS * self.latency_scale.max(1.0)) as Nanos;
                loss.at.saturating_sub(takes)..loss.at + 1
            }
            _ => 0..0,
        }
    }

    /// How many times as long an operation may wait because others change all copies under remote locks, which are not fair.
    pub fn waits_for_copies(&self) -> Nanos {
        match self.case {
            Case::Sherman(_) | Case::Smart(_) => self.copies as Nanos,
            Case::Dex(_) | Case::Pool(_) => 1,
        }
    }

    /// Name of the simulated system.
    pub fn name(&self) -> &'static str {
        match self.case {
            Case::Pool(_) => POOL,
            _ => self.system.name(),
        }
    }

    /// The model of the cluster, with its permanent faults.
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

    /// Longest duration of a verb, if operations are cut off; their leftovers rest for this time. It is short
    /// for DEX, where an operation may meet leftovers in several places.
    pub fn verbs_take_ns(&self) -> Nanos {
        match &self.case {
            Case::Dex(_) => PATIENCE_NS / 10,
            Case::Sherman(_) | Case::Smart(_) | Case::Pool(_) => PATIENCE_NS,
        }
    }

    /// Fill of nodes after the bulk load.
    pub fn fill(&self) -> f64 {
        0.4 + 0.6 * (random_of(self.seed, "fill").next() >> 40) as f64 / (1u64 << 24) as f64
    }

    /// Number of compute servers, including those without keys.
    pub fn all_compute_servers(&self) -> usize {
        match &self.case {
            Case::Dex(case) => self.compute_servers + case.moves.spare_servers,
            Case::Sherman(_) | Case::Smart(_) | Case::Pool(_) => self.compute_servers,
        }
    }

    /// Moves of keys per 1,024 operations.
    pub fn moves_share(&self) -> usize {
        match &self.case {
            Case::Dex(case) => case.moves.share,
            Case::Sherman(_) | Case::Smart(_) | Case::Pool(_) => 0,
        }
    }

    /// Times that the compute server dies.
    pub fn deaths(&self) -> usize {
        match &self.case {
            Case::Dex(case) => case.deaths,
            Case::Sherman(_) | Case::Smart(_) | Case::Pool(_) => 0,
        }
    }

    /// Approximate duration of the operations without faults.
    pub fn span(&self) -> Nanos {
        (self.operations_per_slot() as f64 * 8_000.0 * self.latency_scale) as Nanos
    }

    /// Operations of each slot.
    pub fn operations_per_slot(&self) -> usize {
        self.operations.div_ceil(self.threads * self.slots as usize)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(number: &usize) -> bool {
    *number == 1
}

/// Preempts one in 8 to 512 times, for up to 5 to 400 µs: the time of two to a hundred verbs and more.
fn draw_preemption(seed: u64) -> Preemption {
    let draw = Draw::of(seed, "preemption");
    let (one_in, longest_ns) = (draw.one_of(&[8, 32, 128, 512]), draw.one_of(&[5_000, 50_000, 400_000]));
    Preemption { seed, one_in, longest_ns }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_one_configuration_whatever_others_are_drawn() {
        let text = |seed| {
            serde_json::to_string(&Setup::draw(seed, &Systems::default(), FaultSet::ALL)).expect("plain data")
        };
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        // Faults of the cluster change nothing else.
        let [with, without] = [FaultSet::ALL.of_cluster(), FaultSet::NONE].map(|faults| {
            let setup = Setup { torn_share: 0.0, faults: FaultSet::NONE, ..Setup::draw_dex(3, faults) };
            serde_json::to_string(&setup).expect("plain data")
        });
        assert_eq!(with, without);
        assert_eq!(Setup::draw_dex(3, FaultSet::NONE).torn_share, 0.0);
    }
}
