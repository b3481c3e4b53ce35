//! Several threads that fill one result, each a part of its own.
//!
//! A thread takes tasks, which are numbered in the order that results must have, and gives the rows of all of them to
//! its part. Afterwards the parts are joined. The calling thread is one of the crew and begins at once: threads that
//! cannot be started, or whose part does not fit into memory, are not waited for.

use crate::sink::Sink;

/// Threads that work on one query, the calling one included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crew {
    pub(crate) threads: usize,
}

/// What one thread has filled.
#[derive(Debug)]
pub(crate) struct Filled<P> {
    pub(crate) part: P,
    /// Number of each task, ascending, and the rows that the part had when it was finished.
    pub(crate) ends: Vec<(usize, u64)>,
}

/// A sink that several threads can fill.
pub(crate) trait ParallelSink: Sink {
    /// What one thread fills.
    type Part: Sink + Send;

    /// An empty part for the calling thread, which may have the memory of the sink until the parts are joined.
    fn lend(&mut self) -> Self::Part;

    /// An empty part for another thread, `None` if there is no memory for it.
    fn part(&self) -> Option<Self::Part>;

    /// Adds the rows of all parts in the order of the tasks. The first part is the one that was lent.
    fn join(&mut self, filled: Vec<Filled<Self::Part>>);
}

impl Crew {
    /// As many of `threads` threads as have at least `least_ns` to do each, if there is `work_ns` to do.
    pub(crate) fn for_work(threads: usize, work_ns: f64, least_ns: f64) -> Self {
        // A cast of a float saturates.
        let useful = (work_ns / least_ns.max(1.0)) as usize;
        Self { threads: threads.min(useful.saturating_add(1)).max(1) }
    }

    /// Lets each thread `work` on a part of `sink`.
    pub(crate) fn fill<S: ParallelSink>(
        self,
        sink: &mut S,
        work: impl Fn(S::Part) -> Filled<S::Part> + Sync,
    ) {
        let parts: Vec<S::Part> = (1..self.threads).map_while(|_| sink.part()).collect();
        let own = sink.lend();
        let work = &work;
        let filled = std::thread::scope(|scope| {
            let start = |part| std::thread::Builder::new().spawn_scoped(scope, move || work(part)).ok();
            let helpers: Vec<_> = parts.into_iter().map_while(start).collect();
            let mut filled = vec![work(own)];
            for helper in helpers {
                match helper.join() {
                    Ok(part) => filled.push(part),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            filled
        });
        sink.join(filled);
    }
}
