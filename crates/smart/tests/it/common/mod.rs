//! Shared helpers: shapes of keys, a slot that checks every answer for its own keys against a model, and an
//! account of all blocks.
pub mod history;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use pando_fabric::Endpoint;
use pando_pool::Pool;
use pando_rt::block_on;
use pando_smart::{Audit, CachePolicy, CreateOptions, NodeRoom, Smart, SmartConfig, Techniques};

pub const INDEX: u32 = 7;

/// Conversion of numbers to keys.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// 8 bytes, big-endian: dense.
    Dense,
    /// 8 bytes, big-endian, far apart.
    Sparse,
    /// Strings of various lengths with long common prefixes; some are prefixes of others.
    Strings,
}

impl Shape {
    pub fn key(self, k: u64) -> Vec<u8> {
        match self {
            Self::Dense => k.to_be_bytes().to_vec(),
            Self::Sparse => k.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec(),
            Self::Strings => {
                let mut key = Vec::new();
                let mut left = k;
                while left > 0 {
                    let words: [&[u8]; 4] = [b"a", b"ab", b"a common part of keys", b"\0"];
                    key.extend(words[(left % 5 % 4) as usize]);
                    key.push(b'0' + (left % 5) as u8);
                    left /= 5;
                }
                key
            }
        }
    }
}

/// A value that names its key; some are long.
pub fn value(k: u64, n: u64) -> Vec<u8> {
    let len = 16 + (n % 7 * 5) as usize + if n.is_multiple_of(11) { 300 } else { 0 };
    let mut value = k.to_le_bytes().to_vec();
    value.extend(n.to_le_bytes());
    value.resize(len, n as u8);
    value
}

/// Number of the value `found`, which must have been put under `k`.
pub fn number_of(k: u64, found: &[u8]) -> u64 {
    let n = u64::from_le_bytes(found[8..16].try_into().expect("16 bytes"));
    assert_eq!(found, value(k, n), "torn or of another key than {k}");
    n
}

/// An index with its options.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub techniques: Techniques,
    pub node_room: NodeRoom,
    pub cache_bytes: u64,
    pub cache_policy: CachePolicy,
    pub limbo_bytes: u64,
}

impl Setup {
    pub fn new(techniques: Techniques) -> Self {
        Self {
            techniques,
            node_room: NodeRoom::Full,
            cache_bytes: 16 << 10,
            cache_policy: CachePolicy::Fifo,
            limbo_bytes: 2 << 10,
        }
    }

    pub async fn create<E: Endpoint>(&self, ep: &E, pool: &Pool) -> SmartConfig {
        let mut options = CreateOptions::new(INDEX, self.techniques);
        (options.node_room, options.users_max, options.table_locks) = (self.node_room, 8, 16);
        let anchor = Smart::create(ep, pool, &options).await.expect("created");
        let mut config = SmartConfig::new(anchor, self.techniques);
        config.cache_bytes = self.cache_bytes;
        config.cache_policy = self.cache_policy;
        config.limbo_bytes = self.limbo_bytes;
        config.look_every = 16;
        config
    }
}

/// The work of one slot: `owner` owns the keys that equal its number modulo the number of owners.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    pub shape: Shape,
    pub keys: u64,
    pub owner: u64,
    pub owners: u64,
    pub operations: u64,
}

impl Life {
    /// Runs the slot; returns its keys and values at the end.
    pub async fn live<E: Endpoint>(self, smart: &Smart, ep: &E) -> BTreeMap<u64, u64> {
        let Self { shape, keys, owner, owners, operations } = self;
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        for n in 1..=operations {
            let random = ep.random();
            // A few places are hot.
            let any = if random & 7 < 3 { random >> 8 & 15 } else { (random >> 8) % keys };
            let own = any / owners * owners + owner;
            let (key, new) = (shape.key(own), value(own, n));
            match random >> 32 & 15 {
                0..4 => {
                    let existed = smart.put(ep, &key, &new).await.expect("no error");
                    assert_eq!(existed, model.insert(own, n).is_some(), "put {own}");
                }
                4..6 => {
                    let inserted = smart.insert(ep, &key, &new).await.expect("no error");
                    assert_eq!(inserted, !model.contains_key(&own), "insert {own}");
                    model.entry(own).or_insert(n);
                }
                6..8 => {
                    let updated = smart.update(ep, &key, &new).await.expect("no error");
                    assert_eq!(updated, model.contains_key(&own), "update {own}");
                    model.entry(own).and_modify(|value| *value = n);
                }
                8..11 => {
                    let existed = smart.remove(ep, &key).await.expect("no error");
                    assert_eq!(existed, model.remove(&own).is_some(), "remove {own}");
                }
                11 => self.scan(smart, ep, &model, any).await,
                12..15 => assert_eq!(get(smart, ep, shape, own).await, model.get(&own).copied(), "get {own}"),
                _ => drop(get(smart, ep, shape, any).await),
            }
            ep.pace().await;
        }
        for k in (owner..keys + owners).step_by(owners as usize) {
            assert_eq!(get(smart, ep, shape, k).await, model.get(&k).copied(), "key {k} at the end");
        }
        model
    }

    /// Scans from a key on, up to the limit: in order, each key once, and all keys that this slot owns.
    async fn scan<E: Endpoint>(self, smart: &Smart, ep: &E, model: &BTreeMap<u64, u64>, start: u64) {
        let low = self.shape.key(start);
        let limit = [1, 10, 40, usize::MAX][(ep.random() >> 40) as usize % 4];
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut own = BTreeMap::new();
        let bounds = (Bound::Included(low.as_slice()), Bound::Unbounded);
        let visited = smart.scan(ep, bounds, limit, |key, value| {
            let k = u64::from_le_bytes(value[..8].try_into().expect("8 bytes"));
            let n = number_of(k, value);
            assert_eq!(self.shape.key(k), key, "another key's value");
            assert!(key >= low.as_slice() && found.last().is_none_or(|last| last.as_slice() < key), "order");
            if k % self.owners == self.owner {
                own.insert(k, n);
            }
            found.push(key.to_vec());
            true
        });
        assert_eq!(visited.await.expect("no error"), found.len());
        let end = if found.len() < limit { None } else { found.last() };
        let expected = model.iter().filter(|&(&k, _)| {
            let key = self.shape.key(k);
            key >= low && end.is_none_or(|end| key <= *end)
        });
        assert_eq!(own, expected.map(|(&k, &n)| (k, n)).collect(), "scan from {start} of {limit}");
    }
}

pub async fn get<E: Endpoint>(smart: &Smart, ep: &E, shape: Shape, k: u64) -> Option<u64> {
    let mut out = Vec::new();
    let found = smart.get(ep, &shape.key(k), &mut out).await.expect("no error");
    found.then(|| number_of(k, &out))
}

/// Checks the index and its number of entries, and that every block of the pool is in the index or waits to
/// be freed.
pub fn audit<E: Endpoint>(ep: &E, indexes: &[&Smart], entries: u64) {
    let audit = block_on(ep, indexes[0].audit(ep)).expect("no error");
    assert_eq!(audit.violations, [""; 0]);
    assert_eq!(audit.entries, entries);
    assert_eq!(account(ep, indexes, &audit), BTreeSet::new(), "leaked");
}

/// Blocks of the pool that are neither in the index nor waiting to be freed. No block may be both.
pub fn account<E: Endpoint>(ep: &E, indexes: &[&Smart], audit: &Audit) -> BTreeSet<u64> {
    let mut needed: BTreeSet<u64> = audit.blocks.iter().map(|(at, _)| at.raw()).collect();
    for (at, _) in indexes.iter().flat_map(|smart| smart.limbo()) {
        assert!(needed.insert(at.raw()), "the block at {at} is in use, or unlinked twice");
    }
    let mut allocated = BTreeSet::new();
    block_on(
        ep,
        indexes[0].pool().visit_allocated(ep, |at, _| {
            allocated.insert(at.raw());
        }),
    )
    .expect("no error");
    let missing: Vec<_> = needed.difference(&allocated).collect();
    assert!(missing.is_empty(), "in use though free: {missing:x?}");
    allocated.difference(&needed).copied().collect()
}
