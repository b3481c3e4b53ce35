//! The first 64 bytes of every node, the same in both layouts.
//!
//! A node contains its identity (address, index, level and format), so that a pointer to anything else is
//! detected. Word 0 is never copied from a page: in remote memory it is the lock, in a frame the latch.
//!
//! ```text
//! word 0  remote lock word; in a frame: the latch
//!      1  own global address
//!      2  [magic:16][count:16][flags:16][format:8][level:8]
//!      3  [heap:32, slotted only][index id:32]
//!      4  fixed, one-word keys: low fence     slotted: where the fences are
//!      5  fixed, one-word keys: high fence    slotted: prefix length
//!      6  slotted inner: leftmost child
//!      7  inner, shared, local copy: version of the remote lock word that it was read at
//!         inner, shared, remote copy: digests of its bytes before and after the last change
//!         leaf: [length of the run:16][index after the last insert:16], a hint for splits
//! ```

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;

pub const LOCK: usize = 0;
pub const ADDR: usize = 1;
pub const KIND: usize = 2;
pub const IDS: usize = 3;
pub const REMOTE_VERSION: usize = 7;
/// Number of words of the header.
pub const WORDS: usize = 8;

const MAGIC: u64 = 0xde0a;
const COUNT_SHIFT: u32 = 32;
const FLAGS_SHIFT: u32 = 16;
const FORMAT_SHIFT: u32 = 8;

/// The low fence is infinite.
pub const LOW_INFINITE: u64 = 1 << FLAGS_SHIFT;
/// The high fence is infinite.
pub const HIGH_INFINITE: u64 = 1 << (FLAGS_SHIFT + 1);
/// The node crosses a boundary of this run. Each compute server sets the flag in its own copy.
pub const SHARED: u64 = 1 << (FLAGS_SHIFT + 2);
/// The node crossed a boundary at some time while several compute servers ran. They may still remember its
/// address and lock it. So it is not freed before all have left, and its lock word changes only by the lock
/// protocol.
pub const WAS_SHARED: u64 = 1 << (FLAGS_SHIFT + 3);

/// The old copy of a node that moved off a draining memory server. An operation that reached it by an old
/// address restarts.
pub const MOVED: u64 = 1 << (FLAGS_SHIFT + 4);

/// Number of a layout, so that an index is not read with another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Format {
    Fixed = 1,
    Slotted = 2,
}

#[inline]
pub fn get(page: &[Word], word: usize) -> u64 {
    page.get(word).map_or(0, |word| word.load(Relaxed))
}

#[inline]
pub fn set(page: &[Word], word: usize, value: u64) {
    page[word].store(value, Relaxed);
}

#[inline]
pub fn level(page: &[Word]) -> u8 {
    get(page, KIND) as u8
}

#[inline]
pub fn raw_count(page: &[Word]) -> usize {
    (get(page, KIND) >> COUNT_SHIFT) as u16 as usize
}

pub fn set_count(page: &[Word], count: usize) {
    let kept = get(page, KIND) & !(0xffff << COUNT_SHIFT);
    set(page, KIND, kept | ((count as u64 & 0xffff) << COUNT_SHIFT));
}

pub fn set_level(page: &[Word], level: u8) {
    set(page, KIND, (get(page, KIND) & !0xff) | u64::from(level));
}

#[inline]
pub fn has(page: &[Word], flag: u64) -> bool {
    get(page, KIND) & flag != 0
}

pub fn set_flag(page: &[Word], flag: u64, on: bool) {
    let kept = get(page, KIND) & !flag;
    set(page, KIND, if on { kept | flag } else { kept });
}

#[inline]
pub fn addr(page: &[Word]) -> u64 {
    get(page, ADDR)
}

#[inline]
pub fn index_id(page: &[Word]) -> u32 {
    get(page, IDS) as u32
}

/// Number of consecutive inserts, each right behind the one before, from which on they count as a run.
const RUN: u64 = 3;

/// Records that an entry was inserted at `i` of a leaf, so that rising inserts are recognised anywhere in the
/// tree.
pub fn note_insert(page: &[Word], i: usize) {
    let hint = get(page, REMOTE_VERSION);
    let run = if hint & 0xffff == i as u64 { ((hint >> 16) & 0xffff).min(0xfffe) + 1 } else { 0 };
    set(page, REMOTE_VERSION, run << 16 | (i as u64 + 1));
}

/// Whether an insert at `i` of a leaf would continue a run of inserts, each right behind the one before.
pub fn continues_run(page: &[Word], i: usize) -> bool {
    let hint = get(page, REMOTE_VERSION);
    hint >> 16 & 0xffff >= RUN && hint & 0xffff == i as u64
}

/// Whether an insert at `i` of a leaf would continue a run of at least half of the entries before it.
pub fn continues_long_run(page: &[Word], i: usize) -> bool {
    let run = get(page, REMOTE_VERSION) >> 16 & 0xffff;
    continues_run(page, i) && 2 * run >= i as u64
}

/// Writes the fields that do not depend on the layout: no entries, infinite fences.
pub fn init(page: &[Word], format: Format, addr: u64, index_id: u32, level: u8) {
    for word in &page[IDS..WORDS] {
        word.store(0, Relaxed);
    }
    set(page, ADDR, addr);
    set(page, IDS, u64::from(index_id));
    let kind = u64::from(level) | ((format as u64) << FORMAT_SHIFT) | (MAGIC << 48);
    set(page, KIND, kind | LOW_INFINITE | HIGH_INFINITE);
}

/// Checks magic, format and level.
pub fn verify(page: &[Word], format: Format) -> Result<(), &'static str> {
    let kind = get(page, KIND);
    if kind >> 48 != MAGIC {
        return Err("not a node");
    }
    if (kind >> FORMAT_SHIFT) as u8 != format as u8 {
        return Err("a node of another layout");
    }
    if level(page) > 60 {
        return Err("a node of an impossible level");
    }
    Ok(())
}
