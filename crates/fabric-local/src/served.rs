//! A memory server's view of its own region, to execute verbs received over a network.
//!
//! Bytes are little-endian in messages, so a word of the region is eight bytes of a message. The memory
//! orderings are the same as for local endpoints, so local and remote clients may share a region.

use std::sync::Arc;

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, RequestHandler, Result, ServerMemory, WORD};

use crate::region::Region;
use crate::regions::Regions;

/// One memory server of a [`crate::LocalFabric`] or a [`crate::ShmFabric`]. It keeps the region mapped.
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

    /// All words of the region, to register them with a device.
    ///
    /// # Errors
    /// `Open` if the region is a file or a device: the kernel does not learn of a NIC's changes there, so
    /// they may not be written back.
    pub fn words_of_device(&self) -> Result<&[std::sync::atomic::AtomicU64]> {
        self.region().words_of_device()
    }

    /// Address of `offset`, which is not yet checked.
    fn at(&self, offset: u64) -> Result<GlobalAddr> {
        if offset < self.bytes() {
            return Ok(GlobalAddr::new(self.server, offset));
        }
        let at = GlobalAddr::new(self.server, offset.min(pando_fabric::MAX_OFFSET - 1));
        Err(FabricError::OutOfRegion { at, len: 0, region_len: self.bytes() })
    }

    /// Checks whether a READ of `len` bytes would be refused.
    ///
    /// # Errors
    /// As [`ServedRegion::read`].
    pub fn check_read(&self, offset: u64, len: usize) -> Result<()> {
        self.region().words_to_read(self.at(offset)?, whole_words(self.at(offset)?, len)?).map(|_| ())
    }

    /// Checks whether a WRITE of `len` bytes, or an atomic, would be refused.
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

    /// Writes all changes to the file, if there is one, and waits until they are durable.
    ///
    /// # Errors
    /// `System` if the device fails.
    pub fn flush(&self) -> Result<()> {
        self.region().flush()
    }

    /// Executes a call by `handler` on the calling thread and appends the reply to `out`. `number` is the
    /// number by which clients know this memory server.
    ///
    /// # Errors
    /// Errors of the handler; `Refused` if the region is read-only.
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

/// Number of words in `len` bytes.
#[inline]
fn whole_words(at: GlobalAddr, len: usize) -> Result<usize> {
    if len.is_multiple_of(WORD) { Ok(len / WORD) } else { Err(FabricError::Misaligned { at, len }) }
}
