//! An endpoint's queue pair to one memory server: what is to be posted, what was, what is waited for.
//!
//! Work requests wait here until the endpoint rings the doorbell, and then go out together, as many as the queue pair
//! takes. The last of each verb or chain is signalled, each message of a call, and one in a while of a long chain; a
//! completion ends all that was posted before it.
//!
//! A queue pair that failed is destroyed first, so that its device leaves buffers alone. What had not been posted has
//! had no effect. What had may have, and may even be on its way: the connection that the queue pair goes with is
//! given up then ([`pando_fabric_net::TcpFabric::give_up`]), before anybody is told.

#![allow(unsafe_code)]

use std::collections::VecDeque;

use pando_fabric::{FabricError, MemoryServerId, Nanos, PageBuf, WORD};

use super::Shared;
use super::calls::{Calls, Came};
use super::jobs::{self, Job, Jobs, Step};
use crate::completions::Completion;
use crate::hello::Place;
use crate::queue::{Doorbell, QueuePair, Remote, Request, What, Work};

/// Work requests of a queue pair that are posted at a time.
pub(super) const DEPTH: u32 = 128;
/// Pauses between attempts to pair.
const PAUSE_MIN_NS: Nanos = 10_000_000;
const PAUSE_MAX_NS: Nanos = 1_000_000_000;
/// A call that takes longer than this has it looked whether its server is there.
const PROBE_NS: Nanos = 100_000_000;

/// A queue pair that is connected.
pub(super) struct Paired {
    pub queue_pair: QueuePair,
    pub place: Place,
    /// The connection that it goes with.
    pub link: u64,
    /// Connections that had been given up, and were fenced off, when it was made.
    pub settled: usize,
}

enum State {
    /// Nobody has needed it yet.
    Idle,
    Up(Paired),
    /// It failed, and is not made again before some moment.
    Down {
        until: Nanos,
        reason: String,
    },
    /// What the server held is gone.
    Lost,
}

/// What is to be done before work can be posted.
pub(super) enum Needs {
    Nothing,
    /// Somebody else is about it.
    Waiting,
    Pairing,
    /// Its connection is gone: the queue pair is to be closed, which nothing is under way by, and made again.
    Closing,
    /// A round trip over the control connection, which fences off connections that were given up.
    Settling,
}

/// What ends work requests of one queue pair, and only of that.
#[derive(Clone, Copy)]
pub(super) struct Name(u64);

/// In the name of a RECV, which no memory server's number has.
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

/// What a work request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Step {
        job: u32,
        step: u32,
    },
    /// The message of a call that has this place.
    Message(u32),
    /// A READ that shows whether the server is there.
    Probe,
}

/// A work request that waits to be posted, or to end.
#[derive(Clone, Copy)]
struct Part {
    whose: Whose,
    /// Whether somebody waits for its end.
    is_last: bool,
    /// Whether it waits for READs and atomics before it.
    is_fenced: bool,
    changes: bool,
    deadline: Nanos,
}

impl Part {
    /// One by itself, that no job ends with. What calls change is known to `Calls`: they are executed after their
    /// messages ended.
    fn alone(whose: Whose, deadline: Nanos) -> Self {
        Self { whose, is_last: true, is_fenced: false, changes: false, deadline }
    }

    /// The job whose last work request it is.
    fn ends(&self) -> Option<u32> {
        match self.whose {
            Whose::Step { job, .. } if self.is_last => Some(job),
            Whose::Step { .. } | Whose::Message(_) | Whose::Probe => None,
        }
    }
}

pub(super) struct Link {
    server: MemoryServerId,
    // Its queue pair is gone before the buffers of `calls` and `probe` are.
    state: State,
    calls: Calls,
    /// One word, for a READ that shows whether the server is there, and the device's name for its memory.
    probe: Option<(PageBuf, u32)>,
    /// Since when nothing was posted although calls are under way.
    quiet_since: Option<Nanos>,
    /// Whether somebody pairs or settles just now.
    pub is_preparing: bool,
    has_failed: bool,
    pause: Nanos,
    /// Of the queue pair, so that a completion of one before is not taken for one of its own.
    generation: u16,
    /// Work requests posted to it so far.
    count: u32,
    unsignalled: u32,
    queued: VecDeque<Part>,
    posted: VecDeque<Part>,
    doorbell: Doorbell,
}

/// How a queue pair failed.
enum Failure {
    TimedOut,
    Failed(String),
}

impl Link {
    /// To a server whose calls and replies have up to `body_max` bytes.
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

    /// The server of a completion, as a place among the links.
    pub fn server_of(id: u64) -> usize {
        ((id & !RECEIVE) >> 48) as usize
    }

    /// Whether anything is waited for.
    pub fn is_busy(&self) -> bool {
        !self.queued.is_empty() || !self.posted.is_empty() || self.is_calling()
    }

    /// Whether a call is waited for.
    pub fn is_calling(&self) -> bool {
        self.calls.is_busy()
    }

    /// Calls over its queue pair at a time; 0 if they go over the connection.
    pub fn calls_max(&self) -> u32 {
        self.calls.limit()
    }

    /// What must be done before work is posted, when `given_up` connections to the server were given up so far and
    /// `connection` is the one that is there.
    ///
    /// A queue pair whose connection is gone is not for new work: its server ends it as soon as it sees that, in the
    /// midst of what is under way. What was posted before may still end well, for instance while the server is
    /// stopped.
    ///
    /// # Errors
    /// `NotConnected` if it failed a moment ago, `Lost`.
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

    /// Makes a queue pair ready for replies to calls, before it is connected.
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

    /// A queue pair that was begun with was connected.
    pub fn come_up(&mut self, paired: Paired) {
        (self.count, self.unsignalled) = (0, 0);
        self.calls.set_limit(paired.place.calls.get());
        self.state = State::Up(paired);
    }

    /// The first `count` connections that were given up are fenced off.
    pub fn settle(&mut self, count: usize) {
        if let State::Up(paired) = &mut self.state {
            paired.settled = paired.settled.max(count);
        }
    }

    /// There is no queue pair, for this reason.
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

    /// Adds a job, to be posted when the doorbell is rung.
    #[inline]
    pub fn push(&mut self, number: u32, steps: &[Step], deadline: Nanos) {
        let (mut after_read, mut after_atomic) = (false, false);
        for (place, step) in (0..).zip(steps) {
            let (is_last, changes) = (place as usize + 1 == steps.len(), step.changes());
            // A READ that is sent again would see a change that overtook it; atomics are executed once, and in order.
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

    /// Adds a job that is a call.
    pub fn push_call(&mut self, number: u32, deadline: Nanos) {
        self.calls.wait(number, deadline);
    }

    /// Adds the message of a call that has a place.
    fn push_message(&mut self, place: u32, deadline: Nanos) {
        self.queued.push_back(Part::alone(Whose::Message(place), deadline));
    }

    /// Posts what the queue pair takes; the bits of slots whose verbs ended.
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
            // Room is made by completions only.
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
        // SAFETY: buffers stay in `jobs` until a completion ends their job, or the queue pair is gone (`fail`,
        // `close`); those of messages and probes stay longer than the queue pair.
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

    /// A completion came; the bits of slots whose verbs ended.
    pub fn complete(
        &mut self,
        completion: &Completion,
        shared: &Shared,
        jobs: &mut Jobs,
        now: impl Fn() -> Nanos,
    ) -> u64 {
        // One of a queue pair before this one has nothing to say any more.
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

    /// A message came; the bits of slots whose calls ended.
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

    /// Gives the queue pair up if something has been waiting for too long; the bits of slots whose verbs ended.
    pub fn look_at_clock(&mut self, shared: &Shared, jobs: &mut Jobs, now: Nanos) -> u64 {
        let first = self.posted.front().or(self.queued.front());
        // A call waits for the server's process, others for its device.
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

    /// Whether it is time to look whether the server is there: its end is the end of what is posted, but not of a
    /// call that it has got.
    fn is_to_probe(&mut self, now: Nanos) -> bool {
        let is_quiet = self.queued.is_empty() && self.posted.is_empty() && self.calls.is_under_way();
        let is_due = is_quiet && now >= *self.quiet_since.get_or_insert(now) + PROBE_NS;
        if is_due || !is_quiet {
            self.quiet_since = None;
        }
        is_due
    }

    /// Destroys the queue pair. To be called before it goes: what is on its way must not change anything after what
    /// is sent later.
    pub fn close(&mut self, shared: &Shared) {
        if let State::Up(paired) = std::mem::replace(&mut self.state, State::Idle) {
            let link = paired.link;
            // Destroyed here: nothing is sent any more, and no buffer is touched.
            drop(paired);
            if self.posted.iter().any(|part| part.changes) || self.calls.may_change() {
                shared.control.give_up(self.server, link);
            }
        }
    }

    /// Whether its queue pair failed since this was asked last.
    pub fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Ends all that waits.
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
        // The last part of a job may be queued while others were posted.
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
