//! Writing pages during recovery, so that a recovery that stops anywhere can begin anew.
//!
//! Changes are applied to the remote copy of a page without an image. Applied twice, or to a page that was
//! written in part, they go wrong. So such pages are written in groups, in the order of their addresses: a
//! group goes to one half of the *scratch* segment first, and then to its place. A recovery that begins anew
//! writes the last whole group again, and leaves out all pages up to its end. Both steps are persisted, so that
//! this holds after a loss of power too.
//!
//! ```text
//! half    [epochs] [number of the group] [pages:32][bytes of a page:32] [check]  [address, page]...
//! ```

use pando_fabric::codec::{Put, Reader};
use pando_fabric::{Endpoint, GlobalAddr, join_at_most};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::disk;
use crate::error::{LogError, Result};
use crate::reader::Contents;
use crate::space;

const HEADER: usize = 32;
/// Pages that are written at a time.
const AT_ONCE: usize = 16;

/// Pages being written; see the module documentation.
pub struct Rewrite<'c> {
    contents: &'c Contents,
    /// Number of the last group.
    number: u64,
    /// Pages up to this address have been written.
    done: Option<GlobalAddr>,
    /// Pages of the next group.
    pages: Vec<(GlobalAddr, Vec<u8>)>,
}

struct Group {
    number: u64,
    pages: Vec<(GlobalAddr, Vec<u8>)>,
}

impl<'c> Rewrite<'c> {
    /// Continues an earlier recovery from the same log, if there was one.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn begin<E: Endpoint>(ep: &E, contents: &'c Contents) -> Result<Self> {
        let mut rewrite = Self { contents, number: 0, done: None, pages: Vec::new() };
        let half = rewrite.half_bytes();
        let mut last: Option<Group> = None;
        for parity in 0..2 {
            let bytes = space::read_bytes(ep, rewrite.half(parity), half).await?;
            let group = rewrite.decode(&bytes);
            last = group.into_iter().chain(last).max_by_key(|group| group.number);
        }
        if let Some(group) = last {
            rewrite.number = group.number;
            // Another copy may lack it.
            rewrite.write_group(ep, &group.pages).await?;
        }
        Ok(rewrite)
    }

    fn half_bytes(&self) -> usize {
        self.contents.space().segment_bytes() as usize / 2 / 8 * 8
    }

    fn half(&self, number: u64) -> GlobalAddr {
        self.contents.space().scratch.add(number % 2 * self.half_bytes() as u64)
    }

    fn seed(&self) -> u64 {
        !self.contents.space().seed
    }

    /// Whether an earlier recovery has written this page.
    pub fn has_written(&self, page: GlobalAddr) -> bool {
        self.done.is_some_and(|done| page <= done)
    }

    /// Writes a page, at the latest when the rewrite is finished. Pages come in the order of their addresses,
    /// without those that [have been written](Rewrite::has_written).
    ///
    /// # Errors
    /// [`LogError::RecordTooLarge`] for a page that the scratch segment cannot hold; errors of the fabric.
    pub async fn push<E: Endpoint>(&mut self, ep: &E, page: GlobalAddr, bytes: Vec<u8>) -> Result<()> {
        let each = 8 + bytes.len();
        let fit = self.half_bytes().saturating_sub(HEADER) / each;
        if fit == 0 {
            return Err(LogError::RecordTooLarge { bytes: bytes.len(), max: self.half_bytes() - HEADER - 8 });
        }
        self.pages.push((page, bytes));
        if self.pages.len() == fit { self.finish(ep).await } else { Ok(()) }
    }

    /// Writes the pages that are left.
    ///
    /// # Errors
    /// Errors of the fabric.
    pub async fn finish<E: Endpoint>(&mut self, ep: &E) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        self.number += 1;
        let pages = std::mem::take(&mut self.pages);
        self.write_group(ep, &pages).await
    }

    /// Writes the group of the current number, and then its pages to their places.
    async fn write_group<E: Endpoint>(&mut self, ep: &E, pages: &[(GlobalAddr, Vec<u8>)]) -> Result<()> {
        let group = self.encode(pages);
        space::write_bytes(ep, self.half(self.number), &group).await?;
        disk::persist(ep, &[(self.half(self.number), group.len() as u64)]).await?;
        let writes = pages.iter().map(|(page, bytes)| space::write_bytes(ep, *page, bytes));
        join_at_most(AT_ONCE, writes).await.into_iter().collect::<Result<()>>()?;
        self.done = pages.last().map_or(self.done, |(page, _)| Some(*page));
        let ranges: Vec<_> = pages.iter().map(|(page, bytes)| (*page, bytes.len() as u64)).collect();
        Ok(disk::persist(ep, &ranges).await?)
    }

    fn encode(&self, pages: &[(GlobalAddr, Vec<u8>)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (page, bytes) in pages {
            body.put_u64(page.raw());
            body.extend_from_slice(bytes);
        }
        let mut bytes = Vec::new();
        bytes.put_u64(self.contents.epochs());
        bytes.put_u64(self.number);
        bytes.put_u32(pages.len() as u32);
        bytes.put_u32(pages.first().map_or(0, |(_, page)| page.len() as u32));
        let check = xxh3_64_with_seed(&[&bytes[..], &body].concat(), self.seed());
        bytes.put_u64(check);
        bytes.append(&mut body);
        bytes
    }

    /// The group in a half of the scratch segment, if it is a whole one of this recovery.
    fn decode(&self, bytes: &[u8]) -> Option<Group> {
        let mut reader = Reader::new(bytes);
        let (epoch, number) = (reader.u64().ok()?, reader.u64().ok()?);
        let (count, len) = (reader.u32().ok()? as usize, reader.u32().ok()? as usize);
        let check = reader.u64().ok()?;
        let body = reader.bytes(count.checked_mul(len.checked_add(8)?)?).ok()?;
        let is_whole = check == xxh3_64_with_seed(&[&bytes[..HEADER - 8], body].concat(), self.seed());
        if !is_whole || epoch != self.contents.epochs() {
            return None;
        }
        let mut reader = Reader::new(body);
        let mut page = || Some((GlobalAddr::from_raw(reader.u64().ok()?)?, reader.bytes(len).ok()?.to_vec()));
        Some(Group { number, pages: (0..count).map(|_| page()).collect::<Option<_>>()? })
    }
}
