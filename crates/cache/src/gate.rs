//! A gate: who may begin something, judged by a *view* that changes as a whole, and who is still inside.
//!
//! Operations pass it to use nodes of keys that their compute server owns; what the view says, the cache does not know
//! (DEX §4, repartitioning). Whoever changes the view then waits until all those have left who entered before.
//!
//! Entering and leaving lock one stripe, that of the worker, so workers do not meet. The view is changed with all
//! stripes locked, so at one moment for everybody: an operation that entered or looked at the view saw all of the old
//! one or all of the new one, and if it entered by the old one it is counted among those who are waited for.
//!
//! Those inside are counted by the parity of the change that they came after, so the view is changed again only once all
//! of two changes before have left.

use std::sync::Arc;

use crate::cache::lock;
use crate::sync::Mutex;

/// Stripes of a gate; workers beyond share them.
const STRIPES: usize = if cfg!(loom) { 2 } else { 16 };

#[repr(align(128))]
struct Stripe<V>(Mutex<State<V>>);

struct State<V> {
    /// Each stripe has its own, so that nobody counts references on the line of another.
    view: Arc<V>,
    parity: usize,
    inside: [u64; 2],
}

/// See the module documentation.
pub struct Gate<V> {
    stripes: Box<[Stripe<V>]>,
}

/// Proof that somebody entered. Dropping it is leaving.
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

    /// Lets a worker in, if the view admits it.
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

    /// What is true at this moment.
    pub fn view(&self, worker: usize) -> Arc<V> {
        Arc::clone(&lock(&self.stripe(worker).0).view)
    }

    /// Replaces the view by what `change` makes of it, without counting anew who enters from now on.
    pub fn update(&self, change: impl FnOnce(&V) -> V) {
        self.replace(change, |_| ());
    }

    /// Replaces the view; from then on [`Gate::is_drained`] says whether all have left who entered before. `false`, and
    /// nothing changes, while some are inside who entered before the change before.
    pub fn turn_over(&self, change: impl FnOnce(&V) -> V) -> bool {
        if !self.is_drained() {
            return false;
        }
        // One at a time changes the view, and nobody enters by the parity that was drained.
        self.replace(change, |state| state.parity ^= 1);
        true
    }

    /// Whether all have left who entered before the last change by [`Gate::turn_over`].
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
    fn an_update_counts_nobody_anew() {
        let gate = Gate::new(1);
        let inside = gate.enter(0, |_| true);
        gate.update(|view| view + 1);
        assert!(gate.is_drained() && *gate.view(0) == 2);
        assert!(gate.turn_over(|view| view + 1) && !gate.is_drained());
        drop(inside);
        assert!(gate.is_drained());
    }
}
