//! Requests that cannot be executed, and failures: each gives one sentence and an exit status, and loses
//! nothing.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};

use crate::common::{Place, ran, words};

/// A pool with an index of three fruits, and some files.
fn place() -> Place {
    let place = Place::new();
    place.write("fruit.txt", "plum\npear\napple\n");
    place.write("sold.csv", "id,what\n1,pears\n");
    place.write("table.xlsx", "no format");
    place.write("fast.toml", "[network]\nread_ns = 600\n");
    place.write("stopped.toml", "[network]\nbytes_per_us = 0\n");
    place.ok("load fruit.txt --pool f.pando --index fruit --pool-size 32MiB");
    place.ok("load sold.csv --pool f.pando --index sold --key id:int");
    place.ok("create --pool f.pando --index fixed --key-size 4 --value-size 2");
    place
}

#[test]
fn bad_usage_and_input_have_status_2() {
    let place = place();
    for (arguments, part) in [
        ("", "a command is missing"),
        ("sing", "sing"),
        ("scan --pool f.pando", "--index"),
        ("scan --pool f.pando --index fruit --limit many", "`many` is not a count"),
        ("scan --pool f.pando --index fruit --cache 12parsecs", "`12parsecs` is not a size"),
        ("scan --pool f.pando --index fruit --prefix a --from b", "--from"),
        ("scan --pool f.pando --index roots", "there is no index \"roots\""),
        ("scan --pool nowhere.pando --index fruit", "nowhere.pando"),
        ("scan --pool local --index fruit", "only bench can use one"),
        ("scan --pool udp://host:1 --index fruit", "not built yet"),
        ("scan --pool tcp://host --index fruit", "HOST:PORT"),
        ("scan --pool verbs://host --index fruit", "HOST:PORT"),
        ("scan --pool tcp://host:x --index fruit", "host:port"),
        ("status", "--pool"),
        ("compute-server --memory host,other:7100 --index fruit", "HOST:PORT"),
        ("compute-server --memory nowhere.pando --index fruit", "nowhere.pando: "),
        ("memory-server --size 1GiB --listen nowhere", "nowhere: cannot be listened at"),
        ("memory-server --size 1GiB --register http://oak:2379/trees", "it does not begin with etcd://"),
        ("memory-server --size 1GiB --register etcd://oak/trees", "`oak` is not HOST:PORT"),
        ("up --register etcd://oak:2379/trees", "--replicas 2 makes them"),
        ("up --replicas 2 --register etcd://oak:2379", "is not the address of a register"),
        ("up --memory-servers 0", "one memory server at least"),
        ("scan --pool f.pando --index fruit --cache 2KiB", "at least"),
        ("get --pool f.pando --index sold one", "must be an integer"),
        ("get --pool f.pando --index sold 1,2", "1,2"),
        ("put --pool f.pando --index fixed abc xy", "3 bytes"),
        ("put --pool f.pando --index fixed abcd xyz", "3 bytes"),
        ("put --pool f.pando --index fruit", "required"),
        ("del --pool f.pando --index fruit", "--all"),
        ("del --pool f.pando --index fruit pear --from a", "not both"),
        ("create --pool f.pando --index fruit", "already"),
        ("create --pool f.pando --index new --node-size 1000", "1000"),
        ("create --pool f.pando --index new --columns int,float", "`float`"),
        ("create --pool f.pando --index new --boundaries m,m", "twice"),
        ("drop --pool f.pando --index roots", "there is no index \"roots\""),
        ("load nowhere.txt --pool f.pando --index fruit", "nowhere.txt"),
        ("load table.xlsx --pool f.pando --index fruit", "--format"),
        ("load fruit.txt --pool f.pando --index fruit --format xml", "`xml`"),
        ("load sold.csv --pool f.pando --index sold --key id:int,price", "no column `price`"),
        ("load sold.csv --pool f.pando --index sold", "int"),
        ("load fruit.txt --pool f.pando --index fruit --fill 2", "--fill"),
        ("load fruit.txt --pool f.pando --index fruit --own 7", "7"),
        ("load fruit.txt --pool new.pando --index fruit --pool-size 4KiB", "too small"),
        ("load fruit.txt --pool f.pando --index fruit --threads 0", "--threads"),
    ] {
        refused_with(&place, arguments, part);
    }
    nothing_is_lost(&place);
}

#[test]
fn options_that_cannot_apply_are_refused() {
    let place = place();
    for (arguments, part) in [
        (
            "load fruit.txt --pool f.pando --index fruit --node-size 2KiB",
            "is there already and has nodes of 1.0 KiB",
        ),
        ("load fruit.txt --pool f.pando --index fruit --boundaries=m", "is there already and has others"),
        ("load fruit.txt --pool f.pando --index fruit --fill 0.5", "has entries"),
        ("load fruit.txt --pool f.pando --index new --fill 0.5 --own 0", "--own"),
        ("load fruit.txt --pool f.pando --index new --pool-size 1GiB", "is there already and has 32.0 MiB"),
        ("load fruit.txt --pool f.pando --index new --memory-servers 2", "is there already and has 1"),
        ("create --pool f.pando --index new --pool-size 1GiB", "is there already and has 32.0 MiB"),
        ("create --pool f.pando --index new --memory-servers 3", "is there already and has 1"),
        ("create --pool tcp://127.0.0.1:1 --index new --memory-servers 3", "names 1"),
        ("create --pool tcp://127.0.0.1:1 --index new --pool-size 1GiB", "the memory of its memory servers"),
        (
            "load fruit.txt --pool f.pando --index fruit --delimiter ;",
            "--delimiter cannot be used with a file",
        ),
        ("load fruit.txt --pool f.pando --index fruit --no-header", "of the format words"),
        ("load fruit.txt --pool f.pando --index fruit --key 1", "--key"),
        ("scan --pool f.pando --index fruit --deadline 1us", "not between 1 ms and 1 h"),
        ("put --pool f.pando --index fruit kiwi 4 --deadline 4000s", "not between 1 ms and 1 h"),
        ("stats --pool f.pando --secret-file fruit.txt", "--secret-file says how memory servers elsewhere"),
        ("get --pool f.pando --index fruit pear --verbs port=2", "--verbs says how memory servers elsewhere"),
        ("check --pool tcp://127.0.0.1:1 --verbs port=2", "--verbs says how memory servers elsewhere"),
    ] {
        refused_with(&place, arguments, part);
    }
    // An option that matches the existing object is accepted.
    place.ok(
        "load fruit.txt --pool f.pando --index fruit --node-size 1KiB --pool-size 32MiB --memory-servers 1",
    );
    nothing_is_lost(&place);
}

#[test]
fn a_command_that_is_refused_makes_nothing() {
    let place = place();
    place.write("bad.csv", "id\nx\n");
    place.write("unclosed.csv", "id,what\n1,\"pears\n");
    for (arguments, status) in [
        ("load fruit.txt --threads 99999", 2),
        ("load fruit.txt --cache 1KiB", 2),
        ("load fruit.txt --node-size 1000", 2),
        ("load fruit.txt --own 1", 2),
        ("load fruit.txt --boundaries=m --own 2", 2),
        ("load fruit.txt --deadline 1us", 2),
        ("load nowhere.txt", 2),
        ("load bad.csv --key id:int", 1),
        ("load unclosed.csv", 1),
        ("create --cache 1KiB", 2),
        ("create --node-size 1000", 2),
        ("create --key-size 65 --value-size 1", 2),
        ("create --key-size 4 --value-size 1 --boundaries=toolong", 2),
        ("create --deadline 1us", 2),
        ("put a b", 2),
        ("get a", 2),
    ] {
        place.refused(&format!("{arguments} --pool new.pando --index new"), status);
        place.refused(&format!("{arguments} --pool new/ --index new"), status);
        assert!(!place.path("new.pando").exists() && !place.path("new").exists(), "{arguments}");
        place.refused(&format!("{arguments} --pool f.pando --index new"), status);
        assert!(!place.ok("stats --pool f.pando").contains("new"), "{arguments}");
    }
    let name = "n".repeat(256);
    place.refused(&format!("create --pool new.pando --index {name}"), 2);
    for arguments in [
        "--threads 99999 --keys 1m",
        "--cache 1KiB --keys 1k",
        "--node-size 1000 --keys 1k",
        "--deadline 1us --keys 1k",
        "--fill 3 --keys 1k",
    ] {
        place.refused(&format!("bench --fabric shm --pool new.pando --workload ycsb-a {arguments}"), 2);
    }
    assert!(!place.path("new.pando").exists());
    nothing_is_lost(&place);
}

/// Bytes that do not look like a table, the same each time.
fn junk(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn rejected_rows_are_a_failure_and_nothing_is_loaded() {
    let place = place();
    place.write("junk.csv", junk(1 << 20));
    place.write("some.csv", "id,what\n1,figs\nx,dates\n3,limes\ny,nuts\n");
    for load in ["load junk.csv", "load junk.csv --no-header"] {
        let sentence = place.refused(&format!("{load} --pool f.pando --index junk"), 1);
        assert!(
            sentence.contains("more than 0 rows are rejected") && sentence.contains("line "),
            "{sentence}"
        );
    }
    for more in ["", "--replace", "--max-rejects 1"] {
        let sentence =
            place.refused(&format!("load some.csv --pool f.pando --index sold --key id:int {more}"), 1);
        assert!(
            sentence.contains("line 3: `x` in key column `id`") && sentence.contains("line 5: `y`"),
            "{sentence}"
        );
        assert!(
            sentence.contains("--max-rejects") && sentence.ends_with("0 rows were loaded before\n"),
            "{sentence}"
        );
        assert_eq!(place.ok("scan --pool f.pando --index sold"), "1\tpears\n");
    }
    assert!(!place.ok("stats --pool f.pando").contains("junk"));
    // An earlier batch stays loaded.
    let sentence =
        place.refused("load some.csv --pool f.pando --index batch --key id:int --sort-memory 1", 1);
    assert!(sentence.ends_with("1 rows were loaded before\n"), "{sentence}");
    assert_eq!(place.ok("scan --pool f.pando --index batch"), "1\tfigs\n");
    let loaded = place.run("load some.csv --pool f.pando --index sold --key id:int --max-rejects 2");
    assert_eq!(loaded.status, 0, "{loaded:?}");
    assert_eq!(place.ok("scan --pool f.pando --index sold"), "1\tfigs\n3\tlimes\n");
    nothing_is_lost(&place);
}

#[test]
fn bad_usage_of_bench_has_status_2() {
    let place = place();
    for (arguments, part) in [
        ("bench --workload ycsb-z", "`ycsb-z` is not one of"),
        ("bench --fabric telepathy", "not known; there are `local`, `shm`, `tcp`, `verbs` and `sim`"),
        ("bench --fabric verbs --verbs mtu=9", "mtu=`9` is none of 256, 512, 1024, 2048 and 4096"),
        #[cfg(not(feature = "verbs"))]
        ("bench --fabric verbs --keys 1k", "this was built without RDMA; build it with the feature `verbs`"),
        ("bench --fabric sim --pool f.pando --workload ycsb-a", "for the shm fabric only"),
        ("bench --fabric sim --cluster nowhere.toml", "nowhere.toml"),
        ("bench --fabric sim --cluster sold.csv", "sold.csv: the cluster model cannot be read"),
        (
            "bench --fabric sim --cluster stopped.toml",
            "stopped.toml: the cluster model: network.bytes_per_us",
        ),
        ("bench --cluster fast.toml", "--fabric sim"),
        ("bench --fabric shm --cluster fast.toml", "--fabric sim"),
        ("bench --memory-cores 2", "nothing is offloaded"),
        ("bench --fabric sim --memory-cores 0", "memory_server.cores"),
        ("bench --fabric sim --interval 5", "`5` is not a time"),
        ("bench --fabric sim --interval 5us", "at least 10.00 µs"),
        ("bench --fabric sim --cache 1KiB --keys 1000", "at least"),
        ("bench --fabric sim --node-size 1000 --keys 1000", "1000"),
        ("bench --fabric sim --memory 1001 --keys 1000", "multiple of 8"),
        ("bench --fabric sim --memory 8192TiB --keys 1000", "no room for a memory server"),
        ("bench --fabric sim --leaf-admission 2 --keys 1000", "not between 0 and 1"),
        ("bench --fabric sim --threads 0", "number of threads"),
        ("bench --system elf", "the system `elf` is not known; there are dex,"),
        ("bench --system smart --with combine", "`combine` is not known; there are lock-free-nodes,"),
        ("bench --partitioned --system local-b-tree --fabric sim", "nothing to divide"),
        ("bench --dist pareto", "`pareto`"),
        ("bench --keys 0", "number of keys"),
        ("bench --cache 1KiB --keys 1000", "at least"),
        ("bench --slots 65", "65"),
        ("bench --ops 5 --seconds 1", "--seconds"),
        ("bench --workload ycsb-a --multi-get 8", "only look up"),
        ("bench --fabric shm --pool f.pando --keys 1000 --workload ycsb-a", "f.pando"),
    ] {
        refused_with(&place, arguments, part);
    }
    nothing_is_lost(&place);
}

#[test]
fn a_daemon_says_what_is_wrong_with_the_choice_of_its_events() {
    let daemon = words("memory-server --listen 127.0.0.1:0 --size 16MiB");
    let ran = ran(Place::new().command(daemon).env("RUST_LOG", "pando=loud").output().expect("it runs"));
    assert_eq!((ran.status, &*ran.stdout, ran.stderr.lines().count()), (2, "", 1), "{ran:?}");
    assert!(ran.stderr.contains("RUST_LOG is \"pando=loud\""), "{ran:?}");
}

fn refused_with(place: &Place, arguments: &str, part: &str) {
    let sentence = place.refused(arguments, 2);
    assert!(sentence.contains(part), "pando {arguments}: `{part}` is not in `{sentence}`");
}

#[cfg(not(feature = "parquet"))]
#[test]
fn a_program_without_parquet_says_so() {
    let place = place();
    place.write("table.parquet", "PAR1");
    let sentence = place.refused("load table.parquet --pool f.pando --index table --key a", 2);
    assert!(sentence.contains("without support for Parquet"), "{sentence}");
    nothing_is_lost(&place);
}

fn nothing_is_lost(place: &Place) {
    assert_eq!(place.ok("scan --pool f.pando --index fruit"), "apple\t3\npear\t2\nplum\t1\n");
    place.ok("check --pool f.pando");
}

#[test]
fn a_cache_just_above_the_minimum_works() {
    let place = place();
    place.write("words.txt", crate::common::word_list(5_000));
    let sentence = place.refused("scan --pool f.pando --index fruit --cache 1KiB", 2);
    let digits: Vec<u64> =
        sentence.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
    let minimum = digits.into_iter().max().expect("the sentence names the minimum");
    place.ok(&format!("load words.txt --pool f.pando --index fruit --cache {minimum}"));
    let scanned = place.ok(&format!("scan --pool f.pando --index fruit --cache {minimum} --keys-only"));
    assert!(scanned.lines().is_sorted() && scanned.lines().count() > 4_000);
    place.ok("check --pool f.pando");
}

#[test]
fn a_damaged_pool_is_refused_with_status_1_or_2_and_one_sentence() {
    let place = place();
    let whole = std::fs::read(place.path("f.pando")).expect("readable");
    place.write("cut.pando", &whole[..whole.len() / 2]);
    assert!(place.refused("scan --pool cut.pando --index fruit", 1).contains("cut short"));
    place.write("odd.pando", &whole[..whole.len() / 2 + 100]);
    let odd = place.run("scan --pool odd.pando --index fruit");
    assert!(odd.status > 0 && odd.stderr.lines().count() == 1 && odd.stderr.contains("cut short"), "{odd:?}");
    place.write("text.pando", "this is no pool\n".repeat(4096));
    let text = place.run("scan --pool text.pando --index fruit");
    assert!(text.status > 0 && text.stderr.lines().count() == 1, "{text:?}");
    nothing_is_lost(&place);
}

#[test]
fn a_corrupt_node_is_an_error_that_names_its_address() {
    let place = place();
    let mut file = OpenOptions::new().read(true).write(true).open(place.path("f.pando")).expect("it opens");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("readable");
    // The heads of keys are integers, so `pear` is stored backwards. Its node's header is at most a node's
    // size before.
    let places: Vec<usize> =
        bytes.windows(4).enumerate().filter(|(_, four)| four == b"raep").map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        file.seek(SeekFrom::Start(at.saturating_sub(1024) as u64)).expect("within the file");
        file.write_all(&[0xa5; 1024]).expect("writable");
    }
    drop(file);
    let scanned = place.run("scan --pool f.pando --index fruit");
    assert_eq!(scanned.status, 1, "{scanned:?}");
    assert_eq!(scanned.stderr.lines().count(), 1, "{scanned:?}");
    let checked = place.run("check --pool f.pando");
    assert_eq!(checked.status, 1, "{checked:?}");
}

#[test]
fn a_pool_without_room_says_so_and_can_be_used_on() {
    let place = place();
    place.write("words.txt", crate::common::word_list(300_000));
    let full = place.run("load words.txt --pool small.pando --index words --pool-size 5MiB");
    assert_eq!(full.status, 1, "{full:?}");
    assert!(full.stderr.contains("no room") && full.stderr.contains("rows were loaded before"), "{full:?}");
    place.ok("check --pool small.pando");
    place.ok("load fruit.txt --pool small.pando --index words");
    assert!(place.ok("scan --pool small.pando --index words --keys-only").contains("pear\n"));
    nothing_is_lost(&place);
}

#[test]
fn a_pool_that_was_not_closed_can_be_looked_at() {
    let place = place();
    place.write("words.txt", crate::common::word_list(1_000));
    let fifo = place.path("slow.txt");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let child = place.start("load slow.txt --pool f.pando --index slow --sort-memory 1");
    let mut feed = OpenOptions::new().write(true).open(&fifo).expect("somebody reads");
    // The index is created with the first row; then the process waits for more. Before the index has a root, the
    // process leaves nothing behind that could be unclean.
    writeln!(feed, "word").expect("somebody reads");
    let has_root = |stats: &str| stats.contains("slow") && !stats.contains("not to be made out");
    while !has_root(&place.ok("stats --pool f.pando")) {
        std::thread::yield_now();
    }
    drop(child);
    drop(feed);
    assert!(place.refused("scan --pool f.pando --index fruit", 1).contains("not closed cleanly"));
    assert_eq!(place.ok("scan --pool f.pando --index fruit --unclean"), "apple\t3\npear\t2\nplum\t1\n");
}
