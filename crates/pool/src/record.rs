//! Catalog records of indexes, and their encoding.
//!
//! ```text
//! record block           two copies (`twin.rs`), whose versions are those of the record, of:
//!                        [id:32 | system:16 | M:8][node size:32 | name length:16 | layout length:16]
//!                        [root][boundaries: value reference, 3 words][owners: value reference, 3 words][spare]
//!                        [name, padded][layout, padded]
//! boundaries value       for each boundary [length:32][bytes]
//! owners value           for each partition [attach slot:16], 0xffff for no owner
//!                        and, unless they are 0, 1, 2.., for each partition [number of its log:16]
//! ```
//! The spare is the address of a second value as long as that of the owners. New owners are written there,
//! and the old ones become the spare. So owners change without an allocation, and current owners are never
//! overwritten.

use pando_fabric::{GlobalAddr, WORD};

use crate::error::{PoolError, Result};
use crate::io::{bytes_of, push_bytes};
use crate::logs::LogPlace;
use crate::process::AttachSlot;
use crate::twin::{Twin, twin_bytes};
use crate::value::ValueRef;

/// Maximum length of an index name in bytes.
pub const MAX_INDEX_NAME: usize = 255;
/// Maximum length of the description of a node layout in bytes.
pub const MAX_LAYOUT: usize = 256;
/// Maximum length of all partition boundaries of an index together in bytes.
pub const MAX_BOUNDARIES: usize = 64 << 10;

const HEADER_WORDS: usize = 10;
const CONTENT: usize = HEADER_WORDS + MAX_INDEX_NAME.div_ceil(WORD) + MAX_LAYOUT.div_ceil(WORD);
pub(crate) const RECORD_BYTES: u64 = twin_bytes(CONTENT);
const NO_OWNER: u16 = u16::MAX;

/// Specification of an index to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexSpec {
    /// 1 to 255 bytes.
    pub name: String,
    /// Kind of index; the pool only stores the number.
    pub system: u16,
    /// Size of a node in bytes.
    pub node_size: u32,
    /// Level M: subtrees rooted at this level lie on one memory server (DEX §6).
    pub subtree_level: u8,
    pub root: GlobalAddr,
    /// Description of the node layout, at most 256 bytes; the pool only stores it.
    pub layout: Vec<u8>,
    /// First keys of all partitions but the first, strictly ascending, at most 64 KiB together; `n` of them
    /// make `n + 1` partitions.
    pub boundaries: Vec<Vec<u8>>,
}

impl IndexSpec {
    /// # Errors
    /// [`PoolError::InvalidIndex`] if no catalog can hold it.
    pub fn check(&self) -> Result<()> {
        IndexRecord::of_spec(self.clone(), 0).check()
    }
}

/// The catalog's record of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRecord {
    /// Unique in the pool for its whole life.
    pub id: u32,
    /// Number of changes of this record.
    pub version: u64,
    pub name: String,
    pub system: u16,
    /// Size of a node in bytes.
    pub node_size: u32,
    /// Level M: subtrees rooted at this level lie on one memory server.
    pub subtree_level: u8,
    pub root: GlobalAddr,
    pub layout: Vec<u8>,
    pub boundaries: Vec<Vec<u8>>,
    /// Attached process that owns each partition.
    pub owners: Vec<Option<AttachSlot>>,
    /// Number of the log of each partition, if it has one ([`crate::LogPlace`]). It stays with the partition when others are
    /// inserted before it.
    pub logs: Vec<u16>,
}

impl IndexRecord {
    pub(crate) fn of_spec(spec: IndexSpec, id: u32) -> Self {
        let IndexSpec { name, system, node_size, subtree_level, root, layout, boundaries } = spec;
        let partitions = boundaries.len() + 1;
        let (owners, logs) = (vec![None; partitions], logs_in_order(partitions));
        Self {
            id,
            version: 1,
            name,
            system,
            node_size,
            subtree_level,
            root,
            layout,
            boundaries,
            owners,
            logs,
        }
    }

    /// A number that no partition has, nor any of these logs of this index.
    ///
    /// # Errors
    /// [`PoolError::InvalidIndex`] if there is none.
    pub fn unused_log(&self, logs: &[LogPlace]) -> Result<u16> {
        let is_used =
            |number: &u16| self.logs.contains(number) || logs.iter().any(|log| log.is_of(self.id, *number));
        (0..=u16::MAX).find(|number| !is_used(number)).ok_or_else(|| {
            let reason = format!("{:?} has no number for another log", self.name);
            PoolError::InvalidIndex { reason }
        })
    }

    /// Cuts the index anew: all partitions have this owner, and the logs have the numbers of the partitions.
    pub fn recut(&mut self, boundaries: Vec<Vec<u8>>, owner: Option<AttachSlot>) {
        let partitions = boundaries.len() + 1;
        (self.owners, self.logs) = (vec![owner; partitions], logs_in_order(partitions));
        self.boundaries = boundaries;
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
        let mut logs = self.logs.clone();
        logs.sort_unstable();
        if self.logs.len() != self.owners.len() || !logs.is_sorted_by(|a, b| a < b) {
            return invalid("not each partition has a log of its own".to_owned());
        }
        Ok(())
    }
}

/// Fixed part of a record, as stored in its block.
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
    /// Address for the next owners, if their number stays the same.
    pub spare: GlobalAddr,
}

impl RecordBlock {
    pub fn new(record: &IndexRecord, values: RecordValues) -> Self {
        let RecordValues { boundaries, owners, spare } = values;
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
            spare,
        }
    }

    pub fn values(&self) -> RecordValues {
        RecordValues { boundaries: self.boundaries, owners: self.owners, spare: self.spare }
    }

    /// The block at `at`, for a record of pool `pool_id`.
    pub fn twin(at: GlobalAddr, pool_id: u64) -> Twin {
        Twin { at, content: CONTENT, pool_id }
    }

    /// The record with the partitions of these values; `None` for garbage.
    pub fn with_partitions(self, boundaries: &[u8], owners: &[u8]) -> Option<IndexRecord> {
        let Self { id, version, name, system, node_size, subtree_level, root, layout, .. } = self;
        let boundaries = decode_boundaries(boundaries)?;
        let (owners, logs) = decode_owners(owners, boundaries.len() + 1)?;
        let spec = IndexSpec { name, system, node_size, subtree_level, root, layout, boundaries };
        Some(IndexRecord { version, owners, logs, ..IndexRecord::of_spec(spec, id) })
    }

    /// Content of a copy of the record, without its version.
    pub fn encode(&self) -> Vec<u64> {
        let mut words = Vec::with_capacity(CONTENT);
        words.push(u64::from(self.id) | u64::from(self.system) << 32 | u64::from(self.subtree_level) << 48);
        let (name_len, layout_len) = (self.name.len() as u64, self.layout.len() as u64);
        words.push(u64::from(self.node_size) | name_len << 32 | layout_len << 48);
        words.push(self.root.raw());
        words.extend(self.boundaries.to_words());
        words.extend(self.owners.to_words());
        words.push(self.spare.raw());
        push_bytes(&mut words, self.name.as_bytes());
        push_bytes(&mut words, &self.layout);
        words.resize(CONTENT, 0);
        words
    }

    /// Decodes the record of version `version` from `words`; `None` if they are invalid.
    pub fn decode(version: u64, words: &[u64]) -> Option<Self> {
        let reference =
            |first: usize| ValueRef::from_words([words[first], words[first + 1], words[first + 2]]);
        let (name_len, layout_len) = ((words[1] >> 32) as u16 as usize, (words[1] >> 48) as usize);
        let bytes = bytes_of(&words[HEADER_WORDS..]);
        let layout_at = name_len.next_multiple_of(WORD);
        Some(Self {
            id: words[0] as u32,
            version,
            name: String::from_utf8(bytes.get(..name_len)?.to_vec()).ok()?,
            system: (words[0] >> 32) as u16,
            node_size: words[1] as u32,
            subtree_level: (words[0] >> 48) as u8,
            root: GlobalAddr::from_raw(words[2])?,
            layout: bytes.get(layout_at..layout_at + layout_len)?.to_vec(),
            boundaries: reference(3)?,
            owners: reference(6)?,
            spare: GlobalAddr::from_raw(words[9])?,
        })
    }
}

/// Values that a record refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordValues {
    pub boundaries: ValueRef,
    pub owners: ValueRef,
    pub spare: GlobalAddr,
}

impl RecordValues {
    /// The spare as a value, whatever its bytes.
    pub fn spare(&self) -> ValueRef {
        ValueRef { addr: self.spare, ..self.owners }
    }

    /// All three values.
    pub fn each(&self) -> [ValueRef; 3] {
        [self.boundaries, self.owners, self.spare()]
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

fn decode_boundaries(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut boundaries = Vec::new();
    while !bytes.is_empty() {
        let (len, rest) = bytes.split_first_chunk()?;
        let (boundary, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        boundaries.push(boundary.to_vec());
        bytes = rest;
    }
    Some(boundaries)
}

fn logs_in_order(partitions: usize) -> Vec<u16> {
    (0..partitions)
        .map(|partition| u16::try_from(partition).expect("no index has as many boundaries"))
        .collect()
}

/// The value of the owners of a record, which are perhaps others, and of the numbers of its logs.
pub(crate) fn encode_owners(owners: &[Option<AttachSlot>], logs: &[u16]) -> Vec<u8> {
    let owners = owners.iter().map(|owner| owner.map_or(NO_OWNER, |slot| slot.0));
    let logs = if logs == logs_in_order(logs.len()) { &[] } else { logs };
    owners.chain(logs.iter().copied()).flat_map(u16::to_le_bytes).collect()
}

fn decode_owners(bytes: &[u8], partitions: usize) -> Option<(Vec<Option<AttachSlot>>, Vec<u16>)> {
    let (numbers, rest) = bytes.as_chunks();
    let mut numbers: Vec<u16> = numbers.iter().map(|&le| u16::from_le_bytes(le)).collect();
    let logs = match numbers.len().checked_sub(partitions)? {
        0 => logs_in_order(partitions),
        more if more == partitions => numbers.split_off(partitions),
        _ => return None,
    };
    let owner = |slot| Some(slot).filter(|&slot| slot != NO_OWNER).map(AttachSlot);
    rest.is_empty().then(|| (numbers.into_iter().map(owner).collect(), logs))
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
    fn the_largest_record_comes_back() {
        let addr = GlobalAddr::from_raw(0x8000).expect("not swizzled");
        let value = ValueRef { addr, len: 5, hash: 1 };
        let values = RecordValues { boundaries: value, owners: value, spare: addr.add(64) };
        let block = RecordBlock::new(&record(), values);
        let words = block.encode();
        assert_eq!(RecordBlock::decode(block.version, &words).expect("whole"), block);
        assert_eq!((words.len(), block.values()), (CONTENT, values));
        assert_eq!(RECORD_BYTES, 1224);
        for (word, garbage) in [(1, u64::MAX), (2, 1 << 63), (3, 1 << 63), (9, 1 << 63), (10, u64::MAX)] {
            let mut damaged = words.clone();
            damaged[word] = garbage;
            assert!(RecordBlock::decode(1, &damaged).is_none(), "garbage in word {word}");
        }
    }

    #[test]
    fn partitions_come_back_and_garbage_is_refused() {
        let boundaries = vec![Vec::new(), b"abc".to_vec(), vec![0xff; 300]];
        assert_eq!(decode_boundaries(&encode_boundaries(&boundaries)), Some(boundaries));
        let owners = vec![None, Some(AttachSlot(0)), Some(AttachSlot(0x7ffe))];
        for logs in [vec![0, 1, 2], vec![0, 2, 1], vec![7, u16::MAX, 0]] {
            let bytes = encode_owners(&owners, &logs);
            assert_eq!(bytes.len(), if logs == [0, 1, 2] { 6 } else { 12 });
            assert_eq!(decode_owners(&bytes, 3), Some((owners.clone(), logs)));
            assert_eq!((decode_owners(&bytes, 2), decode_owners(&bytes[1..], 3)), (None, None));
        }
        assert_eq!(decode_boundaries(&[9, 0, 0, 0, 1]), None);
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
        refused(|record| record.logs.truncate(1));
        refused(|record| record.logs[2] = 0);
    }
}
