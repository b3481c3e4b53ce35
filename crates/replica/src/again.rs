//! What is needed to send a verb again: a verb that fails keeps its buffer.
//!
//! So the form of each buffer is kept, the bytes that are written, and those beside the window, which come back as they
//! were. They are copied into a buffer for reuse, which costs no allocation.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::defect::defect;
use pando_fabric::{Chain, ChainVerb, Endpoint, GlobalAddr, PageBuf, VerbResult};

use crate::defect::Defect;
use crate::placement::Replica;

/// A buffer's form, and those of its bytes that a verb does not change.
pub(crate) struct Kept {
    len: usize,
    window: Range<usize>,
    bytes: Option<PageBuf>,
}

impl Kept {
    /// Keeps what a READ does not fill.
    pub fn of_read<E: Endpoint>(ep: &E, buf: &PageBuf) -> Self {
        let is_filled = buf.window_len() == buf.len();
        let bytes = (!is_filled && !defect(Defect::RestForgotten)).then(|| copy(ep, buf));
        Self { bytes, ..Self::form(buf) }
    }

    /// Keeps all bytes.
    pub fn of_write<E: Endpoint>(ep: &E, buf: &PageBuf) -> Self {
        Self { bytes: Some(copy(ep, buf)), ..Self::form(buf) }
    }

    fn form(buf: &PageBuf) -> Self {
        let start = buf.window_start();
        Self { len: buf.len(), window: start..start + buf.window_len(), bytes: None }
    }

    /// Another buffer like this.
    pub fn again<E: Endpoint>(&self, ep: &E) -> PageBuf {
        let buf = self.bytes.as_ref().map_or_else(|| ep.buffer(self.len), |bytes| copy(ep, bytes));
        buf.with_window(self.window.clone())
    }

    pub fn recycle<E: Endpoint>(self, ep: &E) {
        if let Some(bytes) = self.bytes {
            ep.recycle(bytes);
        }
    }
}

/// A buffer with the same bytes.
fn copy<E: Endpoint>(ep: &E, from: &PageBuf) -> PageBuf {
    let to = ep.buffer(from.len());
    for (from, to) in from.words().iter().zip(to.words()) {
        to.store(from.load(Relaxed), Relaxed);
    }
    to
}

/// One verb of a chain without atomics.
pub(crate) enum Step {
    Read(GlobalAddr, Kept),
    Write(GlobalAddr, Kept),
    WriteWord(GlobalAddr, u64),
}

impl Step {
    /// Takes a verb apart; its buffer comes separately, if it has one.
    pub fn of<E: Endpoint>(ep: &E, verb: ChainVerb) -> (Self, Option<PageBuf>) {
        match verb {
            ChainVerb::Read { at, into } => (Self::Read(at, Kept::of_read(ep, &into)), Some(into)),
            ChainVerb::Write { at, from } => (Self::Write(at, Kept::of_write(ep, &from)), Some(from)),
            ChainVerb::WriteWord { at, value } => (Self::WriteWord(at, value), None),
            ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => {
                unreachable!("a chain with atomics is executed verb by verb")
            }
        }
    }

    /// Appends the verb to a chain, for one copy of the volume.
    pub fn push<E: Endpoint>(&self, chain: Chain, ep: &E, copy: &Replica, buf: Option<PageBuf>) -> Chain {
        let buf = |kept: &Kept| buf.unwrap_or_else(|| kept.again(ep));
        match self {
            Self::Read(at, kept) => chain.read(copy.at(at.offset()), buf(kept)),
            Self::Write(at, kept) => chain.write(copy.at(at.offset()), buf(kept)),
            Self::WriteWord(at, value) => chain.write_word(copy.at(at.offset()), *value),
        }
    }

    pub fn recycle<E: Endpoint>(self, ep: &E) {
        match self {
            Self::Read(_, kept) | Self::Write(_, kept) => kept.recycle(ep),
            Self::WriteWord(..) => {}
        }
    }
}

/// The buffer in the result of a verb, if it has one.
pub(crate) fn buffer_of(result: VerbResult) -> Option<PageBuf> {
    match result {
        VerbResult::Buf(buf) => Some(buf),
        VerbResult::Word(_) | VerbResult::Done => None,
    }
}
