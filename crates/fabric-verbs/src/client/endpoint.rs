//! The endpoint: verbs become work requests, completions wake their slots.
//!
//! One-sided verbs and calls go over queue pairs. Reservations, persistence, and calls that do not fit into
//! one message go over the control connections. Buffers of this endpoint are registered, so a NIC fills them
//! without a copy; other buffers are copied through registered ones.
//!
//! libibverbs has no masked compare-and-swap. It is a loop of compare-and-swaps here, which begins with the
//! expected word. One round trip suffices if the other bits are as expected too.

use std::cell::RefCell;
use std::sync::Arc;

use pando_fabric::{
    Chain, ChainVerb, Endpoint, EndpointState, Fabric, FabricError, GlobalAddr, MemoryServerId, Nanos,
    PageBuf, RegionInfo, Result, TimeLimit, VerbResult, WORD,
};
use pando_fabric_net::{Ending, TcpEndpoint, count_call, random_nonzero};
use zerocopy::{FromBytes, IntoBytes};

use super::Shared;
use super::buffers::{BLOCK_MAX, RegisteredBuffers, copy};
use super::calls::CALLS_MAX;
use super::jobs::{self, Job, Jobs, Step};
use super::link::{DEPTH, Link, Needs, Paired};
use crate::completions::{Completion, CompletionQueue};
use crate::hello::Answer;
use crate::message::BODY_MAX;
use crate::queue::{QueuePair, Receives, Work};

/// One worker thread's queue pairs to the memory servers of a [`crate::VerbsFabric`].
pub struct VerbsEndpoint {
    shared: Arc<Shared>,
    /// This endpoint and `control` share one state.
    control: TcpEndpoint,
    completions: Arc<CompletionQueue>,
    /// Links, by memory server. They are dropped before `jobs`, so queue pairs are destroyed before their
    /// buffers.
    links: RefCell<Vec<Link>>,
    jobs: RefCell<Jobs>,
    buffers: RegisteredBuffers,
    deadline_ns: Nanos,
}

impl VerbsEndpoint {
    pub(super) fn new(shared: Arc<Shared>, seed: u64) -> Result<Self> {
        let control = shared.control.endpoint(seed)?;
        let regions = control.regions();
        let link = |region: &RegionInfo| Link::new(region.server, shared.control.body_max(region.server));
        let links = RefCell::new(regions.iter().map(link).collect());
        // The queue may still hold completions of failed queue pairs, hence the factor 2.
        let entries = (2 * (DEPTH + CALLS_MAX)).saturating_mul(regions.len() as u32);
        let completions = Arc::new(CompletionQueue::new(&shared.device, entries)?);
        let buffers = RegisteredBuffers::new(Arc::clone(&shared.device));
        let deadline_ns = shared.control.deadline().as_nanos() as Nanos;
        Ok(Self { shared, control, completions, links, jobs: RefCell::default(), buffers, deadline_ns })
    }

    /// Checks a verb on `len` bytes at `at`.
    #[inline]
    fn check(&self, at: GlobalAddr, len: usize) -> Result<()> {
        self.control.check_in_use(at.server())?;
        let region = self.regions().get(usize::from(at.server().0));
        region.ok_or(FabricError::UnknownServer(at.server()))?.check(at, len)
    }

    /// Prepares a link for work: it has a queue pair, and the work of failed ones is fenced off.
    ///
    /// # Errors
    /// `NotConnected`, `Lost`, `Refused` if the server does not offer RDMA; nothing was posted.
    #[inline]
    pub(super) async fn connect(&self, server: MemoryServerId) -> Result<()> {
        let needs = self.needs(server, self.shared.control.given_up(server))?;
        if matches!(needs, Needs::Nothing) { Ok(()) } else { Box::pin(self.prepare(server)).await }
    }

    #[inline]
    fn needs(&self, server: MemoryServerId, given_up: usize) -> Result<Needs> {
        let connection = self.control.connection(server);
        self.links.borrow()[usize::from(server.0)].needs(given_up, connection, || self.now())
    }

    #[cold]
    async fn prepare(&self, server: MemoryServerId) -> Result<()> {
        loop {
            let given_up = self.shared.control.given_up(server);
            match self.needs(server, given_up)? {
                Needs::Nothing => return Ok(()),
                Needs::Waiting => self.yield_now().await,
                Needs::Pairing => {
                    let preparing = Preparing::begin(self, server);
                    let paired = self.pair(server, given_up).await;
                    preparing.end(paired)?;
                }
                Needs::Closing => {
                    let _preparing = Preparing::begin(self, server);
                    self.links.borrow_mut()[usize::from(server.0)].close(&self.shared);
                    // The verbs in flight failed; this one waits for a new connection.
                    self.control.rest(server).await;
                }
                Needs::Settling => {
                    let _preparing = Preparing::begin(self, server);
                    self.control.ping(server).await.map_err(|error| not_sent(server, error))?;
                    self.links.borrow_mut()[usize::from(server.0)].settle(given_up);
                }
            }
        }
    }

    /// Asks a server for a queue pair. The request also fences off the `given_up` connections lost before.
    async fn pair(&self, server: MemoryServerId, given_up: usize) -> Result<Paired> {
        let receives = Receives::Own(CALLS_MAX);
        let queue_pair = QueuePair::new(&self.completions, DEPTH, &receives, random_nonzero() as u32)?;
        let ours = queue_pair.peer(self.shared.device.depth_out);
        let paired = self.control.pair(server, ours.as_bytes()).await;
        let (link, answer) = paired.map_err(|error| not_sent(server, error))?;
        if self.control.connection(server) != Some(link) {
            return Err(not_sent(server, FabricError::ServerUnreachable(server)));
        }
        let no_sense = |reason: &str| FabricError::NotConnected { server, reason: reason.to_owned() };
        let answer = Answer::read_from_bytes(&answer).map_err(|_| no_sense("its answer makes no sense"))?;
        answer.peer.check(ours.link_layer).map_err(|reason| no_sense(&reason))?;
        let region_len = self.regions()[usize::from(server.0)].len;
        if answer.place.bytes.get() != region_len
            || answer.place.address.get().checked_add(region_len).is_none()
        {
            return Err(no_sense("it offers other memory than it said"));
        }
        self.links.borrow_mut()[usize::from(server.0)].begin(&queue_pair, &self.shared)?;
        queue_pair.send(&answer.peer)?;
        Ok(Paired { queue_pair, place: answer.place, link, settled: given_up })
    }

    /// Executes a job of at least one step, all on one server.
    async fn run(&self, server: MemoryServerId, job: Job) -> Result<Job> {
        self.connect(server).await?;
        let number = self.enter(server, job);
        Ending::new(&self.jobs, number).await
    }

    /// Adds a job to a connected link.
    fn enter(&self, server: MemoryServerId, job: Job) -> u32 {
        let mut links = self.links.borrow_mut();
        let mut jobs = self.jobs.borrow_mut();
        let deadline = self.wait_until(self.now(), self.deadline_ns);
        let link = &mut links[usize::from(server.0)];
        let is_call = matches!(job, Job::Call { .. });
        // Enter the job first: from then on its buffers stay in place for the device.
        let number = jobs.enter(job, self.state().slot_bit());
        if is_call {
            link.push_call(number, deadline);
        } else {
            link.push(number, jobs::steps(&jobs, number), deadline);
        }
        number
    }

    /// Connects to a server, and says whether it executes calls by messages; otherwise they go over the connection.
    async fn takes_messages(&self, server: MemoryServerId) -> Result<bool> {
        self.connect(server).await?;
        Ok(self.links.borrow()[usize::from(server.0)].calls_max() > 0)
    }

    /// Has a server execute a call by messages; returns its reply.
    async fn call_by_message(&self, server: MemoryServerId, kind: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        let number = self.enter(server, Job::Call { kind, body });
        match Ending::new(&self.jobs, number).await? {
            Job::Call { body, .. } => Ok(body),
            Job::One(_) | Job::Chain(_) => unreachable!("a call is no verb"),
        }
    }

    /// Executes one step; returns its buffer.
    async fn step(&self, at: GlobalAddr, work: Work, buffer: PageBuf, key: u32) -> Result<PageBuf> {
        match self.run(at.server(), Job::One(Step { at, work, buffer, key })).await? {
            Job::One(step) => Ok(step.buffer),
            Job::Chain(_) | Job::Call { .. } => unreachable!("a verb is neither chain nor call"),
        }
    }

    /// Executes a step on one word. Returns the word found, or `word` for a WRITE.
    async fn word(&self, at: GlobalAddr, work: Work, word: u64) -> Result<u64> {
        self.check(at, WORD)?;
        let (buffer, key) = self.bounce(WORD)?;
        buffer.set(0, word);
        let buffer = self.step(at, work, buffer, key).await?;
        let word = buffer.get(0);
        self.buffers.put(buffer);
        Ok(word)
    }

    fn bounce(&self, len: usize) -> Result<(PageBuf, u32)> {
        Ok(self.shared.device.with_key(self.buffers.bounce(len)?))
    }

    /// READs or WRITEs the window of an unregistered buffer.
    #[cold]
    async fn by_copy(&self, at: GlobalAddr, mut user: PageBuf, work: Work) -> Result<PageBuf> {
        let (start, len) = (user.window_start(), user.window_len());
        let mut done = 0;
        while done < len {
            let piece = (len - done).min(BLOCK_MAX);
            user.set_window(start + done..start + done + piece);
            let (buffer, key) = self.bounce(piece)?;
            if work == Work::Write {
                copy(&user, &buffer);
            }
            let buffer = self.step(at.add(done as u64), work, buffer, key).await?;
            if work == Work::Read {
                copy(&buffer, &user);
            }
            self.buffers.put(buffer);
            done += piece;
        }
        user.set_window(start..start + len);
        Ok(user)
    }

    async fn move_window(&self, at: GlobalAddr, buffer: PageBuf, work: Work) -> Result<PageBuf> {
        self.check(at, buffer.window_len())?;
        match self.buffers.key(&buffer) {
            Some(key) => self.step(at, work, buffer, key).await,
            None => Box::pin(self.by_copy(at, buffer, work)).await,
        }
    }

    /// Converts a verb of a chain into a step. Also returns the verb's buffer if it is not registered.
    fn chained(&self, verb: ChainVerb) -> Result<(Step, Option<PageBuf>)> {
        let at = verb.at();
        let (work, user, word) = match verb {
            ChainVerb::Read { into, .. } => (Work::Read, Some(into), 0),
            ChainVerb::Write { from, .. } => (Work::Write, Some(from), 0),
            ChainVerb::WriteWord { value, .. } => (Work::Write, None, value),
            ChainVerb::CompareSwap { expected, new, .. } => (Work::CompareSwap { expected, new }, None, 0),
            ChainVerb::FetchAdd { add, .. } => (Work::FetchAdd { add }, None, 0),
        };
        let Some(user) = user else {
            let (buffer, key) = self.bounce(WORD)?;
            buffer.set(0, word);
            return Ok((Step { at, work, buffer, key }, None));
        };
        if let Some(key) = self.buffers.key(&user) {
            return Ok((Step { at, work, buffer: user, key }, None));
        }
        let (buffer, key) = self.bounce(user.window_len())?;
        if work == Work::Write {
            copy(&user, &buffer);
        }
        Ok((Step { at, work, buffer, key }, Some(user)))
    }

    /// Result of one executed step of a chain. `is_word` marks a WRITE of a word.
    fn result_of(&self, step: Step, user: Option<PageBuf>, is_word: bool) -> VerbResult {
        let Step { work, buffer, .. } = step;
        let is_page = matches!(work, Work::Read | Work::Write) && !is_word;
        if is_page && user.is_none() {
            return VerbResult::Buf(buffer);
        }
        let result = match user {
            // Copy into the caller's unregistered buffer.
            Some(user) => {
                if work == Work::Read {
                    copy(&buffer, &user);
                }
                VerbResult::Buf(user)
            }
            None if is_word => VerbResult::Done,
            None => VerbResult::Word(buffer.get(0)),
        };
        self.buffers.put(buffer);
        result
    }

    /// Posts work and handles completions. Returns the bits of slots whose verbs ended.
    fn turn(&self) -> u64 {
        let (mut links, mut jobs) = (self.links.borrow_mut(), self.jobs.borrow_mut());
        if !links.iter().any(Link::is_busy) {
            return 0;
        }
        let (shared, jobs) = (&*self.shared, &mut *jobs);
        let now = || self.now();
        let mut ready = 0;
        links.iter_mut().for_each(|link| ready |= link.ring(shared, jobs, now));
        let mut came = false;
        let mut take = |completion: Completion| {
            came = true;
            if let Some(link) = links.get_mut(Link::server_of(completion.id)) {
                ready |= link.complete(&completion, shared, jobs, now);
            }
        };
        while self.completions.poll(&mut take) {}
        if came {
            links.iter_mut().for_each(|link| ready |= link.ring(shared, jobs, now));
        }
        // Calls have deadlines of their own: completions of verbs do not show that calls proceed.
        if !came || links.iter().any(Link::is_calling) {
            let now = now();
            links.iter_mut().for_each(|link| ready |= link.look_at_clock(shared, jobs, now));
        }
        // Also close the connection of a failed queue pair: the next queue pair needs a connection that is
        // not fenced off.
        for (place, link) in (0..).zip(links.iter_mut()) {
            if link.take_failed() {
                self.control.hang_up(MemoryServerId(place));
            }
        }
        ready
    }
}

/// Error of a verb whose preparation failed.
fn not_sent(server: MemoryServerId, error: FabricError) -> FabricError {
    match error {
        FabricError::ServerUnreachable(_) => {
            FabricError::NotConnected { server, reason: "the connection to it broke".to_owned() }
        }
        FabricError::TimedOut(_) => {
            FabricError::NotConnected { server, reason: "it did not answer in time".to_owned() }
        }
        other => other,
    }
}

/// Keeps other slots from preparing the same link.
struct Preparing<'e> {
    endpoint: &'e VerbsEndpoint,
    place: usize,
}

impl<'e> Preparing<'e> {
    fn begin(endpoint: &'e VerbsEndpoint, server: MemoryServerId) -> Self {
        let place = usize::from(server.0);
        endpoint.links.borrow_mut()[place].is_preparing = true;
        Self { endpoint, place }
    }

    /// Ends the pairing with its result.
    ///
    /// # Errors
    /// The error of the pairing.
    fn end(self, paired: Result<Paired>) -> Result<()> {
        let now = self.endpoint.now();
        let link = &mut self.endpoint.links.borrow_mut()[self.place];
        match paired {
            Ok(paired) => link.come_up(paired),
            Err(error) => {
                link.stay_down(now, &error);
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Preparing<'_> {
    fn drop(&mut self) {
        self.endpoint.links.borrow_mut()[self.place].is_preparing = false;
    }
}

impl Drop for VerbsEndpoint {
    fn drop(&mut self) {
        for link in self.links.get_mut() {
            link.close(&self.shared);
        }
    }
}

impl Endpoint for VerbsEndpoint {
    #[inline]
    fn state(&self) -> &EndpointState {
        self.control.state()
    }

    #[inline]
    fn buffer(&self, len: usize) -> PageBuf {
        self.buffers.take(len)
    }

    #[inline]
    fn recycle(&self, buf: PageBuf) {
        self.buffers.put(buf);
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        let len = into.window_len();
        let buf = self.move_window(at, into, Work::Read).await?;
        self.counters().count_read(len);
        Ok(buf)
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        let len = from.window_len();
        let buf = self.move_window(at, from, Work::Write).await?;
        self.counters().count_write(len);
        Ok(buf)
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        let word = self.word(at, Work::Read, 0).await?;
        self.counters().count_read(WORD);
        Ok(word)
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.word(at, Work::Write, value).await?;
        self.counters().count_write(WORD);
        Ok(())
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        let before = self.word(at, Work::CompareSwap { expected, new }, 0).await?;
        self.counters().count_atomic();
        Ok(before)
    }

    /// Counts as one atomic, however many attempts it takes.
    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        let mut guess = expected;
        loop {
            let swapped = (guess & !swap_mask) | (new & swap_mask);
            let found = self.word(at, Work::CompareSwap { expected: guess, new: swapped }, 0).await?;
            if found == guess || (found ^ expected) & compare_mask != 0 {
                self.counters().count_atomic();
                return Ok(found);
            }
            guess = found;
        }
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        let before = self.word(at, Work::FetchAdd { add }, 0).await?;
        self.counters().count_atomic();
        Ok(before)
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let Some(server) = chain.server() else { return Ok(Vec::new()) };
        for verb in chain.verbs() {
            let len = verb.len();
            self.check(verb.at(), len)?;
            if len as u64 > u64::from(self.shared.device.port.message_max) {
                let reason = format!("a chain cannot move {len} bytes by one verb over this device");
                return Err(FabricError::Refused { server, op: 0, reason });
            }
        }
        let counts = chain.counts();
        let verbs = chain.into_verbs();
        let words: Vec<bool> = verbs.iter().map(|verb| matches!(verb, ChainVerb::WriteWord { .. })).collect();
        let mut steps = Vec::with_capacity(verbs.len());
        let mut users = Vec::with_capacity(verbs.len());
        for verb in verbs {
            let (step, user) = self.chained(verb)?;
            steps.push(step);
            users.push(user);
        }
        let Job::Chain(steps) = self.run(server, Job::Chain(steps)).await? else {
            unreachable!("a chain is no verb")
        };
        self.counters().count_chain(&counts);
        let ended = steps.into_iter().zip(users).zip(words);
        Ok(ended.map(|((step, user), is_word)| self.result_of(step, user, is_word)).collect())
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        if usize::from(server.0) >= self.regions().len() {
            return Err(FabricError::UnknownServer(server));
        }
        let sent = body.len();
        let fits = sent <= BODY_MAX.min(self.shared.control.body_max(server) as usize);
        if !fits || !self.takes_messages(server).await? {
            return self.control.call_bytes(server, op, body).await;
        }
        let answer = self.call_by_message(server, op, body).await;
        count_call(self.counters(), sent, &answer);
        answer
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.control.reserve(at, len).await
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.control.persist(at, len).await
    }

    fn set_in_use(&self, server: MemoryServerId, is_in_use: bool) {
        self.control.set_in_use(server, is_in_use);
    }

    #[inline]
    fn regions(&self) -> &[RegionInfo] {
        self.control.regions()
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.control.now()
    }

    fn time_limit(&self) -> Option<&TimeLimit> {
        self.control.time_limit()
    }

    fn poll_ready(&self) -> u64 {
        self.turn() | self.control.poll_ready()
    }

    /// Sleeps only if no verb or call is in flight, since completions of a device are polled.
    fn idle(&self) -> bool {
        !self.links.borrow().iter().any(Link::is_busy) && self.control.idle()
    }
}
