//! Operations in flight on one thread.
//!
//! A connection has at most one *batch* of requests in flight: those of one round (`round.rs`). The jobs of
//! all batches wait in one queue, from which the slots of the thread take them. When the last job of a batch
//! is answered, its connection gets its turn. So an operation that waits for a memory server delays only its
//! own connection.
//!
//! A batch is inside the gate of its client until its last job is answered. An operation that panics is
//! answered with an error, and its slot continues.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use pando::remote::ErrorCode;
use pando::remote::wire::{Op, ReplyEncoder, Request, decode_request};
use pando_fabric_net::serve::Pass;

use crate::counts::Ended;

/// Bytes of answers after which no further job of a batch is begun.
const BYTES_MAX: usize = 1 << 20;

/// One request of a batch.
struct Job {
    op: Op,
    /// Position of the request in the bytes of its batch.
    start: usize,
    used: usize,
    /// Earlier lookup of the same key, which has the same answer.
    same_as: Option<usize>,
}

/// An answer, the outcome of the operation, and its latency.
#[derive(Clone)]
pub(crate) struct Answered {
    pub reply: Vec<u8>,
    pub ended: Ended,
    pub took: Duration,
}

/// Answers of a batch, in the order of its requests: the operation, the length of its frame, the answer.
pub(crate) type Answers = Vec<(Op, usize, Answered)>;

/// Requests of one connection that are executed concurrently.
pub(crate) struct Batch {
    /// Position of the connection on its thread, and its number among all connections.
    pub number: usize,
    pub serial: u64,
    /// Encoded requests.
    bytes: Vec<u8>,
    jobs: Vec<Job>,
    answers: RefCell<Vec<Option<Answered>>>,
    /// Jobs that are not finished.
    left: Cell<usize>,
    answer_bytes: Cell<usize>,
    since: Instant,
    pass: Cell<Option<Pass>>,
}

impl Batch {
    /// A batch of the requests at the front of `input`: the round `jobs` of a connection whose client has
    /// entered its gate with `pass`.
    pub fn new(
        number: usize,
        serial: u64,
        input: &[u8],
        jobs: &[crate::round::Job<'_>],
        pass: Pass,
        since: Instant,
    ) -> Self {
        let mut start = 0;
        let jobs: Vec<Job> = jobs
            .iter()
            .map(|job| {
                let at = start;
                start += job.used;
                Job { op: job.op(), start: at, used: job.used, same_as: job.same_as }
            })
            .collect();
        let own = jobs.iter().filter(|job| job.same_as.is_none()).count();
        Self {
            number,
            serial,
            bytes: input[..start].to_vec(),
            answers: RefCell::new(vec![None; jobs.len()]),
            jobs,
            left: Cell::new(own),
            answer_bytes: Cell::new(0),
            since,
            pass: Cell::new(Some(pass)),
        }
    }

    /// Answers of the first jobs, up to the first one that was not begun.
    pub fn take_answers(&self) -> Answers {
        let mut answers = self.answers.take();
        for i in 0..answers.len() {
            if let Some(earlier) = self.jobs[i].same_as {
                answers[i] = answers[earlier].clone();
            }
        }
        let answered = answers.into_iter().map_while(|answer| answer);
        self.jobs.iter().zip(answered).map(|(job, answer)| (job.op, job.used, answer)).collect()
    }
}

/// Operations in flight on a thread.
#[derive(Default)]
pub(crate) struct Flight {
    queue: RefCell<VecDeque<(Rc<Batch>, usize)>>,
    /// Wakers of idle slots.
    idle: RefCell<Vec<Waker>>,
    finished: RefCell<Vec<Rc<Batch>>>,
    /// Batches that are unfinished or not yet taken. The thread must not sleep while there are any.
    under_way: Cell<usize>,
    stops: Cell<bool>,
}

impl Flight {
    pub fn begin(&self, batch: Batch) {
        let batch = Rc::new(batch);
        self.under_way.set(self.under_way.get() + 1);
        let own = (0..batch.jobs.len()).filter(|i| batch.jobs[*i].same_as.is_none());
        self.queue.borrow_mut().extend(own.map(|i| (Rc::clone(&batch), i)));
        let mut idle = self.idle.borrow_mut();
        for _ in 0..batch.left.get() {
            let Some(waker) = idle.pop() else { break };
            waker.wake();
        }
    }

    /// Batches that are unfinished or not yet taken.
    pub fn under_way(&self) -> usize {
        self.under_way.get()
    }

    pub fn take_finished(&self) -> Vec<Rc<Batch>> {
        let finished = self.finished.take();
        self.under_way.set(self.under_way.get() - finished.len());
        finished
    }

    /// Ends the slots; no further job is begun.
    pub fn stop(&self) {
        self.stops.set(true);
        self.idle.take().into_iter().for_each(Waker::wake);
    }

    /// The next job; `None` after [`Flight::stop`].
    async fn next(&self) -> Option<(Rc<Batch>, usize)> {
        std::future::poll_fn(|cx| {
            if self.stops.get() {
                return Poll::Ready(None);
            }
            if let Some(job) = self.queue.borrow_mut().pop_front() {
                return Poll::Ready(Some(job));
            }
            let mut idle = self.idle.borrow_mut();
            if !idle.iter().any(|waker| waker.will_wake(cx.waker())) {
                idle.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    /// The loop of a slot: takes jobs, and lets `execute` append their answers.
    pub async fn work(&self, body_max: u32, execute: impl AsyncFn(&Request<'_>, &mut Vec<u8>) -> Ended) {
        while let Some((batch, i)) = self.next().await {
            if batch.answer_bytes.get() <= BYTES_MAX {
                let job = &batch.jobs[i];
                let decoded = decode_request(&batch.bytes[job.start..], body_max);
                let (request, _) = decoded.ok().flatten().expect("it was decoded before");
                let mut reply = Vec::new();
                let ended = match caught(execute(&request, &mut reply)).await {
                    Some(ended) => ended,
                    None => {
                        reply.clear();
                        let encoder = ReplyEncoder::begin(&mut reply, job.op);
                        encoder.fail(&mut reply, ErrorCode::Other, true, "the operation panicked");
                        Ended::Failed
                    }
                };
                batch.answer_bytes.set(batch.answer_bytes.get() + reply.len());
                let took = batch.since.elapsed();
                batch.answers.borrow_mut()[i] = Some(Answered { reply, ended, took });
            }
            batch.left.set(batch.left.get() - 1);
            if batch.left.get() == 0 {
                drop(batch.pass.take());
                self.finished.borrow_mut().push(batch);
            }
        }
    }
}

/// Output of a future; `None` if it panics, after which it must not be polled again.
async fn caught<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(polled) => polled.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use pando::remote::wire::{Reply, decode_reply};
    use pando_fabric_net::LinkId;
    use pando_fabric_net::serve::{Client, Clients};

    use super::*;
    use crate::round::gather;

    const MAX: u32 = 1 << 20;

    /// A batch of these requests.
    fn batch(client: &Client, requests: &[Request<'_>]) -> Batch {
        let mut bytes = Vec::new();
        requests.iter().for_each(|request| request.encode(&mut bytes));
        let jobs = gather(&bytes, MAX, 100, |_| Ok(())).expect("they are requests");
        assert_eq!(jobs.len(), requests.len());
        Batch::new(3, 4, &bytes, &jobs, client.gate.pass().expect("it is open"), Instant::now())
    }

    fn client() -> (Clients, Client) {
        let clients = Clients::new(Duration::ZERO);
        let client = clients.enter(0, LinkId { process: 1, link: 1 }).expect("not fenced");
        (clients, client)
    }

    /// Lets one slot execute all queued jobs.
    fn run(flight: &Flight, execute: impl AsyncFn(&Request<'_>, &mut Vec<u8>) -> Ended) {
        let mut work = pin!(flight.work(MAX, execute));
        let mut cx = std::task::Context::from_waker(Waker::noop());
        assert!(work.as_mut().poll(&mut cx).is_pending(), "it waits for more");
    }

    async fn found(request: &Request<'_>, out: &mut Vec<u8>) -> Ended {
        let reply = ReplyEncoder::begin(out, request.op());
        let Request::Get { key } = request else { panic!("only lookups are expected") };
        out.extend_from_slice(key);
        reply.finish(out, true);
        Ended::Done
    }

    #[test]
    fn an_operation_that_panics_is_an_error_and_the_next_one_is_executed() {
        let ((clients, client), flight) = (client(), Flight::default());
        let [a, b] = [&b"a"[..], b"b"].map(|key| Request::Get { key });
        flight.begin(batch(&client, &[a, Request::Ping, b]));
        clients.leave(&client);
        assert!(!clients.is_quiet(1, 1), "it is under way");
        run(&flight, found);
        assert!(clients.is_quiet(1, 1) && flight.under_way() == 1);
        let finished = flight.take_finished();
        assert_eq!(flight.under_way(), 0);
        let answers = finished[0].take_answers();
        let replies: Vec<_> = answers
            .iter()
            .map(|(op, _, answer)| decode_reply(&answer.reply, *op, MAX).expect("a reply").expect("whole").0)
            .collect();
        assert!(
            matches!(replies[0], Reply::Value(Some(b"a"))) && matches!(replies[2], Reply::Value(Some(b"b")))
        );
        let Reply::Failed { may_have_taken_effect: true, text, .. } = &replies[1] else {
            panic!("{replies:?}")
        };
        assert_eq!(*text, "the operation panicked");
    }

    #[test]
    fn what_was_not_begun_is_not_answered() {
        let ((_, client), flight) = (client(), Flight::default());
        let keys: Vec<[u8; 1]> = (0..10).map(|key| [key]).collect();
        let requests: Vec<_> = keys.iter().map(|key| Request::Get { key }).collect();
        flight.begin(batch(&client, &requests));
        run(&flight, async |_, out: &mut Vec<u8>| {
            out.resize(BYTES_MAX / 2, 0);
            Ended::Done
        });
        // Only the third answer exceeds the limit.
        assert_eq!(flight.take_finished()[0].take_answers().len(), 3);
    }
}
