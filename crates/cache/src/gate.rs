//! A gate: admits operations according to a *view* that changes as a whole, and counts those inside.
//!
//! Operations enter it to use nodes whose keys their compute server owns; the cache does not interpret the
//! view (DEX §4, repartitioning). A change of the view then waits until all operations that entered before it
//! have left.
//!
//! Entering and leaving lock one stripe, the worker's, so workers do not contend. The view changes with all
//! stripes locked, so it changes at one moment for all workers. An operation sees either the old view or the
//! new one, and if it entered by the old view, the change waits for it.
//!
//! Operations inside are counted by the parity of the last change before they entered. So the view may change
//! again only after all operations from before the previous change have left.

use std::sync::Arc;

use crate::sync::{Mutex, lock};

/// Stripes of a gate; further workers share them.
const STRIPES: usize = if cfg!(loom) { 2 } else { 16 };

#[repr(align(128))]
struct Stripe<V>(Mutex<State<V>>);

struct State<V> {
    /// One copy per stripe, so that workers do not count references on each other's cache lines.
    view: Arc<V>,
    parity: usize,
    inside: [u64; 2],
}

/// See the module documentation.
pub struct Gate<V> {
    stripes: Box<[Stripe<V>]>,
}

/// Proof of entry. Dropping it leaves the gate.
#[must_use]
pub struct Inside<'g, V> {
    stripe: &'g Stripe<V>,
    parity: usize,
}

impl<V: Clone> Gate<V> {
    pub fn new(view: V) -> Self {
        let stripe = || Stripe(Mutex::new(State { view: Arc::new(view.clone()), parity: 0, inside: [0; 2] }));
        Self { stripes: (0..STRIPES).map(|_| stripe()).collect() }
    }

    fn stripe(&self, worker: usize) -> &Stripe<V> {
        &self.stripes[worker % self.stripes.len()]
    }

    /// Admits a worker if the view allows it.
    pub fn enter(&self, worker: usize, admits: impl FnOnce(&V) -> bool) -> Option<Inside<'_, V>> {
        let stripe = self.stripe(worker);
        let mut state = lock(&stripe.0);
        if !admits(&state.view) {
            return None;
        }
        let parity = state.parity;
        state.inside[parity] += 1;
        Some(Inside { stripe, parity })
    }

    /// The current view.
    pub fn view(&self, worker: usize) -> Arc<V> {
        Arc::clone(&lock(&self.stripe(worker).0).view)
    }

    /// Replaces the view by the result of `change`. Does not affect [`Gate::is_drained`].
    pub fn update(&self, change: impl FnOnce(&V) -> V) {
        self.replace(change, |_| ());
    }

    /// Replaces the view; from then on [`Gate::is_drained`] tells whether all operations that entered before
    /// have left. Returns `false` and changes nothing while operations from before the previous change are
    /// still inside.
    pub fn turn_over(&self, change: impl FnOnce(&V) -> V) -> bool {
        if !self.is_drained() {
            return false;
        }
        // Only one caller at a time changes the view, and no operation enters with the drained parity.
        self.replace(change, |state| state.parity ^= 1);
        true
    }

    /// Whether all operations that entered before the last [`Gate::turn_over`] have left.
    pub fn is_drained(&self) -> bool {
        self.stripes.iter().all(|stripe| {
            let state = lock(&stripe.0);
            state.inside[state.parity ^ 1] == 0
        })
    }

    fn replace(&self, change: impl FnOnce(&V) -> V, mut each: impl FnMut(&mut State<V>)) {
        let mut states: Vec<_> = self.stripes.iter().map(|stripe| lock(&stripe.0)).collect();
        let Some(first) = states.first() else { return };
        let view = change(&first.view);
        for state in &mut states {
            state.view = Arc::new(view.clone());
            each(state);
        }
    }
}

impl<V> Drop for Inside<'_, V> {
    fn drop(&mut self) {
        lock(&self.stripe.0).inside[self.parity] -= 1;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_change_waits_for_those_before_it_only() {
        let gate = Gate::new(1);
        let first = gate.enter(0, |&view| view == 1).expect("the view admits it");
        assert!(gate.is_drained(), "nothing changed yet");
        assert!(gate.turn_over(|view| view + 1));
        assert!(gate.enter(0, |&view| view == 1).is_none(), "the view is another");
        let second = gate.enter(3, |&view| view == 2).expect("the new view admits it");
        assert!(!gate.is_drained() && !gate.turn_over(|view| view + 1));
        drop(first);
        assert!(gate.is_drained(), "the second came after the change");
        assert!(gate.turn_over(|view| view + 1));
        assert!(!gate.is_drained() && *gate.view(7) == 3);
        drop(second);
        assert!(gate.is_drained());
    }

    #[test]
    fn an_update_does_not_start_a_new_count() {
        let gate = Gate::new(1);
        let inside = gate.enter(0, |_| true);
        gate.update(|view| view + 1);
        assert!(gate.is_drained() && *gate.view(0) == 2);
        assert!(gate.turn_over(|view| view + 1) && !gate.is_drained());
        drop(inside);
        assert!(gate.is_drained());
    }
}
