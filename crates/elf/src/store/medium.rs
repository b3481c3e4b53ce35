//! Persistent memory as publication sees it: writes, flushes, fences.
//!
//! A write changes what a read returns, but may be lost in a crash, cache line by cache line, until the line was
//! flushed and a fence has completed. An aligned word of 8 bytes is lost or kept as a whole.

use std::ops::Range;

use super::mapping::{Mapped, MappedFile};
use crate::error::{Error, Result};

/// A piece of persistent memory with byte addresses from 0 on.
pub trait Medium {
    /// Bytes that are lent and do not change.
    type Loan: AsRef<[u8]>;

    /// Size in bytes.
    fn bytes(&self) -> u64;

    /// Grows to `bytes`. New bytes are zero, and the size is durable when this returns.
    fn grow(&mut self, bytes: u64) -> Result<()>;

    /// Writes `bytes` from `at` on. Fails where something is lent.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Stores a little-endian word at `at`, a multiple of 8, undivided.
    fn store(&mut self, at: u64, word: u64) -> Result<()>;

    /// Starts to write the cache lines of `range` back.
    fn flush(&mut self, range: Range<u64>) -> Result<()>;

    /// Waits until all flushed lines are durable.
    fn fence(&mut self) -> Result<()>;

    /// Copies the bytes from `at` on.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<()>;

    /// Lends the bytes in `range`.
    fn lend(&self, range: Range<u64>) -> Result<Self::Loan>;

    /// Ranges that are lent.
    fn lent(&self) -> Vec<Range<u64>>;
}

fn failed(action: &'static str) -> impl Fn(std::io::Error) -> Error {
    move |error| Error::Storage { action, reason: error.to_string() }
}

/// A flush waits for the operating system, which flushes processor caches where that is enough (DAX).
impl Medium for MappedFile {
    type Loan = Mapped;

    fn bytes(&self) -> u64 {
        self.bytes()
    }

    fn grow(&mut self, bytes: u64) -> Result<()> {
        self.grow(bytes).map_err(failed("grow"))
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.write(at, bytes).map_err(failed("write"))
    }

    fn store(&mut self, at: u64, word: u64) -> Result<()> {
        self.store(at, word).map_err(failed("write"))
    }

    fn flush(&mut self, range: Range<u64>) -> Result<()> {
        self.flush(range).map_err(failed("flush"))
    }

    fn fence(&mut self) -> Result<()> {
        Ok(())
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        self.read(at, into).map_err(failed("read"))
    }

    fn lend(&self, range: Range<u64>) -> Result<Mapped> {
        self.lend(range).map_err(failed("read"))
    }

    fn lent(&self) -> Vec<Range<u64>> {
        self.lent()
    }
}
