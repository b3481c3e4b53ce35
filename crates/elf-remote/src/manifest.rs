//! Where an image lies in the pool, and how its bytes are verified.
//!
//! An image is cut into *pieces*, each with a checksum behind it, and pieces lie one after the other in
//! *extents*: neighbouring blocks of one memory server. The manifest lists the extents. It is a long value of
//! the pool, to which the catalog's record of the index leads ([`Root`]), or the
//! description of a table ([`crate::descriptor`]).
//!
//! ```text
//! piece      [piece bytes - 8 of the image, zeros behind its end][checksum]
//! manifest   [magic][version:32 | piece bytes:32][stamp][image bytes][id bound][block bytes][extents] [address][blocks] ...
//! record     [magic][manifest: address, length, hash][stamp], or only the magic before the first publication
//! ```
//! The checksum is XXH3, seeded with the *stamp*, a random number of the image, plus the number of the piece.
//! So bytes of another image, or of another place, are not accepted.

use std::ops::Range;

use pando_elf::Header;
use pando_fabric::{GlobalAddr, MemoryServerId, WORD};
use pando_pool::ValueRef;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Number by which the catalog knows an Elf from other kinds of indexes.
pub const SYSTEM: u16 = 4;

const MAGIC: u64 = u64::from_le_bytes(*b"PANDOELR");
const VERSION: u64 = 1;
const HEADER_WORDS: usize = 7;
const REF_WORDS: usize = 5;

/// Bytes of the checksum of a piece.
pub(crate) const SEAL: u64 = WORD as u64;
/// Sizes that pieces may have.
pub(crate) const PIECES: std::ops::RangeInclusive<u64> = 64..=65_536;

fn words_of(bytes: &[u8]) -> Option<Vec<u64>> {
    let (words, rest) = bytes.as_chunks();
    rest.is_empty().then(|| words.iter().map(|&word| u64::from_le_bytes(word)).collect())
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A value of the pool that describes an image or a table, and the stamp of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamped {
    pub value: ValueRef,
    pub stamp: u64,
}

/// What the record of an index leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The manifest of one image.
    Image,
    /// The description of a table.
    Table,
}

impl Kind {
    fn magic(self) -> u64 {
        u64::from_le_bytes(match self {
            Self::Image => *b"PANDOELR",
            Self::Table => *b"PANDOELT",
        })
    }
}

/// What the catalog says of an Elf, in the field for the layout of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub kind: Kind,
    /// `None` before the first image is published.
    pub target: Option<Stamped>,
}

impl Root {
    /// Description of an index.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.kind.magic()];
        if let Some(Stamped { value, stamp }) = self.target {
            words.extend(value.to_words());
            words.push(stamp);
        }
        bytes_of(&words)
    }

    /// Decodes a description; `None` if the index is no Elf.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let words = words_of(bytes)?;
        let kind =
            [Kind::Image, Kind::Table].into_iter().find(|kind| words.first() == Some(&kind.magic()))?;
        let target = match words.len() {
            1 => None,
            REF_WORDS => {
                let value = ValueRef::from_words([words[1], words[2], words[3]])?;
                Some(Stamped { value, stamp: words[4] })
            }
            _ => return None,
        };
        Some(Self { kind, target })
    }

    /// Decodes the description of an index that is to be of this kind; `None` if it is not.
    pub fn of_kind(kind: Kind, bytes: &[u8]) -> Option<Option<Stamped>> {
        Self::decode(bytes).filter(|root| root.kind == kind).map(|root| root.target)
    }
}

/// Neighbouring blocks of one memory server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub addr: GlobalAddr,
    pub blocks: u64,
}

/// Places of the pieces of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub stamp: u64,
    pub image_bytes: u64,
    /// All row ids are below it.
    pub id_bound: u64,
    pub piece_bytes: u64,
    pub block_bytes: u64,
    extents: Vec<Extent>,
    /// Number of the first piece of each extent.
    firsts: Vec<u64>,
}

impl Manifest {
    pub fn new(stamp: u64, image_bytes: u64, id_bound: u64, piece_bytes: u64, block_bytes: u64) -> Self {
        let (extents, firsts) = (Vec::new(), Vec::new());
        Self { stamp, image_bytes, id_bound, piece_bytes, block_bytes, extents, firsts }
    }

    /// Bytes of the image in each piece.
    pub fn payload(&self) -> u64 {
        self.piece_bytes - SEAL
    }

    /// Number of pieces.
    pub fn pieces(&self) -> u64 {
        self.image_bytes.div_ceil(self.payload())
    }

    /// Pieces that the extents have room for.
    pub fn room(&self) -> u64 {
        let last = self.firsts.last().zip(self.extents.last());
        last.map_or(0, |(first, extent)| first + extent.blocks * self.pieces_per_block())
    }

    /// Blocks that are still needed.
    pub fn blocks_missing(&self) -> u64 {
        self.pieces().saturating_sub(self.room()).div_ceil(self.pieces_per_block())
    }

    fn pieces_per_block(&self) -> u64 {
        self.block_bytes / self.piece_bytes
    }

    pub fn add(&mut self, extent: Extent) {
        self.firsts.push(self.room());
        self.extents.push(extent);
    }

    /// Place of piece `piece`, and the number of pieces from there on in the same extent.
    pub fn locate(&self, piece: u64) -> (GlobalAddr, u64) {
        let at = self.firsts.partition_point(|&first| first <= piece) - 1;
        let (extent, within) = (self.extents[at], piece - self.firsts[at]);
        let left = extent.blocks * self.pieces_per_block() - within;
        (extent.addr.add(within * self.piece_bytes), left)
    }

    /// Pieces with the bytes `range` of the image.
    pub fn pieces_of(&self, range: &Range<u64>) -> Range<u64> {
        range.start / self.payload()..range.end.div_ceil(self.payload())
    }

    /// Checksum of piece `piece`.
    pub fn seal(&self, piece: u64, payload: &[u8]) -> u64 {
        xxh3_64_with_seed(payload, self.stamp.wrapping_add(piece))
    }

    /// All blocks of the image, with their size.
    pub fn blocks(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        let size = self.block_bytes;
        let extents = self.extents.iter();
        extents.flat_map(move |extent| {
            (0..extent.blocks).map(move |block| (extent.addr.add(block * size), size))
        })
    }

    /// The memory server that has the whole image, if there is one.
    pub fn home(&self) -> Option<MemoryServerId> {
        let server = self.extents.first()?.addr.server();
        self.extents.iter().all(|extent| extent.addr.server() == server).then_some(server)
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![MAGIC, VERSION << 32 | self.piece_bytes, self.stamp];
        words.extend([self.image_bytes, self.id_bound, self.block_bytes, self.extents.len() as u64]);
        words.extend(self.extents.iter().flat_map(|extent| [extent.addr.raw(), extent.blocks]));
        bytes_of(&words)
    }

    /// Decodes a manifest whose hash was verified; an error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let words = words_of(bytes).filter(|words| words.len() >= HEADER_WORDS).ok_or("it is too short")?;
        if words[0] != MAGIC || words[1] >> 32 != VERSION {
            return Err("it was made by another program or another version of this one");
        }
        let (piece_bytes, image_bytes, block_bytes) = (words[1] & 0xffff_ffff, words[3], words[5]);
        let fits = piece_bytes.is_power_of_two() && PIECES.contains(&piece_bytes);
        if !fits || !block_bytes.is_power_of_two() || block_bytes < piece_bytes {
            return Err("pieces or blocks have an impossible size");
        }
        if image_bytes < Header::BYTES as u64 || image_bytes > 1 << 62 {
            return Err("the image has an impossible size");
        }
        let extents = &words[HEADER_WORDS..];
        if extents.len() as u64 != words[6].saturating_mul(2) {
            return Err("it has another number of extents than it says");
        }
        let mut manifest = Self::new(words[2], image_bytes, words[4], piece_bytes, block_bytes);
        for extent in extents.chunks_exact(2) {
            let addr = GlobalAddr::from_raw(extent[0]).filter(|addr| !addr.is_null());
            let end = extent[1].checked_mul(block_bytes).filter(|&bytes| bytes > 0);
            let end = addr.zip(end).and_then(|(addr, bytes)| addr.offset().checked_add(bytes));
            let (Some(addr), Some(..=pando_fabric::MAX_OFFSET)) = (addr, end) else {
                return Err("an extent has an impossible place");
            };
            manifest.add(Extent { addr, blocks: extent[1] });
        }
        if manifest.blocks_missing() > 0 { Err("the extents are too short") } else { Ok(manifest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let mut manifest = Manifest::new(7, 1_000, 10, 64, 256);
        for (raw, blocks) in [(0x1000, 1), (0x1_0000_2000, 4)] {
            manifest.add(Extent { addr: GlobalAddr::from_raw(raw).expect("not swizzled"), blocks });
        }
        manifest
    }

    #[test]
    fn pieces_lie_in_extents_one_after_the_other() {
        let manifest = manifest();
        assert_eq!((manifest.payload(), manifest.pieces(), manifest.room()), (56, 18, 20));
        let place = |piece| {
            let (addr, left) = manifest.locate(piece);
            (addr.raw(), left)
        };
        assert_eq!(
            [0, 3, 4, 17].map(place),
            [(0x1000, 4), (0x10c0, 1), (0x1_0000_2000, 16), (0x1_0000_2340, 3)]
        );
        assert_eq!(manifest.pieces_of(&(55..57)), 0..2);
        assert_eq!(manifest.blocks().count(), 5);
    }

    #[test]
    fn a_manifest_comes_back_and_a_wrong_one_is_refused() {
        let manifest = manifest();
        let bytes = manifest.encode();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest));
        for word in 0..bytes.len() / 8 {
            for value in [0, 1, u64::MAX, 1 << 63, 1 << 47] {
                let mut wrong = bytes.clone();
                wrong[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
                if let Ok(decoded) = Manifest::decode(&wrong) {
                    (0..decoded.pieces()).for_each(|piece| assert!(decoded.locate(piece).1 > 0));
                }
            }
        }
        assert!((0..bytes.len()).all(|len| Manifest::decode(&bytes[..len]).is_err()));
    }

    #[test]
    fn a_description_comes_back() {
        let addr = GlobalAddr::from_raw(0x40).expect("not swizzled");
        let target = Some(Stamped { value: ValueRef { addr, len: 9, hash: 3 }, stamp: 5 });
        for kind in [Kind::Image, Kind::Table] {
            for root in [Root { kind, target }, Root { kind, target: None }] {
                assert_eq!(Root::decode(&root.encode()), Some(root));
            }
        }
        let image = Root { kind: Kind::Image, target }.encode();
        assert_eq!(
            (Root::of_kind(Kind::Image, &image), Root::of_kind(Kind::Table, &image)),
            (Some(target), None)
        );
        assert_eq!(Root::decode(b"DEX"), None);
    }
}
