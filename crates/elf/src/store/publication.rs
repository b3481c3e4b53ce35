//! Publication of images on persistent memory, so that a crash leaves the old image or the new one (DAPD 2022 §4.1,
//! fact sheet §7: without PMDK).
//!
//! ```text
//! byte 0 mark 8 | 8 root u64 | 16 zero                      byte of the current image, 0 before the first one
//! byte 4096     images in either layout, each at a multiple of 4096
//! ```
//!
//! An image is written where neither the current one nor one that is being read stands, and is durable before the
//! root is. The root is one word, which persistent memory stores as a whole: storing it is the publication.
//! Nothing that a durable root may lead to is ever overwritten.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;

use super::mapping::MappedFile;
use super::medium::Medium;
use crate::defect::{Defect, defect};
use crate::error::{Error, Result};
use crate::layout::Header;

/// First bytes of a file: its kind and format.
const MARK: [u8; 8] = *b"PANDOPM1";
const ROOT_AT: u64 = 8;
/// Size of the head, and what images are aligned to.
const UNIT: u64 = 4096;

/// A file, or other persistent memory, with one current image.
///
/// ```
/// use pando_elf::{BuildOptions, CacheOptions, CodeTable, Count, ElfLayout, Linear, Lru, PersistentFile};
/// use pando_elf::{build_linear, exact};
/// # let folder = tempfile::tempdir().expect("a temporary folder");
/// # let path = folder.path().join("elf");
/// let table = CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]])?;
/// let built = build_linear(&table, &[0, 1], &BuildOptions::default())?;
/// let mut file = PersistentFile::create(&path)?;
/// file.publish(built.bytes())?;
///
/// let elf = Linear::open(file.image()?)?;
/// let cached = elf.with_levels(1)?.with_cache(CacheOptions::lists(1_000), Lru::default());
/// let mut found = Count::default();
/// exact(&cached, &[1, 7], &mut found);
/// assert_eq!(found.0, 1);
/// # Ok::<(), pando_elf::Error>(())
/// ```
#[derive(Debug)]
pub struct PersistentFile<M = MappedFile> {
    medium: M,
    current: Option<Range<u64>>,
    /// Images to which the durable root may lead instead, since a flush of the root failed.
    earlier: Vec<Range<u64>>,
}

impl PersistentFile {
    /// Creates a file without an image. Fails if it exists, unless its creation was interrupted.
    pub fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
        Self::format(mapped(file, true)?)
    }

    /// Opens a file for publication and reading. No other process may have it open.
    pub fn open(path: &Path) -> Result<Self> {
        Self::recover(mapped(OpenOptions::new().read(true).write(true).open(path), true)?)
    }

    /// Opens a file for reading only, which several processes may do at once.
    pub fn open_read_only(path: &Path) -> Result<Self> {
        Self::recover(mapped(File::open(path), false)?)
    }
}

fn mapped(file: std::io::Result<File>, is_writable: bool) -> Result<MappedFile> {
    file.and_then(|file| MappedFile::open(file, is_writable)).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => Error::FileInUse,
        _ => Error::Storage { action: "open", reason: error.to_string() },
    })
}

impl<M: Medium> PersistentFile<M> {
    /// Prepares an empty medium. Fails if it has contents.
    pub fn format(mut medium: M) -> Result<Self> {
        if medium.bytes() < UNIT {
            medium.grow(UNIT)?;
        }
        let mut head = [0; UNIT as usize];
        medium.read(0, &mut head)?;
        if head.iter().any(|&byte| byte != 0) {
            return Err(Error::FileExists);
        }
        // The root is zero already; the mark is one word.
        store(&mut medium, 0, u64::from_le_bytes(MARK))?;
        Ok(Self { medium, current: None, earlier: Vec::new() })
    }

    /// Opens a medium as a crash or an orderly end left it. Fails if it was not prepared, or if the root does not lead
    /// to an image within it. The image itself is verified when it is opened as an Elf.
    pub fn recover(medium: M) -> Result<Self> {
        let mut head = [0; 16];
        if medium.bytes() >= UNIT {
            medium.read(0, &mut head)?;
        }
        let (mark, root) = head.split_at(MARK.len());
        if mark != MARK {
            return Err(Error::BadFile);
        }
        let root = root.iter().rev().fold(0, |root, &byte| root << 8 | u64::from(byte));
        let current = if root == 0 { None } else { Some(image_at(&medium, root)?) };
        Ok(Self { medium, current, earlier: Vec::new() })
    }

    /// Bytes of the current image, for [`Linear::open`](crate::Linear::open) or [`Elf::open`](crate::Elf::open),
    /// which verify it: if they fail, it is to be built again. They stay as they are while others are published.
    /// Fails if nothing was published.
    pub fn image(&self) -> Result<M::Loan> {
        self.medium.lend(self.current.clone().ok_or(Error::NothingPublished)?)
    }

    /// Makes `image` the current one. When this returns it is durable. If it fails, or if a crash ends it, the old
    /// image is current, or the new one if only the root was not known to be durable.
    pub fn publish(&mut self, image: &[u8]) -> Result<()> {
        let (bytes, expected) = (image.len() as u64, image_bytes(image)?);
        if bytes != expected {
            return Err(Error::WrongSize { found: bytes, expected });
        }
        // 1. Space that no durable root leads to, and no reader is in.
        let at = self.free_space(bytes);
        let range = at..at + bytes;
        if self.medium.bytes() < range.end {
            self.medium.grow(range.end.next_multiple_of(UNIT))?;
        }
        // 2. The body, then the header with its state, so that a complete header has its body.
        let (header, body) = image.split_at(Header::BYTES);
        if defect(Defect::EarlyRoot) {
            store(&mut self.medium, ROOT_AT, at)?;
        }
        self.persist(at + Header::BYTES as u64, body)?;
        self.persist(at, header)?;
        // 3. What the medium holds now must have the checksum.
        if !defect(Defect::UncheckedImage) {
            Header::verify(self.medium.lend(range.clone())?.as_ref())?;
        }
        // 4. The root. From the store on it may be durable, before the fence it need not be.
        self.earlier.extend(self.current.replace(range));
        store(&mut self.medium, ROOT_AT, at)?;
        self.earlier.clear();
        Ok(())
    }

    /// The medium.
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// First byte of the first free space of `bytes` bytes, which may be the end.
    fn free_space(&self, bytes: u64) -> u64 {
        if defect(Defect::OverwrittenImage) {
            return UNIT;
        }
        let mut used = self.medium.lent();
        used.extend(self.current.iter().chain(&self.earlier).cloned());
        used.sort_unstable_by_key(|range| range.start);
        let mut at = UNIT;
        for range in used {
            if range.start >= at + bytes {
                break;
            }
            at = at.max(range.end.next_multiple_of(UNIT));
        }
        at
    }

    /// Writes `bytes` from `at` on and waits until they are durable.
    fn persist(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.medium.write(at, bytes)?;
        self.medium.flush(at..at + bytes.len() as u64)?;
        self.medium.fence()
    }
}

/// Stores a word and waits until it is durable.
fn store(medium: &mut impl Medium, at: u64, word: u64) -> Result<()> {
    medium.store(at, word)?;
    medium.flush(at..at + size_of::<u64>() as u64)?;
    medium.fence()
}

/// Size of the image that begins with `head`.
fn image_bytes(head: &[u8]) -> Result<u64> {
    Ok(Header::of_head(head)?.image_bytes().unwrap_or(u64::MAX))
}

/// The range of the image to which `root` leads.
fn image_at(medium: &impl Medium, root: u64) -> Result<Range<u64>> {
    let room = medium.bytes().checked_sub(root).filter(|_| root.is_multiple_of(UNIT));
    let bad = Error::BadRoot { root, bytes: medium.bytes() };
    let room = room.filter(|&room| room >= Header::BYTES as u64).ok_or(bad)?;
    let mut header = [0; Header::BYTES];
    medium.read(root, &mut header)?;
    let bytes = image_bytes(&header)?;
    if bytes > room {
        return Err(Error::WrongSize { found: room, expected: bytes });
    }
    Ok(root..root + bytes)
}
