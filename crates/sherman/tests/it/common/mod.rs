//! Helpers for tests on several fabrics: trees in all variants, and a load that checks every answer.
//!
//! Every slot owns a share of the keys and is the only one that changes them, so it knows their values; for
//! other keys it knows that a value names its key.
pub mod history;

use std::collections::BTreeMap;
use std::ops::Bound;

use pando_fabric::Endpoint;
use pando_pool::Pool;
use pando_sherman::{Audit, Options, ReadCheck, ScanRange, Shape, Sherman};

pub const INDEX: u32 = 0x5_0007;
/// Size of an index cache with room for only a few nodes, in bytes.
pub const SMALL_CACHE: u64 = 8 << 10;

/// Every step from FG to Sherman, each with both kinds of sound reads, and tables so small that nodes share
/// locks.
pub fn variants() -> Vec<(String, Options)> {
    let mut all = vec![("FG".to_owned(), Options::fg())];
    all.extend(Options::ladder(SMALL_CACHE).map(|(name, options)| (name.to_owned(), options.with_locks(64))));
    let versions = |(name, options): &(String, Options)| {
        (format!("{name} with version READs"), options.with_check(ReadCheck::VersionReads))
    };
    all.extend(all.clone().iter().map(versions));
    all.push(("Sherman with 4 locks".into(), Options::sherman(1 << 20).with_locks(4)));
    all.push((
        "+Hierarchical without a cache".into(),
        Options { index_cache: None, ..Options::hierarchical(0) }.with_locks(16),
    ));
    all
}

/// Sizes of keys, values and nodes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    pub key: usize,
    pub value: usize,
    pub node: usize,
}

/// Nodes of about ten entries.
pub const TINY: Sizes = Sizes { key: 8, value: 8, node: 256 };

impl Sizes {
    pub fn shape(&self, options: &Options) -> Shape {
        Shape::new(self.key, self.value, self.node, options).expect("a node has room")
    }

    /// Key number `k`, in numerical order: the last bytes differ.
    pub fn key(&self, k: u64) -> Vec<u8> {
        let mut key = vec![0x5a; self.key.saturating_sub(8)];
        let bytes = k.to_be_bytes();
        key.extend_from_slice(&bytes[bytes.len().saturating_sub(self.key)..]);
        key
    }

    pub fn number(&self, key: &[u8]) -> u64 {
        let tail = &key[key.len().saturating_sub(8)..];
        tail.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// The `n`-th value of key `k`: the same number in all words.
    pub fn value(&self, k: u64, n: u64) -> Vec<u8> {
        let word = (k << 32 | n).to_le_bytes();
        word.iter().copied().cycle().take(self.value).collect()
    }

    /// The key under which a value was stored.
    pub fn key_of(&self, value: &[u8]) -> u64 {
        assert_eq!(value.len(), self.value);
        let word: [u8; 8] = value[..8].try_into().expect("8 bytes");
        assert!(value.chunks(8).all(|chunk| chunk == &word[..chunk.len()]), "a torn value: {value:x?}");
        u64::from_le_bytes(word) >> 32
    }
}

/// A load: each of `owners` performs the given number of operations on the keys below `keys`.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub sizes: Sizes,
    pub keys: u64,
    pub owners: u64,
    pub operations: u64,
    /// Whether removals outweigh insertions at times, so that nodes are merged.
    pub shrinks: bool,
    /// Whether all keys are present from the start and none is ever removed.
    pub is_kept: bool,
}

/// Keys that one slot owns, with their values.
pub type Model = BTreeMap<u64, Vec<u8>>;

impl Load {
    /// Runs one slot, whose keys start as in `model`; returns their final state.
    pub async fn run<'t, E: Endpoint>(
        &self,
        ep: &E,
        owner: u64,
        mut model: Model,
        tree: impl Fn(u64) -> &'t Sherman,
    ) -> Model {
        for n in 1..=self.operations {
            let random = ep.random();
            // A few places are hot.
            let any = if random & 7 < 3 { random >> 8 & 31 } else { (random >> 8) % self.keys };
            let own = any / self.owners * self.owners + owner;
            let own = if own < self.keys { own } else { owner };
            let phase = self.shrinks && n * 4 / self.operations % 2 == 1;
            match random >> 40 & 15 {
                0..7 if phase && !self.is_kept => self.remove(ep, tree(own), &mut model, own).await,
                choice @ 0..8 => self.store(ep, tree(own), &mut model, own, n, choice).await,
                8 if !self.is_kept => self.remove(ep, tree(own), &mut model, own).await,
                9 => self.scan(ep, tree(any), &model, any).await,
                10..13 => {
                    assert_eq!(self.get(ep, tree(own), own).await.as_ref(), model.get(&own), "get {own}");
                }
                _ => {
                    let found = self.get(ep, tree(any), any).await;
                    assert!(found.is_some() || !self.is_kept, "key {any} was there throughout");
                    if let Some(found) = found {
                        assert_eq!(self.sizes.key_of(&found), any, "another key's value");
                    }
                }
            }
            ep.pace().await;
        }
        for k in (owner..self.keys).step_by(self.owners as usize) {
            assert_eq!(self.get(ep, tree(k), k).await.as_ref(), model.get(&k), "key {k} at the end");
        }
        model
    }

    pub async fn get<E: Endpoint>(&self, ep: &E, tree: &Sherman, k: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        tree.get(ep, &self.sizes.key(k), &mut out).await.expect("no error").then_some(out)
    }

    async fn store<E: Endpoint>(
        &self,
        ep: &E,
        tree: &Sherman,
        model: &mut Model,
        k: u64,
        n: u64,
        choice: u64,
    ) {
        let (key, value) = (self.sizes.key(k), self.sizes.value(k, n));
        match choice {
            0..4 => {
                let existed = tree.put(ep, &key, &value).await.expect("no error");
                assert_eq!(existed, model.insert(k, value).is_some(), "put {k}");
            }
            4..6 => {
                let inserted = tree.insert(ep, &key, &value).await.expect("no error");
                assert_eq!(inserted, !model.contains_key(&k), "insert {k}");
                model.entry(k).or_insert(value);
            }
            _ => {
                let updated = tree.update(ep, &key, &value).await.expect("no error");
                assert_eq!(updated, model.contains_key(&k), "update {k}");
                model.entry(k).and_modify(|before| *before = value);
            }
        }
    }

    async fn remove<E: Endpoint>(&self, ep: &E, tree: &Sherman, model: &mut Model, k: u64) {
        let existed = tree.remove(ep, &self.sizes.key(k)).await.expect("no error");
        assert_eq!(existed, model.remove(&k).is_some(), "remove {k}");
    }

    /// Scans from a key on, up to the limit: in order, each key once, and all keys that this slot owns.
    async fn scan<E: Endpoint>(&self, ep: &E, tree: &Sherman, model: &Model, start: u64) {
        let (low, limit) = (self.sizes.key(start), 1 + (ep.random() >> 33) as usize % 60);
        let mut found: Vec<u64> = Vec::new();
        let range = ScanRange { low: Bound::Included(&low), limit, ..ScanRange::all() };
        let visited = tree.scan(ep, &range, |key, value| {
            let k = self.sizes.number(key);
            assert_eq!(self.sizes.key_of(value), k, "another key's value");
            assert!(k >= start && found.last().is_none_or(|&last| last < k), "{k} out of order: {found:?}");
            if let Some(own) = model.get(&k) {
                assert_eq!(value, own.as_slice(), "an old value of key {k}");
            }
            found.push(k);
            true
        });
        assert_eq!(visited.await.expect("no error"), found.len());
        let end = if found.len() < limit { self.keys } else { found[found.len() - 1] };
        for k in model.range(start..=end).map(|(k, _)| k) {
            assert!(found.contains(k), "key {k} was there throughout: {found:?}");
        }
    }
}

/// Checks a tree at rest: its invariants, its entries, and that it accounts for every allocated block of the
/// pool.
pub async fn check_all<E: Endpoint>(
    ep: &E,
    tree: &Sherman,
    pool: &Pool,
    sizes: Sizes,
    expected: &BTreeMap<u64, Vec<u8>>,
) -> Audit {
    let audit = tree.audit(ep).await.expect("no error");
    assert_eq!(audit.violations, Vec::<String>::new());
    let mut found = BTreeMap::new();
    let all = ScanRange::all();
    let scanned = tree.scan(ep, &all, |key, value| {
        found.insert(sizes.number(key), value.to_vec());
        true
    });
    assert_eq!(scanned.await.expect("no error"), expected.len());
    assert!(&found == expected, "the entries are not those that were stored");
    let used: u64 = pool.usage(ep).await.expect("usage").iter().map(|usage| usage.blocks_allocated).sum();
    assert_eq!(used, audit.blocks.len() as u64, "blocks in use and blocks of the index");
    audit
}
