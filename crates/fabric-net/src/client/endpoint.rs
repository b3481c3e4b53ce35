//! The endpoint: verbs become requests, replies become completions.
//!
//! A verb is written into the buffer of its connection when its future is first polled. The next
//! [`Endpoint::poll_ready`] sends all buffered verbs. Wrong addresses and lengths are refused here and never
//! sent. A READ or WRITE longer than a server's limit is split into pieces, sent one after the other.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pando_fabric::codec::{Put, Reader};
use pando_fabric::{
    Chain, ChainVerb, Endpoint, EndpointState, FabricError, GlobalAddr, MemoryServerId, Nanos, PageBuf,
    RegionInfo, Result, TimeLimit, VerbCounters, VerbResult, WORD,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::{Link, Whose};
use super::verbs::{Expected, Outcome, Verbs};
use super::views::Group;
use super::{Entered, Server, Shared, open};
use crate::pending::Ending;
use crate::wire::{self, ChainEncoder, Op};

/// Longest sleep of an idle endpoint.
const NAP: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// One worker thread's connections to the memory servers of a [`crate::TcpFabric`].
pub struct TcpEndpoint {
    shared: Arc<Shared>,
    /// Connections, by memory server.
    links: RefCell<Vec<Link>>,
    verbs: RefCell<Verbs>,
    state: EndpointState,
    /// The view that its verbs belong to, if the memory has copies.
    view: RefCell<Option<Entered>>,
    /// Epoch of the last view whose lost servers were given up.
    looked_at: Cell<u64>,
}

impl TcpEndpoint {
    pub(super) fn new(shared: Arc<Shared>, seed: u64) -> Self {
        let links = (0..shared.servers.len()).map(|server| Link::new(server, &shared)).collect();
        Self {
            shared,
            links: RefCell::new(links),
            verbs: RefCell::default(),
            state: EndpointState::new(seed),
            view: RefCell::default(),
            looked_at: Cell::new(0),
        }
    }

    /// Gives up connections to servers that are not in the newest view: nothing will come over them.
    fn leave_the_lost(&self, group: &Group) {
        let view = group.view();
        let (mut links, mut verbs) = (self.links.borrow_mut(), self.verbs.borrow_mut());
        for (number, link) in (0..).zip(links.iter_mut()) {
            if view.incarnation(MemoryServerId(number)).is_none() {
                self.state.make_ready(link.hang_up(&self.shared, &mut verbs));
            }
        }
        self.looked_at.set(view.epoch());
    }

    #[inline]
    fn server(&self, server: MemoryServerId) -> Result<&Server> {
        match self.shared.servers.get(usize::from(server.0)) {
            Some(known) if known.is_in_use() => Ok(known),
            Some(_) => Err(open::not_in_use(server)),
            None => self.find(server),
        }
    }

    /// Checks that the pool uses a memory server, if it is known.
    ///
    /// # Errors
    /// `NotConnected`.
    #[inline]
    pub fn check_in_use(&self, server: MemoryServerId) -> Result<()> {
        match self.shared.servers.get(usize::from(server.0)) {
            Some(known) if !known.is_in_use() => Err(open::not_in_use(server)),
            _ => Ok(()),
        }
    }

    /// Finds a server that joined since the pool was opened. The thread waits for that.
    #[cold]
    fn find(&self, server: MemoryServerId) -> Result<&Server> {
        open::find_joining(&self.shared, usize::from(server.0))?;
        self.shared.servers.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))
    }

    /// Sends a request that does not access memory. Returns the number in the answer, or 1 if there is none.
    pub(super) async fn ask_server(&self, server: MemoryServerId, request: wire::Request<'_>) -> Result<u64> {
        self.server(server)?;
        let expected = if request.op() == Op::Fence { Expected::Nothing } else { Expected::Word };
        match self.ask(server, request.op(), expected, |out| request.encode(out)).await? {
            Outcome::Word(word) => Ok(word),
            _ => Ok(1),
        }
    }

    /// Makes a round trip to a server. When it ends, the server has fenced off all connections that were
    /// given up before it began.
    ///
    /// # Errors
    /// As verbs to a server that does not answer.
    pub async fn ping(&self, server: MemoryServerId) -> Result<()> {
        self.ask(server, Op::Ping, Expected::Nothing, |out| wire::Request::Ping.encode(out)).await?;
        Ok(())
    }

    /// Asks a server for another way to its memory ([`crate::OtherWay`]). Returns the number of the
    /// connection with which that way ends, and the server's answer.
    ///
    /// # Errors
    /// `Refused` if the server offers none; otherwise as verbs to a server that does not answer.
    pub async fn pair(&self, server: MemoryServerId, body: &[u8]) -> Result<(u64, Vec<u8>)> {
        self.server(server)?;
        let request = wire::Request::Pair { body };
        match self.ask(server, Op::Pair, Expected::Body, |out| request.encode(out)).await? {
            Outcome::Body(answer) => {
                let mut left = Reader::new(&answer);
                let link = left.u64().map_err(|_| FabricError::ServerUnreachable(server))?;
                Ok((link, left.rest().to_vec()))
            }
            other => unreachable!("an answer was expected, not {other:?}"),
        }
    }

    /// Number of the connection to a server, if it is up and not known to be broken.
    #[inline]
    pub fn connection(&self, server: MemoryServerId) -> Option<u64> {
        self.links.borrow().get(usize::from(server.0)).and_then(Link::number)
    }

    /// Waits until a broken connection to a server may be made again. Verbs fail until then.
    pub async fn rest(&self, server: MemoryServerId) {
        let is_resting = || {
            let links = self.links.borrow();
            links
                .get(usize::from(server.0))
                .is_some_and(|link| link.is_resting(&self.shared, self.shared.now()))
        };
        while is_resting() {
            self.yield_now().await;
        }
    }

    /// Closes the connection to a server, if there is one, as if it had broken. The next connection has
    /// another number.
    pub fn hang_up(&self, server: MemoryServerId) {
        if let Some(link) = self.links.borrow_mut().get_mut(usize::from(server.0)) {
            let ended = link.hang_up(&self.shared, &mut self.verbs.borrow_mut());
            self.state.make_ready(ended);
        }
    }

    /// Checks a verb on `len` bytes at `at`; returns its server.
    #[inline]
    fn check(&self, at: GlobalAddr, len: usize) -> Result<&Server> {
        let server = self.server(at.server())?;
        RegionInfo { server: at.server(), len: server.region_len }.check(at, len)?;
        Ok(server)
    }

    /// Sends a request and waits for its answer.
    async fn ask(
        &self,
        server: MemoryServerId,
        op: Op,
        expected: Expected,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Outcome> {
        let number = {
            let mut links = self.links.borrow_mut();
            for joined in links.len()..=usize::from(server.0) {
                links.push(Link::new(joined, &self.shared));
            }
            let link = &mut links[usize::from(server.0)];
            let now = self.shared.now();
            link.prepare(&self.shared, now, self.view.borrow().as_ref())?;
            let number = self.verbs.borrow_mut().enter(expected, self.state.slot_bit());
            link.push(Whose::Verb(number), op, self.wait_until(now, self.shared.deadline_ns()), encode);
            number
        };
        Ending::new(&self.verbs, number).await
    }

    async fn ask_word(&self, at: GlobalAddr, op: Op, request: wire::Request<'_>) -> Result<u64> {
        self.check(at, WORD)?;
        match self.ask(at.server(), op, Expected::Word, |out| request.encode(out)).await? {
            Outcome::Word(word) => Ok(word),
            other => unreachable!("a word was expected, not {other:?}"),
        }
    }

    async fn atomic(&self, at: GlobalAddr, op: Op, request: wire::Request<'_>) -> Result<u64> {
        let before = self.ask_word(at, op, request).await?;
        self.state.counters.count_atomic();
        Ok(before)
    }

    /// READs the window, which is within the server's limit.
    async fn read_piece(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        let (offset, len) = (at.offset(), into.window_len() as u32);
        let request = wire::Request::Read { offset, len };
        match self.ask(at.server(), Op::Read, Expected::Bytes(into), |out| request.encode(out)).await? {
            Outcome::Buf(buf) => Ok(buf),
            other => unreachable!("a page was expected, not {other:?}"),
        }
    }

    async fn write_piece(&self, at: GlobalAddr, from: &PageBuf) -> Result<()> {
        self.ask(at.server(), Op::Write, Expected::Nothing, |out| encode_write(at, from, out)).await?;
        Ok(())
    }

    /// READs or WRITEs a window that is longer than the server's limit.
    #[cold]
    async fn in_pieces(
        &self,
        at: GlobalAddr,
        mut buf: PageBuf,
        piece: usize,
        is_read: bool,
    ) -> Result<PageBuf> {
        let start = buf.window_start();
        let len = buf.window_len();
        let mut done = 0;
        while done < len {
            let next = (len - done).min(piece);
            buf.set_window(start + done..start + done + next);
            let at = at.add(done as u64);
            if is_read {
                buf = self.read_piece(at, buf).await?;
            } else {
                self.write_piece(at, &buf).await?;
            }
            done += next;
        }
        buf.set_window(start..start + len);
        Ok(buf)
    }
}

/// Counts a call with a body of `sent` bytes, whatever carried it, if the server was reached.
pub fn count_call(counters: &VerbCounters, sent: usize, answer: &Result<Vec<u8>>) {
    if !answer.as_ref().is_err_and(FabricError::is_unreachable) {
        counters.count_two_sided(sent + answer.as_ref().map_or(0, Vec::len));
    }
}

/// Largest multiple of 8 bytes within the server's limit.
fn piece(server: &Server) -> usize {
    (server.body_max as usize / WORD * WORD).max(WORD)
}

fn encode_write(at: GlobalAddr, from: &PageBuf, out: &mut Vec<u8>) {
    wire::put_write_header(out, at.offset(), from.window_len() as u32);
    from.window_words().iter().for_each(|word| out.put_u64(word.load(Relaxed)));
}

fn encode_verb(verb: &ChainVerb, out: &mut Vec<u8>) {
    let offset = verb.at().offset();
    match verb {
        ChainVerb::Read { into, .. } => {
            wire::Request::Read { offset, len: into.window_len() as u32 }.encode(out);
        }
        ChainVerb::Write { at, from } => encode_write(*at, from, out),
        ChainVerb::WriteWord { value, .. } => {
            wire::Request::Write { offset, bytes: &value.to_le_bytes() }.encode(out);
        }
        ChainVerb::CompareSwap { expected, new, .. } => {
            wire::Request::CompareSwap { offset, expected: *expected, new: *new }.encode(out);
        }
        ChainVerb::FetchAdd { add, .. } => wire::Request::FetchAdd { offset, add: *add }.encode(out),
    }
}

/// Number of bytes that a verb of a chain returns.
fn answer_len(verb: &ChainVerb) -> usize {
    match verb {
        ChainVerb::Read { into, .. } => into.window_len(),
        ChainVerb::CompareSwap { .. } | ChainVerb::FetchAdd { .. } => WORD,
        ChainVerb::Write { .. } | ChainVerb::WriteWord { .. } => 0,
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        for link in self.links.get_mut() {
            link.close(&self.shared);
        }
    }
}

impl Endpoint for TcpEndpoint {
    #[inline]
    fn state(&self) -> &EndpointState {
        &self.state
    }

    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        let len = into.window_len();
        let piece = piece(self.check(at, len)?);
        let buf = if len <= piece {
            self.read_piece(at, into).await?
        } else {
            self.in_pieces(at, into, piece, true).await?
        };
        self.state.counters.count_read(len);
        Ok(buf)
    }

    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        let len = from.window_len();
        let piece = piece(self.check(at, len)?);
        let buf = if len <= piece {
            self.write_piece(at, &from).await?;
            from
        } else {
            self.in_pieces(at, from, piece, false).await?
        };
        self.state.counters.count_write(len);
        Ok(buf)
    }

    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        let request = wire::Request::Read { offset: at.offset(), len: WORD as u32 };
        let word = self.ask_word(at, Op::Read, request).await?;
        self.state.counters.count_read(WORD);
        Ok(word)
    }

    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        self.check(at, WORD)?;
        let (offset, bytes) = (at.offset(), &value.to_le_bytes());
        let encode = |out: &mut Vec<u8>| wire::Request::Write { offset, bytes }.encode(out);
        self.ask(at.server(), Op::Write, Expected::Nothing, encode).await?;
        self.state.counters.count_write(WORD);
        Ok(())
    }

    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        let request = wire::Request::CompareSwap { offset: at.offset(), expected, new };
        self.atomic(at, Op::CompareSwap, request).await
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        let offset = at.offset();
        let request = wire::Request::MaskedCompareSwap { offset, expected, compare_mask, new, swap_mask };
        self.atomic(at, Op::MaskedCompareSwap, request).await
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        let request = wire::Request::FetchAdd { offset: at.offset(), add };
        self.atomic(at, Op::FetchAdd, request).await
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let Some(number) = chain.server() else { return Ok(Vec::new()) };
        chain.verbs().iter().try_for_each(|verb| self.check(verb.at(), verb.len()).map(drop))?;
        let mut body = Vec::new();
        let mut encoder = ChainEncoder::new(&mut body);
        chain.verbs().iter().for_each(|verb| encode_verb(verb, encoder.out()));
        encoder.finish();
        let body_max = self.server(number)?.body_max as usize;
        let answer_len: usize = chain.verbs().iter().map(answer_len).sum();
        if body.len().max(answer_len) > body_max {
            let reason = format!("a chain is about more bytes than the {body_max} that it takes at once");
            return Err(FabricError::Refused { server: number, op: 0, reason });
        }
        let counts = chain.counts();
        let expected = Expected::Chain(chain.into_verbs());
        match self.ask(number, Op::Chain, expected, |out| out.extend_from_slice(&body)).await? {
            Outcome::Chain(results) => {
                self.state.counters.count_chain(&counts);
                Ok(results)
            }
            other => unreachable!("results of a chain were expected, not {other:?}"),
        }
    }

    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        if body.len() > self.server(server)?.body_max as usize {
            let reason = format!("a request of {} bytes is longer than it takes at once", body.len());
            return Err(FabricError::Refused { server, op, reason });
        }
        let encode = |out: &mut Vec<u8>| wire::Request::Call { kind: op, body: &body }.encode(out);
        let answer = match self.ask(server, Op::Call, Expected::Body, encode).await {
            Ok(Outcome::Body(reply)) => Ok(reply),
            Ok(other) => unreachable!("the body of a reply was expected, not {other:?}"),
            Err(error) => Err(error),
        };
        count_call(&self.state.counters, body.len(), &answer);
        answer
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        self.server(at.server())?;
        let request = wire::Request::Reserve { offset: at.offset(), len };
        self.ask(at.server(), Op::Reserve, Expected::Nothing, |out| request.encode(out)).await?;
        Ok(())
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        if self.check_in_use(at.server()).is_err() {
            return Ok(());
        }
        self.server(at.server())?;
        let request = wire::Request::Persist { offset: at.offset(), len };
        self.ask(at.server(), Op::Persist, Expected::Nothing, |out| request.encode(out)).await?;
        Ok(())
    }

    fn set_in_use(&self, server: MemoryServerId, is_in_use: bool) {
        open::set_in_use(&self.shared, server, is_in_use);
    }

    fn regions(&self) -> &[RegionInfo] {
        self.shared.regions()
    }

    fn now(&self) -> Nanos {
        self.shared.now()
    }

    fn time_limit(&self) -> Option<&TimeLimit> {
        Some(&self.state.time_limit)
    }

    fn enter_view(&self, epoch: u64) {
        if let Some(group) = self.shared.group.get() {
            *self.view.borrow_mut() = Some(Entered { epoch, bytes: group.bytes(epoch) });
        }
    }

    fn poll_ready(&self) -> u64 {
        if let Some(group) = self.shared.group.get()
            && group.newest_epoch() != self.looked_at.get()
        {
            self.leave_the_lost(group);
        }
        let mut ready = self.state.take_ready();
        let mut verbs = self.verbs.borrow_mut();
        for link in self.links.borrow_mut().iter_mut().filter(|link| link.is_busy()) {
            ready |= link.turn(&self.shared, &mut verbs);
        }
        ready
    }

    /// Sleeps until a server sends data or the output can be written.
    fn idle(&self) -> bool {
        let links = self.links.borrow();
        let mut waits: Vec<PollFd<'_>> = Vec::new();
        for (stream, has_more) in links.iter().filter_map(Link::waits_on) {
            let flags = if has_more { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            waits.push(PollFd::new(stream, flags));
        }
        if waits.is_empty() {
            return false;
        }
        // The next turn finds the ready connections. An interruption only makes it earlier.
        let _ = poll(&mut waits, Some(&NAP));
        true
    }
}
