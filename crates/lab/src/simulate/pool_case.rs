//! What a seed stands for besides, if it is the pool itself that is simulated: processes, and sizes of everything.
//!
//! Some processes wait for less time than faults last, so that changes end of which nobody knows whether they were made; and some
//! mostly load indexes, or add memory servers. There is no index of one system, so nothing else of a [`Setup`] but servers,
//! faults and the network means anything here.

use pando_dex::layout::fixed::FixedLayout;
use pando_fabric::Nanos;
use serde::Serialize;

use super::faults::FaultSet;
use super::setup::{Case, Draw, Setup};

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
    /// Make, load and drop indexes.
    Loads,
    /// Add memory servers and allocate there.
    Servers,
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
}

impl Setup {
    /// The configuration of `seed` with the pool.
    pub(super) fn draw_pool(seed: u64, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "processes of the pool");
        let (processes, steps) = (draw.one_of(&[1, 2, 3, 4]), draw.one_of(&[40, 80, 160]));
        let wait_ns = Draw::of(seed, "patience of the pool").one_of(&[100_000, 2_000_000, PATIENT_NS]);
        let often = Draw::of(seed, "what is frequent in the pool");
        let often = often.one_of(&[Often::Everything, Often::Loads, Often::Servers]);
        let case = PoolCase { processes, steps, wait_ns, often };
        Self { case: Case::Pool(case), keys: 0, ..Self::draw_dex(seed, faults.of_cluster()) }
    }
}
