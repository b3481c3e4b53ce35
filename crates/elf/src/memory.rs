//! Memory for images and tables.
//!
//! Searches touch few cache lines far apart. With pages of 4 KiB nearly every one of them also misses the
//! processor's translation cache, so that large allocations ask for huge pages.
#![allow(unsafe_code)]

use std::collections::TryReserveError;

use rustix::mm::{Advice, madvise};

/// Bytes from which huge pages are asked for: less would waste most of the last one.
const LARGE: usize = 16 << 20;
const PAGE: usize = 4096;

/// An empty vector with room for `bytes` bytes.
pub(crate) fn reserve(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut room = Vec::new();
    room.try_reserve_exact(bytes)?;
    if bytes >= LARGE {
        let start: *mut u8 = room.as_mut_ptr();
        let skipped = start.align_offset(PAGE);
        let pages = (bytes - skipped) / PAGE * PAGE;
        // SAFETY: the pages lie within the vector's allocation, and the advice changes none of their bytes. A kernel
        // that does not take it is no reason to fail.
        let _ = unsafe { madvise(start.add(skipped).cast(), pages, Advice::LinuxHugepage) };
    }
    Ok(room)
}
