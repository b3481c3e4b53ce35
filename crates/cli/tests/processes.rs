//! Several processes, and processes that are stopped.

mod common;

use std::process::Command;

use common::{Place, ran, word_list};

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
        let ended = ran(child.wait_with_output().expect("it ends"));
        assert_eq!(ended.status, 0, "process {own}: {ended:?}");
        assert!(ended.stdout.contains("left to the owners"), "process {own}: {ended:?}");
    }
    place.ok("check --pool p.pando");
    assert_eq!(place.ok("scan --pool p.pando --index words --keys-only"), sorted);
    assert!(place.index_stats("p.pando")["boundaries"][0] == middle, "looking does not move boundaries");
}

#[test]
fn an_interrupted_load_leaves_a_clean_pool() {
    let place = Place::new();
    let fifo = place.path("endless.txt");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("there is mkfifo").success());
    let child = place.start("load endless.txt --pool p.pando --index words --sort-memory 64KiB");
    let process = child.id().to_string();
    let feeder = std::thread::spawn(move || {
        use std::io::Write;
        let mut fifo = std::fs::OpenOptions::new().write(true).open(fifo).expect("somebody reads");
        // Until the reader has gone.
        (0u64..).take_while(|i| writeln!(fifo, "word{i}").is_ok()).count()
    });
    // By then the program listens for signals.
    while !place.path("p.pando").exists() {
        std::thread::yield_now();
    }
    assert!(Command::new("kill").args(["-INT", &process]).status().expect("there is kill").success());
    let ended = ran(child.wait_with_output().expect("it ends"));
    feeder.join().expect("no panic");
    assert_eq!(ended.status, 1, "{ended:?}");
    assert!(
        ended.stderr.contains("interrupted") && ended.stderr.contains("rows were loaded before"),
        "{ended:?}"
    );
    place.ok("check --pool p.pando");
}
