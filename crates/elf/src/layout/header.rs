//! The first 64 bytes of an image.
//!
//! ```text
//!  0 magic 8 | 8 format u16 | 10 layout u8 | 11 pointer bytes u8 | 12 columns u16 | 14 zero u16
//! 16 rows u64 | 24 entries of the first list u64 | 32 words of the body u64 | 40 epoch u64
//! 48 state u32 | 52 bucket rows u32 | 56 checksum u64
//! ```
//!
//! All numbers are little-endian; a word has 4 bytes. The checksum is XXH3 (64 bits) over bytes 0 to 55 and
//! the body. A builder writes the header last, so an image whose state is complete has its body.

use xxhash_rust::xxh3::Xxh3;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::columnar::DIRECTORY_ENTRY;
use crate::error::{Error, Result};
use crate::memory;

const MAGIC: [u8; 8] = *b"PANDOELF";
const FORMAT: u16 = 1;
const COMPLETE: u32 = 1;

/// Bytes per word of the body.
pub(crate) const WORD_BYTES: usize = 4;

/// Which byte format an image has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    /// One array of words, as published.
    Linear,
    /// Levels as columns, with buckets.
    Columnar,
}

impl LayoutKind {
    fn number(self) -> u8 {
        match self {
            Self::Linear => 1,
            Self::Columnar => 2,
        }
    }

    /// Name as in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Columnar => "columnar",
        }
    }

    /// Layout of the image that starts with `bytes`.
    pub fn of(bytes: &[u8]) -> Result<Self> {
        let raw = raw(bytes)?;
        [Self::Linear, Self::Columnar]
            .into_iter()
            .find(|kind| kind.number() == raw.layout)
            .ok_or(Error::WrongLayout { found: raw.layout, expected: "1 (linear) or 2 (columnar)" })
    }
}

/// What the header of an image says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub layout: LayoutKind,
    /// Bytes of a pointer (linear) or of row ids and positions (columnar): 4 or 8.
    pub pointer_bytes: usize,
    /// Number of columns, which is the number of levels.
    pub columns: usize,
    pub rows: u64,
    /// Entries of the list of level 0.
    pub first_list: u64,
    /// Words of 4 bytes behind the header.
    pub words: u64,
    /// Counts the images of one Elf; chosen by whoever publishes them.
    pub epoch: u64,
    /// Most rows of a bucket; 1 in the linear layout.
    pub bucket_rows: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    format: U16,
    layout: u8,
    pointer_bytes: u8,
    columns: U16,
    zero: U16,
    rows: U64,
    first_list: U64,
    words: U64,
    epoch: U64,
    state: U32,
    bucket_rows: U32,
    checksum: U64,
}

const _: () = assert!(size_of::<Raw>() == Header::BYTES);

fn raw(bytes: &[u8]) -> Result<Raw> {
    let (raw, _) = Raw::read_from_prefix(bytes).map_err(|_| Error::ShortHeader { bytes: bytes.len() })?;
    if raw.magic != MAGIC {
        return Err(Error::BadMagic);
    }
    if raw.format.get() != FORMAT {
        return Err(Error::UnknownFormat { found: raw.format.get(), expected: FORMAT });
    }
    Ok(raw)
}

/// A hash of the header, which takes the body next.
fn hasher(raw: &Raw) -> Xxh3 {
    let mut hash = Xxh3::new();
    hash.update(&raw.as_bytes()[..Header::BYTES - size_of::<U64>()]);
    hash
}

impl Header {
    /// Size of a header.
    pub const BYTES: usize = 64;

    /// Compares an image in either layout with its header and checksum.
    pub(crate) fn verify(bytes: &[u8]) -> Result<()> {
        Self::open(bytes, LayoutKind::of(bytes)?).map(|_| ())
    }

    /// Reads the header of `bytes` and compares their length and checksum with it.
    pub(crate) fn open(bytes: &[u8], expected: LayoutKind) -> Result<Self> {
        let header = Self::of_head(bytes)?;
        if header.layout != expected {
            return Err(Error::WrongLayout { found: header.layout.number(), expected: expected.name() });
        }
        let size = header.image_bytes();
        if size != Some(bytes.len() as u64) {
            return Err(Error::WrongSize { found: bytes.len() as u64, expected: size.unwrap_or(u64::MAX) });
        }
        let raw = raw(bytes)?;
        let mut hash = hasher(&raw);
        hash.update(&bytes[Self::BYTES..]);
        let found = hash.digest();
        if found != raw.checksum.get() {
            return Err(Error::BadChecksum { found, expected: raw.checksum.get() });
        }
        Ok(header)
    }

    /// Reads the header of an image that is elsewhere, of which `bytes` are the first 64 or more. Nothing says
    /// that the rest is whole.
    pub fn of_head(bytes: &[u8]) -> Result<Self> {
        let raw = raw(bytes)?;
        let layout = LayoutKind::of(bytes)?;
        if raw.state.get() != COMPLETE {
            return Err(Error::Incomplete { state: raw.state.get() });
        }
        if !matches!(raw.pointer_bytes, 4 | 8) {
            return Err(Error::Damaged { at: 11, what: "pointers have 4 or 8 bytes" });
        }
        if raw.columns.get() == 0 {
            return Err(Error::Damaged { at: 12, what: "an Elf has at least one column" });
        }
        Ok(Self {
            layout,
            pointer_bytes: raw.pointer_bytes.into(),
            columns: raw.columns.get().into(),
            rows: raw.rows.get(),
            first_list: raw.first_list.get(),
            words: raw.words.get(),
            epoch: raw.epoch.get(),
            bucket_rows: raw.bucket_rows.get(),
        })
    }

    /// Bytes at the beginning of the image from which its column order, and the sections of a columnar one, can be
    /// read.
    pub fn head_bytes(&self) -> usize {
        let per_column = if self.layout == LayoutKind::Linear { WORD_BYTES } else { DIRECTORY_ENTRY };
        Self::BYTES + self.columns * per_column
    }

    /// Size of the image, `None` if it has no 64 bits.
    pub fn image_bytes(&self) -> Option<u64> {
        self.words.checked_mul(WORD_BYTES as u64)?.checked_add(Self::BYTES as u64)
    }

    /// Writes the header to the first bytes of `image`, whose body is complete.
    pub(crate) fn seal(&self, image: &mut [u8]) {
        let (head, body) = image.split_at_mut(Self::BYTES);
        let mut hash = self.hasher();
        hash.update(body);
        head.copy_from_slice(&self.sealed(hash.digest()));
    }

    /// A hash of the header, which takes the body next; its digest is the checksum.
    pub(crate) fn hasher(&self) -> Xxh3 {
        hasher(&self.raw(0))
    }

    /// The bytes of the header with the given checksum.
    pub(crate) fn sealed(&self, checksum: u64) -> [u8; Self::BYTES] {
        zerocopy::transmute!(self.raw(checksum))
    }

    fn raw(&self, checksum: u64) -> Raw {
        Raw {
            magic: MAGIC,
            format: FORMAT.into(),
            layout: self.layout.number(),
            pointer_bytes: self.pointer_bytes as u8,
            columns: (self.columns as u16).into(),
            zero: 0.into(),
            rows: self.rows.into(),
            first_list: self.first_list.into(),
            words: self.words.into(),
            epoch: self.epoch.into(),
            state: COMPLETE.into(),
            bucket_rows: self.bucket_rows.into(),
            checksum: checksum.into(),
        }
    }
}

/// Allocates the zeroed bytes of an image with a body of `words` words.
pub(crate) fn allocate(words: u64) -> Result<Vec<u8>> {
    let bytes = words.saturating_mul(WORD_BYTES as u64).saturating_add(Header::BYTES as u64);
    let no_memory = Error::NoMemory { bytes };
    let size = usize::try_from(bytes).map_err(|_| no_memory.clone())?;
    memory::try_defaults(size).map_err(|_| no_memory)
}

/// Reads the column order: a permutation of the columns, `at` which byte it stands in the image.
pub(crate) fn order(columns: impl Iterator<Item = u32>, count: usize, at: usize) -> Result<Vec<usize>> {
    let order: Vec<usize> = columns.map(|column| column as usize).collect();
    if !is_permutation(&order, count) {
        return Err(Error::Damaged {
            at: at as u64,
            what: "the column order does not name each column once",
        });
    }
    Ok(order)
}

/// Whether `order` contains each number below `count` once.
pub(crate) fn is_permutation(order: &[usize], count: usize) -> bool {
    let mut seen = vec![false; count];
    order.len() == count
        && order.iter().all(|&column| column < count && !std::mem::replace(&mut seen[column], true))
}
