//! The bytes of one memory server, as atomic words.
//!
//! Memory orderings of the verbs:
//! - READ copies with relaxed loads and ends with an acquire fence; WRITE starts with a release fence and
//!   copies with relaxed stores. A READ that sees the effect of a later WRITE or atomic of a future also sees
//!   the effects of its earlier ones.
//! - READ of a word is an acquire load, WRITE of a word a release store. Atomics are sequentially consistent.
//!
//! Every access is checked against the region before its first word moves, so a refused verb has no effect.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use pando_fabric::{FabricError, GlobalAddr, LINE, MAX_OFFSET, MemoryServerId, Result, WORD};
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, fstatvfs, ftruncate, memfd_create};
use rustix::io::Errno;

use crate::sys::Mapping;

const LINE_WORDS: usize = LINE / WORD;

/// Page size of the kernel; sizes are rounded up to a multiple of it.
pub(crate) const PAGE: u64 = 4096;

pub(crate) struct Region {
    mapping: Mapping,
    /// Whether verbs may change the region.
    writable: bool,
    backing: Backing,
}

enum Backing {
    Anonymous,
    File {
        file: File,
        path: PathBuf,
    },
    /// All its memory is present from the start.
    Device {
        file: File,
        path: PathBuf,
    },
}

impl Region {
    /// Of a memory server that is not there.
    pub(crate) fn nowhere() -> Self {
        Self { mapping: Mapping::nothing(), writable: false, backing: Backing::Anonymous }
    }

    pub(crate) fn anonymous(bytes: usize, huge_pages: bool) -> io::Result<Self> {
        let mapping = Mapping::anonymous(bytes)?;
        if huge_pages {
            mapping.advise_huge_pages();
        }
        Ok(Self { mapping, writable: true, backing: Backing::Anonymous })
    }

    /// Maps the first `bytes` of a file opened for reading and, if `writable`, for writing.
    pub(crate) fn of_file(
        file: File,
        path: PathBuf,
        bytes: usize,
        writable: bool,
        huge_pages: bool,
    ) -> io::Result<Self> {
        let mapping = Mapping::of_file(file.as_fd(), bytes, writable)?;
        if huge_pages {
            mapping.advise_huge_pages();
        }
        Ok(Self { mapping, writable, backing: Backing::File { file, path } })
    }

    /// Maps a device of `bytes` bytes, opened for reading and writing.
    pub(crate) fn of_device(file: File, path: PathBuf, bytes: usize) -> io::Result<Self> {
        let mapping = Mapping::of_file(file.as_fd(), bytes, true)?;
        Ok(Self { mapping, writable: true, backing: Backing::Device { file, path } })
    }

    /// Maps at least `bytes` of reserved huge pages. All pages are allocated now: a page missing later would
    /// be a fault that ends the process.
    pub(crate) fn of_huge_pages(bytes: u64) -> io::Result<Self> {
        let file = memfd_create(c"pando", MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB)?;
        let bytes = bytes.next_multiple_of(fstatvfs(&file)?.f_bsize.max(1));
        ftruncate(&file, bytes)?;
        fallocate(&file, FallocateFlags::empty(), 0, bytes)?;
        let mapping = Mapping::of_file(file.as_fd(), bytes as usize, true)?;
        Ok(Self { mapping, writable: true, backing: Backing::Anonymous })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.mapping.bytes() as u64
    }

    fn is_device(&self) -> bool {
        matches!(self.backing, Backing::Device { .. })
    }

    /// The file and its path, for a file or a device.
    pub(crate) fn file(&self) -> Option<(&File, &Path)> {
        match &self.backing {
            Backing::Anonymous => None,
            Backing::File { file, path } | Backing::Device { file, path } => Some((file, path)),
        }
    }

    /// Has the kernel bring these bytes of a file into memory page by page. Read ahead, they would be in larger pieces, all
    /// of which are written to the disk for each changed word.
    pub(crate) fn expect_appends(&self, at: GlobalAddr, len: u64) {
        if self.file().is_some() {
            self.mapping.advise_random(at.offset() as usize, len as usize);
        }
    }

    #[inline]
    pub(crate) fn read(&self, at: GlobalAddr, into: &[AtomicU64]) -> Result<()> {
        copy_words(self.words_to_read(at, into.len())?, into);
        fence(Acquire);
        Ok(())
    }

    #[inline]
    pub(crate) fn write(&self, at: GlobalAddr, from: &[AtomicU64]) -> Result<()> {
        let words = self.words_to_change(at, from.len())?;
        fence(Release);
        copy_words(from, words);
        Ok(())
    }

    /// READ of `count` words, appended to `out` as little-endian bytes.
    #[inline]
    pub(crate) fn read_bytes(&self, at: GlobalAddr, count: usize, out: &mut Vec<u8>) -> Result<()> {
        let words = self.words_to_read(at, count)?;
        let start = out.len();
        out.resize(start + count * WORD, 0);
        let (bytes, _) = out[start..].as_chunks_mut();
        for (bytes, word) in bytes.iter_mut().zip(words) {
            *bytes = word.load(Relaxed).to_le_bytes();
        }
        fence(Acquire);
        Ok(())
    }

    /// WRITE of whole words given as little-endian bytes.
    #[inline]
    pub(crate) fn write_bytes(&self, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
        let (bytes, _) = bytes.as_chunks();
        let words = self.words_to_change(at, bytes.len())?;
        fence(Release);
        for (word, bytes) in words.iter().zip(bytes) {
            word.store(u64::from_le_bytes(*bytes), Relaxed);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        Ok(self.words_to_read(at, 1)?[0].load(Acquire))
    }

    #[inline]
    pub(crate) fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.word_to_change(at)?.store(value, Release);
        Ok(())
    }

    #[inline]
    pub(crate) fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        let word = self.word_to_change(at)?;
        Ok(word.compare_exchange(expected, new, SeqCst, SeqCst).unwrap_or_else(|found| found))
    }

    #[inline]
    pub(crate) fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        let word = self.word_to_change(at)?;
        let mut found = word.load(SeqCst);
        while (found ^ expected) & compare_mask == 0 {
            let swapped = (found & !swap_mask) | (new & swap_mask);
            match word.compare_exchange_weak(found, swapped, SeqCst, SeqCst) {
                Ok(before) => return Ok(before),
                Err(changed) => found = changed,
            }
        }
        Ok(found)
    }

    #[inline]
    pub(crate) fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        Ok(self.word_to_change(at)?.fetch_add(add, SeqCst))
    }

    #[inline]
    fn word_to_change(&self, at: GlobalAddr) -> Result<&AtomicU64> {
        Ok(&self.words_to_change(at, 1)?[0])
    }

    #[inline]
    pub(crate) fn words_to_change(&self, at: GlobalAddr, count: usize) -> Result<&[AtomicU64]> {
        let words = self.words_to_read(at, count)?;
        if self.writable { Ok(words) } else { Err(FabricError::ReadOnly { at, len: count * WORD }) }
    }

    #[inline]
    pub(crate) fn words_to_read(&self, at: GlobalAddr, count: usize) -> Result<&[AtomicU64]> {
        let first = at.offset() as usize / WORD;
        match self.mapping.words().get(first..first + count) {
            Some(words) if at.offset().is_multiple_of(WORD as u64) => Ok(words),
            _ => Err(self.refusal(at, count * WORD)),
        }
    }

    /// All words, for the handler of a call with operation number `op`.
    ///
    /// # Errors
    /// `Refused` if the region is read-only.
    pub(crate) fn words_of_server(&self, server: MemoryServerId, op: u16) -> Result<&[AtomicU64]> {
        if self.writable {
            return Ok(self.mapping.words());
        }
        let reason = "its memory is only read here".to_owned();
        Err(FabricError::Refused { server, op, reason })
    }

    /// All words, if they are private memory of this process.
    ///
    /// # Errors
    /// `Open` for a file or a device.
    pub(crate) fn words_of_device(&self) -> Result<&[AtomicU64]> {
        match &self.backing {
            Backing::Anonymous => Ok(self.mapping.words()),
            Backing::File { path, .. } | Backing::Device { path, .. } => {
                let reason = "memory in a file or a device cannot be offered by RDMA".to_owned();
                Err(FabricError::Open { path: path.display().to_string(), reason })
            }
        }
    }

    #[cold]
    fn refusal(&self, at: GlobalAddr, len: usize) -> FabricError {
        if at.offset().is_multiple_of(WORD as u64) {
            FabricError::OutOfRegion { at, len, region_len: self.bytes() }
        } else {
            FabricError::Misaligned { at, len }
        }
    }

    /// Backs `len` bytes at `at` with memory of the file system. Anonymous memory and devices need no
    /// reservation.
    pub(crate) fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.check_range(at, len)?;
        if !self.writable {
            return Err(FabricError::ReadOnly { at, len: len as usize });
        }
        match &self.backing {
            Backing::File { file, path } if len > 0 => reserve_in_file(file, path, at, len),
            _ => Ok(()),
        }
    }

    fn check_range(&self, at: GlobalAddr, len: u64) -> Result<()> {
        if len > self.bytes() || at.offset() > self.bytes() - len {
            return Err(FabricError::OutOfRegion { at, len: len as usize, region_len: self.bytes() });
        }
        Ok(())
    }

    /// Writes all changes to the file and waits until they are durable.
    pub(crate) fn flush(&self) -> Result<()> {
        self.flush_range(0, self.mapping.bytes())
    }

    /// [`Region::flush`] for `len` bytes at `at`.
    pub(crate) fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.check_range(at, len)?;
        self.flush_range(at.offset() as usize, len as usize)
    }

    fn flush_range(&self, start: usize, len: usize) -> Result<()> {
        let Some((_, path)) = self.file() else { return Ok(()) };
        if !self.writable || len == 0 {
            return Ok(());
        }
        #[cfg(feature = "power")]
        let persisting = crate::power::Persisting::begin(path, self.mapping.words(), start, len)
            .map_err(|error| system_error(path, error.to_string()))?;
        match self.mapping.flush(start, len) {
            #[cfg(feature = "power")]
            Ok(()) => persisting.end().map_err(|error| system_error(path, error.to_string())),
            // Persistent-memory devices reject `msync`; they have no other storage to write to.
            Err(err) if err.kind() == io::ErrorKind::InvalidInput && self.is_device() => Ok(()),
            flushed => {
                flushed.map_err(|err| system_error(path, format!("cannot be written to its device: {err}")))
            }
        }
    }
}

pub(crate) fn check_size(path: &Path, bytes: u64) -> Result<()> {
    match bytes {
        0 => Err(open_error(path, "a memory server needs at least one byte")),
        1..=MAX_OFFSET => Ok(()),
        _ => Err(open_error(path, format!("a memory server of {bytes} bytes is larger than 2^48"))),
    }
}

pub(crate) fn open_error(path: &Path, reason: impl Into<String>) -> FabricError {
    FabricError::Open { path: path.display().to_string(), reason: reason.into() }
}

pub(crate) fn system_error(path: &Path, reason: impl Into<String>) -> FabricError {
    FabricError::System { path: path.display().to_string(), reason: reason.into() }
}

/// Allocates the range. On a file system that cannot, checks the free space instead.
fn reserve_in_file(file: &File, path: &Path, at: GlobalAddr, len: u64) -> Result<()> {
    let no_space = |reason: String| FabricError::NoSpace { at, len, reason };
    let allocated = loop {
        match fallocate(file, FallocateFlags::empty(), at.offset(), len) {
            Err(Errno::INTR) => {}
            done => break done,
        }
    };
    match allocated {
        Ok(()) => Ok(()),
        Err(Errno::NOSPC) => Err(no_space(format!("the file system of {} is full", path.display()))),
        Err(Errno::DQUOT) => Err(no_space(format!("the disk quota at {} is used up", path.display()))),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            let free =
                free_bytes(file).map_err(|err| no_space(format!("its free space is unknown: {err}")))?;
            if free >= len {
                return Ok(());
            }
            Err(no_space(format!("the file system of {} has {free} bytes left", path.display())))
        }
        Err(err) => Err(no_space(format!("{}: {err}", path.display()))),
    }
}

/// Free space of the file system. This is only an estimate: other writers may use it up.
fn free_bytes(file: &File) -> io::Result<u64> {
    let stat = fstatvfs(file)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Copies word by word in blocks of one line, so that the loop has no check per word. Both lengths are equal.
#[inline]
fn copy_words(from: &[AtomicU64], to: &[AtomicU64]) {
    debug_assert_eq!(from.len(), to.len());
    let (from_lines, from_rest) = from.as_chunks::<LINE_WORDS>();
    let (to_lines, to_rest) = to.as_chunks::<LINE_WORDS>();
    for (from, to) in from_lines.iter().zip(to_lines) {
        let line: [u64; LINE_WORDS] = std::array::from_fn(|word| from[word].load(Relaxed));
        for (word, value) in to.iter().zip(line) {
            word.store(value, Relaxed);
        }
    }
    for (from, to) in from_rest.iter().zip(to_rest) {
        to.store(from.load(Relaxed), Relaxed);
    }
}
