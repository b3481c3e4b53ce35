//! One thread's access to an index of compute servers elsewhere.
//!
//! A session has a connection of its own to each compute server, made when it is first needed. An operation
//! goes to the server that claims its key. After the answer "not owned", the session asks all servers what
//! they own and tries again, until the deadline. A request that cannot be sent because its server is gone
//! goes to another server once that has taken over the keys. If the index has no log, so that nobody will, it fails. A
//! request that was sent is never sent again.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Bound, Range as Span, RangeBounds};
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use pando_dex::{DexError, ScanRange, Swapped};

use pando_fabric_net::LinkId;

use super::batch::Batch;
use super::find::Finder;
use super::link::{Answer, Dial, Link, exchange};
use super::routes::Claims;
use super::wire::{Entries, KEY_MAX, Op, Opened, Reply, Request, put_keys};
use super::{RemoteError, RemoteIndex};
use crate::error::{Error, Result};
use crate::session::{Answers, Range, Scan, range};

/// Pauses while no server owns a key.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(50);
/// Limits of one request for many keys: keys, and bytes after which it takes no further key.
const KEYS_MAX: usize = 1024;
const KEYS_BYTES: usize = 256 << 10;

/// A thread's access to a [`RemoteIndex`]. It belongs to the thread that opened it; each thread opens its
/// own.
///
/// It has the operations of [`crate::Session`] by the same names. They block until they are answered, or fail
/// at the deadline of [`super::ClientConfig`]. Single-key operations are linearizable. A scan visits in
/// order, and once, every key that is present throughout the scan, and no key that is absent throughout. An
/// error says whether the operation may have taken effect ([`Error::may_have_taken_effect`]); if so, it does
/// so before the session's next operation on that key, or never.
pub struct RemoteSession {
    index: RemoteIndex,
    inner: RefCell<Inner>,
    _of_one_thread: PhantomData<Rc<()>>,
}

pub(super) struct Inner {
    index: RemoteIndex,
    /// By the number of the server; servers found later are appended.
    links: Vec<Link>,
    id: LinkId,
    claims: Arc<Claims>,
    version: u64,
}

/// A request: positions of its key and of its bytes, both in one buffer.
pub(super) struct Asked {
    pub op: Op,
    pub key: Span<usize>,
    pub frame: Span<usize>,
}

/// Entries of a scan, and the bound from which it continues.
type Found = (Vec<u8>, Option<Bound<Vec<u8>>>);

/// Selects the server of a request.
type Route<'r> = dyn Fn(&Claims, usize) -> Option<usize> + 'r;

/// Time limit of an operation, and its waits for an owner of a key.
struct Detour {
    until: Instant,
    /// Time granted in any case to a step once it has begun.
    least: Duration,
    pause: Duration,
}

/// Requests that were not queued.
#[derive(Default)]
struct Queued {
    /// Nobody owns their keys.
    again: Vec<usize>,
    /// Their server is down: its number, and the error.
    unreached: Vec<(usize, usize, RemoteError)>,
}

impl Detour {
    fn new(deadline: Duration) -> Self {
        Self { until: Instant::now() + deadline, least: deadline / 8, pause: PAUSE_MIN }
    }

    /// Time for a step that begins now, if `kept` of the operation's time is reserved for later steps.
    fn left(&self, kept: Duration) -> Duration {
        self.until.saturating_duration_since(Instant::now() + kept).max(self.least)
    }

    /// Called after each refusal: waits briefly, and asks the servers what they own.
    fn next(&mut self, inner: &mut Inner) -> Result<(), RemoteError> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let servers: Vec<&str> = inner.links.iter().map(|link| &**link.address()).collect();
            let finder = inner.index.shared.client.finder.as_ref();
            let reason = finder.and_then(Finder::missing).map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            return Err(RemoteError::NoOwner { servers: servers.join(", "), reason });
        }
        thread::sleep(self.pause.min(left));
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        inner.refresh(left);
        Ok(())
    }
}

impl Inner {
    /// Longest time that an operation may take.
    fn deadline(&self) -> Duration {
        self.index.shared.client.access.deadline
    }

    /// Adopts what other sessions learned.
    fn catch_up(&mut self) {
        let version = self.index.shared.version();
        if version != self.version {
            (self.claims, self.version) = (self.index.shared.claims(), version);
            self.add_links();
        }
    }

    /// Adds links to servers that were found meanwhile. A claim always refers to a server with a link.
    fn add_links(&mut self) {
        let servers = self.index.shared.client.servers();
        let new = servers.into_iter().skip(self.links.len());
        self.links.extend(new.map(|server| Link::new(server, self.id)));
    }

    fn learn(&mut self, number: usize, opened: &Opened) -> Result<(), RemoteError> {
        let learnt = self.index.shared.learn(number, self.links[number].address(), opened);
        self.catch_up();
        learnt
    }

    /// Prepares the link to a server.
    fn prepare(&mut self, number: usize, patience: Duration) -> Result<(), RemoteError> {
        let client = &self.index.shared.client;
        let dial = Dial { secret: client.access.of_operations(), index: &self.index.shared.name, patience };
        match self.links[number].prepare(&dial)? {
            Some(opened) => self.learn(number, &opened),
            None => Ok(()),
        }
    }

    /// Asks all servers what they own, including unreachable ones. A server that does not answer within a
    /// quarter of the deadline is not waited for.
    fn refresh(&mut self, left: Duration) {
        if self.index.shared.client.look_again() {
            self.add_links();
        }
        let patience = left.min(self.deadline() / 4).max(Duration::from_millis(1));
        let until = Instant::now() + patience;
        let mut frame = Vec::new();
        Request::Routes.encode(&mut frame);
        for number in 0..self.links.len() {
            let left = until.saturating_duration_since(Instant::now());
            if !left.is_zero() && self.prepare(number, left).is_ok() {
                // A header alone is never too long.
                let _ = self.links[number].push(number, Op::Routes, &frame);
            }
        }
        let mut said = Vec::new();
        exchange(&mut self.links, patience, &mut |number, reply| {
            if let Ok(Reply::Opened(opened)) = reply {
                said.push((number, opened));
            }
        });
        for (number, opened) in said {
            // A server whose layout differs by now is refused when it is asked for a key.
            let _ = self.learn(number, &opened);
        }
    }

    /// Connects to all servers.
    ///
    /// # Errors
    /// The error of the first server, if none knows the index; the error of a server that rejects this
    /// client.
    pub fn open(&mut self) -> Result<(), RemoteError> {
        let (mut failed, mut is_open) = (None, false);
        for number in 0..self.links.len() {
            match self.prepare(number, self.deadline()) {
                Ok(()) => is_open = true,
                Err(error @ RemoteError::Rejected { .. }) => return Err(error),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) if !is_open => Err(error),
            _ => Ok(()),
        }
    }

    /// Sends each request to its server, all at once, and repeats refused ones until each is answered or
    /// failed. Passes answers on as they arrive, including refusals if `tells_refusals`.
    fn run(
        &mut self,
        asked: &[Asked],
        bytes: &[u8],
        route: &Route<'_>,
        tells_refusals: bool,
        detour: &mut Detour,
        answer: &mut Answer<'_>,
    ) {
        let awaits_heirs = self.index.shared.client.finder.as_ref().is_some_and(Finder::awaits_heirs);
        let mut last_error = None;
        let mut left: Vec<usize> = (0..asked.len()).collect();
        loop {
            self.catch_up();
            // 1. Queue each request at the link to its server.
            let Queued { mut again, unreached } = self.queue(left, asked, bytes, route, detour, answer);
            // 2. Send them, and pass on the answers.
            let left_now = detour.left(Duration::ZERO);
            exchange(&mut self.links, left_now, &mut |i, reply| match reply {
                Ok(Reply::NotOwned) if !tells_refusals => again.push(i),
                Err(error @ RemoteError::NotConnected { .. }) if awaits_heirs => {
                    last_error = Some(error);
                    again.push(i);
                }
                reply => answer(i, reply),
            });
            // 3. Repeat requests of an unreachable server at the new owner of their keys, or fail them.
            if !unreached.is_empty() {
                self.refresh(detour.left(Duration::ZERO));
            }
            for (i, number, error) in unreached {
                match error {
                    // Another server has taken over the keys.
                    _ if route(&self.claims, i).is_some_and(|owner| owner != number) => again.push(i),
                    RemoteError::NotConnected { .. } if awaits_heirs => {
                        last_error = Some(error);
                        again.push(i);
                    }
                    error => answer(i, Err(error)),
                }
            }
            // 4. Wait for an owner of the remaining keys.
            if again.is_empty() {
                return;
            }
            if let Err(error) = detour.next(self) {
                let error = last_error.unwrap_or(error);
                again.into_iter().for_each(|i| answer(i, Err(error.clone())));
                return;
            }
            again.sort_unstable();
            left = again;
        }
    }

    /// Queues each request at the link to its server.
    fn queue(
        &mut self,
        requests: Vec<usize>,
        asked: &[Asked],
        bytes: &[u8],
        route: &Route<'_>,
        detour: &Detour,
        answer: &mut Answer<'_>,
    ) -> Queued {
        // Reserved for asking whether another server has taken over the keys of one that is gone.
        let to_ask = self.deadline() / 4;
        let mut queued = Queued::default();
        // Requests for a server that was not reachable a moment ago must not overtake earlier ones to it.
        let mut down: Vec<Option<RemoteError>> = vec![None; self.links.len()];
        for i in requests {
            let Some(number) = route(&self.claims, i) else {
                queued.again.push(i);
                continue;
            };
            // `prepare` may have added servers.
            down.resize(self.links.len().max(down.len()), None);
            if down[number].is_none() {
                down[number] = self.prepare(number, detour.left(to_ask)).err();
            }
            match &down[number] {
                Some(error) => queued.unreached.push((i, number, error.clone())),
                None => {
                    let frame = &bytes[asked[i].frame.clone()];
                    if let Err(error) = self.links[number].push(i, asked[i].op, frame) {
                        answer(i, Err(error));
                    }
                }
            }
        }
        queued
    }

    /// Sends requests to the servers that own their keys.
    pub fn run_keyed(&mut self, asked: &[Asked], bytes: &[u8], answer: &mut Answer<'_>) {
        let route = |claims: &Claims, i: usize| claims.owner_of(&bytes[asked[i].key.clone()]);
        let mut detour = Detour::new(self.deadline());
        self.run(asked, bytes, &route, false, &mut detour, answer);
    }
}

/// Appends a request to `bytes`.
///
/// # Errors
/// Keys and values that no index can hold.
pub(super) fn ask(bytes: &mut Vec<u8>, key: &[u8], request: Request<'_>) -> Result<Asked> {
    check_key(key)?;
    let values = match request {
        Request::Put { value, .. } | Request::Insert { value, .. } | Request::Update { value, .. } => {
            [Some(value), None]
        }
        Request::CompareAndSwap { expected, new, .. } => [expected, new],
        _ => [None, None],
    };
    let max = pando_pool::MAX_VALUE as usize;
    if let Some(value) = values.into_iter().flatten().find(|value| value.len() > max) {
        return Err(DexError::ValueTooLong { len: value.len(), max }.into());
    }
    let start = bytes.len();
    request.encode(bytes);
    let key_start = start + super::wire::REQUEST_HEADER;
    Ok(Asked { op: request.op(), key: key_start..key_start + key.len(), frame: start..bytes.len() })
}

fn check_key(key: &[u8]) -> Result<()> {
    let (len, max) = (key.len(), KEY_MAX);
    if len > max { Err(DexError::KeyTooLong { len, max }.into()) } else { Ok(()) }
}

/// The boolean answer to a change.
fn was(reply: &Reply<'_>) -> bool {
    match reply {
        Reply::Was(was) => *was,
        other => unreachable!("{other:?} was decoded as an answer to a change"),
    }
}

pub(super) fn swapped(reply: &Reply<'_>) -> Swapped {
    match reply {
        Reply::Swapped(Ok(())) => Swapped::Done,
        Reply::Swapped(Err(found)) => Swapped::Found(found.map(<[u8]>::to_vec)),
        other => unreachable!("{other:?} was decoded as an answer to a compare-and-swap"),
    }
}

pub(super) fn value<'b>(reply: &Reply<'b>) -> Option<&'b [u8]> {
    match reply {
        Reply::Value(value) => *value,
        other => unreachable!("{other:?} was decoded as an answer to a lookup"),
    }
}

impl RemoteSession {
    pub(super) fn new(index: &RemoteIndex) -> Self {
        let client = &index.shared.client;
        let id = client.new_link();
        let links = client.servers().into_iter().map(|server| Link::new(server, id)).collect();
        let (claims, version) = (index.shared.claims(), index.shared.version());
        let inner = RefCell::new(Inner { index: index.clone(), links, id, claims, version });
        Self { index: index.clone(), inner, _of_one_thread: PhantomData }
    }

    /// The index of this session.
    pub fn index(&self) -> &RemoteIndex {
        &self.index
    }

    pub(super) fn inner(&self) -> std::cell::RefMut<'_, Inner> {
        self.inner.borrow_mut()
    }

    /// Executes one operation and passes its answer to `take`.
    fn perform<T>(
        &self,
        key: &[u8],
        request: Request<'_>,
        mut take: impl FnMut(&Reply<'_>) -> T,
    ) -> Result<T> {
        let mut bytes = Vec::new();
        let asked = [ask(&mut bytes, key, request)?];
        let mut done = None;
        self.inner().run_keyed(&asked, &bytes, &mut |_, reply| done = Some(reply.map(|reply| take(&reply))));
        Ok(done.expect("what is asked is answered or fails")?)
    }

    /// Value of `key`; `None` if it is absent.
    ///
    /// # Errors
    /// A key that the layout cannot hold, and [`Error::Remote`]. All operations have these errors.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.perform(key, Request::Get { key }, |reply| value(reply).map(<[u8]>::to_vec))
    }

    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`].
    pub fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.perform(key, Request::Get { key }, |reply| {
            let found = value(reply);
            out.extend_from_slice(found.unwrap_or_default());
            found.is_some()
        })
    }

    /// Whether `key` is present.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`].
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        self.perform(key, Request::Get { key }, |reply| value(reply).is_some())
    }

    /// Stores `value` under `key`; returns whether the key was present before.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`]; a value that the layout cannot hold; a full pool ([`Error::is_full`]).
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.perform(key, Request::Put { key, value }, was)
    }

    /// Stores `value` under `key` if the key is absent; otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    /// As for [`RemoteSession::put`].
    pub fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.perform(key, Request::Insert { key, value }, was)
    }

    /// Stores `value` under `key` if the key is present; otherwise changes nothing and returns `false`.
    ///
    /// # Errors
    /// As for [`RemoteSession::put`].
    pub fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.perform(key, Request::Update { key, value }, was)
    }

    /// Removes `key`; returns whether it was present.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`].
    pub fn remove(&self, key: &[u8]) -> Result<bool> {
        self.perform(key, Request::Remove { key }, was)
    }

    /// Replaces the value of `key` by `new` if it is `expected`. `None` stands for an absent key: as
    /// `expected` it requires that the key is absent, as `new` it removes the key.
    ///
    /// # Errors
    /// As for [`RemoteSession::put`].
    pub fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        self.perform(key, Request::CompareAndSwap { key, expected, new }, swapped)
    }

    /// A batch of operations, which are sent at once to all of their compute servers.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }

    /// Looks up all of `keys`, at all of their compute servers concurrently. The answers are in the order of
    /// the keys.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], answers: &mut Answers) -> Result<()> {
        keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
        let answers = answers.of_one();
        answers.reset(keys.len());
        let mut inner = self.inner();
        let deadline = inner.deadline();
        let mut detour = Detour::new(deadline);
        let mut left: Vec<usize> = (0..keys.len()).collect();
        while !left.is_empty() {
            inner.catch_up();
            let groups = grouped(&inner.claims, keys, &left);
            let mut bytes = Vec::new();
            let asked: Vec<Asked> = groups.iter().map(|group| ask_keys(&mut bytes, keys, group)).collect();
            let (mut again, mut is_refused, mut failed) = (Vec::new(), false, None);
            let route = |claims: &Claims, i: usize| claims.owner_of(keys[groups[i][0]].as_ref());
            inner.run(&asked, &bytes, &route, true, &mut detour, &mut |i, reply| match reply {
                Ok(Reply::Values(values)) => {
                    let mut places = groups[i].iter();
                    for (value, &place) in values.zip(&mut places) {
                        answers.set(place, value);
                    }
                    // The server answers only the first keys of a request that is too long for one reply.
                    again.extend(places);
                }
                Ok(_) => {
                    is_refused = true;
                    again.extend(&groups[i]);
                }
                Err(error) => failed = Some(error),
            });
            if let Some(error) = failed {
                return Err(error.into());
            }
            match is_refused {
                true => detour.next(&mut inner)?,
                // Some keys were answered, so the deadline starts anew.
                false => detour = Detour::new(deadline),
            }
            again.sort_unstable();
            left = again;
        }
        Ok(())
    }

    /// Passes the entries of `range` to `visit`, in order, until it returns `false`. Returns the number of
    /// entries visited. Entries are fetched about 1 MiB at a time.
    ///
    /// # Errors
    /// As for [`RemoteSession::get`]. Entries visited before the error are valid.
    pub fn scan(&self, range: &ScanRange<'_>, mut visit: impl FnMut(&[u8], &[u8]) -> bool) -> Result<usize> {
        let mut handed_out = 0;
        let mut from: Option<Bound<Vec<u8>>> = None;
        loop {
            let mut part = ScanRange { limit: range.limit - handed_out, ..*range };
            if let Some(from) = &from {
                let from = from.as_ref().map(Vec::as_slice);
                *(if range.reverse { &mut part.high } else { &mut part.low }) = from;
            }
            if part.limit == 0 {
                return Ok(handed_out);
            }
            // No borrow of `inner` is held here, because `visit` may use the session.
            let (entries, next) = self.scan_part(&part)?;
            for (key, value) in Entries::of(&entries).take(part.limit) {
                handed_out += 1;
                if !visit(key, value) {
                    return Ok(handed_out);
                }
            }
            match next {
                Some(next) => from = Some(next),
                None => return Ok(handed_out),
            }
        }
    }

    /// The part of a scan that one compute server answers, and the bound from which the scan continues.
    fn scan_part(&self, part: &ScanRange<'_>) -> Result<Found> {
        for bound in [part.low, part.high] {
            if let Bound::Included(key) | Bound::Excluded(key) = bound {
                check_key(key)?;
            }
        }
        let mut bytes = Vec::new();
        Request::scan(part).encode(&mut bytes);
        let asked = [Asked { op: Op::Scan, key: 0..0, frame: 0..bytes.len() }];
        let route = |claims: &Claims, _: usize| claims.owner_of_start(part);
        let mut done = None;
        let mut inner = self.inner();
        let mut detour = Detour::new(inner.deadline());
        inner.run(&asked, &bytes, &route, false, &mut detour, &mut |_, reply| {
            done = Some(reply.map(|reply| match reply {
                Reply::Page(page) => {
                    (page.entries.bytes().to_vec(), page.next.map(|next| next.map(<[u8]>::to_vec)))
                }
                other => unreachable!("{other:?} was decoded as an answer to a scan"),
            }));
        });
        Ok(done.expect("what is asked is answered or fails")?)
    }

    /// Iterator over the entries between two bounds; see [`crate::Session::range`].
    pub fn range<K: AsRef<[u8]>>(&self, bounds: impl RangeBounds<K>) -> Range<'_, Self> {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        Range::new(self, own(bounds.start_bound()), own(bounds.end_bound()))
    }

    /// Iterator over all entries; see [`RemoteSession::range`].
    pub fn iter(&self) -> Range<'_, Self> {
        Range::new(self, Bound::Unbounded, Bound::Unbounded)
    }

    /// Iterator over the entries whose keys begin with `prefix`; see [`RemoteSession::range`].
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range<'_, Self> {
        let (low, high) = range::of_prefix(prefix.as_ref());
        Range::new(self, low, high)
    }

    /// Pings each compute server: its address, and the time until it answered.
    pub fn ping(&self) -> Vec<(Arc<str>, Result<Duration>)> {
        let mut inner = self.inner();
        let patience = inner.deadline();
        let mut frame = Vec::new();
        Request::Ping.encode(&mut frame);
        (0..inner.links.len())
            .map(|number| {
                let begun = Instant::now();
                let mut done = inner.prepare(number, patience);
                let link = &mut inner.links[number];
                if done.is_ok() {
                    done = link.push(0, Op::Ping, &frame);
                    exchange(std::slice::from_mut(link), patience, &mut |_, reply| done = reply.map(drop));
                }
                (Arc::clone(link.address()), done.map(|()| begun.elapsed()).map_err(Error::from))
            })
            .collect()
    }
}

impl Scan for RemoteSession {
    fn scan_entries(
        &self,
        range: &ScanRange<'_>,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        self.scan(range, visit)
    }
}

/// Groups keys, given by their positions, into requests: keys of one server, within the limits, in their
/// order.
fn grouped<K: AsRef<[u8]>>(claims: &Claims, keys: &[K], places: &[usize]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    // For each server: its current group, and the bytes of keys in it. Keys without an owner form groups,
    // too.
    let mut open: Vec<(Option<usize>, usize, usize)> = Vec::new();
    for &place in places {
        let key = keys[place].as_ref();
        let owner = claims.owner_of(key);
        let found = open.iter_mut().find(|(of, ..)| *of == owner);
        match found {
            Some((_, group, bytes)) if groups[*group].len() < KEYS_MAX && *bytes < KEYS_BYTES => {
                groups[*group].push(place);
                *bytes += key.len();
            }
            Some((_, group, bytes)) => {
                (*group, *bytes) = (groups.len(), key.len());
                groups.push(vec![place]);
            }
            None => {
                open.push((owner, groups.len(), key.len()));
                groups.push(vec![place]);
            }
        }
    }
    groups
}

fn ask_keys<K: AsRef<[u8]>>(bytes: &mut Vec<u8>, keys: &[K], group: &[usize]) -> Asked {
    let start = bytes.len();
    put_keys(bytes, group.iter().map(|&place| keys[place].as_ref()));
    Asked { op: Op::MultiGet, key: 0..0, frame: start..bytes.len() }
}

impl std::fmt::Debug for RemoteSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteSession").field("index", &self.index.name()).finish_non_exhaustive()
    }
}
