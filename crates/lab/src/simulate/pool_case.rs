//! What a seed stands for besides, if it is the pool itself that is simulated: processes, and sizes of everything.

use pando_dex::layout::fixed::FixedLayout;
use pando_fabric::Nanos;
use serde::Serialize;

use super::faults::FaultSet;
use super::setup::{Case, Draw, Setup};

/// Bytes of the region of each memory server: few, so that blocks are soon handed out again.
pub const REGION: u64 = 1 << 20;
/// Memory servers that a pool grows to.
pub const SERVERS_MAX: usize = 4;
/// How long a process waits for another one.
pub const WAIT_NS: Nanos = 30_000_000;
/// Bytes of a page that a process locks and writes.
pub const PAGE: u64 = 256;

/// Bytes of the nodes of an index, and how they are laid out.
pub fn layout() -> (u32, FixedLayout) {
    const BYTES: usize = 256;
    (BYTES as u32, FixedLayout::new(BYTES, 8, 8).expect("a valid layout").with_fanout_limit(4))
}

/// The pool with its processes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct PoolCase {
    pub processes: usize,
    /// Of each process, before all is well again.
    pub steps: usize,
}

impl Setup {
    /// The configuration of `seed` with the pool.
    pub(super) fn draw_pool(seed: u64, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "processes of the pool");
        let case = PoolCase { processes: draw.one_of(&[1, 2, 3, 4]), steps: draw.one_of(&[40, 80, 160]) };
        Self { case: Case::Pool(case), keys: 0, ..Self::draw_dex(seed, faults.of_cluster()) }
    }
}
