//! One thread's access to an index: blocking operations.
//!
//! A session has an endpoint and, for each compute server that this process runs, a worker of its cache
//! ([`Members`]). An operation goes to the compute server that owns its key. The node layout is selected once
//! per operation, outside the loop that polls its future, so that each operation is compiled for its layout.

mod answers;
mod async_session;
mod batch;
mod integers;
mod integers_async;
pub(crate) mod range;
mod reading;

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pando_dex::{ResumePoint, Router, ScanRange, Swapped};
use pando_fabric::{Endpoint, Limit, Nanos, VerbCounts};
use pando_rt::{SLOTS_MAX, Worker};

use crate::error::{Error, Result};
use crate::index::Index;
use crate::layout::{IndexLayout, with_layout};
use crate::local::{Found, Members, open};
use crate::options::check_count;
use crate::place::AnyEndpoint;
use crate::shared::lock;
pub use answers::Answers;
pub use async_session::AsyncSession;
pub(crate) use batch::Operation;
pub use batch::{Answer, Batch, Batched};
pub use integers::{IntegerAnswer, IntegerBatch, IntegerRange, IntegerSession, IntegerSwapped};
pub use integers_async::AsyncIntegerSession;
pub use range::{Range, Scan};
use reading::{Looked, RecordId};

/// Operations after which a session publishes its verb counts to the cluster.
const PUBLISH_EVERY: u32 = 64;

/// A thread's access to an [`Index`]. It belongs to the thread that opened it; each thread opens its own.
///
/// Operations block until they are done; [`Session::futures`] and [`Session::in_flight`] offer the same ones
/// as futures. Single-key operations are linearizable. A scan visits in order, and once, every key that is
/// present throughout the scan, and no key that is absent throughout.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let session = cluster.create_index("birds", &IndexOptions::bytes())?.session()?;
/// assert!(session.insert(b"owl", b"night")?);
/// assert!(!session.insert(b"owl", b"day")?, "it is there already");
/// assert!(session.update(b"owl", b"dusk")?);
/// assert!(!session.put(b"wren", b"day")?, "it was not there");
/// assert_eq!(session.get(b"owl")?.as_deref(), Some(&b"dusk"[..]));
/// assert!(session.remove(b"owl")? && session.get(b"owl")?.is_none());
/// # Ok::<(), pando::Error>(())
/// ```
pub struct Session {
    index: Index,
    ep: AnyEndpoint,
    members: RefCell<Members>,
    /// Generation of the index's compute servers that `members` belong to.
    generation: Cell<u64>,
    router: Router,
    patience_ns: Nanos,
    /// Nanoseconds after which an operation begins nothing that may take long.
    operation_ns: Nanos,
    only: Option<usize>,
    /// Slots are running: a blocking call would consume their wake-up bits.
    in_slots: Cell<bool>,
    read_only: bool,
    /// Reads an index that this process does not own, by the protocol of `reading.rs`.
    reading: bool,
    /// Record that the members belong to, and the state of its checks by a reader.
    opened: Cell<RecordId>,
    looked: Looked,
    until_publish: Cell<u32>,
    published: Arc<Mutex<VerbCounts>>,
    _of_one_thread: PhantomData<Rc<()>>,
}

/// Runs an operation on the tree that owns the key, of either layout; `$run` is `blocking` or `awaiting`.
/// `$number` is the compute server that the router names. Waits while the key moves to another one.
macro_rules! on_tree {
    ($run:ident, $session:expr, $key:expr, |$tree:ident, $ctx:ident| $future:expr) => {{
        let session: &Session = $session;
        on_tree!($run, session, $key, session.router.route($key), |$tree, $ctx| $future)
    }};
    ($run:ident, $session:expr, $key:expr, $number:expr, |$tree:ident, $ctx:ident| $future:expr) => {{
        let session: &Session = $session;
        let mut number = $number;
        let mut detour = pando_dex::Detour::new(session.patience_ns);
        let limit = session.limit();
        loop {
            let done = match session.find(number) {
                Some(found) => $crate::layout::with_layout!(found, |member| {
                    let ($tree, $ctx) = (&*member.tree, member.ctx(&session.ep));
                    let done = on_tree!(@$run session, limit, $future);
                    member.count(1, &done);
                    done
                }),
                None if session.is_gone(number) => Err(pando_dex::DexError::NotOwned),
                None => {
                    let partition_of = |boundaries: &[Vec<u8>]| pando_dex::partition_of(boundaries, $key);
                    break Err(on_tree!(@$run session, limit, session.not_here(number, partition_of)));
                }
            };
            match done {
                Err(pando_dex::DexError::NotOwned) => {}
                done => {
                    session.count_operation();
                    break done.map_err(Error::from);
                }
            }
            if let Err(error) = on_tree!(@$run session, limit, detour.next(&session.ep, &session.router)) {
                break Err(error.into());
            }
            number = session.router.owner_of($key);
        }
    }};
    (@blocking $session:ident, $limit:ident, $future:expr) => {
        pando_rt::block_on(&$session.ep, pando_fabric::limited(&$session.ep, &$limit, $future))
    };
    (@awaiting $session:ident, $limit:ident, $future:expr) => {
        pando_fabric::limited(&$session.ep, &$limit, $future).await
    };
}
use on_tree;

impl Index {
    /// Opens a session for the calling thread, which sends each operation to the compute server that owns its
    /// key.
    ///
    /// # Errors
    /// [`Error::Busy`] during exclusive work, for instance a bulk load; [`Error::Closed`].
    pub fn session(&self) -> Result<Session> {
        Session::open(self, None)
    }

    /// Opens a session for a thread of one compute server; keys of others are refused.
    ///
    /// # Errors
    /// As [`Index::session`]; [`Error::InvalidOption`] if this process does not run this compute server.
    pub fn session_of(&self, compute_server: usize) -> Result<Session> {
        Session::open(self, Some(compute_server))
    }

    /// Opens a session for `u64` keys and values.
    ///
    /// # Errors
    /// As [`Index::session`]; [`Error::WrongLayout`] unless keys and values have 8 bytes.
    pub fn integers(&self) -> Result<IntegerSession> {
        let (found, expected) = (self.layout(), IndexLayout::Fixed { key_size: 8, value_size: 8 });
        open::check_layout(self.name(), found, Some(expected))?;
        Ok(IntegerSession::new(self.session()?))
    }
}

impl Session {
    fn open(index: &Index, only: Option<usize>) -> Result<Self> {
        let shared = &index.shared;
        shared.check_open()?;
        let ep = shared.endpoint()?;
        index.data.begin_session()?;
        let generation = index.data.generation();
        let servers = match index.data.servers() {
            Ok(servers) if only.is_none_or(|only| servers.runs(only)) => servers,
            other => {
                index.data.end_session();
                return Err(other?.no_such_server(only.unwrap_or_default()));
            }
        };
        let published = lock(&shared.counts).begin();
        Ok(Self {
            read_only: shared.read_only(),
            reading: shared.reading(),
            opened: Cell::new((servers.record.id, servers.record.version)),
            looked: Looked::default(),
            router: Router::new(Arc::clone(&servers.routes), ep.random()),
            patience_ns: shared.config.patience_ns(),
            operation_ns: shared.config.operation_ns(),
            index: index.clone(),
            members: RefCell::new(Members::new(&servers, only)),
            generation: Cell::new(generation),
            ep,
            only,
            in_slots: Cell::new(false),
            until_publish: Cell::new(PUBLISH_EVERY),
            published,
            _of_one_thread: PhantomData,
        })
    }

    /// The index of this session.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Time limit for a new operation.
    #[inline]
    fn limit(&self) -> Limit {
        Limit::new(self.operation_ns)
    }

    /// The compute server of this number, if this session can use it.
    #[inline]
    fn find(&self, number: usize) -> Option<Found> {
        match self.members.borrow().find(number) {
            None => {}
            found => return found,
        }
        // The compute server may be new.
        self.learn();
        self.members.borrow().find(number)
    }

    /// Adopts the current compute servers, if they changed.
    #[cold]
    fn learn(&self) {
        let generation = self.index.data.generation();
        if generation != self.generation.get()
            && let Ok(servers) = self.index.data.servers()
        {
            self.members.borrow_mut().update(&servers, self.only);
            self.opened.set((servers.record.id, servers.record.version));
            self.generation.set(generation);
        }
    }

    /// Whether a compute server that this session cannot use has no keys any more, so that the operation must
    /// be routed again.
    #[cold]
    fn is_gone(&self, number: usize) -> bool {
        self.router.refresh();
        self.router.table().partition_owned_by(number).is_none()
    }

    /// The error for a compute server that this session cannot use. `partition_of` selects the partition by
    /// the catalog's boundaries.
    #[cold]
    async fn not_here(&self, number: usize, partition_of: impl FnOnce(&[Vec<u8>]) -> usize) -> Error {
        let is_run = self.index.data.servers().is_ok_and(|servers| servers.runs(number));
        if let Some(session_of) = self.only.filter(|_| is_run) {
            return Error::OtherComputeServer { belongs_to: number, session_of };
        }
        // The boundaries of other processes may have moved since this process read them.
        match self.index.shared.owner(&self.ep, self.index.name(), partition_of).await {
            Ok((partition, owner)) => {
                Error::NotOwned { index: self.index.name().to_owned(), partition, owner }
            }
            Err(error) => error,
        }
    }

    #[inline]
    fn check_writable(&self) -> Result<()> {
        if self.read_only { Err(Error::ReadOnly) } else { Ok(()) }
    }

    #[inline]
    fn check_blocking(&self) -> Result<()> {
        if self.in_slots.get() { Err(Error::InsideSlot) } else { Ok(()) }
    }

    #[inline]
    fn check_change(&self) -> Result<()> {
        self.check_blocking()?;
        self.check_writable()
    }

    #[inline]
    fn count_operation(&self) {
        match self.until_publish.get() {
            0 | 1 => self.publish_verbs(),
            left => self.until_publish.set(left - 1),
        }
    }

    #[cold]
    fn publish_verbs(&self) {
        self.until_publish.set(PUBLISH_EVERY);
        *lock(&self.published) = self.verbs();
        // Releases the memory of removed compute servers: it is freed once no session refers to them.
        self.learn();
    }

    /// Publishes all counts of this session to [`crate::Cluster::stats`]. A session does so itself every 64
    /// operations, and when it is dropped.
    pub fn publish(&self) {
        self.publish_verbs();
        self.members.borrow().tell();
    }

    /// Verbs of this session so far.
    pub fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }

    /// Value of `key`; `None` if it is absent.
    ///
    /// # Errors
    /// A key that the layout cannot hold; [`Error::NotOwned`] with the process that owns the key;
    /// [`Error::OtherComputeServer`]; damage, with its address; errors of the fabric. All operations have
    /// these errors.
    #[inline]
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Appends the value of `key` to `out`; `false` if the key is absent. Allocates nothing if `out` has the
    /// capacity.
    ///
    /// # Errors
    /// As for [`Session::get`].
    #[inline]
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.check_blocking()?;
        if self.reading {
            return self.get_as_reader(key, out);
        }
        // Most lookups find every node cached and need no future.
        let number = self.router.route(key);
        if let Some(found) = self.get_now(number, key, out) {
            self.count_operation();
            return Ok(found);
        }
        self.get_later(number, key, out)
    }

    // Not inlined, so that the futures of these two functions are not on the stack of every lookup.
    #[inline(never)]
    fn get_as_reader(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        pando_rt::block_on(&self.ep, self.futures().get_into(key, out))
    }

    #[inline(never)]
    fn get_later(&self, number: usize, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        on_tree!(blocking, self, key, number, |tree, ctx| tree.get_later(
            ctx,
            key,
            ResumePoint::default(),
            out
        ))
    }

    #[inline]
    fn get_now(&self, number: usize, key: &[u8], out: &mut Vec<u8>) -> Option<bool> {
        with_layout!(&*self.members.borrow(), |places| {
            let member = places.get(number)?.as_ref()?;
            let found = member.tree.get_now(member.worker(), key, out)?;
            member.count(1, &Ok(()));
            Some(found)
        })
    }

    /// Whether `key` is present.
    ///
    /// # Errors
    /// As for [`Session::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.get_into(key, &mut Vec::new())
    }

    /// Stores `value` under `key`; returns whether the key was present before.
    ///
    /// # Errors
    /// As for [`Session::get`]; a value that the layout cannot hold; a full pool ([`Error::is_full`]).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.check_change()?;
        on_tree!(blocking, self, key, |tree, ctx| tree.put(ctx, key, value))
    }

    /// Stores `value` under `key` if the key is absent; otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.check_change()?;
        on_tree!(blocking, self, key, |tree, ctx| tree.insert(ctx, key, value))
    }

    /// Stores `value` under `key` if the key is present; otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.check_change()?;
        on_tree!(blocking, self, key, |tree, ctx| tree.update(ctx, key, value))
    }

    /// Removes `key`; returns whether it was present.
    ///
    /// # Errors
    /// As for [`Session::get`].
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.check_change()?;
        on_tree!(blocking, self, key, |tree, ctx| tree.remove(ctx, key))
    }

    /// Replaces the value of `key` by `new` if it is `expected`. `None` stands for an absent key: as
    /// `expected` it requires that the key is absent, as `new` it removes the key.
    ///
    /// # Errors
    /// As for [`Session::put`].
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        self.check_change()?;
        on_tree!(blocking, self, key, |tree, ctx| tree.compare_and_swap(ctx, key, expected, new))
    }

    /// Looks up all of `keys` concurrently, which overlaps the latencies of memory. The answers are in the
    /// order of the keys.
    ///
    /// # Errors
    /// As for [`Session::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], answers: &mut Answers) -> Result<()> {
        self.check_blocking()?;
        pando_rt::block_on(&self.ep, self.futures().multi_get(keys, answers))
    }

    /// Passes the entries of `range` to `visit`, in order, until it returns `false`. Returns the number of
    /// entries visited.
    ///
    /// # Errors
    /// As for [`Session::get`]. Entries visited before the error are valid.
    pub fn scan(&self, range: &ScanRange<'_>, visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<usize> {
        self.check_blocking()?;
        pando_rt::block_on(&self.ep, self.futures().scan(range, visit))
    }

    /// Iterator over the entries between two bounds.
    ///
    /// Entries are fetched in batches that grow from 16 to 1024 entries, so that an iterator dropped early
    /// has not read far ahead. Each batch is a scan of its own; changes between two batches are visible.
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let session = cluster.create_index("trees", &IndexOptions::bytes())?.session()?;
    /// for tree in ["alder", "ash", "aspen", "beech", "birch"] {
    ///     session.put(tree.as_bytes(), b"")?;
    /// }
    /// let keys = |range: pando::Range<'_>| -> pando::Result<Vec<String>> {
    ///     range.map(|entry| Ok(String::from_utf8_lossy(&entry?.0).into_owned())).collect()
    /// };
    /// assert_eq!(keys(session.range("ash".."birch"))?, ["ash", "aspen", "beech"]);
    /// assert_eq!(keys(session.range(.."b").reverse().limit(2))?, ["aspen", "ash"]);
    /// assert_eq!(keys(session.prefix("b"))?, ["beech", "birch"]);
    /// assert_eq!(session.iter().count(), 5);
    /// # Ok::<(), pando::Error>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Range<'_> {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Range::new(self, own(bounds.start_bound()), own(bounds.end_bound()))
    }

    /// Iterator over all entries; see [`Session::range`].
    pub fn iter(&self) -> Range<'_> {
        Range::new(self, Bound::Unbounded, Bound::Unbounded)
    }

    /// Iterator over the entries whose keys begin with `prefix`; see [`Session::range`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range<'_> {
        let (low, high) = range::of_prefix(prefix.as_ref());
        Range::new(self, low, high)
    }

    /// A batch of operations, which run concurrently on this thread; the answers are in their order.
    ///
    /// # Errors
    /// None. Within a slot of [`Session::in_flight`], each operation of the batch fails with
    /// [`Error::InsideSlot`].
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// The operations as futures, for [`crate::block_on`] and other executors.
    ///
    /// The futures belong to this thread. Any executor for such futures will do, and several operations of
    /// one session may be in flight at once. On the fabrics within one host they are ready at once, unless
    /// they must wait for another thread.
    ///
    /// If a future is dropped midway, its operation takes effect before the next operation on its key, or
    /// never. Later operations finish its leftovers once its verbs must have ended; blocks that it had
    /// allocated may stay allocated.
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let session = cluster.create_index("birds", &IndexOptions::bytes())?.session()?;
    /// let answer = pando::block_on(&session, async {
    ///     let birds = session.futures();
    ///     birds.put(b"owl", b"night").await?;
    ///     birds.get(b"owl").await
    /// })?;
    /// assert_eq!(answer.as_deref(), Some(&b"night"[..]));
    /// # Ok::<(), pando::Error>(())
    /// ```
    pub fn futures(&self) -> AsyncSession<'_> {
        AsyncSession { session: self }
    }

    /// Runs one future per slot, made by `make`, for `slots` slots on this thread: while one waits for
    /// memory, local or remote, the others run. Returns their outputs by slot. Blocking calls of this session
    /// fail meanwhile.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] unless there are 1 to 64 slots; [`Error::InsideSlot`].
    /// ```
    /// use pando::{Cluster, Config, IndexOptions};
    ///
    /// let cluster = Cluster::open(Config::embedded())?;
    /// let session = cluster.create_index("n", &IndexOptions::integers())?.session()?;
    /// let done = session.in_flight(16, |slot, session| async move {
    ///     for n in (u64::from(slot)..1600).step_by(16) {
    ///         session.put(&n.to_be_bytes(), &n.to_be_bytes()).await?;
    ///     }
    ///     Ok::<_, pando::Error>(())
    /// })?;
    /// assert!(done.into_iter().all(|slot| slot.is_ok()));
    /// assert_eq!(session.iter().count(), 1600);
    /// # Ok::<(), pando::Error>(())
    /// ```
    pub fn in_flight<'s, F: Future>(
        &'s self,
        slots: usize,
        mut make: impl FnMut(u32, AsyncSession<'s>) -> F,
    ) -> Result<Vec<F::Output>> {
        check_count(slots, "slots", SLOTS_MAX)?;
        self.check_blocking()?;
        self.in_slots.set(true);
        let _slots = InSlots(self);
        let outputs = Worker::new(&self.ep, slots).run(|slot| make(slot, self.futures()));
        self.publish();
        Ok(outputs)
    }
}

/// Permits blocking calls again when it is dropped, also by a panic.
struct InSlots<'s>(&'s Session);

impl Drop for InSlots<'_> {
    fn drop(&mut self) {
        self.0.in_slots.set(false);
    }
}

/// Runs a future that uses `session` to completion on this thread.
///
/// # Panics
/// Within a slot of [`Session::in_flight`] of the same session, where the call would never end.
pub fn block_on<F: Future>(session: &Session, future: F) -> F::Output {
    assert!(!session.in_slots.get(), "{}", Error::InsideSlot);
    pando_rt::block_on(&session.ep, future)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.publish();
        lock(&self.index.shared.counts).end(&self.published);
        // Dropped before `end_session`, after which exclusive work takes the index for being at rest.
        self.members.replace(Members::Fixed(Vec::new()));
        self.index.data.end_session();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("index", &self.index.name()).finish_non_exhaustive()
    }
}
