//! What a verb does to the memory of its server, and what it costs the network.
//!
//! A READ or WRITE of more than a line may be *torn*: it takes effect in two parts, and other verbs come in between
//! (one-sided verbs promise no more than whole words and lines).

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

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

    fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::ReadWord { .. })
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::WriteWord { .. })
    }

    /// Round trip on an idle network, without the time that its payload takes.
    pub fn round_trip(&self, network: &Network) -> u64 {
        match () {
            () if self.is_atomic() => network.atomic_ns,
            () if self.is_write() => network.write_ns,
            () => network.read_ns,
        }
    }

    /// How long it keeps a NIC on the way to the server.
    pub fn request_cost(&self, network: &Network) -> Picos {
        let bytes = if self.is_write() { self.words() * WORD } else { 0 };
        message_cost(bytes, network)
    }

    /// How long its answer keeps the server's NIC.
    pub fn reply_cost(&self, network: &Network) -> Picos {
        let bytes = if self.is_read() { self.words() * WORD } else { 0 };
        let message = message_cost(bytes, network);
        match self.is_read() && bytes <= LINE {
            true => message.max(at_rate(1, network.small_reads_per_us)),
            false => message,
        }
    }

    /// Whether it can take effect in parts.
    pub fn can_tear(&self) -> bool {
        self.words() > LINE_WORDS
    }

    /// Takes effect on `words` of its own, of the region of its server. Atomics have one word.
    pub fn take_effect(&self, region: &mut [u64], words: Range<usize>) -> Option<u64> {
        let first = self.at().offset() as usize / WORD;
        let word = &mut region[first..][words.clone()];
        match self {
            Self::Read { into, .. } => {
                into.window_words()[words].iter().zip(word).for_each(|(to, from)| to.store(*from, Relaxed));
                None
            }
            Self::Write { from, .. } => {
                from.window_words()[words].iter().zip(word).for_each(|(from, to)| *to = from.load(Relaxed));
                None
            }
            Self::ReadWord { .. } => Some(word[0]),
            Self::WriteWord { value, .. } => {
                word[0] = *value;
                None
            }
            Self::MaskedSwap { expected, compare_mask, new, swap_mask, .. } => {
                let found = word[0];
                if (found ^ expected) & compare_mask == 0 {
                    word[0] = (found & !swap_mask) | (new & swap_mask);
                }
                Some(found)
            }
            Self::FetchAdd { add, .. } => {
                let found = word[0];
                word[0] = found.wrapping_add(*add);
                Some(found)
            }
        }
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

/// How long a message of so many payload bytes keeps one direction of a NIC.
pub(crate) fn message_cost(bytes: usize, network: &Network) -> Picos {
    at_rate(1, network.messages_per_us).max(at_rate(bytes as u64, network.bytes_per_us))
}
