//! Many operations at once: all of them are on their way before the first answer is waited for.
//!
//! Operations of a batch on one key are executed in their order, those on different keys in any. Each ends by itself: one
//! that fails says nothing of the others.

use pando_dex::Swapped;

use super::session::{Asked, RemoteSession, ask, swapped, value};
use super::wire::{Reply, Request};
use crate::error::{Error, Result};

/// What an operation of a [`Batch`] answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `get`: the value, if there is one.
    Value(Option<Vec<u8>>),
    /// `put` and `remove`: whether the key was present; `insert` and `update`: whether something changed.
    Was(bool),
    Swapped(Swapped),
}

/// Operations that are sent together by [`Batch::run`]. Kept for reuse, it allocates little.
pub struct Batch<'s> {
    session: &'s RemoteSession,
    bytes: Vec<u8>,
    /// Those that cannot be asked at all have their error here.
    asked: Vec<Result<Asked>>,
}

impl<'s> Batch<'s> {
    pub(super) fn new(session: &'s RemoteSession) -> Self {
        Self { session, bytes: Vec::new(), asked: Vec::new() }
    }

    fn add(&mut self, key: &[u8], request: Request<'_>) -> &mut Self {
        let asked = ask(&mut self.bytes, key, request);
        self.asked.push(asked);
        self
    }

    /// See [`RemoteSession::get`].
    pub fn get(&mut self, key: &[u8]) -> &mut Self {
        self.add(key, Request::Get { key })
    }

    /// See [`RemoteSession::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(key, Request::Put { key, value })
    }

    /// See [`RemoteSession::insert`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(key, Request::Insert { key, value })
    }

    /// See [`RemoteSession::update`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(key, Request::Update { key, value })
    }

    /// See [`RemoteSession::remove`].
    pub fn remove(&mut self, key: &[u8]) -> &mut Self {
        self.add(key, Request::Remove { key })
    }

    /// See [`RemoteSession::compare_and_swap`].
    pub fn compare_and_swap(&mut self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> &mut Self {
        self.add(key, Request::CompareAndSwap { key, expected, new })
    }

    pub fn len(&self) -> usize {
        self.asked.len()
    }

    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    /// Sends all operations and waits for their answers, which are in the order of the operations. The batch is empty then.
    pub fn run(&mut self) -> Vec<Result<Answer>> {
        let mut answers: Vec<Option<Result<Answer>>> = Vec::with_capacity(self.asked.len());
        let (mut good, mut places) = (Vec::new(), Vec::new());
        for (place, asked) in self.asked.drain(..).enumerate() {
            answers.push(match asked {
                Ok(asked) => {
                    good.push(asked);
                    places.push(place);
                    None
                }
                Err(error) => Some(Err(error)),
            });
        }
        self.session.inner().run_keyed(&good, &self.bytes, &mut |i, reply| {
            answers[places[i]] = Some(reply.map(|reply| answer(&reply)).map_err(Error::from));
        });
        self.bytes.clear();
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
