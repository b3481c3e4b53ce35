//! A copy of a volume that is being filled while clients write it.
//!
//! Clients write such a copy like any other, before the primary. What they wrote is newer than what the primary had
//! when it was READ, so it is kept: a bit for each word tells which words they wrote. Every other word gets what the
//! primary has. Memory servers refuse verbs of earlier views, in which the copy is not written; so one READ of the
//! primary in this view or a later one suffices for each word.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pando_fabric::{Result, WORD};
use pando_fabric_local::ServedRegion;
use pando_member::VolumeId;

use crate::group::Fill;

/// A copy that is being filled.
pub(super) struct Filling {
    pub volume: VolumeId,
    pub slot: u16,
    /// Bytes of the region that it has.
    pub range: Range<u64>,
    /// Words that clients wrote: a bit for each.
    written: Mutex<Vec<u64>>,
    /// Bytes from the beginning on that are whole.
    whole: AtomicU64,
}

/// Holds the copy still. No word of it changes meanwhile but by the holder.
pub(super) struct Held<'f> {
    begin: u64,
    written: MutexGuard<'f, Vec<u64>>,
}

impl Filling {
    pub fn new(volume: VolumeId, slot: u16, range: Range<u64>) -> Self {
        let words = (range.end - range.start) / WORD as u64;
        // Pages of it that are never touched take no memory.
        let written = Mutex::new(vec![0; words.div_ceil(u64::from(u64::BITS)) as usize]);
        Self { volume, slot, range, written, whole: AtomicU64::new(0) }
    }

    /// Notes how many bytes from the beginning on are whole.
    pub fn note_whole(&self, bytes: u64) {
        self.whole.store(bytes, Relaxed);
    }

    /// How far it is.
    pub fn progress(&self) -> Fill {
        let bytes = self.range.end - self.range.start;
        Fill { volume: self.volume, whole: self.whole.load(Relaxed), bytes }
    }

    /// Holds the copy if `offset` of the region is within.
    pub fn hold(&self, offset: u64) -> Option<Held<'_>> {
        self.range.contains(&offset).then(|| Held {
            begin: self.range.start,
            written: self.written.lock().unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Stores bytes of the primary from `offset` of the region on, except for words that clients wrote. Returns the number of
    /// bytes that were stored.
    ///
    /// # Errors
    /// If there is no space for them.
    pub fn store(&self, region: &ServedRegion, offset: u64, bytes: &[u8]) -> Result<u64> {
        let held = self.hold(offset).expect("a part of this copy");
        let mut found = Vec::new();
        region.read(offset, bytes.len(), &mut found)?;
        if found == bytes {
            return Ok(0);
        }
        let (mut at, mut stored) = (0, 0);
        while at < bytes.len() {
            let is_written = held.is_written(offset + at as u64);
            let mut end = at + WORD;
            while end < bytes.len() && held.is_written(offset + end as u64) == is_written {
                end += WORD;
            }
            if !is_written && found[at..end] != bytes[at..end] {
                region.reserve(offset + at as u64, (end - at) as u64)?;
                region.write(offset + at as u64, &bytes[at..end])?;
                stored += (end - at) as u64;
            }
            at = end;
        }
        Ok(stored)
    }
}

impl Held<'_> {
    fn place(&self, offset: u64) -> (usize, u64) {
        let word = (offset - self.begin) / WORD as u64;
        ((word / u64::from(u64::BITS)) as usize, 1 << (word % u64::from(u64::BITS)))
    }

    fn is_written(&self, offset: u64) -> bool {
        let (at, bit) = self.place(offset);
        self.written[at] & bit != 0
    }

    /// Notes that a client wrote `len` bytes from `offset` of the region on.
    pub fn note(&mut self, offset: u64, len: usize) {
        for offset in (offset..offset + len as u64).step_by(WORD) {
            let (at, bit) = self.place(offset);
            if let Some(bits) = self.written.get_mut(at) {
                *bits |= bit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pando_fabric::MemoryServerId;
    use pando_fabric_local::{LocalConfig, LocalFabric};

    use super::*;

    #[test]
    fn what_clients_wrote_stays_and_everything_else_is_filled() {
        let config = LocalConfig { server_sizes: vec![1 << 16], huge_pages: false };
        let region = LocalFabric::new(config).and_then(|local| local.served_region(MemoryServerId(0)));
        let region = region.expect("so little memory");
        let filling = Filling::new(VolumeId(0), 1, 4096..8192);
        assert!(filling.hold(4088).is_none() && filling.hold(8192).is_none());
        region.write(4096 + 64, &[7; 16]).expect("it fits");
        filling.hold(4096 + 64).expect("within").note(4096 + 64, 16);
        assert_eq!(filling.store(&region, 4096, &[1; 128]).expect("it fits"), 112);
        assert_eq!(filling.store(&region, 4096, &[1; 128]).expect("it fits"), 0);
        let mut found = Vec::new();
        region.read(4096, 136, &mut found).expect("it is there");
        assert_eq!(found, [&[1; 64][..], &[7; 16], &[1; 48], &[0; 8]].concat());
        // Equal bytes are not written again, and another copy has bits of its own.
        assert_eq!(filling.store(&region, 8184, &[2; 8]).expect("it fits"), 8);
    }
}
