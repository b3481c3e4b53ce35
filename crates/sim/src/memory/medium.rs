//! Channels of DRAM and of persistent memory: latency, open blocks, bandwidth.
//!
//! A channel has a ledger of the time for which it is busy, by microseconds. A read takes the first microsecond with
//! room, so cores whose clocks are apart compete only for the same time, whichever of them is simulated first.

use std::collections::VecDeque;

use super::LINE_BYTES;
use super::parameters::{Medium, MemoryModel};

/// A kind of memory. Each has its own addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Dram,
    Persistent,
}

/// Bits of line numbers that tell the kinds apart.
const KIND_SHIFT: u32 = 56;

impl Kind {
    /// Number of the line at `byte` of this memory.
    pub(super) fn line(self, byte: u64) -> u64 {
        (byte / LINE_BYTES) | ((self as u64) << KIND_SHIFT)
    }

    /// The memory of a line, and its byte there.
    pub(super) fn of_line(line: u64) -> (Kind, u64) {
        let kind = if line >> KIND_SHIFT == 0 { Kind::Dram } else { Kind::Persistent };
        (kind, (line & ((1 << KIND_SHIFT) - 1)) * LINE_BYTES)
    }
}

/// Length of an entry of a ledger.
const SLICE_NS: f64 = 1_000.0;
/// Time by which the lines of a block that is under way follow each other.
const NEXT_LINE_NS: f64 = 10.0;

/// Occupied time of a channel.
#[derive(Clone, Debug, Default)]
struct Ledger {
    first: u64,
    used_ns: VecDeque<f32>,
}

impl Ledger {
    /// Occupies `ns` from `at` on, and returns the start.
    fn serve(&mut self, at: f64, ns: f64) -> f64 {
        let mut slice = ((at / SLICE_NS) as u64).max(self.first);
        loop {
            let place = (slice - self.first) as usize;
            if place >= self.used_ns.len() {
                self.used_ns.resize(place + 1, 0.0);
            }
            let used = &mut self.used_ns[place];
            if f64::from(*used) + ns <= SLICE_NS || *used == 0.0 {
                let start = (slice as f64 * SLICE_NS).max(at);
                *used += ns as f32;
                return start;
            }
            slice += 1;
        }
    }

    fn forget_before(&mut self, ns: f64) {
        let first = (ns / SLICE_NS) as u64;
        while self.first < first && self.used_ns.pop_front().is_some() {
            self.first += 1;
        }
        self.first = self.first.max(first);
    }
}

/// A block in a buffer, and when it has arrived there.
#[derive(Clone, Copy, Debug)]
struct Block {
    number: u64,
    arrives_ns: f64,
}

#[derive(Clone, Debug, Default)]
struct Channel {
    /// Most recent first.
    blocks: VecDeque<Block>,
    ledger: Ledger,
}

#[derive(Clone, Debug)]
struct Bank {
    medium: Medium,
    channels: Vec<Channel>,
    moved_bytes: u64,
}

impl Bank {
    fn new(medium: &Medium) -> Self {
        let channels = vec![Channel::default(); medium.channels as usize];
        Self { medium: medium.clone(), channels, moved_bytes: 0 }
    }

    fn read(&mut self, byte: u64, at: f64) -> f64 {
        let Medium { block_bytes, interleave_bytes, channels, reads_blocks, .. } = self.medium;
        let channel = &mut self.channels[(byte / interleave_bytes % channels) as usize];
        let number = byte / block_bytes;
        let buffered = channel.blocks.iter().position(|block| block.number == number);
        let moved = match (reads_blocks, buffered) {
            (true, Some(_)) => 0,
            (true, None) => block_bytes,
            (false, _) => LINE_BYTES,
        };
        self.moved_bytes += moved;
        let start = match moved {
            0 => at,
            moved => channel.ledger.serve(at, moved as f64 / self.medium.read_gb_s),
        };
        let done = match buffered {
            Some(place) => {
                let block = channel.blocks.remove(place).expect("it was found there");
                channel.blocks.push_front(block);
                // A core that is simulated later reads the block in its own time, which may be earlier.
                let arrives_ns = block.arrives_ns.min(start + self.medium.random_ns);
                (start + self.medium.buffered_ns).max(arrives_ns + NEXT_LINE_NS)
            }
            None => {
                let arrives_ns = start + self.medium.random_ns;
                channel.blocks.push_front(Block { number, arrives_ns });
                arrives_ns
            }
        };
        channel.blocks.truncate(self.medium.buffer_blocks);
        done
    }
}

/// Both kinds of memory of a socket.
#[derive(Clone, Debug)]
pub(super) struct Media([Bank; 2]);

impl Media {
    pub(super) fn new(model: &MemoryModel) -> Self {
        Self([Bank::new(&model.dram), Bank::new(&model.persistent)])
    }

    /// Reads a line from `at` on and returns when it has arrived.
    pub(super) fn read(&mut self, line: u64, at: f64) -> f64 {
        let (kind, byte) = Kind::of_line(line);
        self.0[kind as usize].read(byte, at)
    }

    pub(super) fn forget_before(&mut self, ns: f64) {
        let channels = self.0.iter_mut().flat_map(|bank| &mut bank.channels);
        channels.for_each(|channel| channel.ledger.forget_before(ns));
    }

    pub(super) fn moved_bytes(&self, kind: Kind) -> u64 {
        self.0[kind as usize].moved_bytes
    }
}
