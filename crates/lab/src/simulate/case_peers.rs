//! What a seed stands for besides, if the index is a peer: sizes of nodes, caches and tables of locks.
//!
//! They are such that trees grow and shrink all the time, that caches are too small for anything or hold everything, and that nodes which
//! have nothing to do with each other share locks.

use pando_sherman::{LockPlace, Options};
use serde::Serialize;

use super::faults::FaultSet;
use super::keys::{KeyStyle, Sizes};
use super::setup::{Case, Draw, DrawnKeys, Setup};
use crate::bench::{ShermanSetup, SmartSetup, System};

/// A B-link tree with its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct ShermanCase {
    /// Its techniques with these sizes.
    #[serde(skip)]
    pub options: Options,
    pub node_bytes: usize,
    /// If there is an index cache.
    pub cache_bytes: Option<u64>,
    /// Of each memory server, if locks are in tables.
    pub table_locks: Option<u32>,
    pub hand_over: Option<u32>,
}

/// A radix tree with its sizes.
#[derive(Clone, Debug, Serialize)]
pub struct SmartCase {
    #[serde(skip)]
    pub techniques: SmartSetup,
    pub cache_bytes: u64,
    /// Of each memory server, if there is a table.
    pub table_locks: usize,
    pub scan_width: usize,
    pub limbo_bytes: u64,
    pub look_every: u64,
}

impl Setup {
    /// The configuration of `seed` with a B-link tree.
    pub(super) fn draw_sherman(seed: u64, setup: ShermanSetup, faults: FaultSet) -> Self {
        let draw = Draw::of(seed, "sherman");
        let (node_bytes, sizes) = draw_fixed(&Draw::of(seed, "b-link nodes"));
        let style = draw.one_of(&[KeyStyle::Words, KeyStyle::Dense, KeyStyle::Prefixed]);
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

/// Bytes of a node, and of keys and values of which it holds at least four.
fn draw_fixed(draw: &Draw) -> (usize, Sizes) {
    let node = draw.one_of(&[256, 256, 512, 1024, 1024, 2048]);
    let (key, value) = match node {
        256 => draw.one_of(&[(8, 8), (8, 8), (4, 8), (8, 16), (16, 8)]),
        512 => draw.one_of(&[(8, 8), (16, 24), (24, 8), (5, 40)]),
        1024 => draw.one_of(&[(8, 8), (64, 8), (13, 17), (8, 168), (8, 168)]),
        // Entries of several cache lines.
        _ => draw.one_of(&[(8, 120), (8, 200), (8, 200), (64, 150)]),
    };
    (node, Sizes { key, value, fixed: true })
}

fn draw_any(draw: &Draw) -> DrawnKeys {
    use KeyStyle::{Dense, Nested, Prefixed, Ragged, Short, Words};
    let (key, value) = draw.one_of(&[(8, 8), (8, 8), (4, 40), (24, 100)]);
    let fixed = (Sizes { key, value, fixed: true }, draw.one_of(&[Words, Dense, Prefixed]), 0.0);
    let sizes =
        Sizes { key: draw.one_of(&[16, 40, 100]), value: draw.one_of(&[100, 600, 3_000]), fixed: false };
    let style = draw.one_of(&[Words, Dense, Short, Prefixed, Nested, Ragged]);
    let any = (sizes, style, draw.one_of(&[0.0, 0.05, 0.3]));
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
