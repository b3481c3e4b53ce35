//! One thread of a run: draws operations, performs them on the compute servers, and notes what they answered.
//!
//! An operation goes to the compute server that its thread's router names; now and then it goes to another one first, and
//! must be refused there unless that is the owner by now. Some operations move keys between compute servers, see `moves.rs`.
//! An operation that does not end within the bound is dropped.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use pando_cache::CacheWorker;
use pando_dex::layout::Layout;
use pando_dex::{Answers, Ctx, DexError, Router, ScanRange, Swapped, Tree};
use pando_fabric::{Endpoint, Nanos};
use pando_sim::SimEndpoint;

use super::cluster::Cluster;
use super::history::{Answer, Book, Entries, Key, Op, Scan};
use super::keys::draw_value;
use super::linear::Value;
use super::setup::{Mix, PATIENCE_NS, Setup, Skew};

/// Virtual time within which an operation on a key ends: it may wait for its patience in a few places.
const OPERATION_NS_MAX: Nanos = 4 * PATIENCE_NS;
/// Keys that a scan may come by in that time. Nodes are tiny and caches too: most leaves have one key, and each may have to
/// wait for a frame.
const SCANNED_KEYS: usize = 64;
/// Keys that can be looked up together in that time, when each lookup waits for its turn among 50 slots on a few frames.
const KEYS_TOGETHER: usize = 16;

/// Virtual time within which an operation on an index of so many keys ends.
pub fn longest(op: &Op, keys: usize) -> Nanos {
    match op {
        Op::Scan(_) => OPERATION_NS_MAX * (1 + keys / SCANNED_KEYS) as Nanos,
        Op::MultiGet(together) => OPERATION_NS_MAX * (1 + together.len() / KEYS_TOGETHER) as Nanos,
        _ => OPERATION_NS_MAX,
    }
}

/// One thread.
pub struct Client<'c, L: Layout> {
    pub setup: &'c Setup,
    pub cluster: &'c Cluster<L>,
    pub book: &'c Book,
    pub ep: SimEndpoint,
    pub workers: Vec<CacheWorker>,
    /// By process.
    pub routers: Vec<Router>,
    pub thread: u32,
    /// What this thread saw last of keys, to swap.
    seen: RefCell<BTreeMap<Key, Option<Value>>>,
}

impl<'c, L: Layout> Client<'c, L> {
    pub fn new(
        setup: &'c Setup,
        cluster: &'c Cluster<L>,
        book: &'c Book,
        ep: SimEndpoint,
        thread: u32,
    ) -> Self {
        let routers =
            cluster.routes.iter().map(|routes| Router::new(Arc::clone(routes), ep.random())).collect();
        let workers = cluster.workers();
        Self { setup, cluster, book, ep, workers, routers, thread, seen: RefCell::default() }
    }

    pub(super) fn server(&self, i: usize) -> (&'c Tree<L>, Ctx<'_, SimEndpoint>) {
        (&self.cluster.trees[i], Ctx { ep: &self.ep, worker: &self.workers[i] })
    }

    /// The router of the process that has a key.
    fn router(&self, key: &[u8]) -> &Router {
        &self.routers[self.cluster.process_of(key)]
    }

    pub(super) fn below(&self, n: usize) -> usize {
        (self.ep.random() >> 32) as usize % n
    }

    /// Performs operation number `n` of a slot.
    pub async fn operate(&self, slot: u32, n: usize) {
        self.ep.pace().await;
        let op = self.draw(n);
        self.perform(slot, op).await;
    }

    /// Performs an operation and notes it.
    pub async fn perform(&self, slot: u32, op: Op) {
        let record = self.book.begin((self.thread, slot), op.clone(), self.ep.now());
        let until = self.ep.now() + longest(&op, self.book.keys.len());
        let answer = match &op {
            Op::Scan(scan) => {
                // What was handed out before it failed stands.
                let found = RefCell::default();
                let ended = within(&self.ep, until, pin!(self.scan(scan, &found))).await;
                let failed = match ended {
                    Some(Ok(())) => None,
                    Some(Err(error)) => Some(error.to_string()),
                    None => return self.stuck(record),
                };
                Answer::Entries(Entries { found: found.into_inner(), failed })
            }
            op => match within(&self.ep, until, pin!(self.answer(op))).await {
                Some(Ok(answer)) => answer,
                Some(Err(error)) => Answer::Failed(error.to_string()),
                None => return self.stuck(record),
            },
        };
        self.remember(&op, &answer);
        self.book.end(record, answer, self.ep.now());
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

    /// The compute server to ask about `key`: the owner, after another one has refused now and then.
    async fn answer(&self, op: &Op) -> Result<Answer, DexError> {
        let key = match op {
            Op::Get(key) | Op::Put(key, _) | Op::Insert(key, _) | Op::Update(key, _) | Op::Remove(key) => {
                *key
            }
            Op::Swap { key, .. } => *key,
            Op::MultiGet(keys) => keys[0],
            Op::Move => return self.move_some().await,
            Op::Scan(_) | Op::Flush => return self.flush().await,
        };
        let key = &self.book.keys[key as usize];
        let servers = self.cluster.trees.len();
        if servers > 1 && self.below(32) == 0 {
            let other = (self.router(key).owner_of(key) + 1 + self.below(servers - 1)) % servers;
            match self.answer_by(other, op).await {
                Err(DexError::NotOwned) => {}
                other => return other,
            }
        }
        match op {
            Op::MultiGet(keys) => self.multi_get(keys).await,
            op => {
                self.router(key)
                    .routed(&self.ep, key, PATIENCE_NS, async |server| self.answer_by(server, op).await)
                    .await
            }
        }
    }

    /// Many keys at once, or one by one if some have moved.
    async fn multi_get(&self, keys: &[Key]) -> Result<Answer, DexError> {
        let first = &self.book.keys[keys[0] as usize];
        let owner = self.router(first).route(first);
        match self.answer_by(owner, &Op::MultiGet(keys.to_vec())).await {
            Err(DexError::NotOwned) => {}
            done => return done,
        }
        let mut values = Vec::new();
        for key in keys {
            let (op, bytes) = (Op::Get(*key), &self.book.keys[*key as usize]);
            let get = async |server| self.answer_by(server, &op).await;
            match self.router(bytes).routed(&self.ep, bytes, PATIENCE_NS, get).await? {
                Answer::Found(value) => values.push(value),
                other => unreachable!("a lookup finds something or nothing, not {other:?}"),
            }
        }
        Ok(Answer::Values(values))
    }

    async fn answer_by(&self, server: usize, op: &Op) -> Result<Answer, DexError> {
        let (tree, ctx) = self.server(server);
        let key = |key: &Key| self.book.keys[*key as usize].as_slice();
        let bytes = |value: &Value| self.book.bytes(*value);
        let flag = Answer::Flag;
        Ok(match op {
            Op::Get(k) => {
                let mut out = Vec::new();
                let found = tree.get(ctx, key(k), &mut out).await?;
                Answer::Found(found.then(|| self.book.value(*k, &out)))
            }
            Op::Put(k, value) => flag(tree.put(ctx, key(k), &bytes(value)).await?),
            Op::Insert(k, value) => flag(tree.insert(ctx, key(k), &bytes(value)).await?),
            Op::Update(k, value) => flag(tree.update(ctx, key(k), &bytes(value)).await?),
            Op::Remove(k) => flag(tree.remove(ctx, key(k)).await?),
            Op::Swap { key: k, expected, new } => {
                let (expected, new) = (expected.as_ref().map(bytes), new.as_ref().map(bytes));
                match tree.compare_and_swap(ctx, key(k), expected.as_deref(), new.as_deref()).await? {
                    Swapped::Done => Answer::Swapped,
                    Swapped::Found(found) => Answer::Found(found.map(|found| self.book.value(*k, &found))),
                }
            }
            Op::MultiGet(keys) => {
                let wanted: Vec<_> = keys.iter().map(key).collect();
                let mut answers = Answers::default();
                tree.multi_get(ctx, &wanted, &mut answers).await?;
                let found = keys.iter().zip(answers.iter());
                Answer::Values(
                    found.map(|(k, value)| value.map(|value| self.book.value(*k, value))).collect(),
                )
            }
            Op::Scan(_) | Op::Flush | Op::Move => unreachable!("no operation of one compute server's keys"),
        })
    }

    async fn flush(&self) -> Result<Answer, DexError> {
        let (tree, ctx) = self.server(self.below(self.cluster.trees.len()));
        tree.flush(ctx).await?;
        Ok(Answer::Done)
    }

    /// Scans the keys of `scan`. The bounds are any that mean them.
    async fn scan(&self, scan: &Scan, found: &RefCell<Vec<(Key, Value)>>) -> Result<(), DexError> {
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
        // Some visitors have enough before the limit.
        let stops_early = self.below(4) == 0;
        let limit = if stops_early { usize::MAX } else { scan.limit };
        let range = ScanRange { low, high, limit, reverse: scan.reverse };
        let visit = |key: &[u8], value: &[u8]| {
            let mut found = found.borrow_mut();
            let key = self.book.key(key);
            found.push((key, self.book.value(key, value)));
            found.len() < scan.limit
        };
        let visit = RefCell::new(visit);
        let scan_of = async |server: usize, part: &ScanRange<'_>| {
            let (tree, ctx) = self.server(server);
            tree.scan_owned(ctx, part, |key, value| (visit.borrow_mut())(key, value)).await
        };
        for (process, part) in self.parts(&range) {
            let handed_out = found.borrow().len();
            if handed_out == scan.limit {
                break;
            }
            let part = ScanRange { limit: limit - handed_out, ..part };
            self.routers[process].scanned(&self.ep, &part, PATIENCE_NS, scan_of).await?;
        }
        Ok(())
    }

    /// A range by the processes that have its keys, in the order of the scan.
    fn parts<'r>(&'r self, range: &ScanRange<'r>) -> Vec<(usize, ScanRange<'r>)> {
        let between = &self.cluster.between_processes;
        let start = |reverse| ScanRange { reverse, ..*range }.first_partition(between);
        let (first, last) = (start(false), start(true));
        let part = |process: usize| {
            let mut part = *range;
            if process > first {
                part.low = Bound::Included(&between[process - 1]);
            }
            if process < last {
                part.high = Bound::Excluded(&between[process]);
            }
            (process, part)
        };
        let mut parts: Vec<_> = (first..=last).map(part).collect();
        if range.reverse {
            parts.reverse();
        }
        parts
    }

    fn draw_key(&self, n: usize) -> Key {
        let count = self.book.keys.len();
        let at = match self.setup.skew {
            Skew::Uniform => self.below(count),
            Skew::Square => self.below(count) * self.below(count) / count,
            Skew::Moving if self.below(8) == 0 => self.below(count),
            Skew::Moving => (n / 8 + self.below(6)) % count,
        };
        at as Key
    }

    fn draw_value(&self, key: Key) -> Value {
        let random = pando_fabric::Random::new(self.ep.random());
        let bytes = draw_value(&random, self.setup.sizes, self.setup.long_share, self.book.next_operation());
        self.book.value(key, &bytes)
    }

    fn draw(&self, n: usize) -> Op {
        if self.below(1_024) < self.setup.moves.share {
            return Op::Move;
        }
        let key = self.draw_key(n);
        // Out of 64: get, put, insert, update, remove, swap, multi_get, scan; the rest is flushes.
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
            Some(5) => self.draw_swap(key),
            Some(6) => self.draw_multi_get(key, n),
            Some(7) => Op::Scan(self.draw_scan(key)),
            _ => Op::Flush,
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

    /// Keys of one compute server, some of them twice.
    fn draw_multi_get(&self, key: Key, n: usize) -> Op {
        let owner = |key: Key| {
            let key = self.book.keys[key as usize].as_slice();
            self.router(key).owner_of(key)
        };
        let mut keys = vec![key];
        for _ in 0..self.below(40) {
            let another = self.draw_key(n);
            if owner(another) == owner(key) {
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
        Scan { keys: first..end, limit, reverse: self.below(2) == 0 }
    }
}

impl<L: Layout> Drop for Client<'_, L> {
    fn drop(&mut self) {
        for (tree, worker) in self.cluster.trees.iter().zip(&self.workers) {
            tree.cache().retire(worker);
        }
    }
}

/// What `future` gives, unless it is still pending after `until`.
async fn within<F: Future>(ep: &SimEndpoint, until: Nanos, mut future: Pin<&mut F>) -> Option<F::Output> {
    std::future::poll_fn(|cx: &mut Context<'_>| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if ep.now() > until => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    })
    .await
}
