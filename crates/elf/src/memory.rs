//! Memory for images and tables.
//!
//! Searches touch few cache lines far apart. With pages of 4 KiB nearly every one of them also misses the
//! processor's translation cache, so that large allocations ask for huge pages.
#![allow(unsafe_code)]

use std::collections::TryReserveError;

use rustix::mm::{Advice, madvise};

/// Bytes from which huge pages are asked for: less would waste most of the last one.
const LARGE: usize = 4 << 20;
const PAGE: usize = 4096;

/// An empty vector with room for `count` items.
pub(crate) fn reserve<T>(count: usize) -> Result<Vec<T>, TryReserveError> {
    let mut room: Vec<T> = Vec::new();
    room.try_reserve_exact(count)?;
    ask_for_huge_pages(room.as_mut_ptr(), count);
    Ok(room)
}

/// `count` items of the default, which for numbers the system provides when they are first written.
pub(crate) fn defaults<T: Clone + Default>(count: usize) -> Vec<T> {
    let mut items = vec![T::default(); count];
    ask_for_huge_pages(items.as_mut_ptr(), count);
    items
}

/// Does what [`defaults`] does, or fails if there is no room.
pub(crate) fn try_defaults<T: Clone + Default>(count: usize) -> Result<Vec<T>, TryReserveError> {
    // The room is given back at once, untouched: the standard library has no such allocation that may fail.
    Vec::<T>::new().try_reserve_exact(count)?;
    Ok(defaults(count))
}

/// Asks for huge pages for an allocation with room for `count` items.
fn ask_for_huge_pages<T>(start: *mut T, count: usize) {
    let (start, bytes) = (start.cast::<u8>(), count * size_of::<T>());
    if bytes < LARGE {
        return;
    }
    let skipped = start.align_offset(PAGE);
    let pages = (bytes - skipped) / PAGE * PAGE;
    // SAFETY: both callers pass an allocation of theirs, within which the pages lie, and the advice changes none of
    // their bytes. A kernel that does not take it is no reason to fail.
    let _ = unsafe { madvise(start.wrapping_add(skipped).cast(), pages, Advice::LinuxHugepage) };
}
