//! The deaths of compute servers with logs, and their heirs (`docs/durability.md`).
//!
//! Each of these compute servers is a process. At its time, all operations at one of them are cut off where they are:
//! their futures are dropped, and no verb is begun for them. What they had begun may still take effect for a while, as
//! before the process is fenced off; only then it counts as dead. The operations at other compute servers go on, and meet
//! nodes that it had locked. The slot that noticed first is the heir, which may come late: a new process, which redoes
//! the log, with the faults of the seed going on, becomes its writer, reclaims what the dead had leased, and opens the tree with an
//! empty cache. An heir may
//! die as well, and the next one begins anew. Several compute servers may be dead at a time.
//!
//! What a log must repair is there for moments only. So most deaths have a *doom*: they follow an operation that has just
//! made such a state.

use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;

use pando_cache::Cache;
use pando_dex::layout::Layout;
use pando_dex::{Ctx, DexError, LOG_PER_CACHE_BYTE, Tree, TreeConfig, mark_linked, redo};
use pando_fabric::{Endpoint, FabricError, GlobalAddr, Nanos};
use pando_log::{Contents, Log, LogError, Options, Shape, Space};
use pando_pool::lock::lock_owner;
use pando_pool::{LogChange, Pool, PoolError};
use pando_rt::block_on;

use super::case_dex::DexCase;
use super::client::{Client, within};
use super::cluster::INDEX;
use super::dex::{Dex, Life};
use super::processes::Processes;
use super::setup::{PATIENCE_NS, Setup};
use crate::copies::SimEndpoint;

/// Segments of a lane at least; so small a log goes round often.
const SEGMENTS_MIN: u64 = 4;
const SEGMENT_BYTES: u64 = 8 << 10;
const LANES: usize = 2;
/// Longest life of an heir that dies while it recovers, in ns at the usual latency.
const HEIR_NS_MAX: Nanos = 200_000;
/// Longest time from a death that others know until the first heir. They look at the holder of a lock within it.
const LATE_NS_MAX: Nanos = PATIENCE_NS / 2;
/// Heirs of one compute server at most; so many do not die in turn.
const HEIRS_MAX: usize = 40;
/// No compute server dies later than this before the end of faults.
pub const LAST_HEIRS_NS: Nanos = 2 * PATIENCE_NS;
/// Longest times from an operation that is a doom to the death, in ns at the usual latency: that of some verbs of the
/// operation, of one or two, and of less than one.
const SOON_NS_MAX: Nanos = 16_000;
const SOONER_NS_MAX: Nanos = 4_000;
const AT_ONCE_NS_MAX: Nanos = 1_000;
/// Longest time that a doom waits for its operation, in ns at the usual latency.
const DOOM_NS_MAX: Nanos = 400_000;
/// Pause of an operation that waits for an heir.
const PAUSE_NS: Nanos = PATIENCE_NS / 1_000;

/// Shape of a log that is as small as the cache allows.
pub fn shape_of_log(setup: &Setup, case: &DexCase) -> Shape {
    let lanes = LANES.min(setup.threads);
    // The log of a large cache is bounded by the pool.
    let bytes = (case.cache_config().bytes * LOG_PER_CACHE_BYTE).min(1 << 20);
    let segments = (bytes / SEGMENT_BYTES / lanes as u64).max(SEGMENTS_MIN) as usize;
    Shape { lanes, segments, segment_bytes: SEGMENT_BYTES }
}

/// Begins a process for each compute server, if they may die, and attaches it to the pool.
pub fn begin_processes(
    setup: &Setup,
    processes: &Processes,
    ep: &SimEndpoint,
) -> Result<Vec<(u32, Pool)>, PoolError> {
    let begin = |_| {
        let pid = processes.begin();
        Ok((pid, block_on(ep, Pool::attach(ep, processes.attach_options(setup, pid)))?))
    };
    (0..setup.compute_servers).filter(|_| setup.deaths() > 0).map(begin).collect()
}

/// Lists the log of each compute server, to which its process writes.
pub fn register_logs<L: Layout>(
    ep: &SimEndpoint,
    pools: &[Pool],
    trees: &[Tree<L>],
) -> Result<(), PoolError> {
    for (server, (pool, tree)) in pools.iter().zip(trees).enumerate() {
        let log = tree.config().log.as_ref().expect("it has a log");
        let changes =
            [LogChange::Set(log.space().root()), LogChange::Write].map(|change| (server as u16, change));
        block_on(ep, pool.change_logs(ep, INDEX, &changes))?;
    }
    Ok(())
}

/// At rest, no process that lives has locked a node. What the dead had locked and did not change may stay so.
pub fn look_for_locks<L: Layout>(
    ep: &SimEndpoint,
    lives: &[Rc<Life<L>>],
    nodes: impl Iterator<Item = GlobalAddr>,
) -> Result<Vec<String>, FabricError> {
    let mut wrong = Vec::new();
    for node in nodes {
        let holder = lock_owner(block_on(ep, ep.read_word(node))?);
        if holder.is_some() && lives.iter().any(|life| life.pool.slot() == holder) {
            wrong.push(format!("the node at {node} is locked at rest"));
        }
    }
    Ok(wrong)
}

/// Ends a compute server if it is time, and becomes the heir of one that died.
pub async fn live<L: Layout>(client: &Client<Dex<L>>) {
    let (index, book, now) = (&client.index, &client.book, client.ep.now());
    let has_died = |server: &usize| !index.life(*server).is_alive(now) && !index.has_heir(*server);
    if let Some(dead) = (0..index.servers()).find(has_died) {
        return inherit(client, dead).await;
    }
    if !may_die(client) {
        return;
    }
    let is_late = |server: &usize| index.life(*server).doom.get().is_some_and(|(_, latest)| now >= latest);
    if let Some(late) = (0..index.servers()).find(is_late) {
        return die(client, late).await;
    }
    let is_time = |(at, server): &mut (Nanos, usize)| {
        let life = index.life(*server);
        now >= *at && life.is_alive(now) && !life.is_doomed()
    };
    let dies = book.deaths.borrow_mut().pop_if(|death| is_time(death));
    let Some((_, server)) = dies else { return };
    match Doom::draw(client) {
        None => die(client, server).await,
        Some(doom) => {
            let latest = now + draw_time(client, DOOM_NS_MAX);
            index.life(server).doom.set(Some((doom, latest)));
        }
    }
}

async fn die<L: Layout>(client: &Client<Dex<L>>, server: usize) {
    let life = client.index.life(server);
    life.doom.set(None);
    life.ends.set(0);
    inherit(client, server).await;
}

/// A time below `max`, in ns at the usual latency.
fn draw_time<L: Layout>(client: &Client<Dex<L>>, max: Nanos) -> Nanos {
    client.ep.random() % (max as f64 * client.setup.latency_scale) as Nanos
}

/// Whether heirs have enough time until the end of faults.
fn may_die<L: Layout>(client: &Client<Dex<L>>) -> bool {
    let until = client.book.faulty_until.get();
    !client.book.is_over.get() && client.ep.now() + LAST_HEIRS_NS <= until
}

/// What the process of a compute server dies soon after.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Doom {
    /// An operation has begun to lock something.
    Locks,
    /// An operation that locked something has made a record.
    Logs,
    /// The log is about to have a record, but not an earlier one.
    Gap,
    /// The same, and the log lacks the last change of several nodes.
    GapOfChange,
}

impl Doom {
    fn draw<L: Layout>(client: &Client<Dex<L>>) -> Option<Self> {
        use Doom::{Gap, GapOfChange, Locks, Logs};
        // Most deaths come while a node is locked, if any are shared.
        let dooms: &[_] = match client.index.servers() {
            1 => &[None, Some(Gap), Some(GapOfChange), Some(GapOfChange)],
            _ => &[None, Some(Locks), Some(Logs), Some(Logs), Some(Logs), Some(GapOfChange)],
        };
        dooms[client.below(dooms.len())]
    }

    /// Time until the death.
    fn draw_rest<L: Layout>(self, client: &Client<Dex<L>>) -> Nanos {
        let max = match self {
            Self::Gap | Self::GapOfChange => AT_ONCE_NS_MAX,
            Self::Locks | Self::Logs if client.below(4) == 0 => SOON_NS_MAX,
            Self::Locks | Self::Logs => SOONER_NS_MAX,
        };
        draw_time(client, max)
    }
}

/// What a thread and the operations at a compute server have done so far.
struct Done {
    /// Atomics of the thread.
    atomics: u64,
    records: u64,
    /// Changes of several nodes.
    changes: u64,
}

impl Done {
    fn of<L: Layout>(client: &Client<Dex<L>>, life: &Life<L>, log: &Log) -> Self {
        let [splits, merges, root_changes, ..] = life.tree.smo_counts();
        Self {
            atomics: client.ep.counters().snapshot().atomics,
            records: log.clock(),
            changes: splits + merges + root_changes,
        }
    }
}

/// An operation at a compute server, which may be its doom.
pub async fn watched<L: Layout, T>(
    client: &Client<Dex<L>>,
    life: &Life<L>,
    mut op: Pin<&mut impl Future<Output = T>>,
) -> T {
    let Some(log) = life.tree.config().log.as_deref() else { return op.await };
    let lacks = |record| !log.is_settled(record);
    let mut has_locked = false;
    std::future::poll_fn(|cx| {
        let before = Done::of(client, life, log);
        let polled = op.as_mut().poll(cx);
        let now = Done::of(client, life, log);
        let has_logged = now.records > before.records;
        has_locked |= now.atomics > before.atomics;
        let is_it = |doom| match doom {
            Doom::Locks => has_locked,
            Doom::Logs => has_locked && has_logged,
            Doom::Gap => log.has_gap(),
            Doom::GapOfChange => log.has_gap() && lacks(life.changed.get()),
        };
        if let Some((doom, _)) = life.doom.get().filter(|(doom, _)| is_it(*doom) && may_die(client)) {
            life.doom.set(None);
            // By the clock of another thread it may be dead.
            life.ends.set(life.ends.get().min(client.ep.now() + doom.draw_rest(client)));
        }
        if now.changes > before.changes {
            life.changed.set(now.records);
        }
        polled
    })
    .await
}

/// Waits while a compute server is dead. Some operations fail soon, so that others go on elsewhere.
pub async fn wait_for_heir<L: Layout>(client: &Client<Dex<L>>, server: usize) -> Result<(), DexError> {
    let (index, ep) = (&client.index, &client.ep);
    let is_dead = || !index.life(server).is_alive(ep.now());
    if !is_dead() {
        return Ok(());
    }
    let began = ep.now();
    let waits = if client.below(2) == 0 { 2 * PATIENCE_NS } else { 0 };
    loop {
        ep.yield_now().await;
        ep.sleep_until(ep.now() + PAUSE_NS).await;
        if !is_dead() {
            return Ok(());
        }
        if ep.now() > began + waits || client.book.is_over.get() {
            return Err(DexError::TimedOut { what: "a compute server that died" });
        }
    }
}

/// A compute server is dead from now on. Becomes its heir.
async fn inherit<L: Layout>(client: &Client<Dex<L>>, server: usize) {
    let (index, ep) = (&client.index, &client.ep);
    let dead = index.life(server);
    index.set_heir(server, true);
    let mut last = dead.pid;
    // Three of four first heirs come late.
    let mut late = if client.below(4) > 0 { ep.random() % LATE_NS_MAX } else { 0 };
    for attempt in 0..HEIRS_MAX {
        if attempt > 0 {
            give_back_locks(client).await;
        }
        ep.sleep_until(ep.now() + client.setup.verbs_take_ns()).await;
        index.processes.end(last);
        ep.sleep_until(ep.now() + std::mem::take(&mut late)).await;
        last = index.processes.begin();
        // One in three heirs dies in its turn.
        let lives = ep.random() % (HEIR_NS_MAX as f64 * client.setup.latency_scale) as Nanos;
        let until = if client.below(3) == 0 { ep.now() + lives } else { Nanos::MAX };
        match within(ep, until, || false, pin!(heir(client, server, &dead, last))).await {
            Some(Ok(life)) => {
                index.replace(server, life);
                return index.set_heir(server, false);
            }
            // A fault, as in every operation: another heir begins anew.
            None
            | Some(Err(
                DexError::Fabric(_)
                | DexError::Pool(_)
                | DexError::Cache(_)
                | DexError::TimedOut { .. }
                | DexError::Log(LogError::TimedOut),
            )) => {}
            Some(Err(error)) => panic!("the index cannot be inherited: {error}"),
        }
    }
    panic!("{HEIRS_MAX} heirs have failed");
}

/// Living compute servers give back the locks that their operations left. They do so at an operation that waits, and may
/// have none, since this slot has become an heir.
async fn give_back_locks<L: Layout>(client: &Client<Dex<L>>) {
    for server in 0..client.index.servers() {
        let life = client.index.life(server);
        if life.is_alive(client.ep.now()) && life.pool.has_left_locks() {
            // What fails here is tried again before the next heir.
            let _ = client.at(server, async |tree, ctx| tree.flush(ctx).await).await;
        }
    }
}

async fn heir<L: Layout>(
    client: &Client<Dex<L>>,
    server: usize,
    dead: &Life<L>,
    pid: u32,
) -> Result<Life<L>, DexError> {
    let ep = &client.ep;
    let pool = Pool::attach(ep, client.index.processes.attach_options(&client.setup, pid)).await?;
    let config = dead.tree.config();
    let contents = redone(client, config).await?;
    let logs = pool.logs(ep).await?;
    if let Some(writer) = logs.iter().find(|log| log.is_of(INDEX, server as u16)).and_then(|log| log.writer) {
        mark_linked(ep, &pool, client.index.layout, &contents, writer).await?;
    }
    let log = resumed(client, contents).await?;
    pool.change_logs(ep, INDEX, &[(server as u16, LogChange::Write)]).await?;
    for other in pool.processes(ep).await? {
        if !other.is_alive {
            pool.reclaim(ep, other.slot).await?;
        }
    }
    let tree = reopened(client, &pool, TreeConfig { log: Some(log), ..config.clone() }).await?;
    Ok(Life::new(pid, pool, tree))
}

/// Redoes the log of a compute server, and returns what it had.
pub async fn redone<L: Layout>(client: &Client<Dex<L>>, config: &TreeConfig) -> Result<Contents, DexError> {
    let ep = &client.ep;
    let root = config.log.as_ref().expect("it has a log").space().root();
    let contents = Contents::read_to_redo(ep, Space::read(ep, root).await?).await?;
    redo(ep, client.index.layout, &contents, |_| true, |_, _| ()).await?;
    Ok(contents)
}

/// The log, empty, once it is redone.
pub async fn resumed<L: Layout>(client: &Client<Dex<L>>, contents: Contents) -> Result<Arc<Log>, DexError> {
    let verbs_take_ns = client.setup.verbs_take_ns();
    let options = Options { patience_ns: PATIENCE_NS, verbs_take_ns, ..Options::default() };
    Ok(Arc::new(Log::resume(&client.ep, contents, options).await?))
}

/// Opens a tree with an empty cache.
pub async fn reopened<L: Layout>(
    client: &Client<Dex<L>>,
    pool: &Pool,
    config: TreeConfig,
) -> Result<Tree<L>, DexError> {
    let cache = Arc::new(Cache::new(&client.index.case.cache_config())?);
    let worker = cache.worker();
    let ctx = Ctx { ep: &client.ep, worker: &worker };
    let tree = Tree::open(ctx, Arc::clone(&cache), pool.clone(), client.index.layout, config).await;
    cache.retire(&worker);
    tree
}
