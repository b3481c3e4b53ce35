//! Threads of a simulated cluster read and change volumes while a memory server is lost.
//!
//! Each page has one writer, which fills it with ascending numbers. Nobody may read an older number than one that was
//! read or whose WRITE was answered before the READ began. Counters have as much as was added to them. Flags go up and
//! down by swaps of all threads. Other pages are changed under locks, and lose no change. The server may come back without its
//! memory and get copies again; then another one is lost. Or a server joins, to which a copy moves from another one, so that there
//! is one more volume, before a server is lost. In the end all copies are equal.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use pando_fabric::{
    Chain, Endpoint, Fabric, FabricError, GlobalAddr, LINE, MemoryServerId, Nanos, RegionInfo, VerbResult,
    WORD,
};
use pando_replica::{Judged, Placement, Replica, Replicated, Views, Volume};
use pando_rt::block_on;
use pando_sim::{Fault, FaultPlan, Model, SimConfig, SimEndpoint, SimFabric};

const SERVERS: u16 = 3;
const COMPUTE_SERVERS: usize = 2;
const THREADS: usize = 6;
const SLOTS: u32 = 2;
const OPERATIONS: usize = 60;
const PAGE: usize = 256;
const COUNTERS: u64 = 3;
const FLAGS: u64 = 2;
/// Pages that are changed under locks.
const LOCKED: usize = 2;
const PATIENCE_NS: Nanos = 20_000_000;
/// Bytes of each volume that are compared in the end.
const COMPARED: u64 = 8192;

type Ep = Replicated<SimEndpoint>;

fn page(writer: usize) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(writer as u16 % SERVERS), 4096 + (writer * PAGE) as u64)
}

fn counter(number: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(number as u16 % SERVERS), 64 * (1 + number))
}

fn flag(number: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(number as u16 % SERVERS), 1024 + 8 * number)
}

fn locked_page(number: usize) -> GlobalAddr {
    page(2 * THREADS + number)
}

/// Lock of a page, behind it: odd while it is held, and never the same twice.
fn lock(number: usize) -> GlobalAddr {
    locked_page(number).add(PAGE as u64)
}

/// What is known of the state of the volumes.
struct Known {
    /// Least number that a READ of each line of each page must find.
    least: RefCell<Vec<[u64; PAGE / LINE]>>,
    /// Last number that each writer began to write.
    begun: RefCell<Vec<u64>>,
    /// Additions that succeeded, and those of unknown outcome.
    added: RefCell<[(u64, u64); COUNTERS as usize]>,
    unknown_swaps: Cell<u64>,
    /// Changes of each locked page.
    changes: RefCell<[u64; LOCKED]>,
    /// Whether servers that live lose answers. Else every lock is given back, although servers are lost.
    loses_answers: bool,
    wrong: RefCell<Option<String>>,
}

impl Known {
    fn new(loses_answers: bool) -> Self {
        Self {
            least: RefCell::new(vec![[0; PAGE / LINE]; THREADS]),
            begun: RefCell::new(vec![0; THREADS]),
            added: RefCell::default(),
            unknown_swaps: Cell::new(0),
            changes: RefCell::default(),
            loses_answers,
            wrong: RefCell::default(),
        }
    }

    fn blame(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    fn at_least(&self, writer: usize, lines: [u64; PAGE / LINE]) {
        let least = &mut self.least.borrow_mut()[writer];
        least.iter_mut().zip(lines).for_each(|(least, line)| *least = line.max(*least));
    }
}

async fn write(ep: &Ep, known: &Known, writer: usize) {
    let number = known.begun.borrow()[writer] + 1;
    known.begun.borrow_mut()[writer] = number;
    let filled = || {
        let buf = ep.buffer(PAGE);
        (0..PAGE / WORD).for_each(|word| buf.set(word, number));
        buf
    };
    let written = if number.is_multiple_of(2) {
        let (front, back) = (0..PAGE / 2, PAGE / 2..PAGE);
        let middle = page(writer).add(back.start as u64);
        let chain = Chain::new().write(page(writer), filled().with_window(front));
        ep.submit(chain.write(middle, filled().with_window(back))).await.map(drop)
    } else {
        ep.write(page(writer), filled()).await.map(drop)
    };
    match written {
        Ok(()) => known.at_least(writer, [number; PAGE / LINE]),
        Err(error) => known.blame(format!("a WRITE failed: {error}")),
    }
}

/// Writes a page that only its writer reads, and reads it.
async fn write_own(ep: &Ep, known: &Known, writer: usize) {
    let at = page(writer + THREADS);
    let number = ep.random();
    let buf = ep.buffer(PAGE);
    (0..PAGE / WORD).for_each(|word| buf.set(word, number));
    let read = async { ep.read(at, ep.write_unread(at, buf).await?).await };
    match read.await {
        Ok(buf) if (0..PAGE / WORD).all(|word| buf.get(word) == number) => ep.recycle(buf),
        Ok(_) => known.blame(format!("page {writer} of one writer has other bytes than it wrote")),
        Err(error) => known.blame(format!("a WRITE of one writer's page failed: {error}")),
    }
}

async fn read(ep: &Ep, known: &Known, writer: usize) {
    let least = known.least.borrow()[writer];
    // Into the window of a larger buffer, whose other words stay.
    let into = ep.buffer(PAGE + WORD).with_window(0..PAGE);
    into.set(PAGE / WORD, least[0]);
    let read = match ep.random() % 2 {
        0 => ep.read(page(writer), into).await,
        _ => ep.submit(Chain::new().read(page(writer), into)).await.map(|mut results| match results.pop() {
            Some(VerbResult::Buf(buf)) => buf,
            other => unreachable!("a READ gives its buffer back, not {other:?}"),
        }),
    };
    let buf = match read {
        Ok(buf) => buf,
        Err(error) => return known.blame(format!("a READ failed: {error}")),
    };
    if (buf.len(), buf.get(PAGE / WORD)) != (PAGE + WORD, least[0]) {
        known.blame("a READ changed its buffer beside the window".to_owned());
    }
    let mut found = [0; PAGE / LINE];
    for (line, found) in found.iter_mut().enumerate() {
        *found = buf.get(line * LINE / WORD);
        if *found < least[line] {
            known.blame(format!("line {line} of page {writer} had {}, and now {found}", least[line]));
        }
    }
    known.at_least(writer, found);
    ep.recycle(buf);
}

async fn add(ep: &Ep, known: &Known) {
    let number = ep.random() % COUNTERS;
    let result = ep.fetch_add(counter(number), 1).await;
    let (added, unknown) = &mut known.added.borrow_mut()[number as usize];
    match result {
        Ok(_) => *added += 1,
        Err(error) if error.may_have_taken_effect() => *unknown += 1,
        Err(error) => known.blame(format!("an addition failed: {error}")),
    }
}

async fn swap(ep: &Ep, known: &Known) {
    let at = flag(ep.random() % FLAGS);
    let up = ep.random() % 2;
    match ep.compare_swap(at, up, 1 - up).await {
        Err(FabricError::ServerUnreachable(_) | FabricError::TimedOut(_)) => {
            known.unknown_swaps.set(known.unknown_swaps.get() + 1);
        }
        Err(error) => known.blame(format!("a swap failed: {error}")),
        Ok(_) => {}
    }
}

/// Takes a lock. `None` if another thread has it, or the swap came too late.
async fn take(ep: &Ep, at: GlobalAddr) -> Result<Option<u64>, FabricError> {
    let found = ep.read_word(at).await?;
    if found % 2 == 1 {
        return Ok(None);
    }
    let mine = ep.random() | 1;
    let is_taken = match ep.compare_swap(at, found, mine).await {
        Ok(before) => before == found,
        Err(error) if error.may_have_taken_effect() => ep.read_word(at).await? == mine,
        Err(error) => return Err(error),
    };
    Ok(is_taken.then_some(mine))
}

/// Adds 1 to all words of a page under its lock.
async fn change_locked(ep: &Ep, known: &Known) {
    let number = ep.random() as usize % LOCKED;
    let (at, page) = (lock(number), locked_page(number));
    let changed = async {
        let Some(mine) = take(ep, at).await? else { return Ok(()) };
        let buf = ep.read(page, ep.buffer(PAGE)).await?;
        let next = buf.get(0) + 1;
        known.changes.borrow_mut()[number] += 1;
        loop {
            let is_one = ep.random().is_multiple_of(2);
            let buf = ep.buffer(PAGE + if is_one { WORD } else { 0 });
            (0..PAGE / WORD).for_each(|word| buf.set(word, next));
            let free = ep.random() << 1;
            let given_back = if is_one {
                buf.set(PAGE / WORD, free);
                ep.write_unlocking(page, buf).await.map(drop)
            } else {
                ep.submit(Chain::new().write(page, buf).write_word(at, free)).await.map(drop)
            };
            match given_back {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_unreachable() || !known.loses_answers => return Err(error),
                Err(_) if ep.read_word(at).await? == mine => {}
                Err(_) => return Ok::<_, FabricError>(()),
            }
        }
    };
    if let Err(error) = changed.await {
        known.blame(format!("a change under a lock failed: {error}"));
    }
}

/// Operations of a thread. Locks are used if no copy is filled meanwhile: what gives them back may not be sent again in
/// another view, and simulated servers do not refuse verbs of earlier ones.
async fn operate(
    ep: Rc<Ep>,
    known: Rc<Known>,
    thread: usize,
    slot: u32,
    operations: usize,
    uses_locks: bool,
) {
    for _ in 0..operations {
        match ep.random() % 8 {
            0..2 if slot == 0 => write(&ep, &known, thread).await,
            2 if slot == 0 => write_own(&ep, &known, thread).await,
            0..5 => read(&ep, &known, ep.random() as usize % THREADS).await,
            5 if uses_locks => change_locked(&ep, &known).await,
            5 => add(&ep, &known).await,
            _ => swap(&ep, &known).await,
        }
    }
}

/// Writes a word of each volume that nobody changes.
fn write_lasting(cluster: &SimFabric, placement: &Placement) {
    let ep = cluster.direct(1);
    for copy in placement.volumes.iter().flat_map(Volume::in_write_order) {
        block_on(&ep, ep.write_word(copy.at(COMPARED - 8), 77)).expect("all are there");
    }
}

/// Compares the copies that are left, and the counters with what was added.
fn check_end(cluster: &SimFabric, placement: &Placement, known: &Known) {
    let ep = cluster.direct(1);
    for (number, volume) in placement.volumes.iter().enumerate() {
        for offset in (0..COMPARED).step_by(8) {
            let words = volume.in_write_order().map(|copy| block_on(&ep, ep.read_word(copy.at(offset))));
            let words: Vec<u64> = words.map(|word| word.expect("the server is there")).collect();
            if words.iter().any(|word| *word != words[0]) {
                known.blame(format!("copies of byte {offset} of volume {number} are {words:?}"));
            }
        }
    }
    let word = |at: GlobalAddr| {
        let primary = placement.volumes[usize::from(at.server().0)].primary;
        block_on(&ep, ep.read_word(primary.at(at.offset()))).expect("the server is there")
    };
    for (number, changes) in known.changes.borrow().iter().enumerate() {
        let found = word(locked_page(number));
        if found != *changes {
            known.blame(format!("a locked page was changed {changes} times and has {found}"));
        }
    }
    for number in 0..COUNTERS {
        let found = word(counter(number));
        let (added, unknown) = known.added.borrow()[number as usize];
        if !(added..=added + unknown).contains(&found) {
            known.blame(format!("a counter has {found}, not {added} and at most {unknown} more"));
        }
    }
}

/// What happens to servers in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    AllLive,
    OneDies,
    /// It comes back without its memory; once it has copies again, another one dies.
    TwoDie,
    /// Another one joins, before one dies.
    OneJoins,
}

/// The servers that die, and when.
struct Deaths {
    first: MemoryServerId,
    at: Nanos,
    is_back: AtomicBool,
    second: MemoryServerId,
    second_at: AtomicU64,
}

impl Deaths {
    fn is_gone(&self, server: MemoryServerId, now: Nanos) -> bool {
        (server == self.first && now >= self.at && !self.is_back.load(Relaxed))
            || (server == self.second && now >= self.second_at.load(Relaxed))
    }
}

/// Copies whole volumes to copies that are being filled, at this moment. Memory servers do so while clients go on,
/// and overwrite nothing that these wrote; it has the same effect.
fn fill(cluster: &SimFabric, placement: &Placement) {
    let ep = cluster.direct(1);
    for volume in &placement.volumes {
        for copy in volume.backups.iter().filter(|copy| copy.is_syncing) {
            let whole = block_on(&ep, ep.read(volume.primary.at(0), ep.buffer(volume.len as usize)));
            block_on(&ep, ep.write(copy.at(0), whole.expect("it is there"))).expect("it is back");
        }
    }
}

/// Brings the first server back once the others go on without it, and kills the second one later.
async fn come_back(ep: &Ep, cluster: &SimFabric, judged: &Judged, deaths: &Deaths, copies: usize) {
    while judged.epoch(ep.now()) == 1 {
        if ep.now() > deaths.at.saturating_add(PATIENCE_NS) {
            // Nobody missed it.
            return;
        }
        ep.sleep_until(ep.now() + 10_000).await;
    }
    // Memory servers refuse verbs of earlier views; here these have ended after a while.
    ep.sleep_until(ep.now() + 1_000_000).await;
    cluster.fail(Fault::Restart { server: deaths.first, memory_lost: true });
    deaths.is_back.store(true, Relaxed);
    judged.change(|placement| placement.with(deaths.first, copies));
    fill(cluster, &judged.placement());
    // Writers of the earlier view have noticed the change by then.
    ep.sleep_until(ep.now() + 1_000_000).await;
    judged.change(|placement| placement.filled(deaths.first));
    ep.sleep_until(ep.now() + ep.random() % 100_000).await;
    deaths.second_at.store(ep.now(), Relaxed);
    cluster.fail(Fault::Kill { server: deaths.second });
}

/// Moves a backup to a server that joins, and makes a volume of the parts that are free then; kills a server at last.
async fn join(ep: &Ep, cluster: &SimFabric, judged: &Judged, deaths: &Deaths, known: &Known) {
    let (joins, moved) = (MemoryServerId(SERVERS), (ep.random() % u64::from(SERVERS)) as usize);
    ep.sleep_until(ep.now() + ep.random() % 100_000).await;
    let next = |placement: &Placement| Placement { epoch: placement.epoch + 1, ..placement.clone() };
    judged.change(|placement| {
        let mut next = next(placement);
        next.volumes[moved].backups.push(Replica { server: joins, shift: 0, is_syncing: true });
        next
    });
    fill(cluster, &judged.placement());
    // Memory servers refuse verbs of earlier views; here these have ended after a while.
    ep.sleep_until(ep.now() + 1_000_000).await;
    judged.change(|placement| placement.filled(joins));
    ep.sleep_until(ep.now() + ep.random() % 100_000).await;
    let left = judged.placement().volumes[moved].backups[0];
    judged.change(|placement| {
        let mut next = next(placement);
        next.volumes[moved].backups.remove(0);
        next
    });
    ep.sleep_until(ep.now() + 1_000_000).await;
    let len = judged.placement().volumes[moved].len;
    let primary = Replica { server: joins, shift: len, is_syncing: false };
    judged.change(|placement| {
        let mut next = next(placement);
        next.volumes.push(Volume { len, primary, backups: vec![Replica { is_syncing: true, ..left }] });
        next
    });
    fill(cluster, &judged.placement());
    judged.change(|placement| placement.filled(left.server));
    let at = GlobalAddr::new(joins, 64);
    let used = async {
        ep.write_word(at, 5).await?;
        ep.fetch_add(at, 2).await?;
        ep.read_word(at).await
    };
    match used.await {
        Ok(7) if ep.regions().len() == usize::from(joins.0) + 1 => {}
        Err(error) if error.may_have_taken_effect() && known.loses_answers => {}
        other => known.blame(format!("the new volume has {other:?}")),
    }
    deaths.second_at.store(ep.now(), Relaxed);
    cluster.fail(Fault::Kill { server: deaths.second });
}

fn loses_answers(seed: u64) -> bool {
    seed.is_multiple_of(4)
}

/// All but the one that may join.
fn first_servers(cluster: &SimFabric) -> &[RegionInfo] {
    &cluster.regions()[..SERVERS.into()]
}

fn simulated_cluster(seed: u64) -> SimFabric {
    let mut model = Model::default();
    model.faults.torn_share = 0.3;
    model.faults.spike_share = 0.2;
    model.faults.spike_ns = 60_000;
    model.faults.lost_answer_share = if loses_answers(seed) { 0.02 } else { 0.0 };
    let config = SimConfig {
        regions: vec![96 << 10; usize::from(SERVERS) + 1],
        compute_servers: COMPUTE_SERVERS,
        seed,
        model,
    };
    SimFabric::new(&config).expect("a sound model")
}

/// Runs one seed; returns what was wrong.
fn run(seed: u64, copies: usize, fate: Fate) -> Option<String> {
    let cluster = simulated_cluster(seed);
    let random = pando_fabric::Random::new(seed);
    let first = MemoryServerId((random.next() % u64::from(SERVERS)) as u16);
    let servers = if fate == Fate::OneJoins { SERVERS + 1 } else { SERVERS };
    let second = MemoryServerId((first.0 + 1 + (random.next() % u64::from(servers - 1)) as u16) % servers);
    let is_first = matches!(fate, Fate::OneDies | Fate::TwoDie);
    let at = if is_first { 20_000 + random.next() % 400_000 } else { Nanos::MAX };
    let (is_back, second_at) = (AtomicBool::new(false), AtomicU64::new(Nanos::MAX));
    let deaths = Arc::new(Deaths { first, at, is_back, second, second_at });
    if is_first {
        cluster.plan(&FaultPlan { faults: vec![(at, Fault::Kill { server: first })] });
    }
    let (placement, judges) = (Placement::chained(1, first_servers(&cluster), copies), Arc::clone(&deaths));
    write_lasting(&cluster, &placement);
    let judged = Judged::new(placement, 100_000, PATIENCE_NS, move |server, now| judges.is_gone(server, now));
    let judged = Arc::new(judged);
    let thread = |thread: usize| {
        let below = cluster.thread(thread % COMPUTE_SERVERS, seed ^ thread as u64);
        Replicated::new(below, Arc::clone(&judged) as Arc<dyn Views>)
    };
    // The last thread has no operations.
    let threads: Vec<Rc<Ep>> = (0..=THREADS).map(thread).map(Rc::new).collect();
    let known = Rc::new(Known::new(loses_answers(seed)));
    let below: Vec<&SimEndpoint> = threads.iter().map(|ep| ep.below()).collect();
    let is_long = matches!(fate, Fate::TwoDie | Fate::OneJoins);
    let operations = if is_long { 12 * OPERATIONS } else { OPERATIONS };
    let uses_locks = !is_long && seed.is_multiple_of(2);
    cluster.run(&below, SLOTS, |thread, slot| {
        let (ep, known) = (Rc::clone(&threads[thread]), Rc::clone(&known));
        let (cluster, judged, deaths) = (&cluster, &judged, &deaths);
        async move {
            match (thread < THREADS, slot) {
                (true, _) => operate(ep, known, thread, slot, operations, uses_locks).await,
                (false, 0) if fate == Fate::TwoDie => come_back(&ep, cluster, judged, deaths, copies).await,
                (false, 0) if fate == Fate::OneJoins => join(&ep, cluster, judged, deaths, &known).await,
                (false, _) => {}
            }
        }
    });
    // A dead server that nobody missed is still in the view.
    let placement = judged.placement();
    let mut in_use = placement.volumes.iter().flat_map(Volume::in_write_order);
    if !in_use.any(|copy| deaths.is_gone(copy.server, cluster.now())) {
        check_end(&cluster, &placement, &known);
    }
    known.wrong.take()
}

/// A view with one more copy begins `delay` after a WRITE did, which takes long.
fn write_across_a_view(delay: Nanos) -> Option<String> {
    let cluster = simulated_cluster(delay);
    let joins = MemoryServerId(0);
    let placement =
        Placement::chained(1, first_servers(&cluster), 2).without(joins).expect("others have copies");
    let judged = Arc::new(Judged::new(placement, 0, PATIENCE_NS, |_, _| false));
    let threads = [0, 1].map(|thread| {
        Rc::new(Replicated::new(cluster.thread(thread, 1), Arc::clone(&judged) as Arc<dyn Views>))
    });
    let below: Vec<&SimEndpoint> = threads.iter().map(|ep| ep.below()).collect();
    let known = Rc::new(Known::new(loses_answers(delay)));
    cluster.fail(Fault::Spikes { share: 1.0, ns: 20_000 });
    cluster.run(&below, 1, |thread, _| {
        let (ep, judged, known) = (Rc::clone(&threads[thread]), Arc::clone(&judged), Rc::clone(&known));
        let cluster = &cluster;
        async move {
            if thread == 0 {
                return write(&ep, &known, 0).await;
            }
            ep.sleep_until(delay).await;
            judged.change(|placement| placement.with(joins, 2));
            fill(cluster, &judged.placement());
        }
    });
    check_end(&cluster, &judged.placement(), &known);
    known.wrong.take()
}

/// Changes the first word at `at` from 0 to 1, in the `number`th way.
async fn change_word(ep: &Ep, number: usize, at: GlobalAddr) -> Result<(), FabricError> {
    let page = || {
        let buf = ep.buffer(PAGE);
        (0..PAGE / WORD).for_each(|word| buf.set(word, u64::from(word == 0)));
        buf
    };
    match number {
        0 => ep.fetch_add(at, 1).await.map(drop),
        1 => ep.compare_swap(at, 0, 1).await.map(drop),
        2 => ep.masked_compare_swap(at, 0, 1, 1, 1).await.map(drop),
        3 => ep.write_word(at, 1).await,
        4 => ep.write(at, page()).await.map(drop),
        5 => ep.write_unread(at, page()).await.map(drop),
        6 => ep.write_unlocking(at, page()).await.map(drop),
        7 => ep.submit(Chain::new().write(at, page())).await.map(drop),
        _ => ep.submit(Chain::new().write(at, page()).write_word(at.add(64), 7)).await.map(drop),
    }
}

const WAYS_TO_CHANGE: usize = 9;

/// The connection to a server with a copy is lost `delay` after a change began, and does not come back. If the change fails, and the
/// error says that it had no effect, no copy has it.
fn lose_a_copy(way: usize, lost: MemoryServerId, delay: Nanos) -> Option<String> {
    let cluster = simulated_cluster(1);
    let placement = Placement::chained(1, first_servers(&cluster), 2);
    let at = page(0);
    let copies: Vec<Replica> = placement.volumes[usize::from(at.server().0)].in_write_order().collect();
    let judged = Arc::new(Judged::new(placement, 0, 200_000, |_, _| false));
    let ep = Rc::new(Replicated::new(cluster.thread(0, 1), judged as Arc<dyn Views>));
    let below = cluster.thread(1, 1);
    let result = Rc::new(RefCell::new(None));
    cluster.run(&[ep.below(), &below], 1, |thread, _| {
        let (ep, result, cluster) = (Rc::clone(&ep), Rc::clone(&result), &cluster);
        async move {
            if thread == 0 {
                result.replace(Some(change_word(&ep, way, at).await));
                return;
            }
            ep.sleep_until(delay).await;
            cluster.fail(Fault::Disconnect { compute_server: 0, server: lost });
        }
    });
    let result = result.take().expect("it has ended");
    let direct = cluster.direct(1);
    let of_copy = |copy: &Replica| block_on(&direct, direct.read_word(copy.at(at.offset())));
    let has_it = copies.iter().any(|copy| of_copy(copy).expect("it is there") != 0);
    match result {
        Err(error) if has_it && !error.may_have_taken_effect() => Some(format!("way {way}: {error}")),
        _ => None,
    }
}

fn lose_copies() -> Option<String> {
    let servers = [0, 1].map(MemoryServerId);
    let cases = (0..WAYS_TO_CHANGE).flat_map(|way| servers.map(|server| (way, server)));
    let mut moments =
        cases.flat_map(|(way, server)| (0..12_000).step_by(300).map(move |at| (way, server, at)));
    moments.find_map(|(way, server, at)| lose_a_copy(way, server, at))
}

#[test]
fn an_error_says_that_nothing_happened_if_no_copy_has_the_change() {
    assert_eq!(lose_copies(), None);
}

/// Moments of a WRITE.
fn moments_of_a_write() -> impl Iterator<Item = Nanos> {
    (0..30_000).step_by(200)
}

#[test]
fn a_write_across_a_change_of_the_view_reaches_the_new_copy() {
    for delay in moments_of_a_write() {
        if let Some(wrong) = write_across_a_view(delay) {
            panic!("after {delay} ns: {wrong}");
        }
    }
}

fn seeds() -> u64 {
    std::env::var("REPLICA_SEEDS").map_or(300, |seeds| seeds.parse().expect("a number"))
}

#[test]
fn nothing_answered_or_read_is_lost_with_a_server() {
    for seed in 0..seeds() {
        for (copies, fate) in [
            (2, Fate::OneDies),
            (3, Fate::OneDies),
            (2, Fate::AllLive),
            (2, Fate::TwoDie),
            (3, Fate::TwoDie),
            (2, Fate::OneJoins),
        ] {
            if let Some(wrong) = run(seed, copies, fate) {
                panic!("seed {seed}, {copies} copies, {fate:?}: {wrong}");
            }
        }
    }
}

#[cfg(feature = "defects")]
#[test]
fn each_defect_is_found() {
    use pando_fabric::defect::with_defect;
    use pando_replica::defect::Defect;

    for defect in Defect::ALL {
        let across = || moments_of_a_write().find_map(|delay| Some((delay, write_across_a_view(delay)?)));
        let fates = [Fate::OneDies, Fate::AllLive, Fate::TwoDie];
        let of_seed = |seed| fates.into_iter().find_map(|fate| Some((seed, run(seed, 2, fate)?)));
        let found = with_defect(Some(defect), || match defect {
            Defect::LastAnswerCounts => lose_copies().map(|wrong| (0, wrong)),
            _ => across().or_else(|| (0..2_000).find_map(of_seed)),
        });
        let (seed, wrong) = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
        println!("{defect:?}: {seed}: {wrong}");
    }
}
