//! Queues of one compute server's threads in front of locks: hierarchical locks (Sherman §4.3).
//!
//! The thread that has *entered* a lock is the only one of its compute server that tries the remote lock. The
//! others wait in order of arrival. On leaving, it wakes the first waiter; if that one wants the same node,
//! it hands the remote lock over, a limited number of times in succession. A waiter whose future is dropped
//! leaves the queue, and passes on what it was given.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pando_fabric::{GlobalAddr, Resource, Work};

use super::word::LockWord;

/// Number of shards, enough that threads rarely contend.
const SHARDS: usize = 64;

pub(crate) struct Queues {
    shards: Box<[Mutex<HashMap<GlobalAddr, Queue>>]>,
    /// Maximum hand-overs of a remote lock in succession.
    limit: u32,
}

/// Waiters behind the thread that has entered.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    handed: u32,
}

/// One waiter.
pub(crate) struct Waiter {
    node: GlobalAddr,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waker: Option<Waker>,
    turn: Option<Turn>,
    is_nudged: bool,
}

/// A waiter's turn: it has entered, perhaps with the remote lock.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub word: Option<LockWord>,
}

/// Reason for waking a waiter.
pub(crate) enum Woken {
    Turn(Turn),
    /// There is unfinished work, without which the waiter may never get its turn.
    Nudged,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Waiter {
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Woken> {
        let mut state = lock(&self.state);
        if let Some(turn) = state.turn.take() {
            return Poll::Ready(Woken::Turn(turn));
        }
        if std::mem::take(&mut state.is_nudged) {
            return Poll::Ready(Woken::Nudged);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wake(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Queues {
    pub fn new(limit: u32) -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), limit }
    }

    fn part(key: GlobalAddr) -> u32 {
        let hash = key.raw().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (hash >> (u64::BITS - SHARDS.trailing_zeros())) as u32
    }

    fn shard(&self, key: GlobalAddr) -> MutexGuard<'_, HashMap<GlobalAddr, Queue>> {
        lock(&self.shards[Self::part(key) as usize])
    }

    /// Work charged for entering or leaving the lock `key`, and for receiving it.
    pub fn work(key: GlobalAddr) -> Work {
        Work::Hold(Resource::LockQueue(Self::part(key)))
    }

    /// Enters the lock `key` for `node`; returns a place in the queue if the caller must wait.
    pub fn enter(&self, key: GlobalAddr, node: GlobalAddr) -> Option<Arc<Waiter>> {
        let mut shard = self.shard(key);
        let Some(queue) = shard.get_mut(&key) else {
            shard.insert(key, Queue::default());
            return None;
        };
        let waiter = Arc::new(Waiter { node, state: Mutex::default() });
        queue.waiters.push_back(Arc::clone(&waiter));
        Some(waiter)
    }

    /// Enters the lock `key` if it is free.
    pub fn try_enter(&self, key: GlobalAddr) -> bool {
        let mut shard = self.shard(key);
        let is_free = !shard.contains_key(&key);
        if is_free {
            shard.insert(key, Queue::default());
        }
        is_free
    }

    /// Whether the remote lock, held for `node`, will be handed over.
    pub fn hands_over(&self, key: GlobalAddr, node: GlobalAddr) -> bool {
        self.shard(key).get(&key).is_some_and(|queue| self.is_next(queue, node))
    }

    fn is_next(&self, queue: &Queue, node: GlobalAddr) -> bool {
        queue.handed < self.limit && queue.waiters.front().is_some_and(|waiter| waiter.node == node)
    }

    /// Leaves and hands the remote lock over, if the next waiter may have it; returns whether it did.
    pub fn hand_over(&self, key: GlobalAddr, node: GlobalAddr, word: &LockWord) -> bool {
        let mut shard = self.shard(key);
        let Some(queue) = shard.get_mut(&key).filter(|queue| self.is_next(queue, node)) else { return false };
        queue.handed += 1;
        let next = queue.waiters.pop_front().expect("there is a next one");
        drop(shard);
        next.wake(|state| state.turn = Some(Turn { word: Some(word.clone()) }));
        true
    }

    /// Leaves after the remote lock was released.
    pub fn leave(&self, key: GlobalAddr) {
        let mut shard = self.shard(key);
        let next = shard.get_mut(&key).and_then(|queue| {
            queue.handed = 0;
            queue.waiters.pop_front()
        });
        if next.is_none() {
            shard.remove(&key);
        }
        drop(shard);
        if let Some(next) = next {
            next.wake(|state| state.turn = Some(Turn { word: None }));
        }
    }

    /// Removes a waiter from the queue; returns a turn that it was given but did not take.
    pub fn cancel(&self, key: GlobalAddr, waiter: &Arc<Waiter>) -> Option<Turn> {
        let mut shard = self.shard(key);
        if let Some(queue) = shard.get_mut(&key) {
            queue.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        drop(shard);
        lock(&waiter.state).turn.take()
    }

    /// Wakes all waiters for `key`, so that one of them does the unfinished work.
    pub fn nudge(&self, key: GlobalAddr) {
        let shard = self.shard(key);
        let waiters: Vec<_> =
            shard.get(&key).into_iter().flat_map(|queue| queue.waiters.iter().cloned()).collect();
        drop(shard);
        waiters.iter().for_each(|waiter| waiter.wake(|state| state.is_nudged = true));
    }

    /// Number of entered locks.
    #[cfg(test)]
    pub fn entered(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Nonces;
    use pando_fabric::MemoryServerId;
    use pando_pool::AttachSlot;

    fn addr(n: u64) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(0), n * 1024)
    }

    fn word(n: u64) -> LockWord {
        let nonce = Nonces::new().take(n).expect("none is taken");
        LockWord::new(nonce, n, addr(n), 0, AttachSlot(1), 0, false)
    }

    /// Address of the lock that came with the turn, if any.
    fn lock_of(turn: Turn) -> Option<GlobalAddr> {
        turn.word.map(|word| word.at)
    }

    fn turn(waiter: &Waiter) -> Option<Option<GlobalAddr>> {
        match waiter.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Woken::Turn(turn)) => Some(lock_of(turn)),
            _ => None,
        }
    }

    #[test]
    fn turns_go_in_order_and_are_handed_over_so_often() {
        let queues = Queues::new(2);
        let (key, node) = (addr(0), addr(7));
        assert!(queues.enter(key, node).is_none() && !queues.try_enter(key));
        let waiters: Vec<_> = (0..4).map(|_| queues.enter(key, node).expect("it waits")).collect();
        for (n, waiter) in waiters.iter().enumerate() {
            assert!(turn(waiter).is_none());
            let handed = queues.hands_over(key, node) && queues.hand_over(key, node, &word(1));
            assert_eq!(handed, n != 2, "two in succession");
            if !handed {
                queues.leave(key);
            }
            assert_eq!(turn(waiter), Some(handed.then(|| addr(1))));
        }
        assert!(!queues.hands_over(key, node));
        queues.leave(key);
        assert_eq!(queues.entered(), 0);
    }

    #[test]
    fn a_lock_is_not_handed_over_for_another_node() {
        let queues = Queues::new(9);
        assert!(queues.enter(addr(0), addr(1)).is_none());
        let other = queues.enter(addr(0), addr(2)).expect("it waits");
        assert!(!queues.hands_over(addr(0), addr(1)) && !queues.hand_over(addr(0), addr(1), &word(1)));
        queues.leave(addr(0));
        assert_eq!(turn(&other), Some(None));
    }

    #[test]
    fn a_waiter_that_gives_up_leaves_no_gap() {
        let queues = Queues::new(9);
        let key = addr(0);
        assert!(queues.enter(key, key).is_none());
        let (a, b) = (queues.enter(key, key).expect("it waits"), queues.enter(key, key).expect("it waits"));
        assert!(queues.cancel(key, &a).is_none());
        assert!(queues.hand_over(key, key, &word(1)));
        assert_eq!(queues.cancel(key, &b).map(lock_of), Some(Some(addr(1))));
        queues.leave(key);
        assert_eq!(queues.entered(), 0);
    }
}
