//! The naive policy: every list that is read is cached, and nothing is ever evicted (DAPD 2022 §4.2, §6).
//!
//! A full cache refuses newcomers, so what it holds are the lists that were read first. Of the dynamic policies
//! it is the paper's best one for range queries.

use super::{Newcomer, Policy, Slot};

/// Never evicts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Naive;

impl Policy for Naive {
    fn hit(&mut self, _slot: Slot) {}

    fn evict(&mut self, _newcomer: &Newcomer<'_>) -> Option<Slot> {
        None
    }

    fn insert(&mut self, _slot: Slot, _newcomer: &Newcomer<'_>) {}
}
