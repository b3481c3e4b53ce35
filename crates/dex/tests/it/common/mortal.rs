//! An endpoint whose process dies after some number of verbs, in the middle of the last one, and that knows what
//! is not persisted then. A memory server may be gone.

use std::cell::Cell;
use std::future::pending;
use std::rc::Rc;

use pando_fabric::sectors::Sectors;
use pando_fabric::{
    Chain, ChainVerb, DynEndpoint, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos,
    PageBuf, RegionInfo, Result, VerbResult,
};
use pando_fabric_local::LocalEndpoint;
use pando_rt::block_on;

pub struct Mortal {
    inner: LocalEndpoint,
    sectors: Rc<Sectors>,
    gone: Rc<Gone>,
    /// Verbs until death; `None` lives for ever.
    left: Cell<Option<u32>>,
    is_dead: Cell<bool>,
    /// Memory is mapped: WRITEs may take effect at once.
    is_mapped: bool,
    /// How often a verb goes on waiting, of 8 times: where verbs are slow, more comes between.
    waits: u64,
}

/// The memory server that has ended, if one has.
#[derive(Default)]
pub struct Gone(pub Cell<Option<MemoryServerId>>);

impl Gone {
    fn check(&self, server: MemoryServerId) -> Result<()> {
        match self.0.get() {
            Some(gone) if gone == server => Err(FabricError::ServerUnreachable(server)),
            _ => Ok(()),
        }
    }
}

impl Mortal {
    pub fn new(
        inner: LocalEndpoint,
        sectors: Rc<Sectors>,
        gone: Rc<Gone>,
        left: Option<u32>,
        slots: u32,
    ) -> Self {
        inner.set_slots(slots);
        let random = inner.random();
        let (is_mapped, waits) = (random & 1 == 1, [2, 6][(random >> 1 & 1) as usize]);
        Self { inner, sectors, gone, left: Cell::new(left), is_dead: Cell::new(false), is_mapped, waits }
    }

    pub fn is_dead(&self) -> bool {
        self.is_dead.get()
    }

    /// Waits now and then, and counts a verb; `true` if the process dies in it.
    async fn begins(&self) -> bool {
        if self.is_dead.get() {
            pending::<()>().await;
        }
        while self.slots() > 1 && self.inner.random() % 8 < self.waits {
            self.inner.yield_now().await;
        }
        self.dies()
    }

    /// Counts a verb; `true` if the process dies in it.
    fn dies(&self) -> bool {
        match self.left.get() {
            Some(0) => {
                self.is_dead.set(true);
                true
            }
            left => {
                self.left.set(left.map(|left| left - 1));
                false
            }
        }
    }

    async fn before_write(&self, at: GlobalAddr, len: usize) -> Result<()> {
        self.sectors.before_write(&self.inner, at, len as u64).await
    }

    /// A change of one word.
    async fn change<T>(&self, at: GlobalAddr, verb: impl Future<Output = Result<T>>) -> Result<T> {
        let verb = async {
            self.before_write(at, 8).await?;
            verb.await
        };
        self.word(at.server(), verb).await
    }

    /// A verb on one word.
    async fn word<T>(&self, server: MemoryServerId, verb: impl Future<Output = Result<T>>) -> Result<T> {
        self.gone.check(server)?;
        if self.begins().await && self.inner.random().is_multiple_of(2) {
            pending::<()>().await;
        }
        let done = verb.await;
        if self.is_dead.get() {
            pending::<()>().await;
        }
        done
    }
}

impl Endpoint for Mortal {
    fn state(&self) -> &EndpointState {
        self.inner.state()
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.gone.check(at.server())?;
        if self.begins().await {
            pending::<()>().await;
        }
        self.inner.read(at, into).await
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.gone.check(at.server())?;
        if self.begins().await {
            // Any words of it arrive.
            self.before_write(at, from.window_len()).await?;
            let random = self.inner.random();
            for (i, word) in from.window_words().iter().enumerate() {
                if random.rotate_left(i as u32) & 1 == 1 {
                    let value = word.load(std::sync::atomic::Ordering::Relaxed);
                    self.inner.write_word(at.add(i as u64 * 8), value).await?;
                }
            }
            pending::<()>().await;
        }
        self.before_write(at, from.window_len()).await?;
        self.inner.write(at, from).await
    }

    fn write_now(&self, at: GlobalAddr, bytes: &[u8]) -> bool {
        // Sometimes it is not possible, so that batches of several records are written, too.
        if self.is_dead.get()
            || self.gone.check(at.server()).is_err()
            || !self.is_mapped
            || self.inner.random().is_multiple_of(4)
        {
            return false;
        }
        block_on(&self.inner, self.before_write(at, bytes.len())).expect("memory");
        if self.dies() {
            // Any words of it arrive.
            let random = self.inner.random();
            for (i, word) in bytes.chunks(8).enumerate() {
                let at = at.add(i as u64 * 8);
                let _ = random.rotate_left(i as u32) & 1 == 1 && self.inner.write_now(at, word);
            }
            return false;
        }
        self.inner.write_now(at, bytes)
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.word(at.server(), self.inner.read_word(at)).await
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.change(at, self.inner.write_word(at, value)).await
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.change(at, self.inner.compare_swap(at, expected, new)).await
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        self.change(at, self.inner.masked_compare_swap(at, expected, compare_mask, new, swap_mask)).await
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.change(at, self.inner.fetch_add(at, add)).await
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let server = chain.server().unwrap_or(MemoryServerId(0));
        let verb = async {
            for verb in chain.verbs() {
                match verb {
                    ChainVerb::Read { .. } => {}
                    ChainVerb::Write { at, from } => self.before_write(*at, from.window_len()).await?,
                    verb => self.before_write(verb.at(), 8).await?,
                }
            }
            self.inner.submit(chain).await
        };
        self.word(server, verb).await
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        self.inner.call_bytes(server, op, body).await
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.inner.reserve(at, len).await
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        // Nothing is persisted there.
        if self.gone.check(at.server()).is_err() {
            return Ok(());
        }
        let persisting = self.sectors.persist(at, len);
        if self.begins().await {
            // Some of it arrives.
            self.sectors.persist(at, self.inner.random() % (len + 1)).end();
            pending::<()>().await;
        }
        while self.slots() > 1 && !self.inner.random().is_multiple_of(4) {
            self.inner.yield_now().await;
        }
        if self.is_dead.get() {
            pending::<()>().await;
        }
        persisting.end();
        Ok(())
    }

    fn regions(&self) -> &[RegionInfo] {
        self.inner.regions()
    }

    fn now(&self) -> Nanos {
        self.inner.now()
    }
}

/// Polls futures in random order until all have ended or the process is dead.
pub fn run(ep: &DynEndpoint, mut slots: Vec<std::pin::Pin<Box<dyn Future<Output = ()> + '_>>>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    while !slots.is_empty() && !ep.as_type::<Mortal>().is_dead() {
        let at = ep.random() as usize % slots.len();
        ep.enter_slot(at as u32);
        if slots[at].as_mut().poll(&mut context).is_ready() {
            drop(slots.swap_remove(at));
        }
    }
}

/// Polls one future until it has ended or the process is dead.
pub fn run_one<T>(ep: &DynEndpoint, work: impl Future<Output = T>) -> Option<T> {
    let done = Cell::new(None);
    run(ep, vec![Box::pin(async { done.set(Some(work.await)) })]);
    done.into_inner()
}
