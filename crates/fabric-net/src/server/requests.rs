//! The requests of one connection of a memory server, executed in their order.
//!
//! A batch is executed while the gate of its client is held, so that whoever fences the client off waits for the batch. What
//! is not about memory is answered here: fences, the lock, who is there.

use std::sync::Arc;

use pando_fabric::{FabricError, MemoryServerId};

use super::Memory;
use super::calls::Calls;
use super::counters::Batch;
use super::execute::execute;
use crate::handshake::LinkId;
use crate::serve::{Connection, Core, End, OUTPUT_MAX};
use crate::wire::{Op, REQUEST_HEADER, ReplyEncoder, Request, decode_request};

impl Memory {
    /// Executes what came in whole, and sends the replies.
    pub(super) fn serve(&self, core: &Core, connection: &mut Connection<()>) -> Result<(), End> {
        // Each turn executes at least one request or ends.
        while self.take_requests(core, connection)? {
            connection.send(core)?;
            if connection.is_blocked() {
                break;
            }
        }
        Ok(())
    }

    /// Executes requests until none is whole or enough replies wait; whether there is something to send.
    fn take_requests(&self, core: &Core, connection: &mut Connection<()>) -> Result<bool, End> {
        let (client, (), input, output) = connection.parts();
        let number = MemoryServerId(client.number);
        let mut gate = client.gate.pass().ok_or(End::Fenced)?;
        let mut batch = Batch::default();
        let mut taken = 0;
        let wants_more = loop {
            if output.len() > OUTPUT_MAX {
                break Ok(false);
            }
            match decode_request(&input[taken..], self.body_max) {
                Ok(Some((Request::Fence { process, link }, used))) => {
                    taken += used;
                    // Two that fence each other must not wait for each other.
                    drop(gate);
                    core.clients.fence(process, link);
                    answer(output, Op::Fence, None);
                    gate = client.gate.pass().ok_or(End::Fenced)?;
                }
                Ok(Some((Request::Lock, used))) => {
                    taken += used;
                    answer(output, Op::Lock, Some(core.clients.lock(client)));
                }
                Ok(Some((Request::Present { process }, used))) => {
                    taken += used;
                    answer(output, Op::Present, Some(core.clients.is_present(process)));
                }
                Ok(Some((Request::Pair { body }, used))) => {
                    taken += used;
                    if let Some(other_way) = self.pair(number, client.id, body, output) {
                        gate.keep(other_way);
                    }
                }
                Ok(Some((request, used))) => {
                    execute(self, number, request, &mut batch, output);
                    taken += used;
                }
                Ok(None) => break Ok(true),
                Err(malformed) => break Err(End::Malformed(malformed.to_string())),
            }
        };
        drop(gate);
        self.callee.counters.add(batch);
        connection.take(taken);
        connection.make_room(if wants_more? { REQUEST_HEADER + self.body_max as usize } else { 0 });
        Ok(connection.has_output())
    }

    /// Offers a client another way in, and answers with the number of its connection and what the other way says.
    fn pair(
        &self,
        number: MemoryServerId,
        id: LinkId,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Option<Box<dyn Send>> {
        let reply = ReplyEncoder::begin(out, Op::Pair);
        out.extend_from_slice(&id.link.to_le_bytes());
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

/// Answers what is not about memory.
fn answer(out: &mut Vec<u8>, op: Op, is_so: Option<bool>) {
    let reply = ReplyEncoder::begin(out, op);
    if let Some(is_so) = is_so {
        out.extend_from_slice(&u64::from(is_so).to_le_bytes());
    }
    reply.finish(out);
}
