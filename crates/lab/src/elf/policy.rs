//! A policy that tells a walker what a cache does.
//!
//! It passes every call on, so the cache holds what the policy chooses. The walker charges what that costs: links that
//! change, entries of hash tables, and the copy of a list.

use pando_elf::{ListId, Newcomer, Policy, Slot};

use super::walker::Walker;

/// A policy and its observer. `words` gives the words of a list in its image.
pub struct Observed<'w, P, W> {
    policy: P,
    walker: &'w Walker,
    words: W,
}

impl<'w, P: Policy, W: Fn(ListId) -> u64> Observed<'w, P, W> {
    pub fn new(policy: P, walker: &'w Walker, words: W) -> Self {
        Self { policy, walker, words }
    }
}

impl<P: Policy, W: Fn(ListId) -> u64> Policy for Observed<'_, P, W> {
    fn hit(&mut self, slot: Slot) {
        self.policy.hit(slot);
        self.walker.hit(slot);
    }

    fn nominates(&mut self, list: ListId) -> bool {
        self.walker.nominated(list);
        self.policy.nominates(list)
    }

    fn evict(&mut self, newcomer: &Newcomer<'_>) -> Option<Slot> {
        let evicted = self.policy.evict(newcomer);
        self.walker.evicting(newcomer.list, evicted.is_some());
        evicted
    }

    fn insert(&mut self, slot: Slot, newcomer: &Newcomer<'_>) {
        self.policy.insert(slot, newcomer);
        let from = newcomer.list.0;
        self.walker.copied(slot, from..from + (self.words)(newcomer.list));
    }

    fn restore(&mut self, slot: Slot) {
        self.policy.restore(slot);
    }
}
