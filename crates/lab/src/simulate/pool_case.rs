//! The case of a seed for the pool itself: processes, and all sizes.
//!
//! Some processes wait for less time than faults last, so the outcome of their changes may be unknown. Some
//! mostly load indexes, change the catalog, write pages and leave, or add memory servers. There is no index
//! under test, so only the servers, faults and network of a [`Setup`] matter here.

use pando_dex::layout::fixed::FixedLayout;
use pando_fabric::Nanos;
use pando_sim::FaultKind;
use serde::{Serialize, Serializer};

use super::faults::FaultSet;
use super::setup::{Case, Draw, Setup};
use super::systems::POOL;

/// Bytes of the region of each memory server; few, so that freed blocks are soon reused.
pub const REGION: u64 = 1 << 20;
/// Number of memory servers up to which a pool grows.
pub const SERVERS_MAX: usize = 10;
/// Longest time that a patient process waits for another one or for an answer. Faults end sooner than that.
pub const PATIENT_NS: Nanos = 30_000_000;
/// Bytes of a page that a process locks and writes.
pub const PAGE: u64 = 256;

/// Size and layout of the nodes of an index.
pub fn layout() -> (u32, FixedLayout) {
    const BYTES: usize = 256;
    (BYTES as u32, FixedLayout::new(BYTES, 8, 8).expect("a valid layout").with_fanout_limit(4))
}

/// The most frequent operations of processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Often {
    Everything,
    /// Make, change and drop indexes.
    Changes,
    /// Make, load and drop indexes.
    Loads,
    /// Add memory servers and allocate there, leave and come back.
    Servers,
    /// Lock and write pages, and leave.
    Pages,
}

/// The pool with its processes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PoolCase {
    pub processes: usize,
    /// Steps of each process before the end of faults.
    pub steps: usize,
    /// Longest time that a process waits for another one. If it is shorter than faults last, the outcome of
    /// changes may be unknown.
    pub wait_ns: Nanos,
    pub often: Often,
    /// Share of answers that are lost throughout the faulty time, besides all other faults.
    pub lost_share: f64,
}

/// The parts of a [`Setup`] that matter for the pool.
#[derive(Serialize)]
struct PoolSetup<'s> {
    seed: u64,
    system: &'static str,
    memory_servers: usize,
    torn_share: f64,
    latency_scale: f64,
    faults: FaultSet,
    #[serde(flatten)]
    case: &'s PoolCase,
}

/// Serialises a setup without the parts that do not matter for its system.
pub fn serialize_setup<S: Serializer>(setup: &Setup, serializer: S) -> Result<S::Ok, S::Error> {
    let Setup { seed, memory_servers, torn_share, latency_scale, faults, .. } = *setup;
    match &setup.case {
        Case::Pool(case) => {
            let system = POOL;
            PoolSetup { seed, system, memory_servers, torn_share, latency_scale, faults, case }
                .serialize(serializer)
        }
        _ => setup.serialize(serializer),
    }
}

impl Setup {
    /// The configuration of `seed` with the pool.
    pub(super) fn draw_pool(seed: u64, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "processes of the pool");
        let (processes, steps) = (draw.one_of(&[1, 2, 3, 4]), draw.one_of(&[40, 80, 160]));
        let wait_ns = Draw::of(seed, "patience of the pool").one_of(&[100_000, 2_000_000, PATIENT_NS]);
        let often = Draw::of(seed, "what is frequent in the pool");
        let often = often.one_of(&[Often::Everything, Often::Loads, Often::Servers]);
        let turned = Draw::of(seed, "what else is frequent in the pool");
        let often = turned
            .one_of(&[None, None, Some(Often::Changes), Some(Often::Pages), Some(Often::Servers)])
            .unwrap_or(often);
        let drawn = Self::draw_dex(seed, faults.of_cluster());
        let lost = Draw::of(seed, "answers that the pool loses").one_of(&[0.0, 0.003, 0.01, 0.03]);
        let lost_share = if drawn.faults.has(FaultKind::LostAnswers) { lost } else { 0.0 };
        let case = PoolCase { processes, steps, wait_ns, often, lost_share };
        Self { case: Case::Pool(case), keys: 0, ..drawn }
    }
}
