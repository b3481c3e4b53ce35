//! An endpoint of local memory whose next WRITEs can be lost, in whole or behind some byte, and that may lose what
//! is not persisted.

use std::cell::Cell;
use std::convert::Infallible;

use pando_fabric::sectors::Sectors;
use pando_fabric::{
    Chain, Endpoint, EndpointState, Fabric, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf,
    RegionInfo, Request, Result, VerbResult,
};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_log::{Blocks, Shape};
use pando_rt::block_on;

pub struct Faulty {
    inner: LocalEndpoint,
    /// WRITEs that still succeed before one that does not.
    pub until: Cell<Option<u32>>,
    /// Bytes of that one that arrive.
    pub bytes: Cell<usize>,
    sectors: Sectors,
}

impl Faulty {
    pub fn new(fabric: &LocalFabric) -> Self {
        let inner = fabric.endpoint(7).expect("an endpoint");
        Self { inner, until: Cell::new(None), bytes: Cell::new(0), sectors: Sectors::default() }
    }

    /// What is not persisted is lost, or not, sector by sector.
    pub async fn lose_power(&self) {
        self.sectors.lose_power(&self.inner).await.expect("memory");
    }
}

/// Memory of one server.
pub fn fabric() -> LocalFabric {
    LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20], huge_pages: false }).expect("memory")
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
        self.inner.read(at, into).await
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.sectors.before_write(&self.inner, at, from.window_len() as u64).await?;
        match self.until.get() {
            None => return self.inner.write(at, from).await,
            Some(more @ 1..) => {
                self.until.set(Some(more - 1));
                return self.inner.write(at, from).await;
            }
            Some(0) => self.until.set(None),
        }
        let len = from.window_len();
        let mut whole = Vec::new();
        from.append_bytes_to(len, &mut whole);
        let mut before = Vec::new();
        self.inner.read(at, PageBuf::zeroed(len)).await?.append_bytes_to(len, &mut before);
        let cut = self.bytes.get().min(len);
        let mut torn = PageBuf::zeroed(len);
        torn.copy_from_bytes(&[&whole[..cut], &before[cut..]].concat());
        self.inner.write(at, torn).await?;
        Err(FabricError::TimedOut(at.server()))
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.inner.read_word(at).await
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.inner.write_word(at, value).await
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.inner.compare_swap(at, expected, new).await
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        self.inner.masked_compare_swap(at, expected, compare_mask, new, swap_mask).await
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.inner.fetch_add(at, add).await
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        self.inner.submit(chain).await
    }

    async fn call<R: Request>(&self, server: MemoryServerId, request: &R) -> Result<R::Reply> {
        self.inner.call(server, request).await
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.inner.reserve(at, len).await
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.sectors.persist(at, len).end();
        Ok(())
    }

    fn regions(&self) -> &[RegionInfo] {
        self.inner.regions()
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}
