//! Operation stream of one worker thread.
//!
//! A stream is a function of the specification, a seed and a [`Lane`] (the thread's number, and the key range
//! of its compute server). Under logical partitioning every compute server draws from the distribution over
//! *all* keys and keeps the draws in its own range. All servers perform equally many operations, so a server
//! without hot keys is not idle, as in the papers' experiments. Repeated draws cost a factor of the number of
//! partitions, at a few tens of nanoseconds each. A lane with [ranks of its own](Lane::with_own_ranks) draws once.

use crate::error::SpecError;
use crate::hot_spot::HotRecords;
use crate::keys::{KeyCodec, KeySpace, NewKeyOrder, OwnedRange, is_loaded, loaded_key, new_key};
use crate::mix::{InsertKeys, Mix, ScanLength};
use crate::rng::{Rng, mix64, reduce};
use crate::sample::Sample;
use crate::scatter::{Scatter, Scatterer};
use crate::zipf::{Distribution, Zipf};

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// Looks the key up.
    Read,
    /// Gives a key that should be present a new value.
    Update,
    /// Inserts the key, or updates it if it is present.
    Insert,
    /// Reads `len` records in ascending order from the key on.
    Scan { len: u32 },
    /// Reads the key, then updates it.
    ReadModifyWrite,
}

/// One operation on one key number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    pub kind: OpKind,
    /// See [`crate::keys`]: even numbers are loaded records, odd ones new keys.
    pub key_number: u64,
}

/// Specification shared by all threads of a run.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadSpec {
    pub mix: Mix,
    pub distribution: Distribution,
    pub scatter: Scatter,
    pub keys: KeyCodec,
    /// Number of records of the data set whose popularity [`Distribution::Zipf`] has, if it is larger than
    /// the number of keys; see [`Sample`].
    pub ranks: Option<u64>,
}

/// One thread's part of a run.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Number of this thread, from 0, among the threads with the same keys.
    pub thread: u64,
    /// Number of threads with the same keys.
    pub threads: u64,
    /// Keys at which operations may start, by their integers.
    pub owned: OwnedRange,
    /// Whether the distribution is one over the keys of the range, instead of over all keys.
    pub own_ranks: bool,
}

impl Lane {
    /// Thread `thread` of `threads`, with operations on all keys.
    pub const fn new(thread: u64, threads: u64) -> Lane {
        Lane { thread, threads, owned: OwnedRange::ALL, own_ranks: false }
    }

    /// The same, restricted to the keys of a range.
    pub const fn owning(self, owned: OwnedRange) -> Lane {
        Lane { owned, ..self }
    }

    /// The same, with a distribution over the keys of its range: each range has its own most popular key, whose
    /// share does not depend on the number of ranges.
    pub const fn with_own_ranks(self) -> Lane {
        Lane { own_ranks: true, ..self }
    }
}

/// Records that a distribution is over: `len` of them, from `first` on.
#[derive(Clone, Copy, Debug)]
struct Universe {
    first: u64,
    len: u64,
    /// Distance by which scattered positions are turned, so that the popular keys of different universes are at
    /// different places.
    turn: u64,
}

impl Universe {
    fn of(keys: &KeyCodec, lane: Lane) -> Result<Universe, SpecError> {
        if !lane.own_ranks {
            return Ok(Universe { first: 0, len: keys.records(), turn: 0 });
        }
        let OwnedRange { first, last } = lane.owned;
        let (from, end) = match keys.space() {
            KeySpace::Dense => (first.div_ceil(2), (last / 2).saturating_add(1)),
            KeySpace::Packed => (first, last.saturating_add(1)),
            KeySpace::Random64 => return Err(SpecError::NoOwnRanks),
        };
        match end.min(keys.records()).checked_sub(from) {
            None | Some(0) => Err(SpecError::EmptyRange { first, last }),
            Some(len) => Ok(Universe { first: from, len, turn: mix64(first) % len }),
        }
    }

    /// The record at a position.
    #[inline]
    fn record(&self, position: u64) -> u64 {
        let turned = position + self.turn;
        self.first + if turned < self.len { turned } else { turned - self.len }
    }
}

/// An endless stream of operations.
///
/// ```
/// use pando_workload::*;
/// let spec = WorkloadSpec {
///     mix: "read-intensive".parse()?,
///     distribution: "zipf:0.99".parse()?,
///     scatter: Scatter::Hash,
///     keys: KeyCodec::new(KeySpace::Dense, 8, 1_000_000)?,
///     ranks: None,
/// };
/// let mut stream = OpStream::new(&spec, 42, Lane::new(0, 1))?;
/// let op = stream.next_op();
/// assert!(is_loaded(op.key_number));
/// # Ok::<(), SpecError>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpStream {
    rng: Rng,
    codec: KeyCodec,
    owned: OwnedRange,
    /// Number of draws outside of the owned range after which a key inside is chosen uniformly; see
    /// `draw_owned`.
    draws_max: u64,
    /// Cumulative shares of the kinds, as thresholds over 32 random bits.
    thresholds: [u64; 4],
    scan_length: ScanLength,
    insert_keys: InsertKeys,
    universe: Universe,
    popularity: Popularity,
    sample: Sample,
    scatterer: Scatterer,
    fresh: FreshKeys,
    /// Completed new keys of this stream (see [`OpStream::inserted`]), oldest first; kept only for
    /// [`Distribution::Latest`].
    recent: Vec<u64>,
}

#[derive(Clone, Debug)]
enum Popularity {
    Uniform,
    Zipf(Zipf),
    Latest(Zipf),
    HotSpot(HotRecords),
}

impl OpStream {
    /// The stream of one thread. Streams of different lanes or seeds are independent, but share the same hot
    /// keys.
    ///
    /// # Errors
    /// The specification is invalid, or the lane has no loaded key.
    pub fn new(spec: &WorkloadSpec, seed: u64, lane: Lane) -> Result<OpStream, SpecError> {
        spec.mix.validate()?;
        if lane.thread >= lane.threads {
            return Err(SpecError::NoSuchThread { thread: lane.thread, threads: lane.threads });
        }
        let universe = Universe::of(&spec.keys, lane)?;
        let records = universe.len;
        let draws_max = draws_max(&spec.keys, lane.owned)?;
        let sample = Sample::new(spec.ranks.unwrap_or(records), records);
        let popularity = match spec.distribution {
            Distribution::Uniform => Popularity::Uniform,
            Distribution::Zipf { theta } => Popularity::Zipf(Zipf::new(sample.ranks(), theta)?),
            Distribution::Latest { theta } => Popularity::Latest(Zipf::new(records, theta)?),
            Distribution::HotSpot(hot_spot) => Popularity::HotSpot(HotRecords::new(hot_spot, &spec.keys)),
        };
        let stream_seed = mix64(mix64(mix64(seed) ^ lane.thread) ^ lane.owned.first);
        Ok(OpStream {
            rng: Rng::new(stream_seed),
            codec: spec.keys,
            owned: lane.owned,
            draws_max,
            thresholds: thresholds(spec.mix.shares()),
            scan_length: spec.mix.scan_length,
            insert_keys: spec.mix.insert_keys,
            universe,
            popularity,
            sample,
            scatterer: spec.scatter.over(records),
            fresh: FreshKeys::new(universe, lane),
            recent: Vec::new(),
        })
    }

    /// The next operation.
    #[inline]
    pub fn next_op(&mut self) -> Op {
        let random = self.rng.next_u64() >> 32;
        let [read, update, insert, scan] = self.thresholds;
        if random < read {
            Op { kind: OpKind::Read, key_number: self.draw_key() }
        } else if random < update {
            Op { kind: OpKind::Update, key_number: self.draw_key() }
        } else if random < insert {
            Op { kind: OpKind::Insert, key_number: self.insert_key() }
        } else if random < scan {
            let len = self.draw_scan_length();
            Op { kind: OpKind::Scan { len }, key_number: self.draw_key() }
        } else {
            Op { kind: OpKind::ReadModifyWrite, key_number: self.draw_key() }
        }
    }

    /// Whether inserts have used up all unused keys (see [`InsertKeys`]).
    pub fn fresh_keys_exhausted(&self) -> bool {
        self.fresh.exhausted
    }

    /// Reports a completed insert of this stream: from now on the key is one of the latest. Inserts still in
    /// flight must not be read, so they do not count before.
    #[inline]
    pub fn inserted(&mut self, key_number: u64) {
        if matches!(self.popularity, Popularity::Latest(_)) && !is_loaded(key_number) {
            self.recent.push(key_number);
        }
    }

    /// A present key: loaded, or inserted earlier by this stream.
    #[inline]
    fn draw_key(&mut self) -> u64 {
        if let Popularity::Latest(zipf) = &self.popularity {
            let age = zipf.draw(&mut self.rng);
            if let Some(newest_first) = (self.recent.len() as u64).checked_sub(age + 1) {
                return self.recent[newest_first as usize];
            }
        }
        self.draw_owned(false)
    }

    /// Draws keys until one lies in the owned range. With `or_new`, half of the draws are the new key beside
    /// the record.
    ///
    /// A range may contain no key that hashed ranks ever reach, or only unpopular ones. After 64 times the
    /// expected number of draws, a loaded key is chosen uniformly instead.
    #[inline]
    fn draw_owned(&mut self, or_new: bool) -> u64 {
        for _ in 0..self.draws_max {
            let record = self.draw_record();
            let take_new = or_new && self.rng.next_u64() >> 63 == 1;
            let key_number = if take_new { new_key(record) } else { loaded_key(record) };
            if self.owned.contains(self.codec.integer(key_number)) {
                return key_number;
            }
        }
        self.draw_owned_uniformly()
    }

    #[inline]
    fn draw_record(&mut self) -> u64 {
        let universe = &self.universe;
        match &self.popularity {
            Popularity::Uniform => universe.record(self.rng.below(universe.len)),
            Popularity::Zipf(zipf) => {
                let rank = self.sample.of_rank(zipf.draw(&mut self.rng));
                universe.record(self.scatterer.position(rank))
            }
            Popularity::HotSpot(hot) => hot.draw(&self.codec, &mut self.rng),
            Popularity::Latest(zipf) => {
                let age = zipf.draw(&mut self.rng).saturating_sub(self.recent.len() as u64);
                universe.record(self.scatterer.position(universe.len - 1 - age))
            }
        }
    }

    #[cold]
    fn draw_owned_uniformly(&mut self) -> u64 {
        let universe = self.universe;
        for _ in 0..self.draws_max {
            let key_number = loaded_key(universe.record(self.rng.below(universe.len)));
            if self.owned.contains(self.codec.integer(key_number)) {
                return key_number;
            }
        }
        first_owned(&self.codec, self.owned).expect("a stream is only made for a range with a loaded key")
    }

    fn insert_key(&mut self) -> u64 {
        let take_new = match self.insert_keys {
            InsertKeys::Drawn => false,
            InsertKeys::New => true,
            InsertKeys::HalfNew if self.rng.next_u64() >> 63 == 1 => true,
            InsertKeys::HalfNew => return self.draw_owned(false),
        };
        if take_new && let Some(key_number) = self.fresh.next(&self.codec, self.owned) {
            return key_number;
        }
        self.draw_owned(true)
    }

    fn draw_scan_length(&mut self) -> u32 {
        match self.scan_length {
            ScanLength::Fixed(length) => length,
            ScanLength::Uniform { min, max } => {
                min + reduce(self.rng.next_u64(), u64::from(max - min) + 1) as u32
            }
        }
    }
}

/// Cumulative shares scaled from percent to 2^32; the last kind takes the rest.
fn thresholds(shares: [u8; 5]) -> [u64; 4] {
    let mut sum = 0;
    [0, 1, 2, 3].map(|i| {
        sum += u64::from(shares[i]);
        (sum << 32) / 100
    })
}

/// Maximum number of draws from the distribution: 64 times the inverse of the range's share of the keys.
fn draws_max(codec: &KeyCodec, owned: OwnedRange) -> Result<u64, SpecError> {
    if owned == OwnedRange::ALL {
        return Ok(u64::MAX);
    }
    let all = codec.width();
    let end = (u128::from(owned.last) + 1).min(all);
    let width = end.saturating_sub(owned.first.into());
    // With that many expected keys, a pseudo-random range is not empty; a range with few can be searched.
    let surely_some = u128::from(codec.records()) * width / all >= 256;
    if !surely_some && first_owned(codec, owned).is_none() {
        return Err(SpecError::EmptyRange { first: owned.first, last: owned.last });
    }
    Ok(u64::try_from(64 * all.div_ceil(width)).unwrap_or(u64::MAX))
}

/// Any loaded key of the range.
fn first_owned(codec: &KeyCodec, owned: OwnedRange) -> Option<u64> {
    let is_owned = |key_number: &u64| owned.contains(codec.integer(*key_number));
    match codec.space() {
        KeySpace::Dense => {
            let record = owned.first.div_ceil(2);
            (record < codec.records()).then(|| loaded_key(record)).filter(is_owned)
        }
        KeySpace::Packed => (owned.first < codec.records()).then(|| loaded_key(owned.first)).filter(is_owned),
        KeySpace::Random64 => (0..codec.records()).map(loaded_key).find(is_owned),
    }
}

/// New keys in pseudo-random order, each used once among the threads with the same range.
#[derive(Clone, Debug)]
struct FreshKeys {
    order: NewKeyOrder,
    universe: Universe,
    /// Next position in the order; this thread takes every `step`-th.
    next: u64,
    step: u64,
    exhausted: bool,
}

impl FreshKeys {
    fn new(universe: Universe, lane: Lane) -> FreshKeys {
        FreshKeys {
            order: NewKeyOrder::new(universe.len),
            universe,
            next: lane.thread,
            step: lane.threads,
            exhausted: false,
        }
    }

    fn next(&mut self, codec: &KeyCodec, owned: OwnedRange) -> Option<u64> {
        while self.next < self.universe.len {
            let key_number = self.order.key_number(self.next) + 2 * self.universe.first;
            self.next += self.step;
            debug_assert!(!is_loaded(key_number));
            if owned.contains(codec.integer(key_number)) {
                return Some(key_number);
            }
        }
        self.exhausted = true;
        None
    }
}
