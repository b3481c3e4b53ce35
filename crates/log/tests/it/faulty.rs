//! An endpoint of two copies of local memory, whose next WRITEs can be lost, in whole or behind some byte, and that may
//! lose what is not persisted, or one of the copies.
//!
//! A WRITE reaches the backup, then the primary. One of bytes that nobody reads before the answer reaches both at once, so
//! if it is lost, either may have all of it and the other a part.

use std::cell::Cell;
use std::convert::Infallible;

use pando_fabric::sectors::Sectors;
use pando_fabric::{
    Chain, Endpoint, EndpointState, Fabric, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf,
    RegionInfo, Result, VerbResult,
};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_log::{Blocks, Shape};
use pando_rt::block_on;

pub struct Faulty {
    inner: LocalEndpoint,
    /// Server of the copy that is read.
    primary: Cell<u16>,
    /// WRITEs that still succeed before one that does not.
    pub until: Cell<Option<u32>>,
    /// Bytes of that one that arrive.
    pub bytes: Cell<usize>,
    sectors: Sectors,
}

impl Faulty {
    pub fn new(fabric: &LocalFabric) -> Self {
        let inner = fabric.endpoint(7).expect("an endpoint");
        let (until, bytes) = (Cell::new(None), Cell::new(0));
        Self { inner, primary: Cell::new(0), until, bytes, sectors: Sectors::default() }
    }

    /// The primary is lost and comes back as a copy of the backup.
    pub async fn lose_primary(&self) {
        let lost = self.primary.get();
        self.primary.set(1 - lost);
        let whole =
            self.inner.read(self.on(block(0), 1 - lost), PageBuf::zeroed(USED)).await.expect("memory");
        self.inner.write(self.on(block(0), lost), whole).await.expect("memory");
    }

    fn on(&self, at: GlobalAddr, server: u16) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(server), at.offset())
    }

    fn primary(&self, at: GlobalAddr) -> GlobalAddr {
        self.on(at, self.primary.get())
    }

    fn backup(&self, at: GlobalAddr) -> GlobalAddr {
        self.on(at, 1 - self.primary.get())
    }

    /// Bytes of a WRITE of `len` bytes that arrive, if not all do.
    fn fault(&self, len: usize) -> Option<usize> {
        let more = self.until.get()?;
        self.until.set(more.checked_sub(1));
        (more == 0).then(|| self.bytes.get().min(len))
    }

    /// Writes the first bytes of a buffer.
    async fn write_front(&self, at: GlobalAddr, from: &PageBuf, len: usize) -> Result<()> {
        self.sectors.before_write(&self.inner, at, from.window_len() as u64).await?;
        let (mut whole, mut before) = (Vec::new(), Vec::new());
        from.append_bytes_to(from.window_len(), &mut whole);
        let read = self.inner.read(at, PageBuf::zeroed(whole.len())).await?;
        read.append_bytes_to(whole.len(), &mut before);
        let mut torn = PageBuf::zeroed(whole.len());
        torn.copy_from_bytes(&[&whole[..len], &before[len..]].concat());
        self.inner.write(at, torn).await.map(drop)
    }

    /// A WRITE that arrives in part, at one copy or the other.
    async fn write_in_part(&self, order: [GlobalAddr; 2], from: &PageBuf, len: usize) -> Result<PageBuf> {
        let whole = from.window_len();
        if self.inner.random().is_multiple_of(2) {
            self.write_front(order[0], from, len).await?;
        } else {
            self.write_front(order[0], from, whole).await?;
            self.write_front(order[1], from, len).await?;
        }
        Err(FabricError::TimedOut(order[0].server()))
    }

    /// What is not persisted is lost, or not, sector by sector.
    pub async fn lose_power(&self) {
        self.sectors.lose_power(&self.inner).await.expect("memory");
    }
}

/// Blocks of a copy that a log may use, from block 1 on, and their bytes.
pub const USED_BLOCKS: usize = 32;
const USED: usize = USED_BLOCKS << 12;

/// Memory of two servers.
pub fn fabric() -> LocalFabric {
    LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20; 2], huge_pages: false }).expect("memory")
}

/// Block `i` of 4 KiB.
pub fn block(i: usize) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), i as u64 * 4096)
}

/// Blocks from 1 on for a log of this shape, the root first.
pub fn blocks(ep: &impl Endpoint, lanes: usize, segments: usize, segment_bytes: u64) -> Blocks {
    let mut next = 1;
    let alloc = async |_| {
        next += 1;
        Ok::<_, Infallible>(block(next))
    };
    let gathered = block_on(ep, Blocks::gather(Shape { lanes, segments, segment_bytes }, alloc));
    Blocks { root: block(1), ..gathered.expect("infallible") }
}

impl Endpoint for Faulty {
    fn state(&self) -> &EndpointState {
        self.inner.state()
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.inner.read(self.primary(at), into).await
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        let (len, order) = (from.window_len(), [self.backup(at), self.primary(at)]);
        if let Some(cut) = self.fault(len) {
            return self.write_in_part(order, &from, cut).await;
        }
        for copy in order {
            self.write_front(copy, &from, len).await?;
        }
        Ok(from)
    }

    async fn write_unread(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        match self.fault(from.window_len()) {
            None => self.write(at, from).await,
            Some(cut) => {
                let mut order = [self.backup(at), self.primary(at)];
                if self.inner.random().is_multiple_of(2) {
                    order.reverse();
                }
                self.write_in_part(order, &from, cut).await
            }
        }
    }

    fn write_now(&self, at: GlobalAddr, bytes: &[u8]) -> bool {
        // Sometimes it is not possible, so that batches of several records are written, too.
        if self.until.get().is_some() || self.inner.random().is_multiple_of(3) {
            return false;
        }
        let mut from = PageBuf::zeroed(bytes.len());
        from.copy_from_bytes(bytes);
        block_on(&self.inner, self.write(at, from)).is_ok()
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.inner.read_word(self.primary(at)).await
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        let buf = PageBuf::zeroed(8);
        buf.set(0, value);
        self.write(at, buf).await.map(drop)
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        unreachable!("a log swaps no words: {at} {expected} {new}")
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        _compare_mask: u64,
        new: u64,
        _swap_mask: u64,
    ) -> Result<u64> {
        self.compare_swap(at, expected, new).await
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        unreachable!("a log adds to no word: {at} {add}")
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        unreachable!("a log has no chains: {chain:?}")
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.inner.call_bytes(server, op, body).await
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.inner.reserve(at, len).await
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        for copy in [self.backup(at), self.primary(at)] {
            self.sectors.persist(copy, len).end();
        }
        Ok(())
    }

    fn regions(&self) -> &[RegionInfo] {
        self.inner.regions()
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}
