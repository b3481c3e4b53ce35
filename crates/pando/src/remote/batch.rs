//! Batches of operations for compute servers elsewhere: all of them are sent before the first answer is
//! awaited.
//!
//! [`crate::Batch`] describes batches and their guarantees. A remote batch stores its operations as encoded
//! requests.

use crate::error::{Error, Result};
pub use crate::session::Answer;
use crate::session::{self, Batched, Operation};

use super::session::{Asked, RemoteSession, ask, swapped, value};
use super::wire::{Reply, Request};

/// Operations that are sent together.
pub type Batch<'s> = session::Batch<'s, RemoteSession>;

/// Requests that have not been sent.
#[derive(Default)]
pub struct Pending {
    bytes: Vec<u8>,
    /// By operation; the error of one that cannot be sent.
    asked: Vec<Result<Asked>>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("len", &self.asked.len()).finish_non_exhaustive()
    }
}

fn request(operation: Operation<'_>) -> (&[u8], Request<'_>) {
    match operation {
        Operation::Get { key } => (key, Request::Get { key }),
        Operation::Put { key, value } => (key, Request::Put { key, value }),
        Operation::Insert { key, value } => (key, Request::Insert { key, value }),
        Operation::Update { key, value } => (key, Request::Update { key, value }),
        Operation::Remove { key } => (key, Request::Remove { key }),
        Operation::CompareAndSwap { key, expected, new } => {
            (key, Request::CompareAndSwap { key, expected, new })
        }
    }
}

impl Batched for RemoteSession {
    type Pending = Pending;

    fn add(pending: &mut Pending, operation: Operation<'_>) {
        let (key, request) = request(operation);
        let asked = ask(&mut pending.bytes, key, request);
        pending.asked.push(asked);
    }

    fn pending_len(pending: &Pending) -> usize {
        pending.asked.len()
    }

    fn run_batch(&self, pending: &mut Pending) -> Vec<Result<Answer>> {
        let mut answers: Vec<Option<Result<Answer>>> = Vec::with_capacity(pending.asked.len());
        let (mut good, mut places) = (Vec::new(), Vec::new());
        for (place, asked) in pending.asked.drain(..).enumerate() {
            answers.push(match asked {
                Ok(asked) => {
                    good.push(asked);
                    places.push(place);
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        self.inner().run_keyed(&good, &pending.bytes, &mut |i, reply| {
            answers[places[i]] = Some(reply.map(|reply| answer(&reply)).map_err(Error::from));
        });
        pending.bytes.clear();
        answers.into_iter().map(|answer| answer.expect("what is asked is answered or fails")).collect()
    }
}

fn answer(reply: &Reply<'_>) -> Answer {
    match reply {
        Reply::Was(was) => Answer::Was(*was),
        Reply::Swapped(_) => Answer::Swapped(swapped(reply)),
        reply => Answer::Value(value(reply).map(<[u8]>::to_vec)),
    }
}
