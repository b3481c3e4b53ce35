//! What a benchmark's phases happen on: a cluster with the index under test, loaded.
//!
//! [`Bed`] is what the phases need of it, whatever drives the threads: those of this machine ([`super::hosted`]) or those
//! of a simulated cluster ([`super::simulated`]). The phases themselves are the same everywhere (`run.rs`), and so is what a
//! thread does in them (`lane.rs`, `verify.rs`).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pando::{CacheCounts, SmoCounts, VerbCounts};
use pando_fabric::Nanos;
use pando_sim::Shares;
use pando_workload::{Lane as StreamLane, OpStream, WorkloadSpec};

use super::lane::{LaneOutcome, Quota, Series, Shared, Tally, Task};
use super::latency::{self, Latency};
use super::verify::FinalScan;
use super::{BenchError, BenchSpec, Length, Watch};
use crate::under_test::Audited;

/// Between two looks at the progress.
const TICK: Duration = Duration::from_millis(100);

/// A benchmark under way.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'b> {
    pub spec: &'b BenchSpec,
    pub shared: &'b Shared,
    pub watch: &'b dyn Watch,
}

/// The cluster and its index.
pub(crate) trait Bed {
    /// Performs operations on all threads, those of a thread drawn from its stream; reports `shared.done` meanwhile.
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseOutcome, BenchError>;

    /// Performs the final scans, with the same reports.
    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError>;

    /// Structure changes so far.
    fn smo_counts(&self) -> Result<SmoCounts, BenchError>;

    fn audit(&self) -> Result<Audited, BenchError>;

    /// Ends it in good order.
    fn close(self) -> Result<(), BenchError>;
}

/// What operations cost.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub verbs: VerbCounts,
    pub cache: CacheCounts,
}

/// What a phase did on all threads.
pub(crate) struct PhaseOutcome {
    pub tally: Tally,
    pub latency: Latency,
    /// What the operations of this phase cost.
    pub counts: Counts,
    /// From the first operation of any thread to the last of any, by the clients' clock.
    pub ns: Nanos,
    /// What the phase took on this machine, if the clients' clock is another one.
    pub host_time: Option<Duration>,
    /// Operations of each compute server by interval, if that is asked for.
    pub series: Option<Vec<Vec<u64>>>,
    /// Operations by the compute server that performed them, in the order of their keys, if those count them.
    pub loads: Option<Vec<u64>>,
    /// What was busy, where that is known.
    pub shares: Option<Shares>,
    /// Boundaries that a balancer moved.
    pub moves: u64,
    /// To go on with, by thread.
    pub streams: Vec<OpStream>,
}

impl Stage<'_> {
    /// An error if somebody wants the run to stop.
    pub fn check_interrupt(&self) -> Result<(), BenchError> {
        if self.watch.interrupted() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Reports `shared.done` until nobody is left who could send to `end`.
    pub fn watch_until(&self, end: &Receiver<()>) {
        while end.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            self.watch.advance(self.shared.done.load(Relaxed));
            if self.watch.interrupted() {
                self.shared.stop.store(true, Relaxed);
            }
        }
    }

    /// Does one thing on a thread of its own, with reports meanwhile, and then looks whether it was to stop.
    pub fn watched<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        self.shared.done.store(0, Relaxed);
        let done = thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let worker = scope.spawn(move || {
                // Dropped when the thread ends, in whichever way.
                let _ended = ended;
                work()
            });
            self.watch_until(&end);
            joined(worker)
        });
        // What failed because it was to stop is no failure.
        self.check_interrupt()?;
        done
    }

    /// What each thread is to do in a phase that begins at `start` of the clients' clock.
    pub fn tasks(
        &self,
        streams: Vec<OpStream>,
        length: Length,
        start: Nanos,
    ) -> impl Iterator<Item = Task> + use<'_> {
        let threads = streams.len() as u64;
        let interval_ns = self.spec.interval_ns;
        streams.into_iter().enumerate().map(move |(thread, stream)| Task {
            stream,
            thread,
            quota: match length {
                Length::Ops(ops) => Quota::Ops(share(ops, thread as u64, threads)),
                Length::Seconds(seconds) => Quota::Until(start + (seconds * 1e9) as Nanos),
            },
            series: interval_ns.map(|interval_ns| Series::new(start, interval_ns)),
        })
    }

    /// Puts together what the threads did. `counts` has the caches' part.
    pub fn outcome(&self, lanes: Vec<LaneOutcome>, counts: Counts) -> PhaseOutcome {
        let began = lanes.iter().map(|lane| lane.began).min().expect("there are threads");
        let ended = lanes.iter().map(|lane| lane.ended).max().expect("there are threads");
        let mut outcome = PhaseOutcome {
            tally: Tally::default(),
            latency: latency::empty(),
            counts,
            ns: ended - began,
            host_time: None,
            series: None,
            loads: None,
            shares: None,
            moves: 0,
            streams: Vec::with_capacity(lanes.len()),
        };
        let mut series = vec![Vec::new(); self.spec.compute_servers];
        for (thread, lane) in lanes.into_iter().enumerate() {
            outcome.counts.verbs = outcome.counts.verbs + lane.verbs;
            outcome.tally.add(lane.tally);
            outcome.latency.add(&lane.latency).expect("all histograms have the same bounds");
            outcome.streams.push(lane.stream);
            if let Some(of_lane) = lane.series {
                of_lane.add_to(&mut series[thread / self.spec.threads]);
            }
        }
        let longest = series.iter().map(Vec::len).max().unwrap_or(0);
        series.iter_mut().for_each(|counts| counts.resize(longest, 0));
        outcome.series = self.spec.interval_ns.map(|_| series);
        outcome
    }
}

/// The stream of each thread: the first `threads` are those of compute server 0, and so on.
pub(crate) fn streams(spec: &BenchSpec, workload: &WorkloadSpec) -> Result<Vec<OpStream>, BenchError> {
    if spec.is_routed()? {
        let threads = spec.total_threads() as u64;
        let stream = |thread| OpStream::new(workload, spec.seed, StreamLane::new(thread, threads));
        return Ok((0..threads).map(stream).collect::<Result<_, _>>()?);
    }
    let (servers, threads) = (spec.compute_servers as u64, spec.threads as u64);
    let mut streams = Vec::with_capacity(spec.total_threads());
    for server in 0..servers {
        let owned = workload.keys.partition(server, servers);
        for thread in 0..threads {
            let lane = StreamLane::new(thread, threads).owning(owned);
            streams.push(OpStream::new(workload, spec.seed, lane)?);
        }
    }
    Ok(streams)
}

/// What a thread gave back; its panic goes on here.
pub(crate) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What thread `number` of `threads` does of `ops`.
fn share(ops: u64, number: u64, threads: u64) -> u64 {
    ops / threads + u64::from(number < ops % threads)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_are_equal_and_add_up() {
        assert_eq!((0..4).map(|thread| share(11, thread, 4)).collect::<Vec<_>>(), [3, 3, 3, 2]);
        assert_eq!((0..4).map(|thread| share(2, thread, 4)).sum::<u64>(), 2);
    }
}
