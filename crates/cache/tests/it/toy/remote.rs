//! Remote memory of the toy tree: READs and WRITEs take time, tear, and must not overlap at one address.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pando_fabric::{
    Chain, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf, RegionInfo,
    Result, VerbResult, yield_once,
};

use super::NODE;

/// One memory server.
pub struct Remote {
    state: Mutex<State>,
}

struct State {
    words: Vec<u64>,
    /// Nodes that a verb is reading or writing now.
    busy: HashMap<u64, &'static str>,
    /// Number of WRITEs that are still to fail.
    failing_writes: usize,
}

impl Remote {
    pub fn new(nodes: usize) -> Arc<Self> {
        let words = vec![0; (nodes + 1) * NODE / 8];
        Arc::new(Self { state: Mutex::new(State { words, busy: HashMap::new(), failing_writes: 0 }) })
    }

    /// Address of node space `i`.
    pub fn addr(i: usize) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(0), ((i + 1) * NODE) as u64)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The node at `addr`, at a quiescent point.
    pub fn node(&self, addr: GlobalAddr) -> [u64; NODE / 8] {
        let at = addr.offset() as usize / 8;
        self.state().words[at..at + NODE / 8].try_into().expect("a node has this many words")
    }

    pub fn set_node(&self, addr: GlobalAddr, node: [u64; NODE / 8]) {
        let at = addr.offset() as usize / 8;
        self.state().words[at..at + NODE / 8].copy_from_slice(&node);
    }

    /// Whether the next WRITE is to fail.
    fn takes_failure(&self) -> bool {
        let mut state = self.state();
        let fails = state.failing_writes > 0;
        state.failing_writes -= usize::from(fails);
        fails
    }

    /// Makes the next `count` WRITEs fail.
    pub fn fail_writes(&self, count: usize) {
        self.state().failing_writes = count;
    }
}

/// Marks a node busy while it lives.
struct Busy<'r>(&'r Remote, u64);

impl<'r> Busy<'r> {
    fn new(remote: &'r Remote, at: GlobalAddr, verb: &'static str) -> Self {
        let other = remote.state().busy.insert(at.raw(), verb);
        assert!(other.is_none(), "a {verb} at {at} meets a {}", other.unwrap_or_default());
        Self(remote, at.raw())
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.state().busy.remove(&self.1);
    }
}

/// A worker's connection to a [`Remote`].
pub struct ToyEndpoint {
    remote: Arc<Remote>,
    state: EndpointState,
    on_write: RefCell<Box<dyn Fn()>>,
}

impl ToyEndpoint {
    pub fn new(remote: &Arc<Remote>, seed: u64) -> Self {
        let on_write: Box<dyn Fn()> = Box::new(|| {});
        Self { remote: Arc::clone(remote), state: EndpointState::new(seed), on_write: RefCell::new(on_write) }
    }

    /// A pause, sometimes a long one, in which other threads may do much.
    pub async fn lag(&self) {
        for _ in 0..match self.random() % 16 {
            0 => self.random() % 200,
            1..=3 => 1,
            _ => 0,
        } {
            yield_once().await;
        }
    }

    /// Calls `observe` at each WRITE, at the moment it takes effect.
    #[cfg_attr(not(loom), expect(dead_code, reason = "a loom test observes WRITEs"))]
    pub fn on_write(&self, observe: impl Fn() + 'static) {
        *self.on_write.borrow_mut() = Box::new(observe);
    }

    /// Moves a node between `buf` and remote memory in two halves, with pauses before, between and after.
    async fn transfer(&self, at: GlobalAddr, verb: &'static str, move_word: impl Fn(&mut u64, usize)) {
        let _busy = Busy::new(&self.remote, at, verb);
        let first = at.offset() as usize / 8;
        for half in [0..NODE / 16, NODE / 16..NODE / 8] {
            yield_once().await;
            for i in half {
                move_word(&mut self.remote.state().words[first + i], i);
            }
        }
        yield_once().await;
    }
}

impl Endpoint for ToyEndpoint {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn buffer(&self, len: usize) -> PageBuf {
        PageBuf::zeroed(len)
    }

    fn recycle(&self, _buf: PageBuf) {}

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        assert_eq!(into.window_len(), NODE, "whole nodes are moved");
        self.state.counters.count_read(into.window_len());
        self.transfer(at, "READ", |word, i| into.set(i, *word)).await;
        Ok(into)
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        if self.remote.takes_failure() {
            return Err(FabricError::ServerUnreachable(at.server()));
        }
        assert_eq!(from.window_len(), NODE, "whole nodes are moved");
        self.state.counters.count_write(from.window_len());
        (self.on_write.borrow())();
        self.transfer(at, "WRITE", |word, i| *word = from.get(i)).await;
        Ok(from)
    }

    async fn read_word(&self, _at: GlobalAddr) -> Result<u64> {
        unreachable!("the cache moves nodes only")
    }

    async fn write_word(&self, _at: GlobalAddr, _value: u64) -> Result<()> {
        unreachable!("the cache moves nodes only")
    }

    async fn compare_swap(&self, _at: GlobalAddr, _expected: u64, _new: u64) -> Result<u64> {
        unreachable!("the cache uses no atomics")
    }

    async fn masked_compare_swap(&self, _: GlobalAddr, _: u64, _: u64, _: u64, _: u64) -> Result<u64> {
        unreachable!("the cache uses no atomics")
    }

    async fn fetch_add(&self, _at: GlobalAddr, _add: u64) -> Result<u64> {
        unreachable!("the cache uses no atomics")
    }

    async fn submit(&self, _chain: Chain) -> Result<Vec<VerbResult>> {
        unreachable!("the cache uses no chains")
    }

    async fn call_bytes(&self, _: MemoryServerId, _: u16, _: Vec<u8>) -> Result<Vec<u8>> {
        unreachable!("the cache calls nobody")
    }

    async fn reserve(&self, _at: GlobalAddr, _len: u64) -> Result<()> {
        Ok(())
    }

    async fn yield_now(&self) {
        yield_once().await;
    }

    fn regions(&self) -> &[RegionInfo] {
        &[]
    }

    fn now(&self) -> Nanos {
        0
    }
}
