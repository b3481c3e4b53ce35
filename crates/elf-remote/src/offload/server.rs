//! The memory server's half: searches an image in its own memory.
//!
//! It runs the search that a reader without a cache would run, on pieces in its own region, each of which it
//! verifies. So nothing that is written there meanwhile makes an answer wrong, and a call that is out of date is
//! refused. A call may look at a bounded number of bytes, since others wait for the core.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use pando_elf::{Count, Filter, Ids, Kernel};
use pando_fabric::{FabricError, RequestHandler, Result, ServerMemory, Work};

use super::wire::{Called, put_answer};
use super::{Found, Want};
use crate::error::{Attempt, Retry};
use crate::fetch::{Access, Cost, Fetch, Read};
use crate::image::Image;
use crate::options::ReadOptions;
use crate::receiver::{Receiver, Rows};

/// Searches images that compute servers offload to a memory server. It knows no index: a call says where the image
/// is.
#[derive(Clone, Copy, Debug)]
pub struct MemorySide {
    /// Most bytes that a call may look at; one that would need more is refused. Default: 32 MiB.
    pub bytes_max: usize,
    /// Most bytes of an answer. Default: 3 MiB.
    pub answer_max: usize,
}

impl Default for MemorySide {
    fn default() -> Self {
        Self { bytes_max: 32 << 20, answer_max: 3 << 20 }
    }
}

impl MemorySide {
    /// Number of these calls, by which a fabric finds their handler.
    pub const OP: u16 = super::wire::OP;

    /// The answer to a call; none if it is refused.
    async fn search(&self, memory: &ServerMemory<'_>, call: Called) -> Attempt<Found> {
        let want = call.want();
        let mut local = Local { memory, left: self.bytes_max };
        let (mut cost, options) = (Cost::default(), options());
        let image = Image::open(&mut local, call.manifest.clone(), &options, &mut cost).await?;
        let levels: Vec<usize> = (0..image.order.len()).collect();
        let filter = Filter::new(&call.predicate, &levels)?;
        let Some(begun) = image.begin(&filter, matches!(want, Want::Rows(_)))? else {
            let codes =
                if let Want::Rows(levels) = want { vec![Vec::new(); levels.len()] } else { Vec::new() };
            return Ok(Found { codes, ..Found::default() });
        };
        let mut found = Found::default();
        let mut fetch = Fetch::new(&mut local, &image.manifest, &options, &mut cost);
        match want {
            Want::Count => {
                let mut out = Receiver::<Count>::new(None);
                image.finish(&mut fetch, &filter, begun, &mut out).await?;
                found.count = out.found;
            }
            Want::Ids => {
                let mut ids = Ids::checked(&mut found.ids, image.manifest.id_bound, Kernel::detect())?;
                image.finish(&mut fetch, &filter, begun, &mut Receiver::new(Some(&mut ids))).await?;
            }
            Want::Rows(levels) => {
                if levels.iter().any(|&level| level >= image.order.len()) {
                    return Err(Retry::Moved);
                }
                let mut rows = Rows::of_levels(levels.to_vec());
                image.finish(&mut fetch, &filter, begun, &mut Receiver::<Count>::of_rows(&mut rows)).await?;
                if rows.ids.len().saturating_mul(4 + levels.len()) > self.answer_max {
                    return Err(Retry::Moved);
                }
                let rows = image.codes(&mut fetch, rows).await?;
                (found.ids, found.codes) = (rows.ids, rows.codes);
            }
        }
        if want != Want::Count {
            found.count = found.ids.len() as u64;
            memory.charge(Work::Entries { count: found.ids.len() });
        }
        (found.rows_compared, found.rows_taken) = (cost.rows_compared, cost.rows_taken);
        Ok(found)
    }
}

/// Nothing is cached, and nothing is READ in vain.
fn options() -> ReadOptions {
    ReadOptions { cache_bytes: 0, gap_bytes: 0, round_trip_bytes: 0, ..ReadOptions::default() }
}

impl RequestHandler for MemorySide {
    fn handle(&self, memory: &ServerMemory<'_>, op: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let refused =
            |reason: &str| FabricError::Refused { server: memory.server(), op, reason: reason.to_owned() };
        let call = Called::decode(op, body).ok_or_else(|| refused("it knows no such request"))?;
        let search = pin!(self.search(memory, call));
        let found = match search.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(found) => found.ok(),
            Poll::Pending => return Err(refused("its own memory made it wait")),
        };
        let start = reply.len();
        put_answer(found.as_ref(), reply);
        if reply.len() - start > self.answer_max {
            reply.truncate(start);
            put_answer(None, reply);
        }
        Ok(())
    }
}

/// The region of the memory server.
struct Local<'m> {
    memory: &'m ServerMemory<'m>,
    /// Bytes that may still be looked at.
    left: usize,
}

impl Access for &mut Local<'_> {
    async fn read(&mut self, reads: &[Read], _: &mut Cost) -> Attempt<Vec<Vec<u8>>> {
        let bytes_of = |read: &Read| {
            self.left = self.left.checked_sub(read.bytes).ok_or(Retry::Moved)?;
            let words = self.memory.words(read.at, read.bytes)?;
            let mut bytes = Vec::with_capacity(read.bytes);
            words.iter().for_each(|word| bytes.extend_from_slice(&word.load(Relaxed).to_le_bytes()));
            Ok(bytes)
        };
        reads.iter().map(bytes_of).collect()
    }

    fn charge(&self, work: Work) {
        self.memory.charge(work);
    }
}
