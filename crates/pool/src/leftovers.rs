//! Unfinished work of this process's operations, kept until a later operation finishes it.
//!
//! An operation may stop halfway: its memory server did not answer in time, or its future was dropped. This
//! list keeps its leftovers in order, and one operation at a time works on them. A verb whose future was
//! dropped may still take effect for a while. So dropped work rests for the longest time a verb may take,
//! whether it was dropped by the first operation or by one that was to finish it.

use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::Nanos;

/// Time from which a leftover can be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Now,
    /// Once a verb whose future was dropped must have ended.
    Later,
    At(Nanos),
}

/// Leftovers of the operations of this process.
#[derive(Debug)]
pub struct Leftovers<T> {
    list: Mutex<VecDeque<(T, Due)>>,
    count: AtomicUsize,
    is_busy: AtomicBool,
    /// End of the last rest.
    rests_until: AtomicU64,
}

impl<T> Default for Leftovers<T> {
    fn default() -> Self {
        let (count, is_busy) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { list: Mutex::default(), count, is_busy, rests_until: AtomicU64::new(0) }
    }
}

impl<T> Leftovers<T> {
    fn list(&self) -> MutexGuard<'_, VecDeque<(T, Due)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there are leftovers.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Relaxed) > 0
    }

    /// Number of leftovers.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Whether there is a leftover for which `is_so` holds.
    pub fn has(&self, is_so: impl Fn(&T) -> bool) -> bool {
        self.any() && self.list().iter().any(|(left, _)| is_so(left))
    }

    /// Time until which leftovers rest, or the last one rested. The rest of those that no operation has met
    /// counts from `now`.
    pub fn rests_until(&self, now: Nanos, verbs_take: Nanos) -> Nanos {
        // The first one is being finished by the operation that has the right.
        let met = usize::from(self.is_busy.load(Acquire));
        let is_new = self.any() && self.list().iter().skip(met).any(|(_, due)| *due == Due::Later);
        let next = if is_new { now.saturating_add(verbs_take) } else { 0 };
        self.rests_until.load(Relaxed).max(next)
    }

    pub fn push(&self, left: T, due: Due) {
        let mut list = self.list();
        list.push_back((left, due));
        self.count.store(list.len(), Relaxed);
    }

    /// Takes the right to finish leftovers; `None` if there are none, or if another operation has it.
    pub fn begin(&self) -> Option<Finishing<'_, T>> {
        // Construct it only with the right: dropping it gives the right back.
        (self.any() && !self.is_busy.swap(true, Acquire)).then(|| Finishing { of: self })
    }
}

/// Order in which leftovers are finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order in which they were left.
    AsLeft,
    /// Any that is due.
    Any,
}

/// The exclusive right to finish leftovers.
#[derive(Debug)]
pub struct Finishing<'l, T> {
    of: &'l Leftovers<T>,
}

impl<T: Clone> Finishing<'_, T> {
    /// A leftover that is due at `now`, if verbs take at most `verbs_take`. Call [`done`](Self::done) or
    /// [`failed`](Self::failed) for it; otherwise its verbs count as in flight.
    pub fn next(&mut self, now: Nanos, verbs_take: Nanos, order: Order) -> Option<T> {
        self.next_of(now, verbs_take, order, |_| true)
    }

    /// [`next`](Self::next) among those that `counts`.
    pub fn next_of(
        &mut self,
        now: Nanos,
        verbs_take: Nanos,
        order: Order,
        counts: impl Fn(&T) -> bool,
    ) -> Option<T> {
        let mut list = self.of.list();
        for (_, due) in list.iter_mut() {
            if let Due::Later = due {
                let until = now.saturating_add(verbs_take);
                *due = Due::At(until);
                self.of.rests_until.fetch_max(until, Relaxed);
            }
        }
        let is_due = |due: &Due| !matches!(due, Due::At(due) if now < *due);
        let stops = |(left, due): &(T, Due)| counts(left) && (order == Order::AsLeft || is_due(due));
        let at = list.iter().position(stops).filter(|&at| is_due(&list[at].1))?;
        let (left, _) = list.remove(at)?;
        list.push_front((left.clone(), Due::Later));
        Some(left)
    }

    /// Marks the last leftover as finished.
    pub fn done(&mut self) {
        let mut list = self.of.list();
        list.pop_front();
        self.of.count.store(list.len(), Relaxed);
    }

    /// Marks the last leftover as unfinished, with no verb in flight.
    pub fn failed(&mut self) {
        if let Some((_, due)) = self.of.list().front_mut() {
            *due = Due::Now;
        }
    }
}

impl<T> Drop for Finishing<'_, T> {
    fn drop(&mut self) {
        self.of.is_busy.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_begun_and_dropped_rests_for_as_long_as_a_verb_takes() {
        let left = Leftovers::default();
        left.push('a', Due::Now);
        let mut finishing = left.begin().expect("the right is free");
        assert!(left.begin().is_none(), "one at a time");
        assert!(left.begin().is_none(), "nor after somebody was refused");
        assert_eq!(finishing.next(0, 10, Order::Any), Some('a'));
        drop(finishing);
        let mut finishing = left.begin().expect("the right is free");
        assert_eq!(finishing.next(5, 10, Order::Any), None, "seen to be dropped at 5");
        assert_eq!(finishing.next(14, 10, Order::Any), None);
        assert_eq!(finishing.next(15, 10, Order::Any), Some('a'));
        finishing.failed();
        assert_eq!(finishing.next(15, 10, Order::Any), Some('a'), "its verbs have ended");
        finishing.done();
        assert!(!left.any());
    }

    #[test]
    fn the_end_of_the_last_rest_is_known_after_it() {
        let left = Leftovers::default();
        left.push('a', Due::Now);
        assert_eq!(left.rests_until(1, 10), 0);
        left.push('b', Due::Later);
        assert_eq!(left.rests_until(1, 10), 11, "nobody has met it");
        let mut finishing = left.begin().expect("the right is free");
        assert_eq!(finishing.next(2, 10, Order::Any), Some('a'));
        assert_eq!(left.rests_until(3, 10), 12, "the one that is being finished does not rest");
        finishing.done();
        assert_eq!(finishing.next(12, 10, Order::Any), Some('b'));
        finishing.failed();
        drop(finishing);
        assert_eq!(left.rests_until(20, 10), 12, "a failure starts no rest");
    }

    #[test]
    fn what_is_due_comes_before_what_is_not_unless_the_order_counts() {
        let left = Leftovers::default();
        left.push('a', Due::Later);
        left.push('b', Due::Now);
        let mut finishing = left.begin().expect("the right is free");
        assert_eq!(finishing.next(0, 10, Order::AsLeft), None);
        assert_eq!(finishing.next(1, 10, Order::Any), Some('b'));
        finishing.done();
        assert!(left.has(|&it| it == 'a') && !left.has(|&it| it == 'b'));
        assert_eq!(finishing.next(10, 10, Order::AsLeft), Some('a'), "seen to be dropped at 0");
    }
}
