//! The requests of one connection to a memory server, executed in order.
//!
//! A batch is executed inside its client's gate, so that a fence waits for the end of the batch. Requests
//! that do not access memory are answered here: fences, the lock, and the presence of processes.

use std::io;
use std::sync::Arc;

use pando_fabric::codec::Put;
use pando_fabric::{FabricError, MemoryServerId};

use super::calls::Calls;
use super::counters::Batch;
use super::execute::execute;
use super::member::Allowed;
use super::{Memory, Progress};
use crate::group::{ServerCondition, kind};
use crate::handshake::LinkId;
use crate::serve::{Client, Connection, Core, End, Locked, OUTPUT_MAX, Pass};
use crate::wire::{Op, ReplyEncoder, Request, decode_request, request_len};

/// Bytes written to a device before other clients have their turn.
const PERSIST: u64 = 4 << 20;

/// Reason for executing no more requests now.
enum Pause {
    /// No complete request is left, or too many replies are waiting.
    Nothing { wants_more: bool },
    /// Other connections have their turn.
    Turn,
    /// Another thread must finish first.
    Other,
}

impl Pause {
    /// Prepares a connection for what comes next. Returns whether more requests may follow once its replies are sent.
    fn after(self, connection: &mut Connection<Progress>) -> bool {
        let wants_more = matches!(self, Self::Nothing { wants_more: true });
        let needed = request_len(connection.input()).filter(|_| wants_more);
        connection.make_room(needed.unwrap_or(0));
        match self {
            Self::Nothing { .. } => return connection.has_output(),
            Self::Turn => connection.call_again(),
            Self::Other => connection.park(),
        }
        false
    }
}

/// The connection whose turn it is.
struct Turn<'t> {
    core: &'t Core,
    client: &'t Client,
    allowed: &'t mut Allowed,
    progress: &'t mut Progress,
    pass: &'t mut Pass,
    output: &'t mut Vec<u8>,
}

impl Memory {
    /// Executes the complete requests and sends the replies.
    pub(super) fn serve(&self, core: &Core, connection: &mut Connection<Progress>) -> Result<(), End> {
        // Each iteration executes at least one request or ends.
        loop {
            let goes_on = self.take_requests(core, connection)?;
            connection.send(core)?;
            if !goes_on || connection.is_blocked() {
                return Ok(());
            }
        }
    }

    /// Executes requests until none is complete or enough replies are waiting. Returns whether more may
    /// follow once these are sent.
    fn take_requests(&self, core: &Core, connection: &mut Connection<Progress>) -> Result<bool, End> {
        let (client, progress, input, output) = connection.parts();
        let number = MemoryServerId(client.number);
        let mut pass = self.pass(client)?;
        let (mut batch, mut taken) = (Batch::default(), 0);
        let mut allowed = self.member.allowed();
        if self.member.became_home() {
            core.clients.assume_presence();
        }
        let pause = loop {
            if output.len() > OUTPUT_MAX {
                break Ok(Pause::Nothing { wants_more: false });
            }
            let (request, used) = match decode_request(&input[taken..], self.body_max) {
                Ok(Some(request)) => request,
                Ok(None) => break Ok(Pause::Nothing { wants_more: true }),
                Err(malformed) => break Err(End::Malformed(malformed.to_string())),
            };
            match request {
                Request::Fence { link, .. }
                    if link == 0 && allowed.check_fence(progress.entered, number).is_err() =>
                {
                    let refused = allowed.check_fence(progress.entered, number);
                    reply(output, Op::Fence, refused.as_ref().map(|()| &[][..]));
                }
                Request::Fence { process, link } => {
                    // The fence may be for this very connection.
                    drop(pass);
                    let kept = core.clients.fence(process, link);
                    let is_quiet = core.clients.is_quiet(process, link);
                    if is_quiet {
                        answer(output, number, Op::Fence, kept.map(|()| None));
                        taken += used;
                    }
                    pass = client.gate.pass().ok_or(End::Fenced)?;
                    if !is_quiet {
                        break Ok(Pause::Other);
                    }
                    continue;
                }
                request if !request.is_of_memory() => {
                    let allowed = &mut allowed;
                    let turn = Turn { core, client, allowed, progress, pass: &mut pass, output };
                    self.control(request, turn)?;
                }
                request => match allowed.check(progress.entered, number, &request) {
                    Err(error) => reply(output, request.op(), Err(&error)),
                    Ok(()) => match request {
                        Request::Persist { offset, len } if len > PERSIST => {
                            if self.persist_some(offset, len, &mut progress.persisted, output) {
                                taken += used;
                            }
                            break Ok(Pause::Turn);
                        }
                        request => execute(self, number, request, allowed.fillings(), &mut batch, output),
                    },
                },
            }
            taken += used;
        };
        drop(pass);
        if !self.member.was_allowed(&allowed) {
            // Another server may have served these bytes meanwhile.
            return Err(End::Fenced);
        }
        self.callee.counters.add(batch);
        connection.take(taken);
        Ok(pause?.after(connection))
    }

    /// Enters the gate of a client that was not given up for dead.
    fn pass(&self, client: &Client) -> Result<Pass, End> {
        match self.member.is_fenced(client.id.process) {
            true => Err(End::Fenced),
            false => client.gate.pass().ok_or(End::Fenced),
        }
    }

    /// Answers a request that does not access memory, other than a fence.
    fn control(&self, request: Request<'_>, turn: Turn<'_>) -> Result<(), End> {
        let Turn { core, client, allowed, progress, pass, output } = turn;
        let number = MemoryServerId(client.number);
        match request {
            Request::Lock | Request::Present { .. } if allowed.check_home(number).is_err() => {
                let refused = allowed.check_home(number);
                reply(output, request.op(), refused.as_ref().map(|()| &[][..]));
            }
            Request::Lock => {
                let locked = core.clients.lock(client).map(|locked| match locked {
                    Locked::No => 0,
                    Locked::Yes => 1,
                    Locked::InsteadOf(process) => process.max(1),
                });
                answer(output, number, Op::Lock, locked.map(Some));
            }
            Request::Present { process } => {
                answer(output, number, Op::Present, Ok(Some(core.clients.lease_ms(process))));
            }
            Request::Pair { body } => {
                if let Some(other_way) = self.pair(number, client.id, body, output) {
                    pass.keep(other_way);
                }
            }
            Request::Group { kind: kind::FENCES, .. } => {
                let mut fenced = core.clients.fenced();
                self.member.add_fenced(&mut fenced);
                let bytes: Vec<u8> = fenced.iter().flat_map(|process| process.to_le_bytes()).collect();
                reply(output, Op::Group, Ok(&bytes));
            }
            Request::Group { kind: kind::CONDITION, .. } => {
                let condition =
                    ServerCondition { processes: core.clients.heard(), member: self.member.condition() };
                reply(output, Op::Group, Ok(&condition.encode()));
            }
            Request::Group { kind, body } => {
                if !self.member.was_allowed(allowed) {
                    return Err(End::Fenced);
                }
                let answered = self.member.answer(number, kind, body, &mut progress.entered);
                reply(output, Op::Group, answered.as_deref());
                *allowed = self.member.allowed();
            }
            other => unreachable!("{:?} is executed on the memory", other.op()),
        }
        Ok(())
    }

    /// Continues a long PERSIST after its first `done` bytes. Returns whether it was answered.
    fn persist_some(&self, offset: u64, len: u64, done: &mut u64, out: &mut Vec<u8>) -> bool {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= self.region.bytes());
        // A range that leaves the region is refused as a whole.
        let more = if is_inside { PERSIST.min(len - *done) } else { len };
        let persisted = self.region.persist(offset + *done, more);
        *done += more;
        if persisted.is_ok() && *done < len {
            return false;
        }
        *done = 0;
        let reply = ReplyEncoder::begin(out, Op::Persist);
        match persisted {
            Ok(()) => reply.finish(out),
            Err(error) => reply.fail(out, &error),
        }
        true
    }

    /// Offers a client another way to the memory. The answer is the number of its connection and the data of
    /// the other way.
    fn pair(
        &self,
        number: MemoryServerId,
        id: LinkId,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Box<dyn Send>> {
        let reply = ReplyEncoder::begin(out, Op::Pair);
        out.put_u64(id.link);
        let paired = match &self.other_way {
            Some(other_way) => {
                let calls = Calls::new(number, Arc::clone(&self.callee));
                other_way.pair(body, calls, out)
            }
            None => Err("it does not offer RDMA; name its address as tcp://".to_owned()),
        };
        match paired {
            Ok(paired) => {
                reply.finish(out);
                Some(paired)
            }
            Err(reason) => {
                reply.fail(out, &FabricError::Refused { server: number, op: Op::Pair as u16, reason });
                None
            }
        }
    }
}

/// Answers a request by bytes, or by an error.
fn reply(out: &mut Vec<u8>, op: Op, answered: Result<&[u8], &FabricError>) {
    let reply = ReplyEncoder::begin(out, op);
    match answered {
        Ok(bytes) => {
            out.extend_from_slice(bytes);
            reply.finish(out);
        }
        Err(error) => reply.fail(out, error),
    }
}

/// Answers a request that does not access memory.
fn answer(out: &mut Vec<u8>, server: MemoryServerId, op: Op, answered: io::Result<Option<u64>>) {
    let reply = ReplyEncoder::begin(out, op);
    match answered {
        Ok(word) => {
            word.iter().for_each(|word| out.put_u64(*word));
            reply.finish(out);
        }
        Err(error) => {
            let reason = format!("processes that are given up for dead cannot be kept: {error}");
            reply.fail(out, &FabricError::Refused { server, op: op as u16, reason });
        }
    }
}
