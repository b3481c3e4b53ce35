//! A memory server's own view of its region, for who executes verbs that came over a network.
//!
//! Bytes travel little-endian, so a word of the region is eight bytes of a message. The orderings are those of the verbs of
//! an endpoint in the same process, so that clients of both kinds may share a region.

use std::sync::Arc;

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, RequestHandler, Result, ServerMemory, WORD};

use crate::region::Region;
use crate::regions::Regions;

/// One memory server of a [`crate::LocalFabric`] or a [`crate::ShmFabric`]. Keeps it mapped.
#[derive(Clone)]
pub struct ServedRegion {
    regions: Arc<Regions>,
    server: MemoryServerId,
}

impl ServedRegion {
    pub(crate) fn new(regions: Arc<Regions>, server: MemoryServerId) -> Result<Self> {
        regions.server(server)?;
        Ok(Self { regions, server })
    }

    #[inline]
    fn region(&self) -> &Region {
        &self.regions.list()[usize::from(self.server.0)]
    }

    /// Bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.region().bytes()
    }

    /// All its words, for who lets a device reach them.
    ///
    /// # Errors
    /// `Open` if they may not be changed, or are those of a file: what a device changes there is not known to be written back.
    pub fn words_of_device(&self) -> Result<&[std::sync::atomic::AtomicU64]> {
        self.region().words_of_device()
    }

    /// The address of `offset`, which may be anything.
    fn at(&self, offset: u64) -> Result<GlobalAddr> {
        if offset < self.bytes() {
            return Ok(GlobalAddr::new(self.server, offset));
        }
        let at = GlobalAddr::new(self.server, offset.min(pando_fabric::MAX_OFFSET - 1));
        Err(FabricError::OutOfRegion { at, len: 0, region_len: self.bytes() })
    }

    /// Whether a READ of `len` bytes would be refused.
    ///
    /// # Errors
    /// As [`ServedRegion::read`].
    pub fn check_read(&self, offset: u64, len: usize) -> Result<()> {
        self.region().words_to_read(self.at(offset)?, whole_words(self.at(offset)?, len)?).map(|_| ())
    }

    /// Whether a WRITE of `len` bytes, or an atomic, would be refused.
    ///
    /// # Errors
    /// As [`ServedRegion::write`].
    pub fn check_change(&self, offset: u64, len: usize) -> Result<()> {
        self.region().words_to_change(self.at(offset)?, whole_words(self.at(offset)?, len)?).map(|_| ())
    }

    /// READ: appends `len` bytes at `offset` to `out`.
    ///
    /// # Errors
    /// `OutOfRegion`, `Misaligned`; then nothing is appended.
    #[inline]
    pub fn read(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let at = self.at(offset)?;
        self.region().read_bytes(at, whole_words(at, len)?, out)
    }

    /// WRITE of `bytes` at `offset`.
    ///
    /// # Errors
    /// `OutOfRegion`, `Misaligned`, `ReadOnly`; then nothing is written.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.at(offset)?;
        whole_words(at, bytes.len())?;
        self.region().write_bytes(at, bytes)
    }

    /// As [`pando_fabric::Endpoint::compare_swap`].
    ///
    /// # Errors
    /// As [`ServedRegion::write`].
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64> {
        self.region().compare_swap(self.at(offset)?, expected, new)
    }

    /// As [`pando_fabric::Endpoint::masked_compare_swap`].
    ///
    /// # Errors
    /// As [`ServedRegion::write`].
    #[inline]
    pub fn masked_compare_swap(
        &self,
        offset: u64,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        self.region().masked_compare_swap(self.at(offset)?, expected, compare_mask, new, swap_mask)
    }

    /// As [`pando_fabric::Endpoint::fetch_add`].
    ///
    /// # Errors
    /// As [`ServedRegion::write`].
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64> {
        self.region().fetch_add(self.at(offset)?, add)
    }

    /// As [`pando_fabric::Endpoint::reserve`].
    ///
    /// # Errors
    /// `NoSpace`, and as [`ServedRegion::write`].
    pub fn reserve(&self, offset: u64, len: u64) -> Result<()> {
        self.region().reserve(self.at(offset)?, len)
    }

    /// As [`pando_fabric::Endpoint::persist`].
    ///
    /// # Errors
    /// `System` if the device fails, and as [`ServedRegion::read`].
    pub fn persist(&self, offset: u64, len: u64) -> Result<()> {
        self.region().persist(self.at(offset)?, len)
    }

    /// Writes what changed to the file, if it is one, and waits for it.
    ///
    /// # Errors
    /// `System` if the device fails.
    pub fn flush(&self) -> Result<()> {
        self.region().flush()
    }

    /// Has `handler` execute a call on the calling thread, as memory server `number`, which is what callers know this one by;
    /// the reply is appended to `out`.
    ///
    /// # Errors
    /// Those of the handler; `Refused` if nothing may be changed here.
    pub fn call(
        &self,
        number: MemoryServerId,
        handler: &dyn RequestHandler,
        op: u16,
        body: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let words = self.region().words_of_server(number, op)?;
        handler.handle(&ServerMemory::new(number, words, &|_| ()), op, body, out)
    }
}

impl std::fmt::Debug for ServedRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServedRegion({}, {} bytes)", self.server, self.bytes())
    }
}

/// Words of `len` bytes.
#[inline]
fn whole_words(at: GlobalAddr, len: usize) -> Result<usize> {
    if len.is_multiple_of(WORD) { Ok(len / WORD) } else { Err(FabricError::Misaligned { at, len }) }
}
