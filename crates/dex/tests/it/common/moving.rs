//! Operations of slots on an index whose boundaries keep moving, and the checks of their results.
//!
//! Every key is changed by one slot only, and read by all. For every key the book has the sequence of states
//! that it was meant to take, and the number of those that it certainly reached. So a reader knows which
//! states it may find.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use pando_dex::layout::Layout;
use pando_dex::{Answers, Ctx, DexError, KeyRange, Leaving, ScanRange, Tree};
use pando_fabric::{DynEndpoint, Endpoint};

use super::Client;
use super::load::key;

/// All states of one key, beginning with absent.
struct States {
    /// The number of the value, or `None` if absent.
    states: Vec<Option<u64>>,
    /// Index of the last state that the key certainly had.
    reached: usize,
}

/// State that all slots share.
pub struct Book {
    keys: Vec<Mutex<States>>,
    /// Servers whose range is being changed.
    busy: Vec<AtomicBool>,
    /// Number of slots that still work.
    working: AtomicU64,
    pub moves: AtomicU64,
    pub abandoned: AtomicU64,
    pub refused: AtomicU64,
}

#[derive(Clone, Copy)]
pub struct MovingLoad {
    pub keys: u64,
    pub slots: u64,
    pub operations: u64,
    /// Whether the length of a value depends on its number; else it is 8 bytes, as in a fixed layout.
    pub long_values: bool,
    /// Number of yields between two moves.
    pub rest: u64,
}

impl Book {
    pub fn new(load: &MovingLoad, servers: usize) -> Self {
        let states = || Mutex::new(States { states: vec![None], reached: 0 });
        Self {
            keys: (0..load.keys).map(|_| states()).collect(),
            busy: (0..servers).map(|_| AtomicBool::new(false)).collect(),
            working: AtomicU64::new(load.slots),
            moves: AtomicU64::new(0),
            abandoned: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn begin(&self, k: u64, state: Option<u64>) {
        self.keys[k as usize].lock().unwrap().states.push(state);
    }

    fn end(&self, k: u64) {
        let mut states = self.keys[k as usize].lock().unwrap();
        states.reached = states.states.len() - 1;
    }

    fn now(&self, k: u64) -> Option<u64> {
        let states = self.keys[k as usize].lock().unwrap();
        states.states[states.reached]
    }

    fn reached(&self, k: u64) -> usize {
        self.keys[k as usize].lock().unwrap().reached
    }

    /// Checks that the key had this state at some time since it reached state `since`.
    fn check(&self, k: u64, since: usize, found: Option<u64>, what: &str) {
        let states = self.keys[k as usize].lock().unwrap();
        let possible = &states.states[since..];
        assert!(possible.contains(&found), "{what} of key {k} found {found:?}, possible was {possible:?}");
    }

    /// Whether the key was present throughout since it reached state `since`.
    fn was_there_since(&self, k: u64, since: usize) -> bool {
        self.keys[k as usize].lock().unwrap().states[since..].iter().all(Option::is_some)
    }
}

/// Value number `n` of a key.
fn value(load: &MovingLoad, k: u64, n: u64) -> Vec<u8> {
    let mut bytes = (k << 40 | n).to_le_bytes().to_vec();
    if load.long_values {
        bytes.resize(8 + (n * 37 % 200) as usize, n as u8);
    }
    bytes
}

fn number(load: &MovingLoad, k: u64, bytes: &[u8]) -> u64 {
    let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert_eq!(word >> 40, k, "the value of another key");
    let n = word & ((1 << 40) - 1);
    assert_eq!(bytes, value(load, k, n), "a value that is no value");
    n
}

/// One slot.
struct Slot<'c, L: Layout> {
    client: &'c Client<'c, L>,
    book: &'c Book,
    load: &'c MovingLoad,
    /// Number of the next value.
    n: Cell<u64>,
}

/// All operations of slot `owner`, which changes the keys that are `owner` modulo the number of slots.
pub async fn work<L: Layout>(client: &Client<'_, L>, book: &Book, load: &MovingLoad, owner: u64) {
    let slot = Slot { client, book, load, n: Cell::new(1) };
    for _ in 0..load.operations {
        slot.step(owner).await;
    }
    for k in (owner..load.keys).step_by(load.slots as usize) {
        assert_eq!(slot.get(k).await, book.now(k), "key {k} at the end");
    }
    book.working.fetch_sub(1, SeqCst);
}

impl<'c, L: Layout> Slot<'c, L> {
    /// The compute server that owns the key; waits while it has no owner.
    async fn place(&self, k: u64) -> (&'c Tree<L>, Ctx<'c, DynEndpoint>) {
        let ep = &self.client.ep;
        let started = ep.now();
        loop {
            let trees = self.client.trees.iter();
            if let Some(i) = trees.clone().position(|tree| tree.range().contains(&key(k))) {
                return self.client.server(i);
            }
            assert!(ep.now() - started < 20_000_000_000, "nobody owns key {k} any more");
            ep.yield_now().await;
        }
    }

    /// Result of an operation; `None` if another compute server owns the key by now.
    fn unless_moved<T>(&self, result: Result<T, DexError>) -> Option<T> {
        match result {
            Ok(result) => Some(result),
            Err(DexError::NotOwned) => {
                self.book.refused.fetch_add(1, SeqCst);
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn get(&self, k: u64) -> Option<u64> {
        loop {
            let (tree, ctx) = self.place(k).await;
            let mut out = Vec::new();
            if let Some(found) = self.unless_moved(tree.get(ctx, &key(k), &mut out).await) {
                return found.then(|| number(self.load, k, &out));
            }
        }
    }

    async fn step(&self, owner: u64) {
        let random = self.client.ep.random();
        let any = random % self.load.keys;
        let own = any / self.load.slots * self.load.slots + owner;
        let action = random >> 32 & 31;
        match action {
            0..16 if own < self.load.keys => self.change(own, action).await,
            16..18 => self.scan(any, random >> 40).await,
            18..20 => self.multi_get(any).await,
            20 => {
                let (tree, ctx) = self.place(any).await;
                tree.flush(ctx).await.unwrap();
            }
            _ => {
                let since = self.book.reached(any);
                let found = self.get(any).await;
                self.book.check(any, since, found, "get");
            }
        }
    }

    /// Makes one change of a key of this slot.
    async fn change(&self, k: u64, action: u64) {
        let n = self.n.replace(self.n.get() + 1);
        let (before, bytes) = (self.book.now(k), value(self.load, k, n));
        let becomes = match action {
            0..6 => Some(n),
            6..8 => before.or(Some(n)),
            8..10 => before.map(|_| n),
            10..12 => Some(n),
            _ => None,
        };
        self.book.begin(k, becomes);
        let expected = before.map(|before| value(self.load, k, before));
        loop {
            let (tree, ctx) = self.place(k).await;
            let key = key(k);
            let done = match action {
                0..6 => tree.put(ctx, &key, &bytes).await.map(|existed| existed == before.is_some()),
                6..8 => tree.insert(ctx, &key, &bytes).await.map(|inserted| inserted == before.is_none()),
                8..10 => tree.update(ctx, &key, &bytes).await.map(|updated| updated == before.is_some()),
                10..12 => {
                    let swapped = tree.compare_and_swap(ctx, &key, expected.as_deref(), Some(&bytes)).await;
                    swapped.map(|swapped| swapped == pando_dex::Swapped::Done)
                }
                _ => tree.remove(ctx, &key).await.map(|existed| existed == before.is_some()),
            };
            if let Some(right) = self.unless_moved(done) {
                assert!(right, "action {action} on key {k} that was {before:?}");
                break;
            }
        }
        self.book.end(k);
    }

    async fn multi_get(&self, from: u64) {
        let keys: Vec<u64> = (0..20).map(|i| (from + i * 7 / 4) % self.load.keys).collect();
        let (tree, ctx) = self.place(from).await;
        let own = tree.range();
        let wanted: Vec<u64> = keys.into_iter().filter(|&k| own.contains(&key(k))).collect();
        let since: Vec<_> = wanted.iter().map(|&k| self.book.reached(k)).collect();
        let mut answers = Answers::default();
        let bytes: Vec<_> = wanted.iter().map(|&k| key(k)).collect();
        if self.unless_moved(tree.multi_get(ctx, &bytes, &mut answers).await).is_none() {
            return;
        }
        for ((&k, since), found) in wanted.iter().zip(since).zip(answers.iter()) {
            self.book.check(k, since, found.map(|bytes| number(self.load, k, bytes)), "multi_get");
        }
    }

    /// Scans up or down from a key, from owner to owner.
    async fn scan(&self, from: u64, random: u64) {
        let (reverse, limit) = (random & 1 == 1, [7, 40, 1000][(random >> 1) as usize % 3]);
        let since: Vec<_> = (0..self.load.keys).map(|k| self.book.reached(k)).collect();
        let mut next = Bound::Included(key(from));
        let mut found: Vec<(u64, u64)> = Vec::new();
        loop {
            let Some((tree, ctx)) = self.place_of_bound(&next, reverse).await else { break };
            let bound = next.as_ref().map(Vec::as_slice);
            let limit = limit - found.len();
            let range = match reverse {
                false => ScanRange { low: bound, limit, ..ScanRange::all() },
                true => ScanRange { high: bound, limit, reverse, ..ScanRange::all() },
            };
            let scanned = tree.scan_owned(ctx, &range, |bytes, value| {
                let k = u64::from_be_bytes(bytes.try_into().unwrap()) >> 32;
                found.push((k, number(self.load, k, value)));
                true
            });
            match self.unless_moved(scanned.await) {
                None => continue,
                Some(scanned) if scanned.complete => break,
                Some(scanned) => next = scanned.next,
            }
        }
        let mut last = None;
        for &(k, n) in &found {
            let right = last.is_none_or(|last| if reverse { k < last } else { k > last });
            assert!(right, "{k} after {last:?}: out of order or twice");
            assert!(if reverse { k <= from } else { k >= from }, "{k} is outside of a scan from {from}");
            last = Some(k);
            self.book.check(k, since[k as usize], Some(n), "scan");
        }
        let passed = |k: u64| {
            let inside = if reverse { k <= from } else { k >= from };
            inside
                && (found.len() < limit || last.is_some_and(|last| if reverse { k > last } else { k < last }))
        };
        let found: BTreeMap<_, _> = found.iter().copied().collect();
        for k in (0..self.load.keys).filter(|&k| passed(k) && !found.contains_key(&k)) {
            assert!(!self.book.was_there_since(k, since[k as usize]), "a scan from {from} missed key {k}");
        }
    }

    /// The compute server at which a scan continues; waits while the key has no owner.
    async fn place_of_bound(
        &self,
        next: &Bound<Vec<u8>>,
        reverse: bool,
    ) -> Option<(&'c Tree<L>, Ctx<'c, DynEndpoint>)> {
        loop {
            let starts = |own: KeyRange| match next {
                Bound::Included(key) => own.contains(key),
                Bound::Excluded(key) if reverse => {
                    own.low.as_ref().is_none_or(|low| low < key)
                        && own.high.as_ref().is_none_or(|high| key <= high)
                }
                _ => panic!("no scan goes on at {next:?}"),
            };
            if let Some(i) = self.client.trees.iter().position(|tree| starts(tree.range())) {
                return Some(self.client.server(i));
            }
            self.client.ep.yield_now().await;
        }
    }
}

/// Moves boundaries back and forth as long as slots work.
pub async fn move_about<L: Layout>(client: &Client<'_, L>, book: &Book, load: &MovingLoad) {
    let ep = &client.ep;
    while book.working.load(SeqCst) > 0 {
        for _ in 0..load.rest {
            ep.yield_now().await;
        }
        let (from, to) = {
            let i = (ep.random() >> 33) as usize % (client.trees.len() - 1);
            if ep.random() >> 40 & 1 == 0 { (i, i + 1) } else { (i + 1, i) }
        };
        if book.busy[from].swap(true, SeqCst) {
            continue;
        }
        if !book.busy[to].swap(true, SeqCst) {
            move_one(client, book, load, from, to).await;
            book.busy[to].store(false, SeqCst);
        }
        book.busy[from].store(false, SeqCst);
    }
}

async fn move_one<L: Layout>(client: &Client<'_, L>, book: &Book, load: &MovingLoad, from: usize, to: usize) {
    let ep = &client.ep;
    let (source, ctx) = client.server(from);
    let own = source.range();
    if own.is_empty() {
        return;
    }
    let boundary = key(ep.random() % load.keys);
    let keep = match own.contains(&boundary) && ep.random() >> 40 & 7 != 0 {
        false => KeyRange { low: Some(boundary.clone()), high: Some(boundary) },
        true if to > from => KeyRange { high: Some(boundary), ..own.clone() },
        true => KeyRange { low: Some(boundary), ..own.clone() },
    };
    let leaving = pando_dex::begin_leave(source, ctx, keep).await.unwrap();
    let goes = leaving.leaves();
    match ep.random() >> 40 & 7 {
        0 => return abandon(ctx, book, leaving).await,
        1 => {
            leaving.flush_share(ctx).await.unwrap();
            return abandon(ctx, book, leaving).await;
        }
        2 => drop(leaving.finish(ctx).await.unwrap()),
        _ => {
            // Two shares, as of two workers.
            let (one, other) = join(leaving.flush_share(ctx), leaving.flush_share(ctx)).await;
            one.unwrap();
            other.unwrap();
            leaving.finish(ctx).await.unwrap();
        }
    }
    match ep.random() >> 40 & 7 {
        0 => return abandon(ctx, book, leaving).await,
        1 => {
            drop(leaving);
            pando_dex::take_over(source, ctx, goes).await.unwrap();
            book.abandoned.fetch_add(1, SeqCst);
            return;
        }
        _ => drop(leaving),
    }
    let (target, ctx) = client.server(to);
    pando_dex::take_over(target, ctx, goes).await.unwrap();
    book.moves.fetch_add(1, SeqCst);
}

async fn abandon<L: Layout>(ctx: Ctx<'_, DynEndpoint>, book: &Book, leaving: Leaving<'_, L>) {
    leaving.abandon(ctx).await.unwrap();
    book.abandoned.fetch_add(1, SeqCst);
}

/// Runs two futures concurrently.
async fn join<A: Future, B: Future>(a: A, b: B) -> (A::Output, B::Output) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut of_a, mut of_b) = (None, None);
    std::future::poll_fn(|cx| {
        if of_a.is_none()
            && let std::task::Poll::Ready(output) = a.as_mut().poll(cx)
        {
            of_a = Some(output);
        }
        if of_b.is_none()
            && let std::task::Poll::Ready(output) = b.as_mut().poll(cx)
        {
            of_b = Some(output);
        }
        match of_a.is_some() && of_b.is_some() {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    (of_a.expect("it ended"), of_b.expect("it ended"))
}
