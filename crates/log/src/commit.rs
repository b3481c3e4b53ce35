//! The group commit: records gather in the open batch of a lane, batches are written in order, and a record
//! is durable once all records with lower numbers are in the log.
//!
//! No call waits or uses a verb, so that a model checker can run it. Any thread may write any lane's next
//! batch ([`Commit::take`]), so a record never waits for the thread that made it. A batch whose WRITE failed
//! or was dropped is handed out again, with the same bytes for the same place.
//!
//! Numbers come from one counter without holes. Each lane publishes a lower bound of its records that are not
//! in the log yet, before it draws the number. So a thread that has seen a record, reads the counter and then
//! the lanes, finds the bound of every earlier record that the log lacks.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::ops::Range;
use std::sync::Arc;

use pando_fabric::GlobalAddr;
use pando_fabric::defect::defect;

use crate::batch::{self, Identity};
use crate::defect::Defect;
use crate::record::Record;
use crate::space::{Lane, Space, Spot};
use crate::sync::{
    AtomicU64, Mutex, MutexGuard,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    lock,
};

/// Maximum number of batches of a lane that are being written.
pub(crate) const OUTSTANDING: usize = 2;
/// Bytes of batches that are dropped together.
const KEPT_TOGETHER: u64 = 1024;
/// Records between two notes of how far the log is.
const NOTED_EACH: u64 = 64;
/// Looks at the lanes before a thread gives up that another one is about to have written its record.
const TURNS: u32 = 100;
/// Bound of a lane that lacks no record.
const NOTHING: u64 = u64::MAX;

pub(crate) struct Commit {
    lanes: Box<[CommitLane]>,
    /// Number of the last record.
    clock: AtomicU64,
    /// All records up to this number are known to be in the log.
    logged: AtomicU64,
    /// 1 once a record was written when it was appended.
    is_at_once: AtomicU64,
}

/// Lanes do not share cache lines, which threads that use different ones would take from each other.
#[repr(align(128))]
struct CommitLane {
    /// At most the number of its first record that is not in the log yet.
    oldest: AtomicU64,
    state: Mutex<State>,
}

struct State {
    ring: Lane,
    seed: u64,
    epoch: u64,
    /// Full batches that have no place yet, in order.
    full: VecDeque<Open>,
    open: Open,
    /// An empty buffer for the records after these.
    spare: Vec<u8>,
    /// Bytes that these and reservations may take, with a header for each record.
    claimed: u64,
    seq: u64,
    tail: u64,
    /// Batches that are not known to be in the log, in order.
    posted: VecDeque<Posted>,
    /// Batches in the log that may be needed, in order; several that follow each other may be one entry.
    kept: VecDeque<Kept>,
    /// Position up to which space is free again.
    head: u64,
    /// Bytes in the log that are not known to be persisted, in order; `None` if nobody wants to know.
    unpersisted: Option<Vec<Span>>,
    /// The lane is about to be elsewhere, so no new batch is written.
    is_frozen: bool,
}

/// Bytes of whole batches.
#[derive(Clone, Copy)]
struct Span {
    at: GlobalAddr,
    len: u64,
    /// Number of the last batch.
    last: u64,
}

/// Batches in the log that are not known to be persisted.
pub(crate) struct Unpersisted {
    /// All records up to this number are in these batches, or persisted.
    pub bound: u64,
    pub spans: Vec<(GlobalAddr, u64)>,
    /// Last batch of each lane.
    last: Vec<Option<u64>>,
}

/// Records that gather in a batch.
#[derive(Default)]
struct Open {
    /// Room for the header of the batch, and the records. Empty if there are none.
    bytes: Vec<u8>,
    /// Numbers of the first and the last of them, and their number.
    first: u64,
    last: u64,
    count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    InFlight,
    /// The WRITE failed, or its future was dropped.
    Unknown,
    Done,
}

struct Posted {
    kept: Kept,
    first: u64,
    bytes: Arc<Vec<u8>>,
    spot: Spot,
    written: Written,
}

/// Batches that follow each other.
#[derive(Clone, Copy)]
struct Kept {
    /// Of the first.
    seq: u64,
    /// Position behind which they lie.
    start: u64,
    /// Number of their last record.
    last: u64,
}

/// Room for one record in a lane.
#[must_use]
pub struct Reservation<'l> {
    commit: &'l Commit,
    lane: usize,
    cost: u64,
    /// Half of the ring is in use: it is time for a checkpoint.
    pub is_late: bool,
}

/// A locked lane with room for one record. It is locked for as long as it takes to change a page.
#[must_use]
pub struct Appending<'l> {
    commit: &'l Commit,
    lane: &'l CommitLane,
    state: MutexGuard<'l, State>,
    /// Bytes that are claimed for the record.
    cost: u64,
}

/// Part of a ring that a reservation may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Three quarters; the rest is for the images of a checkpoint, which makes room again.
    Most,
    All,
}

/// Reason why there is no room for a record now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crowded {
    /// The ring is full.
    Ring,
    /// The record never fits.
    TooLarge { max: u64 },
}

/// A batch to be written.
pub(crate) struct Batch {
    pub seq: u64,
    pub at: GlobalAddr,
    pub bytes: Arc<Vec<u8>>,
    /// An earlier WRITE of it failed or was dropped, and may still arrive.
    pub is_again: bool,
}

/// New head of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub position: u64,
    pub seq: u64,
}

impl CommitLane {
    fn used(&self) -> u64 {
        let state = lock(&self.state);
        state.tail - state.head + state.claimed
    }
}

impl State {
    /// Number of the first record that is not known to be in the log.
    fn first(&self) -> Option<u64> {
        let posted = self.posted.front().map(|posted| posted.first);
        let waiting = self.full.front().unwrap_or(&self.open);
        posted.or_else(|| (waiting.count > 0).then_some(waiting.first))
    }

    /// Claims `cost` bytes for a record; returns whether half of the ring is in use then.
    fn claim(&mut self, cost: u64, share: Share) -> Result<bool, Crowded> {
        let ring_len = self.ring.ring_len();
        let usable = if share == Share::Most { ring_len / 4 * 3 } else { ring_len };
        let max = self.ring.batch_max().min(usable / 2);
        if cost > max {
            return Err(Crowded::TooLarge { max: max - batch::HEADER as u64 });
        }
        // Each batch may skip less than its own length at the end of a segment.
        let used = self.tail - self.head + 2 * (self.claimed + cost);
        if used > usable {
            return Err(Crowded::Ring);
        }
        self.claimed += cost;
        Ok(used > ring_len / 2)
    }

    /// Completes the next batch of the lane; returns where it is to be.
    fn seal(&self, count: u32, bytes: &mut [u8]) -> Spot {
        batch::seal(Identity { seed: self.seed, epoch: self.epoch, seq: self.seq }, count, bytes);
        self.ring.place(self.tail, bytes.len() as u64)
    }

    /// Notes that the next batch, of `len` bytes, is at `spot`, or about to be.
    fn place(&mut self, spot: Spot, len: usize, count: u32, last: u64) -> Kept {
        let kept = Kept { seq: self.seq, start: self.tail, last };
        self.claimed -= (len - batch::HEADER) as u64 + u64::from(count) * batch::HEADER as u64;
        self.seq += 1;
        self.tail = spot.position + len as u64;
        kept
    }

    /// Has `write` write the open batch, before which none waits. `false` if it did not.
    fn write_open(&mut self, write: impl FnOnce(GlobalAddr, &[u8]) -> bool) -> bool {
        if self.is_frozen {
            return false;
        }
        let mut open = std::mem::take(&mut self.open);
        let spot = self.seal(open.count, &mut open.bytes);
        let is_written = write(self.ring.addr(spot), &open.bytes);
        if is_written {
            let len = open.bytes.len();
            let kept = self.place(spot, len, open.count, open.last);
            self.keep(kept, spot, len as u64);
            open.bytes.clear();
            open.count = 0;
        }
        self.open = open;
        is_written
    }

    /// Notes that a batch is in the log.
    fn keep(&mut self, batch: Kept, spot: Spot, len: u64) {
        // Few entries for many small batches.
        match self.kept.back_mut() {
            Some(kept) if batch.start + len - kept.start <= KEPT_TOGETHER => kept.last = batch.last,
            _ => self.kept.push_back(batch),
        }
        let Some(spans) = &mut self.unpersisted else { return };
        let (at, last) = (self.ring.addr(spot), batch.seq);
        match spans.last_mut() {
            Some(span) if span.at.add(span.len) == at => (span.len, span.last) = (span.len + len, last),
            _ => spans.push(Span { at, len, last }),
        }
    }
}

impl Appending<'_> {
    /// Appends the record; returns its number. If nothing else of the lane waits to be written, `write` may write the
    /// record there and then, and says whether it has done so. The caller holds the latches of the pages.
    #[inline]
    pub fn append_by(self, record: &Record<'_>, write: impl FnOnce(GlobalAddr, &[u8]) -> bool) -> u64 {
        self.append_then(record, |state| state.write_open(write))
    }

    /// [`Appending::append_by`] with what may write the open batch.
    #[inline]
    fn append_then(mut self, record: &Record<'_>, write: impl FnOnce(&mut State) -> bool) -> u64 {
        let Self { commit, lane, state, cost } = &mut self;
        let len = record.stored_len();
        assert!((len + batch::HEADER) as u64 <= *cost, "room was reserved for the record");
        let is_first = state.first().is_none();
        if is_first {
            // Before the number is drawn; see the module documentation.
            lane.oldest.store(commit.clock.load(Relaxed) + 1, Relaxed);
        }
        let gsn = commit.clock.fetch_add(1, SeqCst) + 1;
        if state.open.bytes.len().max(batch::HEADER) + len > state.ring.batch_max() as usize {
            let full = std::mem::take(&mut state.open);
            state.full.push_back(full);
        }
        let open = &mut state.open;
        if open.count == 0 {
            open.first = gsn;
            open.bytes.resize(batch::HEADER, 0);
        }
        record.encode(gsn, &mut open.bytes);
        open.last = gsn;
        open.count += 1;
        // What the record takes stays claimed until the batch has its place.
        state.claimed = state.claimed - std::mem::take(cost) + (len + batch::HEADER) as u64;
        if is_first && write(state) {
            lane.oldest.store(NOTHING, Release);
            if commit.is_at_once.load(Relaxed) == 0 {
                commit.is_at_once.store(1, Relaxed);
            }
        }
        gsn
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        self.state.claimed -= self.cost;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        lock(&self.commit.lanes[self.lane].state).claimed -= self.cost;
    }
}

impl Commit {
    /// Empty lanes in `space`; the next record gets the number after `clock`. If `tracks`, remembers what is
    /// not persisted yet.
    pub fn new(space: &Space, epoch: u64, clock: u64, tracks: bool) -> Self {
        let state = |(i, ring): (usize, &Lane)| State {
            ring: ring.clone(),
            seed: space.seed_of(i),
            epoch,
            full: VecDeque::new(),
            open: Open::default(),
            spare: Vec::new(),
            claimed: 0,
            seq: 0,
            tail: 0,
            posted: VecDeque::new(),
            kept: VecDeque::new(),
            head: 0,
            unpersisted: tracks.then(Vec::new),
            is_frozen: false,
        };
        let lane = |state| CommitLane { oldest: AtomicU64::new(NOTHING), state: Mutex::new(state) };
        let lanes = space.lanes.iter().enumerate().map(state).map(lane).collect();
        Self {
            lanes,
            clock: AtomicU64::new(clock),
            logged: AtomicU64::new(clock),
            is_at_once: AtomicU64::new(0),
        }
    }

    /// Number of the last record.
    pub fn clock(&self) -> u64 {
        self.clock.load(SeqCst)
    }

    /// Takes a place in the order of the records, without being one: the caller sees what was done before the records that
    /// have a number, and is seen by those who draw one later.
    pub fn pass(&self) {
        self.clock.fetch_add(0, SeqCst);
    }

    /// Reserves room for a record of `len` bytes.
    pub fn reserve(&self, lane: usize, len: usize, share: Share) -> Result<Reservation<'_>, Crowded> {
        let cost = (len + batch::HEADER) as u64;
        let is_late = lock(&self.lanes[lane].state).claim(cost, share)?;
        Ok(Reservation { commit: self, lane, cost, is_late })
    }

    /// Locks a lane to append a record that fits into a reservation.
    pub fn begin<'l>(&'l self, reservation: Reservation<'l>) -> Appending<'l> {
        let (lane, cost) = (&self.lanes[reservation.lane], reservation.cost);
        std::mem::forget(reservation);
        Appending { commit: self, lane, state: lock(&lane.state), cost }
    }

    /// Locks a lane to append a record of `len` bytes, if less than half of the ring is in use.
    #[inline]
    pub fn try_begin(&self, lane: usize, len: usize) -> Option<Appending<'_>> {
        let (lane, cost) = (&self.lanes[lane], (len + batch::HEADER) as u64);
        let mut appending = Appending { commit: self, lane, state: lock(&lane.state), cost: 0 };
        let is_late = appending.state.claim(cost, Share::Most).ok()?;
        appending.cost = cost;
        (!is_late).then_some(appending)
    }

    /// Appends a record that fits into its reservation; returns its number. The caller holds the latches of
    /// the pages.
    pub fn append(&self, reservation: Reservation<'_>, record: &Record<'_>) -> u64 {
        self.begin(reservation).append_then(record, |_| false)
    }

    /// The next batch of a lane to be written, if there is one and it may be written now.
    pub fn take(&self, lane: usize) -> Option<Batch> {
        let mut state = lock(&self.lanes[lane].state);
        if let Some(again) = state.posted.iter_mut().find(|posted| posted.written == Written::Unknown) {
            again.written = Written::InFlight;
            let (seq, spot, bytes) = (again.kept.seq, again.spot, Arc::clone(&again.bytes));
            return Some(Batch { seq, at: state.ring.addr(spot), bytes, is_again: true });
        }
        if state.is_frozen || state.posted.len() >= OUTSTANDING {
            return None;
        }
        let Open { mut bytes, first, last, count } = match state.full.pop_front() {
            Some(full) => full,
            None if state.open.count == 0 => return None,
            None => {
                let next = Open { bytes: std::mem::take(&mut state.spare), ..Open::default() };
                std::mem::replace(&mut state.open, next)
            }
        };
        let spot = state.seal(count, &mut bytes);
        let bytes = Arc::new(bytes);
        let kept = state.place(spot, bytes.len(), count, last);
        state.posted.push_back(Posted {
            kept,
            first,
            bytes: Arc::clone(&bytes),
            spot,
            written: Written::InFlight,
        });
        Some(Batch { seq: kept.seq, at: state.ring.addr(spot), bytes, is_again: false })
    }

    /// Notes that batch `seq` is in the log, or that this is not known.
    pub fn end(&self, lane: usize, seq: u64, is_written: bool) {
        let lane = &self.lanes[lane];
        let mut state = lock(&lane.state);
        if let Some(posted) = state.posted.iter_mut().find(|posted| posted.kept.seq == seq) {
            posted.written = if is_written { Written::Done } else { Written::Unknown };
        }
        while let Some(posted) = state.posted.pop_front_if(|posted| posted.written == Written::Done) {
            state.keep(posted.kept, posted.spot, posted.bytes.len() as u64);
            if let Ok(mut bytes) = Arc::try_unwrap(posted.bytes) {
                bytes.clear();
                state.spare = bytes;
            }
        }
        lane.oldest.store(state.first().unwrap_or(NOTHING), Release);
    }

    /// Whether all records up to `gsn`, which the caller has seen, are in the log.
    #[inline]
    pub fn is_logged(&self, gsn: u64) -> bool {
        defect(Defect::AckBeforeLog) || self.logged.load(Acquire) >= gsn || self.logged() >= gsn
    }

    /// [`Commit::is_logged`], or becomes so in less time than it takes to wait: another thread writes its record at once.
    pub fn is_logged_soon(&self, gsn: u64) -> bool {
        let mut turns = if self.is_at_once.load(Relaxed) == 1 { TURNS } else { 0 };
        while !self.is_logged(gsn) {
            if turns == 0 {
                return false;
            }
            turns -= 1;
            spin_loop();
        }
        true
    }

    /// All records up to this number are in the log.
    #[inline]
    fn logged(&self) -> u64 {
        let bound = self.clock.load(SeqCst);
        let oldest = self.lanes.iter().map(|lane| lane.oldest.load(Acquire)).min().unwrap_or(NOTHING);
        let logged = bound.min(oldest - 1);
        // All threads write this word, so not each time.
        if logged >= self.logged.load(Relaxed) + NOTED_EACH {
            self.logged.fetch_max(logged, Release);
        }
        logged
    }

    /// What is in the log, but not known to be persisted.
    pub fn unpersisted(&self) -> Unpersisted {
        // The bound first: the batches of these records are in the lists by then.
        let mut found = Unpersisted { bound: self.logged(), spans: Vec::new(), last: Vec::new() };
        for lane in &self.lanes {
            let state = lock(&lane.state);
            let spans = state.unpersisted.as_deref().unwrap_or_default();
            found.spans.extend(spans.iter().map(|span| (span.at, span.len)));
            found.last.push(spans.last().map(|span| span.last));
        }
        found
    }

    /// Notes that these batches have been persisted.
    pub fn note_persisted(&self, persisted: &Unpersisted) {
        for (lane, &last) in self.lanes.iter().zip(&persisted.last) {
            if let (Some(last), Some(spans)) = (last, &mut lock(&lane.state).unpersisted) {
                spans.retain(|span| span.last > last);
            }
        }
    }

    /// Whether a record is being written, or in the log, while the WRITE of an earlier one has not begun.
    pub fn has_gap(&self) -> bool {
        let lanes = self.lanes.iter().map(|lane| {
            let state = lock(&lane.state);
            let waiting = state.full.front().unwrap_or(&state.open);
            let first = if waiting.count > 0 { waiting.first } else { u64::MAX };
            let begun = state.posted.back().map(|posted| &posted.kept).or(state.kept.back());
            (first, begun.map_or(0, |begun| begun.last))
        });
        let (first, last) =
            lanes.fold((u64::MAX, 0), |(first, last), lane| (lane.0.min(first), lane.1.max(last)));
        first < last
    }

    /// Whether a lane lacks records up to `gsn`.
    pub fn is_behind(&self, lane: usize, gsn: u64) -> bool {
        self.lanes[lane].oldest.load(Acquire) <= gsn
    }

    /// Forgets the batches of a lane all of whose records are below `horizon`; returns its new head. Their
    /// space is free after [`Commit::free`].
    pub fn truncate(&self, lane: usize, horizon: u64) -> Head {
        let mut state = lock(&self.lanes[lane].state);
        while state.kept.pop_front_if(|kept| kept.last < horizon).is_some() {}
        let first = state.kept.front().or_else(|| state.posted.front().map(|posted| &posted.kept));
        let head = match first {
            Some(kept) => Head { position: kept.start, seq: kept.seq },
            None => Head { position: state.tail, seq: state.seq },
        };
        if defect(Defect::EarlyReuse) {
            state.head = head.position;
        }
        head
    }

    /// Frees the space of a lane before `head`, once its control block says so.
    pub fn free(&self, lane: usize, head: Head) {
        let mut state = lock(&self.lanes[lane].state);
        state.head = state.head.max(head.position);
    }

    /// From now on new batches are handed out, or not. Those whose WRITE failed are in any case.
    pub fn freeze(&self, is_frozen: bool) {
        self.lanes.iter().for_each(|lane| lock(&lane.state).is_frozen = is_frozen);
    }

    pub fn is_frozen(&self) -> bool {
        self.lanes.iter().any(|lane| lock(&lane.state).is_frozen)
    }

    /// Whether a batch of the lane is not known to be in the log, although its WRITE has begun.
    pub fn is_in_flight(&self, lane: usize) -> bool {
        !lock(&self.lanes[lane].state).posted.is_empty()
    }

    /// Positions of the batches of a lane that may be needed.
    pub fn used_in(&self, lane: usize) -> Range<u64> {
        let state = lock(&self.lanes[lane].state);
        state.head..state.tail
    }

    /// From now on the lanes, which are frozen and have no batch in flight, lie in `space`.
    pub fn move_to(&self, space: &Space) {
        for (lane, ring) in self.lanes.iter().zip(&space.lanes) {
            lock(&lane.state).ring = ring.clone();
        }
    }

    /// Bytes of all lanes that are in use.
    pub fn used(&self) -> u64 {
        self.lanes.iter().map(CommitLane::used).sum()
    }

    /// The lane with the most room.
    pub fn emptiest(&self) -> usize {
        (0..self.lanes.len()).min_by_key(|&lane| self.lanes[lane].used()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
