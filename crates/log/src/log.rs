//! The log of a compute server, while it is open.
//!
//! 1. An operation reserves room for its record ([`Log::reserve`]), which may wait.
//! 2. It latches its pages, changes them, and appends the record ([`Log::append`]), which does not. The
//!    record's number goes into the pages.
//! 3. It releases the latches and waits until everything that it has seen is in the log ([`Log::durable`]).
//!    Only then it answers. Lookups wait too, for the number of the page that they read.
//!
//! No page is written before the log has everything up to the page's number. After a checkpoint wrote all pages
//! that were changed before it began, the log is truncated ([`Log::truncate`]).

use std::cell::Cell;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, Nanos, Patience};

use crate::commit::{Batch, Commit, Crowded, Reservation};
use crate::defect::Defect;
use crate::error::{LogError, Result};
use crate::reader::Contents;
use crate::record::Record;
use crate::space::{self, Control, Space};
use crate::sync::{AtomicU64, Ordering::SeqCst};

/// Longest wait for room and for WRITEs of others: 10 s, as operations of an index wait.
const PATIENCE: Nanos = 10_000_000_000;

/// See the module documentation. Threads share it; each call uses the endpoint of its thread.
pub struct Log {
    space: Space,
    commit: Commit,
    epoch: u64,
    /// Version of the control block of each lane.
    versions: Box<[AtomicU64]>,
    /// 1 while a truncation writes them.
    is_truncating: AtomicU64,
    horizon: AtomicU64,
}

impl Log {
    /// Writes an empty log for index `index_id`, with its root block at `root` and the given segments of each
    /// lane. [`Log::resume`] opens it.
    ///
    /// # Errors
    /// [`LogError::Geometry`]; errors of the fabric.
    pub async fn create<E: Endpoint>(
        ep: &E,
        root: GlobalAddr,
        index_id: u32,
        segments: Vec<Vec<GlobalAddr>>,
        segment_bytes: u64,
    ) -> Result<Space> {
        let space = Space::new(root, ep.random(), index_id, segments, segment_bytes)?;
        for lane in 0..space.lanes.len() {
            let control = Control { version: 1, epoch: ep.random(), head: 0, head_seq: 0, horizon: 1 };
            control.write(ep, &space, lane).await?;
        }
        // Last: without a root there is no log.
        space.write_root(ep).await?;
        Ok(space)
    }

    /// Opens a log, empty. What [`Contents::records`] returned must be in the pages, and these written.
    ///
    /// # Errors
    /// Errors of the fabric, after which the log can be read again.
    pub async fn resume<E: Endpoint>(ep: &E, contents: Contents) -> Result<Self> {
        let (space, clock) = (contents.space().clone(), contents.clock());
        let epoch = ep.random();
        let versions: Box<[_]> =
            contents.control_versions().map(|version| AtomicU64::new(version + 1)).collect();
        let horizon = clock + 1;
        for (lane, version) in versions.iter().enumerate() {
            // If this stops midway, the new horizon of one lane covers the records of all.
            let control = Control { version: version.load(SeqCst), epoch, head: 0, head_seq: 0, horizon };
            control.write(ep, &space, lane).await?;
        }
        let commit = Commit::new(&space, epoch, clock);
        let is_truncating = AtomicU64::new(0);
        Ok(Self { space, commit, epoch, versions, is_truncating, horizon: AtomicU64::new(horizon) })
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    pub fn lanes(&self) -> usize {
        self.space.lanes.len()
    }

    /// Number of the last record; numbers rise by one.
    pub fn clock(&self) -> u64 {
        self.commit.clock()
    }

    /// Share of the fullest lane that is in use.
    pub fn fullness(&self) -> f64 {
        let (used, len) = self.commit.fullest();
        used as f64 / len.max(1) as f64
    }

    /// Reserves room in `lane` for a record of `len` bytes. If the ring is full, calls `checkpoint`, which
    /// truncates the log or waits for another operation that does.
    ///
    /// # Errors
    /// [`LogError::RecordTooLarge`]; [`LogError::TimedOut`]; errors of the fabric and of `checkpoint`.
    pub async fn reserve<E: Endpoint, F: From<LogError>>(
        &self,
        ep: &E,
        lane: usize,
        len: usize,
        checkpoint: impl AsyncFn() -> Result<(), F>,
    ) -> Result<Reservation<'_>, F> {
        let patience = Patience::new(PATIENCE);
        loop {
            match self.commit.reserve(lane, len) {
                Ok(reservation) => return Ok(reservation),
                Err(Crowded::TooLarge { max }) => {
                    return Err(LogError::RecordTooLarge { bytes: len, max: max as usize }.into());
                }
                Err(crowded) => {
                    let posted = self.post(ep, lane).await?;
                    if crowded == Crowded::Ring && !posted {
                        checkpoint().await?;
                    }
                    if !posted {
                        patience.wait(ep, "room in the log").await.map_err(LogError::from)?;
                    }
                }
            }
        }
    }

    /// Appends a record and returns its number. The caller holds the latches of the pages that it is about,
    /// and has reserved its [`Record::stored_len`] or more.
    pub fn append(&self, reservation: Reservation<'_>, record: &Record<'_>) -> u64 {
        self.commit.append(reservation, record)
    }

    /// Whether everything up to `gsn`, the number of a page that the caller has seen, is in the log.
    #[inline]
    pub fn is_durable(&self, gsn: u64) -> bool {
        self.commit.is_durable(gsn)
    }

    /// Waits until everything up to `gsn` is in the log. Writes the batches that lack, whoever made them; the
    /// other slots of this worker run first and may add to them.
    ///
    /// # Errors
    /// [`LogError::TimedOut`]; errors of the fabric. Records up to `gsn` may or may not be in the log then.
    pub async fn durable<E: Endpoint>(&self, ep: &E, lane: usize, gsn: u64) -> Result<()> {
        if self.is_durable(gsn) {
            return Ok(());
        }
        if ep.slots() > 1 {
            ep.yield_now().await;
        }
        let patience = Patience::new(PATIENCE);
        while !self.is_durable(gsn) {
            let mut posted = false;
            // Its own lane first.
            for turn in 0..self.lanes() {
                let lane = (lane + turn) % self.lanes();
                if self.commit.is_behind(lane, gsn) {
                    posted |= self.post(ep, lane).await?;
                }
                if defect(Defect::OneLaneDurable) && posted {
                    return Ok(());
                }
            }
            if !posted && !self.is_durable(gsn) {
                patience.wait(ep, "the log").await?;
            }
        }
        Ok(())
    }

    /// Writes the next batch of a lane; `false` if there is none that may be written now.
    async fn post<E: Endpoint>(&self, ep: &E, lane: usize) -> Result<bool> {
        let Some(Batch { seq, spot, bytes }) = self.commit.take(lane) else { return Ok(false) };
        let flight = Flight { commit: &self.commit, lane, seq, is_written: Cell::new(false) };
        space::write_bytes(ep, self.space.lanes[lane].addr(spot), &bytes).await?;
        flight.is_written.set(true);
        Ok(true)
    }

    /// Drops all records below `horizon` and frees their space. All pages that they are about have been
    /// written, and the writes have completed. `false` if another call is doing it.
    ///
    /// # Errors
    /// Errors of the fabric. The space stays in use then.
    pub async fn truncate<E: Endpoint>(&self, ep: &E, horizon: u64) -> Result<bool> {
        if self.is_truncating.swap(1, SeqCst) == 1 {
            return Ok(false);
        }
        let _truncating = Truncating(&self.is_truncating);
        let horizon = self.horizon.fetch_max(horizon, SeqCst).max(horizon);
        let mut heads = Vec::new();
        for (lane, version) in self.versions.iter().enumerate() {
            let head = self.commit.truncate(lane, horizon);
            let (version_now, epoch) = (version.load(SeqCst) + 1, self.epoch);
            let control =
                Control { version: version_now, epoch, head: head.position, head_seq: head.seq, horizon };
            control.write(ep, &self.space, lane).await?;
            version.store(version_now, SeqCst);
            heads.push(head);
        }
        for (lane, head) in heads.into_iter().enumerate() {
            self.commit.free(lane, head);
        }
        Ok(true)
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log")
            .field("root", &self.space.root)
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

/// The right to write the control blocks.
struct Truncating<'l>(&'l AtomicU64);

impl Drop for Truncating<'_> {
    fn drop(&mut self) {
        self.0.store(0, SeqCst);
    }
}
