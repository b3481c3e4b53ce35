//! Who persists, without a fabric.
//!
//! Single steps check that one call is under way, and that its end wakes the server. Under shuttle, threads that block
//! make calls themselves while others wait for the server, and all are answered.

use std::pin::pin;
use std::sync::Arc;
use std::task::Context;

use super::*;

/// Outcome of a future that is ready at once, polled as by a thread that blocks.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("it waits"),
    }
}

#[cfg(not(shuttle))]
struct Task;

#[cfg(not(shuttle))]
impl std::task::Wake for Task {
    fn wake(self: Arc<Self>) {}
}

#[cfg(not(shuttle))]
#[test]
fn the_end_of_a_call_wakes_the_server_if_a_task_waits() {
    let disk = Disk::new(0);
    assert!(!at_once(disk.blocks(Goal::Record(1))), "there is no server");
    let woken = Arc::new(AtomicU64::new(0));
    let wakes = Arc::clone(&woken);
    disk.serve(Box::new(move || {
        wakes.fetch_add(1, SeqCst);
    }));
    let call = disk.call().expect("the first");
    assert!(disk.call().is_none());
    assert!(at_once(disk.blocks(Goal::Record(1))) && disk.is_awaited());
    drop(call);
    assert_eq!(woken.load(SeqCst), 0, "a blocked thread sees the end");
    let call = disk.call().expect("the next");
    lock(&disk.waiting).push((Goal::Record(2), Waker::from(Arc::new(Task))));
    disk.note_persisted(1, 0);
    drop(call);
    assert_eq!((lock(&disk.waiting).len(), woken.load(SeqCst)), (1, 1));
}

/// Threads that block, threads that wait, and a server that sleeps while nobody waits.
#[cfg(shuttle)]
mod shuttle_calls {
    use shuttle::{future::block_on, thread};

    use super::*;

    struct Shared {
        disk: Disk,
        clock: AtomicU64,
        calls: AtomicU64,
        has_ended: AtomicU64,
    }

    impl Shared {
        /// Persists everything, unless somebody else is at it.
        fn persist(&self) -> bool {
            let Some(call) = self.disk.call() else { return false };
            assert_eq!(self.calls.fetch_add(1, SeqCst), 0, "one call is under way");
            let bound = self.clock.load(SeqCst);
            thread::yield_now();
            self.disk.note_persisted(bound, 0);
            self.calls.fetch_sub(1, SeqCst);
            drop(call);
            true
        }

        fn serve(&self) {
            while self.has_ended.load(SeqCst) == 0 {
                if !self.disk.is_awaited() || !self.persist() {
                    thread::park();
                }
            }
        }

        fn change(&self, blocks: bool) {
            let goal = Goal::Record(self.clock.fetch_add(1, SeqCst) + 1);
            if !blocks {
                assert!(matches!(block_on(self.disk.await_server(goal)), Ok(true)));
                return;
            }
            while !self.disk.is_reached(goal) {
                assert!(at_once(self.disk.blocks(goal)));
                if !self.persist() {
                    let mut others = pin!(self.disk.await_others(goal));
                    while others.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
                        thread::yield_now();
                    }
                }
            }
        }
    }

    fn run() {
        let zero = || AtomicU64::new(0);
        let shared = Shared { disk: Disk::new(0), clock: zero(), calls: zero(), has_ended: zero() };
        let shared = Arc::new(shared);
        let served = Arc::clone(&shared);
        let server = thread::spawn(move || served.serve());
        let waker = server.thread().clone();
        shared.disk.serve(Box::new(move || waker.unpark()));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || (0..2).for_each(|_| shared.change(number > 0)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        shared.has_ended.store(1, SeqCst);
        server.thread().unpark();
        server.join().expect("no panic");
    }

    #[test]
    fn whoever_waits_is_answered_under_any_schedule() {
        let text = std::env::var("SHUTTLE_ITERATIONS").ok();
        let iterations = text.and_then(|text| text.parse().ok()).unwrap_or(1000);
        shuttle::check_random(run, iterations);
        shuttle::check_pct(run, iterations, 3);
    }
}
