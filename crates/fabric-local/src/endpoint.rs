//! The endpoint of both fabrics: verbs are loads and stores, and complete at once.
//!
//! No verb waits, so the only pending futures of this endpoint are calls, [`Endpoint::persist`] and
//! [`Endpoint::yield_now`], and verbs cannot time out. A refused verb (address, length, read-only pool) is not
//! counted and has no effect; neither has any other verb of its chain.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::fence;
use std::thread;

use pando_fabric::{
    Chain, ChainVerb, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf,
    RegionInfo, Result, TimeLimit, VerbResult, WORD,
};

use crate::promise::Promise;
use crate::regions::Regions;

/// One worker thread's endpoint of a [`crate::LocalFabric`] or a [`crate::ShmFabric`]. It keeps the regions
/// mapped. It may move to another thread between operations.
pub struct LocalEndpoint {
    regions: Arc<Regions>,
    state: EndpointState,
}

impl LocalEndpoint {
    pub(crate) fn new(regions: Arc<Regions>, seed: u64) -> Self {
        Self { regions, state: EndpointState::new(seed) }
    }

    #[inline]
    fn do_read(&self, at: GlobalAddr, into: &PageBuf) -> Result<()> {
        self.regions.of(at)?.read(at, into.window_words())?;
        self.state.counters.count_read(into.window_len());
        Ok(())
    }

    #[inline]
    fn do_write(&self, at: GlobalAddr, from: &PageBuf) -> Result<()> {
        self.regions.of(at)?.write(at, from.window_words())?;
        self.state.counters.count_write(from.window_len());
        Ok(())
    }

    #[inline]
    fn do_write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.regions.of(at)?.write_word(at, value)?;
        self.state.counters.count_write(WORD);
        Ok(())
    }

    #[inline]
    fn counted_atomic(&self, before: Result<u64>) -> Result<u64> {
        if before.is_ok() {
            self.state.counters.count_atomic();
        }
        before
    }

    fn check(&self, verb: &ChainVerb) -> Result<()> {
        let (at, region) = (verb.at(), self.regions.of(verb.at())?);
        match verb {
            ChainVerb::Read { into, .. } => region.words_to_read(at, into.window_words().len())?,
            ChainVerb::Write { from, .. } => region.words_to_change(at, from.window_words().len())?,
            ChainVerb::WriteWord { .. } | ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => {
                region.words_to_change(at, 1)?
            }
        };
        Ok(())
    }

    fn execute(&self, verb: ChainVerb) -> Result<VerbResult> {
        Ok(match verb {
            ChainVerb::Read { at, into } => {
                self.do_read(at, &into)?;
                VerbResult::Buf(into)
            }
            ChainVerb::Write { at, from } => {
                self.do_write(at, &from)?;
                VerbResult::Buf(from)
            }
            ChainVerb::WriteWord { at, value } => {
                self.do_write_word(at, value)?;
                VerbResult::Done
            }
            ChainVerb::CompareSwap { at, expected, new } => {
                VerbResult::Word(self.counted_atomic(self.regions.of(at)?.compare_swap(at, expected, new))?)
            }
            ChainVerb::FetchAdd { at, add } => {
                VerbResult::Word(self.counted_atomic(self.regions.of(at)?.fetch_add(at, add))?)
            }
        })
    }

    fn execute_all(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        chain.verbs().iter().try_for_each(|verb| self.check(verb))?;
        let mut results = Vec::with_capacity(chain.verbs().len());
        let mut changed = false;
        for verb in chain.into_verbs() {
            // The fences of READ and WRITE do not order a READ after an earlier change, so this needs a full
            // fence.
            if matches!(verb, ChainVerb::Read { .. }) {
                if changed {
                    fence(SeqCst);
                }
            } else {
                changed = true;
            }
            results.push(self.execute(verb)?);
        }
        Ok(results)
    }
}

impl Endpoint for LocalEndpoint {
    #[inline]
    fn state(&self) -> &EndpointState {
        &self.state
    }

    #[inline]
    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.do_read(at, &into).map(|()| into)
    }

    #[inline]
    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.do_write(at, &from).map(|()| from)
    }

    #[inline]
    fn write_now(&self, at: GlobalAddr, bytes: &[u8]) -> bool {
        let written = self.regions.of(at).and_then(|region| region.write_bytes(at, bytes));
        if written.is_ok() {
            self.state.counters.count_write(bytes.len());
        }
        written.is_ok()
    }

    fn set_in_use(&self, server: MemoryServerId, is_in_use: bool) {
        if !is_in_use && self.regions.server(server).is_err() {
            self.regions.leave_out(usize::from(server.0));
        }
    }

    fn expect_appends(&self, at: GlobalAddr, len: u64) {
        if let Ok(region) = self.regions.of(at) {
            region.expect_appends(at, len);
        }
    }

    #[inline]
    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        let word = self.regions.of(at)?.read_word(at)?;
        self.state.counters.count_read(WORD);
        Ok(word)
    }

    #[inline]
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.do_write_word(at, value)
    }

    #[inline]
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.counted_atomic(self.regions.of(at)?.compare_swap(at, expected, new))
    }

    #[inline]
    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        let region = self.regions.of(at)?;
        self.counted_atomic(region.masked_compare_swap(at, expected, compare_mask, new, swap_mask))
    }

    #[inline]
    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.counted_atomic(self.regions.of(at)?.fetch_add(at, add))
    }

    #[inline]
    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        self.execute_all(chain)
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.regions.server(server)?;
        let sent = body.len();
        let answer = match self.regions.cores() {
            Some(cores) => match cores.execute_here(server, op, &body) {
                Some(answer) => answer,
                None => cores.post(server, op, body).await,
            },
            None => {
                let reason = "it has no handler for requests".to_owned();
                Err(FabricError::Refused { server, op, reason })
            }
        };
        self.state.counters.count_two_sided(sent + answer.as_ref().map_or(0, Vec::len));
        answer
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.regions.of(at)?.reserve(at, len)
    }

    /// Waits for the disk on a thread of its own if there are other slots, which go on meanwhile.
    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let region = self.regions.of(at)?;
        if self.slots() == 1 || region.file().is_none() {
            return region.persist(at, len);
        }
        let (regions, promise) = (Arc::clone(&self.regions), Arc::<Promise<_>>::default());
        let kept = Arc::clone(&promise);
        let persist = move || kept.keep(regions.of(at).and_then(|region| region.persist(at, len)));
        let name = "pando-persist".to_owned();
        thread::Builder::new().name(name.clone()).spawn(persist).map_err(|error| FabricError::System {
            path: name,
            reason: format!("cannot be started: {error}"),
        })?;
        poll_fn(|cx| promise.poll(cx)).await
    }

    #[inline]
    fn regions(&self) -> &[RegionInfo] {
        self.regions.infos()
    }

    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        Some(&self.state.time_limit)
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.regions.started().elapsed().as_nanos() as Nanos
    }
}
