//! Finding the memory servers, and whether they are a group; forming one.
//!
//! Of servers that stand alone, each must answer. Of a group, one suffices: it knows the others, and which of them are in
//! use.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use pando_fabric::{FabricError, Growing, LATER_MAX, MAX_SERVERS, MemoryServerId, Nanos, RegionInfo, Result};
use pando_member::{Server as Named, View};

use super::views::{Group, Watcher};
use super::{Keeper, Server, Shared, TcpConfig, TcpFabric};
use crate::connect::Destination;
use crate::group::{Line, LineError, Register, ServerCondition, kind};
use crate::handshake::{Protocol, Welcomed, random_nonzero};
use crate::secret::Secret;
use crate::wire::BODY_MAX;

/// Longest time for the attempt to form a group.
const FORMING: Duration = Duration::from_secs(5);
/// Verbs wait for another view for this many deadlines.
const PATIENCE: u32 = 2;
/// Copies have as many bytes as a multiple of this, so that pages of the system belong to one copy.
const SLOT_UNIT: u64 = 4096;

fn open_error(reason: String) -> FabricError {
    FabricError::Open { path: "tcp".to_owned(), reason }
}

/// The name of a register outside the servers, for messages.
fn or_none(register: &str) -> &str {
    if register.is_empty() { "none" } else { register }
}

fn destination(number: u16, address: &str) -> Destination {
    Destination { address: address.into(), protocol: Protocol::VERBS, number }
}

/// What a server says of itself.
struct Found {
    welcomed: Welcomed,
    /// The newest view that it knows.
    view: Option<View>,
}

/// Connects to a server, and asks one question.
fn ask(line: &mut Line, kind: u16, deadline: Duration) -> Result<Asked> {
    let welcomed = line.welcomed(deadline).map_err(|error| error.when_opening(line.destination()))?;
    let answer = line.ask(kind, &[], deadline).map_err(|error| unanswered(line, error))?;
    Ok(Asked { welcomed, answer })
}

/// The error to report when a server does not answer a question.
fn unanswered(line: &Line, error: LineError) -> FabricError {
    match error {
        LineError::NotConnected(error) => error.when_opening(line.destination()),
        error => {
            let path = format!("tcp://{}", line.destination().address);
            FabricError::System { path, reason: format!("cannot be reached: {error}") }
        }
    }
}

struct Asked {
    welcomed: Welcomed,
    answer: Vec<u8>,
}

/// Looks at a server, and asks for its view.
fn look(config: &TcpConfig, number: u16, address: &str) -> Result<Found> {
    let mut line = Line::new(number, address, &config.secret);
    let Asked { welcomed, answer } = ask(&mut line, kind::VIEW, config.deadline)?;
    let damaged = |error| open_error(format!("the view that {address} knows is damaged: {error}"));
    let view = (!answer.is_empty()).then(|| View::decode(&answer)).transpose().map_err(damaged)?;
    Ok(Found { welcomed, view })
}

/// A memory server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryServerFound {
    /// Bytes of its memory.
    pub bytes: u64,
    pub condition: ServerCondition,
}

impl MemoryServerFound {
    /// Asks the memory server at `address`, `host:port`, how it is.
    ///
    /// # Errors
    /// `System` if it does not answer within `deadline`, `Open` if it rejects this process.
    pub fn at(address: &str, secret: &Secret, deadline: Duration) -> Result<Self> {
        let Asked { welcomed, answer } = ask(&mut Line::new(0, address, secret), kind::CONDITION, deadline)?;
        let bytes = welcomed.region_len;
        let damaged = |error| open_error(format!("what {address} says of itself makes no sense: {error}"));
        Ok(Self { bytes, condition: ServerCondition::decode(&answer).map_err(damaged)? })
    }
}

fn server(number: u16, address: &str, welcomed: Welcomed) -> Server {
    Server {
        number: MemoryServerId(number),
        destination: destination(number, address),
        region_len: welcomed.region_len,
        body_max: welcomed.body_max,
        incarnation: welcomed.incarnation,
        made: AtomicUsize::new(0),
        broken: Mutex::default(),
        broken_count: AtomicUsize::new(0),
        fenced_count: AtomicUsize::new(0),
        is_in_use: AtomicBool::new(true),
    }
}

/// The place of a server that is not there.
fn nowhere(number: u16) -> Server {
    let welcomed = Welcomed { region_len: 0, body_max: BODY_MAX, incarnation: 0 };
    Server { is_in_use: AtomicBool::new(false), ..server(number, "", welcomed) }
}

/// See [`TcpFabric::connect`].
pub(super) fn connect(config: TcpConfig) -> Result<TcpFabric> {
    if !(1..=MAX_SERVERS).contains(&config.addresses.len()) {
        let count = config.addresses.len();
        return Err(open_error(format!("{count} memory servers are not between 1 and {MAX_SERVERS}")));
    }
    let numbered = || (0..).zip(&config.addresses);
    let look_at = |(number, address): (u16, &String)| {
        (number == 0 || !address.is_empty()).then(|| look(&config, number, address)).transpose()
    };
    let found: Vec<Result<Option<Found>>> = numbered().map(look_at).collect();
    let views = found.iter().flatten().flatten().filter_map(|found| found.view.as_ref());
    let (servers, group) = match views.max_by_key(|view| view.epoch()).cloned() {
        Some(view) => of_group(&config, view),
        None => {
            let alone = numbered().zip(found).map(|((number, address), found)| {
                Ok(found?.map_or_else(|| nowhere(number), |found| server(number, address, found.welcomed)))
            });
            (alone.collect::<Result<Vec<_>>>()?, None)
        }
    };
    let infos = servers.iter().map(info).collect();
    let shared = Arc::new(Shared {
        servers: Growing::new(servers),
        infos: Growing::new(vec![infos]),
        finder: OnceLock::new(),
        finding: Mutex::default(),
        secret: config.secret,
        deadline: config.deadline,
        process: random_nonzero(),
        links: AtomicU64::new(0),
        started: Instant::now(),
        leased_until: AtomicU64::new(0),
        is_given_up: AtomicBool::new(false),
        group: group.clone().map_or_else(OnceLock::new, OnceLock::from),
    });
    let watcher = Arc::new(Mutex::new(group.map(Watcher::start).transpose()?));
    let keeper = Keeper::start(Arc::clone(&shared))?;
    Ok(TcpFabric { shared, _keeper: Arc::new(keeper), watcher })
}

fn info(server: &Server) -> RegionInfo {
    RegionInfo { server: server.number, len: server.region_len }
}

/// Connects to memory servers that joined since the pool was opened, up to the one of this number, as far as they are found.
///
/// # Errors
/// If one of them does not answer, or too many joined.
pub(super) fn find_joining(shared: &Shared, number: usize) -> Result<()> {
    let _finding = shared.finding.lock().unwrap_or_else(PoisonError::into_inner);
    while shared.servers.len() <= number {
        let next = shared.servers.len();
        let found = match shared.group.get() {
            Some(group) => of_view(&group.view(), next),
            None => found_by_the_pool(shared, next)?,
        };
        let Some(server) = found else { return Ok(()) };
        add(shared, server)?;
    }
    Ok(())
}

/// Adds the next server. The caller has the right to find servers.
fn add(shared: &Shared, server: Server) -> Result<()> {
    let infos = [shared.regions(), &[info(&server)]].concat();
    if shared.servers.push(server).is_err() || shared.infos.push(infos).is_err() {
        let reason = format!("{LATER_MAX} memory servers joined since it was opened; open it anew for more");
        return Err(open_error(reason));
    }
    Ok(())
}

/// See [`Endpoint::set_in_use`](pando_fabric::Endpoint::set_in_use). The next server, which joined and is not in use any more,
/// gets a place.
pub(super) fn set_in_use(shared: &Shared, server: MemoryServerId, is_in_use: bool) {
    let known = || shared.servers.get(usize::from(server.0));
    if known().is_none() && !is_in_use && shared.group.get().is_none() {
        let _finding = shared.finding.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.servers.len() == usize::from(server.0) {
            // Without room for it, whoever needs a later server is told.
            let _ = add(shared, nowhere(server.0));
        }
    }
    if let Some(known) = known() {
        known.is_in_use.store(is_in_use && known.is_known(), Relaxed);
    }
}

/// See [`TcpFabric::take_back`].
pub(super) fn take_back(shared: &Shared, server: MemoryServerId) -> Result<()> {
    let known = shared.servers.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))?;
    if !known.is_known() {
        return Ok(());
    }
    give_up_there_too(shared, &mut Line::new(server.0, &known.destination.address, &shared.secret))
}

/// The error of a verb to a server that is not in use.
#[cold]
pub(super) fn not_in_use(server: MemoryServerId) -> FabricError {
    FabricError::NotConnected { server, reason: "the pool does not use it any more".to_owned() }
}

/// A memory server that joined the pool, and no group.
fn found_by_the_pool(shared: &Shared, number: usize) -> Result<Option<Server>> {
    // Those that are not in use are left out of the ring.
    let mut before = (0..number).rev().filter_map(|number| shared.servers.get(number));
    let before = &before.find(|server| server.is_in_use()).map_or("", |server| &server.destination.address);
    let Some(address) = shared.finder.get().and_then(|finder| finder(number, before)) else {
        return Ok(None);
    };
    let mut line = Line::new(number as u16, &address, &shared.secret);
    let welcomed = line.welcomed(shared.deadline);
    let welcomed = welcomed.map_err(|error| error.when_opening(line.destination()))?;
    give_up_there_too(shared, &mut line)?;
    Ok(Some(server(number as u16, &address, welcomed)))
}

/// A server of a group, whether or not it answers: what the view says of it.
fn of_view(view: &View, number: usize) -> Option<Server> {
    let named = view.servers().get(number)?;
    let welcomed =
        Welcomed { region_len: view.server_bytes(), body_max: BODY_MAX, incarnation: named.incarnation() };
    Some(server(number as u16, named.address(), welcomed))
}

/// Has a memory server that joined fence off all processes that were given up for dead before it was known here. Those that
/// are given up later are fenced off on all servers that the process knows which does that.
fn give_up_there_too(shared: &Shared, line: &mut Line) -> Result<()> {
    let mut home = Line::new(0, &shared.servers[0].destination.address, &shared.secret);
    let dead = ask(&mut home, kind::FENCES, shared.deadline)?.answer;
    for process in dead.chunks_exact(size_of::<u64>()) {
        let process = u64::from_le_bytes(process.try_into().expect("eight bytes"));
        line.fence(process, shared.deadline).map_err(|error| unanswered(line, error))?;
    }
    Ok(())
}

/// The servers of a group, whether or not they answer.
fn of_group(config: &TcpConfig, mut view: View) -> (Vec<Server>, Option<Arc<Group>>) {
    let mut servers = Vec::new();
    for (number, named) in (0..).zip(view.clone().servers()) {
        let members = view.incarnation(MemoryServerId(number)).is_some();
        let found = members.then(|| look(config, number, named.address()).ok()).flatten();
        let of_view = of_view(&view, usize::from(number)).expect("the view names it");
        let body_max = found.as_ref().map_or(of_view.body_max, |found| found.welcomed.body_max);
        servers.push(Server { body_max, ..of_view });
        if let Some(newer) = found.and_then(|found| found.view).filter(|newer| newer.epoch() > view.epoch()) {
            view = newer;
        }
    }
    (servers, Some(Arc::new(Group::new(view, config.secret.clone(), patience(config.deadline)))))
}

/// Longest time for which a verb waits for another view.
fn patience(deadline: Duration) -> Nanos {
    deadline.as_nanos() as Nanos * Nanos::from(PATIENCE)
}

/// Checks that a first view may replace what the register outside the servers has: the view of these very servers.
/// Another pool's servers would give their memory up.
fn check_replaced(old: &View, view: &View) -> Result<(), String> {
    let is_same = |a: &Named, b: &Named| a.address() == b.address() && a.incarnation() == b.incarnation();
    let shares_one = || view.servers().iter().any(|new| old.servers().iter().any(|old| is_same(old, new)));
    match view.register() {
        Some(register) if !shares_one() => {
            let servers: Vec<_> = old.servers().iter().map(Named::address).collect();
            Err(format!(
                "the register {register} has the view of another pool, with memory servers {}; use another prefix, or \
                 delete that key of etcd if the pool is gone",
                servers.join(", ")
            ))
        }
        _ => Ok(()),
    }
}

impl TcpFabric {
    /// Name of the register outside the servers that all of them were given; empty if none was.
    fn register_of_servers(&self, addresses: &[String]) -> Result<String> {
        let mut first: Option<String> = None;
        for (number, address) in (0..).zip(addresses) {
            let mut line = Line::new(number, address, &self.shared.secret);
            let told = line.ask(kind::WHICH_REGISTER, &[], self.shared.deadline).map_err(|error| {
                let reason = format!("{address} does not say which register it has: {error}");
                FabricError::System { path: "tcp".to_owned(), reason }
            })?;
            let told = String::from_utf8_lossy(&told).into_owned();
            match &first {
                Some(first) if *first != told => {
                    return Err(open_error(format!(
                        "memory servers were started with different registers: {} has {}, and {address} has {}",
                        addresses[0],
                        or_none(first),
                        or_none(&told)
                    )));
                }
                _ => first = Some(told),
            }
        }
        Ok(first.unwrap_or_default())
    }

    /// Has the memory server at `address` join the group. The group moves copies to it then, until there is one more volume
    /// ([`View::volumes_in_use`]). It may be asked for again. What was in its memory is lost.
    ///
    /// # Errors
    /// `Open` if these servers are no group, or that one cannot be in it; `System` if it or the register does not answer.
    pub fn join_group(&self, address: &str) -> Result<()> {
        let shared = &self.shared;
        let Some(group) = shared.group.get() else {
            return Err(open_error("these memory servers have no copies of each other's memory".to_owned()));
        };
        let (view, failed) =
            (group.view(), |reason: String| FabricError::System { path: "tcp".to_owned(), reason });
        let config = TcpConfig {
            secret: shared.secret.clone(),
            deadline: shared.deadline,
            ..TcpConfig::new([address])
        };
        let Found { welcomed, view: of_other } = look(&config, view.servers().len() as u16, address)?;
        let is_named = |view: &View| view.server_at(address).is_some();
        match of_other {
            Some(other) if other.pool() != view.pool() => {
                return Err(open_error(format!("{address} has copies of another pool's memory")));
            }
            Some(same) if !is_named(&same) => {
                return Err(open_error(format!("{address} is in the pool already, under another address")));
            }
            _ => {}
        }
        let (has, needs) = (welcomed.region_len, view.server_bytes());
        if has < needs {
            return Err(open_error(format!(
                "{address} has {has} bytes of memory, and each server needs {needs}"
            )));
        }
        let (given, own) =
            (self.register_of_servers(&[address.to_owned()])?, view.register().unwrap_or_default());
        if given != own {
            let (own, given) = (or_none(own), or_none(&given));
            return Err(open_error(format!(
                "the register of the pool is {own}, and {address} was started with {given}"
            )));
        }
        let joined = Register::of(&view, &shared.secret, random_nonzero()).and_then(|mut register| {
            register.change(Instant::now() + FORMING, |view| match view {
                None => Err("the register has no view".to_owned()),
                Some(view) if is_named(&view) => Ok(None),
                Some(view) => view
                    .with_server(address, welcomed.incarnation)
                    .map(Some)
                    .map_err(|error| error.to_string()),
            })
        });
        let view = joined.map_err(|error| failed(error.to_string()))?;
        group.learn(view.expect("there is one"));
        Ok(())
    }

    /// Makes a group of these memory servers, each of which has parts of its memory copied to `replicas - 1` others from then
    /// on. What was in their memory is lost. Endpoints that were made before must not be used any more.
    ///
    /// # Errors
    /// `Open` if there are fewer servers than copies, or they were given different registers; `System` if most servers do
    /// not answer, or one refuses; if the register outside of them does not answer, or has the view of other servers.
    pub fn form_group(&self, replicas: u16) -> Result<()> {
        let servers = &self.shared.servers;
        let name = |server: &Server| Named::new(&*server.destination.address, server.incarnation);
        let addresses: Vec<String> = self.addresses();
        let smallest = servers.iter().map(|server| server.region_len).min().unwrap_or(0);
        let slot_bytes = smallest / u64::from(replicas.max(1)) / SLOT_UNIT * SLOT_UNIT;
        let view = View::new(random_nonzero(), replicas, servers.iter().map(name).collect());
        let view = view.map_err(|error| open_error(error.to_string()))?.with_slots_of(slot_bytes);
        let view = view.in_register(self.register_of_servers(&addresses)?);
        let failed = |reason: String| FabricError::System { path: "tcp".to_owned(), reason };
        let register = Register::of_new_group(&view, &self.shared.secret, random_nonzero());
        let formed = register.and_then(|mut register| {
            register.change(Instant::now() + FORMING, |old| {
                Ok(Some(match old {
                    // A change that is tried again finds that it was made.
                    Some(old) if old.pool() == view.pool() => return Ok(None),
                    Some(old) => {
                        check_replaced(&old, &view)?;
                        view.clone().in_place_of(&old)
                    }
                    None => view.clone(),
                }))
            })
        });
        let formed = formed.map_err(|error| failed(error.to_string()))?;
        let view = formed.expect("it was just written");
        let bytes = view.encode();
        for (number, address) in (0..).zip(&addresses) {
            let mut line = Line::new(number, address, &self.shared.secret);
            let told = line.ask(kind::ENTER, &bytes, self.shared.deadline);
            told.map_err(|error| failed(format!("{address} does not enter the group: {error}")))?;
        }
        match self.shared.group.get() {
            Some(group) => group.learn(view),
            None => {
                let group =
                    Arc::new(Group::new(view, self.shared.secret.clone(), patience(self.shared.deadline)));
                let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
                *watcher = Some(Watcher::start(Arc::clone(&group))?);
                // Only this process forms it, under the lock of these servers.
                let _ = self.shared.group.set(group);
            }
        }
        Ok(())
    }
}
