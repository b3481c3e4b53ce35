//! Execution of atomics by a memory server's NIC, and the waits that they cause (Sherman §3.2.2, §4.3).
//!
//! Atomics on host memory are executed by units, one for each value of some low address bits. Atomics of the
//! same unit wait for each other, for two PCIe transactions each, or one if a swap fails. The on-chip memory
//! of the NIC has as many units, whose atomics need no PCIe transactions, and one pipeline that issues them.
//! If the model says so, the NIC takes requests in order of arrival, and an atomic that waits for its unit
//! blocks all later requests.

use std::collections::VecDeque;
use std::ops::Range;

use pando_fabric::Nanos;

use crate::model::Network;
use crate::op::OpId;
use crate::serial::{Picos, Serial};
use crate::verb::Verb;

/// A unit that executes one atomic at a time.
#[derive(Clone, Default)]
struct Unit {
    /// Time from which on the unit is free.
    free: Nanos,
    /// Total busy time.
    busy: Nanos,
    /// Operation that gets the unit next.
    turn: Option<OpId>,
    /// Operations after that one.
    waiting: VecDeque<OpId>,
}

pub(crate) struct Atomics {
    /// Units by low address bits: those of host memory, then those of the on-chip memory. Empty before the first
    /// atomic, because large clusters have many servers without any.
    units: Vec<Unit>,
    /// Number of units of host memory, and of the on-chip memory.
    each: u64,
    /// The pipeline that issues on-chip atomics.
    pipeline: Serial,
    /// Disjoint, non-adjacent ranges of offsets that lie in on-chip memory.
    on_chip: Vec<Range<u64>>,
    /// The operation that blocks later ones, and those, in order of arrival.
    blocker: Option<OpId>,
    behind: VecDeque<OpId>,
    /// Total time for which operations blocked later ones.
    blocked: Nanos,
}

/// When a verb may take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// At once.
    Now,
    /// The operation asks again at this time.
    At(Nanos),
    /// The operation is called when it is its turn.
    Later,
}

impl Atomics {
    pub fn new(network: &Network) -> Self {
        Self {
            units: Vec::new(),
            each: network.atomic_units,
            pipeline: Serial::default(),
            on_chip: Vec::new(),
            blocker: None,
            behind: VecDeque::new(),
            blocked: 0,
        }
    }

    #[inline]
    pub fn is_on_chip(&self, offset: u64) -> bool {
        self.on_chip.iter().any(|range| range.contains(&offset))
    }

    /// Adds offsets to the on-chip memory. Fails with the total size if that exceeds `room` bytes.
    pub fn set_on_chip(&mut self, range: Range<u64>, room: u64) -> Result<(), u64> {
        let apart = |other: &Range<u64>| other.end < range.start || range.end < other.start;
        let (mut ranges, touched): (Vec<_>, Vec<_>) = self.on_chip.iter().cloned().partition(apart);
        let all =
            touched.into_iter().fold(range, |all, other| all.start.min(other.start)..all.end.max(other.end));
        ranges.push(all);
        let bytes = ranges.iter().map(|range| range.end - range.start).sum();
        if bytes > room {
            return Err(bytes);
        }
        self.on_chip = ranges;
        Ok(())
    }

    fn unit(&mut self, offset: u64) -> &mut Unit {
        let first = if self.is_on_chip(offset) { self.each } else { 0 };
        if self.units.is_empty() {
            self.units = vec![Unit::default(); 2 * self.each as usize];
        }
        &mut self.units[(first + offset % self.each) as usize]
    }

    /// Asks for the next verb of an operation to take effect. The verbs of a chain arrive together, so an
    /// operation that has begun is ahead of all waiting ones.
    pub fn enter(&mut self, id: OpId, verb: &Verb, has_begun: bool, now: Nanos, blocks: bool) -> Entry {
        if !has_begun && self.blocker.is_some_and(|blocker| blocker != id) {
            self.behind.push_back(id);
            return Entry::Later;
        }
        if !verb.is_atomic() {
            return Entry::Now;
        }
        let unit = self.unit(verb.at().offset());
        if unit.turn == Some(id) || (unit.turn.is_none() && unit.free <= now) {
            unit.turn = None;
            return Entry::Now;
        }
        if unit.turn.is_some() {
            unit.waiting.push_back(id);
            return Entry::Later;
        }
        unit.turn = Some(id);
        let free = unit.free;
        if blocks && self.blocker.is_none() {
            self.blocker = Some(id);
            self.blocked += free - now;
        }
        Entry::At(free)
    }

    /// Records that an atomic on a word took effect and occupies its unit until `free`; returns the operation
    /// that gets the unit next.
    pub fn executed(&mut self, id: OpId, offset: u64, now: Nanos, free: Nanos) -> Option<OpId> {
        if self.blocker == Some(id) {
            self.blocker = None;
        }
        let unit = self.unit(offset);
        unit.free = free;
        unit.busy += free - now;
        unit.turn = unit.waiting.pop_front();
        unit.turn
    }

    /// Issues an on-chip atomic; returns when it has been.
    pub fn issue(&mut self, now: Nanos, duration: Picos) -> Nanos {
        self.pipeline.serve(now, duration)
    }

    /// Next operation that was blocked, once the blocking one is done.
    #[inline]
    pub fn next_behind(&mut self) -> Option<OpId> {
        match self.blocker {
            None => self.behind.pop_front(),
            Some(_) => None,
        }
    }

    /// Busy time of each unit; empty before the first atomic.
    pub fn busy(&self) -> Vec<Nanos> {
        self.units.iter().map(|unit| unit.busy).collect()
    }

    /// Total time for which operations blocked later ones.
    pub fn blocked(&self) -> Nanos {
        self.blocked
    }

    /// Resets the state of a server that ended and returns the waiting operations, except for those that ask
    /// again by themselves.
    pub fn end(&mut self) -> Vec<OpId> {
        self.blocker = None;
        let mut cut: Vec<_> = self.behind.drain(..).collect();
        for unit in &mut self.units {
            cut.extend(unit.waiting.drain(..));
            (unit.free, unit.turn) = (0, None);
        }
        cut
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_fabric::{GlobalAddr, MemoryServerId};

    fn add(offset: u64) -> Verb {
        Verb::FetchAdd { at: GlobalAddr::new(MemoryServerId(0), offset), add: 1 }
    }

    fn word(offset: u64) -> Verb {
        Verb::ReadWord { at: GlobalAddr::new(MemoryServerId(0), offset) }
    }

    #[test]
    fn atomics_with_the_same_low_bits_go_one_after_the_other() {
        let mut atomics = Atomics::new(&Network::default());
        assert_eq!(atomics.enter(1, &add(64), false, 100, false), Entry::Now);
        assert_eq!(atomics.executed(1, 64, 100, 580), None);
        assert_eq!(atomics.enter(2, &add(64 + 4096), false, 200, false), Entry::At(580));
        assert_eq!(atomics.enter(3, &add(64), false, 300, false), Entry::Later);
        // Atomics of another unit and plain verbs proceed.
        assert_eq!(atomics.enter(4, &add(72), false, 300, false), Entry::Now);
        assert_eq!(atomics.enter(5, &word(64), false, 300, false), Entry::Now);
        assert_eq!(atomics.enter(2, &add(64 + 4096), false, 580, false), Entry::Now);
        assert_eq!(atomics.executed(2, 64, 580, 1060), Some(3));
        assert_eq!(atomics.enter(3, &add(64), false, 1060, false), Entry::Now);
        assert_eq!(atomics.executed(3, 64, 1060, 1540), None);
        assert_eq!(atomics.enter(6, &add(64), false, 1540, false), Entry::Now);
    }

    #[test]
    fn what_arrives_behind_one_that_waits_waits_too() {
        let mut atomics = Atomics::new(&Network::default());
        assert_eq!(atomics.enter(1, &add(64), false, 100, true), Entry::Now);
        atomics.executed(1, 64, 100, 580);
        assert_eq!(atomics.enter(2, &word(8), false, 150, true), Entry::Now, "nobody waits yet");
        assert_eq!(atomics.enter(3, &add(64), false, 200, true), Entry::At(580));
        assert_eq!(atomics.enter(4, &word(8), false, 210, true), Entry::Later);
        assert_eq!(atomics.enter(5, &add(72), false, 220, true), Entry::Later);
        assert_eq!(atomics.next_behind(), None);
        assert_eq!(atomics.enter(3, &add(64), false, 580, true), Entry::Now);
        atomics.executed(3, 64, 580, 1060);
        assert_eq!(
            (atomics.next_behind(), atomics.next_behind(), atomics.next_behind()),
            (Some(4), Some(5), None)
        );
        // The rest of a chain that has begun does not wait.
        assert_eq!(atomics.enter(3, &add(64), false, 590, true), Entry::At(1060));
        assert_eq!(atomics.enter(9, &word(8), true, 590, true), Entry::Now);
        assert_eq!(atomics.enter(3, &add(64), false, 1060, true), Entry::Now);
        atomics.executed(3, 64, 580, 1060);
        // A server that ends forgets all operations.
        assert_eq!(atomics.enter(6, &add(64), false, 600, true), Entry::At(1060));
        assert_eq!(atomics.enter(7, &word(8), false, 600, true), Entry::Later);
        assert_eq!(atomics.end(), [7]);
        assert_eq!(atomics.enter(8, &add(64), false, 600, true), Entry::Now);
    }

    #[test]
    fn a_chip_has_so_much_room() {
        let mut atomics = Atomics::new(&Network::default());
        assert_eq!(atomics.set_on_chip(0..64, 128), Ok(()));
        assert_eq!(atomics.set_on_chip(4096..4160, 128), Ok(()));
        assert_eq!(atomics.set_on_chip(32..64, 128), Ok(()), "it is there already");
        assert_eq!(atomics.set_on_chip(64..72, 128), Err(136));
        assert!(atomics.is_on_chip(63) && !atomics.is_on_chip(64) && atomics.is_on_chip(4096));
        // Each word there has a unit of its own.
        assert_eq!(atomics.enter(1, &add(8), false, 0, true), Entry::Now);
        atomics.executed(1, 8, 0, 116);
        assert_eq!(atomics.enter(2, &add(16), false, 0, true), Entry::Now);
        atomics.executed(2, 16, 0, 116);
        assert_eq!(atomics.enter(3, &add(8), false, 0, true), Entry::At(116));
    }
}
