//! Processors of memory servers: threads that execute two-sided calls, a fixed number per server.
//!
//! The caller puts a call into the server's queue and is woken by its answer. A thread without work polls the
//! queue for a moment and then sleeps. With 0 threads the caller executes its calls itself, for tests.
//!
//! A panic of a handler ends only its call, as a refusal; the thread continues with the next call.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
#[cfg(not(shuttle))]
use std::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use pando_fabric::defect::{self, defect};
use pando_fabric::{FabricError, Growing, MemoryServerId, RequestHandler, Result, ServerMemory};
#[cfg(shuttle)]
use shuttle::{
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle},
};

use crate::promise::Promise;
use crate::region::Region;

/// Polls of the queue before a thread sleeps: a few µs, about the time of a wake-up.
const LOOKS: u32 = if cfg!(shuttle) { 1 } else { 200 };

/// Seeded defect: a panic of a handler ends its thread ([`pando_fabric::defect`]).
#[derive(Clone, Copy, Debug)]
struct PanicEndsThread;

impl defect::Defect for PanicEndsThread {
    fn number(self) -> u8 {
        0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler of calls and the threads that run it.
pub(crate) struct Cores {
    handler: Arc<dyn RequestHandler>,
    regions: Arc<Growing<Region>>,
    /// By memory server; empty without threads.
    queues: Vec<Arc<Queue>>,
    threads: Vec<JoinHandle<()>>,
    /// Threads of each server.
    per_server: usize,
}

/// Calls waiting for one memory server.
#[derive(Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

#[derive(Default)]
struct Waiting {
    calls: VecDeque<Arc<Call>>,
    is_closed: bool,
}

/// A call, and its answer once there is one.
pub(crate) struct Call {
    op: u16,
    body: Vec<u8>,
    answer: Promise<Result<Vec<u8>>>,
}

impl Cores {
    /// Starts `threads` threads for each of the memory servers.
    ///
    /// # Errors
    /// `System` if a thread cannot be started.
    pub fn start(
        regions: Arc<Growing<Region>>,
        handler: Arc<dyn RequestHandler>,
        threads: usize,
    ) -> Result<Self> {
        let mut cores =
            Self { handler, regions, per_server: threads, queues: Vec::new(), threads: Vec::new() };
        if threads == 0 {
            return Ok(cores);
        }
        for server in 0..cores.regions.len() {
            let queue = Arc::new(Queue::default());
            cores.queues.push(Arc::clone(&queue));
            for core in 0..threads {
                let (queue, regions) = (Arc::clone(&queue), Arc::clone(&cores.regions));
                let handler = Arc::clone(&cores.handler);
                let name = format!("pando-m{server}.{core}");
                let run = move || queue.serve(MemoryServerId(server as u16), &regions[server], &*handler);
                let thread = thread::Builder::new().name(name.clone()).spawn(run).map_err(|error| {
                    FabricError::System { path: name, reason: format!("cannot be started: {error}") }
                })?;
                cores.threads.push(thread);
            }
        }
        Ok(cores)
    }

    pub fn handler(&self) -> Arc<dyn RequestHandler> {
        Arc::clone(&self.handler)
    }

    /// Threads per memory server.
    pub fn threads(&self) -> usize {
        self.per_server
    }

    /// Executes the call on this thread if there are no server threads.
    pub fn execute_here(&self, server: MemoryServerId, op: u16, body: &[u8]) -> Option<Result<Vec<u8>>> {
        self.queues
            .is_empty()
            .then(|| execute(server, &self.regions[usize::from(server.0)], &*self.handler, op, body))
    }

    /// Posts a call to the threads of its server. A server that has just joined has no threads yet and
    /// refuses the call.
    pub fn post(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Answer {
        let call = Arc::new(Call { op, body, answer: Promise::default() });
        match self.queues.get(usize::from(server.0)) {
            Some(queue) => {
                lock(&queue.waiting).calls.push_back(Arc::clone(&call));
                queue.filled.notify_one();
            }
            None => {
                let reason = "it has no threads for requests yet".to_owned();
                call.answer.keep(Err(FabricError::Refused { server, op, reason }));
            }
        }
        Answer(call)
    }
}

impl Drop for Cores {
    /// Waiting calls are executed before the threads end.
    fn drop(&mut self) {
        for queue in &self.queues {
            lock(&queue.waiting).is_closed = true;
            queue.filled.notify_all();
        }
        for thread in self.threads.drain(..) {
            // A handler's panic does not end its thread, and any other panic was already reported.
            let _ = thread.join();
        }
    }
}

impl Queue {
    /// Executes calls until the queue is closed and empty.
    fn serve(&self, server: MemoryServerId, region: &Region, handler: &dyn RequestHandler) {
        while let Some(call) = self.next() {
            call.answer.keep(execute(server, region, handler, call.op, &call.body));
        }
    }

    /// Next call; `None` once the queue is closed and empty.
    fn next(&self) -> Option<Arc<Call>> {
        for _ in 0..LOOKS {
            if let Some(call) = lock(&self.waiting).calls.pop_front() {
                return Some(call);
            }
            thread::yield_now();
        }
        let mut waiting = lock(&self.waiting);
        loop {
            if let Some(call) = waiting.calls.pop_front() {
                return Some(call);
            }
            if waiting.is_closed {
                return None;
            }
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Executes a call. A panic of the handler becomes a refusal.
fn execute(
    server: MemoryServerId,
    region: &Region,
    handler: &dyn RequestHandler,
    op: u16,
    body: &[u8],
) -> Result<Vec<u8>> {
    let words = region.words_of_server(server, op)?;
    let mut reply = Vec::new();
    let mut handle = || handler.handle(&ServerMemory::new(server, words, &|_| ()), op, body, &mut reply);
    let handled = if defect(PanicEndsThread) { Ok(handle()) } else { catch_unwind(AssertUnwindSafe(handle)) };
    match handled {
        Ok(handled) => handled.map(|()| reply),
        Err(_) => Err(FabricError::Refused { server, op, reason: "its handler panicked".to_owned() }),
    }
}

/// Future of a call's answer. Dropping it does not cancel the call.
pub(crate) struct Answer(Arc<Call>);

impl Future for Answer {
    type Output = Result<Vec<u8>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.answer.poll(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use pando_fabric::{Endpoint, Fabric, Request};

    use super::*;
    use crate::{LocalConfig, LocalFabric};

    const SERVER: MemoryServerId = MemoryServerId(0);

    /// Echoes even numbers and panics on odd ones, without a message.
    struct Fickle;

    impl RequestHandler for Fickle {
        fn handle(&self, _: &ServerMemory<'_>, _: u16, body: &[u8], out: &mut Vec<u8>) -> Result<()> {
            if !body[0].is_multiple_of(2) {
                std::panic::resume_unwind(Box::new("on purpose"));
            }
            out.extend(body);
            Ok(())
        }
    }

    struct Ask(u8);

    impl Request for Ask {
        type Reply = u8;
        const OP: u16 = 1;

        fn encode(&self, out: &mut Vec<u8>) {
            out.push(self.0);
        }

        fn decode_reply(&self, _: MemoryServerId, reply: &[u8]) -> Result<u8> {
            Ok(reply[0])
        }
    }

    fn fabric(threads: usize) -> LocalFabric {
        let config = LocalConfig { server_sizes: vec![1 << 16], huge_pages: false };
        let fabric = LocalFabric::new(config).expect("memory");
        fabric.set_handler(Arc::new(Fickle), threads).expect("threads");
        fabric
    }

    /// Calls with each number below `numbers`.
    async fn ask(fabric: &LocalFabric, numbers: u8) {
        let ep = fabric.endpoint(1).expect("an endpoint");
        for number in 0..numbers {
            match ep.call(SERVER, &Ask(number)).await {
                Ok(reply) => assert!(reply == number && number % 2 == 0),
                Err(FabricError::Refused { server: SERVER, reason, .. }) => {
                    assert!(number % 2 == 1 && reason.contains("panicked"), "{number}: {reason}");
                }
                Err(error) => panic!("{number}: {error}"),
            }
        }
    }

    #[cfg(not(shuttle))]
    #[test]
    fn a_panic_ends_one_call_and_no_thread() {
        use std::time::{Duration, Instant};

        for threads in [0, 1, 2] {
            // There are more panics than threads.
            let fabric = fabric(threads);
            let (mut asked, start) = (std::pin::pin!(ask(&fabric, 8)), Instant::now());
            while asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                assert!(start.elapsed() < Duration::from_secs(10), "a call is never answered");
                thread::yield_now();
            }
        }
    }

    /// Every call is answered under random schedules: no wake-up and no thread is lost.
    #[cfg(shuttle)]
    mod schedules {
        use super::*;

        fn check() {
            let iterations =
                std::env::var("SHUTTLE_ITERATIONS").map_or(4000, |n| n.parse().expect("a number"));
            let clients = || {
                let fabric = fabric(2);
                let clients: Vec<_> = (0..3)
                    .map(|_| fabric.clone())
                    .map(|fabric| thread::spawn(move || shuttle::future::block_on(ask(&fabric, 4))))
                    .collect();
                clients.into_iter().for_each(|client| client.join().expect("it does not panic"));
            };
            shuttle::check_random(clients, iterations);
        }

        #[test]
        fn every_call_is_answered() {
            check();
        }

        #[cfg(feature = "defects")]
        #[test]
        fn a_panic_that_ends_a_thread_is_found() {
            let checked = catch_unwind(|| defect::with_defect(Some(PanicEndsThread), check));
            assert!(checked.is_err(), "nobody notices");
        }
    }
}
