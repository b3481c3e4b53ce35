//! An endpoint whose verbs follow a script: each may be delayed, lose its answer or fail, and the bytes of a
//! READ may be changed.
//!
//! It works on the memory of this process, so that a verb takes effect at the moment at which the script lets
//! it.

use std::cell::RefCell;

use pando_fabric::{
    Chain, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo,
    Result, VerbResult,
};
use pando_fabric_local::LocalEndpoint;

/// Kind of a verb. The address of a chain is that of its last verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Read,
    ReadWord,
    Write,
    WriteWord,
    Swap,
    Chain,
}

/// What the script does with a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// The verb is delayed; the script decides again later.
    Waits,
    /// The verb takes effect, and its answer is lost.
    Unanswered,
    NotSent,
}

type Script = Box<dyn FnMut(Verb, GlobalAddr) -> Fate>;
type Tear = Box<dyn FnMut(GlobalAddr, &PageBuf)>;

pub struct Scripted {
    inner: LocalEndpoint,
    script: RefCell<Script>,
    tear: RefCell<Tear>,
}

impl Scripted {
    pub fn new(inner: LocalEndpoint) -> Self {
        let script: Script = Box::new(|_, _| Fate::Done);
        let tear: Tear = Box::new(|_, _| ());
        Self { inner, script: RefCell::new(script), tear: RefCell::new(tear) }
    }

    /// Makes verbs follow `script` from now on.
    pub fn follow(&self, script: impl FnMut(Verb, GlobalAddr) -> Fate + 'static) {
        *self.script.borrow_mut() = Box::new(script);
    }

    /// Makes all verbs succeed from now on.
    pub fn follow_none(&self) {
        self.follow(|_, _| Fate::Done);
    }

    /// Makes `tear` change the bytes of READs from now on.
    pub fn tear(&self, tear: impl FnMut(GlobalAddr, &PageBuf) + 'static) {
        *self.tear.borrow_mut() = Box::new(tear);
    }

    async fn perform<T>(
        &self,
        verb: Verb,
        at: GlobalAddr,
        perform: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        loop {
            let fate = (self.script.borrow_mut())(verb, at);
            match fate {
                Fate::Done => return perform.await,
                Fate::Waits => self.inner.yield_now().await,
                Fate::Unanswered => {
                    perform.await?;
                    return Err(FabricError::TimedOut(at.server()));
                }
                Fate::NotSent => {
                    let (server, reason) = (at.server(), "the script says so".to_owned());
                    return Err(FabricError::NotConnected { server, reason });
                }
            }
        }
    }
}

impl Endpoint for Scripted {
    fn state(&self) -> &EndpointState {
        self.inner.state()
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        let page = self.perform(Verb::Read, at, self.inner.read(at, into)).await?;
        (self.tear.borrow_mut())(at, &page);
        Ok(page)
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.perform(Verb::Write, at, self.inner.write(at, from)).await
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.perform(Verb::ReadWord, at, self.inner.read_word(at)).await
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.perform(Verb::WriteWord, at, self.inner.write_word(at, value)).await
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.perform(Verb::Swap, at, self.inner.compare_swap(at, expected, new)).await
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
        let at = chain.verbs().last().map_or(GlobalAddr::NULL, |verb| verb.at());
        self.perform(Verb::Chain, at, self.inner.submit(chain)).await
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

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}
