//! One phase on all threads: each a worker of one compute server, with a session of its own.
//!
//! Threads live for one phase; what they carry on (the stream of operations) is handed from phase to phase. The time of
//! a phase runs from the first operation of any thread to the last of any.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pando::{Cluster, Index, Session, VerbCounts};
use pando_workload::{Lane as StreamLane, OpStream, WorkloadSpec};

use super::lane::{Lane, Quota, Shared, Tally};
use super::latency::{self, Latency};
use super::report::Counts;
use super::{BenchError, BenchSpec, Length, Watch};

/// Between two looks at the progress.
const TICK: Duration = Duration::from_millis(100);

/// A benchmark under way.
#[derive(Clone, Copy)]
pub(crate) struct Bench<'b> {
    pub spec: &'b BenchSpec,
    pub cluster: &'b Cluster,
    pub index: &'b Index,
    pub shared: &'b Shared,
    pub watch: &'b dyn Watch,
}

/// What a phase did on all threads.
pub(crate) struct PhaseOutcome {
    pub tally: Tally,
    pub latency: Latency,
    /// What the operations of this phase cost.
    pub counts: Counts,
    pub time: Duration,
    /// To go on with, by thread.
    pub streams: Vec<OpStream>,
}

/// The stream of each thread: the first `threads` are those of compute server 0, and so on.
pub(crate) fn streams(spec: &BenchSpec, workload: &WorkloadSpec) -> Result<Vec<OpStream>, BenchError> {
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

impl Bench<'_> {
    /// Runs `work` on every thread of the benchmark with a session of its own, pinned if there are cores enough;
    /// reports `shared.done` meanwhile. The results are in the order of the threads.
    ///
    /// Sessions reach all compute servers, because scans go on into the keys of the next one. All other operations
    /// of a thread are on keys of its own compute server.
    pub fn on_all_threads<I: Send, O: Send>(
        &self,
        inputs: Vec<I>,
        work: impl Fn(usize, I, &Session) -> Result<O, BenchError> + Sync,
    ) -> Result<Vec<O>, BenchError> {
        self.shared.done.store(0, Relaxed);
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let pin = inputs.len() <= cores;
        let (ended, end) = channel::<()>();
        thread::scope(|scope| {
            let threads = inputs.into_iter().enumerate().map(|(number, input)| {
                let (work, ended, index) = (&work, ended.clone(), self.index);
                scope.spawn(move || {
                    // Dropped when the thread ends, in whichever way.
                    let _ended = ended;
                    if pin {
                        pando_rt::pin_to_core(number);
                    }
                    work(number, input, &index.session()?)
                })
            });
            let threads: Vec<_> = threads.collect();
            drop(ended);
            self.watch_until(&end);
            threads.into_iter().map(joined).collect()
        })
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

    /// An error if somebody wants the run to stop.
    pub fn check_interrupt(&self) -> Result<(), BenchError> {
        if self.watch.interrupted() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Performs operations on all threads: so many in all, or for a time.
    pub fn operations(&self, streams: Vec<OpStream>, length: Length) -> Result<PhaseOutcome, BenchError> {
        let threads = streams.len() as u64;
        let start = Instant::now();
        let quota = |thread: usize| match length {
            Length::Ops(ops) => Quota::Ops(share(ops, thread as u64, threads)),
            Length::Seconds(seconds) => Quota::Until(start + Duration::from_secs_f64(seconds)),
        };
        let cache_before = self.cluster.stats()?.cache();
        let results = self.on_all_threads(streams, |number, stream, session| {
            let lane = Lane::new(self.shared, stream, number, quota(number));
            let (before, start) = (session.verbs(), Instant::now());
            session.in_flight(self.spec.slots, |_, session| lane.slot(session))?;
            let end = Instant::now();
            Ok((start, end, session.verbs() - before, lane.finish()))
        })?;
        self.check_interrupt()?;
        let start = results.iter().map(|result| result.0).min().expect("there are threads");
        let end = results.iter().map(|result| result.1).max().expect("there are threads");
        let mut outcome = PhaseOutcome {
            tally: Tally::default(),
            latency: latency::empty(),
            counts: Counts {
                verbs: VerbCounts::default(),
                cache: self.cluster.stats()?.cache() - cache_before,
            },
            time: end - start,
            streams: Vec::with_capacity(results.len()),
        };
        for (_, _, verbs, (stream, tally, latency)) in results {
            outcome.counts.verbs = outcome.counts.verbs + verbs;
            outcome.tally.add(tally);
            outcome.latency.add(&latency).expect("all histograms have the same bounds");
            outcome.streams.push(stream);
        }
        Ok(outcome)
    }
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
