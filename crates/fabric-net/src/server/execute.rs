//! Execution of one request on the region.
//!
//! A refused request has no effect; neither has any verb of a refused chain. The client gets the same error
//! as an endpoint in the server's process.

use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};

use pando_fabric::codec::Put;
use pando_fabric::{FabricError, MemoryServerId, Result};

use super::Memory;
use super::counters::Batch;
use super::filling::Filling;
use crate::wire::{ReplyEncoder, Request, Verbs};

/// Executes `request` of a client that knows this memory server as `number`, and appends the reply to `out`.
pub(super) fn execute(
    memory: &Memory,
    number: MemoryServerId,
    request: Request<'_>,
    fillings: &[Arc<Filling>],
    batch: &mut Batch,
    out: &mut Vec<u8>,
) {
    let reply = ReplyEncoder::begin(out, request.op());
    match attempt(memory, number, request, fillings, batch, out) {
        Ok(()) => reply.finish(out),
        Err(error) => reply.fail(out, &error),
    }
}

fn attempt(
    memory: &Memory,
    number: MemoryServerId,
    request: Request<'_>,
    fillings: &[Arc<Filling>],
    batch: &mut Batch,
    out: &mut Vec<u8>,
) -> Result<()> {
    if memory.other_way.is_some() && request.op().is_one_sided() {
        // Atomics of a processor and of a device on the same word need not be atomic to each other.
        let reason = "its memory is reached by RDMA only; name its address as verbs://".to_owned();
        return Err(FabricError::Refused { server: number, op: request.op() as u16, reason });
    }
    match request {
        Request::Chain(verbs) => {
            check(memory, verbs)?;
            let mut changed = false;
            for verb in verbs {
                // As in a local endpoint: a READ must not overtake a change.
                if matches!(verb, Request::Read { .. }) {
                    if changed {
                        fence(SeqCst);
                    }
                } else {
                    changed = true;
                }
                execute_held(memory, verb, fillings, batch, out)?;
            }
            Ok(())
        }
        Request::Call { kind, body } => {
            batch.calls += 1;
            memory.callee.call(number, kind, body, out)
        }
        Request::Reserve { offset, len } => memory.region.reserve(offset, len),
        Request::Persist { offset, len } => memory.region.persist(offset, len),
        Request::Ping => Ok(()),
        Request::Fence { .. }
        | Request::Lock
        | Request::Present { .. }
        | Request::Pair { .. }
        | Request::Group { .. } => {
            unreachable!("the connection does that itself")
        }
        verb => execute_held(memory, verb, fillings, batch, out),
    }
}

/// Checks that all verbs of a chain can be executed.
fn check(memory: &Memory, verbs: Verbs<'_>) -> Result<()> {
    for verb in verbs {
        match verb {
            Request::Read { offset, len } => memory.region.check_read(offset, len as usize)?,
            Request::Write { offset, bytes } => memory.region.check_change(offset, bytes.len())?,
            Request::CompareSwap { offset, .. } | Request::FetchAdd { offset, .. } => {
                memory.region.check_change(offset, 8)?;
            }
            other => unreachable!("{:?} cannot be chained", other.op()),
        }
    }
    Ok(())
}

/// Executes a verb; if it changes a copy that is being filled, its words are not filled any more.
fn execute_held(
    memory: &Memory,
    verb: Request<'_>,
    fillings: &[Arc<Filling>],
    batch: &mut Batch,
    out: &mut Vec<u8>,
) -> Result<()> {
    let (offset, len) = match verb {
        _ if fillings.is_empty() => return execute_verb(memory, verb, batch, out),
        Request::Write { offset, bytes } => (offset, bytes.len()),
        Request::CompareSwap { offset, .. }
        | Request::MaskedCompareSwap { offset, .. }
        | Request::FetchAdd { offset, .. } => (offset, 8),
        _ => return execute_verb(memory, verb, batch, out),
    };
    let Some(mut held) = fillings.iter().find_map(|filling| filling.hold(offset)) else {
        return execute_verb(memory, verb, batch, out);
    };
    let answer = out.len();
    execute_verb(memory, verb, batch, out)?;
    // A swap that fails changes nothing.
    let has_changed = match verb {
        Request::CompareSwap { expected, .. } => out[answer..] == expected.to_le_bytes(),
        Request::MaskedCompareSwap { expected, compare_mask, .. } => {
            let before = out[answer..].try_into().map_or(0, u64::from_le_bytes);
            before & compare_mask == expected & compare_mask
        }
        _ => true,
    };
    if has_changed {
        held.note(offset, len);
    }
    Ok(())
}

/// Executes a single verb or a verb of a chain.
fn execute_verb(memory: &Memory, verb: Request<'_>, batch: &mut Batch, out: &mut Vec<u8>) -> Result<()> {
    let region = &memory.region;
    let before = match verb {
        Request::Read { offset, len } => {
            batch.reads += 1;
            return region.read(offset, len as usize, out);
        }
        Request::Write { offset, bytes } => {
            batch.writes += 1;
            return region.write(offset, bytes);
        }
        Request::CompareSwap { offset, expected, new } => region.compare_swap(offset, expected, new)?,
        Request::MaskedCompareSwap { offset, expected, compare_mask, new, swap_mask } => {
            region.masked_compare_swap(offset, expected, compare_mask, new, swap_mask)?
        }
        Request::FetchAdd { offset, add } => region.fetch_add(offset, add)?,
        other => unreachable!("{:?} is no verb", other.op()),
    };
    batch.atomics += 1;
    out.put_u64(before);
    Ok(())
}
