//! Writing a dump, entry by entry, in little memory.
//!
//! Entries are collected into blocks with a checksum each. The trailer, with the number of entries and their
//! digest, is written last: a dump without it is incomplete.

use std::io::{self, Write};

use super::{BLOCK, BLOCK_BYTES, Header, MAGIC, TRAILER, VERSION, put_counted};

/// Writes a dump. The output is not a valid dump before [`Writer::finish`] has returned.
pub struct Writer<W> {
    out: W,
    /// Entries of the current block.
    block: Vec<u8>,
    entries: u64,
    /// Digest of all entries.
    digest: crc32fast::Hasher,
}

impl<W: Write> Writer<W> {
    /// # Errors
    /// Errors of `out`.
    pub fn begin(mut out: W, header: &Header) -> io::Result<Writer<W>> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        put_counted(&mut bytes, &header.encode());
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        out.write_all(&bytes)?;
        Ok(Writer { out, block: Vec::new(), entries: 0, digest: crc32fast::Hasher::new() })
    }

    /// Adds an entry; its key must be greater than all before it.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        put_counted(&mut self.block, key);
        put_counted(&mut self.block, value);
        self.entries += 1;
        if self.block.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let mut head = vec![BLOCK];
        head.extend((self.block.len() as u32).to_le_bytes());
        let mut crc = crc32fast::Hasher::new();
        crc.update(&head);
        crc.update(&self.block);
        self.digest.update(&self.block);
        self.out.write_all(&head)?;
        self.out.write_all(&self.block)?;
        self.out.write_all(&crc.finalize().to_le_bytes())?;
        self.block.clear();
        Ok(())
    }

    /// Ends the dump; returns the number of entries.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let mut trailer = vec![TRAILER];
        trailer.extend(self.entries.to_le_bytes());
        trailer.extend(self.digest.finalize().to_le_bytes());
        trailer.extend(crc32fast::hash(&trailer).to_le_bytes());
        self.out.write_all(&trailer)?;
        self.out.flush()?;
        Ok((self.out, self.entries))
    }
}
