//! Queues of the threads of one compute server in front of locks: hierarchical locks (Sherman §4.3).
//!
//! Who has *entered* a lock is the only one of its compute server that tries the remote one. The others wait in the order in which
//! they came. Who leaves wakes the first of them, or hands over the remote lock to it if it wants the same node, a limited
//! number of times in succession. A waiter whose future is dropped leaves its place, and passes on what it was given.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use pando_fabric::{GlobalAddr, Resource, Work};

use super::word::LockWord;

/// Parts that threads seldom meet in.
const SHARDS: usize = 64;

pub(crate) struct Queues {
    shards: Box<[Mutex<HashMap<GlobalAddr, Queue>>]>,
    /// How often a remote lock is handed over in succession.
    limit: u32,
}

/// Those behind the one who has entered.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Arc<Waiter>>,
    handed: u32,
}

/// One that waits for its turn.
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

/// What a waiter is given: it has entered, perhaps with the remote lock.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub word: Option<LockWord>,
}

/// Why a waiter is woken.
pub(crate) enum Woken {
    Turn(Turn),
    /// Something is left to be finished, without which it may never have its turn.
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

    /// To be charged by who enters or leaves the lock `key`, or is given it.
    pub fn work(key: GlobalAddr) -> Work {
        Work::Hold(Resource::LockQueue(Self::part(key)))
    }

    /// Enters the lock `key` for `node`; who has to wait gets a place in the queue.
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

    /// Enters the lock `key` if nobody has.
    pub fn try_enter(&self, key: GlobalAddr) -> bool {
        let mut shard = self.shard(key);
        let is_free = !shard.contains_key(&key);
        if is_free {
            shard.insert(key, Queue::default());
        }
        is_free
    }

    /// Whether the remote lock is to be handed over, held for `node`.
    pub fn hands_over(&self, key: GlobalAddr, node: GlobalAddr) -> bool {
        self.shard(key).get(&key).is_some_and(|queue| self.is_next(queue, node))
    }

    fn is_next(&self, queue: &Queue, node: GlobalAddr) -> bool {
        queue.handed < self.limit && queue.waiters.front().is_some_and(|waiter| waiter.node == node)
    }

    /// Leaves with the remote lock, if the next one may have it. Whether it has.
    pub fn hand_over(&self, key: GlobalAddr, node: GlobalAddr, word: &LockWord) -> bool {
        let mut shard = self.shard(key);
        let Some(queue) = shard.get_mut(&key).filter(|queue| self.is_next(queue, node)) else { return false };
        queue.handed += 1;
        let next = queue.waiters.pop_front().expect("there is a next one");
        drop(shard);
        next.wake(|state| state.turn = Some(Turn { word: Some(word.clone()) }));
        true
    }

    /// Leaves; the remote lock was given back.
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

    /// The waiter does not wait any longer; what it was given and did not take, if it was.
    pub fn cancel(&self, key: GlobalAddr, waiter: &Arc<Waiter>) -> Option<Turn> {
        let mut shard = self.shard(key);
        if let Some(queue) = shard.get_mut(&key) {
            queue.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        drop(shard);
        lock(&waiter.state).turn.take()
    }

    /// Wakes all who wait for `key`, that one of them finishes what is left.
    pub fn nudge(&self, key: GlobalAddr) {
        let shard = self.shard(key);
        let waiters: Vec<_> =
            shard.get(&key).into_iter().flat_map(|queue| queue.waiters.iter().cloned()).collect();
        drop(shard);
        waiters.iter().for_each(|waiter| waiter.wake(|state| state.is_nudged = true));
    }

    /// Locks that somebody has entered.
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

    /// Where the lock is that came with the turn, if there was one.
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
    fn who_gives_up_leaves_no_gap() {
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
