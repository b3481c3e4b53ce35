//! The manifest: what a backup holds. It is written last; a backup is what its manifest says.
//!
//! ```text
//! manifest  ["PANDOMAN"] [version:32][bytes of the body:32] body [check]
//! body      [number of the backup] [moment] [indexes:32] index...  [tables left out:32] name...
//! index     name, layout, [bytes of a node:32][M:32] [boundaries:32] boundary...
//!           [entries] [bytes] [digest of the file]
//! ```
//!
//! All words are little-endian; names, layouts and boundaries are counted: [length:32] and that many bytes. The moment is
//! in nanoseconds since 1970-01-01 UTC, the layout that of the catalog. The check is XXH3 of all before it. The entries
//! of the `n`-th index, from 0, are in file `index-n`.

use xxhash_rust::xxh3::xxh3_64;

use super::data::{Extent, FileId, VERSION};
use super::files::{Files, MANIFEST, Result};
use crate::error::BackupError;

const MAGIC: [u8; 8] = *b"PANDOMAN";
const HEADER: usize = 16;

/// What a backup holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Manifest {
    /// A random number, which seeds the checks of all files.
    pub number: u64,
    pub moment_ns: u64,
    pub indexes: Vec<IndexPart>,
    pub tables_left_out: Vec<String>,
}

/// An index of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexPart {
    pub name: String,
    /// As in the catalog: the descriptor, and the description.
    pub layout: Vec<u8>,
    pub node_size: u32,
    pub subtree_level: u8,
    pub boundaries: Vec<Vec<u8>>,
    pub extent: Extent,
}

/// Name of the file of an index.
pub(super) fn file_name(number: u32) -> String {
    format!("index-{number}")
}

impl Manifest {
    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// [`BackupError::Incomplete`]; [`BackupError::Damaged`]; [`BackupError::OtherVersion`].
    pub fn read(files: &Files) -> Result<Self> {
        let Some(bytes) = files.manifest()? else {
            return Err(BackupError::Incomplete { path: files.path().to_owned() });
        };
        let path = || files.path_of(MANIFEST);
        let damaged = |offset, what| BackupError::Damaged { path: path(), offset, what };
        let Some((header, rest)) = bytes.split_at_checked(HEADER).filter(|(header, _)| header[..8] == MAGIC)
        else {
            return Err(damaged(0, "it is no manifest of a backup"));
        };
        let (mut numbers, cut) = (Reader(&header[8..]), "it is cut short");
        let (version, len) = numbers.u32().zip(numbers.u32()).ok_or_else(|| damaged(0, cut))?;
        if version != VERSION {
            return Err(BackupError::OtherVersion { path: path(), found: version, known: VERSION });
        }
        if rest.len() as u64 != u64::from(len) + 8 {
            return Err(damaged((HEADER + rest.len()) as u64, "it has another length than it says"));
        }
        let (body, check) = rest.split_at(len as usize);
        if xxh3_64(&bytes[..HEADER + body.len()]).to_le_bytes() != check {
            return Err(damaged(0, "its check is wrong"));
        }
        let mut body = Reader(body);
        Self::decode(&mut body)
            .filter(|_| body.0.is_empty())
            .ok_or_else(|| damaged(HEADER as u64, "it cannot be understood"))
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.number.to_le_bytes());
        body.extend(self.moment_ns.to_le_bytes());
        put_u32(&mut body, self.indexes.len());
        self.indexes.iter().for_each(|index| index.encode(&mut body));
        put_u32(&mut body, self.tables_left_out.len());
        self.tables_left_out.iter().for_each(|name| put_counted(&mut body, name.as_bytes()));
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        put_u32(&mut bytes, body.len());
        bytes.extend(body);
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    fn decode(body: &mut Reader<'_>) -> Option<Self> {
        let (number, moment_ns) = (body.u64()?, body.u64()?);
        let indexes = body.list(IndexPart::decode)?;
        let tables_left_out = body.list(Reader::text)?;
        Some(Self { number, moment_ns, indexes, tables_left_out })
    }

    /// The file of an index.
    pub fn file(&self, number: u32) -> FileId {
        FileId { backup: self.number, number }
    }
}

impl IndexPart {
    fn encode(&self, out: &mut Vec<u8>) {
        put_counted(out, self.name.as_bytes());
        put_counted(out, &self.layout);
        put_u32(out, self.node_size as usize);
        put_u32(out, self.subtree_level.into());
        put_u32(out, self.boundaries.len());
        self.boundaries.iter().for_each(|boundary| put_counted(out, boundary));
        let Extent { entries, bytes, digest } = self.extent;
        [entries, bytes, digest].iter().for_each(|number| out.extend(number.to_le_bytes()));
    }

    fn decode(body: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            name: body.text()?,
            layout: body.counted()?.to_vec(),
            node_size: body.u32()?,
            subtree_level: body.u32()?.try_into().ok()?,
            boundaries: body.list(|body| Some(body.counted()?.to_vec()))?,
            extent: Extent { entries: body.u64()?, bytes: body.u64()?, digest: body.u64()? },
        })
    }
}

fn put_u32(out: &mut Vec<u8>, number: usize) {
    out.extend((number as u32).to_le_bytes());
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len());
    out.extend(bytes);
}

/// Bytes that are being decoded.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, len: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.first_chunk().copied().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.first_chunk().copied().map(u64::from_le_bytes)
    }

    fn counted(&mut self) -> Option<&'b [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.counted()?.to_vec()).ok()
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.u32()?).map(|_| item(self)).collect()
    }
}
