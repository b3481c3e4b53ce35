//! The log of a compute server, while it is open.
//!
//! 1. An operation reserves room for its record ([`Log::reserve`]), which may wait.
//! 2. It latches its pages, changes them, and appends the record ([`Log::append`]), which does not. The
//!    record's number goes into the pages.
//! 3. It releases the latches and waits until everything that it has seen is in the log ([`Log::durable`]).
//!    Only then it answers. Lookups wait too, for the number of the page that they read.
//!
//! No page is written before the log has everything up to the page's number. A [`Checkpoint`] writes all pages
//! that were changed before it began, and then truncates the log.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, Patience};

use crate::commit::{Appending, Batch, Commit, Crowded, Reservation, Share};
use crate::defect::{Defect, OfMoves, OfPower};
use crate::disk::{self, Disk, Goal, Persistence};
use crate::error::{LogError, Result};
use crate::reader::Contents;
use crate::record::Record;
use crate::space::{self, Blocks, Control, Space};
use crate::sync::{AtomicU64, Mutex, Ordering::SeqCst, lock};
use crate::tap::{Sink, Tap};

/// How a log is used.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub persistence: Persistence,
    /// Longest wait for WRITEs of others.
    pub patience_ns: Nanos,
    /// Longest time that a WRITE takes whose future was dropped, or that failed: it may still arrive, until then. 0 where
    /// verbs take effect at once.
    pub verbs_take_ns: Nanos,
}

impl Default for Options {
    /// Without persistence, with waits of at most 10 s, and verbs that take effect at once.
    fn default() -> Self {
        Self { persistence: Persistence::Never, patience_ns: 10_000_000_000, verbs_take_ns: 0 }
    }
}

/// Whether this process counts as alive for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lease {
    Held,
    /// It was silent for too long; others may have taken it for dead, or not.
    Late,
    /// Others have taken it for dead.
    Lost,
}

/// See the module documentation. Threads share it; each call uses the endpoint of its thread.
pub struct Log {
    space: Mutex<Arc<Space>>,
    commit: Commit,
    disk: Disk,
    options: Options,
    epoch: u64,
    /// Version of the control block of each lane.
    versions: Box<[AtomicU64]>,
    /// 1 during a checkpoint, which ends by writing them.
    is_truncating: AtomicU64,
    horizon: AtomicU64,
    /// Lower bounds of the records of pages that are being written outside of the cache.
    holds: Mutex<Vec<u64>>,
    /// Until this time WRITEs that were cut off may arrive, so no space is used again.
    rest_until: AtomicU64,
    /// 1 while a checkpoint writes control blocks, and if it did not end.
    is_cut_off: AtomicU64,
    lease: OnceLock<Box<dyn Fn() -> Lease + Send + Sync>>,
    tap: Tap,
}

impl Log {
    /// Writes an empty log for index `index_id` and persists it. [`Log::resume`] opens it.
    ///
    /// # Errors
    /// [`LogError::Geometry`]; errors of the fabric.
    pub async fn create<E: Endpoint>(ep: &E, index_id: u32, blocks: Blocks) -> Result<Space> {
        let space = Space::new(ep.random(), index_id, blocks)?;
        for lane in 0..space.lanes.len() {
            let control = Control { version: 1, epoch: new_epoch(ep), head: 0, head_seq: 0, horizon: 1 };
            control.write(ep, &space, lane).await?;
        }
        // Last: without a root there is no log.
        space.write_root(ep).await?;
        disk::persist(ep, &space.controls().chain(space.root_and_lists()).collect::<Vec<_>>()).await?;
        Ok(space)
    }

    /// Opens a log, empty. What [`Contents::records`] returned must be in the pages, and these written and, if
    /// the log is to be persisted, persisted.
    ///
    /// # Errors
    /// Errors of the fabric, after which the log can be read again.
    pub async fn resume<E: Endpoint>(ep: &E, contents: Contents, options: Options) -> Result<Self> {
        let (space, clock) = (contents.space().clone(), contents.clock());
        space.expect_appends(ep);
        let epoch = new_epoch(ep);
        let versions: Box<[_]> =
            contents.control_versions().map(|version| AtomicU64::new(version + 1)).collect();
        let horizon = clock + 1;
        for (lane, version) in versions.iter().enumerate() {
            // If this stops midway, the new horizon of one lane covers the records of all.
            let control = Control { version: version.load(SeqCst), epoch, head: 0, head_seq: 0, horizon };
            control.write(ep, &space, lane).await?;
        }
        let tracks = options.persistence != Persistence::Never;
        if tracks {
            disk::persist(ep, &space.controls().collect::<Vec<_>>()).await?;
        }
        let commit = Commit::new(&space, epoch, clock, tracks);
        let is_truncating = AtomicU64::new(0);
        Ok(Self {
            space: Mutex::new(Arc::new(space)),
            commit,
            disk: Disk::new(clock),
            options,
            epoch,
            versions,
            is_truncating,
            horizon: AtomicU64::new(horizon),
            holds: Mutex::default(),
            rest_until: AtomicU64::new(0),
            is_cut_off: AtomicU64::new(0),
            lease: OnceLock::new(),
            tap: Tap::default(),
        })
    }

    /// From now on an operation answers only while `lease` is held: otherwise another process may have taken the index
    /// over. A second call has no effect.
    pub fn lend(&self, lease: Box<dyn Fn() -> Lease + Send + Sync>) {
        let _ = self.lease.set(lease);
    }

    #[inline]
    fn lease(&self) -> Lease {
        self.lease.get().map_or(Lease::Held, |lease| lease())
    }

    /// Where it lies now.
    pub fn space(&self) -> Arc<Space> {
        Arc::clone(&lock(&self.space))
    }

    /// From now on batches go to `space`.
    pub(crate) fn be_at(&self, space: &Arc<Space>) {
        self.commit.move_to(space);
        *lock(&self.space) = Arc::clone(space);
    }

    pub fn lanes(&self) -> usize {
        self.versions.len()
    }

    /// Number of the last record; numbers rise by one.
    pub fn clock(&self) -> u64 {
        self.commit.clock()
    }

    /// Whether it takes no more records, since it is not known where it lies ([`Log::move_to`]), or is on its way.
    pub fn is_frozen(&self) -> bool {
        self.commit.is_frozen()
    }

    /// Bytes that records take, which a checkpoint frees.
    pub fn used(&self) -> u64 {
        self.commit.used()
    }

    /// The lane with the most room, for records that no worker waits for.
    pub fn emptiest_lane(&self) -> usize {
        self.commit.emptiest()
    }

    /// Reserves room in `lane` for a record of `len` bytes, if there is some now.
    #[inline]
    pub fn try_reserve(&self, lane: usize, len: usize) -> Option<Reservation<'_>> {
        self.commit.reserve(lane, len, Share::Most).ok().filter(|reservation| !reservation.is_late)
    }

    /// Reserves room in `lane` for a record of `len` bytes. `None` if the ring is full.
    ///
    /// # Errors
    /// [`LogError::RecordTooLarge`]; errors of the fabric.
    pub async fn reserve<E: Endpoint>(
        &self,
        ep: &E,
        lane: usize,
        len: usize,
        share: Share,
    ) -> Result<Option<Reservation<'_>>> {
        loop {
            match self.commit.reserve(lane, len, share) {
                Ok(reservation) => return Ok(Some(reservation)),
                Err(Crowded::TooLarge { max }) => {
                    return Err(LogError::RecordTooLarge { bytes: len, max: max as usize });
                }
                Err(Crowded::Ring) if !self.post(ep, lane).await? => return Ok(None),
                Err(Crowded::Ring) => {}
            }
        }
    }

    /// Appends a record and returns its number. The caller holds the latches of the pages that it is about,
    /// and has reserved its [`Record::stored_len`] or more.
    pub fn append(&self, reservation: Reservation<'_>, record: &Record<'_>) -> u64 {
        self.commit.append(reservation, record)
    }

    /// Locks `lane` to append a record that fits into a reservation.
    pub fn begin<'l>(&'l self, reservation: Reservation<'l>) -> Appending<'l> {
        self.commit.begin(reservation)
    }

    /// Locks `lane` to append a record of `len` bytes, if there is room now.
    #[inline]
    pub fn try_begin(&self, lane: usize, len: usize) -> Option<Appending<'_>> {
        self.commit.try_begin(lane, len)
    }

    /// Whether an operation may answer that has seen everything up to `gsn`: the log has it and, if answers
    /// wait for that, it is persisted; and this process counts as alive.
    #[inline]
    pub fn is_durable(&self, gsn: u64) -> bool {
        self.has(gsn) && self.lease() == Lease::Held
    }

    #[inline]
    fn has(&self, gsn: u64) -> bool {
        match self.options.persistence {
            Persistence::BeforeAnswer if !defect(OfPower::AnswerBeforePersist) => {
                self.disk.is_reached(Goal::Record(gsn))
            }
            _ => self.commit.is_logged_soon(gsn),
        }
    }

    /// Waits until an operation may answer that has seen everything up to `gsn`.
    ///
    /// # Errors
    /// [`LogError::TimedOut`]; [`LogError::NotPersisted`]; [`LogError::Expired`]; errors of the fabric. Records up to
    /// `gsn` may or may not be in the log then.
    pub async fn durable<E: Endpoint>(&self, ep: &E, lane: usize, gsn: u64) -> Result<()> {
        if self.is_durable(gsn) {
            return Ok(());
        }
        if !self.has(gsn) {
            self.logged(ep, lane, gsn).await?;
            if self.options.persistence == Persistence::BeforeAnswer && !self.has(gsn) {
                self.reach(ep, Goal::Record(gsn)).await?;
            }
        }
        // The next sign of life may be answered.
        let patience = Patience::new(self.options.patience_ns);
        loop {
            match self.lease() {
                Lease::Held => return Ok(()),
                Lease::Late => patience.wait(ep, "a lease").await.map_err(|_| LogError::Expired)?,
                Lease::Lost => return Err(LogError::Expired),
            }
        }
    }

    /// Waits until a page may be written whose last record is `gsn`, or a block may be used again that this
    /// record freed.
    ///
    /// # Errors
    /// As for [`Log::durable`].
    pub async fn settled<E: Endpoint>(&self, ep: &E, lane: usize, gsn: u64) -> Result<()> {
        self.logged(ep, lane, gsn).await?;
        match self.options.persistence {
            Persistence::Never => Ok(()),
            _ if defect(OfPower::PageBeforePersist) => Ok(()),
            _ => self.reach(ep, Goal::Record(gsn)).await,
        }
    }

    /// Whether [`Log::settled`] would return at once.
    pub fn is_settled(&self, gsn: u64) -> bool {
        match self.options.persistence {
            Persistence::Never => self.commit.is_logged(gsn),
            _ => self.disk.is_reached(Goal::Record(gsn)),
        }
    }

    /// Whether a process that died now could leave a gap: a record without an earlier one. Simulations seek such deaths.
    pub fn has_gap(&self) -> bool {
        self.commit.has_gap()
    }

    /// Waits until everything up to `goal`, which is written, is persisted.
    async fn reach<E: Endpoint>(&self, ep: &E, goal: Goal) -> Result<()> {
        while !self.disk.is_reached(goal) {
            if self.disk.blocks(goal).await {
                if !self.persist_for_all(ep).await? {
                    self.disk.await_others(goal).await;
                }
            } else if !self.disk.await_server(goal).await? {
                self.persist(ep).await?;
            }
        }
        Ok(())
    }

    /// Waits until a value that is written to these blocks is persisted. Only then may a record refer to it: a
    /// record may survive a loss of power although nobody has persisted it.
    ///
    /// # Errors
    /// [`LogError::NotPersisted`].
    pub async fn persist_value<E: Endpoint>(&self, ep: &E, blocks: &[(GlobalAddr, u64)]) -> Result<()> {
        match self.persists() && !defect(OfPower::ValueUnpersisted) {
            true => self.reach(ep, self.disk.note_value(blocks)).await,
            false => Ok(()),
        }
    }

    /// Persists what is in the log, and the values that wait for that.
    ///
    /// # Errors
    /// [`LogError::NotPersisted`], from the first failure on; no operation succeeds then.
    pub async fn persist<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.disk.check()?;
        let batches = self.commit.unpersisted();
        let (value, mut ranges) = self.disk.values();
        ranges.extend(&batches.spans);
        self.persist_or_fail(disk::persist(ep, &ranges)).await?;
        self.commit.note_persisted(&batches);
        self.disk.note_persisted(batches.bound, value);
        Ok(())
    }

    /// [`Log::persist`] for all who wait; `false` if somebody else is at it, who wakes the server afterwards if others than
    /// blocked threads wait.
    ///
    /// # Errors
    /// As for [`Log::persist`].
    pub async fn persist_for_all<E: Endpoint>(&self, ep: &E) -> Result<bool> {
        let Some(call) = self.disk.call() else { return Ok(false) };
        call.gather(ep).await;
        let start = ep.now();
        self.persist(ep).await?;
        call.end(ep.now() - start);
        Ok(true)
    }

    /// After a failure the kernel may have dropped bytes, so that a second attempt would prove nothing.
    async fn persist_or_fail(&self, persist: impl Future<Output = pando_fabric::Result<()>>) -> Result<()> {
        self.disk.check()?;
        persist.await.map_err(|_| {
            self.disk.fail();
            LogError::NotPersisted
        })
    }

    /// Whether the log is ever persisted.
    pub fn persists(&self) -> bool {
        self.options.persistence != Persistence::Never
    }

    /// From now on somebody calls [`Log::persist_for_all`] whenever `wake` is called while the log
    /// [is awaited](Log::is_awaited).
    pub fn serve(&self, wake: Box<dyn Fn() + Send + Sync>) {
        self.disk.serve(wake);
    }

    /// Whether an operation waits until more is persisted.
    pub fn is_awaited(&self) -> bool {
        self.disk.is_awaited()
    }

    /// Nobody persists the log any more: operations that wait for it fail.
    pub fn give_up(&self) {
        self.disk.fail();
    }

    /// Waits until everything up to `gsn` is in the log. Writes the batches that lack, whoever made them; the
    /// other slots of this worker run first and may add to them.
    async fn logged<E: Endpoint>(&self, ep: &E, lane: usize, gsn: u64) -> Result<()> {
        let waits_here = |lane| self.commit.is_behind(lane, gsn);
        if self.commit.is_logged(gsn) || !waits_here(lane) && self.commit.is_logged_soon(gsn) {
            return Ok(());
        }
        if ep.slots() > 1 {
            ep.yield_now().await;
        }
        let patience = Patience::new(self.options.patience_ns);
        while !self.commit.is_logged(gsn) {
            let mut posted = false;
            // Its own lane first.
            for turn in 0..self.lanes() {
                let lane = (lane + turn) % self.lanes();
                if waits_here(lane) {
                    posted |= self.post(ep, lane).await?;
                }
                if defect(Defect::OneLaneDurable) && posted {
                    return Ok(());
                }
            }
            if !posted && !self.commit.is_logged(gsn) {
                patience.wait(ep, "the log").await?;
            }
        }
        Ok(())
    }

    /// Writes the next batch of a lane; `false` if there is none that may be written now.
    pub(crate) async fn post<E: Endpoint>(&self, ep: &E, lane: usize) -> Result<bool> {
        let Some(Batch { seq, at, bytes, is_again }) = self.commit.take(lane) else { return Ok(false) };
        if is_again {
            self.rest(ep);
        }
        let flight = Flight { commit: &self.commit, lane, seq, is_written: Cell::new(false) };
        space::write_unread(ep, at, &bytes).await?;
        flight.is_written.set(true);
        // Before the flight ends: the next batch may have the buffer.
        drop(bytes);
        Ok(true)
    }

    /// Notes that a WRITE may still arrive that ended some time before now.
    pub(crate) fn rest<E: Endpoint>(&self, ep: &E) {
        self.rest_until.fetch_max(ep.now().saturating_add(self.options.verbs_take_ns), SeqCst);
    }

    /// From this time on no WRITE that was cut off arrives.
    pub(crate) fn rests_until(&self) -> Nanos {
        self.rest_until.load(SeqCst)
    }

    pub(crate) fn commit(&self) -> &Commit {
        &self.commit
    }

    pub(crate) fn patience_ns(&self) -> Nanos {
        self.options.patience_ns
    }

    /// Notes that a page outside of the cache is about to be changed and written. The records that are made
    /// from here on stay in the log as long as the hold lives.
    pub fn hold(&self) -> Hold<'_> {
        let mut holds = lock(&self.holds);
        let bound = self.clock() + 1;
        holds.push(bound);
        Hold { log: self, bound }
    }

    /// Drops the hold that was kept with this number.
    pub fn release(&self, bound: u64) {
        let mut holds = lock(&self.holds);
        if let Some(at) = holds.iter().position(|&held| held == bound) {
            holds.swap_remove(at);
        }
    }

    /// Opens the tap (`tap.rs`): from now on each change must be [noted](Log::note). `false` if it is open already.
    pub fn open_tap(&self, sink: Sink) -> bool {
        self.tap.open(sink, || self.commit.pass())
    }

    /// Whether a change that was appended must be [noted](Log::note).
    #[inline]
    pub fn is_tapped(&self) -> bool {
        self.tap.is_open()
    }

    /// Gives a change to the sink of the tap, if that is still open. The caller has appended the record of the
    /// change, and still holds the latch or the ticket of its leaf.
    #[cold]
    pub fn note(&self, key: &[u8], value: Option<&[u8]>) {
        self.tap.note(key, value);
    }

    /// Closes the taps of several logs at one moment, and calls `at` in it.
    pub fn close_taps<T>(logs: &[&Self], at: impl FnOnce() -> T) -> T {
        Tap::close(&logs.iter().map(|log| &log.tap).collect::<Vec<_>>(), at)
    }

    /// Begins a checkpoint. The caller writes all pages that are changed by now, and then ends it. `None` if
    /// another one is under way.
    pub fn begin_checkpoint(&self) -> Option<Checkpoint<'_>> {
        let truncating = self.try_truncating()?;
        Some(Checkpoint { log: self, horizon: self.first_to_come(), _truncating: truncating })
    }

    pub(crate) fn try_truncating(&self) -> Option<Truncating<'_>> {
        (self.is_truncating.swap(1, SeqCst) == 0).then(|| Truncating(&self.is_truncating))
    }

    /// The number of the next record, or of the first one that is held.
    fn first_to_come(&self) -> u64 {
        // The clock first: a hold begins before its record gets a number.
        let clock = self.clock();
        let held = lock(&self.holds).iter().min().copied();
        held.unwrap_or(u64::MAX).min(clock + 1)
    }
}

impl Appending<'_> {
    /// Appends the record and returns its number. It is in the log then, if memory is mapped here and no earlier record
    /// of the lane waits. The caller holds the latches of the pages that it is about.
    #[inline]
    pub fn append<E: Endpoint>(self, ep: &E, record: &Record<'_>) -> u64 {
        self.append_by(record, |at, bytes| ep.write_now(at, bytes))
    }
}

/// Keeps records in the log; see [`Log::hold`].
#[must_use]
pub struct Hold<'l> {
    log: &'l Log,
    bound: u64,
}

impl Hold<'_> {
    /// Leaves the hold to [`Log::release`] with the number that this returns.
    pub fn keep(self) -> u64 {
        let bound = self.bound;
        std::mem::forget(self);
        bound
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.log.release(self.bound);
    }
}

/// A checkpoint under way; there is one at a time.
#[must_use]
pub struct Checkpoint<'l> {
    log: &'l Log,
    horizon: u64,
    _truncating: Truncating<'l>,
}

impl Checkpoint<'_> {
    /// Covers what was appended since it began, too. The caller writes all pages that are changed by now.
    pub fn extended(self) -> Self {
        Self { horizon: self.log.first_to_come(), ..self }
    }

    /// Leaves `records` more records in the log than need be.
    pub fn except(self, records: u64) -> Self {
        let horizon = self.horizon.saturating_sub(records).max(1);
        Self { horizon, ..self }
    }

    /// Records below it are dropped in the end.
    pub fn horizon(&self) -> u64 {
        self.horizon
    }

    /// Drops the records of pages that have been written, and frees their space. If the log is persisted, the
    /// pages are persisted before, and the control blocks before the space is free.
    ///
    /// # Errors
    /// [`LogError::NotPersisted`]; errors of the fabric. The space stays in use then.
    pub async fn end<E: Endpoint>(self, ep: &E) -> Result<()> {
        let log = self.log;
        // A page also counts as written if a record that stays has its image.
        if !defect(OfMoves::TruncatedBeforeLog) {
            log.settled(ep, 0, log.clock()).await?;
        }
        if log.persists() && !defect(OfPower::ControlBeforePages) {
            log.persist_or_fail(disk::persist_all(ep)).await?;
        }
        let horizon = log.horizon.fetch_max(self.horizon, SeqCst).max(self.horizon);
        let heads: Vec<_> = (0..log.lanes()).map(|lane| log.commit.truncate(lane, horizon)).collect();
        // Batches that were written twice are among those that are dropped now, and another checkpoint may have ended in
        // the middle of a control block.
        if log.is_cut_off.swap(1, SeqCst) == 1 {
            log.rest(ep);
        }
        ep.sleep_until(log.rests_until()).await;
        let space = log.space();
        for ((lane, version), head) in log.versions.iter().enumerate().zip(&heads) {
            let (epoch, next) = (log.epoch, version.load(SeqCst) + 1);
            let control = Control { version: next, epoch, head: head.position, head_seq: head.seq, horizon };
            control.write(ep, &space, lane).await?;
            version.store(next, SeqCst);
        }
        log.is_cut_off.store(0, SeqCst);
        if log.persists() && !defect(OfPower::ReuseBeforePersist) {
            log.persist_or_fail(disk::persist(ep, &space.controls().collect::<Vec<_>>())).await?;
        }
        for (lane, head) in heads.into_iter().enumerate() {
            log.commit.free(lane, head);
        }
        Ok(())
    }
}

/// A random number that is not 0.
fn new_epoch<E: Endpoint>(ep: &E) -> u64 {
    ep.random() | 1
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("root", &self.space().root)
            .field("clock", &self.clock())
            .finish_non_exhaustive()
    }
}

/// A batch whose WRITE is in flight. Dropped before that has ended, the batch is written again.
struct Flight<'l> {
    commit: &'l Commit,
    lane: usize,
    seq: u64,
    is_written: Cell<bool>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.commit.end(self.lane, self.seq, self.is_written.get());
    }
}

/// The right to write the control blocks, and to move them.
pub(crate) struct Truncating<'l>(&'l AtomicU64);

impl Drop for Truncating<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}
