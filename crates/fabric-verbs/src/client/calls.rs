//! Calls of one endpoint to one memory server: messages over the queue pair of its verbs.
//!
//! A call in flight occupies a place, with a buffer from which its messages are sent; a call without a place
//! waits. There are as many places as the server has buffers for this client, and as many receive buffers
//! here. A place is free again once its last message was sent and its reply is complete, even if its future
//! was dropped. Buffers outlive the queue pair that uses them.

#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use pando_fabric::{MemoryServerId, Nanos, PageBuf, Result};
use pando_fabric_net::wire::{Op, REPLY_HEADER, decode_reply};

use super::jobs::{Job, Jobs};
use super::link::Name;
use crate::device::{Device, system};
use crate::message::{MESSAGE_MAX, Message, Parts};
use crate::queue::QueuePair;

/// Maximum number of calls in flight.
pub(super) const CALLS_MAX: u32 = 16;

/// Effect of a received part on the call.
pub(super) enum Came {
    /// None: more parts will come, or will be requested later.
    Nothing,
    /// The next part must be requested; the message is in the buffer of the place.
    Ask(u32, Nanos),
    /// The call has ended: its job and reply.
    End(u32, Result<Vec<u8>>),
}

#[derive(Default)]
struct UnderWay {
    job: u32,
    deadline: Nanos,
    /// Whether the device took its first message.
    is_posted: bool,
    /// Whether its last message was sent.
    is_sent: bool,
    /// Whether the next part must be requested once that is so.
    is_next_wanted: bool,
    /// Whether the reply is complete.
    is_over: bool,
    parts: Parts,
}

struct Place {
    buffer: PageBuf,
    key: u32,
    /// Number of calls that have used the place.
    count: u32,
    call: Option<UnderWay>,
}

pub(super) struct Calls {
    server: MemoryServerId,
    /// Maximum length of a reply in bytes.
    reply_max: usize,
    /// Number of usable places.
    limit: u32,
    places: Vec<Place>,
    receives: Vec<(PageBuf, u32)>,
    /// Jobs without a place, and their deadlines.
    waiting: VecDeque<(u32, Nanos)>,
    message: Vec<u8>,
}

impl Calls {
    /// Creates the state for a server whose replies have bodies of up to `body_max` bytes.
    pub fn new(server: MemoryServerId, body_max: u32) -> Self {
        Self {
            server,
            reply_max: REPLY_HEADER + body_max as usize,
            limit: 0,
            places: Vec::new(),
            receives: Vec::new(),
            waiting: VecDeque::new(),
            message: Vec::new(),
        }
    }

    /// Posts the receive buffers to a new queue pair; completions of its RECVs have names by `name`. Any
    /// previous queue pair must be destroyed already.
    ///
    /// # Errors
    /// `System` if the device takes no more memory or refuses a RECV.
    /// `System` if the device takes no more memory, or no RECV.
    pub fn receive_by(&mut self, queue_pair: &QueuePair, device: &Arc<Device>, name: Name) -> Result<()> {
        if self.places.is_empty() {
            let arena = device.arena(MESSAGE_MAX, 2 * CALLS_MAX as usize)?;
            let take = || device.with_key(arena.take().expect("it has two for each"));
            self.receives = (0..CALLS_MAX).map(|_| take()).collect();
            let place = |(buffer, key)| Place { buffer, key, count: 0, call: None };
            self.places = (0..CALLS_MAX).map(|_| place(take())).collect();
        }
        for number in 0..CALLS_MAX {
            self.receive(queue_pair, number, name)
                .map_err(|error| system(&device.name, "it takes no RECV", &error))?;
        }
        Ok(())
    }

    /// Sets the number of calls that the server takes at a time.
    pub fn set_limit(&mut self, limit: u32) {
        self.limit = limit.min(CALLS_MAX);
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    fn receive(&self, queue_pair: &QueuePair, number: u32, name: Name) -> io::Result<()> {
        let (buffer, key) = &self.receives[number as usize];
        // SAFETY: the buffers live as long as the link, which destroys its queue pair first.
        unsafe { queue_pair.post_receive(name.of_receive(number), buffer, *key) }
    }

    /// Adds a call, which waits for a place until its deadline.
    pub fn wait(&mut self, job: u32, deadline: Nanos) {
        self.waiting.push_back((job, deadline));
    }

    /// Whether any call is waiting or in flight.
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty() || self.is_under_way()
    }

    /// Whether any call has a place.
    pub fn is_under_way(&self) -> bool {
        self.places.iter().any(|place| place.call.is_some())
    }

    /// Whether the server may still execute a call.
    pub fn may_change(&self) -> bool {
        let mut calls = self.places.iter().filter_map(|place| place.call.as_ref());
        calls.any(|call| call.is_posted && !call.is_over)
    }

    /// Whether a deadline has passed.
    pub fn is_late(&self, now: Nanos) -> bool {
        let calls = self.places.iter().filter_map(|place| place.call.as_ref());
        calls
            .map(|call| call.deadline)
            .chain(self.waiting.iter().map(|waiting| waiting.1))
            .any(|it| it <= now)
    }

    /// Gives a free place to the call that has waited longest; returns the place, whose message must be sent,
    /// and the deadline.
    pub fn begin(&mut self, jobs: &Jobs) -> Option<(u32, Nanos)> {
        if self.waiting.is_empty() {
            return None;
        }
        let places = &mut self.places[..self.limit as usize];
        let number = places.iter().position(|place| place.call.is_none())?;
        let (job, deadline) = self.waiting.pop_front()?;
        let place = &mut places[number];
        place.count = place.count.wrapping_add(1);
        place.call = Some(UnderWay { job, deadline, ..UnderWay::default() });
        let id = place.id(number as u32);
        let (kind, body) = match jobs.waiting(job) {
            Some(Job::Call { kind, body }) => (*kind, &body[..]),
            _ => unreachable!("a call waits for it"),
        };
        Message::Call { id, kind, body }.encode(&mut self.message);
        place.fill(&self.message);
        Some((number as u32, deadline))
    }

    /// Message of a place, and the device's key for its memory.
    pub fn message(&self, number: u32) -> (&PageBuf, u32) {
        let place = &self.places[number as usize];
        (&place.buffer, place.key)
    }

    /// Records that the device took the message of a place.
    pub fn note_posted(&mut self, number: u32) {
        if let Some(call) = &mut self.places[number as usize].call {
            call.is_posted = true;
        }
    }

    /// Records that the message of a place was sent; returns whether it has another one to send.
    pub fn note_sent(&mut self, number: u32) -> bool {
        let place = &mut self.places[number as usize];
        let Some(call) = &mut place.call else { return false };
        call.is_sent = true;
        if call.is_over {
            place.call = None;
            return false;
        }
        let is_wanted = std::mem::take(&mut call.is_next_wanted);
        if is_wanted {
            self.ask(number);
        }
        is_wanted
    }

    /// Puts the request for the next part into the buffer of a place.
    fn ask(&mut self, number: u32) {
        let place = &mut self.places[number as usize];
        Message::Next { id: place.id(number) }.encode(&mut self.message);
        place.fill(&self.message);
        if let Some(call) = &mut place.call {
            call.is_sent = false;
        }
    }

    /// Handles a received message of `len` bytes in buffer `number`.
    ///
    /// # Errors
    /// The reason why the queue pair must be given up.
    pub fn take(
        &mut self,
        queue_pair: &QueuePair,
        number: u32,
        len: usize,
        name: Name,
    ) -> std::result::Result<Came, String> {
        let mut message = std::mem::take(&mut self.message);
        message.clear();
        let (buffer, _) = self.receives.get(number as usize).ok_or("a message came nowhere")?;
        buffer.append_bytes_to(len.min(MESSAGE_MAX), &mut message);
        self.receive(queue_pair, number, name)
            .map_err(|error| format!("its device takes no RECV: {error}"))?;
        let came = match Message::decode(&message) {
            Some(Message::Part { id, bytes, is_last }) => self.add(id, bytes, is_last),
            _ => None,
        };
        self.message = message;
        match came {
            Some(Came::Ask(place, deadline)) => {
                self.ask(place);
                Ok(Came::Ask(place, deadline))
            }
            Some(came) => Ok(came),
            None => Err("a reply makes no sense".to_owned()),
        }
    }

    /// Adds a part to the reply of call `id`; `None` if it is not valid.
    fn add(&mut self, id: u32, bytes: &[u8], is_last: bool) -> Option<Came> {
        let number = id % CALLS_MAX;
        let place = &mut self.places[number as usize];
        if place.id(number) != id {
            return None;
        }
        let call =
            place.call.as_mut().filter(|call| call.is_posted && !call.is_over && !call.is_next_wanted)?;
        if call.parts.add(bytes, is_last, self.reply_max)? {
            if call.is_sent {
                return Some(Came::Ask(number, call.deadline));
            }
            call.is_next_wanted = true;
            return Some(Came::Nothing);
        }
        // On an invalid reply the call stays in flight: it ends with the queue pair.
        let body_max = (self.reply_max - REPLY_HEADER) as u32;
        let decoded = match decode_reply(&call.parts.reply, self.server, Op::Call, body_max) {
            Ok(Some((decoded, used))) if used == call.parts.reply.len() => decoded.map(<[u8]>::to_vec),
            _ => return None,
        };
        let job = call.job;
        call.is_over = true;
        if call.is_sent {
            place.call = None;
        }
        Some(Came::End(job, decoded))
    }

    /// Takes all calls after the queue pair was destroyed: their jobs, and whether they may have been
    /// executed.
    pub fn take_all(&mut self) -> Vec<(u32, bool)> {
        let calls = self.places.iter_mut().filter_map(|place| place.call.take());
        let mut all: Vec<_> =
            calls.filter(|call| !call.is_over).map(|call| (call.job, call.is_posted)).collect();
        all.extend(self.waiting.drain(..).map(|(job, _)| (job, false)));
        all
    }
}

impl Place {
    /// Id of the place's call.
    fn id(&self, number: u32) -> u32 {
        self.count.wrapping_mul(CALLS_MAX).wrapping_add(number)
    }

    fn fill(&mut self, message: &[u8]) {
        self.buffer.copy_from_bytes(message);
        self.buffer.set_window(0..message.len());
    }
}
