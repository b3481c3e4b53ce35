//! What a seed stands for besides, if it is the pool itself that is simulated: processes, and sizes of everything.
//!
//! Some processes wait for less time than faults last, so that changes end of which nobody knows whether they were made; and some
//! mostly load indexes, change the catalog, write pages and leave, or add memory servers. There is no index of one system, so nothing else of a [`Setup`] but servers,
//! faults and the network means anything here.

use pando_dex::layout::fixed::FixedLayout;
use pando_fabric::Nanos;
use pando_sim::FaultKind;
use serde::{Serialize, Serializer};

use super::faults::FaultSet;
use super::setup::{Case, Draw, Setup};
use super::systems::POOL;

/// Bytes of the region of each memory server: few, so that blocks are soon handed out again.
pub const REGION: u64 = 1 << 20;
/// Memory servers that a pool grows to.
pub const SERVERS_MAX: usize = 10;
/// How long a patient process waits for another one, or for an answer. All is well sooner than that.
pub const PATIENT_NS: Nanos = 30_000_000;
/// Bytes of a page that a process locks and writes.
pub const PAGE: u64 = 256;

/// Bytes of the nodes of an index, and how they are laid out.
pub fn layout() -> (u32, FixedLayout) {
    const BYTES: usize = 256;
    (BYTES as u32, FixedLayout::new(BYTES, 8, 8).expect("a valid layout").with_fanout_limit(4))
}

/// What processes do more often than anything else.
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
    /// Of each process, before all is well again.
    pub steps: usize,
    /// How long a process waits for another one. If that is shorter than faults last, changes end of which nobody knows whether
    /// they were made.
    pub wait_ns: Nanos,
    pub often: Often,
    /// This share of answers is lost throughout, besides all faults.
    pub lost_share: f64,
}

/// What of a [`Setup`] means something for the pool.
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

/// A setup without what means nothing for its system.
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
