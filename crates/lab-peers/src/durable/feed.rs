//! The updates of one thread: keys drawn in advance, until the time is over.
//!
//! An update writes the value that belongs to its key and to the way of this round, so two threads that update a key
//! write the same, and each update can be looked up afterwards.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use anyhow::ensure;
use pando_workload::mix64;

use crate::data::{Draw, value_of};

/// Updates of a thread that are looked up afterwards, the first ones.
const CHECKED: usize = 10_000;

pub(super) struct Feed<'a> {
    draws: &'a [Draw],
    /// Position of the first update in the draws.
    first: usize,
    sequence: u64,
    ends: &'a AtomicBool,
    taken: Cell<usize>,
}

impl<'a> Feed<'a> {
    pub fn new(draws: &'a [Draw], sequence: u64, ends: &'a AtomicBool) -> Self {
        let first = mix64(sequence) as usize % draws.len();
        Self { draws, first, sequence, ends, taken: Cell::new(0) }
    }

    /// Key and value of the next update; `None` once the time is over, but for the first one.
    #[inline]
    pub fn next(&self) -> Option<(u64, u64)> {
        let taken = self.taken.get();
        if taken > 0 && self.ends.load(Relaxed) {
            return None;
        }
        self.taken.set(taken + 1);
        Some(self.update(taken))
    }

    fn update(&self, number: usize) -> (u64, u64) {
        let key = self.draws[(self.first + number) % self.draws.len()].key;
        (key, value_of(key, self.sequence))
    }

    /// Hands all updates to `commit`, so many together.
    ///
    /// # Errors
    /// Those of `commit`.
    pub fn in_batches(
        &self,
        together: usize,
        mut commit: impl FnMut(&[(u64, u64)]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut batch = Vec::with_capacity(together);
        loop {
            batch.clear();
            batch.extend(std::iter::from_fn(|| self.next()).take(together));
            if batch.is_empty() {
                return Ok(());
            }
            commit(&batch)?;
        }
    }

    /// Number of updates that were taken.
    pub fn taken(&self) -> usize {
        self.taken.get()
    }

    /// Looks up the first updates.
    ///
    /// # Errors
    /// An update that is not there; those of `get`.
    pub fn check(&self, get: impl Fn(u64) -> anyhow::Result<Option<u64>>) -> anyhow::Result<()> {
        (0..self.taken().min(CHECKED)).try_for_each(|number| {
            let (key, value) = self.update(number);
            let found = get(key)?;
            ensure!(found == Some(value), "the update of key {key} was lost: found {found:x?}");
            Ok(())
        })
    }
}
