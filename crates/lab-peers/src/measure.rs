//! One thread's part of a measurement: a loop over drawn keys with every answer checked.
//!
//! Keys are drawn in advance, so that the generator is not measured. Besides the elapsed time, the time on a
//! processor is taken; it tells a slow map from a busy machine.

use crate::data::{DataSet, Draw, belongs, value_of};
use crate::{BATCH, OrderedMap, Session};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The measured operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// One lookup at a time.
    Lookup,
    /// Several independent lookups per call.
    MultiGet,
    /// Replacing the value of a present key.
    Update,
    /// A scan from a drawn key on.
    Scan,
}

impl Phase {
    pub const ALL: [Phase; 4] = [Phase::Lookup, Phase::MultiGet, Phase::Update, Phase::Scan];
}

/// Description of a wrong answer.
#[derive(Debug, Clone)]
pub struct WrongAnswer(String);

impl std::fmt::Display for WrongAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongAnswer {}

/// One thread's work in a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    pub phase: Phase,
    pub data: &'a DataSet,
    /// Keys; the thread cycles through them.
    pub draws: &'a [Draw],
    /// Position in `draws` to start at.
    pub first: usize,
    pub scan_len: usize,
    pub multi_get_len: usize,
    /// Sequence that updates write.
    pub sequence: u64,
    pub threads: usize,
    pub time: Duration,
    /// Number of operations after which the job ends before its time is over.
    pub limit: u64,
}

/// Work done by one thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub operations: u64,
    pub time: Duration,
    /// Time on a processor: less than `time` if the thread waited for a lock or the machine was busy.
    pub processor_time: Duration,
}

impl Tally {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.time.as_secs_f64()
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// A loaded map, behind an object-safe interface.
pub trait Contender: Send + Sync {
    /// Performs a job. Called from several threads at once.
    ///
    /// # Errors
    /// The first wrong answer.
    fn run(&self, job: &Job<'_>) -> Result<Tally, WrongAnswer>;
}

/// Makes a [`Contender`] of an [`OrderedMap`].
pub struct Loaded<M>(pub M);

impl<M: OrderedMap> Contender for Loaded<M> {
    fn run(&self, job: &Job<'_>) -> Result<Tally, WrongAnswer> {
        let mut session = self.0.session(job.threads);
        match job.phase {
            Phase::Lookup => repeat(job, &mut session, |session, draws| {
                draws.iter().try_for_each(|draw| check(draw.key, session.get(draw.key)))
            }),
            Phase::MultiGet => multi_get(job, &mut session),
            Phase::Update => {
                let tally = repeat(job, &mut session, |session, draws| {
                    draws.iter().try_for_each(|draw| {
                        let is_present = session.update(draw.key, value_of(draw.key, job.sequence));
                        if is_present { Ok(()) } else { check(draw.key, None) }
                    })
                })?;
                // Counted runs have a limit, and nothing else may execute in them.
                if job.limit == u64::MAX {
                    check_updates(job, &mut session, &tally)?;
                }
                Ok(tally)
            }
            Phase::Scan => repeat(job, &mut session, |session, draws| {
                draws.iter().try_for_each(|draw| {
                    let (records, sum) = session.scan(draw.key, job.scan_len);
                    if draw.is_sum(sum) && records > 0 { Ok(()) } else { wrong_scan(job, draw, records) }
                })
            }),
        }
    }
}

/// Draws of a job in batches, until its time is over or its limit is reached.
pub(crate) struct Feed<'a> {
    job: &'a Job<'a>,
    start: Instant,
    processor_start: Duration,
    /// Position of the next batch in the draws.
    next: Cell<usize>,
    operations: Cell<u64>,
}

impl<'a> Feed<'a> {
    pub fn new(job: &'a Job<'a>) -> Self {
        Self {
            job,
            start: Instant::now(),
            processor_start: processor_time(),
            next: Cell::new(job.first),
            operations: Cell::new(0),
        }
    }

    /// The next batch, which counts as done; `None` at the end of the job.
    #[inline]
    pub fn next(&self) -> Option<&'a [Draw]> {
        if self.operations.get() >= self.job.limit || self.start.elapsed() >= self.job.time {
            return None;
        }
        let mut at = self.next.get();
        if at + BATCH > self.job.draws.len() {
            at = 0;
        }
        let done = self.operations.get();
        let len = (self.job.limit - done).min(BATCH as u64);
        self.next.set(at + BATCH);
        self.operations.set(done + len);
        Some(&self.job.draws[at..at + len as usize])
    }

    /// Tally of all batches taken so far. Batches under way are counted, so call it after the last one has
    /// ended.
    pub fn tally(&self) -> Tally {
        let time = self.start.elapsed();
        let processor_time = processor_time() - self.processor_start;
        Tally { operations: self.operations.get(), time, processor_time }
    }
}

/// Calls `batch` with the next draws until the job ends.
pub(crate) fn repeat<S: Session>(
    job: &Job<'_>,
    session: &mut S,
    mut batch: impl FnMut(&mut S, &[Draw]) -> Result<(), WrongAnswer>,
) -> Result<Tally, WrongAnswer> {
    let feed = Feed::new(job);
    while let Some(draws) = feed.next() {
        batch(session, draws)?;
        session.refresh();
    }
    Ok(feed.tally())
}

fn multi_get<S: Session>(job: &Job<'_>, session: &mut S) -> Result<Tally, WrongAnswer> {
    let mut keys = vec![0; job.multi_get_len];
    let mut values = vec![None; job.multi_get_len];
    repeat(job, session, |session, draws| {
        for draws in draws.chunks(keys.len()) {
            for (key, draw) in keys.iter_mut().zip(draws) {
                *key = draw.key;
            }
            let keys = &keys[..draws.len()];
            session.multi_get(keys, &mut values[..keys.len()]);
            keys.iter().zip(&values).try_for_each(|(key, value)| check(*key, *value))?;
        }
        Ok(())
    })
}

/// Checks that the updates of this thread are present, at most 100 batches of them. Other threads write the
/// same sequence, so their updates do not disturb the check.
fn check_updates<S: Session>(job: &Job<'_>, session: &mut S, tally: &Tally) -> Result<(), WrongAnswer> {
    let made = usize::try_from(tally.operations).unwrap_or(usize::MAX).min(100 * BATCH);
    for draw in job.draws[job.first..].iter().take(made) {
        let found = session.get(draw.key);
        if found != Some(value_of(draw.key, job.sequence)) {
            return Err(WrongAnswer(format!("the update of key {} was lost: found {found:x?}", draw.key)));
        }
    }
    Ok(())
}

#[inline]
pub(crate) fn check(key: u64, found: Option<u64>) -> Result<(), WrongAnswer> {
    match found {
        Some(value) if belongs(key, value) => Ok(()),
        _ => wrong_value(key, found),
    }
}

#[cold]
fn wrong_value(key: u64, found: Option<u64>) -> Result<(), WrongAnswer> {
    Err(WrongAnswer(match found {
        None => format!("key {key} was not found"),
        Some(value) => format!("key {key} has the value {value:#x} of another key"),
    }))
}

#[cold]
fn wrong_scan(job: &Job<'_>, draw: &Draw, records: usize) -> Result<(), WrongAnswer> {
    let expected = job.data.records_from(draw.key, job.scan_len);
    Err(WrongAnswer(format!(
        "a scan of {} from key {} has the wrong sum; it read {records} of {expected} records",
        job.scan_len, draw.key
    )))
}
