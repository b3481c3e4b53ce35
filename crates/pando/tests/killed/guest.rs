//! The process in a guest whose power is cut (`ci/power.sh`).
//!
//! Each thread makes a sequence of changes, one after the other, which its number and that of the change
//! determine. So what must be there is the state after some number of changes of each thread: at least as many
//! as were answered, or read by others. The process checks that, and goes on from there until the power is cut.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use pando::{Cluster, Config, Create, Durability, Error, Index, IndexOptions};

use crate::{THREADS, check_loaded, load, next};

/// File for the lines `THREAD CHANGE`, for each change that was answered or read.
const ANSWERS: &str = "PANDO_TEST_ANSWERS";
/// The last of these of each thread, before the power was cut: `1,2,3`.
const ANSWERED: &str = "PANDO_TEST_ANSWERED";
/// Keys of a thread; a prime, so that each gets all kinds of changes.
const KEYS: u64 = 4_999;

fn key(thread: u64, change: u64) -> [u8; 16] {
    let number = change * 7_919 % KEYS;
    let mut key = [0; 16];
    // Of all threads, and in no order.
    key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key[8..].copy_from_slice(&thread.to_be_bytes());
    key
}

fn is_delete(change: u64) -> bool {
    change.is_multiple_of(5)
}

/// Value that a change gives to its key: some are long enough to have blocks of their own.
fn value(change: u64) -> Vec<u8> {
    let len = if change.is_multiple_of(11) { 700 + change % 3_000 } else { 8 + change % 40 };
    change.to_le_bytes().iter().copied().cycle().take(len as usize).collect()
}

fn change_of(value_read: &[u8]) -> u64 {
    let change = u64::from_le_bytes(*value_read.first_chunk().expect("a number"));
    assert_eq!(value_read, value(change), "a value of two changes");
    change
}

/// The entries of a thread after so many changes.
fn state(thread: u64, changes: u64) -> Vec<([u8; 16], u64)> {
    // So many changes in a row are of different keys.
    let last = changes.saturating_sub(KEYS) + 1..=changes;
    let mut entries: Vec<_> = last.filter(|&change| !is_delete(change)).collect();
    entries.sort_by_key(|&change| key(thread, change));
    entries.into_iter().map(|change| (key(thread, change), change)).collect()
}

/// Checks the entries of each thread, of which so many changes were answered; returns how many there are.
fn check(index: &Index, answered: &[u64]) -> Vec<u64> {
    let session = index.session().expect("a session");
    let mut found = vec![Vec::new(); answered.len()];
    for entry in session.range(&[][..]..) {
        let (key, value) = entry.expect("a scan");
        let thread = u64::from_be_bytes(key[8..].try_into().expect("a thread")) as usize;
        found[thread].push((<[u8; 16]>::try_from(&key[..]).expect("a key"), change_of(&value)));
    }
    let threads = found.iter().zip(answered).enumerate();
    let made = threads.map(|(thread, (found, &answered))| {
        let put = found.iter().map(|&(_, change)| change).max().unwrap_or(0);
        // A delete leaves nothing that tells of it.
        let mut possible = [put, put + 1].into_iter().filter(|&last| last == put || is_delete(last));
        let made = possible.find(|&made| made >= answered && *found == state(thread as u64, made));
        println!("guest: {thread} has made {made:?} changes, {answered} were answered");
        made.unwrap_or_else(|| {
            panic!("thread {thread} has made {put} changes of {answered}, or not all of them")
        })
    });
    made.collect()
}

pub fn run(directory: &Path, round: u64) -> ExitCode {
    let answered = std::env::var(ANSWERED).expect("what was answered");
    let answered: Vec<u64> = answered.split(',').map(|number| number.parse().expect("a number")).collect();
    assert_eq!(answered.len() as u64, THREADS);
    let config = Config::at(directory.join("pool")).memory(256 << 20).cache(512 << 10).huge_pages(false);
    let config = config.create(Create::IfMissing).durability(Durability::Immediate);
    let cluster = Cluster::open(config).expect("it opens");
    if let Some(recovery) = cluster.recovery() {
        println!("guest: {round}: {recovery}");
    }
    let index = match cluster.open_index("n") {
        Err(Error::UnknownIndex { .. } | Error::BadIndex { .. }) => {
            assert!(answered.iter().all(|&answered| answered == 0), "the index is gone");
            cluster.create_index("n", &IndexOptions::bytes())
        }
        opened => opened,
    }
    .expect("it opens");
    // Drops it, too, if it was never finished.
    check_loaded(&cluster, round);
    let report = cluster.check().expect("at rest");
    assert!(report.is_clean(), "{:?}", report.violations);
    let made = check(&index, &answered);
    if round > 0 {
        work(&cluster, &index, &made, round);
    }
    drop(index);
    cluster.close().expect("it closes");
    ExitCode::SUCCESS
}

fn work(cluster: &Cluster, index: &Index, made: &[u64], round: u64) {
    let answers =
        File::options().write(true).open(std::env::var(ANSWERS).expect("a file")).expect("it opens");
    println!("guest: works");
    thread::scope(|scope| {
        for (thread, &made) in (0..).zip(made) {
            let answers = &answers;
            scope.spawn(move || change(index, thread, made, answers));
        }
        scope.spawn(|| read(index, round, &answers));
        for number in 1.. {
            load(cluster, round << 20 | number);
            thread::sleep(Duration::from_millis(200));
        }
    });
}

fn change(index: &Index, thread: u64, made: u64, answers: &File) {
    let session = index.session().expect("a session");
    for change in made + 1.. {
        let key = key(thread, change);
        match is_delete(change) {
            true => session.remove(&key).map(drop),
            false => session.put(&key, &value(change)).map(drop),
        }
        .expect("a change");
        tell(answers, thread, change);
    }
}

fn read(index: &Index, round: u64, answers: &File) {
    let session = index.session().expect("a session");
    let mut random = round;
    loop {
        random = next(random);
        let thread = (random >> 32) % THREADS;
        if let Some(value) = session.get(&key(thread, random % KEYS)).expect("a lookup") {
            tell(answers, thread, change_of(&value));
        }
    }
}

/// In one write, so that lines stay whole.
fn tell(mut answers: &File, thread: u64, change: u64) {
    answers.write_all(format!("{thread} {change}\n").as_bytes()).expect("it is written");
}
