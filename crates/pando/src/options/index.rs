//! Options of an index: its layout, and the encoding of the layout in the catalog.
//!
//! The pool stores the encoded bytes without interpreting them. A version or a kind that this program does
//! not know is an error that names the index. The layout bytes are little-endian:
//!
//! ```text
//! [version:8 = 1][kind:8][0:16][key size:32][value size:32][fanout limit:32][description: the rest]
//! ```
//! Kind 1 has keys and values of constant sizes, kind 2 has byte strings of any length. A fanout limit of 0
//! means none.

use std::time::Duration;

use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_pool::IndexRecord;

use crate::error::{Error, Result};
use crate::layout::{IndexLayout, NodeLayout};

const VERSION: u8 = 1;
const FIXED: u8 = 1;
const BYTES: u8 = 2;
/// Bytes of an encoded descriptor; the description follows it.
const ENCODED: usize = 16;
/// Longest description, in bytes, so that it fits into the catalog's record together with the descriptor.
const MAX_DESCRIPTION: usize = 240;

/// Keys of an index that this process owns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ownership {
    /// All keys.
    #[default]
    All,
    /// The keys of the given partitions, numbered from 0 in the order of the index's boundaries. Other
    /// processes own the others.
    Partitions(Vec<usize>),
}

/// Options for creating an index.
///
/// ```
/// use pando::{Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded())?;
/// let index = cluster.create_index("ids", &IndexOptions::fixed(16, 4).node_size(512))?;
/// assert_eq!(index.layout().to_string(), "keys of 16 bytes with values of 4 bytes");
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IndexOptions {
    pub(crate) layout: IndexLayout,
    pub(crate) node_size: usize,
    pub(crate) subtree_level: u8,
    pub(crate) boundaries: Option<Vec<Vec<u8>>>,
    pub(crate) fanout_limit: Option<usize>,
    pub(crate) own: Ownership,
    pub(crate) description: Vec<u8>,
}

impl IndexOptions {
    fn new(layout: IndexLayout) -> Self {
        Self {
            layout,
            node_size: 1024,
            subtree_level: 3,
            boundaries: None,
            fanout_limit: None,
            own: Ownership::All,
            description: Vec::new(),
        }
    }

    /// Byte strings of any length.
    pub fn bytes() -> Self {
        Self::new(IndexLayout::Bytes)
    }

    /// Keys and values of these sizes in bytes.
    pub fn fixed(key_size: usize, value_size: usize) -> Self {
        Self::new(IndexLayout::Fixed { key_size, value_size })
    }

    /// `u64` keys and values, in big-endian byte order.
    pub fn integers() -> Self {
        Self::fixed(8, 8)
    }

    /// Bytes of a node, a power of two: 256 to 65536 for keys and values of constant sizes, 512 to 8192 for
    /// byte strings; 1024.
    pub fn node_size(mut self, bytes: usize) -> Self {
        self.node_size = bytes;
        self
    }

    /// M: the level whose subtrees each lie on one memory server (DEX §3); 3.
    pub fn subtree_level(mut self, level: u8) -> Self {
        self.subtree_level = level;
        self
    }

    /// First keys of all partitions but the first, strictly ascending.
    pub fn boundaries(mut self, boundaries: Vec<Vec<u8>>) -> Self {
        self.boundaries = Some(boundaries);
        self
    }

    /// Boundaries that divide the integers from 0 to `max` into `n` equal ranges.
    pub fn equal_ranges(self, n: usize, max: u64) -> Self {
        let width = u128::from(max) + 1;
        let cut = |i: usize| (width * i as u128 / n.max(1) as u128) as u64;
        let mut cuts: Vec<Vec<u8>> = (1..n).map(|i| cut(i).to_be_bytes().to_vec()).collect();
        cuts.dedup();
        self.boundaries(cuts)
    }

    /// Uses at most `entries` (3 or more) entries of a node, so that small indexes become tall: for tests.
    pub fn fanout_limit(mut self, entries: usize) -> Self {
        self.fanout_limit = Some(entries);
        self
    }

    /// Up to 240 bytes that the catalog stores for processes that open the index, for instance the meaning of
    /// its keys.
    pub fn description(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.description = bytes.into();
        self
    }

    /// Partitions that this process owns from the start; all.
    pub fn own(mut self, own: Ownership) -> Self {
        self.own = own;
        self
    }

    pub fn layout(&self) -> IndexLayout {
        self.layout
    }

    /// Bytes of the longest key that an index with these options can hold.
    ///
    /// # Errors
    /// Node, key and value sizes that do not fit together.
    pub fn key_len_max(&self) -> Result<usize> {
        Ok(match Descriptor::of(self)?.node_layout(self.node_size)? {
            NodeLayout::Fixed(layout) => layout.key_len(),
            NodeLayout::Slotted(layout) => layout.max_key(),
        })
    }
}

/// Options for opening an existing index.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    pub(crate) own: Ownership,
    pub(crate) expect: Option<IndexLayout>,
    pub(crate) wait: Duration,
}

impl OpenOptions {
    /// Longest wait for another process that owns the keys, until it closes the index or is known to be dead; none.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Partitions that this process owns; all.
    pub fn own(mut self, own: Ownership) -> Self {
        self.own = own;
        self
    }

    /// Requires this layout; an index of another layout is refused.
    pub fn expect(mut self, layout: IndexLayout) -> Self {
        self.expect = Some(layout);
        self
    }
}

/// A layout as stored in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub layout: IndexLayout,
    pub fanout_limit: Option<u32>,
}

impl Descriptor {
    pub fn of(options: &IndexOptions) -> Result<Self> {
        let checked = |limit| {
            u32::try_from(limit).ok().filter(|&limit| limit >= 3).ok_or_else(|| {
                Error::InvalidOption(format!("a fanout limit of {limit} entries is not between 3 and 2^32"))
            })
        };
        let fanout_limit = options.fanout_limit.map(checked).transpose()?;
        if options.description.len() > MAX_DESCRIPTION {
            let len = options.description.len();
            return Err(Error::InvalidOption(format!(
                "a description of {len} bytes is longer than {MAX_DESCRIPTION} bytes"
            )));
        }
        Ok(Self { layout: options.layout, fanout_limit })
    }

    /// Layout of an index in the catalog.
    ///
    /// # Errors
    /// [`Error::BadIndex`] if this program cannot read it.
    pub fn of_record(record: &IndexRecord) -> Result<Self> {
        if pando_elf_remote::is_elf(record) {
            return Err(Error::IsElf { name: record.name.clone() });
        }
        Self::decode(&record.layout).map_err(|reason| Error::BadIndex { name: record.name.clone(), reason })
    }

    /// The description that follows the descriptor in the layout bytes of the catalog.
    pub fn description(layout: &[u8]) -> Vec<u8> {
        layout.get(ENCODED..).unwrap_or_default().to_vec()
    }

    pub fn encode(&self) -> Vec<u8> {
        let (kind, key_size, value_size) = match self.layout {
            IndexLayout::Fixed { key_size, value_size } => (FIXED, key_size as u32, value_size as u32),
            IndexLayout::Bytes => (BYTES, 0, 0),
        };
        let mut bytes = vec![VERSION, kind, 0, 0];
        for number in [key_size, value_size, self.fanout_limit.unwrap_or(0)] {
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    /// Decodes the layout bytes of the catalog.
    ///
    /// # Errors
    /// The reason why the bytes are invalid.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        match bytes.first() {
            Some(&VERSION) => {}
            Some(version) => {
                return Err(format!(
                    "its layout has version {version}, this program reads version {VERSION}"
                ));
            }
            None => return Err("its layout is missing".to_owned()),
        }
        let (head, numbers) = bytes.split_first_chunk::<4>().ok_or("its layout is cut short")?;
        let Some(&[key_size, value_size, limit]) = numbers.as_chunks::<4>().0.first_chunk() else {
            return Err("its layout is cut short".to_owned());
        };
        let number = |le: [u8; 4]| u32::from_le_bytes(le);
        let layout = match head[1] {
            FIXED => IndexLayout::Fixed {
                key_size: number(key_size) as usize,
                value_size: number(value_size) as usize,
            },
            BYTES => IndexLayout::Bytes,
            _ => return Err(format!("its layout is of an unknown kind {}", head[1])),
        };
        Ok(Self { layout, fanout_limit: Some(number(limit)).filter(|&limit| limit > 0) })
    }

    /// Layout of nodes of `node_size` bytes.
    ///
    /// # Errors
    /// Node, key and value sizes that do not fit together.
    pub fn node_layout(&self, node_size: usize) -> Result<NodeLayout> {
        if self.fanout_limit.is_some_and(|limit| limit < 3) {
            return Err(Error::InvalidOption("a node needs room for 3 entries at least".to_owned()));
        }
        let limit = self.fanout_limit.map(|limit| limit as usize);
        Ok(match self.layout {
            IndexLayout::Fixed { key_size, value_size } => {
                let layout = FixedLayout::new(node_size, key_size, value_size)?;
                NodeLayout::Fixed(limit.map_or(layout, |limit| layout.with_fanout_limit(limit)))
            }
            IndexLayout::Bytes => {
                let layout = SlottedLayout::new(node_size)?;
                NodeLayout::Slotted(limit.map_or(layout, |limit| layout.with_fanout_limit(limit)))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_come_back_and_others_are_refused_with_a_reason() {
        let fixed = IndexLayout::Fixed { key_size: 64, value_size: 0 };
        for (layout, fanout_limit) in [(fixed, None), (IndexLayout::Bytes, Some(4)), (fixed, Some(u32::MAX))]
        {
            let descriptor = Descriptor { layout, fanout_limit };
            assert_eq!(Descriptor::decode(&descriptor.encode()), Ok(descriptor));
        }
        let good = Descriptor { layout: fixed, fanout_limit: None }.encode();
        for len in 0..good.len() {
            assert!(Descriptor::decode(&good[..len]).is_err(), "{len} bytes");
        }
        let changed = |at: usize| {
            let mut bytes = good.clone();
            bytes[at] = 9;
            Descriptor::decode(&bytes).expect_err("unknown")
        };
        let described = [good.as_slice(), b"about"].concat();
        assert_eq!(Descriptor::decode(&described), Descriptor::decode(&good));
        assert_eq!(Descriptor::description(&described), b"about");
        assert_eq!(changed(0), "its layout has version 9, this program reads version 1");
        assert_eq!(changed(1), "its layout is of an unknown kind 9");
    }

    #[test]
    fn equal_ranges_are_equal_also_over_all_integers() {
        let cuts = |n, max| {
            let options = IndexOptions::integers().equal_ranges(n, max);
            let cuts = options.boundaries.expect("set");
            cuts.iter()
                .map(|cut| u64::from_be_bytes(cut.as_slice().try_into().expect("8 bytes")))
                .collect::<Vec<_>>()
        };
        assert_eq!(cuts(4, 399), [100, 200, 300]);
        assert_eq!(cuts(2, u64::MAX), [1 << 63]);
        assert!(cuts(1, 10).is_empty());
    }
}
