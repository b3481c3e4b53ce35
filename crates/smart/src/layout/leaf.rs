//! Leaves: a key and its value (SMART §4.2: update in place, rear embedded lock).
//!
//! ```text
//!  word 0      header: [mark:8][tag:24][words:16][key length:16]
//!       1      key, the last word padded with zeros
//!       ...    room for the value, each word masked by a stream of its version
//!       n - 3  [version:48][value length:16]
//!       n - 2  checksum of the address and all words before it
//!       n - 1  rear word: state, lock, version
//! ```
//! An update in place WRITEs everything from the value to the rear word at once, and so releases the lock in
//! the rear word. That needs no order within the WRITE. Every version masks the value differently, so every
//! word of it changes; a leaf with a correct checksum, whose rear word has the version of the value, was
//! written completely. The lock is not taken before that. Header and key never change.

use pando_fabric::defect::defect;
use pando_fabric::{GlobalAddr, PageBuf};
use pando_pool::AttachSlot;
use pando_pool::lock::{lock_owner, unlocked_version};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::slot::{LeafSize, Slot};
use super::{mix, words_of};
use crate::defect::Defect;

const MARK: u64 = 0x5a;
/// Words besides key and value.
const OVERHEAD: usize = 4;
/// Words after the value.
const TAIL: usize = 3;
pub(crate) const LENGTH_MAX: usize = u16::MAX as usize;

/// The last word of a leaf, which holds its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rear {
    /// The current leaf of its key, with the version of the last value.
    Free(u64),
    /// The same, locked for a change.
    Locked(AttachSlot),
    /// The key was removed.
    Dead,
    /// The key has another leaf now.
    Moved(Slot),
}

const GONE: u64 = 1 << 62;
const MOVED: u64 = 1 << 61;

impl Rear {
    pub fn from_raw(raw: u64) -> Self {
        match lock_owner(raw) {
            Some(owner) => Self::Locked(owner),
            None if raw & GONE == 0 => Self::Free(unlocked_version(raw).unwrap_or(0)),
            None if raw & MOVED == 0 => Self::Dead,
            None => Self::Moved(Slot::of_leaf_target(0, raw & (MOVED - 1))),
        }
    }

    /// A word that marks the key as removed. The writer recognises it by the `nonce`.
    pub fn dead(nonce: u64) -> u64 {
        GONE | nonce & (MOVED - 1)
    }

    /// A word that leads to the key's new leaf.
    pub fn moved(to: Slot) -> u64 {
        GONE | MOVED | to.target()
    }
}

/// Size of a leaf for such an entry; `None` if a length is too large.
pub(crate) fn size_for(key_len: usize, value_len: usize) -> Option<LeafSize> {
    let is_sayable = key_len <= LENGTH_MAX && value_len <= LENGTH_MAX;
    let words = OVERHEAD + key_len.div_ceil(8) + value_len.div_ceil(8);
    LeafSize::holding(words).filter(|size| is_sayable && size.words() <= LENGTH_MAX)
}

/// Maximum number of bytes of an entry besides its key and value.
pub(crate) const OVERHEAD_MAX: usize = (OVERHEAD + 2) * 8;

/// A complete leaf as it was READ.
pub(crate) struct Leaf {
    pub addr: GlobalAddr,
    page: PageBuf,
    key_len: usize,
}

/// The part of a leaf that an update WRITEs.
pub(crate) struct Tail {
    pub at: GlobalAddr,
    /// Without the rear word.
    pub words: Vec<u64>,
}

fn mask(version: u64, at: usize) -> u64 {
    mix(version.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64))
}

/// XXH3 of words, seeded with their address.
fn checksum(addr: GlobalAddr, words: impl Iterator<Item = u64>) -> u64 {
    let mut few = [0; 256];
    let mut len = 0;
    let mut many = Vec::new();
    for word in words {
        if len + 8 > few.len() {
            many.extend_from_slice(&few[..len]);
            len = 0;
        }
        few[len..len + 8].copy_from_slice(&word.to_le_bytes());
        len += 8;
    }
    if many.is_empty() {
        return xxh3_64_with_seed(&few[..len], addr.raw());
    }
    many.extend_from_slice(&few[..len]);
    xxh3_64_with_seed(&many, addr.raw())
}

/// Fills in the words of a new, unlocked leaf at `addr`.
pub(crate) fn fill(page: &PageBuf, addr: GlobalAddr, tag: u32, key: &[u8], value: &[u8], version: u64) {
    let n = page.len() / 8;
    let header = MARK << 56 | u64::from(tag & 0xff_ffff) << 32 | (n as u64) << 16 | key.len() as u64;
    page.set(0, header);
    words_of(key).enumerate().for_each(|(i, word)| page.set(1 + i, word));
    let first = 1 + key.len().div_ceil(8);
    for (i, word) in value_words(value, n - TAIL - first, version).enumerate() {
        page.set(first + i, word);
    }
    page.set(n - 3, version << 16 | value.len() as u64);
    page.set(n - 2, checksum(addr, (0..n - 2).map(|word| page.get(word))));
    page.set(n - 1, version);
}

fn value_words(value: &[u8], room: usize, version: u64) -> impl Iterator<Item = u64> + '_ {
    let padded = words_of(value).chain(std::iter::repeat(0)).take(room);
    padded.enumerate().map(move |(at, word)| word ^ mask(version, at))
}

impl Leaf {
    /// The leaf in a page, if its checksum is correct. Returns the page otherwise.
    pub fn of(page: PageBuf, addr: GlobalAddr, tag: u32) -> Result<Self, PageBuf> {
        let n = page.len() / 8;
        let header = page.get(0);
        let key_len = (header & 0xffff) as usize;
        let is_sound = header >> 32 == MARK << 24 | u64::from(tag & 0xff_ffff)
            && (header >> 16 & 0xffff) as usize == n
            && n >= OVERHEAD + key_len.div_ceil(8)
            && (page.get(n - 2) == checksum(addr, (0..n - 2).map(|word| page.get(word)))
                || defect(Defect::SkipChecksum));
        if !is_sound {
            return Err(page);
        }
        Ok(Self { addr, page, key_len })
    }

    pub fn into_page(self) -> PageBuf {
        self.page
    }

    fn len(&self) -> usize {
        self.page.len() / 8
    }

    pub fn size(&self) -> LeafSize {
        LeafSize::holding(self.len()).expect("it was READ by such a size")
    }

    pub fn rear(&self) -> Rear {
        Rear::from_raw(self.page.get(self.len() - 1))
    }

    pub fn rear_at(&self) -> GlobalAddr {
        self.addr.add((self.len() - 1) as u64 * 8)
    }

    /// Version of its value.
    pub fn version(&self) -> u64 {
        self.page.get(self.len() - 3) >> 16
    }

    /// The version, if the leaf is unlocked and no part of a change is still to land.
    pub fn settled_version(&self) -> Option<u64> {
        match self.rear() {
            Rear::Free(version) if version == self.version() => Some(version),
            _ => None,
        }
    }

    pub fn has_key(&self, key: &[u8]) -> bool {
        self.key_len == key.len() && words_of(key).enumerate().all(|(i, word)| self.page.get(1 + i) == word)
    }

    /// Byte number `at` of its key; `None` behind its end.
    pub fn key_byte(&self, at: usize) -> Option<u8> {
        (at < self.key_len).then(|| self.page.get(1 + at / 8).to_le_bytes()[at % 8])
    }

    pub fn append_key(&self, out: &mut Vec<u8>) {
        let end = out.len() + self.key_len;
        (0..self.key_len.div_ceil(8)).for_each(|i| out.extend(self.page.get(1 + i).to_le_bytes()));
        out.truncate(end);
    }

    pub fn value_len(&self) -> usize {
        (self.page.get(self.len() - 3) & 0xffff) as usize
    }

    fn first_value_word(&self) -> usize {
        1 + self.key_len.div_ceil(8)
    }

    pub fn append_value(&self, out: &mut Vec<u8>) {
        let (first, version, len) = (self.first_value_word(), self.version(), self.value_len());
        let end = out.len() + len;
        for i in 0..len.div_ceil(8) {
            out.extend((self.page.get(first + i) ^ mask(version, i)).to_le_bytes());
        }
        out.truncate(end);
    }

    /// The words that an update in place WRITEs; `None` if the value does not fit.
    pub fn tail(&self, value: &[u8], version: u64) -> Option<Tail> {
        let (n, first) = (self.len(), self.first_value_word());
        if value.len() > (n - TAIL - first) * 8 {
            return None;
        }
        let mut words: Vec<u64> = value_words(value, n - TAIL - first, version).collect();
        words.push(version << 16 | value.len() as u64);
        let before = (0..first).map(|word| self.page.get(word));
        words.push(checksum(self.addr, before.chain(words.iter().copied())));
        Some(Tail { at: self.addr.add(first as u64 * 8), words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_fabric::MemoryServerId;

    const TAG: u32 = 77;

    fn addr() -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(1), 1 << 20)
    }

    fn page(key: &[u8], value: &[u8]) -> PageBuf {
        let size = size_for(key.len(), value.len()).expect("a size");
        let page = PageBuf::zeroed(size.bytes() as usize);
        fill(&page, addr(), TAG, key, value, 5);
        page
    }

    #[test]
    fn entries_come_back() {
        for key_len in [0, 1, 8, 9, 300] {
            for value_len in [0, 1, 7, 8, 100, 3000] {
                let (key, value) = (vec![7; key_len], vec![9; value_len]);
                let leaf = Leaf::of(page(&key, &value), addr(), TAG).expect("whole");
                let (mut k, mut v) = (Vec::new(), Vec::new());
                leaf.append_key(&mut k);
                leaf.append_value(&mut v);
                assert!(k == key && v == value && leaf.has_key(&key), "{key_len} {value_len}");
                assert_eq!((leaf.settled_version(), leaf.key_byte(key_len)), (Some(5), None));
            }
        }
        assert_eq!(size_for(8, 8).map(|size| size.bytes()), Some(48));
        assert!(size_for(1 << 16, 0).is_none() && size_for(0, 1 << 16).is_none());
    }

    #[test]
    fn any_word_of_an_update_that_is_missing_is_noticed() {
        let before = page(b"key", &[1; 24]);
        let leaf = Leaf::of(page(b"key", &[1; 24]), addr(), TAG).expect("whole");
        // The same value: only the masks differ.
        let tail = leaf.tail(&[1; 24], 6).expect("it fits");
        let first = ((tail.at.raw() - addr().raw()) / 8) as usize;
        for missing in 0..tail.words.len() {
            let torn = page(b"key", &[1; 24]);
            for (i, &word) in tail.words.iter().enumerate() {
                torn.set(first + i, if i == missing { before.get(first + i) } else { word });
            }
            assert!(Leaf::of(torn, addr(), TAG).is_err(), "word {missing}");
        }
    }

    #[test]
    fn a_leaf_elsewhere_or_of_another_index_is_none() {
        assert!(Leaf::of(page(b"k", b"v"), addr().add(64), TAG).is_err());
        assert!(Leaf::of(page(b"k", b"v"), addr(), TAG + 1).is_err());
        assert!(Leaf::of(PageBuf::zeroed(64), addr(), TAG).is_err());
    }

    #[test]
    fn rear_words_come_back() {
        let size = LeafSize::holding(40).expect("a size");
        let to = Slot::leaf(0, size, addr());
        assert_eq!(Rear::from_raw(Rear::moved(to)), Rear::Moved(to));
        assert_eq!(Rear::from_raw(Rear::dead(u64::MAX)), Rear::Dead);
        assert_eq!(Rear::from_raw((1 << 48) - 1), Rear::Free((1 << 48) - 1));
        assert_eq!(Rear::from_raw(1 << 63 | 3 << 48), Rear::Locked(AttachSlot(3)));
    }
}
