//! The case of a seed for a peer: sizes of nodes, caches and lock tables.
//!
//! Sizes are chosen so that trees grow and shrink frequently, caches hold almost nothing or everything, and
//! unrelated nodes share locks.

use pando_sherman::{LockPlace, Options};
use serde::Serialize;

use super::faults::FaultSet;
use super::keys::{KeyStyle, Sizes};
use super::setup::{Case, Draw, DrawnKeys, Setup};
use crate::bench::{ShermanSetup, SmartSetup, System};

/// A B-link tree with its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct ShermanCase {
    /// Techniques with the sizes below.
    #[serde(skip)]
    pub options: Options,
    pub node_bytes: usize,
    /// `None` without an index cache.
    pub cache_bytes: Option<u64>,
    /// Locks in the table of each memory server; `None` without tables.
    pub table_locks: Option<u32>,
    pub hand_over: Option<u32>,
}

/// A radix tree with its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct SmartCase {
    #[serde(skip)]
    pub techniques: SmartSetup,
    pub cache_bytes: u64,
    /// Locks in the table of each memory server, if there are tables.
    pub table_locks: usize,
    pub scan_width: usize,
    pub limbo_bytes: u64,
    pub look_every: u64,
}

impl Setup {
    /// The configuration of `seed` with a B-link tree.
    pub(super) fn draw_sherman(seed: u64, setup: ShermanSetup, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "sherman");
        let nodes = Draw::of(seed, "b-link nodes");
        let node_bytes = nodes.one_of(&[256, 256, 512, 1024, 1024, 2048]);
        let sizes = nodes.fixed_sizes(node_bytes);
        let style = draw.one_of(&KeyStyle::FIXED);
        let cache_bytes = draw.one_of(&[0, 4 << 10, 16 << 10, 1 << 20]);
        let table_locks = draw.one_of(&[1, 4, 64, 1 << 12]);
        let hand_over = draw.one_of(&[0, 1, 4, 4, 100]);
        let mut options = setup.options.with_locks(table_locks);
        options.index_cache = options.index_cache.map(|_| cache_bytes);
        options.hand_over = options.hand_over.map(|_| hand_over);
        let table_locks = matches!(options.locks, LockPlace::Table { .. }).then_some(table_locks);
        let case = ShermanCase {
            options,
            node_bytes,
            cache_bytes: options.index_cache,
            table_locks,
            hand_over: options.hand_over,
        };
        let keys = (sizes, style, 0.0);
        Self::drawn(seed, System::Sherman(setup), faults, keys, |_| Case::Sherman(case))
    }

    /// The configuration of `seed` with a radix tree.
    pub(super) fn draw_smart(seed: u64, techniques: SmartSetup, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "smart");
        let case = SmartCase {
            techniques,
            cache_bytes: draw.one_of(&[0, 4 << 10, 32 << 10, 1 << 20]),
            table_locks: draw.one_of(&[1, 4, 64, 1 << 12]),
            scan_width: draw.one_of(&[1, 2, 8, 64]),
            limbo_bytes: draw.one_of(&[256, 4 << 10, 64 << 10]),
            look_every: draw.one_of(&[4, 32, 1024]),
        };
        let keys = draw_any(&Draw::of(seed, "radix keys"));
        Self::drawn(seed, System::Smart(techniques), faults, keys, |_| Case::Smart(case))
    }
}

fn draw_any(draw: &Draw) -> DrawnKeys {
    let (key, value) = draw.one_of(&[(8, 8), (8, 8), (4, 40), (24, 100)]);
    let fixed = (Sizes { key, value, fixed: true }, draw.one_of(&KeyStyle::FIXED), 0.0);
    let sizes =
        Sizes { key: draw.one_of(&[16, 40, 100]), value: draw.one_of(&[100, 600, 3_000]), fixed: false };
    let any = (sizes, draw.one_of(&KeyStyle::ALL), draw.one_of(&[0.0, 0.05, 0.3]));
    draw.one_of(&[fixed, any, any])
}

#[cfg(test)]
mod tests {
    use pando_sherman::Shape;

    use super::*;
    use crate::simulate::Systems;

    #[test]
    fn every_b_link_tree_has_room_for_its_entries() {
        for name in ["fg", "sherman", "p-fg+"] {
            let systems = Systems::new(name, &[], &[]).expect("known");
            for seed in 0..500 {
                let setup = Setup::draw(seed, &systems, FaultSet::NONE);
                let Case::Sherman(ShermanCase { options, node_bytes, .. }) = &setup.case else {
                    unreachable!()
                };
                Shape::new(setup.sizes.key, setup.sizes.value, *node_bytes, options).expect("a shape");
            }
        }
    }
}
