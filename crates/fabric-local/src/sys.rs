//! Memory mappings: all unsafe code of this crate.
//!
//! A [`Mapping`] owns a range of the address space from `mmap` to `munmap` and lends it as atomic words.
//! Mappings are made without reservation, so untouched memory costs nothing.
//!
//! If a mapped file is truncated, accesses beyond its new end raise SIGBUS. So does the first touch of a hole
//! when the file system is full (hence `Endpoint::reserve`). Both end the process; neither is undefined
//! behaviour.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

use pando_fabric::WORD;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap};

pub(crate) struct Mapping {
    start: NonNull<c_void>,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread; its memory is only lent as atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above; what changes no bytes (`flush`, `advise_..`) are system calls that any thread may make at any time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// No memory.
    pub(crate) fn nothing() -> Self {
        Self { start: NonNull::<AtomicU64>::dangling().cast(), bytes: 0 }
    }

    /// Maps `bytes` of zeros, private to this process.
    pub(crate) fn anonymous(bytes: usize) -> io::Result<Self> {
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel picks a free range, so no existing object is overlaid.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, prot, flags) }?;
        Self::owned(start, bytes)
    }

    /// Maps the first `bytes` of `file`, shared with all other mappings of it. Stores fault unless
    /// `writable`.
    pub(crate) fn of_file(file: BorrowedFd<'_>, bytes: usize, writable: bool) -> io::Result<Self> {
        let prot = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the kernel picks a free range, so no existing object is overlaid.
        let start = unsafe { mmap(null_mut(), bytes, prot, flags, file, 0) }?;
        Self::owned(start, bytes)
    }

    fn owned(start: *mut c_void, bytes: usize) -> io::Result<Self> {
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("memory was mapped at address 0"))?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Asks for huge pages; the kernel may ignore the request.
    pub(crate) fn advise_huge_pages(&self) {
        // SAFETY: the range is this mapping, which `self` owns; the advice does not change its content.
        let _ = unsafe { madvise(self.start.as_ptr(), self.bytes, Advice::LinuxHugepage) };
    }

    /// Says that `len` bytes from byte `start` on, which are in the mapping, are not read in order; the kernel may ignore it.
    pub(crate) fn advise_random(&self, start: usize, len: usize) {
        let first = start - start % rustix::param::page_size();
        if start.checked_add(len).is_some_and(|end| end <= self.bytes) {
            // SAFETY: the range lies in this mapping, which `self` owns (just checked); the advice does not change its content.
            let _ =
                unsafe { madvise(self.start.as_ptr().byte_add(first), start + len - first, Advice::Random) };
        }
    }

    /// Writes the changed pages of `len` bytes from byte `start` on to the file and waits until they are
    /// durable.
    pub(crate) fn flush(&self, start: usize, len: usize) -> io::Result<()> {
        let first = start - start % rustix::param::page_size();
        let end = start.checked_add(len).filter(|&end| end <= self.bytes);
        let end = end.ok_or_else(|| io::Error::other("a range beyond the mapping"))?;
        // SAFETY: the range lies in this mapping, which `self` owns (checked above); MS_SYNC does not change
        // its content.
        Ok(unsafe { msync(self.start.as_ptr().byte_add(first), end - first, MsyncFlags::SYNC) }?)
    }

    /// The memory as words. A store into a mapping that is not writable is a fault that ends the process;
    /// `Region` never does it.
    #[inline]
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is aligned (to a page unless there are no bytes) and valid for `bytes` until drop, which the returned borrow
        // precludes. Every bit pattern is a u64, and fresh pages read as zeros. This process touches the
        // range through these atomics only (the obligation of this module); other processes that map the file
        // use atomics as well.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast::<AtomicU64>(), self.bytes / WORD) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the range is this mapping; no borrow of its words outlives `self`.
        let unmapped = unsafe { munmap(self.start.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of an owned range: {unmapped:?}");
    }
}
