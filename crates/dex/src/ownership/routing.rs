//! Routes of operations to the compute servers that own their keys (DEX §4).
//!
//! A [`RoutingTable`] names the owners of all keys and never changes; [`Routes`] has the current one. A
//! [`Router`] belongs to one thread and routes by its own copy, which may be old. A compute server refuses
//! keys that it does not own ([`DexError::NotOwned`]); then the router checks for a newer table. While keys
//! move from one compute server to another both refuse them and there is no newer table yet, so the operation
//! waits ([`Detour`]).
//!
//! - The epoch grows by one with every table; a router never returns to an older one.
//! - The partitions of a table tile the key space, none is empty, and a compute server has one of them or
//!   none.
//! - A table is published after the new owner has taken the keys over, so it admits operations that follow
//!   the table.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{Endpoint, Nanos, Patience, Random};

use crate::error::{DexError, Result};
use crate::ownership::load::{Load, LoadShard, SAMPLE_EVERY};
use crate::ownership::range::{KeyRange, partition_of};
use crate::ownership::scan_range::{ScanRange, Scanned};

/// Owners of all keys at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutingTable {
    epoch: u64,
    boundaries: Vec<Vec<u8>>,
    /// Compute servers by partition.
    owners: Vec<usize>,
}

impl RoutingTable {
    /// The first table: compute server `owners[i]` has the keys between boundaries `i - 1` and `i`.
    ///
    /// # Errors
    /// [`DexError::Routes`] unless the boundaries ascend, there is one more owner than boundaries, and no
    /// compute server owns two partitions.
    pub fn new(boundaries: Vec<Vec<u8>>, owners: Vec<usize>) -> Result<Self> {
        let table = Self { epoch: 0, boundaries, owners };
        table.check()?;
        Ok(table)
    }

    /// The first table, with compute servers numbered in key order.
    ///
    /// # Errors
    /// As [`RoutingTable::new`].
    pub fn in_order(boundaries: Vec<Vec<u8>>) -> Result<Self> {
        let owners = (0..=boundaries.len()).collect();
        Self::new(boundaries, owners)
    }

    fn check(&self) -> Result<()> {
        if !self.boundaries.is_sorted_by(|a, b| a < b) {
            return Err(DexError::Routes("the boundaries of partitions must ascend strictly"));
        }
        if self.owners.len() != self.boundaries.len() + 1 {
            return Err(DexError::Routes("there must be one compute server for each partition"));
        }
        let mut owners = self.owners.clone();
        owners.sort_unstable();
        match owners.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(DexError::Routes("the keys of a compute server must lie side by side")),
            false => Ok(()),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    pub fn boundaries(&self) -> &[Vec<u8>] {
        &self.boundaries
    }

    /// Compute servers in the order of their keys.
    pub fn owners(&self) -> &[usize] {
        &self.owners
    }

    #[inline]
    pub fn partition_of(&self, key: &[u8]) -> usize {
        partition_of(&self.boundaries, key)
    }

    #[inline]
    pub fn owner_of(&self, key: &[u8]) -> usize {
        self.owners[self.partition_of(key)]
    }

    /// Partition of a compute server, if it has keys.
    pub fn partition_owned_by(&self, server: usize) -> Option<usize> {
        self.owners.iter().position(|&owner| owner == server)
    }

    /// Keys of a partition.
    pub fn range(&self, partition: usize) -> KeyRange {
        let low = partition.checked_sub(1).map(|below| self.boundaries[below].clone());
        KeyRange { low, high: self.boundaries.get(partition).cloned() }
    }

    /// Keys of a compute server, if it has any.
    pub fn range_of(&self, server: usize) -> Option<KeyRange> {
        self.partition_owned_by(server).map(|partition| self.range(partition))
    }

    /// The table after the keys of `range`, all owned by one compute server, have moved to `to`. A compute
    /// server without keys is not in it.
    ///
    /// # Errors
    /// [`DexError::Routes`] if the keys of either compute server would not be contiguous, or nothing would
    /// change.
    pub fn transferred(&self, range: &KeyRange, to: usize) -> Result<Self> {
        let from = self.partition_with(range)?;
        if self.owners[from] == to {
            return Err(DexError::Routes("these keys have that owner already"));
        }
        let mut table = Self { epoch: self.epoch + 1, boundaries: Vec::new(), owners: Vec::new() };
        for (partition, &owner) in self.owners.iter().enumerate() {
            let own = self.range(partition);
            if partition != from {
                table.append(own.low, owner);
                continue;
            }
            if own.low != range.low {
                table.append(own.low, owner);
            }
            table.append(range.low.clone(), to);
            if own.high != range.high {
                table.append(range.high.clone(), owner);
            }
        }
        table.check()?;
        Ok(table)
    }

    /// Makes `owner` the owner of the keys from `low` on, unless it owns those before too.
    fn append(&mut self, low: Option<Vec<u8>>, owner: usize) {
        if self.owners.last() == Some(&owner) {
            return;
        }
        self.boundaries.extend(low.filter(|_| !self.owners.is_empty()));
        self.owners.push(owner);
    }

    /// Partition that has all keys of `range`.
    fn partition_with(&self, range: &KeyRange) -> Result<usize> {
        let is_empty = matches!((&range.low, &range.high), (Some(low), Some(high)) if low >= high);
        let partition = range.low.as_deref().map_or(0, |low| self.partition_of(low));
        match !is_empty && self.range(partition).contains_range(range.low.as_deref(), range.high.as_deref()) {
            true => Ok(partition),
            false => Err(DexError::Routes("the keys that move must be some of one compute server's")),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current routing table, and the load that routers have sampled.
#[derive(Debug)]
pub struct Routes {
    /// Epoch of `table`, which can be read without the lock.
    epoch: AtomicU64,
    table: Mutex<Arc<RoutingTable>>,
    shards: Mutex<Vec<Arc<LoadShard>>>,
    is_moving: AtomicBool,
}

/// The right to move keys, until it is dropped.
pub(crate) struct OnlyMove<'r>(&'r Routes);

impl Drop for OnlyMove<'_> {
    fn drop(&mut self) {
        self.0.is_moving.store(false, Ordering::Release);
    }
}

impl Routes {
    pub fn new(table: RoutingTable) -> Self {
        Self {
            epoch: AtomicU64::new(table.epoch),
            table: Mutex::new(Arc::new(table)),
            shards: Mutex::default(),
            is_moving: AtomicBool::new(false),
        }
    }

    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub fn table(&self) -> Arc<RoutingTable> {
        Arc::clone(&lock(&self.table))
    }

    /// Publishes that `to` owns the keys of `range`; returns the new table.
    ///
    /// # Errors
    /// As [`RoutingTable::transferred`]; nothing changes then.
    pub fn transfer(&self, range: &KeyRange, to: usize) -> Result<Arc<RoutingTable>> {
        let mut table = lock(&self.table);
        *table = Arc::new(table.transferred(range, to)?);
        self.epoch.store(table.epoch, Ordering::Release);
        Ok(Arc::clone(&table))
    }

    /// # Errors
    /// [`DexError::Moving`] during another move.
    pub(crate) fn begin_move(&self) -> Result<OnlyMove<'_>> {
        match self.is_moving.swap(true, Ordering::Acquire) {
            true => Err(DexError::Moving),
            false => Ok(OnlyMove(self)),
        }
    }

    /// Takes the load that all routers sampled since the last call.
    pub fn take_load(&self) -> Load {
        let mut shards = lock(&self.shards);
        let load = Load::collect(shards.iter().map(|shard| shard.take()));
        // A shard without its router gets no more samples.
        shards.retain(|shard| Arc::strong_count(shard) > 1);
        load
    }

    fn begin_shard(&self) -> Arc<LoadShard> {
        let shard = Arc::new(LoadShard::default());
        lock(&self.shards).push(Arc::clone(&shard));
        shard
    }
}

/// One thread's copy of the routing table.
pub struct Router {
    routes: Arc<Routes>,
    table: RefCell<Arc<RoutingTable>>,
    shard: Arc<LoadShard>,
    /// Operations until the next sample, and number of operations that it represents.
    until_sample: Cell<u64>,
    gap: Cell<u64>,
    random: Random,
}

impl Router {
    /// Starts with the current table. `seed` decides which keys are sampled.
    pub fn new(routes: Arc<Routes>, seed: u64) -> Self {
        let router = Self {
            table: RefCell::new(routes.table()),
            shard: routes.begin_shard(),
            routes,
            until_sample: Cell::new(0),
            gap: Cell::new(0),
            random: Random::new(seed),
        };
        router.draw_gap();
        router
    }

    pub fn routes(&self) -> &Arc<Routes> {
        &self.routes
    }

    /// The table by which this router routes.
    pub fn table(&self) -> Arc<RoutingTable> {
        Arc::clone(&self.table.borrow())
    }

    /// Compute server for an operation on `key`; counts the operation as load.
    #[inline]
    pub fn route(&self, key: &[u8]) -> usize {
        match self.until_sample.get() {
            0 => self.sample(key),
            left => self.until_sample.set(left - 1),
        }
        self.owner_of(key)
    }

    /// Compute server for `key`, without counting load.
    #[inline]
    pub fn owner_of(&self, key: &[u8]) -> usize {
        self.table.borrow().owner_of(key)
    }

    #[cold]
    fn sample(&self, key: &[u8]) {
        self.shard.add(key, self.gap.get());
        self.draw_gap();
    }

    /// Draws the gap at random, so that sampling cannot align with a periodic workload.
    fn draw_gap(&self) {
        let gap = 1 + (self.random.next() >> 32) % (2 * SAMPLE_EVERY - 1);
        self.gap.set(gap);
        self.until_sample.set(gap - 1);
    }

    /// Takes the newest table; returns whether it is newer than the router's.
    pub fn refresh(&self) -> bool {
        if self.routes.epoch() == self.table.borrow().epoch {
            return false;
        }
        let newest = self.routes.table();
        let is_newer = newest.epoch > self.table.borrow().epoch;
        if is_newer {
            *self.table.borrow_mut() = newest;
        }
        is_newer
    }

    /// Compute server at which a scan begins.
    fn owner_of_start(&self, range: &ScanRange<'_>) -> usize {
        let table = self.table.borrow();
        table.owners[range.first_partition(&table.boundaries)]
    }

    /// Scans from compute server to compute server. `scan_of` gets a compute server and the rest of the
    /// range, and calls [`Tree::scan_owned`](crate::Tree::scan_owned). Returns the number of entries.
    ///
    /// # Errors
    /// As for [`Router::routed`]. Entries that were visited before remain valid.
    pub async fn scanned<E: Endpoint>(
        &self,
        ep: &E,
        range: &ScanRange<'_>,
        patience_ns: Nanos,
        mut scan_of: impl AsyncFnMut(usize, &ScanRange<'_>) -> Result<Scanned>,
    ) -> Result<usize> {
        let mut entries = 0;
        let mut from: Option<Bound<Vec<u8>>> = None;
        let mut detour = Detour::new(patience_ns);
        if let Bound::Included(key) | Bound::Excluded(key) =
            if range.reverse { range.high } else { range.low }
        {
            self.route(key);
        }
        loop {
            let mut part = ScanRange { limit: range.limit - entries, ..*range };
            if let Some(from) = &from {
                let from = from.as_ref().map(Vec::as_slice);
                *(if range.reverse { &mut part.high } else { &mut part.low }) = from;
            }
            match scan_of(self.owner_of_start(&part), &part).await {
                Err(DexError::NotOwned) => detour.next(ep, self).await?,
                Err(error) => return Err(error),
                Ok(scanned) => {
                    entries += scanned.entries;
                    if scanned.complete {
                        return Ok(entries);
                    }
                    from = Some(scanned.next);
                    detour = Detour::new(patience_ns);
                }
            }
        }
    }

    /// Executes an operation on `key` at the compute server that owns it, whose number `operation` gets.
    /// Waits while the key moves from one compute server to another.
    ///
    /// # Errors
    /// Errors of the operation; [`DexError::TimedOut`] if no compute server owned the key for `patience_ns`.
    pub async fn routed<E: Endpoint, T>(
        &self,
        ep: &E,
        key: &[u8],
        patience_ns: Nanos,
        mut operation: impl AsyncFnMut(usize) -> Result<T>,
    ) -> Result<T> {
        let refused = match operation(self.route(key)).await {
            Err(DexError::NotOwned) => Detour::new(patience_ns),
            done => return done,
        };
        let mut detour = refused;
        loop {
            detour.next(ep, self).await?;
            match operation(self.owner_of(key)).await {
                Err(DexError::NotOwned) => {}
                done => return done,
            }
        }
    }
}

/// Retries of an operation that was refused.
pub struct Detour {
    patience: Patience,
    pause_ns: Nanos,
}

/// Shortest and longest pause.
const PAUSE_NS: (Nanos, Nanos) = (500, 64_000);

impl Detour {
    pub fn new(patience_ns: Nanos) -> Self {
        Self { patience: Patience::new(patience_ns), pause_ns: PAUSE_NS.0 }
    }

    /// To be called after each refusal: gives the router the newest table, or pauses if it has that already.
    ///
    /// # Errors
    /// [`DexError::TimedOut`] if the refusals have lasted longer than the patience.
    pub async fn next<E: Endpoint>(&mut self, ep: &E, router: &Router) -> Result<()> {
        self.patience.check(ep, "keys that are moving to another compute server")?;
        if router.refresh() {
            return Ok(());
        }
        ep.sleep_until(ep.now() + self.pause_ns).await;
        self.pause_ns = (2 * self.pause_ns).min(PAUSE_NS.1);
        router.refresh();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn range(low: &str, high: &str) -> KeyRange {
        let end = |text: &str| (!text.is_empty()).then(|| key(text));
        KeyRange { low: end(low), high: end(high) }
    }

    fn table() -> RoutingTable {
        RoutingTable::in_order(vec![key("g"), key("p")]).expect("ascending")
    }

    #[test]
    fn keys_go_to_a_neighbour_to_a_new_server_or_all_away() {
        let moved = table().transferred(&range("g", "k"), 0).expect("a neighbour's");
        assert_eq!((moved.boundaries(), moved.owners()), (&[key("k"), key("p")][..], &[0, 1, 2][..]));
        let back = moved.transferred(&range("g", "k"), 1).expect("a neighbour's");
        assert_eq!((back.boundaries(), back.epoch()), (table().boundaries(), 2));
        let added = table().transferred(&range("x", ""), 7).expect("the end of one");
        assert_eq!((added.boundaries().len(), added.owners()), (3, &[0, 1, 2, 7][..]));
        let removed = table().transferred(&range("g", "p"), 2).expect("all of one");
        assert_eq!((removed.boundaries(), removed.owners()), (&[key("g")][..], &[0, 2][..]));
        let alone = removed.transferred(&range("", "g"), 2).expect("all of one");
        assert_eq!((alone.boundaries().len(), alone.owners()), (0, &[2][..]));
        let renamed = alone.transferred(&KeyRange::all(), 5).expect("all of one");
        assert_eq!(renamed.owner_of(b"anything"), 5);
    }

    #[test]
    fn what_would_tear_the_keys_of_a_server_apart_is_refused() {
        for (low, high, to) in [
            ("h", "i", 0),
            ("h", "i", 9),
            ("h", "p", 0),
            ("p", "q", 0),
            ("a", "h", 2),
            ("g", "p", 1),
            ("k", "k", 0),
        ] {
            assert!(table().transferred(&range(low, high), to).is_err(), "{low}..{high} to {to}");
        }
        assert!(RoutingTable::new(vec![key("b"), key("a")], vec![0, 1, 2]).is_err());
        assert!(RoutingTable::new(vec![key("b")], vec![0, 0]).is_err());
        assert!(RoutingTable::new(vec![key("b")], vec![0]).is_err());
    }

    #[test]
    fn a_router_keeps_its_table_until_it_asks() {
        let routes = Arc::new(Routes::new(table()));
        let router = Router::new(Arc::clone(&routes), 1);
        assert!(!router.refresh());
        routes.transfer(&range("g", "k"), 0).expect("a neighbour's");
        routes.transfer(&range("k", "m"), 0).expect("a neighbour's");
        assert_eq!((router.route(b"h"), router.table().epoch()), (1, 0));
        assert!(router.refresh() && !router.refresh());
        assert_eq!((router.route(b"h"), router.route(b"l"), router.route(b"n")), (0, 0, 1));
        assert!(routes.transfer(&range("a", "b"), 2).is_err());
        assert_eq!((routes.epoch(), routes.table().epoch()), (2, 2));
    }

    #[test]
    fn the_load_is_that_of_the_operations() {
        let routes = Arc::new(Routes::new(table()));
        let router = Router::new(Arc::clone(&routes), 3);
        for n in 0..40_000u32 {
            router.route(if n % 4 == 0 { b"a" } else { b"z" });
        }
        drop(router);
        let load = routes.take_load();
        let servers = load.by_partition(routes.table().boundaries());
        let total: u64 = servers.iter().sum();
        assert!((39_800..=40_000).contains(&total), "{total}");
        assert_eq!(servers[1], 0);
        assert!((7_000..13_000).contains(&servers[0]), "{servers:?}");
        assert_eq!(routes.take_load().total(), 0);
    }
}
