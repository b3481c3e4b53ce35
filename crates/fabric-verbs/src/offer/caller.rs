//! A client whose calls come over its queue pair: its replies, and its end.
//!
//! Its calls are executed one after the other under its lock, so a close waits for the call in progress and
//! prevents later ones. A client can harm only its own queue pair: too many messages at a time, or invalid
//! ones, stop it.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::{PageBuf, Result};
use pando_fabric_net::Calls;

use crate::hello::Peer;
use crate::message::{Message, Rest};
use crate::queue::{Doorbell, QueuePair, Request, What};
use crate::receives::MessageBuffers;

/// Id of the completion of a sent message; a RECV has the number of its buffer.
pub(super) const SENT: u64 = 1 << 63;

/// A client and its queue pair. See the module documentation.
pub(super) struct Caller {
    calls: Calls,
    buffers: Arc<MessageBuffers>,
    /// Messages received but not answered, and their maximum number.
    under_way: AtomicU32,
    under_way_max: u32,
    /// Whether a close waits for the lock; pending messages are then skipped.
    is_closing: AtomicBool,
    state: Mutex<State>,
}

struct State {
    // Dropped before the buffers from which its device sends.
    queue_pair: Option<QueuePair>,
    /// Whether no more calls are executed.
    is_over: bool,
    doorbell: Doorbell,
    /// Posted messages, in order.
    sending: VecDeque<PageBuf>,
    /// Messages that wait until some of those are sent.
    to_send: VecDeque<Vec<u8>>,
    /// Unfinished replies, by the ids of their calls.
    rests: HashMap<u32, Rest>,
}

impl Caller {
    /// Creates the client at the other end of `queue_pair`, which may have `under_way_max` messages in flight
    /// in each direction.
    pub fn new(
        calls: Calls,
        buffers: &Arc<MessageBuffers>,
        queue_pair: QueuePair,
        under_way_max: u32,
    ) -> Self {
        let state = State {
            queue_pair: Some(queue_pair),
            is_over: false,
            doorbell: Doorbell::default(),
            sending: VecDeque::new(),
            to_send: VecDeque::new(),
            rests: HashMap::new(),
        };
        Self {
            calls,
            buffers: Arc::clone(buffers),
            under_way: AtomicU32::new(0),
            under_way_max,
            is_closing: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects the queue pair to the client's.
    ///
    /// # Errors
    /// `System` if the device fails.
    pub fn answer(&self, peer: &Peer) -> Result<()> {
        self.state().queue_pair.as_ref().map_or(Ok(()), |queue_pair| queue_pair.answer(peer))
    }

    /// Counts a received message.
    pub fn note_message(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    /// Handles a message, unless the client is closed.
    pub fn execute(&self, message: &[u8]) {
        if self.is_closing.load(Relaxed) {
            return;
        }
        let mut state = self.state();
        if state.is_over {
            return;
        }
        if self.under_way.load(Relaxed) > self.under_way_max {
            return state.stop("it has more calls under way than it may");
        }
        match Message::decode(message) {
            Some(Message::Call { id, kind, body }) if body.len() <= self.calls.body_max() => {
                let mut reply = Vec::new();
                self.calls.execute(kind, body, &mut reply);
                self.reply(&mut state, id, Rest::new(reply));
            }
            Some(Message::Next { id }) => match state.rests.remove(&id) {
                Some(rest) => self.reply(&mut state, id, rest),
                None => state.stop("it asks for more of what it never asked for"),
            },
            _ => state.stop("it sent what is no call"),
        }
    }

    /// Records that the oldest message to the client was sent, or failed.
    pub fn note_sent(&self, is_well: bool) {
        let mut state = self.state();
        state.sending.pop_front();
        match is_well {
            _ if state.is_over => {}
            true => self.send(&mut state),
            false => state.stop("its device takes no reply"),
        }
    }

    /// Takes the queue pair, if it was not closed before. When this returns, no call of the client is being
    /// executed, and none will be.
    pub fn close(&self) -> Option<QueuePair> {
        self.is_closing.store(true, Relaxed);
        let mut state = self.state();
        state.is_over = true;
        state.queue_pair.take()
    }

    fn reply(&self, state: &mut State, id: u32, mut rest: Rest) {
        let mut message = Vec::new();
        if !rest.next_part(id, &mut message) {
            state.rests.insert(id, rest);
            if state.rests.len() > self.under_way_max as usize {
                return state.stop("it leaves more replies than it may have calls under way");
            }
        }
        state.to_send.push_back(message);
        self.send(state);
    }

    /// Sends waiting messages, as many as the queue pair takes.
    fn send(&self, state: &mut State) {
        while state.sending.len() < self.under_way_max as usize
            && let Some(message) = state.to_send.pop_front()
        {
            // From now on the client may send another message.
            self.under_way.fetch_sub(1, Relaxed);
            let (mut buffer, local_key) = match self.buffers.take() {
                Ok(taken) => taken,
                Err(error) => return state.stop(&error.to_string()),
            };
            buffer.copy_from_bytes(&message);
            buffer.set_window(0..message.len());
            state.sending.push_back(buffer);
            if let Err(error) = state.post(local_key) {
                return state.stop(&format!("no reply can be sent: {error}"));
            }
        }
    }
}

impl State {
    /// Posts the last buffer of `sending`.
    fn post(&mut self, local_key: u32) -> std::io::Result<()> {
        let (Some(queue_pair), Some(buffer)) = (&self.queue_pair, self.sending.back()) else { return Ok(()) };
        let request = Request {
            id: SENT,
            what: What::Message,
            buffer,
            local_key,
            is_signalled: true,
            is_fenced: false,
        };
        // SAFETY: the buffer stays in `sending` until its completion; remaining ones are dropped after the
        // queue pair.
        unsafe { queue_pair.post(&mut self.doorbell, std::iter::once(request)) }
    }

    /// Stops executing calls. The client notices because its queue pair no longer answers.
    fn stop(&mut self, reason: &str) {
        tracing::warn!("a queue pair of a client is stopped: {reason}");
        self.is_over = true;
        if let Some(queue_pair) = &self.queue_pair {
            queue_pair.stop();
        }
        self.to_send.clear();
        self.rests.clear();
    }
}
