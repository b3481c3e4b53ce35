//! One thread of a run: draws operations, performs them on the index, and records their answers.
//!
//! The kinds of operations depend on the index; everything else is the same for all. An operation that does
//! not end within its bound is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};

use pando_dex::ScanRange;
use pando_fabric::{Endpoint, Nanos};

use super::history::{Answer, Book, Entries, Failure, Key, Op, Scan};
use super::index::Index;
use super::keys::draw_value;
use super::linear::Value;
use super::setup::{Mix, PATIENCE_NS, Setup, Skew};
use crate::copies::SimEndpoint;

/// Keys that a scan may pass within the bound of an operation on one key. It is small: with tiny nodes and
/// caches, most leaves have one key, and each may wait for a frame.
const SCANNED_KEYS: usize = 64;
/// Keys that can be looked up together within that bound, if each lookup competes with 50 slots for a few
/// frames.
const KEYS_TOGETHER: usize = 16;

/// Bound of virtual time for an operation on an index of `keys` keys. An operation on one key may wait for
/// `waits` times its patience, since it may wait in several places.
pub fn longest(op: &Op, keys: usize, waits: Nanos) -> Nanos {
    let of_one_key = waits * PATIENCE_NS;
    match op {
        Op::Scan(_) => of_one_key * (1 + keys / SCANNED_KEYS) as Nanos,
        Op::MultiGet(together) => of_one_key * (1 + together.len() / KEYS_TOGETHER) as Nanos,
        _ => of_one_key,
    }
}

/// One operation in `CUT_OFF_EVERY` is cut off, if cut-offs are among the faults: its future is dropped
/// within `CUT_OFF_NS_MAX`, in ns at the usual latency.
const CUT_OFF_EVERY: usize = 64;
const CUT_OFF_NS_MAX: Nanos = 30_000;
const CUT_OFF: &str = "it was cut off";

/// Entries that a scan has returned so far.
pub struct Gathered<'b> {
    book: &'b Book,
    /// Number of entries after which the visitor stops the scan.
    pub limit: usize,
    found: RefCell<Vec<(Key, Value)>>,
}

impl Gathered<'_> {
    pub fn len(&self) -> usize {
        self.found.borrow().len()
    }

    /// Records an entry; returns whether the scan continues.
    pub fn visit(&self, key: &[u8], value: &[u8]) -> bool {
        let key = self.book.key(key);
        let mut found = self.found.borrow_mut();
        found.push((key, self.book.value(key, value)));
        found.len() < self.limit
    }
}

/// One thread.
pub struct Client<I: Index> {
    pub setup: Rc<Setup>,
    pub index: Rc<I>,
    pub book: Rc<Book>,
    pub ep: SimEndpoint,
    pub own: I::Thread,
    pub thread: u32,
    /// State in which this thread last saw each key; gives the expected values of swaps.
    seen: RefCell<BTreeMap<Key, Option<Value>>>,
}

impl<I: Index> Client<I> {
    pub fn new(setup: Rc<Setup>, index: Rc<I>, book: Rc<Book>, ep: SimEndpoint, thread: u32) -> Self {
        let own = index.begin_thread(&ep);
        Self { setup, index, book, ep, own, thread, seen: RefCell::default() }
    }

    pub(super) fn below(&self, n: usize) -> usize {
        (self.ep.random() >> 32) as usize % n
    }

    /// Performs operation number `n` of a slot.
    pub async fn operate(&self, slot: u32, n: usize) {
        self.ep.pace().await;
        I::live(self).await;
        let op = self.draw(n);
        self.perform(slot, op).await;
    }

    /// Performs an operation and records it.
    pub async fn perform(&self, slot: u32, op: Op) {
        let record = self.book.begin(self.thread, slot, op.clone(), self.ep.now());
        let cut_off = self.draw_cut_off();
        let longest = longest(&op, self.book.keys.len(), self.book.waits.get());
        let until = self.ep.now() + cut_off.unwrap_or(longest);
        let answer = match &op {
            Op::Scan(scan) => {
                // Entries that were returned before a failure count.
                let found = Gathered { book: &self.book, limit: scan.limit, found: RefCell::default() };
                let ended = within(&self.ep, until, || false, pin!(self.scan(scan, &found))).await;
                let failed = match ended {
                    Some(Ok(())) => None,
                    Some(Err(error)) => Some(error.to_string()),
                    None if cut_off.is_some() => Some(CUT_OFF.into()),
                    None => return self.stuck(record),
                };
                Answer::Entries(Entries { found: found.found.into_inner(), failed })
            }
            op => match within(&self.ep, until, || false, pin!(I::answer(self, op))).await {
                Some(Ok(answer)) => answer,
                Some(Err(error)) => Answer::Failed(Failure {
                    why: error.to_string(),
                    may_have_taken_effect: I::may_have_taken_effect(&error),
                }),
                None if cut_off.is_some() => {
                    Answer::Failed(Failure { why: CUT_OFF.into(), may_have_taken_effect: true })
                }
                None => return self.stuck(record),
            },
        };
        self.remember(&op, &answer);
        self.book.end(record, answer, self.ep.now());
    }

    /// Time after which the next operation is cut off, or `None`.
    fn draw_cut_off(&self) -> Option<Nanos> {
        let left = &self.book.cuts_left;
        let may = left.get() > 0 && self.ep.now() < self.book.faulty_until.get();
        if !may || self.below(CUT_OFF_EVERY) > 0 {
            return None;
        }
        left.set(left.get() - 1);
        Some(self.ep.random() % (CUT_OFF_NS_MAX as f64 * self.setup.latency_scale) as Nanos)
    }

    fn stuck(&self, record: usize) {
        self.book.end(record, Answer::Stuck, self.ep.now());
    }

    fn remember(&self, op: &Op, answer: &Answer) {
        let mut seen = self.seen.borrow_mut();
        match (op, answer) {
            (Op::Get(key) | Op::Swap { key, .. }, Answer::Found(found)) => drop(seen.insert(*key, *found)),
            (Op::Put(key, value), Answer::Flag(_)) => drop(seen.insert(*key, Some(*value))),
            (Op::Swap { key, new, .. }, Answer::Swapped) => drop(seen.insert(*key, *new)),
            _ => {}
        }
    }

    /// Scans the keys of `scan`, with bounds drawn from all equivalent ones.
    async fn scan(&self, scan: &Scan, found: &Gathered<'_>) -> Result<(), I::Error> {
        let keys = &self.book.keys;
        let (first, end) = (scan.keys.start as usize, scan.keys.end as usize);
        let (is_first, is_last) = (first == 0, end == keys.len());
        let low = match self.below(3) {
            0 if is_first => Bound::Unbounded,
            1 if first > 0 => Bound::Excluded(keys[first - 1].as_slice()),
            _ => Bound::Included(keys[first].as_slice()),
        };
        let high = match self.below(3) {
            0 if is_last => Bound::Unbounded,
            1 if end < keys.len() => Bound::Excluded(keys[end].as_slice()),
            _ => Bound::Included(keys[end - 1].as_slice()),
        };
        // Some visitors stop the scan themselves; their range has no limit.
        let stops_early = self.below(4) == 0;
        let limit = if stops_early { usize::MAX } else { scan.limit };
        let range = ScanRange { low, high, limit, reverse: scan.reverse };
        I::scan(self, &range, found).await
    }

    fn draw_key(&self, n: usize) -> Key {
        let count = self.book.keys.len();
        let at = match self.setup.skew {
            Skew::Uniform => self.below(count),
            Skew::Square => self.below(count) * self.below(count) / count,
            Skew::Moving if self.below(8) == 0 => self.below(count),
            Skew::Moving => (n / 8 + self.below(6)) % count,
        };
        // Leftovers of a cut-off operation are finished by the next operation on the same compute server, so
        // each thread uses keys of its own server.
        let wants_home = self.setup.faults.cuts_off();
        let at_home = |key: &usize| I::is_at_home(self, *key as Key);
        let home = wants_home.then(|| (at..count).chain(0..at).find(at_home)).flatten();
        home.unwrap_or(at) as Key
    }

    fn draw_value(&self, key: Key) -> Value {
        let random = pando_fabric::Random::new(self.ep.random());
        let bytes = draw_value(&random, self.setup.sizes, self.setup.long_share, self.book.next_operation());
        self.book.value(key, &bytes)
    }

    fn draw(&self, n: usize) -> Op {
        if self.below(1_024) < self.setup.moves_share() {
            return Op::Move;
        }
        // A move that was cut off is repeated soon, since no compute server owns its keys until then.
        if self.setup.faults.cuts_off() && self.index.has_to_move() && self.below(4) == 0 {
            return Op::Move;
        }
        let key = self.draw_key(n);
        // Shares out of 64: get, put, insert, update, remove, swap, multi_get, scan; the rest are flushes.
        let shares: [usize; 8] = match self.setup.mix {
            Mix::Balanced => [14, 12, 8, 4, 10, 8, 3, 4],
            Mix::Growing => [8, 20, 14, 4, 4, 8, 2, 3],
            Mix::Shrinking => [8, 6, 10, 2, 28, 4, 2, 3],
            Mix::Looking => [30, 6, 4, 3, 5, 5, 6, 4],
            Mix::Scanning => [6, 12, 8, 2, 12, 4, 2, 17],
        };
        let mut drawn = self.below(64);
        let kind = shares.iter().position(|&share| {
            let is_it = drawn < share;
            drawn = drawn.wrapping_sub(if is_it { 0 } else { share });
            is_it
        });
        match kind {
            Some(0) => Op::Get(key),
            Some(1) => Op::Put(key, self.draw_value(key)),
            Some(2) => Op::Insert(key, self.draw_value(key)),
            Some(3) => Op::Update(key, self.draw_value(key)),
            Some(4) => Op::Remove(key),
            Some(5) if I::SWAPS => self.draw_swap(key),
            Some(5) => Op::Update(key, self.draw_value(key)),
            Some(6) => self.draw_multi_get(key, n),
            Some(7) => Op::Scan(self.draw_scan(key)),
            _ if I::SWAPS => Op::Flush,
            _ => Op::Get(key),
        }
    }

    fn draw_swap(&self, key: Key) -> Op {
        let seen = self.seen.borrow().get(&key).copied();
        let expected = match self.below(8) {
            0 => None,
            1 => Some(self.draw_value(key)),
            _ => seen.unwrap_or(None),
        };
        let new = (self.below(4) > 0).then(|| self.draw_value(key));
        Op::Swap { key, expected, new }
    }

    /// Keys that may be looked up together, some of them twice.
    fn draw_multi_get(&self, key: Key, n: usize) -> Op {
        let mut keys = vec![key];
        for _ in 0..self.below(40) {
            let another = self.draw_key(n);
            if I::go_together(self, another, key) {
                keys.push(another);
            }
        }
        Op::MultiGet(keys)
    }

    fn draw_scan(&self, key: Key) -> Scan {
        let own = 0..self.book.keys.len() as Key;
        let (first, end) = match self.below(4) {
            0 => (own.start, own.end),
            1 => (key, own.end),
            2 => (own.start, key + 1),
            _ => (key, (key + 1 + self.below(20) as Key).min(own.end)),
        };
        let limit = [1, 3, 10, 50, 1_000, 1_000][self.below(6)];
        Scan { keys: first..end, limit, reverse: I::DESCENDS && self.below(2) == 0 }
    }
}

impl<I: Index> Drop for Client<I> {
    fn drop(&mut self) {
        self.index.end_thread(&self.own);
    }
}

/// Output of `future`; `None` if it is still pending after `until`, or has died.
pub(super) async fn within<F: Future>(
    ep: &SimEndpoint,
    until: Nanos,
    has_died: impl Fn() -> bool,
    mut future: Pin<&mut F>,
) -> Option<F::Output> {
    std::future::poll_fn(|cx: &mut Context<'_>| {
        if has_died() {
            return Poll::Ready(None);
        }
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if ep.now() > until => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
