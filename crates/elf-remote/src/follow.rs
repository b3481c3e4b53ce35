//! Queries of what the catalog leads to now: an image, or a table of several.
//!
//! A query runs on one version from start to end: the one that was current when its first READs were answered.
//! It begins anew if the catalog says that the version is another one, or if a checksum does. A piece that is
//! wrong though the version is still current is damaged. Several threads share a [`Follower`], each with its own
//! endpoint.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use pando_fabric::{Endpoint, Nanos};
use pando_pool::Pool;

use crate::costs::Offloads;
use crate::error::{Attempt, RemoteError, Result, Retry};
use crate::fetch::{Cost, Fetch, Remote, confirm};
use crate::image::Image;
use crate::manifest::{Kind, Root, Stamped};
use crate::options::ReadOptions;

/// Times that a piece may be wrong before the version counts as damaged.
const BAD_PIECES_MAX: u32 = 2;

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// Version of the index that gave it: the number of changes of its record in the catalog.
    pub version: u64,
    /// Verbs of the query, with those of attempts that were begun anew.
    pub cost: Cost,
}

impl<T> Answer<T> {
    /// The same answer with another value.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Answer<U> {
        Answer { value: map(self.value), version: self.version, cost: self.cost }
    }
}

/// Access of one attempt of a query to the pool.
pub(crate) struct Reads<'q, E> {
    pub ep: &'q E,
    pub pool: &'q Pool,
    pub options: &'q ReadOptions,
    pub offloads: &'q Offloads,
    /// Version of the catalog that is to be confirmed.
    pub check: Option<u64>,
    pub cost: Cost,
}

impl<'q, E: Endpoint> Reads<'q, E> {
    /// Access to an image. The first READs are accompanied by the one that confirms the version.
    pub fn fetch<'f>(&'f mut self, image: &'f Image) -> Fetch<'f, Remote<'f, E>> {
        let access = Remote { ep: self.ep, pool: self.pool, check: &mut self.check };
        let fetch = Fetch::new(access, &image.manifest, self.options, &mut self.cost);
        fetch.with_lists(image.lists.as_ref())
    }

    /// Access for each of `count` searches that run at the same time. One of them confirms the version.
    pub fn divide(&mut self, count: usize) -> Vec<Self> {
        let mut check = self.check.take();
        let one = || Reads { check: check.take(), cost: Cost::default(), ..*self };
        std::iter::repeat_with(one).take(count).collect()
    }

    /// Adds what searches that ran at the same time did.
    pub fn join(&mut self, all: Vec<Self>) {
        let round_trips = all.iter().map(|reads| reads.cost.round_trips).max().unwrap_or(0);
        let before = self.cost.round_trips;
        for reads in all {
            self.cost += reads.cost;
            // A search that did not READ has not confirmed it.
            self.check = self.check.or(reads.check);
        }
        self.cost.round_trips = before + round_trips;
    }

    /// Confirms that the version was current, if no READ was accompanied by that.
    async fn finish(&mut self) -> Attempt<()> {
        let Some(version) = self.check.take() else { return Ok(()) };
        self.cost.checks += 1;
        self.cost.round_trips += 1;
        confirm(self.ep, self.pool, version).await
    }
}

/// A version of an index, as far as it is in DRAM.
pub(crate) trait Version: Sized {
    const KIND: Kind;

    fn stamp(&self) -> u64;

    /// Loads the version that `root` leads to. May take what stayed the same from `known`.
    async fn load<E: Endpoint>(
        reads: &mut Reads<'_, E>,
        root: &Stamped,
        known: Option<&Self>,
    ) -> Attempt<Self>;
}

/// The version of the last query.
struct Current<V> {
    value: Arc<V>,
    version: u64,
    /// Version of the catalog in which it is current; `None` if the catalog was being changed.
    catalog: Option<u64>,
    /// Time at which it was seen to be current.
    seen_at: Nanos,
}

impl<V> Clone for Current<V> {
    fn clone(&self) -> Self {
        Self { value: Arc::clone(&self.value), ..*self }
    }
}

/// An index of the catalog, for queries.
pub(crate) struct Follower<V> {
    pub pool: Pool,
    pub name: String,
    options: ReadOptions,
    offloads: Offloads,
    current: Mutex<Option<Current<V>>>,
    is_loading: AtomicBool,
}

/// What the attempts of a query did so far.
#[derive(Default)]
struct Progress {
    cost: Cost,
    /// Version of the index that the last attempt used.
    version: Option<u64>,
    /// Wrong pieces of that version.
    bad_pieces: u32,
}

impl Progress {
    fn uses(&mut self, version: u64) {
        if self.version.replace(version).is_some_and(|before| before != version) {
            self.bad_pieces = 0;
            self.cost.restarts += 1;
        }
    }
}

/// The right to load a version.
struct Loading<'f>(&'f AtomicBool);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl<V: Version> Follower<V> {
    pub fn new(pool: Pool, name: String, options: ReadOptions) -> Self {
        let (offloads, current) = (Offloads::new(options.offloading), Mutex::default());
        Self { pool, name, options, offloads, current, is_loading: AtomicBool::new(false) }
    }

    /// Runs `search` on the current version, again if it turns out to be replaced.
    pub async fn answer<T, E: Endpoint>(
        &self,
        ep: &E,
        search: impl AsyncFn(&V, &mut Reads<'_, E>) -> Attempt<T>,
    ) -> Result<Answer<T>> {
        let mut progress = Progress::default();
        let (mut is_stale, mut was_drained) = (false, false);
        loop {
            match self.attempt(ep, &search, &mut progress, is_stale).await {
                Ok((value, version)) => return Ok(Answer { value, version, cost: progress.cost }),
                Err(Retry::Failed(error)) if !was_drained && self.is_drained(ep, &error).await => {
                    was_drained = true;
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Moved) => {}
                Err(Retry::Changed(addr)) => {
                    progress.bad_pieces += 1;
                    if progress.bad_pieces > BAD_PIECES_MAX {
                        return Err(RemoteError::BadPiece { name: self.name.clone(), addr });
                    }
                }
            }
            let times = progress.cost.restarts;
            if times > self.options.restarts_max {
                return Err(RemoteError::KeptChanging { name: self.name.clone(), times });
            }
            is_stale = true;
        }
    }

    /// Whether an attempt failed at a memory server that is drained, as the version that is known may be there.
    async fn is_drained<E: Endpoint>(&self, ep: &E, error: &RemoteError) -> bool {
        let Some(server) = error.unreached() else { return false };
        self.pool.learn(ep).await.is_ok() && self.pool.has_drained(server)
    }

    async fn attempt<T, E: Endpoint>(
        &self,
        ep: &E,
        search: &impl AsyncFn(&V, &mut Reads<'_, E>) -> Attempt<T>,
        progress: &mut Progress,
        is_stale: bool,
    ) -> Attempt<(T, u64)> {
        let is_fresh =
            |current: &Current<V>| ep.now() < current.seen_at.saturating_add(self.options.check_age_ns);
        let can_be_used = |current: &Current<V>| is_fresh(current) || current.catalog.is_some();
        let (current, check) = match self.known().filter(|known| !is_stale && can_be_used(known)) {
            Some(known) if is_fresh(&known) => (known, None),
            Some(known) => (known.clone(), known.catalog),
            // What is loaded now is current during this query.
            None => (self.load(ep, progress).await?, None),
        };
        progress.uses(current.version);
        let mut reads = self.reads(ep, check);
        let value = match search(&current.value, &mut reads).await {
            Ok(value) => reads.finish().await.map(|()| value),
            failed => failed,
        };
        progress.cost += reads.cost;
        Ok((value?, current.version))
    }

    fn reads<'q, E: Endpoint>(&'q self, ep: &'q E, check: Option<u64>) -> Reads<'q, E> {
        let (pool, options, offloads) = (&self.pool, &self.options, &self.offloads);
        Reads { ep, pool, options, offloads, check, cost: Cost::default() }
    }

    fn known(&self) -> Option<Current<V>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no other query loads a version, at most until `deadline`: then both load it.
    async fn begin_loading<E: Endpoint>(&self, ep: &E, deadline: Nanos) -> Option<Loading<'_>> {
        while self.is_loading.swap(true, Acquire) {
            if ep.now() >= deadline {
                return None;
            }
            ep.yield_now().await;
        }
        Some(Loading(&self.is_loading))
    }

    /// Finds the current version in the catalog, and loads it unless it is known.
    async fn load<E: Endpoint>(&self, ep: &E, progress: &mut Progress) -> Attempt<Current<V>> {
        let since = ep.now();
        let _loading = self.begin_loading(ep, ep.wait_until(since, self.pool.verbs_take())).await;
        let known = self.known();
        // Another query has loaded it while this one waited.
        if let Some(current) = known.clone().filter(|current| current.seen_at > since) {
            return Ok(current);
        }
        // 1. The version of the catalog first: if it stays the same, so has the record.
        let seen_at = ep.now();
        let catalog = self.pool.catalog_version(ep).await?;
        let record = self.pool.open_index(ep, &self.name).await?;
        let not_an_elf = || RemoteError::NotAnElf { name: self.name.clone() };
        let root = Root::of_kind(V::KIND, &record.layout).ok_or_else(not_an_elf)?;
        let root = root.ok_or_else(|| RemoteError::NoImage { name: self.name.clone() })?;
        progress.uses(record.version);
        // 2. What it leads to, if that is another version.
        let value = match &known {
            Some(known) if known.value.stamp() == root.stamp => Arc::clone(&known.value),
            _ => {
                let mut reads = self.reads(ep, None);
                let known = known.as_ref().map(|known| &*known.value);
                let loaded = V::load(&mut reads, &root, known).await;
                progress.cost += reads.cost;
                Arc::new(loaded?)
            }
        };
        let current = Current { value, version: record.version, catalog, seen_at };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current.clone());
        Ok(current)
    }
}
