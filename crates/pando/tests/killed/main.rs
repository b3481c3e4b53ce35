//! A process that works on a pool with a log is killed at random moments, again and again, and the pool is
//! opened each time: everything that was answered or read is there. With the feature `power`, answers wait for the
//! disk, and each sector of the file that changed since it was last persisted may be lost with the process.
//!
//! In some of the plans the pool is in the memory of memory servers, reached by TCP, which stays when the process is
//! killed. They take the process for dead after a while, and the next one that opens the index is its heir. In some, the
//! process runs several compute servers, each with a log of its own, and moves keys between them all the time.
//!
//! The process also drops, creates and loads an index, which is there as a whole or not at all.
//!
//! The child is this program again. Before each change and after each answer it notes the state of the key in
//! a file that outlives it. A key has states 0, 1, 2, ..: it is absent in the even ones, and in state `s` it has
//! the value `s` in the odd ones. `KILLED_TIMES` sets the number of kills of each plan, 40 by default; `KILLED_PLAN`
//! is the beginning of the names of the plans that run. With `KILLED_FABRIC=verbs` and the feature `verbs`, memory servers
//! are reached by RDMA instead of TCP.

mod guest;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use pando::{
    BulkOptions, Cluster, Config, Create, Durability, Error, Index, IndexOptions, MemoryServer,
    MemoryServerConfig, OpenOptions, Session, VerbsOptions,
};

const PLAN: &str = "PANDO_TEST_PLAN";
const PATH: &str = "PANDO_TEST_PATH";
const THREADS: u64 = 3;
/// Keys that a thread changes.
const KEYS: u64 = 3_000;
const ALL: u64 = THREADS * KEYS;

/// Sizes and kinds of the plans; one of them uses a cache that most leaves do not fit into.
#[derive(Clone, Copy)]
struct Plan {
    name: &'static str,
    /// Bytes of the cache.
    cache: u64,
    is_bytes: bool,
    /// Operations of a thread at a time.
    slots: usize,
    /// Memory servers; 0 if the pool is a file.
    servers: usize,
    /// Compute servers of the process, each with a log.
    compute: usize,
}

const PLANS: [Plan; 7] = [
    Plan { name: "integers", cache: 64 << 20, is_bytes: false, slots: 1, servers: 0, compute: 1 },
    Plan {
        name: "integers, small cache",
        cache: 64 << 10,
        is_bytes: false,
        slots: 4,
        servers: 0,
        compute: 1,
    },
    Plan { name: "bytes, small cache", cache: 128 << 10, is_bytes: true, slots: 1, servers: 0, compute: 1 },
    Plan {
        name: "tcp, bytes, small cache",
        cache: 128 << 10,
        is_bytes: true,
        slots: 4,
        servers: 2,
        compute: 1,
    },
    Plan { name: "three, small cache", cache: 64 << 10, is_bytes: false, slots: 4, servers: 0, compute: 3 },
    Plan { name: "two, bytes", cache: 128 << 10, is_bytes: true, slots: 1, servers: 0, compute: 2 },
    Plan { name: "tcp, three", cache: 128 << 10, is_bytes: false, slots: 4, servers: 2, compute: 3 },
];

/// Time after which memory servers take a silent process for dead; a third of it without connections.
const GRACE: Duration = Duration::from_millis(600);
/// A heir waits for no longer.
const WAIT: Duration = Duration::from_secs(20);

/// What is known of each key: words of a file.
struct Known(File);

/// Words of a key.
const WORDS: u64 = 2 + THREADS;
/// The last state that a change was begun to, and the last that was answered; behind them, for each thread,
/// the last that it has seen.
const BEGUN: u64 = 0;
const ANSWERED: u64 = 1;
const SEEN: u64 = 2;

impl Known {
    fn open(directory: &Path) -> Self {
        let path = directory.join("known");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
        let file = file.expect("a file");
        file.set_len(ALL * WORDS * 8).expect("room");
        Self(file)
    }

    fn get(&self, key: u64, word: u64) -> u64 {
        let mut bytes = [0; 8];
        self.0.read_exact_at(&mut bytes, (key * WORDS + word) * 8).expect("the word is there");
        u64::from_le_bytes(bytes)
    }

    fn set(&self, key: u64, word: u64, value: u64) {
        self.0.write_all_at(&value.to_le_bytes(), (key * WORDS + word) * 8).expect("it can be written");
    }

    /// The words of all keys, while nobody else uses them.
    fn all(&self) -> Vec<[u64; WORDS as usize]> {
        let mut bytes = vec![0; (ALL * WORDS * 8) as usize];
        self.0.read_exact_at(&mut bytes, 0).expect("all words are there");
        let words = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("a word")));
        words
            .collect::<Vec<_>>()
            .chunks_exact(WORDS as usize)
            .map(|key| key.try_into().expect("a key"))
            .collect()
    }

    /// Notes for each key that it has this state, and no other one is known.
    fn set_all(&self, states: &[u64]) {
        let words = states.iter().flat_map(|&state| [state; WORDS as usize]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        self.0.write_all_at(&bytes, 0).expect("it can be written");
    }
}

/// File with the addresses of the memory servers, a line each.
const ADDRESSES: &str = "addresses";

fn config(plan: &Plan, directory: &Path) -> Config {
    let addresses = std::fs::read_to_string(directory.join(ADDRESSES));
    let config = match &addresses {
        Ok(addresses) if by_verbs() => Config::verbs(addresses.lines()),
        Ok(addresses) => Config::tcp(addresses.lines()),
        Err(_) => Config::at(directory.join("pool")).memory(64 << 20),
    };
    let durability = match cfg!(feature = "power") && plan.servers == 0 {
        true => Durability::Immediate,
        false => Durability::Process,
    };
    let config = config.cache(plan.cache).create(Create::IfMissing).huge_pages(false).durability(durability);
    if plan.compute > 1 { config.compute_servers(plan.compute) } else { config }
}

/// Whether memory servers are reached by RDMA instead of TCP.
fn by_verbs() -> bool {
    std::env::var("KILLED_FABRIC").is_ok_and(|fabric| fabric == "verbs")
}

/// Starts the memory servers of a plan.
fn serve(plan: &Plan, directory: &Path) -> Vec<MemoryServer> {
    let start = |_| {
        let config = MemoryServerConfig::new("127.0.0.1:0").size(64 << 20).huge_pages(false).grace(GRACE);
        let config = if by_verbs() { config.verbs(VerbsOptions::default()) } else { config };
        MemoryServer::start(&config).expect("it starts")
    };
    let servers: Vec<_> = (0..plan.servers).map(start).collect();
    if !servers.is_empty() {
        let addresses: Vec<_> = servers.iter().map(|server| server.addr().to_string()).collect();
        std::fs::write(directory.join(ADDRESSES), addresses.join("\n")).expect("a file");
    }
    servers
}

/// Takes from the file what was not persisted, sector by sector.
#[cfg(feature = "power")]
fn lose_power(directory: &Path, round: u64) {
    if directory.join(ADDRESSES).exists() {
        return;
    }
    let mut random = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let lost = pando_fabric_local::power::lose_power(&directory.join("pool"), || {
        random = next(random);
        random >> 63 == 1
    });
    lost.expect("no process has it open");
}

#[cfg(not(feature = "power"))]
fn lose_power(_: &Path, _: u64) {}

/// Where files cost no time: what is on the disk is known otherwise.
fn directory() -> tempfile::TempDir {
    match cfg!(feature = "power") {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .expect("temporary directory")
}

fn key_of(key: u64) -> [u8; 8] {
    // In no order, so that threads meet in leaves.
    key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Value of a state: at least its number.
fn value_of(plan: &Plan, state: u64) -> Vec<u8> {
    let len = match plan.is_bytes {
        true if state.is_multiple_of(7) => 700,
        true => 8 + state as usize % 3 * 5,
        false => 8,
    };
    state.to_le_bytes().iter().copied().cycle().take(len).collect()
}

fn state_of(plan: &Plan, value: &[u8]) -> u64 {
    let state = u64::from_le_bytes(*value.first_chunk().expect("a state"));
    assert_eq!(value, value_of(plan, state), "a value of two states");
    state
}

fn main() -> ExitCode {
    if let (Ok(plan), Ok(path)) = (std::env::var(PLAN), std::env::var(PATH)) {
        if let Some(index) = plan.strip_prefix(EARLY) {
            return early_child(index, Path::new(&path));
        }
        if let Some(round) = plan.strip_prefix("guest/") {
            return guest::run(Path::new(&path), round.parse().expect("a number"));
        }
        let (plan, round) = plan.split_once('/').expect("a plan and a round");
        let plan = &PLANS[plan.parse::<usize>().expect("a number")];
        return child(plan, Path::new(&path), round.parse().expect("a number"));
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = filters.is_empty() || filters.iter().any(|filter| "killed".contains(filter.as_str()));
    if arguments.iter().any(|argument| argument == "--list") || !is_wanted {
        return ExitCode::SUCCESS;
    }
    let times = std::env::var("KILLED_TIMES").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    before_the_first_log();
    let only = std::env::var("KILLED_PLAN").ok();
    let mut wanted: Vec<usize> = (0..PLANS.len()).collect();
    // Memory servers keep their memory.
    wanted.retain(|&number| PLANS[number].servers == 0 || !cfg!(feature = "power") || only.is_some());
    wanted.retain(|&number| only.as_ref().is_none_or(|only| PLANS[number].name.starts_with(only.as_str())));
    run_all(wanted, times);
    println!("test result: ok");
    ExitCode::SUCCESS
}

/// Runs plans at the same time; some of them mostly wait. Those behind, which take longest, begin.
fn run_all(wanted: Vec<usize>, times: u64) {
    let wanted = Mutex::new(wanted);
    let next = || wanted.lock().expect("nobody panicked with it").pop();
    thread::scope(|scope| {
        for _ in 0..2 + thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(number) = next() {
                    run(number, times);
                }
            });
        }
    });
}

/// A plan that ends before any log is made; behind it, the index that it opens without one, if any.
const EARLY: &str = "early/";

fn early_child(index: &str, directory: &Path) -> ExitCode {
    let config = config(&PLANS[0], directory);
    let cluster = Cluster::open(if index.is_empty() { config } else { config.durability(Durability::Off) });
    let cluster = cluster.expect("it opens");
    if !index.is_empty() {
        cluster.open_or_create_index(index, &IndexOptions::integers()).expect("it opens");
    }
    std::process::abort()
}

/// A process that had no index open needs no log, one that had an index open without a log is refused.
fn before_the_first_log() {
    let directory = directory();
    let directory = directory.path();
    let config = || config(&PLANS[0], directory);
    let die = |index: &str| {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.env(PLAN, format!("{EARLY}{index}")).env(PATH, directory).stdout(Stdio::null());
        assert_eq!(command.status().expect("it starts").code(), None, "it aborts");
        lose_power(directory, 0);
    };
    Cluster::open(config()).expect("it is created").close().expect("it closes");
    die("");
    let without = Cluster::open(config().durability(Durability::Off));
    assert!(matches!(without, Err(Error::NotClosedCleanly { .. })), "nothing says that it kept logs");
    let cluster = Cluster::open(config()).expect("no index was open");
    assert_eq!(cluster.recovery().expect("it was not closed").indexes, 0);
    cluster.close().expect("it closes");
    die("n");
    assert!(matches!(Cluster::open(config()), Err(Error::NotClosedCleanly { .. })), "it had no log");
}

fn run(number: usize, times: u64) {
    let plan = &PLANS[number];
    let directory = directory();
    let directory = directory.path();
    let known = Known::open(directory);
    let _servers = serve(plan, directory);
    // A pool whose creator was killed is incomplete, and is to be created anew.
    Cluster::open(config(plan, directory)).expect("it is created").close().expect("it closes");
    let (begun, mut recovered, mut records, mut pages, mut loads) = (Instant::now(), 0, 0, 0, 0);
    let mut reopened = Vec::new();
    for round in 0..times {
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        command.env(PLAN, format!("{number}/{round}")).env(PATH, directory).stdout(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        // Random lengths, from before the pool is open on. Persisting takes longer, and a guest takes seconds to open it.
        let unit = match by_verbs() {
            true => 12_000,
            false if cfg!(feature = "power") => 3_000,
            false => 500,
        };
        thread::sleep(Duration::from_micros(unit * (round.wrapping_mul(0x9e37_79b9) % 400)));
        child.kill().expect("it runs");
        let status = child.wait().expect("it ends");
        assert!(!status.success() && status.code().is_none(), "{}: {status} in round {round}", plan.name);
        lose_power(directory, round);
        let died = Instant::now();
        let cluster = Cluster::open(config(plan, directory)).expect("it can be opened again");
        let index = index_of(&cluster, plan);
        reopened.push(died.elapsed());
        for recovery in [cluster.recovery(), index.recovery()].into_iter().flatten() {
            recovered += 1;
            records += recovery.records;
            pages += recovery.pages;
        }
        check(plan, &known, &index, round);
        drop(index);
        loads += check_loaded(&cluster, round);
        let cluster = alone(cluster, plan, directory);
        let report = cluster.check().expect("at rest");
        assert!(report.is_clean(), "{}, round {round}: {:?}", plan.name, report.violations);
        cluster.close().expect("it closes");
    }
    reopened.sort();
    let after = |percent: usize| reopened[(reopened.len() * percent / 100).min(reopened.len() - 1)];
    let states: u64 = known.all().iter().map(|key| key[BEGUN as usize]).sum();
    println!(
        "{}: {times} kills, {recovered} recoveries, {records} records, {pages} pages, {loads} loads, \
         {states} states, open again after {:.2?} (median), {:.2?} (p99), {:.2?} (all), {:.1?} in all",
        plan.name,
        after(50),
        after(99),
        after(100),
        begun.elapsed()
    );
}

/// The pool without the dead: memory servers keep them until the pool is opened when nobody else is attached.
fn alone(cluster: Cluster, plan: &Plan, directory: &Path) -> Cluster {
    if plan.servers == 0 {
        return cluster;
    }
    // A process that owned nothing is not known to be dead yet.
    thread::sleep(GRACE);
    cluster.close().expect("it closes");
    let cluster = Cluster::open(config(plan, directory)).expect("it can be opened again");
    let records = cluster.recovery().map_or(0, |recovery| recovery.records);
    assert_eq!(records, 0, "the heir closed its logs");
    cluster
}

const LOADED: &str = "loaded";
/// Entries of a load.
const LOAD: u64 = 1_500;

/// Drops the loaded index, creates it, and loads it with values of this round.
fn load(cluster: &Cluster, round: u64) {
    match cluster.drop_index(LOADED) {
        Ok(()) | Err(Error::UnknownIndex { .. }) => {}
        Err(error) => panic!("it cannot be dropped: {error}"),
    }
    let index = cluster.create_index(LOADED, &IndexOptions::fixed(8, 8)).expect("it can be created");
    let entry = |key: u64| (key.to_be_bytes(), round.to_be_bytes());
    let entries: Vec<_> = (0..LOAD).map(entry).collect();
    index.bulk_load(&entries[..], &BulkOptions::default()).expect("it can be loaded");
}

/// Checks that the loaded index has the entries of one round, or none; returns whether it has some.
fn check_loaded(cluster: &Cluster, round: u64) -> u64 {
    let index = match cluster.open_index_with(LOADED, &OpenOptions::default().wait(WAIT)) {
        Ok(index) => index,
        Err(Error::UnknownIndex { .. }) => return 0,
        // The process that made it was killed before it had a root.
        Err(Error::BadIndex { .. }) => {
            cluster.drop_index(LOADED).expect("nothing is in it");
            return 0;
        }
        Err(error) => panic!("round {round}: {error}"),
    };
    let session = index.session().expect("a session");
    let values = session.range(&[][..]..).map(|entry| entry.map(|(_, value)| value));
    let values = values.collect::<Result<Vec<_>, _>>().expect("a scan");
    assert!(values.is_empty() || values.len() as u64 == LOAD, "round {round}: {} entries", values.len());
    assert!(values.iter().all(|value| *value == values[0]), "round {round}: entries of two rounds");
    u64::from(!values.is_empty())
}

fn index_of(cluster: &Cluster, plan: &Plan) -> Index {
    let options = if plan.is_bytes { IndexOptions::bytes() } else { IndexOptions::fixed(8, 8) };
    // Small nodes, so that those that several compute servers share change often.
    let options = if plan.compute > 1 { options.node_size(512) } else { options };
    match cluster.open_index_with("n", &OpenOptions::default().wait(WAIT)) {
        Err(Error::UnknownIndex { .. } | Error::BadIndex { .. }) => cluster.create_index("n", &options),
        opened => opened,
    }
    .expect("it opens")
}

/// Checks each key, and notes its state as answered.
fn check(plan: &Plan, known: &Known, index: &Index, round: u64) {
    let session = index.session().expect("a session");
    let states = (0..).zip(known.all()).map(|(key, known)| {
        // The last state that was answered or seen.
        let least = known[ANSWERED as usize..].iter().copied().max().expect("words");
        let most = known[BEGUN as usize];
        let found = session.get(&key_of(key)).expect("a lookup");
        let state = match &found {
            Some(value) => state_of(plan, value),
            None => least.next_multiple_of(2),
        };
        assert!(
            (least..=most).contains(&state),
            "{}, round {round}: key {key} is {found:?}, state {state} of {least}..={most}",
            plan.name
        );
        state
    });
    known.set_all(&states.collect::<Vec<_>>());
}

fn child(plan: &Plan, directory: &Path, round: u64) -> ExitCode {
    let cluster = Cluster::open(config(plan, directory)).expect("it opens");
    let index = index_of(&cluster, plan);
    assert_eq!(index.compute_servers().expect("it is open"), plan.compute);
    let directory: PathBuf = directory.to_owned();
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (index, directory) = (&index, &directory);
            scope.spawn(move || work(plan, index, &Known::open(directory), thread, round));
        }
        load(&cluster, round);
        if plan.compute > 1 {
            move_keys(&index, round);
        }
    });
    ExitCode::SUCCESS
}

/// Moves boundaries, adds and removes compute servers without end.
fn move_keys(index: &Index, round: u64) {
    let mut random = round * 7919 + 5;
    let mut added = Vec::new();
    loop {
        random = next(random);
        let done = match (random >> 40) % 4 {
            0 if added.len() < 2 => {
                index.add_compute_server(&key_of(random >> 20)).map(|number| added.push(number))
            }
            1 if !added.is_empty() => {
                index.remove_compute_server(added.remove((random >> 32) as usize % added.len()))
            }
            _ => move_one(index, random),
        };
        done.expect("keys can move");
    }
}

/// Moves one boundary to a key between those beside it.
fn move_one(index: &Index, random: u64) -> Result<(), Error> {
    let boundaries = index.boundaries()?;
    let at = (random >> 50) as usize % boundaries.len();
    let number =
        |key: &[u8]| key.iter().chain(&[0; 8]).take(8).fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    let low = at.checked_sub(1).map_or(0, |below| number(&boundaries[below]));
    let high = boundaries.get(at + 1).map_or(u64::MAX, |above| number(above));
    if high - low < 2 {
        return Ok(());
    }
    let to = low + 1 + random % (high - low - 1);
    index.move_boundary(at, &to.to_be_bytes())
}

/// Operates without end.
fn work(plan: &Plan, index: &Index, known: &Known, thread: u64, round: u64) {
    let session = index.session().expect("a session");
    if plan.slots == 1 {
        let mut random = thread * 7919 + round * 104_729;
        loop {
            random = next(random);
            step(plan, &session, known, thread, random);
        }
    }
    let slots = plan.slots as u64;
    let result = session.in_flight(plan.slots, |slot, session| async move {
        let mut random = thread * 7919 + round * 104_729 + slot as u64;
        loop {
            random = next(random);
            // A key belongs to one slot.
            let own = thread * KEYS + (random >> 20) % (KEYS / slots) * slots + slot as u64;
            if random >> 60 < 11 {
                let state = known.get(own, BEGUN) + 1;
                known.set(own, BEGUN, state);
                match state % 2 {
                    1 => drop(session.put(&key_of(own), &value_of(plan, state)).await.expect("a put")),
                    _ => drop(session.remove(&key_of(own)).await.expect("a removal")),
                }
                known.set(own, ANSWERED, state);
            } else {
                let key = (random >> 20) % ALL;
                let found = session.get(&key_of(key)).await.expect("a lookup");
                see(plan, known, thread, key, found.as_deref());
            }
        }
    });
    let _: Vec<()> = result.expect("slots");
}

fn next(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ z >> 27
}

fn see(plan: &Plan, known: &Known, thread: u64, key: u64, found: Option<&[u8]>) {
    if let Some(value) = found {
        let state = state_of(plan, value).max(known.get(key, SEEN + thread));
        known.set(key, SEEN + thread, state);
    }
}

fn step(plan: &Plan, session: &Session, known: &Known, thread: u64, random: u64) {
    let own = thread * KEYS + (random >> 20) % KEYS;
    match random >> 60 {
        0..=9 => {
            let state = known.get(own, BEGUN) + 1;
            known.set(own, BEGUN, state);
            match state % 2 {
                1 => drop(session.put(&key_of(own), &value_of(plan, state)).expect("a put")),
                _ => drop(session.remove(&key_of(own)).expect("a removal")),
            }
            known.set(own, ANSWERED, state);
        }
        10..=14 => {
            let key = (random >> 20) % ALL;
            let found = session.get(&key_of(key)).expect("a lookup");
            see(plan, known, thread, key, found.as_deref());
        }
        _ => {
            let key = key_of((random >> 20) % ALL);
            let entries = session.range(&key[..]..).take(20).collect::<Result<Vec<_>, _>>().expect("a scan");
            for (key, value) in entries {
                let number = u64::from_be_bytes(*key.first_chunk().expect("8 bytes"));
                // The inverse of the multiplier of `key_of`.
                let key = number.wrapping_mul(0xf1de_83e1_9937_733d);
                see(plan, known, thread, key, Some(&value));
            }
        }
    }
}
