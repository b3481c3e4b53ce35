//! Executes a case on a cluster and on a map.

use std::collections::BTreeMap;
use std::ops::Bound as B;
use std::path::PathBuf;
use std::sync::OnceLock;

use pando::{
    Answers, BulkOptions, Cluster, Config, Create, Error, Index, IndexOptions, Result, ScanRange, Session,
    Swapped,
};

use super::case::{Bound, Case, Key, Op, Run, Shape, Value, servers};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Maximum number of operations per case: libFuzzer needs short runs.
const OPS_MAX: usize = 400;

struct Bench<'c> {
    case: &'c Case,
    shape: Shape,
    options: IndexOptions,
    cluster: Cluster,
    index: Index,
    model: Model,
}

pub fn run(case: &Case) {
    let config = config(case).create(Create::Replace).compute_servers(servers(case.compute_servers));
    let cluster = Cluster::open(config).expect("a new pool");
    let options = case.index_options();
    let index = cluster.create_index("x", &options).expect("a new index");
    let mut bench = Bench { case, shape: case.shape, options, cluster, index, model: Model::new() };
    bench.load(&case.loaded, case.fill);
    for op in case.ops.iter().take(OPS_MAX) {
        bench.step(op);
    }
    bench.scan(Bound::None, Bound::None, None, false);
    bench.scan(Bound::None, Bound::None, None, true);
    bench.check();
    bench.cluster.close().expect("closes");
}

/// A path in memory where possible, so that no disk is involved.
fn path() -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let shm = PathBuf::from("/dev/shm");
        let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
        base.join(format!("pando-fuzz-{}", std::process::id()))
    });
    directory.clone()
}

fn config(case: &Case) -> Config {
    let config = if case.in_file { Config::at(path()) } else { Config::embedded() };
    config
        .memory_servers(case.memory_servers())
        .memory(if case.tight_pool { 512 << 10 } else { 16 << 20 })
        .huge_pages(false)
        .cache(case.cache_bytes())
        .cache_options(case.cache_options())
        .seed(1)
}

/// The value; `None` if the pool is full.
fn unless_full<T>(result: Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if error.is_full() => None,
        Err(error) => panic!("{error}"),
    }
}

impl Bench<'_> {
    fn step(&mut self, op: &Op) {
        let session = self.index.session().expect("a session");
        match op {
            Op::Get(key) => {
                let key = self.shape.key(*key);
                assert_eq!(session.get(&key).expect("get").as_ref(), self.model.get(&key));
            }
            Op::MultiGet(keys) => self.multi_get(&session, keys),
            Op::Put(..) | Op::Insert(..) | Op::Update(..) | Op::Remove(_) => self.change(&session, op),
            Op::Swap(right, key, old, new) => self.swap(&session, *right, *key, *old, *new),
            Op::PutRun(run, value) => {
                for key in run.keys() {
                    self.change(&session, &Op::Put(key, *value));
                }
            }
            Op::RemoveRun(run) => run.keys().for_each(|key| self.change(&session, &Op::Remove(key))),
            Op::Scan { low, high, limit, reverse } => self.scan(*low, *high, *limit, *reverse),
            Op::InFlight { slots, run, value } => self.in_flight(&session, *slots, *run, *value),
            Op::Flush => self.cluster.flush().expect("flushes"),
            Op::Check => {
                drop(session);
                self.check();
            }
            Op::Reopen(choice) => {
                drop(session);
                self.reopen(choice.map(servers));
            }
            Op::Reload(entries, fill) => {
                for key in std::mem::take(&mut self.model).into_keys() {
                    assert!(session.remove(&key).expect("remove"));
                }
                drop(session);
                self.load(entries, *fill);
            }
        }
    }

    fn change(&mut self, session: &Session, op: &Op) {
        let model = &mut self.model;
        match *op {
            Op::Put(key, value) => {
                let (key, value) = (self.shape.key(key), self.shape.value(value));
                if let Some(existed) = unless_full(session.put(&key, &value)) {
                    assert_eq!(existed, model.insert(key, value).is_some(), "{op:?}");
                }
            }
            Op::Insert(key, value) => {
                let (key, value) = (self.shape.key(key), self.shape.value(value));
                if let Some(inserted) = unless_full(session.insert(&key, &value)) {
                    assert_eq!(inserted, !model.contains_key(&key), "{op:?}");
                    model.entry(key).or_insert(value);
                }
            }
            Op::Update(key, value) => {
                let (key, value) = (self.shape.key(key), self.shape.value(value));
                if let Some(updated) = unless_full(session.update(&key, &value)) {
                    assert_eq!(updated, model.contains_key(&key), "{op:?}");
                    model.entry(key).and_modify(|old| *old = value);
                }
            }
            Op::Remove(key) => {
                let key = self.shape.key(key);
                assert_eq!(session.remove(&key).expect("remove"), model.remove(&key).is_some(), "{op:?}");
            }
            _ => unreachable!("not a change of one key"),
        }
    }

    fn swap(&mut self, session: &Session, right: bool, key: Key, old: Option<Value>, new: Option<Value>) {
        let key = self.shape.key(key);
        let found = self.model.get(&key).cloned();
        let expected = if right { found.clone() } else { old.map(|value| self.shape.value(value)) };
        let new = new.map(|value| self.shape.value(value));
        let swapped = session.compare_and_swap(&key, expected.as_deref(), new.as_deref());
        let Some(swapped) = unless_full(swapped) else { return };
        if found != expected {
            assert_eq!(swapped, Swapped::Found(found));
            return;
        }
        assert_eq!(swapped, Swapped::Done);
        match new {
            Some(new) => drop(self.model.insert(key, new)),
            None => drop(self.model.remove(&key)),
        }
    }

    fn multi_get(&self, session: &Session, keys: &[Key]) {
        let keys: Vec<_> = keys.iter().map(|&key| self.shape.key(key)).collect();
        let mut answers = Answers::default();
        session.multi_get(&keys, &mut answers).expect("multi_get");
        let expected: Vec<_> = keys.iter().map(|key| self.model.get(key).map(Vec::as_slice)).collect();
        assert_eq!((0..answers.len()).map(|i| answers.get(i)).collect::<Vec<_>>(), expected);
    }

    /// Each slot has its own keys, so their order does not matter.
    fn in_flight(&mut self, session: &Session, slots: u8, run: Run, value: Option<Value>) {
        let slots = 1 + usize::from(slots % 16);
        let mut keys: Vec<_> = run.keys().map(|key| self.shape.key(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        let value = value.map(|value| self.shape.value(value));
        let done = session.in_flight(slots, |slot, session| {
            let (keys, value) = (&keys, &value);
            async move {
                let mut done = Vec::new();
                for key in keys.iter().skip(slot as usize).step_by(slots) {
                    let existed = match value {
                        Some(value) => unless_full(session.put(key, value).await),
                        None => Some(session.remove(key).await.expect("remove")),
                    };
                    done.push((key, existed));
                }
                done
            }
        });
        for (key, existed) in done.expect("slots").into_iter().flatten() {
            let Some(existed) = existed else { continue };
            let before = match &value {
                Some(value) => self.model.insert(key.clone(), value.clone()),
                None => self.model.remove(key),
            };
            assert_eq!(existed, before.is_some());
        }
    }

    fn scan(&self, low: Bound, high: Bound, limit: Option<u8>, reverse: bool) {
        let session = self.index.session().expect("a session");
        let own = |bound| match bound {
            Bound::None => B::Unbounded,
            Bound::With(key) => B::Included(self.shape.key(key)),
            Bound::Without(key) => B::Excluded(self.shape.key(key)),
        };
        let (low, high) = (own(low), own(high));
        let limit = limit.map_or(usize::MAX, usize::from);
        let range = ScanRange {
            low: low.as_ref().map(Vec::as_slice),
            high: high.as_ref().map(Vec::as_slice),
            limit,
            reverse,
        };
        let mut found = Vec::new();
        let scanned = session.scan(&range, |key, value| {
            found.push((key.to_vec(), value.to_vec()));
            true
        });
        assert_eq!(scanned.expect("scan"), found.len());
        let above = |key: &[u8]| match &low {
            B::Unbounded => true,
            B::Included(low) => *low.as_slice() <= *key,
            B::Excluded(low) => *low.as_slice() < *key,
        };
        let below = |key: &[u8]| match &high {
            B::Unbounded => true,
            B::Included(high) => *key <= *high.as_slice(),
            B::Excluded(high) => *key < *high.as_slice(),
        };
        let entries = self.model.iter().filter(|(key, _)| above(key) && below(key));
        let entries = entries.map(|(key, value)| (key.clone(), value.clone()));
        let expected: Vec<_> = match reverse {
            false => entries.take(limit).collect(),
            true => entries.rev().take(limit).collect(),
        };
        assert!(found == expected, "{range:?}: {found:?} instead of {expected:?}");
    }

    fn check(&self) {
        let report = self.cluster.check().expect("at rest");
        assert!(report.is_clean(), "{:#?}", report.violations);
        assert_eq!(report.indexes[0].entries, self.model.len() as u64);
    }

    fn reopen(&mut self, servers: Option<usize>) {
        if !self.case.in_file {
            return;
        }
        self.cluster.close().expect("closes");
        let mut config = config(self.case);
        if let Some(servers) = servers {
            config = config.compute_servers(servers);
        }
        self.cluster = Cluster::open(config).expect("opens again");
        self.index = match self.cluster.open_or_create_index("x", &self.options) {
            Ok(index) => index,
            // Other boundaries split leaves, which takes memory; the old ones do not.
            Err(error) if error.is_full() => self.cluster.open_index("x").expect("as it was"),
            Err(error) => panic!("{error}"),
        };
    }

    /// Loads into the empty index.
    fn load(&mut self, entries: &[(Key, Value)], fill: u8) {
        let entries: Vec<_> =
            entries.iter().map(|(key, value)| (self.shape.key(*key), self.shape.value(*value))).collect();
        let model: Model = entries.iter().cloned().collect();
        let (leaf_fill, inner_fill) = (f64::from(fill & 15) / 15.0, f64::from(fill >> 4) / 15.0);
        let options = BulkOptions { threads: 1, leaf_fill, inner_fill, ..BulkOptions::default() };
        match self.index.bulk_load_unsorted(entries, &options) {
            Ok(loaded) => {
                assert_eq!(loaded.entries, model.len() as u64);
                self.model = model;
            }
            Err(error) if error.is_full() => self.model = Model::new(),
            Err(Error::NotEmpty { .. }) => panic!("everything was removed"),
            Err(error) => panic!("{error}"),
        }
    }
}
