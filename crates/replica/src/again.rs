//! What is needed to send a verb again: a verb that fails keeps its buffer.
//!
//! So the form of each buffer is kept, and the bytes that are written. They are copied into a buffer for reuse, which
//! costs no allocation.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::{Chain, ChainVerb, Endpoint, GlobalAddr, PageBuf, VerbResult};

use crate::placement::Replica;

/// A buffer's form, and the bytes of its window if they are written.
pub(crate) struct Kept {
    len: usize,
    window: Range<usize>,
    bytes: Option<PageBuf>,
}

impl Kept {
    /// Keeps the form of a buffer that is read into.
    pub fn form(buf: &PageBuf) -> Self {
        let start = buf.window_start();
        Self { len: buf.len(), window: start..start + buf.window_len(), bytes: None }
    }

    /// Keeps what is written.
    pub fn bytes<E: Endpoint>(ep: &E, buf: &PageBuf) -> Self {
        let bytes = ep.buffer(buf.window_len());
        copy(buf, &bytes);
        Self { bytes: Some(bytes), ..Self::form(buf) }
    }

    /// Another buffer of this form.
    pub fn again<E: Endpoint>(&self, ep: &E) -> PageBuf {
        let buf = ep.buffer(self.len).with_window(self.window.clone());
        if let Some(bytes) = &self.bytes {
            copy(bytes, &buf);
        }
        buf
    }

    pub fn recycle<E: Endpoint>(self, ep: &E) {
        if let Some(bytes) = self.bytes {
            ep.recycle(bytes);
        }
    }
}

/// Copies the window of a buffer into that of another one of the same length.
fn copy(from: &PageBuf, to: &PageBuf) {
    for (from, to) in from.window_words().iter().zip(to.window_words()) {
        to.store(from.load(Relaxed), Relaxed);
    }
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
            ChainVerb::Read { at, into } => (Self::Read(at, Kept::form(&into)), Some(into)),
            ChainVerb::Write { at, from } => (Self::Write(at, Kept::bytes(ep, &from)), Some(from)),
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
