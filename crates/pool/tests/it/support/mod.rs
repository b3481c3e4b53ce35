//! A fabric for tests: regions as vectors of atomic words, verbs that complete at once or after a yield, and
//! injected faults. Two fabrics over the same regions act as two processes.
pub mod lost;

use std::cell::Cell;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use pando_fabric::{
    Chain, ChainVerb, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf,
    RegionInfo, Result, VerbResult, yield_once,
};
use pando_pool::{AttachOptions, IsAlive, ProcessIdentity};

/// Bytes that reach the disk together.
const PAGE: u64 = 4096;

pub struct Memory {
    words: Vec<Vec<AtomicU64>>,
    regions: Vec<RegionInfo>,
    /// Contents after a crash, by pages: the persisted ones, and others at random.
    durable: Mutex<Vec<Vec<u64>>>,
    /// Verbs until the machine crashes.
    pub crash_after: AtomicU64,
    /// Number by which a test marks its current step.
    pub phase: AtomicU64,
    /// Contents after the crash, and the phase in which it happened.
    pub crashed: Mutex<Option<(Arc<Memory>, u64)>>,
    /// Bytes that `reserve` still grants.
    pub reservable: AtomicU64,
    start: Instant,
}

impl Memory {
    pub fn new(sizes: &[u64]) -> Arc<Self> {
        let words = sizes.iter().map(|&len| (0..len / 8).map(|_| AtomicU64::new(0)).collect()).collect();
        Self::of(words)
    }

    fn of(words: Vec<Vec<AtomicU64>>) -> Arc<Self> {
        let region = |(at, words): (usize, &Vec<AtomicU64>)| RegionInfo {
            server: MemoryServerId(at as u16),
            len: words.len() as u64 * 8,
        };
        let regions = words.iter().enumerate().map(region).collect();
        Arc::new(Self {
            durable: Mutex::new(words.iter().map(|region| vec![0; region.len()]).collect()),
            words,
            regions,
            crash_after: AtomicU64::new(u64::MAX),
            phase: AtomicU64::new(0),
            crashed: Mutex::new(None),
            reservable: AtomicU64::new(u64::MAX),
            start: Instant::now(),
        })
    }

    fn persist(&self, at: GlobalAddr, len: u64) {
        let server = at.server().0 as usize;
        let pages = at.offset() / PAGE..(at.offset() + len).div_ceil(PAGE);
        let words = (pages.start * PAGE / 8) as usize..(pages.end * PAGE / 8) as usize;
        let words = words.start..words.end.min(self.words[server].len());
        let mut durable = self.durable.lock().expect("no panic");
        for (to, from) in durable[server][words.clone()].iter_mut().zip(&self.words[server][words]) {
            *to = from.load(SeqCst);
        }
    }

    /// Called before each verb: may write a random page, and may crash the machine.
    fn tick(&self, random: u64) {
        if self.crash_after.load(SeqCst) == u64::MAX {
            return;
        }
        let server = random as usize % self.words.len();
        // Mostly one of the first pages, which hold the tables.
        let pages = self.regions[server].len / PAGE;
        let page = if random & 1 << 40 == 0 { (random >> 8) % 4 } else { (random >> 8) % pages };
        if random & 1 << 41 == 0 {
            self.persist(GlobalAddr::new(MemoryServerId(server as u16), page * PAGE), PAGE);
        }
        if self.crash_after.fetch_sub(1, SeqCst) == 0 {
            self.crash_after.store(u64::MAX, SeqCst);
            let left = self.durable.lock().expect("no panic").clone();
            let left = left.into_iter().map(|region| region.into_iter().map(AtomicU64::new).collect());
            let left = (Self::of(left.collect()), self.phase.load(SeqCst));
            *self.crashed.lock().expect("no panic") = Some(left);
        }
    }

    /// A copy in which region `server` is `len` bytes long.
    pub fn cut(&self, server: usize, len: u64) -> Arc<Self> {
        let mut words: Vec<Vec<AtomicU64>> = Vec::new();
        for region in &self.words {
            words.push(region.iter().map(|word| AtomicU64::new(word.load(SeqCst))).collect());
        }
        words[server].truncate(len as usize / 8);
        Self::of(words)
    }

    /// A copy without the last `servers` regions.
    pub fn without_last(&self, servers: usize) -> Arc<Self> {
        let keep = &self.words[..self.words.len() - servers];
        Self::of(
            keep.iter().map(|r| r.iter().map(|word| AtomicU64::new(word.load(SeqCst))).collect()).collect(),
        )
    }

    /// A copy of region `server` alone, reached as number 0.
    pub fn only(&self, server: usize) -> Arc<Self> {
        Self::of(vec![self.words[server].iter().map(|word| AtomicU64::new(word.load(SeqCst))).collect()])
    }

    pub fn endpoint(self: &Arc<Self>, seed: u64) -> Ep {
        Ep {
            memory: self.clone(),
            fail_after: Cell::new(u64::MAX),
            torn: Cell::new(0),
            answers: Cell::new(0),
            lose_answer: Cell::new(u64::MAX),
            without_effect: Cell::new(false),
            is_in_chain: Cell::new(false),
            always_yield: Cell::new(false),
            state: EndpointState::new(seed),
        }
    }

    pub fn word(&self, at: GlobalAddr) -> &AtomicU64 {
        &self.words[at.server().0 as usize][at.offset() as usize / 8]
    }

    /// All words of all regions, as they are now.
    pub fn snapshot(&self) -> Vec<Vec<u64>> {
        self.words.iter().map(|region| region.iter().map(|word| word.load(SeqCst)).collect()).collect()
    }

    pub fn copy_region(&self, from: &Memory, server: usize) {
        for (to, from) in self.words[server].iter().zip(&from.words[server]) {
            to.store(from.load(SeqCst), SeqCst);
        }
    }
}

pub struct Ep {
    pub memory: Arc<Memory>,
    /// Number of verbs that still succeed.
    pub fail_after: Cell<u64>,
    /// Number of words that the first failing verb still stores, if it is a WRITE.
    pub torn: Cell<usize>,
    /// Verbs and chains answered so far.
    pub answers: Cell<u64>,
    /// Number of the verb or chain that takes effect but whose answer is lost.
    pub lose_answer: Cell<u64>,
    /// Whether it takes no effect either; the caller cannot tell.
    pub without_effect: Cell<bool>,
    is_in_chain: Cell<bool>,
    /// Whether each verb is a point where [`interleave`] may switch.
    pub always_yield: Cell<bool>,
    state: EndpointState,
}

impl Ep {
    async fn step(&self, at: GlobalAddr, len: usize) -> Result<()> {
        if self.without_effect.get() && self.answers.get() == self.lose_answer.get() {
            self.answer(at, ())?;
        }
        if self.always_yield.get() || self.random().is_multiple_of(4) {
            yield_once().await;
        }
        let left = self.fail_after.get();
        if left == 0 {
            return Err(FabricError::ServerUnreachable(at.server()));
        }
        self.fail_after.set(left.saturating_sub(u64::from(left != u64::MAX)));
        self.memory.tick(self.random());
        let region = self.memory.regions.get(at.server().0 as usize);
        region.ok_or(FabricError::UnknownServer(at.server()))?.check(at, len)
    }

    /// From now on the answer to verb `n`, counted from 0, is lost.
    pub fn lose(&self, n: u64) {
        self.answers.set(0);
        self.lose_answer.set(n);
    }

    /// Stops losing answers; returns whether one was lost.
    pub fn lose_no_more(&self) -> bool {
        self.answers.get() > self.lose_answer.replace(u64::MAX)
    }

    async fn execute(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let mut results = Vec::new();
        for verb in chain.into_verbs() {
            results.push(match verb {
                ChainVerb::Read { at, into } => VerbResult::Buf(self.read(at, into).await?),
                ChainVerb::Write { at, from } => VerbResult::Buf(self.write(at, from).await?),
                ChainVerb::WriteWord { at, value } => {
                    self.write_word(at, value).await?;
                    VerbResult::Done
                }
                ChainVerb::CompareSwap { at, expected, new } => {
                    VerbResult::Word(self.compare_swap(at, expected, new).await?)
                }
                ChainVerb::FetchAdd { at, add } => VerbResult::Word(self.fetch_add(at, add).await?),
            });
        }
        Ok(results)
    }

    /// Answers a verb that took effect, or loses its answer.
    fn answer<T>(&self, at: GlobalAddr, answer: T) -> Result<T> {
        if self.is_in_chain.get() {
            return Ok(answer);
        }
        let number = self.answers.replace(self.answers.get() + 1);
        if number == self.lose_answer.get() { Err(FabricError::TimedOut(at.server())) } else { Ok(answer) }
    }

    fn words(&self, at: GlobalAddr, len: usize) -> &[AtomicU64] {
        let first = at.offset() as usize / 8;
        &self.memory.words[at.server().0 as usize][first..first + len / 8]
    }
}

impl Endpoint for Ep {
    fn state(&self) -> &EndpointState {
        &self.state
    }

    fn buffer(&self, len: usize) -> PageBuf {
        let mut buf = PageBuf::zeroed(len);
        buf.copy_from_bytes(&vec![0xa5; len]);
        buf
    }

    fn recycle(&self, _buf: PageBuf) {}

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.step(at, into.window_len()).await?;
        self.state.counters.count_read(into.window_len());
        for (to, from) in into.window_words().iter().zip(self.words(at, into.window_len())) {
            to.store(from.load(SeqCst), SeqCst);
        }
        self.answer(at, into)
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        if let Err(error) = self.step(at, from.window_len()).await {
            let torn = from.window_words().iter().take(self.torn.take());
            for (from, to) in torn.zip(self.words(at, from.window_len())) {
                to.store(from.load(SeqCst), SeqCst);
            }
            return Err(error);
        }
        self.state.counters.count_write(from.window_len());
        for (from, to) in from.window_words().iter().zip(self.words(at, from.window_len())) {
            to.store(from.load(SeqCst), SeqCst);
        }
        self.answer(at, from)
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        self.step(at, 8).await?;
        self.state.counters.count_read(8);
        self.answer(at, self.memory.word(at).load(SeqCst))
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.step(at, 8).await?;
        self.state.counters.count_write(8);
        self.memory.word(at).store(value, SeqCst);
        self.answer(at, ())
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        self.step(at, 8).await?;
        self.state.counters.count_atomic();
        let word = self.memory.word(at).compare_exchange(expected, new, SeqCst, SeqCst);
        self.answer(at, word.unwrap_or_else(|word| word))
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        _expected: u64,
        _compare_mask: u64,
        _new: u64,
        _swap_mask: u64,
    ) -> Result<u64> {
        unimplemented!("the pool does without it: {at}")
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        self.step(at, 8).await?;
        self.state.counters.count_atomic();
        self.answer(at, self.memory.word(at).fetch_add(add, SeqCst))
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let at = chain.verbs()[0].at();
        if self.without_effect.get() && self.answers.get() == self.lose_answer.get() {
            self.answer(at, ())?;
        }
        self.is_in_chain.set(true);
        let executed = self.execute(chain).await;
        self.is_in_chain.set(false);
        self.answer(at, executed?)
    }

    async fn call_bytes(&self, _: MemoryServerId, _: u16, _: Vec<u8>) -> Result<Vec<u8>> {
        unimplemented!("the pool needs no processor of a memory server")
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let granted = self.memory.reservable.fetch_update(SeqCst, SeqCst, |left| {
            if left == u64::MAX { Some(left) } else { left.checked_sub(len) }
        });
        granted.map(drop).map_err(|_| FabricError::NoSpace { at, len, reason: "the disk is full".to_owned() })
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.step(at, 0).await?;
        self.memory.persist(at, len);
        self.answer(at, ())
    }

    async fn yield_now(&self) {
        if !self.always_yield.get() {
            std::thread::yield_now();
        }
        yield_once().await;
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.memory.regions
    }

    fn now(&self) -> Nanos {
        self.memory.start.elapsed().as_nanos() as Nanos
    }
}

pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
}

/// Runs all `tasks` on this thread; switches between them at random where they are pending.
pub fn interleave<'a>(ep: &Ep, mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + 'a>>>) {
    let mut context = Context::from_waker(Waker::noop());
    while !tasks.is_empty() {
        let next = (ep.random() % tasks.len() as u64) as usize;
        // Sometimes one task runs far ahead of the others.
        for _ in 0..=ep.random() % 5 {
            if tasks[next].as_mut().poll(&mut context).is_ready() {
                drop(tasks.swap_remove(next));
                break;
            }
        }
    }
}

/// The host of processes that live until they are killed.
#[derive(Clone)]
pub struct Host {
    dead: Arc<[AtomicBool]>,
}

impl Host {
    pub fn new() -> Self {
        Self { dead: (0..64).map(|_| AtomicBool::new(false)).collect() }
    }

    pub fn kill(&self, pid: u32) {
        self.dead[pid as usize].store(true, SeqCst);
    }

    pub fn options(&self, pid: u32) -> AttachOptions {
        let dead = self.dead.clone();
        let is_alive: IsAlive =
            Arc::new(move |process: &ProcessIdentity| !dead[process.pid as usize].load(SeqCst));
        AttachOptions::new(ProcessIdentity { pid, start_time: 1, host: 2 }, is_alive).wait_ns_max(20_000_000)
    }
}
