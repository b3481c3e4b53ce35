//! After any sequence of readings, a cache holds what a naive model of its policy holds.

use std::collections::HashMap;
use std::sync::Arc;

use pando_elf::{Cache, CacheOptions, Lfu, ListId, Lla, Lru, Naive, Original, Policy, TwoQueue, Weights};
use proptest::prelude::*;
use zerocopy::little_endian::U32;

/// A list with words that tell it from others; `rows` are below it.
struct List {
    words: Vec<U32>,
    rows: u64,
}

impl List {
    /// Lists of 1 to 5 words; a third of them is light, and weights occur several times.
    fn new(id: u64) -> Self {
        let words = (0..=id % 5).map(|word| U32::new((id * 10 + word) as u32)).collect();
        Self { words, rows: id * 7 % 24 + id % 3 * Weights::FLOOR }
    }

    fn bytes(&self) -> u64 {
        self.words.len() as u64 * 4
    }
}

impl Original for List {
    fn words(&self) -> &[U32] {
        &self.words
    }

    fn count_rows(&self) -> u64 {
        assert!(self.rows < Weights::FLOOR, "the rows of a heavy list are known");
        self.rows
    }
}

/// Contents of a cache, in an order that the model of its policy keeps.
#[derive(Default)]
struct Model {
    lists: Vec<u64>,
    /// Queue A1.
    once: Vec<u64>,
    /// Readings since a list was cached, and the time of the last one.
    readings: HashMap<u64, (u64, u64)>,
    now: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Naive,
    Lru,
    Lfu,
    TwoQueue(usize),
    Lla,
}

impl Kind {
    fn policy(self) -> Box<dyn Policy> {
        match self {
            Self::Naive => Box::new(Naive),
            Self::Lru => Box::new(Lru::default()),
            Self::Lfu => Box::new(Lfu::default()),
            Self::TwoQueue(once) => Box::new(TwoQueue::new(once)),
            Self::Lla => {
                let weights = Weights::new((0..IDS).map(|id| (ListId(id), List::new(id).rows)));
                Box::new(Lla::new(Arc::new(weights)))
            }
        }
    }

    /// What the policy evicts for `newcomer`: a place in `lists`.
    fn victim(self, model: &Model, lists: &[u64], newcomer: u64) -> Option<usize> {
        let first = |key: &dyn Fn(u64) -> (u64, u64)| (0..lists.len()).min_by_key(|&at| key(lists[at]));
        match self {
            Self::Naive => None,
            Self::Lru | Self::TwoQueue(_) => first(&|list| (model.readings[&list].1, 0)),
            Self::Lfu => first(&|list| model.readings[&list]),
            Self::Lla => first(&|list| (List::new(list).rows, list))
                .filter(|&at| List::new(lists[at]).rows < List::new(newcomer).rows),
        }
    }
}

impl Model {
    fn read(&mut self, kind: Kind, options: CacheOptions, list: u64) {
        self.now += 1;
        if self.lists.contains(&list) {
            let (number, _) = self.readings[&list];
            self.readings.insert(list, (number + 1, self.now));
            return;
        }
        if let Kind::TwoQueue(once) = kind
            && options.lists > 0
        {
            let was_once = self.once.contains(&list);
            self.once.retain(|&other| other != list);
            if !was_once {
                self.once.push(list);
                let surplus = self.once.len().saturating_sub(once);
                self.once.drain(..surplus);
                return;
            }
        }
        let bytes = |lists: &[u64]| lists.iter().map(|&list| List::new(list).bytes()).sum::<u64>();
        let limit = options.bytes.unwrap_or(u64::MAX);
        let mut left = self.lists.clone();
        while left.len() >= options.lists || bytes(&left) + List::new(list).bytes() > limit {
            let fits = List::new(list).bytes() <= limit;
            let Some(victim) = kind.victim(self, &left, list).filter(|_| fits) else { return };
            left.remove(victim);
        }
        left.push(list);
        self.lists = left;
        self.readings.insert(list, (1, self.now));
    }
}

const IDS: u64 = 30;

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Naive),
        Just(Kind::Lru),
        Just(Kind::Lfu),
        (0..9_usize).prop_map(Kind::TwoQueue),
        Just(Kind::Lla),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_cache_holds_what_the_model_of_its_policy_holds(
        kind in kinds(),
        lists in 0..10_usize,
        bytes in prop::option::of(0..80_u64),
        partitions in 0..5_usize,
        // Small numbers are more frequent.
        readings in prop::collection::vec((0..IDS, 0..IDS).prop_map(|(a, b)| a.min(b)), 0..300),
    ) {
        let options = CacheOptions { lists, bytes, partitions };
        let mut cache = Cache::new(options, kind.policy());
        let mut model = Model::default();
        for &id in &readings {
            let was_cached = model.lists.contains(&id);
            let slot = cache.read(ListId(id), &List::new(id));
            model.read(kind, options, id);
            let found = slot.and_then(|slot| cache.words(slot, ListId(id)));
            let expected = List::new(id).words;
            prop_assert_eq!(found, model.lists.contains(&id).then_some(expected.as_slice()));
            prop_assert!(!was_cached || slot.is_some());
            let mut held: Vec<u64> = cache.lists().map(|list| list.0).collect();
            held.sort_unstable();
            let mut expected = model.lists.clone();
            expected.sort_unstable();
            prop_assert_eq!(&held, &expected, "{:?} after list {}", kind, id);
            prop_assert_eq!(cache.bytes(), held.iter().map(|&list| List::new(list).bytes()).sum::<u64>());
            prop_assert_eq!(cache.len(), held.len());
        }
        let counters = cache.counters();
        prop_assert_eq!(counters.hits + counters.misses, readings.len() as u64);
        prop_assert_eq!(counters.insertions + counters.refused, counters.misses);
        prop_assert_eq!(counters.insertions - counters.evictions, cache.len() as u64);
    }
}

#[test]
fn a_reader_notices_that_its_list_was_evicted() {
    let mut cache = Cache::new(CacheOptions::lists(1), Lru::default());
    let first = cache.read(ListId(1), &List::new(1)).expect("room");
    let second = cache.read(ListId(2), &List::new(2)).expect("LRU admits every list");
    assert_eq!((first, cache.words(first, ListId(1))), (second, None));
    assert_eq!(cache.words(second, ListId(2)), Some(List::new(2).words.as_slice()));
}
