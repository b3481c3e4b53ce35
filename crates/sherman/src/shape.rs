//! Layout of nodes: Sherman's layouts (§4.2, §4.4) in words of 8 bytes, for keys and values of any fixed
//! length, with a check in place of versions. Everything that depends on sizes or options is computed here,
//! so that `node.rs` deals with word numbers only.
//!
//! ```text
//! word 0      lock, if locks are in nodes
//!      1      check: of the whole node, or of the header where entries have their own checks
//!      2      [level 8][flags 8][version 16][entries 16][index 16]
//!      3      the node's own address
//!      4      its right neighbour; in a node that is gone, its heir
//!      5      the leftmost child; 0 in a leaf
//!      6      low fence, high fence: a key each
//!      ..     entries: [check][key][value], or [key][child]
//! ```
//!
//! Keys have one length, and are stored in words whose order is that of their bytes.

use crate::error::{Result, ShermanError};
use crate::options::{LeafFormat, Options, ReadCheck};

pub(crate) const LOCK: usize = 0;
pub(crate) const CHECK: usize = 1;
pub(crate) const META: usize = 2;
pub(crate) const ADDR: usize = 3;
pub(crate) const SIBLING: usize = 4;
pub(crate) const LEFTMOST: usize = 5;
const FENCES: usize = 6;

pub(crate) const WORD: usize = pando_fabric::WORD;
/// Maximum length of a key in bytes.
pub const KEY_MAX: usize = 64;

/// Sizes of keys, values and nodes, and the layout that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    key_len: usize,
    value_len: usize,
    node_words: usize,
    check: ReadCheck,
    leaf: LeafFormat,
}

impl Shape {
    /// # Errors
    /// Invalid sizes, or sizes with fewer than four entries per node.
    pub fn new(key_len: usize, value_len: usize, node_size: usize, options: &Options) -> Result<Self> {
        let wrong = |what: String| Err(ShermanError::Shape(what));
        if !(1..=KEY_MAX).contains(&key_len) {
            return wrong(format!("keys have 1 to {KEY_MAX} bytes here, not {key_len}"));
        }
        if !node_size.is_power_of_two() || !(256..=1 << 16).contains(&node_size) {
            return wrong(format!("a node has a power of two of bytes from 256 to 65536, not {node_size}"));
        }
        let (check, leaf) = (options.check, options.leaf);
        let shape = Self { key_len, value_len, node_words: node_size / WORD, check, leaf };
        match shape.leaf_max().min(shape.inner_max()) {
            0..4 => wrong(format!(
                "a node of {node_size} bytes does not hold four entries of {key_len} and {value_len} bytes"
            )),
            _ => Ok(shape),
        }
    }

    pub fn key_len(&self) -> usize {
        self.key_len
    }

    pub fn value_len(&self) -> usize {
        self.value_len
    }

    /// Size of a node in bytes.
    pub fn node_size(&self) -> usize {
        self.node_words * WORD
    }

    pub(crate) fn node_words(&self) -> usize {
        self.node_words
    }

    /// Distinguishes formats of nodes with equal sizes.
    pub(crate) fn kind(&self) -> u64 {
        let check = match self.check {
            ReadCheck::Checksum => 0,
            ReadCheck::VersionReads => 1,
            ReadCheck::UnsoundEnds => 2,
        };
        check << 8 | u64::from(self.is_unsorted())
    }

    pub(crate) fn check(&self) -> ReadCheck {
        self.check
    }

    /// Whether entries of leaves are written individually.
    pub(crate) fn is_unsorted(&self) -> bool {
        self.leaf == LeafFormat::Unsorted
    }

    pub(crate) fn key_words(&self) -> usize {
        self.key_len.div_ceil(WORD)
    }

    pub(crate) fn value_words(&self) -> usize {
        self.value_len.div_ceil(WORD)
    }

    pub(crate) fn low(&self) -> usize {
        FENCES
    }

    pub(crate) fn high(&self) -> usize {
        FENCES + self.key_words()
    }

    fn entries(&self) -> usize {
        FENCES + 2 * self.key_words()
    }

    /// Words behind the last entry: the version at the rear, if there is one.
    fn rear(&self) -> usize {
        usize::from(self.check == ReadCheck::UnsoundEnds)
    }

    /// Words of a leaf entry before its key and after its value.
    fn around(&self) -> (usize, usize) {
        match (self.leaf, self.check) {
            (LeafFormat::Sorted, _) => (0, 0),
            (LeafFormat::Unsorted, ReadCheck::UnsoundEnds) => (1, 1),
            (LeafFormat::Unsorted, _) => (1, 0),
        }
    }

    /// Words of a leaf entry.
    pub(crate) fn leaf_entry_words(&self) -> usize {
        let (before, after) = self.around();
        before + self.key_words() + self.value_words() + after
    }

    fn inner_entry_words(&self) -> usize {
        self.key_words() + 1
    }

    /// Maximum number of entries in a leaf.
    pub fn leaf_max(&self) -> usize {
        (self.node_words.saturating_sub(self.entries() + self.rear())) / self.leaf_entry_words()
    }

    /// Maximum number of separators in an inner node.
    pub fn inner_max(&self) -> usize {
        (self.node_words.saturating_sub(self.entries() + self.rear())) / self.inner_entry_words()
    }

    /// First word of entry `i` of a leaf.
    pub(crate) fn leaf_entry(&self, i: usize) -> usize {
        self.entries() + i * self.leaf_entry_words()
    }

    /// Byte range of entry `i` of a leaf.
    pub(crate) fn leaf_window(&self, i: usize) -> std::ops::Range<usize> {
        self.leaf_entry(i) * WORD..self.leaf_entry(i + 1) * WORD
    }

    pub(crate) fn leaf_key(&self, i: usize) -> usize {
        self.leaf_entry(i) + self.around().0
    }

    pub(crate) fn leaf_value(&self, i: usize) -> usize {
        self.leaf_key(i) + self.key_words()
    }

    pub(crate) fn separator(&self, i: usize) -> usize {
        self.entries() + i * self.inner_entry_words()
    }

    /// Word of child `i`, counted from the leftmost.
    pub(crate) fn child(&self, i: usize) -> usize {
        match i.checked_sub(1) {
            None => LEFTMOST,
            Some(before) => self.separator(before) + self.key_words(),
        }
    }

    /// Converts a key to words whose order is that of its bytes.
    ///
    /// # Errors
    /// [`ShermanError::WrongKeySize`].
    pub(crate) fn key(&self, bytes: &[u8]) -> Result<Key> {
        if bytes.len() != self.key_len {
            return Err(ShermanError::WrongKeySize { len: bytes.len(), expected: self.key_len });
        }
        let mut words = [0; KEY_MAX / WORD];
        for (word, chunk) in words.iter_mut().zip(bytes.chunks(WORD)) {
            let mut padded = [0; WORD];
            padded[..chunk.len()].copy_from_slice(chunk);
            *word = u64::from_be_bytes(padded);
        }
        Ok(Key { words, len: self.key_words() as u8 })
    }

    pub(crate) fn lowest_key(&self) -> Key {
        Key { words: [0; KEY_MAX / WORD], len: self.key_words() as u8 }
    }

    /// # Errors
    /// [`ShermanError::WrongValueSize`].
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        match value.len() == self.value_len {
            true => Ok(()),
            false => Err(ShermanError::WrongValueSize { len: value.len(), expected: self.value_len }),
        }
    }

    /// Appends the bytes of a key.
    pub(crate) fn append_key(&self, key: &Key, out: &mut Vec<u8>) {
        let end = out.len() + self.key_len;
        key.words().iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
        out.truncate(end);
    }
}

/// A key as words. Compares as its bytes do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    words: [u64; KEY_MAX / WORD],
    len: u8,
}

impl Key {
    pub(crate) fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.len)]
    }

    pub(crate) fn from_words(words: impl ExactSizeIterator<Item = u64>) -> Self {
        let len = words.len() as u8;
        let mut key = Self { words: [0; KEY_MAX / WORD], len };
        key.words.iter_mut().zip(words).for_each(|(to, from)| *to = from);
        key
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.words().iter().try_for_each(|word| write!(f, "{word:016x}"))
    }
}
