//! An endpoint's queue pair to one memory server: what is to be posted, what was, what is waited for.
//!
//! Work requests wait here until the endpoint rings the doorbell, and then go out together, as many as the queue pair takes. The
//! last of each verb or chain is signalled, and one in a while of a long chain; a completion ends all that was posted before it.
//!
//! A queue pair that failed is destroyed first, so that its device leaves buffers alone. What had not been posted has had no
//! effect. What had may have, and may even be on its way: the connection that the queue pair goes with is given up then
//! ([`pando_fabric_net::TcpFabric::give_up`]), before anybody is told.

#![allow(unsafe_code)]

use std::collections::VecDeque;

use pando_fabric::{FabricError, MemoryServerId, Nanos};

use super::Shared;
use super::jobs::{self, Jobs, Step};
use crate::hello::Place;
use crate::queue::{Completion, Doorbell, QueuePair, Request, Work};

/// Work requests of a queue pair that are posted at a time.
pub(super) const DEPTH: u32 = 128;
/// Pauses between attempts to pair.
const PAUSE_MIN_NS: Nanos = 10_000_000;
const PAUSE_MAX_NS: Nanos = 1_000_000_000;

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
    /// A round trip over the control connection, which fences off connections that were given up.
    Settling,
}

/// A work request of a job.
#[derive(Clone, Copy)]
struct Part {
    job: u32,
    step: u32,
    is_last: bool,
    /// Whether it waits for READs and atomics before it.
    is_fenced: bool,
    changes: bool,
    deadline: Nanos,
}

pub(super) struct Link {
    server: MemoryServerId,
    state: State,
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
    pub fn new(server: MemoryServerId) -> Self {
        Self {
            server,
            state: State::Idle,
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
        (id >> 48) as usize
    }

    /// Whether anything is waited for.
    pub fn is_busy(&self) -> bool {
        !self.queued.is_empty() || !self.posted.is_empty()
    }

    /// What must be done before work is posted, when `given_up` connections to the server were given up so far.
    ///
    /// # Errors
    /// `NotConnected` if it failed a moment ago, `Lost`.
    #[inline]
    pub fn needs(&self, given_up: usize, now: impl Fn() -> Nanos) -> Result<Needs, FabricError> {
        let server = self.server;
        match &self.state {
            State::Up(paired) if paired.settled >= given_up => return Ok(Needs::Nothing),
            State::Lost => return Err(FabricError::Lost(server)),
            State::Down { until, reason } if now() < *until => {
                return Err(FabricError::NotConnected { server, reason: reason.clone() });
            }
            _ if self.is_preparing => return Ok(Needs::Waiting),
            _ => {}
        }
        Ok(if matches!(self.state, State::Up(_)) { Needs::Settling } else { Needs::Pairing })
    }

    /// A queue pair was connected.
    pub fn come_up(&mut self, paired: Paired) {
        self.generation = self.generation.wrapping_add(1);
        (self.count, self.unsignalled) = (0, 0);
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
            self.queued.push_back(Part { job: number, step: place, is_last, is_fenced, changes, deadline });
        }
    }

    /// Posts what the queue pair takes; the bits of slots whose verbs ended.
    pub fn ring(&mut self, shared: &Shared, jobs: &mut Jobs, now: impl Fn() -> Nanos) -> u64 {
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
        let name = (u64::from(self.server.0) << 48) | (u64::from(self.generation) << 32);
        let (base, remote_key) = (paired.place.address.get(), paired.place.key.get());
        let (mut next, mut unsignalled) = (self.count, self.unsignalled);
        let requests = self.queued.iter().take(count).map(|part| {
            next = next.wrapping_add(1);
            unsignalled += 1;
            let step = &jobs::steps(jobs, part.job)[part.step as usize];
            // Room is made by completions only.
            let is_signalled = part.is_last || unsignalled >= depth / 4;
            if is_signalled {
                unsignalled = 0;
            }
            Request {
                id: name | u64::from(next),
                work: step.work,
                buffer: &step.buffer,
                local_key: step.key,
                remote: base + step.at.offset(),
                remote_key,
                is_signalled,
                is_fenced: part.is_fenced,
            }
        });
        // SAFETY: buffers stay in `jobs` until a completion ends their job, or the queue pair is gone (`fail`, `close`).
        let posted = unsafe { paired.queue_pair.post(&mut self.doorbell, requests) };
        (self.count, self.unsignalled) = (next, unsignalled);
        self.posted.extend(self.queued.drain(..count));
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
        let oldest = self.count.wrapping_sub(self.posted.len() as u32);
        let ended = (completion.id as u32).wrapping_sub(oldest) as usize;
        // One of a queue pair before this one has nothing to say any more.
        if (completion.id >> 32) as u16 != self.generation || !(1..=self.posted.len()).contains(&ended) {
            return 0;
        }
        if let Err(status) = completion.result {
            let reason = match status {
                rdma_mummy_sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR => "it does not answer".to_owned(),
                other => format!("its device ended a verb with status {other}"),
            };
            return self.fail(&Failure::Failed(reason), shared, jobs, now());
        }
        self.pause = PAUSE_MIN_NS;
        let mut ready = 0;
        for part in self.posted.drain(..ended).filter(|part| part.is_last) {
            ready |= jobs.end(part.job, Ok);
        }
        ready
    }

    /// Gives the queue pair up if something has been waiting for too long; the bits of slots whose verbs ended.
    pub fn look_at_clock(&mut self, shared: &Shared, jobs: &mut Jobs, now: Nanos) -> u64 {
        let first = self.posted.front().or(self.queued.front());
        match first {
            Some(part) if part.deadline <= now => self.fail(&Failure::TimedOut, shared, jobs, now),
            _ => 0,
        }
    }

    /// Destroys the queue pair. To be called before it goes: what is on its way must not change anything after what is sent later.
    pub fn close(&mut self, shared: &Shared) {
        if let State::Up(paired) = std::mem::replace(&mut self.state, State::Idle) {
            let link = paired.link;
            // Destroyed here: nothing is sent any more, and no buffer is touched.
            drop(paired);
            if self.posted.iter().any(|part| part.changes) {
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
        let half_posted = self.queued.front().filter(|part| part.step > 0).map(|part| part.job);
        let posted = std::mem::take(&mut self.posted).into_iter().map(|part| (part, true));
        let queued =
            std::mem::take(&mut self.queued).into_iter().map(|part| (part, half_posted == Some(part.job)));
        for (part, may_be_done) in posted.chain(queued).filter(|(part, _)| part.is_last) {
            let error = match how {
                _ if !may_be_done => FabricError::NotConnected { server, reason: reason.clone() },
                Failure::TimedOut => FabricError::TimedOut(server),
                Failure::Failed(_) => FabricError::ServerUnreachable(server),
            };
            ready |= jobs.end(part.job, |_| Err(error));
        }
        self.state = self.down(now, reason);
        self.has_failed = true;
        ready
    }
}
