//! Future events in the order in which they happen: by time, and by number at equal times.
//!
//! Most events are due within a few µs of virtual time, and a busy cluster has hundreds of them at any
//! moment. A wheel of small buckets, whose turn is longer than that, finds the next one in a few ns.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use pando_fabric::Nanos;

use crate::op::{OpId, WorkerId};

/// Kinds of events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A worker whose clock was ahead posts an operation.
    Post(OpId),
    /// An operation reaches its server.
    Arrive(OpId),
    /// The next verb of an operation takes effect, or the rest of a torn one.
    Execute(OpId),
    /// A core has dispatched a two-sided call.
    Handle(OpId),
    /// A core has executed a two-sided call.
    Answer(OpId),
    /// The answer reaches the caller's NIC.
    Return(OpId),
    /// The caller learns of the completion.
    Complete(OpId),
    /// A slot of a worker has slept until its time.
    Awake(WorkerId, u8),
    /// A worker polls a slot.
    Run(WorkerId),
    /// A fault begins or ends.
    Fault(u32),
}

struct Entry {
    at: Nanos,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// Reversed order: the earliest entry is the greatest, so a heap pops it first.
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

/// Width of a bucket in ns, as a power of two: a few events each at 100 million operations per second.
const BUCKET_BITS: u32 = 3;
/// Number of buckets: they cover 16 µs, more than a round trip.
const BUCKETS: u64 = 2_048;

/// Future events: a wheel of buckets for the near ones, a heap for the others.
pub(crate) struct Events {
    /// Bucket `time >> BUCKET_BITS`, modulo the number of buckets; unordered.
    buckets: Vec<Vec<Entry>>,
    /// Bitmap of the nonempty buckets.
    occupied: [u64; BUCKETS as usize / 64],
    /// Bucket of the latest event that happened. No entry of the wheel is earlier, or a full turn later.
    turn: u64,
    far: BinaryHeap<Entry>,
    number: u64,
}

impl Default for Events {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| Vec::new()).collect();
        let occupied = [0; BUCKETS as usize / 64];
        Self { buckets, occupied, turn: 0, far: BinaryHeap::new(), number: 0 }
    }
}

impl Events {
    /// Adds an event at or after the latest event that happened.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        self.place(Entry { at, number: self.number, event });
    }

    #[inline]
    fn place(&mut self, entry: Entry) {
        let turn = entry.at >> BUCKET_BITS;
        debug_assert!(turn >= self.turn, "an event of the past");
        if turn - self.turn >= BUCKETS {
            self.far.push(entry);
            return;
        }
        let bucket = (turn % BUCKETS) as usize;
        self.buckets[bucket].push(entry);
        self.occupied[bucket / 64] |= 1 << (bucket % 64);
    }

    /// The first nonempty bucket.
    #[inline]
    fn first(&self) -> Option<usize> {
        let start = (self.turn % BUCKETS) as usize;
        let (word, bit) = (start / 64, start % 64);
        let rest = self.occupied[word] >> bit << bit;
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let words = self.occupied.len();
        // The word of the start is visited again at the end, for the buckets almost a turn ahead.
        (1..=words).map(|i| (word + i) % words).find(|&word| self.occupied[word] != 0).map(|word| {
            let bits = self.occupied[word];
            word * 64 + bits.trailing_zeros() as usize
        })
    }

    #[inline]
    /// Takes the earliest event.
    pub fn pop(&mut self) -> Option<(Nanos, Event)> {
        let Some(first) = self.first() else {
            let Entry { at, event, .. } = self.far.pop()?;
            self.turn_to(at);
            return Some((at, event));
        };
        let bucket = &mut self.buckets[first];
        let mut earliest = 0;
        for i in 1..bucket.len() {
            if bucket[i] > bucket[earliest] {
                earliest = i;
            }
        }
        let Entry { at, event, .. } = bucket.swap_remove(earliest);
        if bucket.is_empty() {
            self.occupied[first / 64] &= !(1 << (first % 64));
        }
        self.turn_to(at);
        Some((at, event))
    }

    /// Advances the wheel to `at` and moves the events that come within a turn from the heap into buckets.
    #[inline]
    fn turn_to(&mut self, at: Nanos) {
        self.turn = at >> BUCKET_BITS;
        while self.far.peek().is_some_and(|far| (far.at >> BUCKET_BITS) - self.turn < BUCKETS) {
            if let Some(near) = self.far.pop() {
                self.place(near);
            }
        }
    }

    #[inline]
    pub fn next_time(&self) -> Option<Nanos> {
        match self.first() {
            Some(first) => self.buckets[first].iter().map(|entry| entry.at).min(),
            None => self.far.peek().map(|entry| entry.at),
        }
    }
}

const _: () = assert!(size_of::<Entry>() == 24);

#[cfg(test)]
mod tests {
    use pando_fabric::Random;

    use super::*;

    #[test]
    fn events_come_by_time_and_then_in_the_order_of_their_making() {
        let (mut events, random) = (Events::default(), Random::new(5));
        let mut model = std::collections::BTreeMap::new();
        let (mut now, mut number) = (0, 0);
        for step in 0..200_000 {
            if random.next() % 2 == 0 || model.is_empty() {
                // At once, soon, within the wheel, around its end, far beyond.
                let far = [1, 20, 3_000, 40_000, 5_000_000][random.next() as usize % 5];
                let at = now + random.next() % far;
                events.push(at, Event::Fault(number));
                model.insert((at, number), ());
                number += 1;
            } else {
                assert_eq!(
                    events.next_time(),
                    model.first_key_value().map(|((at, _), ())| *at),
                    "step {step}"
                );
                let (at, event) = events.pop().expect("as many as in the model");
                let Some((expected, ())) = model.pop_first() else { unreachable!("not empty") };
                assert!(
                    matches!(event, Event::Fault(n) if (at, n) == expected),
                    "{event:?} at {at}: {expected:?}"
                );
                now = at;
            }
        }
    }
}
