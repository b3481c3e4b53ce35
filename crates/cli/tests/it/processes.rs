//! Concurrent processes, and stopped or killed ones.

use std::io::Read;
use std::process::Command;

use crate::common::{Place, word_list};

#[test]
fn two_processes_each_own_half_of_the_keys_and_nothing_is_lost() {
    let place = Place::new();
    place.write("words.txt", word_list(60_000));
    let sorted = place.sorted("words.txt");
    let middle = sorted.lines().nth(sorted.lines().count() / 2).expect("there is one");
    place.ok(&format!("create --pool p.pando --index words --node-size 512 --boundaries={middle}"));
    let load =
        |own| place.start(&format!("load words.txt --pool p.pando --index words --own {own} --cache 64KiB"));
    let children = [load(0), load(1)];
    for (own, child) in children.into_iter().enumerate() {
        let ended = child.end();
        assert_eq!(ended.status, 0, "process {own}: {ended:?}");
        assert!(ended.stdout.contains("left to the owners"), "process {own}: {ended:?}");
    }
    place.ok("check --pool p.pando");
    assert_eq!(place.ok("scan --pool p.pando --index words --keys-only"), sorted);
    assert!(place.index_stats("p.pando")["boundaries"][0] == middle, "looking does not move boundaries");
}

#[test]
fn two_loads_that_make_one_pool_and_one_index_at_once_share_them() {
    let place = Place::new();
    place.write("words.txt", word_list(2_000));
    let sorted = place.sorted("words.txt");
    let middle = sorted.lines().nth(sorted.lines().count() / 2).expect("there is one");
    for round in 0..20 {
        let load = |own| {
            place.start(&format!(
                "load words.txt --pool {round}.pando --index words --boundaries={middle} --own {own}"
            ))
        };
        for child in [load(0), load(1)] {
            let ended = child.end();
            assert_eq!(ended.status, 0, "round {round}: {ended:?}");
        }
        place.ok(&format!("check --pool {round}.pando"));
        assert_eq!(place.ok(&format!("scan --pool {round}.pando --index words --keys-only")), sorted);
    }
}

#[test]
fn readers_exclude_nobody_and_leave_nothing_behind() {
    let place = Place::new();
    place.write("words.txt", word_list(60_000));
    place.ok("load words.txt --pool p.pando --index words");
    let sorted = place.sorted("words.txt");
    let word = sorted.lines().next().expect("there are some");
    let get = format!("get --pool p.pando --index words --keys-only {word}");
    for signal in ["-KILL", "-HUP", "-INT"] {
        let mut scan = place.start("scan --pool p.pando --index words");
        // The output exceeds the pipe, so the scan is in progress.
        let mut output = scan.stdout.take().expect("piped");
        output.read_exact(&mut [0]).expect("it prints");
        assert_eq!(place.ok(&get), format!("{word}\n"));
        assert_eq!(place.ok("scan --pool p.pando --index words --keys-only"), sorted);
        place.ok("check --pool p.pando");
        assert!(place.ok("status --pool p.pando").contains("attached: nobody"));
        scan.signal(signal);
        output.read_to_end(&mut Vec::new()).expect("it ends");
        if signal == "-KILL" {
            drop(scan);
        } else {
            assert_eq!(scan.end().status, 1);
        }
        assert_eq!(place.ok("scan --pool p.pando --index words --keys-only"), sorted);
    }
    // While a process writes, the error names it.
    let mut command = place.command("put --pool p.pando --index words --stdin".split(' '));
    let mut put = command.stdin(std::process::Stdio::piped()).spawn().expect("the program runs");
    while !place.ok("status --pool p.pando").contains(&format!("0: process {}", put.id())) {
        std::thread::yield_now();
    }
    let sentence = place.refused(&get, 1);
    assert!(sentence.contains(&format!("is open for writing by process {}", put.id())), "{sentence}");
    drop(put.stdin.take());
    assert!(put.wait().expect("it ends").success());
    place.ok(&get);
}

#[test]
fn an_interrupted_load_leaves_a_clean_pool() {
    for signal in ["-INT", "-TERM", "-HUP"] {
        load_interrupted_by(signal);
    }
}

fn load_interrupted_by(signal: &str) {
    let place = Place::new();
    let fifo = place.path("endless.txt");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let child = place.start("load endless.txt --pool p.pando --index words --sort-memory 64KiB");
    let feeder = std::thread::spawn(move || {
        use std::io::Write;
        let mut fifo = std::fs::OpenOptions::new().write(true).open(fifo).expect("somebody reads");
        // Until the reader is gone.
        (0u64..).take_while(|i| writeln!(fifo, "word{i}").is_ok()).count()
    });
    // The program handles signals from this point on.
    while !place.path("p.pando").exists() {
        std::thread::yield_now();
    }
    child.signal(signal);
    let ended = child.end();
    feeder.join().expect("no panic");
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(
        ended.stderr.contains("interrupted") && ended.stderr.contains("rows were loaded before"),
        "{ended:?}"
    );
    place.ok("check --pool p.pando");
}

#[test]
fn shapes_are_known_while_others_are_attached() {
    let place = Place::new();
    place.write("words.txt", word_list(20_000));
    place.ok("load words.txt --pool p.pando --index words --node-size 512 --memory-servers 2");
    let alone = place.index_stats("p.pando");
    assert_eq!(alone["approximate"], false);
    // Another process is attached and waits for rows.
    let fifo = place.path("slow.txt");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let child = place.start("load slow.txt --pool p.pando --index slow --sort-memory 1");
    let mut feed = std::fs::OpenOptions::new().write(true).open(&fifo).expect("somebody reads");
    std::io::Write::write_all(&mut feed, b"word\n").expect("somebody reads");
    let stats = loop {
        let stats = place.stats("p.pando");
        match stats["indexes"].as_array().expect("a list").len() {
            2 if stats["indexes"][1]["approximate"] == true => break stats,
            _ => std::thread::yield_now(),
        }
    };
    // No cache holds entries of it. The leaves were summed in another order.
    let mut beside = stats["indexes"][1].clone();
    beside["approximate"] = false.into();
    let fullness = [&beside, &alone].map(|stats| stats["leaf_fullness"].as_f64().expect("a share"));
    assert!((fullness[0] - fullness[1]).abs() < 1e-9, "{fullness:?}");
    beside["leaf_fullness"] = alone["leaf_fullness"].clone();
    assert_eq!(beside, alone);
    let text = place.ok("stats --pool p.pando");
    assert!(text.contains("as last written back, while other processes are attached"), "{text}");
    drop(feed);
    assert_eq!(child.end().status, 0);
    place.ok("check --pool p.pando");
}

#[test]
fn looking_at_an_index_that_is_being_changed_never_fails() {
    let place = Place::new();
    place.write("words.txt", word_list(60_000));
    place.ok("create --pool p.pando --index words --node-size 512");
    let load = "load words.txt --pool p.pando --index words --cache 64KiB --sort-memory 64KiB";
    let mut approximate = 0;
    // The first round loads into an empty index; the others change every entry.
    for _ in 0..3 {
        let mut child = place.start(load);
        while child.try_wait().expect("it is ours").is_none() {
            let stats = place.index_stats("p.pando");
            let entries = stats["entries"].as_u64().expect("a shape");
            assert!(entries <= 120_000, "{stats}");
            approximate += u32::from(stats["approximate"] == true);
        }
        assert_eq!(child.end().status, 0);
    }
    assert!(approximate > 0, "no look fell into a load");
    place.ok("check --pool p.pando");
}
