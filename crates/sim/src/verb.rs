//! Effect of a verb on the memory of its server, and its cost on the network.
//!
//! A READ or WRITE longer than a line may be *torn*: it takes effect in two parts, with other verbs in
//! between. One-sided verbs guarantee no more than whole words and lines.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pando_fabric::{ChainVerb, GlobalAddr, LINE, PageBuf, VerbResult, WORD};

use crate::model::Network;
use crate::nic::{Costs, Load};

/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE / WORD;

/// A verb in flight. Two-sided calls are in [`crate::op::Op`].
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

    /// Number of words that the verb moves or changes.
    pub fn words(&self) -> usize {
        match self {
            Self::Read { into: buf, .. } | Self::Write { from: buf, .. } => buf.window_words().len(),
            _ => 1,
        }
    }

    pub fn is_atomic(&self) -> bool {
        matches!(self, Self::MaskedSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether this is a READ or an atomic, of which a queue pair has a limited number in flight.
    pub fn is_answered_by_data(&self) -> bool {
        self.is_atomic() || self.is_read()
    }

    fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadWord { .. })
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteWord { .. })
    }

    /// Round trip on an idle network, without the time of the payload.
    pub fn round_trip(&self, network: &Network, is_on_chip: bool) -> u64 {
        match () {
            // `atomic_ns` includes the PCIe transactions that occupy a unit; on-chip atomics need none.
            () if self.is_atomic() && is_on_chip => network.atomic_ns.saturating_sub(network.atomic_unit_ns),
            () if self.is_atomic() => network.atomic_ns,
            () if self.is_write() => network.write_ns,
            () => network.read_ns,
        }
    }

    /// Load of the request on a NIC.
    pub fn request_load(&self, costs: &Costs) -> Load {
        costs.message(if self.is_write() { self.words() * WORD } else { 0 })
    }

    /// Load of the answer on a NIC.
    pub fn reply_load(&self, costs: &Costs) -> Load {
        costs.message(if self.is_read() { self.words() * WORD } else { 0 })
    }

    /// Whether the server's NIC fetches data from host memory for the answer. Atomics have units of their
    /// own.
    pub fn fetches(&self, is_on_chip: bool) -> bool {
        self.is_read() && !is_on_chip
    }

    /// Time for which an atomic that found `found` occupies its unit.
    pub fn unit_ns(&self, network: &Network, is_on_chip: bool, found: Option<u64>) -> u64 {
        match *self {
            _ if is_on_chip => network.on_chip_conflict_ns,
            // A failed swap writes nothing back.
            Self::MaskedSwap { expected, compare_mask, .. }
                if found.is_some_and(|found| (found ^ expected) & compare_mask != 0) =>
            {
                network.atomic_unit_ns / 2
            }
            _ => network.atomic_unit_ns,
        }
    }

    /// Whether the verb can take effect in parts.
    pub fn can_tear(&self) -> bool {
        self.words() > LINE_WORDS
    }

    /// Applies `words` of the verb to the region of its server. Returns the word that an atomic or a READ of
    /// one word found.
    pub fn take_effect(&self, region: &[AtomicU64], words: Range<usize>) -> Option<u64> {
        let first = self.at().offset() as usize / WORD;
        let memory = &region[first..][words.clone()];
        let copy = |from: &[AtomicU64], to: &[AtomicU64]| {
            // The servers' memory is in no cache of the host: touch all lines before waiting for the first
            // one.
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

    /// Result for the caller, with the word that [`Verb::take_effect`] found.
    pub fn into_result(self, found: Option<u64>) -> VerbResult {
        match (self, found) {
            (Self::Read { into: buf, .. } | Self::Write { from: buf, .. }, _) => VerbResult::Buf(buf),
            (_, Some(word)) => VerbResult::Word(word),
            (_, None) => VerbResult::Done,
        }
    }
}
