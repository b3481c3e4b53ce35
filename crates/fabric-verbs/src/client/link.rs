//! An endpoint's queue pair to one memory server: work requests queued, posted, and awaited.
//!
//! Work requests wait here until the endpoint rings the doorbell. Then as many as the queue pair takes are
//! posted together. The last request of each verb or chain is signalled, and each message of a call, and one
//! in a while of a long chain. A completion ends all requests posted before it.
//!
//! A failed queue pair is destroyed first, so that its device no longer uses buffers. Work that was not
//! posted has had no effect. Posted work may have had one, or may still be in flight. So the connection of
//! the queue pair is given up ([`pando_fabric_net::TcpFabric::give_up`]) before any caller learns of the
//! failure.

#![allow(unsafe_code)]

use std::collections::VecDeque;

use pando_fabric::{FabricError, MemoryServerId, Nanos, PageBuf, WORD};

use super::Shared;
use super::calls::{Calls, Came};
use super::jobs::{self, Job, Jobs, Step};
use crate::completions::Completion;
use crate::hello::Place;
use crate::queue::{Doorbell, QueuePair, Remote, Request, What, Work};

/// Maximum number of posted work requests of a queue pair.
pub(super) const DEPTH: u32 = 128;
/// Bounds of the pause between attempts to pair.
const PAUSE_MIN_NS: Nanos = 10_000_000;
const PAUSE_MAX_NS: Nanos = 1_000_000_000;
/// Time after which a pending call makes the link probe the server.
const PROBE_NS: Nanos = 100_000_000;

/// A connected queue pair.
pub(super) struct Paired {
    pub queue_pair: QueuePair,
    pub place: Place,
    /// Connection that the queue pair belongs to.
    pub link: u64,
    /// Number of given-up connections that were fenced off when it was made.
    pub settled: usize,
}

enum State {
    /// Not needed yet.
    Idle,
    Up(Paired),
    /// It failed, and is not made again before a given time.
    Down {
        until: Nanos,
        reason: String,
    },
    /// The content of the server's memory is gone.
    Lost,
}

/// Preparation that a link needs before work can be posted.
pub(super) enum Needs {
    Nothing,
    /// Another slot is preparing the link.
    Waiting,
    Pairing,
    /// The connection is gone: close the idle queue pair and make a new one.
    Closing,
    /// Make a round trip over the control connection, which fences off connections that were given up.
    Settling,
}

/// Prefix of the ids of one queue pair's work requests; no other queue pair has the same.
#[derive(Clone, Copy)]
pub(super) struct Name(u64);

/// Bit in the id of a RECV; no memory server number sets it.
const RECEIVE: u64 = 1 << 63;

impl Name {
    fn new(server: MemoryServerId, generation: u16) -> Self {
        Self((u64::from(server.0) << 48) | (u64::from(generation) << 32))
    }

    fn of_send(self, count: u32) -> u64 {
        self.0 | u64::from(count)
    }

    pub fn of_receive(self, number: u32) -> u64 {
        self.0 | RECEIVE | u64::from(number)
    }
}

/// Purpose of a work request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Step {
        job: u32,
        step: u32,
    },
    /// Message of the call in this place.
    Message(u32),
    /// A READ that tests whether the server is reachable.
    Probe,
}

/// A queued or posted work request.
#[derive(Clone, Copy)]
struct Part {
    whose: Whose,
    /// Whether it is the last request of its job or message.
    is_last: bool,
    /// Whether it waits for earlier READs and atomics.
    is_fenced: bool,
    changes: bool,
    deadline: Nanos,
}

impl Part {
    /// A request that ends no job. `changes` is false, since `Calls` tracks the effects of calls, which are
    /// executed after their messages were sent.
    fn alone(whose: Whose, deadline: Nanos) -> Self {
        Self { whose, is_last: true, is_fenced: false, changes: false, deadline }
    }

    /// The job that ends with this work request.
    fn ends(&self) -> Option<u32> {
        match self.whose {
            Whose::Step { job, .. } if self.is_last => Some(job),
            Whose::Step { .. } | Whose::Message(_) | Whose::Probe => None,
        }
    }
}

pub(super) struct Link {
    server: MemoryServerId,
    // Dropped first: the queue pair is destroyed before the buffers of `calls` and `probe`.
    state: State,
    calls: Calls,
    /// A buffer of one word for probes, and the device's key for it.
    probe: Option<(PageBuf, u32)>,
    /// Time since which nothing has been posted although calls are in flight.
    quiet_since: Option<Nanos>,
    /// Whether a slot is preparing the link.
    pub is_preparing: bool,
    has_failed: bool,
    pause: Nanos,
    /// Number of the queue pair, to recognise completions of earlier ones.
    generation: u16,
    /// Number of work requests posted to the queue pair.
    count: u32,
    unsignalled: u32,
    queued: VecDeque<Part>,
    posted: VecDeque<Part>,
    doorbell: Doorbell,
}

/// Ways in which a queue pair fails.
enum Failure {
    TimedOut,
    Failed(String),
}

impl Link {
    /// Creates the link to a server whose calls and replies have bodies of up to `body_max` bytes.
    pub fn new(server: MemoryServerId, body_max: u32) -> Self {
        Self {
            server,
            state: State::Idle,
            calls: Calls::new(server, body_max),
            probe: None,
            quiet_since: None,
            is_preparing: false,
            has_failed: false,
            pause: PAUSE_MIN_NS,
            generation: 0,
            count: 0,
            unsignalled: 0,
            queued: VecDeque::new(),
            posted: VecDeque::new(),
            doorbell: Doorbell::default(),
        }
    }

    /// Server of a completion, as an index among the links.
    pub fn server_of(id: u64) -> usize {
        ((id & !RECEIVE) >> 48) as usize
    }

    /// Whether any work is queued or in flight.
    pub fn is_busy(&self) -> bool {
        !self.queued.is_empty() || !self.posted.is_empty() || self.is_calling()
    }

    /// Whether any call is waiting or in flight.
    pub fn is_calling(&self) -> bool {
        self.calls.is_busy()
    }

    /// Maximum number of calls in flight over the queue pair; 0 if calls go over the connection.
    pub fn calls_max(&self) -> u32 {
        self.calls.limit()
    }

    /// The preparation needed before work is posted. `given_up` connections to the server were given up so
    /// far, and `connection` is the present one.
    ///
    /// A queue pair whose connection is gone takes no new work: its server ends it as soon as it notices, in
    /// the middle of work in flight. Work posted before may still complete, for instance while the server is
    /// stopped.
    ///
    /// # Errors
    /// `NotConnected` if the queue pair failed recently, `Lost`.
    #[inline]
    pub fn needs(
        &self,
        given_up: usize,
        connection: Option<u64>,
        now: impl Fn() -> Nanos,
    ) -> Result<Needs, FabricError> {
        let server = self.server;
        Ok(match &self.state {
            State::Up(paired) if connection == Some(paired.link) => match paired.settled >= given_up {
                true => Needs::Nothing,
                false if self.is_preparing => Needs::Waiting,
                false => Needs::Settling,
            },
            State::Up(_) if self.is_preparing || self.is_busy() => Needs::Waiting,
            State::Up(_) => Needs::Closing,
            State::Lost => return Err(FabricError::Lost(server)),
            State::Down { until, reason } if now() < *until => {
                return Err(FabricError::NotConnected { server, reason: reason.clone() });
            }
            State::Idle | State::Down { .. } if self.is_preparing => Needs::Waiting,
            State::Idle | State::Down { .. } => Needs::Pairing,
        })
    }

    /// Prepares a queue pair for replies to calls, before it is connected.
    ///
    /// # Errors
    /// As [`Calls::receive_by`].
    pub fn begin(&mut self, queue_pair: &QueuePair, shared: &Shared) -> Result<(), FabricError> {
        self.generation = self.generation.wrapping_add(1);
        let name = Name::new(self.server, self.generation);
        if self.probe.is_none() {
            let word = shared.device.arena(WORD, 1)?.take().expect("a new arena has a block");
            self.probe = Some(shared.device.with_key(word));
        }
        self.calls.receive_by(queue_pair, &shared.device, name)
    }

    /// Records that the queue pair given to [`Link::begin`] is connected.
    pub fn come_up(&mut self, paired: Paired) {
        (self.count, self.unsignalled) = (0, 0);
        self.calls.set_limit(paired.place.calls.get());
        self.state = State::Up(paired);
    }

    /// Records that the first `count` given-up connections are fenced off.
    pub fn settle(&mut self, count: usize) {
        if let State::Up(paired) = &mut self.state {
            paired.settled = paired.settled.max(count);
        }
    }

    /// Records that there is no queue pair, because of `error`.
    pub fn stay_down(&mut self, now: Nanos, error: &FabricError) {
        self.state = match error {
            FabricError::Lost(_) => State::Lost,
            FabricError::NotConnected { reason, .. } => self.down(now, reason.clone()),
            other => self.down(now, other.to_string()),
        };
    }

    fn down(&mut self, now: Nanos, reason: String) -> State {
        let until = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX_NS);
        State::Down { until, reason }
    }

    /// Adds a job, to be posted with the next doorbell.
    #[inline]
    pub fn push(&mut self, number: u32, steps: &[Step], deadline: Nanos) {
        let (mut after_read, mut after_atomic) = (false, false);
        for (place, step) in (0..).zip(steps) {
            let (is_last, changes) = (place as usize + 1 == steps.len(), step.changes());
            // A retried READ would see a change that overtook it. Atomics are executed once and in order.
            let is_fenced = match step.work {
                Work::Read => false,
                Work::Write => after_read || after_atomic,
                Work::CompareSwap { .. } | Work::FetchAdd { .. } => after_read,
            };
            if is_fenced {
                (after_read, after_atomic) = (false, false);
            }
            match step.work {
                Work::Read => after_read = true,
                Work::Write => {}
                Work::CompareSwap { .. } | Work::FetchAdd { .. } => after_atomic = true,
            }
            let whose = Whose::Step { job: number, step: place };
            self.queued.push_back(Part { whose, is_last, is_fenced, changes, deadline });
        }
    }

    /// Adds a call.
    pub fn push_call(&mut self, number: u32, deadline: Nanos) {
        self.calls.wait(number, deadline);
    }

    /// Queues the message of a call that has a place.
    fn push_message(&mut self, place: u32, deadline: Nanos) {
        self.queued.push_back(Part::alone(Whose::Message(place), deadline));
    }

    /// Posts as much work as the queue pair takes; returns the bits of slots whose verbs ended.
    pub fn ring(&mut self, shared: &Shared, jobs: &mut Jobs, now: impl Fn() -> Nanos) -> u64 {
        while let Some((place, deadline)) = self.calls.begin(jobs) {
            self.push_message(place, deadline);
        }
        let depth = DEPTH.min(shared.device.work_max);
        let room = (depth as usize).saturating_sub(self.posted.len());
        let count = self.queued.len().min(room);
        if count == 0 {
            return 0;
        }
        let State::Up(paired) = &self.state else {
            let reason = "its queue pair failed".to_owned();
            return self.fail(&Failure::Failed(reason), shared, jobs, now());
        };
        let name = Name::new(self.server, self.generation);
        let remote =
            |offset| Remote { address: paired.place.address.get() + offset, key: paired.place.key.get() };
        let (mut next, mut unsignalled) = (self.count, self.unsignalled);
        let requests = self.queued.iter().take(count).map(|part| {
            next = next.wrapping_add(1);
            unsignalled += 1;
            let (what, buffer, local_key) = match part.whose {
                Whose::Step { job, step } => {
                    let step = &jobs::steps(jobs, job)[step as usize];
                    (What::Verb(step.work, remote(step.at.offset())), &step.buffer, step.key)
                }
                Whose::Message(place) => {
                    let (buffer, key) = self.calls.message(place);
                    (What::Message, buffer, key)
                }
                Whose::Probe => {
                    let (buffer, key) = self.probe.as_ref().expect("it is made before the queue pair");
                    (What::Verb(Work::Read, remote(0)), buffer, *key)
                }
            };
            // Only completions make room, so some request of a long chain must be signalled.
            let is_signalled = part.is_last || unsignalled >= depth / 4;
            if is_signalled {
                unsignalled = 0;
            }
            Request {
                id: name.of_send(next),
                what,
                buffer,
                local_key,
                is_signalled,
                is_fenced: part.is_fenced,
            }
        });
        // SAFETY: buffers of jobs stay in `jobs` until a completion ends their job or the queue pair is
        // destroyed (`fail`, `close`). Buffers of messages and probes outlive the queue pair.
        let posted = unsafe { paired.queue_pair.post(&mut self.doorbell, requests) };
        (self.count, self.unsignalled) = (next, unsignalled);
        for part in self.queued.drain(..count) {
            if let Whose::Message(place) = part.whose {
                self.calls.note_posted(place);
            }
            self.posted.push_back(part);
        }
        match posted {
            Ok(()) => 0,
            Err(error) => {
                let reason = format!("its device takes no work: {error}");
                self.fail(&Failure::Failed(reason), shared, jobs, now())
            }
        }
    }

    /// Handles a completion; returns the bits of slots whose verbs ended.
    pub fn complete(
        &mut self,
        completion: &Completion,
        shared: &Shared,
        jobs: &mut Jobs,
        now: impl Fn() -> Nanos,
    ) -> u64 {
        // Ignore completions of earlier queue pairs.
        if (completion.id >> 32) as u16 != self.generation || !matches!(self.state, State::Up(_)) {
            return 0;
        }
        if let Err(status) = completion.result {
            let reason = match status {
                rdma_mummy_sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR => "it does not answer".to_owned(),
                other => format!("its device ended a verb with status {other}"),
            };
            return self.fail(&Failure::Failed(reason), shared, jobs, now());
        }
        if completion.id & RECEIVE != 0 {
            return self.take(completion, shared, jobs, now);
        }
        let oldest = self.count.wrapping_sub(self.posted.len() as u32);
        let ended = (completion.id as u32).wrapping_sub(oldest) as usize;
        if !(1..=self.posted.len()).contains(&ended) {
            return 0;
        }
        self.pause = PAUSE_MIN_NS;
        let mut ready = 0;
        for _ in 0..ended {
            let Some(part) = self.posted.pop_front() else { break };
            match part.whose {
                Whose::Message(place) if self.calls.note_sent(place) => {
                    self.push_message(place, part.deadline)
                }
                _ => ready |= part.ends().map_or(0, |job| jobs.end(job, Ok)),
            }
        }
        ready
    }

    /// Handles a received message; returns the bits of slots whose calls ended.
    fn take(
        &mut self,
        completion: &Completion,
        shared: &Shared,
        jobs: &mut Jobs,
        now: impl Fn() -> Nanos,
    ) -> u64 {
        let State::Up(paired) = &self.state else { return 0 };
        let name = Name::new(self.server, self.generation);
        match self.calls.take(&paired.queue_pair, completion.id as u32, completion.bytes, name) {
            Ok(Came::Nothing) => 0,
            Ok(Came::Ask(place, deadline)) => {
                self.push_message(place, deadline);
                0
            }
            Ok(Came::End(job, reply)) => jobs.end(job, |call| match call {
                Job::Call { kind, .. } => reply.map(|body| Job::Call { kind, body }),
                other => Ok(other),
            }),
            Err(reason) => self.fail(&Failure::Failed(reason), shared, jobs, now()),
        }
    }

    /// Gives up the queue pair if a deadline has passed; returns the bits of slots whose verbs ended.
    pub fn look_at_clock(&mut self, shared: &Shared, jobs: &mut Jobs, now: Nanos) -> u64 {
        let first = self.posted.front().or(self.queued.front());
        // A call waits for the server's process, other work for its device.
        let is_late = first.is_some_and(|part| part.deadline <= now) || self.calls.is_late(now);
        if is_late {
            return self.fail(&Failure::TimedOut, shared, jobs, now);
        }
        if self.is_to_probe(now) {
            let deadline = now + shared.control.deadline().as_nanos() as Nanos;
            self.queued.push_back(Part::alone(Whose::Probe, deadline));
        }
        0
    }

    /// Whether a probe is due: the device reports a dead server for posted work, but not for a call that was
    /// already delivered.
    fn is_to_probe(&mut self, now: Nanos) -> bool {
        let is_quiet = self.queued.is_empty() && self.posted.is_empty() && self.calls.is_under_way();
        let is_due = is_quiet && now >= *self.quiet_since.get_or_insert(now) + PROBE_NS;
        if is_due || !is_quiet {
            self.quiet_since = None;
        }
        is_due
    }

    /// Destroys the queue pair. Must be called before the link is dropped: work in flight must not take
    /// effect after later work.
    pub fn close(&mut self, shared: &Shared) {
        if let State::Up(paired) = std::mem::replace(&mut self.state, State::Idle) {
            let link = paired.link;
            // Destroy the queue pair here: afterwards nothing is sent, and no buffer is used.
            drop(paired);
            if self.posted.iter().any(|part| part.changes) || self.calls.may_change() {
                shared.control.give_up(self.server, link);
            }
        }
    }

    /// Whether the queue pair has failed since the last call.
    pub fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Destroys the queue pair and ends all its jobs.
    #[cold]
    fn fail(&mut self, how: &Failure, shared: &Shared, jobs: &mut Jobs, now: Nanos) -> u64 {
        self.close(shared);
        let server = self.server;
        let reason = match how {
            Failure::TimedOut => "it did not answer in time".to_owned(),
            Failure::Failed(reason) => reason.clone(),
        };
        tracing::warn!("memory server {server}: {reason}");
        let mut ready = 0;
        // A job whose first parts were posted may have had an effect, even if its last part is still queued.
        let half_posted = self.queued.front().and_then(|part| match part.whose {
            Whose::Step { job, step } if step > 0 => Some(job),
            _ => None,
        });
        let mut ended = Vec::new();
        ended.extend(self.posted.drain(..).filter_map(|part| Some((part.ends()?, true))));
        ended.extend(
            self.queued.drain(..).filter_map(|part| part.ends().map(|job| (job, half_posted == Some(job)))),
        );
        ended.extend(self.calls.take_all());
        for (job, may_be_done) in ended {
            let error = match how {
                _ if !may_be_done => FabricError::NotConnected { server, reason: reason.clone() },
                Failure::TimedOut => FabricError::TimedOut(server),
                Failure::Failed(_) => FabricError::ServerUnreachable(server),
            };
            ready |= jobs.end(job, |_| Err(error));
        }
        self.state = self.down(now, reason);
        self.has_failed = true;
        ready
    }
}
