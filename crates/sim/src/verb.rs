//! What a verb does to the memory of its server, and what it costs the network.
//!
//! A READ or WRITE of more than a line may be *torn*: it takes effect in two parts, and other verbs come in between
//! (one-sided verbs promise no more than whole words and lines).

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::{ChainVerb, GlobalAddr, LINE, PageBuf, VerbResult, WORD};

use crate::model::Network;
use crate::serial::{Picos, at_rate};

/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE / WORD;

/// A verb under way. What is not one-sided is in [`crate::world::Op`].
#[derive(Debug)]
pub(crate) enum Verb {
    Read { at: GlobalAddr, into: PageBuf },
    Write { at: GlobalAddr, from: PageBuf },
    ReadWord { at: GlobalAddr },
    WriteWord { at: GlobalAddr, value: u64 },
    MaskedSwap { at: GlobalAddr, expected: u64, compare_mask: u64, new: u64, swap_mask: u64 },
    FetchAdd { at: GlobalAddr, add: u64 },
}

impl From<ChainVerb> for Verb {
    fn from(verb: ChainVerb) -> Self {
        match verb {
            ChainVerb::Read { at, into } => Self::Read { at, into },
            ChainVerb::Write { at, from } => Self::Write { at, from },
            ChainVerb::WriteWord { at, value } => Self::WriteWord { at, value },
            ChainVerb::CompareSwap { at, expected, new } => Self::swap(at, expected, new),
            ChainVerb::FetchAdd { at, add } => Self::FetchAdd { at, add },
        }
    }
}

impl Verb {
    pub fn swap(at: GlobalAddr, expected: u64, new: u64) -> Self {
        Self::MaskedSwap { at, expected, compare_mask: u64::MAX, new, swap_mask: u64::MAX }
    }

    pub fn at(&self) -> GlobalAddr {
        match *self {
            Self::Read { at, .. }
            | Self::Write { at, .. }
            | Self::ReadWord { at }
            | Self::WriteWord { at, .. }
            | Self::MaskedSwap { at, .. }
            | Self::FetchAdd { at, .. } => at,
        }
    }

    /// Words that it moves or changes.
    pub fn words(&self) -> usize {
        match self {
            Self::Read { into: buf, .. } | Self::Write { from: buf, .. } => buf.window_words().len(),
            _ => 1,
        }
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self, Self::MaskedSwap { .. } | Self::FetchAdd { .. })
    }

    /// READs and atomics, of which a queue pair has few outstanding.
    pub fn is_answered_by_data(&self) -> bool {
        self.is_atomic() || self.is_read()
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadWord { .. })
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteWord { .. })
    }

    /// Round trip on an idle network, without the time that its payload takes.
    pub fn round_trip(&self, network: &Network, is_on_chip: bool) -> u64 {
        match () {
            // The PCIe transactions that keep a unit are no part of it.
            () if self.is_atomic() && is_on_chip => network.atomic_ns.saturating_sub(network.atomic_unit_ns),
            () if self.is_atomic() => network.atomic_ns,
            () if self.is_write() => network.write_ns,
            () => network.read_ns,
        }
    }

    /// How long it keeps a NIC on the way to the server.
    pub fn request_cost(&self, costs: &Costs) -> Picos {
        let bytes = if self.is_write() { self.words() * WORD } else { 0 };
        costs.message(bytes)
    }

    /// How long its answer keeps the server's NIC.
    pub fn reply_cost(&self, costs: &Costs, is_on_chip: bool) -> Picos {
        let bytes = if self.is_read() { self.words() * WORD } else { 0 };
        let message = costs.message(bytes);
        // It is PCIe transactions that small READs of host memory wait for.
        match self.is_read() && bytes <= LINE && !is_on_chip {
            true => message.max(costs.small_read),
            false => message,
        }
    }

    /// How long an atomic that found a word keeps what executes it.
    pub fn unit_ns(&self, network: &Network, is_on_chip: bool, found: Option<u64>) -> u64 {
        match *self {
            _ if is_on_chip => network.on_chip_atomic_ns,
            // Nothing is written back.
            Self::MaskedSwap { expected, compare_mask, .. }
                if found.is_some_and(|found| (found ^ expected) & compare_mask != 0) =>
            {
                network.atomic_unit_ns / 2
            }
            _ => network.atomic_unit_ns,
        }
    }

    /// Whether it can take effect in parts.
    pub fn can_tear(&self) -> bool {
        self.words() > LINE_WORDS
    }

    /// Takes effect on `words` of its own, of the region of its server. Atomics have one word.
    pub fn take_effect(&self, region: &[AtomicU64], words: Range<usize>) -> Option<u64> {
        let first = self.at().offset() as usize / WORD;
        let memory = &region[first..][words.clone()];
        let copy = |from: &[AtomicU64], to: &[AtomicU64]| {
            // Memory of servers is in no cache: all lines are asked for before the first is waited for.
            let touched = memory.iter().step_by(LINE_WORDS).fold(0, |all, word| all ^ word.load(Relaxed));
            std::hint::black_box(touched);
            to.iter().zip(from).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        };
        let change = |new: &dyn Fn(u64) -> u64| {
            let found = memory[0].load(Relaxed);
            memory[0].store(new(found), Relaxed);
            Some(found)
        };
        match self {
            Self::Read { into, .. } => copy(memory, &into.window_words()[words]),
            Self::Write { from, .. } => copy(&from.window_words()[words], memory),
            Self::ReadWord { .. } => return Some(memory[0].load(Relaxed)),
            Self::WriteWord { value, .. } => memory[0].store(*value, Relaxed),
            Self::MaskedSwap { expected, compare_mask, new, swap_mask, .. } => {
                return change(&|found| match (found ^ expected) & compare_mask {
                    0 => (found & !swap_mask) | (new & swap_mask),
                    _ => found,
                });
            }
            Self::FetchAdd { add, .. } => return change(&|found| found.wrapping_add(*add)),
        }
        None
    }

    /// What the caller gets back, with the word that [`Verb::take_effect`] found.
    pub fn into_result(self, found: Option<u64>) -> VerbResult {
        match (self, found) {
            (Self::Read { into: buf, .. } | Self::Write { from: buf, .. }, _) => VerbResult::Buf(buf),
            (_, Some(word)) => VerbResult::Word(word),
            (_, None) => VerbResult::Done,
        }
    }
}

/// What messages cost a NIC.
#[derive(Clone, Copy)]
pub(crate) struct Costs {
    /// Any message at least.
    message: Picos,
    /// Answering any READ at least.
    small_read: Picos,
    /// 1 KiB of payload.
    kib: Picos,
}

impl Costs {
    pub fn new(network: &Network) -> Self {
        Self {
            message: at_rate(1, network.messages_per_us),
            small_read: at_rate(1, network.small_reads_per_us),
            kib: at_rate(1024, network.bytes_per_us),
        }
    }

    /// Nothing keeps one direction of a NIC for longer that has next to no payload.
    pub fn without_payload(&self) -> Picos {
        self.message.max(self.small_read)
    }

    /// How long a message of so many payload bytes keeps one direction of a NIC.
    #[inline]
    pub fn message(&self, bytes: usize) -> Picos {
        self.message.max(bytes as u64 * self.kib / 1024)
    }
}
