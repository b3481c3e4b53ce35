//! What the catalog knows about an index, and its bytes.
//!
//! ```text
//! record block, 640 B    [checksum][version][id:32 | system:16 | M:8][node size:32 | name length:16 | layout length:16]
//!                        [root][boundaries: value reference, 3 words][owners: value reference, 3 words]
//!                        [name, padded][layout, padded]
//! boundaries value       for each boundary [length:32][bytes]
//! owners value           for each partition [attach slot:16], 0xffff for nobody
//! ```
//! The checksum is seeded with the pool's number and the block's address, so that the bytes of another record do not
//! pass for this one.

use pando_fabric::{GlobalAddr, WORD};

use crate::attach::AttachSlot;
use crate::error::{PoolError, Result};
use crate::io::{bytes_of, checksum, push_bytes};
use crate::value::ValueRef;

/// Bytes of the longest name of an index.
pub const MAX_INDEX_NAME: usize = 255;
/// Bytes of the longest description of a node layout.
pub const MAX_LAYOUT: usize = 256;
/// Bytes of all partition boundaries of an index together.
pub const MAX_BOUNDARIES: usize = 64 << 10;

pub(crate) const RECORD_BYTES: u64 = 640;
const HEADER_WORDS: usize = 11;
const NOBODY: u16 = u16::MAX;

/// An index that is to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// 1 to 255 bytes.
    pub name: String,
    /// Which kind of index it is; the pool only keeps the number.
    pub system: u16,
    /// Bytes of a node.
    pub node_size: u32,
    /// Level M: subtrees rooted there lie on one memory server (DEX §6).
    pub subtree_level: u8,
    pub root: GlobalAddr,
    /// Description of the node layout, at most 256 bytes; the pool only keeps it.
    pub layout: Vec<u8>,
    /// Keys at which a new partition begins, strictly ascending, at most 64 KiB together; `n` of them make `n + 1`
    /// partitions.
    pub boundaries: Vec<Vec<u8>>,
}

/// An index as the catalog knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRecord {
    /// Unique in the pool for ever.
    pub id: u32,
    /// Counts the changes of this record.
    pub version: u64,
    pub name: String,
    pub system: u16,
    /// Bytes of a node.
    pub node_size: u32,
    /// Level M: subtrees rooted there lie on one memory server.
    pub subtree_level: u8,
    pub root: GlobalAddr,
    pub layout: Vec<u8>,
    pub boundaries: Vec<Vec<u8>>,
    /// Which attached process owns each partition.
    pub owners: Vec<Option<AttachSlot>>,
}

impl IndexRecord {
    pub(crate) fn of_spec(spec: IndexSpec, id: u32) -> Self {
        let IndexSpec { name, system, node_size, subtree_level, root, layout, boundaries } = spec;
        let owners = vec![None; boundaries.len() + 1];
        Self { id, version: 1, name, system, node_size, subtree_level, root, layout, boundaries, owners }
    }

    /// # Errors
    /// [`PoolError::InvalidIndex`] if the catalog cannot hold it.
    pub(crate) fn check(&self) -> Result<()> {
        let invalid = |reason: String| Err(PoolError::InvalidIndex { reason });
        let name_len = self.name.len();
        if !(1..=MAX_INDEX_NAME).contains(&name_len) {
            return invalid(format!("a name of {name_len} bytes is not between 1 and {MAX_INDEX_NAME}"));
        }
        if self.layout.len() > MAX_LAYOUT {
            return invalid(format!("a layout of {} bytes exceeds {MAX_LAYOUT}", self.layout.len()));
        }
        let boundary_bytes: usize = self.boundaries.iter().map(Vec::len).sum();
        if boundary_bytes > MAX_BOUNDARIES {
            return invalid(format!(
                "partition boundaries of {boundary_bytes} bytes exceed {MAX_BOUNDARIES}"
            ));
        }
        if !self.boundaries.is_sorted_by(|a, b| a < b) {
            return invalid("the partition boundaries do not ascend strictly".to_owned());
        }
        if self.owners.len() != self.boundaries.len() + 1 {
            return invalid(format!(
                "{} partitions have {} owners",
                self.boundaries.len() + 1,
                self.owners.len()
            ));
        }
        Ok(())
    }
}

/// The fixed part of a record as it lies in its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordBlock {
    pub id: u32,
    pub version: u64,
    pub name: String,
    pub system: u16,
    pub node_size: u32,
    pub subtree_level: u8,
    pub root: GlobalAddr,
    pub layout: Vec<u8>,
    pub boundaries: ValueRef,
    pub owners: ValueRef,
}

impl RecordBlock {
    pub fn new(record: &IndexRecord, boundaries: ValueRef, owners: ValueRef) -> Self {
        Self {
            id: record.id,
            version: record.version,
            name: record.name.clone(),
            system: record.system,
            node_size: record.node_size,
            subtree_level: record.subtree_level,
            root: record.root,
            layout: record.layout.clone(),
            boundaries,
            owners,
        }
    }

    pub fn with_partitions(self, boundaries: Vec<Vec<u8>>, owners: Vec<Option<AttachSlot>>) -> IndexRecord {
        let Self { id, version, name, system, node_size, subtree_level, root, layout, .. } = self;
        IndexRecord { id, version, name, system, node_size, subtree_level, root, layout, boundaries, owners }
    }

    /// The words of the block that is to lie at `at`.
    pub fn encode(&self, pool_id: u64, at: GlobalAddr) -> Vec<u64> {
        let mut words = Vec::with_capacity(RECORD_BYTES as usize / WORD);
        words.extend([0, self.version]);
        words.push(u64::from(self.id) | u64::from(self.system) << 32 | u64::from(self.subtree_level) << 48);
        let (name_len, layout_len) = (self.name.len() as u64, self.layout.len() as u64);
        words.push(u64::from(self.node_size) | name_len << 32 | layout_len << 48);
        words.push(self.root.raw());
        words.extend(self.boundaries.to_words());
        words.extend(self.owners.to_words());
        push_bytes(&mut words, self.name.as_bytes());
        push_bytes(&mut words, &self.layout);
        words.resize(RECORD_BYTES as usize / WORD, 0);
        words[0] = checksum(&words[1..], pool_id ^ at.raw());
        words
    }

    /// # Errors
    /// [`PoolError::Corrupt`] if `words`, read at `at`, are not a record.
    pub fn decode(words: &[u64], pool_id: u64, at: GlobalAddr) -> Result<Self> {
        Self::parse(words, pool_id, at)
            .ok_or(PoolError::Corrupt { addr: at, reason: "this is no record of an index" })
    }

    fn parse(words: &[u64], pool_id: u64, at: GlobalAddr) -> Option<Self> {
        if words.len() < HEADER_WORDS || words[0] != checksum(&words[1..], pool_id ^ at.raw()) {
            return None;
        }
        let reference =
            |first: usize| ValueRef::from_words([words[first], words[first + 1], words[first + 2]]);
        let (name_len, layout_len) = ((words[3] >> 32) as u16 as usize, (words[3] >> 48) as usize);
        let bytes = bytes_of(&words[HEADER_WORDS..]);
        let layout_at = name_len.next_multiple_of(WORD);
        Some(Self {
            id: words[2] as u32,
            version: words[1],
            name: String::from_utf8(bytes.get(..name_len)?.to_vec()).ok()?,
            system: (words[2] >> 32) as u16,
            node_size: words[3] as u32,
            subtree_level: (words[2] >> 48) as u8,
            root: GlobalAddr::from_raw(words[4])?,
            layout: bytes.get(layout_at..layout_at + layout_len)?.to_vec(),
            boundaries: reference(5)?,
            owners: reference(8)?,
        })
    }
}

pub(crate) fn encode_boundaries(boundaries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for boundary in boundaries {
        bytes.extend((boundary.len() as u32).to_le_bytes());
        bytes.extend(boundary);
    }
    bytes
}

pub(crate) fn decode_boundaries(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut boundaries = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (boundary, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        boundaries.push(boundary.to_vec());
        bytes = rest;
    }
    Some(boundaries)
}

pub(crate) fn encode_owners(owners: &[Option<AttachSlot>]) -> Vec<u8> {
    owners.iter().flat_map(|owner| owner.map_or(NOBODY, |slot| slot.0).to_le_bytes()).collect()
}

pub(crate) fn decode_owners(bytes: &[u8]) -> Option<Vec<Option<AttachSlot>>> {
    let (slots, rest) = bytes.as_chunks();
    let owner = |&le: &[u8; 2]| Some(u16::from_le_bytes(le)).filter(|&slot| slot != NOBODY).map(AttachSlot);
    rest.is_empty().then(|| slots.iter().map(owner).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> IndexRecord {
        let spec = IndexSpec {
            name: "n".repeat(MAX_INDEX_NAME),
            system: 0xfffe,
            node_size: 1024,
            subtree_level: 3,
            root: GlobalAddr::from_raw(0x1_0000_4000).expect("not swizzled"),
            layout: vec![7; MAX_LAYOUT],
            boundaries: vec![Vec::new(), b"m".to_vec()],
        };
        IndexRecord::of_spec(spec, 9)
    }

    #[test]
    fn the_largest_record_comes_back_and_only_at_its_address() {
        let value = ValueRef { addr: GlobalAddr::from_raw(0x8000).expect("not swizzled"), len: 5, hash: 1 };
        let block = RecordBlock::new(&record(), value, value);
        let at = GlobalAddr::from_raw(0x9000).expect("not swizzled");
        let words = block.encode(3, at);
        assert_eq!(words.len() * WORD, RECORD_BYTES as usize);
        assert_eq!(RecordBlock::decode(&words, 3, at).expect("whole"), block);
        assert!(RecordBlock::decode(&words, 3, at.add(64)).is_err());
        for word in 0..words.len() {
            let mut damaged = words.clone();
            damaged[word] ^= 1 << 33;
            assert!(RecordBlock::decode(&damaged, 3, at).is_err());
        }
    }

    #[test]
    fn partitions_come_back_and_garbage_is_refused() {
        let boundaries = vec![Vec::new(), b"abc".to_vec(), vec![0xff; 300]];
        assert_eq!(decode_boundaries(&encode_boundaries(&boundaries)), Some(boundaries));
        let owners = vec![None, Some(AttachSlot(0)), Some(AttachSlot(0x7ffe))];
        assert_eq!(decode_owners(&encode_owners(&owners)), Some(owners));
        assert_eq!((decode_boundaries(&[9, 0, 0, 0, 1]), decode_owners(&[1])), (None, None));
    }

    #[test]
    fn what_the_catalog_cannot_hold_is_refused() {
        assert!(record().check().is_ok());
        let refused = |change: fn(&mut IndexRecord)| {
            let mut changed = record();
            change(&mut changed);
            assert!(matches!(changed.check(), Err(PoolError::InvalidIndex { .. })));
        };
        refused(|record| record.name.clear());
        refused(|record| record.name.push('x'));
        refused(|record| record.layout.push(0));
        refused(|record| record.boundaries.swap(0, 1));
        refused(|record| record.boundaries[1] = vec![0; MAX_BOUNDARIES + 1]);
        refused(|record| record.owners.truncate(1));
    }
}
