//! Reading a dump, block by block, in little memory.
//!
//! The checksum of each block is verified before its entries are returned. Only the trailer proves that no
//! block is missing, so a dump is valid only once its end has been reached.

use std::io::{self, Read};

use super::{BLOCK, BLOCK_MAX, DumpError, HEADER_MAX, Header, MAGIC, TRAILER, VERSION, counted};

/// An entry: its key and its value.
pub type Entry<'e> = (&'e [u8], &'e [u8]);

/// Reads a dump block by block, each verified before its entries are returned.
pub struct Reader<R> {
    input: R,
    block: Vec<u8>,
    /// Offset of the next entry in `block`.
    next: usize,
    entries: u64,
    digest: crc32fast::Hasher,
    /// The last key returned, if any.
    last: Option<Vec<u8>>,
    ended: bool,
}

impl<R: Read> Reader<R> {
    /// # Errors
    /// [`DumpError`] if the input does not begin like a dump.
    pub fn begin(input: R) -> Result<(Header, Reader<R>), DumpError> {
        let (block, digest) = (Vec::new(), crc32fast::Hasher::new());
        let mut reader = Reader { input, block, next: 0, entries: 0, digest, last: None, ended: false };
        let mut magic = [0; 8];
        match reader.fill(&mut magic) {
            Ok(()) if magic == MAGIC => {}
            Ok(()) | Err(DumpError::CutShort { .. }) => return Err(DumpError::NotADump),
            Err(error) => return Err(error),
        }
        let mut crc = crc32fast::Hasher::new();
        crc.update(&magic);
        let version = reader.number(&mut crc)?;
        if version != VERSION {
            return Err(DumpError::OtherVersion { found: version });
        }
        let len = reader.number(&mut crc)? as usize;
        let body = reader.part(len, HEADER_MAX, &mut crc)?;
        reader.check(crc)?;
        let header = Header::decode(&body).ok_or_else(|| reader.damaged("its header is invalid"))?;
        Ok((header, reader))
    }

    /// Returns the next entry. `None` after the last one, when the whole dump has been verified.
    ///
    /// # Errors
    /// [`DumpError`]. Entries may be missing from those returned before.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, DumpError> {
        while self.next == self.block.len() {
            if self.ended {
                return Ok(None);
            }
            self.next_part()?;
        }
        let wrong = self.damaged("an entry is longer than its block");
        let mut rest = &self.block[self.next..];
        let Some(key) = counted(&mut rest) else { return Err(wrong) };
        let Some(value) = counted(&mut rest) else { return Err(wrong) };
        match &mut self.last {
            Some(last) if key <= last.as_slice() => {
                return Err(self.damaged("its keys are out of order"));
            }
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last = Some(key.to_vec()),
        }
        self.next = self.block.len() - rest.len();
        self.entries += 1;
        Ok(Some((key, value)))
    }

    fn next_part(&mut self) -> Result<(), DumpError> {
        let mut tag = [0];
        self.fill(&mut tag)?;
        let mut crc = crc32fast::Hasher::new();
        crc.update(&tag);
        match tag[0] {
            BLOCK => {
                let len = self.number(&mut crc)? as usize;
                (self.block, self.next) = (self.part(len, BLOCK_MAX, &mut crc)?, 0);
                self.check(crc)?;
                self.digest.update(&self.block);
                Ok(())
            }
            TRAILER => {
                let mut entries = [0; 8];
                self.fill(&mut entries)?;
                crc.update(&entries);
                let digest = self.number(&mut crc)?;
                self.check(crc)?;
                if (u64::from_le_bytes(entries), digest) != (self.entries, self.digest.clone().finalize()) {
                    return Err(self.damaged("its trailer belongs to other entries"));
                }
                if self.input.read(&mut tag).map_err(|error| self.failed(error))? > 0 {
                    return Err(self.damaged("something follows its trailer"));
                }
                self.ended = true;
                Ok(())
            }
            _ => Err(self.damaged("a part is neither a block nor a trailer")),
        }
    }

    fn number(&mut self, crc: &mut crc32fast::Hasher) -> Result<u32, DumpError> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        crc.update(&bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn part(&mut self, len: usize, max: usize, crc: &mut crc32fast::Hasher) -> Result<Vec<u8>, DumpError> {
        if len > max {
            return Err(self.damaged("a part of it is too long"));
        }
        let mut bytes = vec![0; len];
        self.fill(&mut bytes)?;
        crc.update(&bytes);
        Ok(bytes)
    }

    /// Reads and verifies the checksum of a part.
    fn check(&mut self, crc: crc32fast::Hasher) -> Result<(), DumpError> {
        let mut found = [0; 4];
        self.fill(&mut found)?;
        match u32::from_le_bytes(found) == crc.finalize() {
            true => Ok(()),
            false => Err(self.damaged("a checksum is wrong")),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), DumpError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => DumpError::CutShort { entries: self.entries },
            _ => self.failed(error),
        })
    }

    fn failed(&self, error: io::Error) -> DumpError {
        DumpError::Read { entries: self.entries, error }
    }

    fn damaged(&self, what: &'static str) -> DumpError {
        DumpError::Damaged { entries: self.entries, what }
    }
}
