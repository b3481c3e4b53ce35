//! A client whose calls come over its queue pair: what it is sent, and its end.
//!
//! Its calls are executed one after the other while its lock is held, so whoever closes it waits for the one that is being
//! executed, and none is after that. Whatever a client sends costs at most its own queue pair: more messages at a time than it
//! may, or ones that make no sense, stop that.

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

/// The name of the end of a message that was sent; a RECV has the number of its buffer.
pub(super) const SENT: u64 = 1 << 63;

/// A client and its queue pair. See the module documentation.
pub(super) struct Caller {
    calls: Calls,
    buffers: Arc<MessageBuffers>,
    /// Messages that came and are not answered, and how many these may be.
    under_way: AtomicU32,
    under_way_max: u32,
    /// Whether somebody waits for the lock to close it, who would otherwise wait for all that came.
    is_closing: AtomicBool,
    state: Mutex<State>,
}

struct State {
    // Gone before the buffers that its device sends from.
    queue_pair: Option<QueuePair>,
    /// Whether nothing is executed any more.
    is_over: bool,
    doorbell: Doorbell,
    /// Posted, in this order.
    sending: VecDeque<PageBuf>,
    /// What waits until some of these were sent.
    to_send: VecDeque<Vec<u8>>,
    /// Of replies that were not asked for to the end, by the names of their calls.
    rests: HashMap<u32, Rest>,
}

impl Caller {
    /// The client at the other end of `queue_pair`, which may have `under_way_max` messages under way and sends as many.
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

    /// Lets the client in.
    ///
    /// # Errors
    /// `System` if the device does not do it.
    pub fn answer(&self, peer: &Peer) -> Result<()> {
        self.state().queue_pair.as_ref().map_or(Ok(()), |queue_pair| queue_pair.answer(peer))
    }

    /// A message of it was seen.
    pub fn note_message(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    /// Does what a message says, unless the client is closed.
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

    /// The oldest message to it was sent, or will not be.
    pub fn note_sent(&self, is_well: bool) {
        let mut state = self.state();
        state.sending.pop_front();
        match is_well {
            _ if state.is_over => {}
            true => self.send(&mut state),
            false => state.stop("its device takes no reply"),
        }
    }

    /// Its queue pair, if it was not closed before. Once this has returned, nothing of the client is being executed, or will be.
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

    /// Sends what waits, as much as the queue pair takes.
    fn send(&self, state: &mut State) {
        while state.sending.len() < self.under_way_max as usize
            && let Some(message) = state.to_send.pop_front()
        {
            // Its client may send another one from now on.
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
    /// Posts the last of the buffers that are being sent.
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
        // SAFETY: the buffer stays in `sending` until its end came; all that is there goes after the queue pair.
        unsafe { queue_pair.post(&mut self.doorbell, std::iter::once(request)) }
    }

    /// Executes nothing any more, for this reason. The client finds out by its queue pair, which answers nothing.
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
