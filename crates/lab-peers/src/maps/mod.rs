//! The adapters, one per file, and the table of all maps.
//!
//! An adapter uses its map as the map's authors recommend: with its guards and handles, and without locks
//! that the map does not need. The table describes how each map is used; the note appears under the results.

mod bf_tree;
mod btree;
mod concurrent_map;
mod congee;
mod masstree;
pub mod pando_map;
mod scc_tree;
mod skip_list;

use crate::{Contender, Kind, Loaded, OrderedMap};

/// A map of the comparison, and its loader.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub name: &'static str,
    pub kind: Kind,
    /// A map of this project, not a peer.
    pub ours: bool,
    /// Note under the table: how the adapter uses the map.
    pub note: &'static str,
    pub load: Load,
}

/// Builds a map from pairs; the flag tells whether they ascend by key.
pub type Load = fn(&[(u64, u64)], bool) -> anyhow::Result<Box<dyn Contender>>;

/// All maps; those of this project come first.
pub fn all() -> Vec<Entry> {
    let mut entries = pando_map::entries();
    entries.extend([
        entry::<btree::StdBTreeMap>(
            "BTreeMap",
            Kind::BTree,
            "std; one RwLock around it with 2 threads and more",
        ),
        entry::<concurrent_map::LockFreeBTree>(
            "concurrent-map",
            Kind::BTree,
            "a copy of the handle per thread",
        ),
        entry::<scc_tree::SccTreeIndex>("scc TreeIndex", Kind::BTree, "peek under a guard per batch, upsert"),
        entry::<masstree::Masstree>(
            "masstree",
            Kind::BTree,
            "inline values, big-endian keys, a guard per batch",
        ),
        entry::<bf_tree::BfTreeMap>(
            "bf-tree",
            Kind::BTree,
            "in memory, big-endian keys; a scan locks leaves",
        ),
        entry::<skip_list::SkipList>(
            "crossbeam-skiplist",
            Kind::SkipList,
            "a guard per batch, values are atomics",
        ),
        entry::<congee::CongeeMap>("congee", Kind::RadixTree, "a guard per batch"),
    ]);
    entries
}

fn entry<M: OrderedMap + 'static>(name: &'static str, kind: Kind, note: &'static str) -> Entry {
    let load = |pairs: &[(u64, u64)], sorted| {
        let map = M::load(pairs, sorted)?;
        Ok(Box::new(Loaded(map)) as Box<dyn Contender>)
    };
    Entry { name, kind, ours: false, note, load }
}

#[cfg(test)]
mod tests {
    use super::all;
    use crate::data::DataSet;
    use crate::driver::Measurement;
    use crate::measure::Phase;
    use pando_workload::{Distribution, KeySpace};
    use std::time::Duration;

    /// Every map answers correctly in every phase, loaded in either order, with one thread and with two.
    #[test]
    fn every_map_is_a_map() {
        for space in [KeySpace::Dense, KeySpace::Random64] {
            let data = DataSet::new(space, 20_000);
            let shuffled = data.shuffled();
            for (entry, sorted) in all().into_iter().flat_map(|entry| [(entry, true), (entry, false)]) {
                let pairs = if sorted { &data.pairs } else { &shuffled };
                let map =
                    (entry.load)(pairs, sorted).unwrap_or_else(|error| panic!("{}: {error}", entry.name));
                for threads in [1, 2] {
                    let distribution = Distribution::Zipf { theta: 0.99 };
                    let time = Duration::from_millis(5);
                    let measurement =
                        Measurement::new(&data, distribution, threads, 2048, 100, 64, time).expect("valid");
                    for (sequence, phase) in Phase::ALL.into_iter().cycle().take(8).enumerate() {
                        let rate = measurement.run(&*map, phase, sequence as u64);
                        rate.unwrap_or_else(|error| panic!("{} in {space}, {phase:?}: {error}", entry.name));
                    }
                }
            }
        }
    }
}
