//! Files of the `shm` fabric: creation, reopening, refusals and clean-up, also with several processes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Command;
use std::task::{Context, Poll, Waker};

use pando_fabric::{Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId};
use pando_fabric_local::{HugePages, ShmConfig, ShmFabric, process_alive, this_process};

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

fn temporary() -> tempfile::TempDir {
    let shm = PathBuf::from("/dev/shm");
    let parent = if shm.is_dir() { shm } else { env!("CARGO_TARGET_TMPDIR").into() };
    tempfile::tempdir_in(parent).expect("a directory for tests")
}

fn config(servers: usize, bytes_per_server: u64) -> ShmConfig {
    ShmConfig { servers, bytes_per_server, huge_pages: HugePages::default() }
}

fn at(server: u16, offset: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(server), offset)
}

/// The message of an `Open` error.
#[track_caller]
fn refusal<T>(result: Result<T, FabricError>) -> String {
    match result.err().expect("must be refused") {
        err @ FabricError::Open { .. } => err.to_string(),
        err => panic!("another error: {err:?}"),
    }
}

fn listing(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut names: Vec<_> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

#[test]
fn a_pool_outlives_its_fabric() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    assert!(!ShmFabric::exists(&path));
    let fabric = ShmFabric::create(&path, config(2, 10_000)).expect("a pool");
    assert_eq!(fabric.path(), path);
    assert_eq!(fabric.regions().iter().map(|region| region.len).collect::<Vec<_>>(), [12_288; 2]);
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    drop(fabric);
    block_on(endpoint.write_word(at(1, 12_280), 4711)).expect("endpoints keep the pool mapped");
    drop(endpoint);

    assert!(ShmFabric::exists(&path));
    assert_eq!(listing(&path), ["server-0.pando", "server-1.pando"]);
    let fabric = ShmFabric::open(&path, false).expect("the pool");
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    assert_eq!(block_on(endpoint.read_word(at(1, 12_280))).expect("the last word"), 4711);
    fabric.flush().expect("it can be flushed");
    assert!(refusal(ShmFabric::create(&path, config(2, 4096))).contains("there is a pool already"));
}

#[test]
fn one_server_is_a_file_unless_a_directory_is_there() {
    let temporary = temporary();
    let (file, directory) = (temporary.path().join("file"), temporary.path().join("directory"));
    ShmFabric::create(&file, config(1, 4096)).expect("a pool");
    assert!(file.is_file() && ShmFabric::exists(&file));
    assert!(refusal(ShmFabric::create(&file, config(1, 4096))).contains("there is a pool already"));
    assert!(refusal(ShmFabric::create(&file, config(2, 4096))).contains("there is a pool already"));

    fs::create_dir(&directory).expect("a directory");
    fs::write(directory.join("server-01.pando"), "not ours").expect("a file");
    assert!(!ShmFabric::exists(&directory));
    ShmFabric::create(&directory, config(1, 4096)).expect("a pool");
    assert!(directory.join("server-0.pando").is_file());
    assert_eq!(ShmFabric::open(&directory, false).expect("the pool").regions().len(), 1);

    let slash = temporary.path().join("slash/");
    ShmFabric::create(&slash, config(1, 4096)).expect("a pool");
    assert_eq!(listing(&slash), ["server-0.pando"]);
}

#[test]
fn what_fails_half_way_is_removed() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    fs::create_dir(&path).expect("a directory");
    fs::write(path.join("notes"), "of others").expect("a file");
    // The size exceeds an address space of 47 bits.
    let reason = refusal(ShmFabric::create(&path, config(3, 1 << 48)));
    assert!(reason.contains("server-2.pando: cannot"), "the first file fails: {reason}");
    assert_eq!(listing(&path), ["notes"]);

    // One region of 2^46 bytes fits into the address space, four do not: some are created before one fails.
    let elsewhere = temporary.path().join("elsewhere");
    let reason = refusal(ShmFabric::create(&elsewhere, config(4, 1 << 46)));
    assert!(reason.contains("cannot"), "{reason}");
    assert!(!elsewhere.exists(), "its directory was ours too");
    ShmFabric::create(&elsewhere, config(2, 4096)).expect("nothing stands in the way");
}

#[test]
fn impossible_shapes_are_refused() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    for (config, sentence) in [
        (config(0, 4096), "at least one memory server"),
        (config(32_769, 4096), "32769 memory servers are more than 32768"),
        (config(1, 0), "at least one byte"),
        (config(1, (1 << 48) + 1), "larger than 2^48"),
    ] {
        let reason = refusal(ShmFabric::create(&path, config));
        assert!(reason.contains(sentence), "{reason}");
    }
    assert!(refusal(ShmFabric::create(path.join("below"), config(1, 4096))).contains("cannot be created"));
    assert!(listing(temporary.path()).is_empty());
}

#[test]
fn damaged_pools_are_refused() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    assert!(refusal(ShmFabric::open(&path, false)).contains("there is no pool"));
    fs::create_dir(&path).expect("a directory");
    assert!(refusal(ShmFabric::open(&path, false)).contains("no pool in this directory"));
    ShmFabric::create(&path, config(3, 1 << 20)).expect("a pool");
    let middle = path.join("server-1.pando");
    let resize = |len| {
        let file = OpenOptions::new().write(true).open(&middle).expect("the file");
        file.set_len(len).expect("the file is resized");
    };
    resize(5000);
    assert!(refusal(ShmFabric::open(&path, false)).contains("5000 bytes are no multiple of 4096"));
    resize(1 << 20);
    ShmFabric::open(&path, false).expect("whole again");
    resize(0);
    assert!(refusal(ShmFabric::open(&path, false)).contains("server-1.pando: the file is empty"));
    resize(1 << 20);
    assert!(refusal(ShmFabric::open(&path, false)).contains("server-1.pando: nothing was ever written"));
    fs::rename(&middle, path.join("gone")).expect("renamed");
    let without = ShmFabric::open(&path, false).expect("the pool knows which parts it needs");
    assert_eq!(without.regions().iter().map(|region| region.len).collect::<Vec<_>>(), [1 << 20, 0, 1 << 20]);
    let reason = ShmFabric::missing(&path, MemoryServerId(1)).to_string();
    assert!(reason.ends_with("server-1.pando: this part of the pool is missing"), "{reason}");
    drop(without);
    fs::create_dir(&middle).expect("a directory");
    assert!(refusal(ShmFabric::open(&path, true)).contains("this is not a file"));
}

#[test]
fn a_read_only_pool_refuses_every_change() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    let fabric = ShmFabric::create(&path, config(1, 4096)).expect("a pool");
    let writer = fabric.endpoint(1).expect("an endpoint");
    let reader = ShmFabric::open(&path, true).expect("the pool").endpoint(2).expect("an endpoint");
    let word = at(0, 8);
    block_on(writer.write_word(word, 5)).expect("a WRITE");
    let buf = reader.buffer(8);
    assert!(matches!(block_on(reader.write(word, buf)), Err(FabricError::ReadOnly { .. })));
    assert!(matches!(block_on(reader.write_word(word, 1)), Err(FabricError::ReadOnly { .. })));
    assert!(matches!(block_on(reader.fetch_add(word, 1)), Err(FabricError::ReadOnly { .. })));
    assert!(matches!(block_on(reader.compare_swap(word, 9, 1)), Err(FabricError::ReadOnly { .. })));
    assert!(matches!(
        block_on(reader.masked_compare_swap(word, 9, 1, 1, 1)),
        Err(FabricError::ReadOnly { .. })
    ));
    assert!(matches!(block_on(reader.reserve(word, 8)), Err(FabricError::ReadOnly { .. })));
    assert_eq!(block_on(reader.read_word(word)).expect("a READ"), 5);
    assert_eq!(reader.counters().snapshot().reads, 1);
}

#[test]
fn memory_comes_with_reservations() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    let len = 1 << 40;
    let fabric = ShmFabric::create(&path, config(1, len)).expect("a pool");
    let allocated = || File::open(&path).and_then(|file| file.metadata()).expect("the file").blocks() * 512;
    let first = allocated();
    assert!((4096..=2 << 20).contains(&first), "one page for the superblock, not {first} bytes");
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    block_on(endpoint.reserve(at(0, 1 << 39), 10_000)).expect("three pages");
    let (reserved, more) = (allocated(), allocated() - first);
    assert!((12_288..=8 << 20).contains(&more), "three pages or some huge ones, not {more} bytes");
    block_on(endpoint.write_word(at(0, 1 << 39), 1)).expect("it is backed");
    assert_eq!(allocated(), reserved, "the WRITE found its page there");
    let system = rustix::fs::statvfs(&path).expect("the file system");
    if !path.starts_with("/dev/shm") || system.f_blocks * system.f_frsize >= len {
        return; // The reservation would fill it up, or would even succeed.
    }
    match block_on(endpoint.reserve(at(0, 0), len)) {
        Err(FabricError::NoSpace { len: asked, reason, .. }) => {
            assert_eq!(asked, len);
            assert!(reason.contains("is full"), "{reason}");
        }
        other => panic!("1 TiB was reserved: {other:?}"),
    }
    assert_eq!(block_on(endpoint.read_word(at(0, 1 << 39))).expect("a READ"), 1, "nothing was lost");
}

#[test]
fn untouched_process_memory_costs_nothing() {
    let resident = || {
        let statm = fs::read_to_string("/proc/self/statm").expect("/proc");
        statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
    };
    let before = resident();
    let sizes = vec![1 << 38; 4];
    let config = pando_fabric_local::LocalConfig { server_sizes: sizes, huge_pages: false };
    let fabric = pando_fabric_local::LocalFabric::new(config).expect("1 TiB of address space");
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    for server in 0..4 {
        block_on(endpoint.write_word(at(server, (1 << 38) - 8), 1)).expect("the last word");
        assert_eq!(block_on(endpoint.read_word(at(server, 1 << 37))).expect("a READ"), 0);
    }
    assert!(resident() < before + (1 << 30), "1 TiB of address space became resident");
}

const POOL: &str = "PANDO_TEST_POOL";
const ROUNDS: u64 = 20_000;

/// Words that both processes change: by additions, by swaps, and under the lock without atomics.
const SUM: u64 = 64;
const SWAPPED: u64 = 128;
const LOCKED: u64 = 192;
const PARTNERS: u64 = 256;

fn increment_all(fabric: &ShmFabric) {
    let endpoint = fabric.endpoint(this_process().0.into()).expect("an endpoint");
    block_on(async {
        // Wait for the other process, so that both run concurrently.
        endpoint.fetch_add(at(1, PARTNERS), 1).await?;
        while endpoint.read_word(at(1, PARTNERS)).await? < 2 {
            endpoint.yield_now().await;
        }
        for round in 0..ROUNDS {
            endpoint.fetch_add(at(1, SUM), 1).await?;
            let mut expected = endpoint.read_word(at(1, SWAPPED)).await?;
            loop {
                match endpoint.compare_swap(at(1, SWAPPED), expected, expected + 1).await? {
                    found if found == expected => break,
                    found => expected = found,
                }
            }
            if round.is_multiple_of(100) {
                let _lock = fabric.lock_exclusive()?;
                let value = endpoint.read_word(at(1, LOCKED)).await?;
                std::thread::yield_now();
                endpoint.write_word(at(1, LOCKED), value + 1).await?;
            }
        }
        Ok::<(), FabricError>(())
    })
    .expect("verbs of a mapped file");
}

/// Not a test of its own: the other process of the test below.
#[test]
#[ignore = "started by two_processes_share_a_pool"]
fn other_process() {
    let path = std::env::var_os(POOL).expect("started by the other test");
    increment_all(&ShmFabric::open(path, false).expect("the pool of the other process"));
}

#[test]
fn two_processes_share_a_pool() {
    let temporary = temporary();
    let path = temporary.path().join("pool");
    let fabric = ShmFabric::create(&path, config(2, 1 << 16)).expect("a pool");
    let mut other = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "shm::other_process", "--ignored"])
        .env(POOL, &path)
        .spawn()
        .expect("a second process");
    increment_all(&fabric);
    assert!(other.wait().expect("the other process ends").success());
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    let total = |offset| block_on(endpoint.read_word(at(1, offset))).expect("a READ");
    assert_eq!(total(SUM), 2 * ROUNDS);
    assert_eq!(total(SWAPPED), 2 * ROUNDS);
    assert_eq!(total(LOCKED), 2 * ROUNDS / 100);
}

#[test]
fn the_lock_excludes_threads_too() {
    let temporary = temporary();
    let fabric = ShmFabric::create(temporary.path().join("pool"), config(1, 4096)).expect("a pool");
    let clone = fabric.clone();
    let lock = fabric.lock_exclusive().expect("the lock");
    let released = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _lock = clone.lock_exclusive().expect("the lock, when it is free");
            assert!(released.load(std::sync::atomic::Ordering::SeqCst), "two threads held the lock");
        });
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        released.store(true, std::sync::atomic::Ordering::SeqCst);
        drop(lock);
    });
}

#[test]
fn a_process_that_ended_is_noticed() {
    let mut child = Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("a process");
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("/proc");
    let fields = stat.rsplit_once(')').expect("a name").1;
    let start: u64 = fields.split_ascii_whitespace().nth(19).expect("field 22").parse().expect("a number");
    assert!(process_alive(child.id(), start));
    assert!(!process_alive(child.id(), start - 1), "the number of an earlier process");
    drop(child.stdin.take());
    child.wait().expect("it ends with its input");
    assert!(!process_alive(child.id(), start));
}

/// Runs where hugetlbfs is mounted and huge pages are free.
#[test]
fn huge_pages_where_the_system_has_them() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let directory = fields.next()?;
        (fields.next()? == "hugetlbfs").then_some(directory)
    });
    let Some(Ok(temporary)) = mount.map(tempfile::tempdir_in) else { return };
    let fabric = ShmFabric::create(temporary.path().join("pool"), config(2, 5000)).expect("a pool");
    let len = fabric.regions()[0].len;
    assert!(len > 5000 && len.is_power_of_two(), "one huge page, not {len} bytes");
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    match block_on(endpoint.reserve(at(1, 0), len)) {
        Ok(()) => block_on(endpoint.write_word(at(1, len - 8), 3)).expect("it is backed"),
        Err(FabricError::NoSpace { .. }) => return,
        Err(err) => panic!("{err}"),
    }
    fabric.flush().expect("nothing to flush");
    drop((fabric, endpoint));
    let fabric = ShmFabric::open(temporary.path().join("pool"), true).expect("the pool");
    let endpoint = fabric.endpoint(1).expect("an endpoint");
    assert_eq!(block_on(endpoint.read_word(at(1, len - 8))).expect("a READ"), 3);
}

#[test]
fn a_server_joins_under_endpoints_that_are_there_and_other_mappings_find_it() {
    let directory = temporary();
    let path = directory.path().join("pool");
    let fabric = ShmFabric::create(&path, config(2, 8192)).expect("a new pool");
    let other = ShmFabric::open(&path, false).expect("the pool");
    let endpoints = [fabric.endpoint(1).expect("an endpoint"), other.endpoint(2).expect("an endpoint")];
    for ep in &endpoints {
        let unknown = block_on(ep.read_word(at(2, 0)));
        assert!(matches!(unknown, Err(FabricError::UnknownServer(MemoryServerId(2)))), "{unknown:?}");
    }
    assert_eq!(fabric.add_server(12_000, HugePages::Never).expect("room"), MemoryServerId(2));
    assert_eq!((endpoints[0].regions().len(), endpoints[1].regions().len()), (3, 2));
    assert_eq!(block_on(endpoints[0].fetch_add(at(2, 4096), 5)).expect("it is there"), 0);
    assert_eq!(block_on(endpoints[1].read_word(at(2, 4096))).expect("found by its address"), 5);
    assert_eq!(
        endpoints[1].regions().iter().map(|region| region.len).collect::<Vec<_>>(),
        [8192, 8192, 12_288]
    );
    // The other process may add the next server.
    assert_eq!(other.add_server(8192, HugePages::Never).expect("room"), MemoryServerId(3));
    fabric.look_for_servers().expect("no error");
    assert_eq!(fabric.regions().len(), 4);
    assert_eq!(ShmFabric::open(&path, true).expect("the pool").regions().len(), 4);
    assert!(refusal(fabric.add_server(0, HugePages::Never)).contains("at least one byte"));
    let plain = ShmFabric::create(directory.path().join("plain"), config(1, 8192)).expect("a new pool");
    assert!(refusal(plain.add_server(8192, HugePages::Never)).contains("one plain file"));
}
