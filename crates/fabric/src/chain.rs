//! Ordered verbs under one doorbell: Sherman's command combination (Sherman §4.5).
//!
//! All verbs of a chain go to one memory server and take effect in the order in which they were added, in one
//! round trip. A writer stores data and its unlock word together in this way. A chain is refused as a whole
//! or executed as a whole. A compare-and-swap that finds another word than expected is not a refusal and does
//! not stop the following verbs.

use crate::{GlobalAddr, MemoryServerId, PageBuf, VerbCounts, WORD};

/// One verb of a chain.
#[derive(Debug)]
pub enum ChainVerb {
    Read { at: GlobalAddr, into: PageBuf },
    Write { at: GlobalAddr, from: PageBuf },
    WriteWord { at: GlobalAddr, value: u64 },
    CompareSwap { at: GlobalAddr, expected: u64, new: u64 },
    FetchAdd { at: GlobalAddr, add: u64 },
}

impl ChainVerb {
    /// Address of the first byte that the verb reads or changes.
    pub fn at(&self) -> GlobalAddr {
        match self {
            Self::Read { at, .. }
            | Self::Write { at, .. }
            | Self::WriteWord { at, .. }
            | Self::CompareSwap { at, .. }
            | Self::FetchAdd { at, .. } => *at,
        }
    }

    /// Number of bytes that the verb reads or changes.
    #[allow(clippy::len_without_is_empty, reason = "a verb is no collection")]
    pub fn len(&self) -> usize {
        match self {
            Self::Read { into: buf, .. } | Self::Write { from: buf, .. } => buf.window_len(),
            Self::WriteWord { .. } | Self::CompareSwap { .. } | Self::FetchAdd { .. } => WORD,
        }
    }
}

/// Result of one verb of a completed chain, in the order of the chain.
#[derive(Debug)]
pub enum VerbResult {
    /// The buffer of a READ or a WRITE.
    Buf(PageBuf),
    /// The word before an atomic. A compare-and-swap that found another word than expected changed nothing
    /// and did not stop the chain.
    Word(u64),
    /// Completion of a WRITE of a word.
    Done,
}

/// Verbs to one memory server that take effect in the order in which they were added, in one round trip.
///
/// The fabric fences a READ or an atomic before a WRITE where its transport would let the WRITE overtake.
#[derive(Debug, Default)]
pub struct Chain {
    verbs: Vec<ChainVerb>,
}

impl Chain {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn read(self, at: GlobalAddr, into: PageBuf) -> Self {
        self.push(ChainVerb::Read { at, into })
    }

    pub fn write(self, at: GlobalAddr, from: PageBuf) -> Self {
        self.push(ChainVerb::Write { at, from })
    }

    pub fn write_word(self, at: GlobalAddr, value: u64) -> Self {
        self.push(ChainVerb::WriteWord { at, value })
    }

    pub fn compare_swap(self, at: GlobalAddr, expected: u64, new: u64) -> Self {
        self.push(ChainVerb::CompareSwap { at, expected, new })
    }

    pub fn fetch_add(self, at: GlobalAddr, add: u64) -> Self {
        self.push(ChainVerb::FetchAdd { at, add })
    }

    /// # Panics
    /// If the verb goes to another memory server than the previous ones.
    fn push(mut self, verb: ChainVerb) -> Self {
        if let Some(server) = self.server() {
            assert_eq!(server, verb.at().server(), "a chain goes to one memory server");
        }
        self.verbs.push(verb);
        self
    }

    /// Memory server of the chain; `None` if the chain is empty.
    pub fn server(&self) -> Option<MemoryServerId> {
        self.verbs.first().map(|verb| verb.at().server())
    }

    pub fn verbs(&self) -> &[ChainVerb] {
        &self.verbs
    }

    /// Verbs and bytes that the chain adds to the counters once it is executed.
    pub fn counts(&self) -> VerbCounts {
        let mut counts = VerbCounts::default();
        for verb in &self.verbs {
            match verb {
                ChainVerb::Read { .. } => {
                    counts.reads += 1;
                    counts.bytes_read += verb.len() as u64;
                }
                ChainVerb::Write { .. } | ChainVerb::WriteWord { .. } => {
                    counts.writes += 1;
                    counts.bytes_written += verb.len() as u64;
                }
                ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => counts.atomics += 1,
            }
        }
        counts
    }

    pub fn into_verbs(self) -> Vec<ChainVerb> {
        self.verbs
    }
}
