//! A mapped file that lends ranges of itself: all unsafe code of the stores.
//!
//! Lent ranges are read as plain bytes, so nothing may change them. A [`MappedFile`] refuses to write where a
//! range is lent, and a lock on the file keeps other processes and other objects of this one away: many
//! readers or one writer. Code that ignores the lock must not change the file while it is open here. If such
//! code truncates it, an access behind its new end raises SIGBUS, which ends the process.

#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

/// An address range from `mmap` to `munmap`, and the file with its lock.
#[derive(Debug)]
struct Mapping {
    file: Arc<File>,
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread. `MappedFile` writes to it only with exclusive access to
// the file, and only where nothing is lent.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `file`; an empty file has no byte that may be accessed.
    fn new(file: Arc<File>, bytes: usize, is_writable: bool) -> Result<Self> {
        let writable = if is_writable { ProtFlags::WRITE } else { ProtFlags::empty() };
        let prot = ProtFlags::READ | writable;
        // SAFETY: the kernel picks a free range, so no existing object is overlaid.
        let start = unsafe { mmap(null_mut(), bytes.max(1), prot, MapFlags::SHARED, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or_else(|| Error::other("it was mapped at address 0"))?;
        Ok(Self { file, start, bytes })
    }

    /// Address of the bytes in `range`.
    fn at(&self, range: &Range<u64>) -> Result<NonNull<u8>> {
        if range.start > range.end || range.end > self.bytes as u64 {
            return Err(Error::new(ErrorKind::UnexpectedEof, "a range goes beyond its end"));
        }
        // SAFETY: the offset is within the mapping (checked above).
        Ok(unsafe { self.start.add(range.start as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping; what is lent from it keeps it alive.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.max(1)) };
        debug_assert!(unmapped.is_ok(), "munmap of an owned range: {unmapped:?}");
    }
}

/// Ranges of one file that are lent.
#[derive(Debug, Default)]
struct Loans(Mutex<Vec<Range<u64>>>);

impl Loans {
    fn with<R>(&self, run: impl FnOnce(&mut Vec<Range<u64>>) -> R) -> R {
        // No code that holds it panics, and a vector of ranges has no broken state.
        run(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Ends with the last copy of the [`Mapped`] that holds it.
#[derive(Debug)]
struct Loan {
    range: Range<u64>,
    loans: Arc<Loans>,
    _mapping: Arc<Mapping>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.loans.with(|loans| {
            if let Some(at) = loans.iter().position(|range| *range == self.range) {
                loans.swap_remove(at);
            }
        });
    }
}

/// Bytes of a mapped file, which do not change as long as a copy of this exists. Copies are cheap.
#[derive(Clone, Debug)]
pub struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
    _loan: Arc<Loan>,
}

// SAFETY: it gives access to bytes that nothing changes while the loan lasts.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl AsRef<[u8]> for Mapped {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` took the range from within the mapping, which the loan keeps alive and which reads as
        // initialized bytes. `check_free` keeps writes away from lent ranges, and the lock other writers.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }
}

/// A file that is mapped as a whole and locked.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Arc<Mapping>,
    loans: Arc<Loans>,
    is_writable: bool,
}

impl MappedFile {
    /// Locks and maps `file`, which was opened for reading, and for writing if `is_writable`. The error is of the
    /// kind `WouldBlock` if another holder's lock excludes this one.
    pub fn open(file: File, is_writable: bool) -> Result<Self> {
        flock(
            &file,
            if is_writable {
                FlockOperation::NonBlockingLockExclusive
            } else {
                FlockOperation::NonBlockingLockShared
            },
        )?;
        let bytes = size(&file)?;
        let mapping = Arc::new(Mapping::new(Arc::new(file), bytes, is_writable)?);
        Ok(Self { mapping, loans: Arc::default(), is_writable })
    }

    /// Size of the file.
    pub fn bytes(&self) -> u64 {
        self.mapping.bytes as u64
    }

    /// Grows the file to `bytes` with space that is allocated, so that no write fails for want of it.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let file = &self.mapping.file;
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::OPNOTSUPP) => file.set_len(bytes)?,
            done => done?,
        }
        file.sync_all()?;
        self.mapping = Arc::new(Mapping::new(file.clone(), size(file)?, self.is_writable)?);
        Ok(())
    }

    /// The ranges that are lent.
    pub fn lent(&self) -> Vec<Range<u64>> {
        self.loans.with(|loans| loans.clone())
    }

    /// Lends the bytes in `range`.
    pub fn lend(&self, range: Range<u64>) -> Result<Mapped> {
        let (start, bytes) = (self.mapping.at(&range)?, (range.end - range.start) as usize);
        self.loans.with(|loans| loans.push(range.clone()));
        let loan = Loan { range, loans: self.loans.clone(), _mapping: self.mapping.clone() };
        Ok(Mapped { start, bytes, _loan: Arc::new(loan) })
    }

    /// Copies the bytes from `at` on.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<()> {
        let lent = self.lend(at..at.saturating_add(into.len() as u64))?;
        into.copy_from_slice(lent.as_ref());
        Ok(())
    }

    /// Address of the bytes in `range`, which may be written: nothing of it is lent.
    fn check_free(&mut self, range: &Range<u64>) -> Result<NonNull<u8>> {
        let overlaps = |lent: &Range<u64>| lent.start < range.end && range.start < lent.end;
        if !self.is_writable || self.loans.with(|loans| loans.iter().any(overlaps)) {
            return Err(Error::new(ErrorKind::PermissionDenied, "a range is being read or is read-only"));
        }
        self.mapping.at(range)
    }

    /// Writes `bytes` from `at` on.
    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let target = self.check_free(&(at..at.saturating_add(bytes.len() as u64)))?;
        // SAFETY: the target is within a writable mapping and not lent; no loan can begin during `&mut self`.
        unsafe { target.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()) };
        Ok(())
    }

    /// Stores a little-endian word at `at`, a multiple of 8, undivided.
    pub fn store(&mut self, at: u64, word: u64) -> Result<()> {
        if !at.is_multiple_of(8) {
            return Err(Error::new(ErrorKind::InvalidInput, "a word is not aligned"));
        }
        let target = self.check_free(&(at..at.saturating_add(8)))?;
        // SAFETY: as in `write`; mappings are aligned to pages, and `at` to words.
        unsafe { AtomicU64::from_ptr(target.as_ptr().cast()) }.store(word.to_le(), Ordering::Release);
        Ok(())
    }

    /// Writes the changes in `range` back and waits until they are durable.
    pub fn flush(&mut self, range: Range<u64>) -> Result<()> {
        let page = rustix::param::page_size() as u64;
        let pages = range.start - range.start % page..range.end;
        let start = self.mapping.at(&pages)?;
        // SAFETY: the range lies in this mapping (checked by `at`); the call does not change its content.
        unsafe { msync(start.as_ptr().cast(), (pages.end - pages.start) as usize, MsyncFlags::SYNC) }?;
        Ok(())
    }
}

fn size(file: &File) -> Result<usize> {
    usize::try_from(file.metadata()?.len()).map_err(|_| Error::other("it is larger than the address space"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> MappedFile {
        let mut file =
            MappedFile::open(tempfile::tempfile().expect("a temporary file"), true).expect("unlocked");
        file.grow(8192).expect("room for two pages");
        file
    }

    #[test]
    fn lent_bytes_do_not_change() {
        let mut file = file();
        file.write(4096, b"old").expect("a free range");
        let lent = file.lend(4096..4099).expect("a range of the file");
        assert!(file.write(4098, b"new").is_err() && file.store(4096, 1).is_err());
        file.grow(1 << 20).expect("room");
        file.write(4099, b"new").expect("the range behind it");
        let copy = lent.clone();
        drop(lent);
        assert!(file.write(4096, b"new").is_err());
        assert!(copy.as_ref() == b"old" && file.lent().contains(&(4096..4099)));
        drop(copy);
        file.write(4096, b"new").expect("a free range");
        file.flush(4096..4099).expect("a range of the file");
        assert!(file.lent().is_empty());
    }

    #[test]
    fn ranges_beyond_the_end_are_errors() {
        let mut file = file();
        assert!(file.lend(8000..8193).is_err() && file.write(8190, b"abc").is_err());
        assert!(file.write(u64::MAX, b"abc").is_err() && file.flush(0..8193).is_err());
        assert!(file.store(4, 1).is_err() && file.read(8192, &mut [0]).is_err());
        #[expect(clippy::reversed_empty_ranges, reason = "a wrong range")]
        let inverted = file.lend(9..8);
        assert!(inverted.is_err());
    }
}
