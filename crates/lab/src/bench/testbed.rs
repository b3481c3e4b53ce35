//! A cluster with the loaded index under test, on which the phases of a benchmark run.
//!
//! [`Testbed`] has two implementations: threads of this machine ([`super::hosted`]) and threads of a
//! simulated cluster ([`super::simulated`]). Both use the same phases (`run.rs`) and the same code for a
//! thread's work (`driver.rs`, `verify.rs`).

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use pando::{CacheCounts, VerbCounts};
use pando_fabric::Nanos;
use pando_sim::Shares;
use pando_workload::{Lane as StreamLane, OpStream, WorkloadSpec};

use super::driver::{Drawn, Quota, Series, Shared, Tally, Task, ThreadResult};
use super::latency::{self, Latency};
use super::verify::FinalScan;
use super::{BenchError, BenchSpec, FabricKind, Length, Watch};
use crate::under_test::{Audited, SystemCounts};

/// Time between two reports of the progress.
const TICK: Duration = Duration::from_millis(100);

/// Context of a running benchmark.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'b> {
    pub spec: &'b BenchSpec,
    pub shared: &'b Shared,
    pub watch: &'b dyn Watch,
}

/// A cluster with its index.
pub(crate) trait Testbed {
    /// Performs operations on all threads, each from its own stream. Reports `shared.done` meanwhile.
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseResult, BenchError>;

    /// Performs the final scans. Reports `shared.done` meanwhile.
    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError>;

    /// Counters of the index.
    fn counts(&self) -> Result<SystemCounts, BenchError>;

    fn audit(&self) -> Result<Audited, BenchError>;

    /// Closes the index and its cluster.
    fn close(self) -> Result<(), BenchError>;
}

/// Verbs and cache accesses of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub verbs: VerbCounts,
    pub cache: CacheCounts,
}

/// Result of a phase on all threads.
pub(crate) struct PhaseResult {
    pub tally: Tally,
    pub latency: Latency,
    pub counts: Counts,
    /// From the start of the first operation of any thread to the end of the last one, by the ports' clock; at most the
    /// virtual time of the phase, if that is given.
    pub ns: Nanos,
    /// Duration on this machine, if the ports have another clock.
    pub host_time: Option<Duration>,
    /// Operations by compute server and interval, if requested.
    pub series: Option<Vec<Vec<u64>>>,
    /// Operations by compute server in the order of their keys, if they are counted.
    pub loads: Option<Vec<u64>>,
    /// Busy shares of resources, if known.
    pub shares: Option<Shares>,
    /// Boundaries that a balancer moved.
    pub moves: u64,
    /// Streams for the next phase, by thread.
    pub streams: Vec<OpStream>,
}

impl Stage<'_> {
    /// Returns an error if the run must stop.
    pub fn check_interrupt(&self) -> Result<(), BenchError> {
        if self.watch.interrupted() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Reports `shared.done` until all senders to `end` are dropped.
    pub fn watch_until(&self, end: &Receiver<()>) {
        while end.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            self.watch.advance(self.shared.done.load(Relaxed));
            if self.watch.interrupted() {
                self.shared.stop.store(true, Relaxed);
            }
        }
    }

    /// Runs `work` on a new thread and reports progress meanwhile. An interrupted run is an error, whatever
    /// the result of `work`.
    pub fn watched<T: Send>(
        &self,
        work: impl FnOnce() -> Result<T, BenchError> + Send,
    ) -> Result<T, BenchError> {
        self.shared.done.store(0, Relaxed);
        let done = thread::scope(|scope| {
            let (ended, end) = channel::<()>();
            let worker = scope.spawn(move || {
                // Dropped when the thread ends, also after a panic.
                let _ended = ended;
                work()
            });
            self.watch_until(&end);
            joined(worker)
        });
        self.check_interrupt()?;
        done
    }

    /// Makes the task of each thread in a phase that begins at `start` of the ports' clock.
    pub fn tasks(
        &self,
        streams: Vec<OpStream>,
        length: Length,
        start: Nanos,
    ) -> impl Iterator<Item = Task<Drawn>> + use<'_> {
        let threads = streams.len() as u64;
        let interval_ns = self.spec.interval_ns;
        streams.into_iter().enumerate().map(move |(thread, stream)| Task {
            source: Drawn::new(stream),
            thread,
            quota: match length {
                Length::Ops(ops) => Quota::Ops(share(ops, thread as u64, threads)),
                Length::Seconds(seconds) => Quota::Until(start + (seconds * 1e9) as Nanos),
            },
            series: interval_ns.map(|interval_ns| Series::new(start, interval_ns)),
        })
    }

    /// Combines the results of the threads with the latencies of all. `counts` are those of the index before and
    /// after the phase.
    pub fn combine(
        &self,
        threads: Vec<ThreadResult<Drawn>>,
        length: Length,
        latency: Latency,
        counts: [SystemCounts; 2],
    ) -> PhaseResult {
        let [before, after] = counts;
        let mut phase = PhaseResult::of(self.spec, &threads);
        // The last of many threads ends late: count the time for which all of them began operations.
        if let (Length::Seconds(seconds), FabricKind::Sim) = (length, self.spec.fabric) {
            phase.ns = phase.ns.min((seconds * 1e9) as Nanos);
        }
        phase.latency = latency;
        phase.counts.cache = after.cache - before.cache;
        phase.loads = after.loads;
        phase.streams = threads.into_iter().map(|thread| thread.source.into_stream()).collect();
        phase
    }
}

impl PhaseResult {
    /// Sums the results of the threads, which are in order of compute servers. Latencies are not theirs.
    pub fn of<O>(spec: &BenchSpec, threads: &[ThreadResult<O>]) -> PhaseResult {
        let began = threads.iter().map(|thread| thread.began).min().expect("there are threads");
        let ended = threads.iter().map(|thread| thread.ended).max().expect("there are threads");
        let mut phase = PhaseResult {
            tally: Tally::default(),
            latency: latency::empty(),
            counts: Counts::default(),
            ns: ended - began,
            host_time: None,
            series: None,
            loads: None,
            shares: None,
            moves: 0,
            streams: Vec::new(),
        };
        let mut series = vec![Vec::new(); threads.len() / spec.threads];
        for (number, thread) in threads.iter().enumerate() {
            phase.counts.verbs = phase.counts.verbs + thread.verbs;
            phase.tally.add(&thread.tally);
            if let Some(of_thread) = &thread.series {
                of_thread.add_to(&mut series[number / spec.threads]);
            }
        }
        let longest = series.iter().map(Vec::len).max().unwrap_or(0);
        series.iter_mut().for_each(|counts| counts.resize(longest, 0));
        phase.series = threads[0].series.as_ref().map(|_| series);
        phase
    }
}

/// Makes the stream of each thread: the first `threads` are those of compute server 0, and so on.
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
            let lane = if spec.own_ranks { lane.with_own_ranks() } else { lane };
            streams.push(OpStream::new(workload, spec.seed, lane)?);
        }
    }
    Ok(streams)
}

/// Returns the thread's result, or resumes its panic.
pub(crate) fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Operations of thread `number` if `threads` threads divide `ops`.
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
