//! Batches of operations, all of which are in flight before the first answer is awaited.
//!
//! A [`Session`] and a [`crate::remote::RemoteSession`] have the same batches, but store and run them
//! differently. A session runs a batch in slots of the calling thread. All operations on one key are executed
//! in one slot, which preserves their order; the keys are assigned to the slots in turn.

use std::collections::HashMap;
use std::ops::Range as Span;

use pando_dex::Swapped;

use super::{AsyncSession, Session};
use crate::error::{Error, Result};

/// Operations in flight at once.
const SLOTS: usize = 16;

/// Answer to an operation of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// `get`: the value; `None` if the key is absent.
    Value(Option<Vec<u8>>),
    /// `put` and `remove`: whether the key was present; `insert` and `update`: whether something changed.
    Was(bool),
    /// `compare_and_swap`.
    Swapped(Swapped),
}

/// An operation, as it is added to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    Get { key: &'a [u8] },
    Put { key: &'a [u8], value: &'a [u8] },
    Insert { key: &'a [u8], value: &'a [u8] },
    Update { key: &'a [u8], value: &'a [u8] },
    Remove { key: &'a [u8] },
    CompareAndSwap { key: &'a [u8], expected: Option<&'a [u8]>, new: Option<&'a [u8]> },
}

/// A session that can run a [`Batch`].
pub trait Batched {
    /// Operations that have not run yet.
    type Pending: Default;

    #[doc(hidden)]
    fn add(pending: &mut Self::Pending, operation: Operation<'_>);

    #[doc(hidden)]
    fn pending_len(pending: &Self::Pending) -> usize;

    /// Runs all operations of `pending` and empties it. The answers are in the order of the operations.
    #[doc(hidden)]
    fn run_batch(&self, pending: &mut Self::Pending) -> Vec<Result<Answer>>;
}

/// Operations that [`Batch::run`] executes together. Reusing a batch saves allocations.
///
/// Operations on one key are executed in their order, those on different keys in any order. A batch is no
/// transaction: each operation succeeds or fails by itself.
///
/// ```
/// use pando::{Answer, Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let session = cluster.create_index("birds", &IndexOptions::bytes())?.session()?;
/// let mut batch = session.batch();
/// batch.put(b"owl", b"night").get(b"owl").insert(b"owl", b"day").get(b"wren");
/// let answers = batch.run().into_iter().collect::<pando::Result<Vec<_>>>()?;
/// assert_eq!(answers[0], Answer::Was(false));
/// assert_eq!(answers[1], Answer::Value(Some(b"night".to_vec())));
/// assert_eq!(answers[2], Answer::Was(false));
/// assert_eq!(answers[3], Answer::Value(None));
/// # Ok::<(), pando::Error>(())
/// ```
pub struct Batch<'s, S: Batched = Session> {
    session: &'s S,
    pending: S::Pending,
}

impl<'s, S: Batched> Batch<'s, S> {
    pub(crate) fn new(session: &'s S) -> Self {
        Self { session, pending: S::Pending::default() }
    }

    fn add(&mut self, operation: Operation<'_>) -> &mut Self {
        S::add(&mut self.pending, operation);
        self
    }

    /// See [`Session::get`].
    pub fn get(&mut self, key: &[u8]) -> &mut Self {
        self.add(Operation::Get { key })
    }

    /// See [`Session::put`].
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(Operation::Put { key, value })
    }

    /// See [`Session::insert`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(Operation::Insert { key, value })
    }

    /// See [`Session::update`].
    pub fn update(&mut self, key: &[u8], value: &[u8]) -> &mut Self {
        self.add(Operation::Update { key, value })
    }

    /// See [`Session::remove`].
    pub fn remove(&mut self, key: &[u8]) -> &mut Self {
        self.add(Operation::Remove { key })
    }

    /// See [`Session::compare_and_swap`].
    pub fn compare_and_swap(&mut self, key: &[u8], expected: Option<&[u8]>, new: Option<&[u8]>) -> &mut Self {
        self.add(Operation::CompareAndSwap { key, expected, new })
    }

    /// Operations added since the last run.
    pub fn len(&self) -> usize {
        S::pending_len(&self.pending)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs all operations and waits for their answers, which are in the order of the operations. Then the
    /// batch is empty.
    pub fn run(&mut self) -> Vec<Result<Answer>> {
        self.session.run_batch(&mut self.pending)
    }
}

impl<S: Batched> std::fmt::Debug for Batch<'_, S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// Operations of a batch, with their keys and values in one buffer.
#[derive(Debug, Default)]
pub struct Pending {
    bytes: Vec<u8>,
    kept: Vec<Kept>,
}

#[derive(Clone, Debug)]
struct Kept {
    kind: Kind,
    key: Span<usize>,
    /// The value, or the expected value of a compare-and-swap.
    first: Option<Span<usize>>,
    new: Option<Span<usize>>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    Put,
    Insert,
    Update,
    Remove,
    CompareAndSwap,
}

impl Pending {
    fn push(&mut self, bytes: &[u8]) -> Span<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn keep(&mut self, operation: Operation<'_>) {
        let (kind, key, first, new) = match operation {
            Operation::Get { key } => (Kind::Get, key, None, None),
            Operation::Put { key, value } => (Kind::Put, key, Some(value), None),
            Operation::Insert { key, value } => (Kind::Insert, key, Some(value), None),
            Operation::Update { key, value } => (Kind::Update, key, Some(value), None),
            Operation::Remove { key } => (Kind::Remove, key, None, None),
            Operation::CompareAndSwap { key, expected, new } => (Kind::CompareAndSwap, key, expected, new),
        };
        let key = self.push(key);
        let [first, new] = [first, new].map(|bytes| bytes.map(|bytes| self.push(bytes)));
        self.kept.push(Kept { kind, key, first, new });
    }

    fn key(&self, place: usize) -> &[u8] {
        &self.bytes[self.kept[place].key.clone()]
    }

    /// Operations of each slot, in their order.
    fn dealt(&self) -> Vec<Vec<usize>> {
        let mut slots: Vec<Vec<usize>> = vec![Vec::new(); SLOTS.min(self.kept.len())];
        let mut slot_of: HashMap<&[u8], usize> = HashMap::with_capacity(self.kept.len());
        for place in 0..self.kept.len() {
            let next = slot_of.len() % slots.len();
            let slot = *slot_of.entry(self.key(place)).or_insert(next);
            slots[slot].push(place);
        }
        // There may be more slots than different keys.
        slots.retain(|places| !places.is_empty());
        slots
    }

    async fn perform(&self, place: usize, session: AsyncSession<'_>) -> Result<Answer> {
        let Kept { kind, first, new, .. } = &self.kept[place];
        let key = self.key(place);
        let [first, new] = [first, new].map(|bytes| bytes.as_ref().map(|bytes| &self.bytes[bytes.clone()]));
        let value = first.unwrap_or_default();
        Ok(match kind {
            Kind::Get => Answer::Value(session.get(key).await?),
            Kind::Put => Answer::Was(session.put(key, value).await?),
            Kind::Insert => Answer::Was(session.insert(key, value).await?),
            Kind::Update => Answer::Was(session.update(key, value).await?),
            Kind::Remove => Answer::Was(session.remove(key).await?),
            Kind::CompareAndSwap => Answer::Swapped(session.compare_and_swap(key, first, new).await?),
        })
    }
}

impl Batched for Session {
    type Pending = Pending;

    fn add(pending: &mut Pending, operation: Operation<'_>) {
        pending.keep(operation);
    }

    fn pending_len(pending: &Pending) -> usize {
        pending.kept.len()
    }

    fn run_batch(&self, pending: &mut Pending) -> Vec<Result<Answer>> {
        let mut answers: Vec<Option<Result<Answer>>> = Vec::new();
        answers.resize_with(pending.kept.len(), || None);
        if !answers.is_empty() {
            let (dealt, batch) = (pending.dealt(), &*pending);
            let performed = self.in_flight(dealt.len(), |slot, session| {
                let places = &dealt[slot as usize];
                async move {
                    let mut done = Vec::with_capacity(places.len());
                    for &place in places {
                        done.push((place, batch.perform(place, session).await));
                    }
                    done
                }
            });
            match performed {
                Ok(performed) => {
                    performed.into_iter().flatten().for_each(|(place, done)| answers[place] = Some(done));
                }
                // `in_flight` fails only inside a slot, since the number of slots is valid.
                Err(_) => answers.fill_with(|| Some(Err(Error::InsideSlot))),
            }
        }
        pending.bytes.clear();
        pending.kept.clear();
        answers.into_iter().map(|answer| answer.expect("each operation is in one slot")).collect()
    }
}
