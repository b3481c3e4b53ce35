//! Data files: the entries of an index in ascending order of their keys, in blocks with a check each.
//!
//! ```text
//! header  ["PANDOBAK"] [version:32][number of the file:32] [number of the backup] [check]     32 B
//! block   [number of its first entry] [entries:32][bytes of the entries:32] [check] entry...  24 B, then entries
//! entry   [length of the key:32][length of the value:32] key value
//! ```
//!
//! All words are little-endian. Checks are XXH3 of all that is before or behind them in the header or the
//! block, seeded with the numbers of the backup and of the file. A block ends behind the entry with which it
//! reaches 64 KiB. A file with changes has also removals, whose value has the length 2^32 - 1.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use pando_dex::{DexError, SortedSource};
use xxhash_rust::xxh3::Xxh3;

use super::files::{Files, Input, Output, Result};
use crate::error::BackupError;

pub(super) const VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"PANDOBAK";
const HEADER: usize = 32;
const BLOCK_HEADER: usize = 24;
/// Bytes of entries with which a block ends.
const BLOCK_BYTES: usize = 64 << 10;
/// Most bytes of a block's entries: one more entry of the longest key and value, and a reserve.
const BLOCK_BYTES_MAX: usize = 32 << 20;
const REMOVED: u32 = u32::MAX;

/// Numbers that seed the checks of a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct FileId {
    pub backup: u64,
    pub number: u32,
}

impl FileId {
    fn check(self, parts: [&[u8]; 2]) -> u64 {
        let mut hash = Xxh3::with_seed(self.backup ^ u64::from(self.number).rotate_left(32));
        parts.iter().for_each(|part| hash.update(part));
        hash.digest()
    }

    fn header(self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&self.number.to_le_bytes());
        header[16..24].copy_from_slice(&self.backup.to_le_bytes());
        let check = self.check([&header[..24], &[]]);
        header[24..].copy_from_slice(&check.to_le_bytes());
        header
    }
}

/// What the manifest knows of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Extent {
    pub entries: u64,
    pub bytes: u64,
    /// XXH3 of the checks of all blocks.
    pub digest: u64,
}

/// Writes a data file.
pub(super) struct DataWriter {
    out: Output,
    id: FileId,
    /// Room for the header of the open block, and its entries.
    block: Vec<u8>,
    entries_in_block: u32,
    extent: Extent,
    digest: Xxh3,
}

impl DataWriter {
    pub fn begin(files: &Files, name: &str, id: FileId) -> Result<Self> {
        let mut out = files.begin(name)?;
        out.write(&id.header())?;
        Ok(Self {
            out,
            id,
            block: vec![0; BLOCK_HEADER],
            entries_in_block: 0,
            extent: Extent { bytes: HEADER as u64, ..Extent::default() },
            digest: Xxh3::new(),
        })
    }

    /// Appends an entry, or a removal; its key is greater than all before it.
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<()> {
        let value_len = value.map_or(REMOVED, |value| value.len() as u32);
        self.block.extend((key.len() as u32).to_le_bytes());
        self.block.extend(value_len.to_le_bytes());
        self.block.extend(key);
        self.block.extend(value.unwrap_or_default());
        self.entries_in_block += 1;
        match self.block.len() >= BLOCK_HEADER + BLOCK_BYTES {
            true => self.end_block(),
            false => Ok(()),
        }
    }

    pub fn entries(&self) -> u64 {
        self.extent.entries + u64::from(self.entries_in_block)
    }

    fn end_block(&mut self) -> Result<()> {
        let (head, entries) = self.block.split_at_mut(BLOCK_HEADER);
        head[..8].copy_from_slice(&self.extent.entries.to_le_bytes());
        head[8..12].copy_from_slice(&self.entries_in_block.to_le_bytes());
        head[12..16].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        let check = self.id.check([&head[..16], entries]).to_le_bytes();
        head[16..].copy_from_slice(&check);
        self.digest.update(&check);
        self.out.write(&self.block)?;
        self.extent.bytes += self.block.len() as u64;
        self.extent.entries += u64::from(self.entries_in_block);
        self.entries_in_block = 0;
        self.block.truncate(BLOCK_HEADER);
        Ok(())
    }

    /// Ends the file, and waits until it is on the disk.
    pub fn finish(mut self) -> Result<Extent> {
        if self.entries_in_block > 0 {
            self.end_block()?;
        }
        self.out.persist()?;
        Ok(Extent { digest: self.digest.digest(), ..self.extent })
    }
}

/// A block whose check is right.
struct Block {
    offset: u64,
    first: u64,
    entries: u32,
    check: [u8; 8],
    bytes: Vec<u8>,
}

impl Block {
    /// Offset of what follows it.
    fn end(&self) -> u64 {
        self.offset + (BLOCK_HEADER + self.bytes.len()) as u64
    }

    /// Reads a block into `bytes`.
    fn read(input: &Input, id: FileId, offset: u64, mut bytes: Vec<u8>) -> Result<Self> {
        let mut head = [0; BLOCK_HEADER];
        input.read(offset, &mut head)?;
        let len = number(&head[12..]) as usize;
        if len > BLOCK_BYTES_MAX {
            return Err(input.damaged(offset, "a block of it is too long"));
        }
        bytes.resize(len, 0);
        input.read(offset + BLOCK_HEADER as u64, &mut bytes)?;
        let check = head[16..].first_chunk().copied().unwrap_or_default();
        if id.check([&head[..16], &bytes]).to_le_bytes() != check {
            return Err(input.damaged(offset, "the check of a block is wrong"));
        }
        let first = u64::from_le_bytes(head[..8].first_chunk().copied().unwrap_or_default());
        Ok(Self { offset, first, entries: number(&head[8..]), check, bytes })
    }

    /// The entry at `at`, and where the next one begins; `None` if the block ends within it.
    fn entry(&self, at: usize) -> Option<Entry> {
        let (lengths, rest) = self.bytes.get(at..)?.split_at_checked(8)?;
        let (key_len, value_len) = (number(lengths) as usize, number(&lengths[4..]));
        let value = (value_len != REMOVED).then_some(value_len as usize);
        let end = key_len.checked_add(value.unwrap_or(0)).filter(|&len| len <= rest.len())?;
        let key = at + 8..at + 8 + key_len;
        Some(Entry { value: value.map(|len| key.end..key.end + len), key, next: at + 8 + end })
    }
}

/// Places of an entry in its block.
#[derive(Clone, Debug, Default)]
struct Entry {
    key: Range<usize>,
    value: Option<Range<usize>>,
    next: usize,
}

/// The first 4 bytes, which are there.
fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes.first_chunk().copied().unwrap_or_default())
}

/// Opens a data file and checks its header.
fn open(files: &Files, name: &str, id: FileId) -> Result<Input> {
    let input = files.open(name)?;
    let mut header = [0; HEADER];
    input.read(0, &mut header)?;
    let version = number(&header[8..]);
    match () {
        () if header[..8] != MAGIC => Err(input.damaged(0, "it is no file of a backup")),
        () if version != VERSION => Err(input.other_version(version, VERSION)),
        () if header != id.header() => Err(input.damaged(12, "it is a file of another backup")),
        () => Ok(input),
    }
}

/// Reads a data file from its beginning.
pub(super) struct DataReader {
    input: Input,
    id: FileId,
    block: Block,
    /// The current entry; `None` at the end.
    entry: Option<Entry>,
    /// Entries of this block behind the current one.
    left: u32,
    last: Vec<u8>,
    extent: Extent,
    digest: Xxh3,
}

impl DataReader {
    /// Opens a file at its first entry.
    pub fn open(files: &Files, name: &str, id: FileId) -> Result<Self> {
        let input = open(files, name, id)?;
        let offset = HEADER as u64;
        let block = Block {
            offset: offset - BLOCK_HEADER as u64,
            first: 0,
            entries: 0,
            check: [0; 8],
            bytes: Vec::new(),
        };
        let mut reader = Self {
            input,
            id,
            block,
            entry: Some(Entry::default()),
            left: 0,
            last: Vec::new(),
            extent: Extent { bytes: offset, ..Extent::default() },
            digest: Xxh3::new(),
        };
        reader.advance()?;
        Ok(reader)
    }

    /// The current key, and its value unless it was removed; `None` at the end.
    pub fn current(&self) -> Option<(&[u8], Option<&[u8]>)> {
        let entry = self.entry.as_ref()?;
        let bytes = &self.block.bytes;
        Some((&bytes[entry.key.clone()], entry.value.clone().map(|value| &bytes[value])))
    }

    /// Goes to the next entry.
    ///
    /// # Errors
    /// [`BackupError::Damaged`]; a file that cannot be read.
    pub fn advance(&mut self) -> Result<()> {
        let Some(before) = self.entry.take() else { return Ok(()) };
        let is_first = self.extent.entries == 0;
        self.last.clear();
        self.last.extend_from_slice(&self.block.bytes[before.key]);
        let mut at = before.next;
        if self.left == 0 {
            if at < self.block.bytes.len() {
                return Err(self.damaged("a block has more bytes than entries"));
            }
            if self.block.end() == self.input.len() {
                return Ok(());
            }
            self.next_block()?;
            at = 0;
        }
        let entry = self.block.entry(at).ok_or_else(|| self.damaged("an entry is longer than its block"))?;
        if !is_first && self.block.bytes[entry.key.clone()] <= self.last[..] {
            return Err(self.damaged("its keys are out of order"));
        }
        self.left -= 1;
        self.extent.entries += 1;
        self.entry = Some(entry);
        Ok(())
    }

    fn next_block(&mut self) -> Result<()> {
        let bytes = std::mem::take(&mut self.block.bytes);
        let offset = self.extent.bytes;
        self.block = Block::read(&self.input, self.id, offset, bytes)?;
        if self.block.first != self.extent.entries || self.block.entries == 0 {
            return Err(self.damaged("a block is not the next one"));
        }
        self.left = self.block.entries;
        self.extent.bytes = self.block.end();
        self.digest.update(&self.block.check);
        Ok(())
    }

    fn damaged(&self, what: &'static str) -> BackupError {
        self.input.damaged(self.block.offset, what)
    }
}

/// Places of the blocks of a file that was verified.
#[derive(Clone, Copy, Debug)]
struct BlockPlace {
    first: u64,
    offset: u64,
}

/// A data file that was read to its end, whose entries can be read again in any order.
pub(super) struct Verified {
    input: Input,
    id: FileId,
    blocks: Vec<BlockPlace>,
    entries: u64,
    /// The first failure of [`SortedSource::visit`].
    failure: Mutex<Option<BackupError>>,
}

impl Verified {
    /// Reads all of a file: checks, order, and what the manifest knows of it. Calls `progress` with the number of entries
    /// of each block.
    ///
    /// # Errors
    /// [`BackupError::Damaged`]; [`BackupError::OtherVersion`]; a file that cannot be read.
    pub fn read(
        files: &Files,
        name: &str,
        id: FileId,
        known: Extent,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let mut reader = DataReader::open(files, name, id)?;
        let mut blocks = Vec::new();
        while let Some((_, value)) = reader.current() {
            if value.is_none() {
                return Err(reader.damaged("a removal is in a backup"));
            }
            if reader.left + 1 == reader.block.entries {
                blocks.push(BlockPlace { first: reader.block.first, offset: reader.block.offset });
                progress(reader.block.entries.into());
            }
            reader.advance()?;
        }
        let found = Extent { digest: reader.digest.digest(), ..reader.extent };
        if found != known {
            let at = found.bytes.min(known.bytes);
            return Err(reader.input.damaged(at, "it is not the file that the manifest describes"));
        }
        let failure = Mutex::new(None);
        Ok(Self { input: reader.input, id, blocks, entries: found.entries, failure })
    }

    /// The failure because of which a visit failed.
    pub fn failure(self) -> Option<BackupError> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_block(&self, place: BlockPlace, bytes: Vec<u8>) -> pando_dex::Result<Block> {
        Block::read(&self.input, self.id, place.offset, bytes).map_err(|error| {
            let text = error.to_string();
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.get_or_insert(error);
            DexError::Layout(text)
        })
    }
}

impl SortedSource for Verified {
    fn len(&self) -> u64 {
        self.entries
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> pando_dex::Result<()>,
    ) -> pando_dex::Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let first = self.blocks.partition_point(|block| block.first <= range.start) - 1;
        let mut bytes = Vec::new();
        for &place in self.blocks[first..].iter().take_while(|block| block.first < range.end) {
            let block = self.read_block(place, bytes)?;
            let mut at = 0;
            for number in place.first..(place.first + u64::from(block.entries)).min(range.end) {
                let changed = || DexError::Layout("a file of the backup has changed".to_owned());
                let entry = block.entry(at).ok_or_else(changed)?;
                at = entry.next;
                if number >= range.start {
                    each(&block.bytes[entry.key], &block.bytes[entry.value.unwrap_or_default()])?;
                }
            }
            bytes = block.bytes;
        }
        Ok(())
    }
}
