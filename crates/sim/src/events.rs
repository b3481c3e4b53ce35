//! Future events in the order in which they happen: by time, and by number at equal times.
//!
//! Most events are due within a few µs of virtual time. A wheel with a bucket for each ns, whose turn is longer than
//! that, finds the next one in a few ns, however many events a large cluster has at a time. A bucket is a queue: its
//! events have the same time, and come in the order of their numbers. Events of the heap keep this order too, because
//! they enter the wheel before any event is added directly to their bucket.

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

/// Number of buckets of 1 ns: 16 µs, more than a round trip.
const BUCKETS: u64 = 1 << 14;
const WORDS: usize = BUCKETS as usize / 64;
/// End of a list.
const NONE: u32 = u32::MAX;

/// First and last entry of a queue; `first` is [`NONE`] if it is empty.
#[derive(Clone, Copy)]
struct Bucket {
    first: u32,
    last: u32,
}

/// An event of the wheel, or an unused place.
struct Link {
    event: Event,
    next: u32,
}

/// Future events: a wheel of buckets for the near ones, a heap for the others.
pub(crate) struct Events {
    /// Bucket of each time, modulo the number of buckets.
    buckets: Box<[Bucket]>,
    links: Vec<Link>,
    /// List of the unused links. The one used last is first, so that few cache lines are in use.
    free: u32,
    /// Bitmap of the nonempty buckets, and of its nonzero words.
    occupied: [u64; WORDS],
    words: [u64; WORDS / 64],
    /// Time of the latest event that happened. No entry of the wheel is earlier, or a full turn later.
    now: Nanos,
    far: BinaryHeap<Entry>,
    number: u64,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            buckets: vec![Bucket { first: NONE, last: NONE }; BUCKETS as usize].into(),
            links: Vec::new(),
            free: NONE,
            occupied: [0; WORDS],
            words: [0; WORDS / 64],
            now: 0,
            far: BinaryHeap::new(),
            number: 0,
        }
    }
}

impl Events {
    /// Adds an event at or after the latest event that happened.
    #[inline]
    pub fn push(&mut self, at: Nanos, event: Event) {
        debug_assert!(at >= self.now, "an event of the past");
        if at - self.now < BUCKETS {
            return self.place(at, event);
        }
        self.number += 1;
        self.far.push(Entry { at, number: self.number, event });
    }

    /// Appends an event to the queue of its bucket.
    #[inline]
    fn place(&mut self, at: Nanos, event: Event) {
        let link = Link { event, next: NONE };
        let place = match self.links.get_mut(self.free as usize) {
            Some(unused) => {
                let place = self.free;
                self.free = std::mem::replace(unused, link).next;
                place
            }
            None => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
        };
        let number = (at % BUCKETS) as usize;
        let Bucket { first, last } = &mut self.buckets[number];
        match *first {
            NONE => {
                *first = place;
                self.occupied[number / 64] |= 1 << (number % 64);
                self.words[number / 4096] |= 1 << (number / 64 % 64);
            }
            _ => self.links[*last as usize].next = place,
        }
        *last = place;
    }

    /// Number of the first nonempty bucket at or after that of the present.
    #[inline]
    fn first(&self) -> Option<usize> {
        let start = (self.now % BUCKETS) as usize;
        let word = start / 64;
        let rest = self.occupied[word] >> (start % 64) << (start % 64);
        if rest != 0 {
            return Some(word * 64 + rest.trailing_zeros() as usize);
        }
        let word = self.next_word(word)?;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }

    /// The first nonzero word of the bitmap after `word`, which comes last itself: its buckets before the present are
    /// almost a turn ahead.
    #[inline]
    fn next_word(&self, word: usize) -> Option<usize> {
        let (group, bit) = (word / 64, word % 64);
        let of = |group: usize, bits: u64| group * 64 + bits.trailing_zeros() as usize;
        // Shifted twice, because a shift by 64 is none.
        let rest = self.words[group] >> bit >> 1 << bit << 1;
        if rest != 0 {
            return Some(of(group, rest));
        }
        let groups = self.words.len();
        let mut others = (1..=groups).map(|i| (group + i) % groups);
        others.find(|&group| self.words[group] != 0).map(|group| of(group, self.words[group]))
    }

    /// The time of a bucket.
    #[inline]
    fn time_of(&self, bucket: usize) -> Nanos {
        self.now + (bucket as u64).wrapping_sub(self.now) % BUCKETS
    }

    /// Takes the earliest event.
    #[inline]
    pub fn pop(&mut self) -> Option<(Nanos, Event)> {
        let Some(number) = self.first() else {
            let Entry { at, event, .. } = self.far.pop()?;
            self.turn_to(at);
            return Some((at, event));
        };
        let at = self.time_of(number);
        let bucket = &mut self.buckets[number];
        let place = bucket.first;
        let link = &mut self.links[place as usize];
        let event = link.event;
        bucket.first = std::mem::replace(&mut link.next, self.free);
        self.free = place;
        if bucket.first == NONE {
            self.occupied[number / 64] &= !(1 << (number % 64));
            self.words[number / 4096] &= !(u64::from(self.occupied[number / 64] == 0) << (number / 64 % 64));
        }
        self.turn_to(at);
        Some((at, event))
    }

    /// Advances the wheel to `at` and moves the events that come within a turn from the heap into buckets.
    #[inline]
    fn turn_to(&mut self, at: Nanos) {
        self.now = at;
        while self.far.peek().is_some_and(|far| far.at - at < BUCKETS) {
            if let Some(Entry { at, event, .. }) = self.far.pop() {
                self.place(at, event);
            }
        }
    }

    #[inline]
    pub fn next_time(&self) -> Option<Nanos> {
        match self.first() {
            Some(first) => Some(self.time_of(first)),
            None => self.far.peek().map(|entry| entry.at),
        }
    }
}

const _: () = assert!(size_of::<Link>() == 12);

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
