//! Container of the cooling frames (DEX §5.2): a hash table of one-line FIFO arrays or, for comparison, one
//! FIFO queue.
//!
//! Entries are *hints*. A frame's own state, read under its latch, decides whether it may be evicted. An
//! entry whose frame became hot meanwhile, or is cooling for another node by now, is harmless.

use std::collections::{HashMap, VecDeque};

use pando_fabric::Resource;

use crate::swip::FrameId;
use crate::sync::{AtomicU64, Mutex, Ordering, lock, spin_loop};

const SLOTS: usize = 6;
const EMPTY: u64 = u64::MAX;

/// A latch and six slots, oldest first.
#[repr(align(64))]
struct Bucket {
    latch: AtomicU64,
    slots: [AtomicU64; SLOTS],
    _line: u64,
}

impl Bucket {
    fn new() -> Self {
        let slots = std::array::from_fn(|_| AtomicU64::new(EMPTY));
        Self { latch: AtomicU64::new(0), slots, _line: 0 }
    }

    fn with<R>(&self, change: impl FnOnce(&Self) -> R) -> R {
        while self.latch.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin_loop();
        }
        let result = change(self);
        self.latch.store(0, Ordering::Release);
        result
    }

    fn at(&self, i: usize) -> Option<FrameId> {
        let raw = self.slots[i].load(Ordering::Relaxed);
        (raw != EMPTY).then_some(FrameId(raw as u32))
    }

    /// Removes slot `i` and moves the younger entries up.
    fn take(&self, i: usize) -> Option<FrameId> {
        let taken = self.at(i);
        for j in i..SLOTS {
            let younger = self.slots.get(j + 1).map_or(EMPTY, |slot| slot.load(Ordering::Relaxed));
            self.slots[j].store(younger, Ordering::Relaxed);
        }
        taken
    }

    fn push(&self, frame: FrameId) -> Option<FrameId> {
        let oldest = if self.at(SLOTS - 1).is_some() { self.take(0) } else { None };
        let free = (0..SLOTS).find(|&i| self.at(i).is_none()).expect("one slot was just freed");
        self.slots[free].store(u64::from(frame.0), Ordering::Relaxed);
        oldest
    }
}

/// The cooling map: buckets chosen by the node's address, each with its own latch.
pub struct CoolingMap {
    buckets: Box<[Bucket]>,
}

impl CoolingMap {
    /// Creates a map with room for at least `frames` cooling frames.
    pub fn new(frames: usize) -> Self {
        Self { buckets: (0..frames.div_ceil(SLOTS).max(1)).map(|_| Bucket::new()).collect() }
    }

    /// Bucket chosen by a random number.
    fn pick(&self, random: u64) -> usize {
        ((u128::from(random) * self.buckets.len() as u128) >> 64) as usize
    }

    /// Bucket of a node.
    fn number(&self, addr: u64) -> usize {
        // Use the high bits of the product, so that any number of buckets is used evenly.
        self.pick((addr >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Adds `frame`, which holds node `addr`. If the bucket was full, returns its oldest entry.
    pub fn push(&self, addr: u64, frame: FrameId) -> Option<FrameId> {
        self.buckets[self.number(addr)].with(|bucket| bucket.push(frame))
    }

    /// Removes `frame` if it is still present.
    pub fn remove(&self, addr: u64, frame: FrameId) {
        self.buckets[self.number(addr)].with(|bucket| {
            if let Some(i) = (0..SLOTS).find(|&i| bucket.at(i) == Some(frame)) {
                bucket.take(i);
            }
        });
    }

    /// Pops the oldest entry of the bucket that `random` picks, or of the next nonempty one; checks at
    /// most `probes` buckets.
    pub fn pop(&self, random: u64, probes: usize) -> Option<FrameId> {
        let start = self.pick(random);
        (0..probes.min(self.buckets.len()))
            .find_map(|i| self.buckets[(start + i) % self.buckets.len()].with(|bucket| bucket.take(0)))
    }

    /// Resource held by [`CoolingMap::push`] and [`CoolingMap::remove`] for a node.
    pub fn resource(&self, addr: u64) -> Resource {
        Resource::CoolingBucket(self.number(addr) as u32)
    }

    /// Resource held by [`CoolingMap::pop`] if the first bucket is not empty.
    pub fn resource_of_pop(&self, random: u64) -> Resource {
        Resource::CoolingBucket(self.pick(random) as u32)
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Size of the map in bytes.
    pub fn bytes(&self) -> usize {
        self.buckets.len() * size_of::<Bucket>()
    }
}

/// One queue under one lock: the baseline of Figures 4 and 9 of the DEX paper.
pub struct CoolingFifo {
    queue: Mutex<Queue>,
    capacity: usize,
}

#[derive(Default)]
struct Queue {
    /// Oldest first; still contains entries that were removed since.
    order: VecDeque<(FrameId, u64)>,
    /// Frames that really wait, with the numbers of their entries.
    waiting: HashMap<FrameId, u64>,
    pushed: u64,
}

impl Queue {
    fn pop(&mut self) -> Option<FrameId> {
        while let Some((frame, number)) = self.order.pop_front() {
            if self.waiting.get(&frame) == Some(&number) {
                self.waiting.remove(&frame);
                return Some(frame);
            }
        }
        None
    }
}

impl CoolingFifo {
    pub fn new(frames: usize) -> Self {
        Self { queue: Mutex::new(Queue::default()), capacity: frames.max(1) }
    }

    pub fn push(&self, frame: FrameId) -> Option<FrameId> {
        let mut queue = lock(&self.queue);
        queue.pushed += 1;
        let number = queue.pushed;
        queue.order.push_back((frame, number));
        queue.waiting.insert(frame, number);
        if queue.waiting.len() > self.capacity { queue.pop() } else { None }
    }

    pub fn remove(&self, frame: FrameId) {
        lock(&self.queue).waiting.remove(&frame);
    }

    pub fn pop(&self) -> Option<FrameId> {
        lock(&self.queue).pop()
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Bucket>() == 64);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_first_in_first_out_and_spills_the_oldest() {
        let map = CoolingMap::new(1);
        for i in 0..6 {
            assert_eq!(map.push(i, FrameId(i as u32)), None);
        }
        assert_eq!(map.push(6, FrameId(6)), Some(FrameId(0)));
        map.remove(3, FrameId(3));
        let order: Vec<_> = std::iter::from_fn(|| map.pop(0, 1)).map(|frame| frame.0).collect();
        assert_eq!(order, [1, 2, 4, 5, 6]);
    }

    #[test]
    fn pop_looks_at_the_next_buckets() {
        let map = CoolingMap::new(600);
        map.push(42 << 6, FrameId(9));
        assert_eq!(map.pop(0, 0), None);
        assert_eq!(map.pop(0, map.buckets()), Some(FrameId(9)));
        assert_eq!(map.pop(u64::MAX, map.buckets()), None);
    }

    #[test]
    fn the_queue_keeps_to_its_capacity() {
        let queue = CoolingFifo::new(2);
        assert_eq!((queue.push(FrameId(1)), queue.push(FrameId(2))), (None, None));
        assert_eq!(queue.push(FrameId(3)), Some(FrameId(1)));
        queue.remove(FrameId(2));
        assert_eq!((queue.pop(), queue.pop()), (Some(FrameId(3)), None));
    }
}
