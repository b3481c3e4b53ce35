//! Format of dumps: all entries of an index in key order, and the properties needed to create another such
//! index.
//!
//! A dump consists of a header, blocks of entries and a trailer, each with its own CRC-32. The trailer has
//! the number of entries and a CRC-32 of all of them. So truncation, damage and wrongly assembled parts are
//! detected, and an interrupted dump has no trailer. `docs/dump.md` draws the bytes.

mod read;
mod write;

use std::io;

pub use read::{Entry, Reader};
pub use write::Writer;

/// First bytes of every dump.
pub const MAGIC: [u8; 8] = *b"PandoDmp";
/// Version of the format.
pub const VERSION: u32 = 1;
/// Bytes of entries after which a block ends.
const BLOCK_BYTES: usize = 1 << 20;
/// Maximum bytes of a block's entries: `BLOCK_BYTES`, one more entry of the longest key and value, and a
/// reserve.
const BLOCK_MAX: usize = 32 << 20;
/// Maximum bytes of a header's body.
const HEADER_MAX: usize = 32 << 20;
/// First byte of a part.
const BLOCK: u8 = 1;
const TRAILER: u8 = 2;

/// Properties of the dumped index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    pub name: String,
    /// Sizes of all keys and of all values in bytes; `None` if they are byte strings of any length.
    pub sizes: Option<(u32, u32)>,
    /// Size of a node in bytes.
    pub node_size: u32,
    /// Level M: subtrees rooted at this level are on one memory server.
    pub subtree_level: u8,
    /// First keys of all partitions but the first.
    pub boundaries: Vec<Vec<u8>>,
    /// The creator's description of the index, such as the types of the key's columns.
    pub description: Vec<u8>,
}

/// Reason why a dump cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    #[error("it is no dump of an index")]
    NotADump,
    #[error("it is a dump of version {found}, and this program reads version {VERSION}")]
    OtherVersion { found: u32 },
    #[error("it is cut short: it ends after {entries} entries, without a trailer")]
    CutShort { entries: u64 },
    #[error("it is damaged after {entries} entries: {what}")]
    Damaged { entries: u64, what: &'static str },
    #[error("reading failed after {entries} entries: {error}")]
    Read { entries: u64, error: io::Error },
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let (kind, key_size, value_size) = match self.sizes {
            None => (0u32, 0, 0),
            Some((key_size, value_size)) => (1, key_size, value_size),
        };
        for number in [kind, key_size, value_size, self.node_size, self.subtree_level.into()] {
            body.extend(number.to_le_bytes());
        }
        put_counted(&mut body, self.name.as_bytes());
        put_counted(&mut body, &self.description);
        body.extend((self.boundaries.len() as u32).to_le_bytes());
        self.boundaries.iter().for_each(|boundary| put_counted(&mut body, boundary));
        body
    }

    fn decode(mut body: &[u8]) -> Option<Header> {
        let body = &mut body;
        let numbers = [number(body)?, number(body)?, number(body)?];
        let sizes = match numbers {
            [0, 0, 0] => None,
            [1, key_size, value_size] => Some((key_size, value_size)),
            _ => return None,
        };
        let (node_size, subtree_level) = (number(body)?, u8::try_from(number(body)?).ok()?);
        let name = String::from_utf8(counted(body)?.to_vec()).ok()?;
        let description = counted(body)?.to_vec();
        let count = number(body)?;
        let boundaries = (0..count).map(|_| Some(counted(body)?.to_vec())).collect::<Option<Vec<_>>>()?;
        let header = Header { name, sizes, node_size, subtree_level, boundaries, description };
        body.is_empty().then_some(header)
    }
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn number(bytes: &mut &[u8]) -> Option<u32> {
    let (number, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*number))
}

fn counted<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let len = number(bytes)?;
    let (counted, rest) = bytes.split_at_checked(len as usize)?;
    *bytes = rest;
    Some(counted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

    fn header() -> Header {
        Header {
            name: "trees".to_owned(),
            sizes: None,
            node_size: 1024,
            subtree_level: 3,
            boundaries: vec![b"h".to_vec(), b"p\0".to_vec()],
            description: b"pando-rows 1 key=str".to_vec(),
        }
    }

    fn dump(header: &Header, entries: &Entries) -> Vec<u8> {
        let mut writer = Writer::begin(Vec::new(), header).expect("memory");
        entries.iter().try_for_each(|(key, value)| writer.push(key, value)).expect("memory");
        let (bytes, count) = writer.finish().expect("memory");
        assert_eq!(count, entries.len() as u64);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Header, Entries), DumpError> {
        let (header, mut reader) = Reader::begin(bytes)?;
        let mut entries = Entries::new();
        while let Some((key, value)) = reader.next_entry()? {
            entries.insert(key.to_vec(), value.to_vec());
        }
        Ok((header, entries))
    }

    fn few() -> Entries {
        (0..40u8).map(|n| (vec![n, 0, 9], vec![n; usize::from(n) % 7])).collect()
    }

    #[test]
    fn blocks_and_the_longest_entries_come_back() {
        let mut entries: Entries = (0..3u8).map(|n| (vec![n; 64 << 10], vec![n; 16 << 20])).collect();
        entries.extend((0..50_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 40])));
        entries.insert(Vec::new(), Vec::new());
        for header in [header(), Header { sizes: Some((8, 0)), boundaries: Vec::new(), ..header() }] {
            assert_eq!(read(&dump(&header, &entries)).expect("whole"), (header, entries.clone()));
        }
    }

    #[test]
    fn no_beginning_of_a_dump_is_one() {
        let bytes = dump(&header(), &few());
        for len in 0..bytes.len() {
            let error = read(&bytes[..len]).expect_err("it is cut short");
            let is_none = matches!(error, DumpError::NotADump) && len < 8;
            assert!(is_none || matches!(error, DumpError::CutShort { .. }), "{len}: {error}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(matches!(read(&longer), Err(DumpError::Damaged { .. })));
    }

    #[test]
    fn every_changed_byte_is_found() {
        let bytes = dump(&header(), &few());
        for at in 0..bytes.len() {
            for change in [1, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                assert!(read(&changed).is_err(), "byte {at}");
            }
        }
        let mut other = bytes;
        other[8] = 2;
        assert!(matches!(read(&other), Err(DumpError::OtherVersion { found: 2 })));
    }

    #[test]
    fn blocks_that_are_missing_or_come_twice_are_found() {
        let entries: Entries = (0..60_000u32).map(|n| (n.to_be_bytes().to_vec(), vec![7; 40])).collect();
        let bytes = dump(&header(), &entries);
        // Offsets of the parts behind the header.
        let word = |at: usize| u32::from_le_bytes(bytes[at..][..4].try_into().expect("four")) as usize;
        let mut parts = vec![20 + word(12)];
        while bytes[*parts.last().expect("one")] == BLOCK {
            let at = parts.last().expect("one");
            parts.push(at + 9 + word(at + 1));
        }
        assert!(parts.len() >= 4, "{parts:?}");
        let block = &bytes[parts[1]..parts[2]];
        let without = [&bytes[..parts[1]], &bytes[parts[2]..]].concat();
        assert!(matches!(read(&without), Err(DumpError::Damaged { .. })));
        let twice = [&bytes[..parts[1]], block, &bytes[parts[1]..]].concat();
        assert!(matches!(read(&twice), Err(DumpError::Damaged { .. })));
    }

    proptest! {
        #[test]
        fn any_entries_come_back(
            entries in prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 0..12), prop::collection::vec(any::<u8>(), 0..12), 0..50,
            ),
        ) {
            let (_, found) = read(&dump(&header(), &entries)).expect("whole");
            prop_assert_eq!(found, entries);
        }

        #[test]
        fn any_bytes_are_refused_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(read(&bytes).is_err());
            let behind_a_header = [&dump(&header(), &Entries::new())[..20], &bytes].concat();
            prop_assert!(read(&behind_a_header).is_err());
        }
    }
}
