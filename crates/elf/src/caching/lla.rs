//! Least likely accessed: LFU with fixed weights (DAPD 2022 §4.2).
//!
//! The weight of a list is the share of rows below it: the probability that the search for a random row reads
//! it. N is the same for all lists, so weights are numbers of rows here. A full cache evicts its lightest list,
//! but only for a heavier newcomer; otherwise the newcomer is refused. Readings change nothing. The lightest
//! list is on top of a heap: a replacement takes logarithmic time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use super::table::Table;
use super::{ListId, Newcomer, Policy, Slot};

/// Rows below the heavy lists of an image: those with at least [`FLOOR`](Self::FLOOR) rows.
///
/// Most lists have few rows: of the 28 million lists of 10^8 uniform rows (10 columns, cardinality 100) one
/// million have 16 or more. So only these are stored, and the rows of a light list are counted when a cache
/// that is not full, or full of light lists, asks for them.
#[derive(Clone, Debug)]
pub struct Weights {
    rows: Table,
}

impl Weights {
    /// Rows from which a list is stored.
    pub const FLOOR: u64 = 16;

    /// Collects the heavy ones of `lists`, which are given with the rows below them.
    pub fn new(lists: impl IntoIterator<Item = (ListId, u64)>) -> Self {
        let mut weights = Self { rows: Table::new(1) };
        lists.into_iter().for_each(|(list, rows)| weights.add(list, rows));
        weights
    }

    /// Adds a list if it is heavy. A linear image has less than 2^31 rows.
    pub(crate) fn add(&mut self, list: ListId, rows: u64) {
        if rows >= Self::FLOOR {
            self.rows.insert(list, rows as u32);
        }
    }

    /// Number of heavy lists.
    pub fn lists(&self) -> usize {
        self.rows.len()
    }

    /// Memory in bytes, 20 to 40 for each heavy list.
    pub fn bytes(&self) -> u64 {
        self.rows.bytes()
    }

    /// Rows below `list`; `None` if they are fewer than [`FLOOR`](Self::FLOOR).
    fn heavy(&self, list: ListId) -> Option<u64> {
        self.rows.get(list).map(u64::from)
    }

    fn of(&self, newcomer: &Newcomer<'_>) -> u64 {
        self.heavy(newcomer.list).unwrap_or_else(|| (newcomer.count_rows)())
    }
}

/// A cached list, ordered by its weight. Of lists with equal weights the first in the image leaves first.
type Cached = (u64, ListId, Slot);

/// Evicts the lightest list for a heavier one.
#[derive(Clone, Debug)]
pub struct Lla {
    /// `None` if the rows of every list are counted.
    weights: Option<Arc<Weights>>,
    lightest: BinaryHeap<Reverse<Cached>>,
    /// Lists that were evicted for the newcomer in question.
    evicted: Vec<Cached>,
}

impl Lla {
    /// A policy for caches of the image that `weights` belong to.
    pub fn new(weights: Arc<Weights>) -> Self {
        Self { weights: Some(weights), ..Self::counting() }
    }

    /// A policy that asks for the rows of each newcomer, where these are known.
    pub fn counting() -> Self {
        Self { weights: None, lightest: BinaryHeap::new(), evicted: Vec::new() }
    }

    fn weight(&self, newcomer: &Newcomer<'_>) -> u64 {
        self.weights.as_ref().map_or_else(|| (newcomer.count_rows)(), |weights| weights.of(newcomer))
    }
}

impl Policy for Lla {
    fn hit(&mut self, _slot: Slot) {}

    fn evict(&mut self, newcomer: &Newcomer<'_>) -> Option<Slot> {
        let &Reverse((lightest, ..)) = self.lightest.peek()?;
        // A light newcomer need not be counted if the cache holds heavy lists only.
        let is_light = self.weights.as_ref().is_some_and(|weights| weights.heavy(newcomer.list).is_none());
        if (is_light && lightest >= Weights::FLOOR) || self.weight(newcomer) <= lightest {
            return None;
        }
        let Reverse(cached) = self.lightest.pop()?;
        self.evicted.push(cached);
        Some(cached.2)
    }

    fn insert(&mut self, slot: Slot, newcomer: &Newcomer<'_>) {
        self.evicted.clear();
        self.lightest.push(Reverse((self.weight(newcomer), newcomer.list, slot)));
    }

    fn restore(&mut self, slot: Slot) {
        self.lightest.extend(self.evicted.extract_if(.., |evicted| evicted.2 == slot).map(Reverse));
    }
}
