//! An endpoint whose READs are pending a few times before they take effect, like those of a network.
//!
//! It counts the READs that are outstanding together, and the rounds of READs. At a chosen lookup in the
//! mapping table its thread is preempted.

use std::cell::{Cell, RefCell};

use pando_fabric::{
    Chain, Endpoint, EndpointState, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo, Result,
    VerbResult, Work,
};
use pando_fabric_local::LocalEndpoint;

pub struct Observed {
    inner: LocalEndpoint,
    /// READs are pending between 1 and this many times; 0 is never.
    delay_max: u64,
    outstanding: Cell<u64>,
    most: Cell<u64>,
    rounds: Cell<u64>,
    /// Lookups in the mapping table until the thread is preempted.
    looks: Cell<u64>,
    meanwhile: RefCell<Option<Box<dyn FnOnce()>>>,
}

impl Observed {
    pub fn new(inner: LocalEndpoint, delay_max: u64) -> Self {
        let (outstanding, most, rounds) = (Cell::new(0), Cell::new(0), Cell::new(0));
        let (looks, meanwhile) = (Cell::new(0), RefCell::default());
        Self { inner, delay_max, outstanding, most, rounds, looks, meanwhile }
    }

    /// Preempts the thread right before its lookup number `look`, from 1 on, in the mapping table, and runs
    /// `meanwhile`.
    pub fn preempt(&self, look: u64, meanwhile: impl FnOnce() + 'static) {
        self.looks.set(look);
        *self.meanwhile.borrow_mut() = Some(Box::new(meanwhile));
    }

    /// Whether the thread was preempted.
    pub fn was_preempted(&self) -> bool {
        self.meanwhile.borrow().is_none()
    }

    /// Largest number of READs outstanding together, and number of times that a READ was issued while none
    /// was outstanding; both since the last call.
    pub fn take(&self) -> (u64, u64) {
        (self.most.take(), self.rounds.take())
    }
}

impl Endpoint for Observed {
    fn state(&self) -> &EndpointState {
        self.inner.state()
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.rounds.set(self.rounds.get() + u64::from(self.outstanding.get() == 0));
        self.outstanding.set(self.outstanding.get() + 1);
        self.most.set(self.most.get().max(self.outstanding.get()));
        if self.delay_max > 0 {
            for _ in 0..1 + self.inner.random() % self.delay_max {
                self.inner.yield_now().await;
            }
        }
        let read = self.inner.read(at, into).await;
        self.outstanding.set(self.outstanding.get() - 1);
        read
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.inner.write(at, from).await
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

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.inner.call_bytes(server, op, body).await
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.inner.reserve(at, len).await
    }

    fn regions(&self) -> &[RegionInfo] {
        self.inner.regions()
    }

    fn charge(&self, work: Work) {
        if matches!(work, Work::TableLookup) {
            self.looks.set(self.looks.get().wrapping_sub(1));
            let meanwhile = if self.looks.get() == 0 { self.meanwhile.take() } else { None };
            if let Some(meanwhile) = meanwhile {
                meanwhile();
            }
        }
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}
