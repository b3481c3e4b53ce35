//! A thread that executes calls, and its completion queue.
//!
//! A completion names its client by the number of its queue pair, and numbers are reused. So completions are
//! taken and attributed under one lock, and a queue pair is destroyed under it. Its completions are taken
//! before and after that, and only then may the number belong to another queue pair. Some devices drop the
//! remaining completions of a destroyed queue pair, and with them the buffers. Therefore it is stopped before
//! the first of these polls, so that none remains.
//!
//! The thread polls for a moment after the last completion and then sleeps.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::Result;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::caller::{Caller, SENT};
use crate::completions::{Completion, CompletionQueue};
use crate::device::{Device, system};
use crate::queue::QueuePair;
use crate::receives::SharedReceives;

/// Time for which the thread polls for more work before it sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// State shared by one thread and its clients.
pub(super) struct Lane {
    completions: Arc<CompletionQueue>,
    receives: Arc<SharedReceives>,
    arrivals: Mutex<Arrivals>,
    /// Readable once the thread must end.
    stop: OwnedFd,
    is_stopping: AtomicBool,
}

#[derive(Default)]
struct Arrivals {
    /// Clients by the numbers of their queue pairs.
    callers: HashMap<u32, Arc<Caller>>,
    /// Completions taken, and their clients.
    came: VecDeque<(Completion, Option<Arc<Caller>>)>,
}

impl Arrivals {
    /// Takes some completions; returns whether there may be more.
    fn poll(&mut self, completions: &CompletionQueue) -> bool {
        completions.poll(|completion| {
            let caller = self.callers.get(&completion.queue_pair).cloned();
            if let Some(caller) = &caller
                && completion.id != SENT
            {
                caller.note_message();
            }
            self.came.push_back((completion, caller));
        })
    }
}

impl Lane {
    /// Creates a lane for up to `entries` completions at a time.
    ///
    /// # Errors
    /// `System` if the device or the system fails.
    pub fn new(device: &Arc<Device>, entries: u32, receives: &Arc<SharedReceives>) -> Result<Self> {
        let completions = Arc::new(CompletionQueue::with_channel(device, entries)?);
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system(&device.name, "its thread cannot be told to end", &error.into()))?;
        let (receives, arrivals) = (Arc::clone(receives), Mutex::default());
        Ok(Self { completions, receives, arrivals, stop, is_stopping: AtomicBool::new(false) })
    }

    pub fn completions(&self) -> &Arc<CompletionQueue> {
        &self.completions
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client whose queue pair has this number and has received nothing yet.
    pub fn enter(&self, number: u32, caller: &Arc<Caller>) {
        self.arrivals().callers.insert(number, Arc::clone(caller));
    }

    /// Destroys the queue pair of a closed client.
    pub fn leave(&self, queue_pair: QueuePair) {
        let number = queue_pair.number();
        let mut arrivals = self.arrivals();
        queue_pair.stop();
        while arrivals.poll(&self.completions) {}
        drop(queue_pair);
        while arrivals.poll(&self.completions) {}
        arrivals.callers.remove(&number);
    }

    /// Makes [`Lane::run`] return.
    pub fn stop(&self) {
        self.is_stopping.store(true, SeqCst);
        // The counter cannot be full: there is no other writer.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
    }

    /// Executes calls until it is stopped.
    pub fn run(&self) {
        let (mut message, mut batch) = (Vec::new(), VecDeque::new());
        let mut last = Instant::now();
        while !self.is_stopping.load(SeqCst) {
            if !self.take(&mut batch) {
                if last.elapsed() < BUSY_POLL {
                    std::hint::spin_loop();
                    continue;
                }
                self.completions.ask_for_news();
                // Earlier completions are not notified.
                if !self.take(&mut batch) {
                    self.sleep();
                }
            }
            for (completion, caller) in batch.drain(..) {
                self.end(completion, caller.as_deref(), &mut message);
            }
            last = Instant::now();
        }
    }

    /// Takes completions; returns whether there were any.
    fn take(&self, batch: &mut VecDeque<(Completion, Option<Arc<Caller>>)>) -> bool {
        let mut arrivals = self.arrivals();
        arrivals.poll(&self.completions);
        std::mem::swap(batch, &mut arrivals.came);
        !batch.is_empty()
    }

    fn sleep(&self) {
        let Some(news) = self.completions.news() else { return };
        let mut waits = [
            PollFd::from_borrowed_fd(news, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        // An interruption acts like a notification.
        let _ = poll(&mut waits, None);
        self.completions.take_news();
    }

    fn end(&self, completion: Completion, caller: Option<&Caller>, message: &mut Vec<u8>) {
        let is_well = completion.result.is_ok();
        if completion.id == SENT {
            if let Some(caller) = caller {
                caller.note_sent(is_well);
            }
            return;
        }
        // Repost the buffer before the message is answered, so that the client can send the next one.
        self.receives.take(completion.id, is_well.then_some(completion.bytes), message);
        if let Some(caller) = caller
            && is_well
        {
            caller.execute(message);
        }
    }
}
