//! Drives one thread through one phase: draws operations from its source, performs them in its slots, and
//! checks the answers if the specification asks for it.
//!
//! The driver knows the index only as a [`SystemUnderTest`], so threads of this machine and of a simulated
//! cluster run the same code. The slots of a thread share its source, its quota and its tally; none of these
//! is borrowed across an await. A write is announced to the [`Expectation`] before it starts and acknowledged
//! after it has ended. A read asks before it starts which writes it must see.

use std::cell::{Cell, RefCell};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pando::{ScanRange, VerbCounts};
use pando_fabric::Nanos;
use pando_workload::{
    Expectation, Floor, KeyCodec, Op, OpKind, OpStream, ScanCheck, ValueCodec, ValueError, Violation,
};
use serde::Serialize;

use super::latency::{Latency, Stopwatch};
use super::{BenchError, BenchSpec};
use crate::under_test::{Answers, Client, Port, SystemUnderTest};

/// Operations between two checks of the flags, and of a clock whose reading takes time.
const STRIDE: u64 = 64;
/// Number of complaints whose text a thread keeps.
const COMPLAINTS_KEPT: usize = 5;

/// State shared by all threads of a run.
pub(crate) struct Shared {
    pub keys: KeyCodec,
    pub values: ValueCodec,
    /// `None` if answers are not checked.
    pub expected: Option<Expectation>,
    pub multi_get: usize,
    /// Operations of this phase that have ended, for the display of progress.
    pub done: AtomicU64,
    pub stop: AtomicBool,
    /// A thread's operations kept failing, and all threads were told to stop.
    pub gave_up: AtomicBool,
}

impl Shared {
    pub fn new(spec: &BenchSpec) -> Result<Self, BenchError> {
        let values = spec.value_codec();
        Ok(Self {
            keys: spec.workload_spec()?.keys,
            values,
            expected: spec.verify.then(|| Expectation::new(spec.keys, &values)).transpose()?,
            multi_get: spec.multi_get,
            done: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            gave_up: AtomicBool::new(false),
        })
    }
}

/// A thread gives up after operations have kept failing for this long. Operations on cached nodes may succeed
/// in between.
const FAILING_NS_MAX: Nanos = 10_000_000_000;

/// A thread's share of a phase.
#[derive(Clone, Copy)]
pub(crate) enum Quota {
    Ops(u64),
    /// Until this time of the port's clock.
    Until(Nanos),
}

/// Operations of a thread, counted by the interval in which they ended.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Start of the first interval.
    origin: Nanos,
    interval_ns: Nanos,
    counts: Vec<u32>,
}

impl Series {
    pub fn new(origin: Nanos, interval_ns: Nanos) -> Series {
        Series { origin, interval_ns, counts: Vec::new() }
    }

    fn count(&mut self, now: Nanos) {
        let at = (now.saturating_sub(self.origin) / self.interval_ns) as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
    }

    /// Adds the counts to `sums`, interval by interval.
    pub fn add_to(&self, sums: &mut Vec<u64>) {
        if sums.len() < self.counts.len() {
            sums.resize(self.counts.len(), 0);
        }
        sums.iter_mut().zip(&self.counts).for_each(|(sum, &count)| *sum += u64::from(count));
    }
}

/// Source of a thread's operations, shared by its slots.
#[allow(async_fn_in_trait, reason = "a source belongs to one thread, and so do its futures")]
pub(crate) trait Source {
    /// Returns the next operation; `None` if there is none at present.
    fn next(&self) -> Option<Op>;

    /// Waits for a while; called when there was no operation.
    async fn idle(&self) {}

    /// Notes that an insert of this key has succeeded.
    fn inserted(&self, key_number: u64);

    /// Sequence of the next write; used if answers are not checked.
    fn sequence(&self) -> u32;

    /// Notes that an operation has ended.
    fn ended(&self) {}

    /// Whether the thread must stop.
    fn is_over(&self) -> bool {
        false
    }
}

/// A source that draws from the thread's own stream.
pub(crate) struct Drawn {
    stream: RefCell<OpStream>,
    sequence: Cell<u32>,
}

impl Drawn {
    pub fn new(stream: OpStream) -> Self {
        Self { stream: RefCell::new(stream), sequence: Cell::new(1) }
    }

    pub fn into_stream(self) -> OpStream {
        self.stream.into_inner()
    }
}

impl Source for Drawn {
    #[inline]
    fn next(&self) -> Option<Op> {
        Some(self.stream.borrow_mut().next_op())
    }

    fn inserted(&self, key_number: u64) {
        self.stream.borrow_mut().inserted(key_number);
    }

    #[inline]
    fn sequence(&self) -> u32 {
        self.sequence.replace(self.sequence.get().wrapping_add(1))
    }
}

/// A thread's part of a phase.
pub(crate) struct Task<O> {
    pub source: O,
    /// Number of the thread among all threads.
    pub thread: usize,
    pub quota: Quota,
    pub series: Option<Series>,
}

/// Operations by kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Operations {
    pub reads: u64,
    pub updates: u64,
    pub inserts: u64,
    /// Inserts of keys that were absent.
    pub new_keys: u64,
    pub scans: u64,
    /// Records that scans returned.
    pub scanned: u64,
    pub read_modify_writes: u64,
}

/// Operations of a thread in a phase.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub ops: u64,
    pub failed: u64,
    pub wrong: u64,
    pub by_kind: Operations,
    /// Messages of the first failed and wrong operations.
    pub complaints: Vec<String>,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.failed += other.failed;
        self.wrong += other.wrong;
        let (sum, more) = (&mut self.by_kind, &other.by_kind);
        sum.reads += more.reads;
        sum.updates += more.updates;
        sum.inserts += more.inserts;
        sum.new_keys += more.new_keys;
        sum.scans += more.scans;
        sum.scanned += more.scanned;
        sum.read_modify_writes += more.read_modify_writes;
        self.complaints.extend_from_slice(&other.complaints);
    }

    pub fn failed(&mut self, error: impl std::fmt::Display) {
        self.failed += 1;
        self.complain(error.to_string());
    }

    pub fn wrong(&mut self, error: impl std::fmt::Display) {
        self.wrong += 1;
        self.complain(error.to_string());
    }

    fn complain(&mut self, text: String) {
        if self.complaints.len() < COMPLAINTS_KEPT {
            self.complaints.push(text);
        }
    }
}

/// A wrong answer.
#[derive(Debug, thiserror::Error)]
enum Wrong {
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("key number {key_number}: {error}")]
    Value { key_number: u64, error: ValueError },
    #[error("a scan handed out a key that was never loaded or inserted")]
    ForeignKey,
    #[error("key number {key_number} was written, and the answer says that it was not there before")]
    WasThere { key_number: u64 },
}

/// Reason why an operation counts as failed or wrong.
enum Trouble {
    /// Error of the index.
    Failed(String),
    /// A key that must exist was not found. The answer is not known to be wrong.
    Absent(u64),
    Wrong(Wrong),
}

impl From<Wrong> for Trouble {
    fn from(wrong: Wrong) -> Self {
        Trouble::Wrong(wrong)
    }
}

impl Trouble {
    #[cold]
    fn failed(error: impl std::error::Error) -> Trouble {
        Trouble::Failed(error.to_string())
    }
}

/// One thread in one phase.
pub(crate) struct Driver<'a, S: SystemUnderTest<P>, P, O> {
    shared: &'a Shared,
    client: Client<'a, S, P>,
    source: O,
    watch: Stopwatch<'a>,
    tally: RefCell<Tally>,
    issued: Cell<u64>,
    quota: Quota,
    series: Option<RefCell<Series>>,
    /// Start of the first slot, and end of the last one.
    began: Cell<Option<Nanos>>,
    ended: Cell<Nanos>,
    /// Times of the first and the last failure of the current run of failures.
    failing: Cell<Option<(Nanos, Nanos)>>,
}

/// Buffers of one slot.
struct Buffers {
    key: Vec<u8>,
    value: Vec<u8>,
    found: Vec<u8>,
    check: ScanCheck,
}

/// Result of one thread's phase.
pub(crate) struct ThreadResult<O> {
    pub source: O,
    pub tally: Tally,
    pub series: Option<Series>,
    /// Verbs of the thread in this phase.
    pub verbs: VerbCounts,
    /// Start of the first operation and end of the last one, by the port's clock.
    pub began: Nanos,
    pub ended: Nanos,
}

impl<'a, S: SystemUnderTest<P>, P: Port, O: Source> Driver<'a, S, P, O> {
    /// A thread whose latencies are recorded in `latency`.
    pub fn new(
        shared: &'a Shared,
        client: Client<'a, S, P>,
        task: Task<O>,
        latency: &'a RefCell<Latency>,
    ) -> Self {
        Self {
            shared,
            client,
            source: task.source,
            watch: Stopwatch::new(task.thread, latency),
            tally: RefCell::default(),
            issued: Cell::new(0),
            quota: task.quota,
            series: task.series.map(RefCell::new),
            began: Cell::new(None),
            ended: Cell::new(0),
            failing: Cell::new(None),
        }
    }

    fn port(&self) -> &'a P {
        self.client.port
    }

    /// Ends the phase, in which the thread issued `verbs`.
    pub fn finish(self, verbs: VerbCounts) -> ThreadResult<O> {
        ThreadResult {
            source: self.source,
            tally: self.tally.into_inner(),
            series: self.series.map(RefCell::into_inner),
            verbs,
            began: self.began.get().unwrap_or(self.ended.get()),
            ended: self.ended.get(),
        }
    }

    /// Runs one slot: performs operations until the thread's quota is used up.
    pub async fn slot(&self) {
        if self.began.get().is_none() {
            self.began.set(Some(self.port().now()));
        }
        match self.shared.multi_get > 1 {
            true => self.batches().await,
            false => self.single_operations().await,
        }
        self.ended.set(self.port().now());
    }

    async fn single_operations(&self) {
        let mut buffers = Buffers {
            key: vec![0; self.shared.keys.size()],
            value: vec![0; self.shared.values.size()],
            found: Vec::with_capacity(self.shared.values.size()),
            check: ScanCheck::new(self.shared.keys),
        };
        while self.claim(1) > 0 {
            let Some(op) = self.source.next() else {
                self.source.idle().await;
                self.port().pace().await;
                continue;
            };
            let started = self.watch.start(self.port());
            let outcome = self.perform(&mut buffers, op).await;
            self.watch.stop(self.port(), started);
            self.note(op, outcome);
            self.source.ended();
            self.port().pace().await;
        }
    }

    /// Takes up to `wanted` operations of the quota; 0 if the phase has ended for this thread.
    #[inline]
    fn claim(&self, wanted: u64) -> u64 {
        let issued = self.issued.get();
        let granted = match self.quota {
            Quota::Ops(max) => wanted.min(max - issued),
            Quota::Until(_) => wanted,
        };
        let looks_up = issued % STRIDE < granted;
        if looks_up {
            self.shared.done.fetch_add(STRIDE.max(granted), Relaxed);
        }
        if self.source.is_over() {
            return 0;
        }
        // A failing operation may take long, so check the flag after each one.
        if (looks_up || self.failing.get().is_some()) && self.shared.stop.load(Relaxed) {
            return 0;
        }
        if (looks_up || self.port().is_clock_free())
            && matches!(self.quota, Quota::Until(end) if self.port().now() >= end)
        {
            return 0;
        }
        self.issued.set(issued + granted);
        granted
    }

    fn note(&self, op: Op, outcome: Result<u64, Trouble>) {
        if let Some(series) = &self.series {
            series.borrow_mut().count(self.port().now());
        }
        let mut tally = self.tally.borrow_mut();
        tally.ops += 1;
        let (kinds, figure) = (&mut tally.by_kind, outcome.as_ref().copied().unwrap_or(0));
        match op.kind {
            OpKind::Read => kinds.reads += 1,
            OpKind::Update => kinds.updates += 1,
            OpKind::ReadModifyWrite => kinds.read_modify_writes += 1,
            OpKind::Insert => {
                if outcome.is_ok() {
                    self.source.inserted(op.key_number);
                }
                kinds.inserts += 1;
                kinds.new_keys += figure;
            }
            OpKind::Scan { .. } => {
                kinds.scans += 1;
                kinds.scanned += figure;
            }
        }
        match outcome {
            Ok(_) => {}
            Err(Trouble::Wrong(wrong)) => tally.wrong(wrong),
            Err(Trouble::Failed(error)) => {
                self.note_failure(self.port().now());
                tally.failed(error);
            }
            Err(Trouble::Absent(key_number)) => {
                tally.failed(format_args!("key number {key_number} was not found"));
            }
        }
    }

    #[cold]
    fn note_failure(&self, now: Nanos) {
        // A long time without failures ends the run of failures.
        let since = match self.failing.get() {
            Some((since, last)) if now.saturating_sub(last) < FAILING_NS_MAX => since,
            _ => now,
        };
        self.failing.set(Some((since, now)));
        if now.saturating_sub(since) >= FAILING_NS_MAX {
            self.shared.gave_up.store(true, Relaxed);
            self.shared.stop.store(true, Relaxed);
        }
    }

    /// Performs one operation. Returns the number of new keys for an insert, of records for a scan, 0
    /// otherwise.
    async fn perform(&self, buffers: &mut Buffers, op: Op) -> Result<u64, Trouble> {
        self.shared.keys.encode(op.key_number, &mut buffers.key);
        match op.kind {
            OpKind::Read => self.read(buffers, op.key_number).await,
            OpKind::Update => self.write(buffers, op).await,
            OpKind::Insert => self.write(buffers, op).await,
            OpKind::Scan { len } => self.scan(buffers, op.key_number, len).await,
            OpKind::ReadModifyWrite => {
                self.read(buffers, op.key_number).await?;
                self.write(buffers, op).await
            }
        }
    }

    async fn read(&self, buffers: &mut Buffers, number: u64) -> Result<u64, Trouble> {
        let floor = self.shared.expected.as_ref().map(|expected| expected.before_read(number));
        buffers.found.clear();
        let found = self.client.get(&buffers.key, &mut buffers.found).await.map_err(Trouble::failed)?;
        self.check_answer(number, floor, found.then_some(&buffers.found))?;
        Ok(0)
    }

    fn check_answer(
        &self,
        key_number: u64,
        floor: Option<Floor>,
        found: Option<impl AsRef<[u8]>>,
    ) -> Result<(), Trouble> {
        match (floor, &self.shared.expected) {
            (Some(floor), Some(expected)) => {
                let sequence = found.map(|value| self.check_value(key_number, value.as_ref())).transpose()?;
                Ok(expected.check_read(key_number, floor, sequence).map_err(Wrong::from)?)
            }
            _ if found.is_none() => Err(Trouble::Absent(key_number)),
            _ => Ok(()),
        }
    }

    fn check_value(&self, key_number: u64, value: &[u8]) -> Result<u32, Wrong> {
        self.shared.values.check(key_number, value).map_err(|error| Wrong::Value { key_number, error })
    }

    /// Updates or inserts a key; an insert of a present key updates it. Returns 1 if the key is new.
    async fn write(&self, buffers: &mut Buffers, op: Op) -> Result<u64, Trouble> {
        let number = op.key_number;
        let expected = self.shared.expected.as_ref();
        let surely_present = expected.is_some_and(|expected| expected.surely_present(number));
        let sequence = match expected {
            Some(expected) => expected.issue(number),
            None => self.source.sequence(),
        };
        self.shared.values.write(number, sequence, &mut buffers.value);
        let is_insert = op.kind == OpKind::Insert;
        let done = match is_insert {
            true => self.client.put(&buffers.key, &buffers.value).await,
            false => self.client.update(&buffers.key, &buffers.value).await,
        };
        if let Some(expected) = expected {
            match done {
                Ok(existed) if is_insert || existed => expected.ack(number, sequence),
                _ => expected.fail(number, sequence),
            }
        }
        match (done.map_err(Trouble::failed)?, is_insert) {
            (false, true) if surely_present => Err(Wrong::WasThere { key_number: number }.into()),
            (existed, true) => Ok(u64::from(!existed)),
            (false, false) if surely_present => {
                Err(Wrong::Violation(Violation::Missing { key_number: number }).into())
            }
            (false, false) => Err(Trouble::Absent(number)),
            (true, false) => Ok(0),
        }
    }

    async fn scan(&self, buffers: &mut Buffers, number: u64, len: u32) -> Result<u64, Trouble> {
        let range = ScanRange { low: Bound::Included(&buffers.key), limit: len as usize, ..ScanRange::all() };
        let Some(expected) = &self.shared.expected else {
            let mut entries = 0;
            self.client
                .scan(&range, |_, _| {
                    entries += 1;
                    true
                })
                .await
                .map_err(Trouble::failed)?;
            return Ok(entries);
        };
        let check = &mut buffers.check;
        check.begin(expected, number, len);
        let (mut entries, mut trouble) = (0, None);
        self.client
            .scan(&range, |key, value| {
                entries += 1;
                trouble = self.check_record(expected, check, key, value).err();
                trouble.is_none()
            })
            .await
            .map_err(Trouble::failed)?;
        match trouble {
            Some(wrong) => Err(wrong.into()),
            None => {
                check.end().map_err(Wrong::from)?;
                Ok(entries)
            }
        }
    }

    fn check_record(
        &self,
        expected: &Expectation,
        check: &mut ScanCheck,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), Wrong> {
        let key_number = self.shared.keys.decode(key).ok_or(Wrong::ForeignKey)?;
        let sequence = self.check_value(key_number, value)?;
        Ok(check.record(expected, key_number, sequence)?)
    }

    /// Looks up keys in batches; for workloads of lookups only. Each lookup has the latency of its batch.
    async fn batches(&self) {
        let size = self.shared.keys.size();
        let mut ops: Vec<Op> = Vec::with_capacity(self.shared.multi_get);
        let mut floors = Vec::with_capacity(self.shared.multi_get);
        let mut keys = vec![0; self.shared.multi_get * size];
        let mut answers = Answers::default();
        loop {
            let granted = self.claim(self.shared.multi_get as u64) as usize;
            if granted == 0 {
                return;
            }
            ops.clear();
            floors.clear();
            for key in keys.chunks_exact_mut(size).take(granted) {
                let Some(op) = self.source.next() else { break };
                self.shared.keys.encode(op.key_number, key);
                floors
                    .push(self.shared.expected.as_ref().map(|expected| expected.before_read(op.key_number)));
                ops.push(op);
            }
            let batch: Vec<&[u8]> = keys.chunks_exact(size).take(ops.len()).collect();
            let started = self.watch.start(self.port());
            let done = self.client.multi_get(&batch, &mut answers).await;
            self.watch.stop(self.port(), started);
            for (i, &op) in ops.iter().enumerate() {
                let outcome = match &done {
                    Ok(()) => self.check_answer(op.key_number, floors[i], answers.get(i)).map(|()| 0),
                    Err(error) => Err(Trouble::Failed(error.to_string())),
                };
                self.note(op, outcome);
            }
            self.port().pace().await;
        }
    }
}
