//! The group commit without a fabric.
//!
//! Single steps check the bounds of lanes and the space of rings. Under shuttle, threads append, write and wait
//! against a memory that tells which records are in the log.

use pando_fabric::{GlobalAddr, MemoryServerId};

use super::*;
use crate::record::{Change, Entry};
use crate::space::Blocks;

const LANES: usize = 2;

fn space() -> Space {
    space_on(MemoryServerId(0))
}

fn space_on(server: MemoryServerId) -> Space {
    let block = |i: usize| GlobalAddr::new(server, i as u64 * 4096);
    let lanes = (0..LANES).map(|lane| vec![block(1 + 2 * lane), block(2 + 2 * lane)]).collect();
    let lists = vec![block(8)];
    let blocks = Blocks { root: block(0), lists, scratch: block(9), lanes, segment_bytes: 1024 };
    Space::new(5, 1, blocks).expect("a log")
}

fn put(commit: &Commit, lane: usize) -> u64 {
    let page = GlobalAddr::new(MemoryServerId(0), 64);
    let record = Record::Entry(Entry { page, key: b"key", change: Change::Put(b"value") });
    let reservation = commit.reserve(lane, record.stored_len(), Share::All).expect("there is room");
    commit.append(reservation, &record)
}

/// Appends a record that `write` may write at once.
fn put_by(commit: &Commit, lane: usize, write: impl FnOnce(GlobalAddr, &[u8]) -> bool) -> u64 {
    let page = GlobalAddr::new(MemoryServerId(0), 64);
    let record = Record::Entry(Entry { page, key: b"key", change: Change::Put(b"value") });
    commit.try_begin(lane, record.stored_len()).expect("there is room").append_by(&record, write)
}

#[cfg(not(shuttle))]
#[test]
fn a_record_is_written_at_once_if_nothing_of_its_lane_waits() {
    let commit = Commit::new(&space(), 3, 0, true);
    let at_once = |lane| {
        let mut place = None;
        let gsn = put_by(&commit, lane, |at, bytes| {
            place = Some((at, bytes.len() as u64));
            true
        });
        (gsn, place)
    };
    let (_, Some((first, len))) = at_once(0) else { panic!("nothing waits") };
    let (second, Some((at, _))) = at_once(0) else { panic!("nothing waits") };
    assert!(commit.is_logged(second) && at == first.add(len) && commit.take(0).is_none());
    // It could not be written: it waits, and so do others behind it.
    let waits = put_by(&commit, 0, |_, _| false);
    let (behind, None) = at_once(0) else { panic!("a record waits") };
    let (other, Some(_)) = at_once(1) else { panic!("nothing waits in this lane") };
    assert!(!commit.is_logged(waits) && !commit.is_logged(other));
    let batch = commit.take(0).expect("a batch");
    assert!(batch.at == at.add(len) && at_once(0).1.is_none());
    commit.end(0, batch.seq, true);
    assert!(commit.is_logged(behind) && commit.is_logged(other) && !commit.is_logged(other + 1));
    let spans: Vec<_> = commit.unpersisted().spans.iter().map(|&(at, _)| at).collect();
    assert!(spans.len() == 2 && spans[0] == first, "what was written side by side is persisted together");
    commit.freeze(true);
    assert!(at_once(1).1.is_none(), "the lane is about to be elsewhere");
}

#[cfg(not(shuttle))]
#[test]
fn what_is_not_appended_takes_no_room() {
    let commit = Commit::new(&space(), 3, 0, false);
    let used = commit.used();
    drop(commit.try_begin(0, 40));
    assert_eq!(commit.used(), used);
    // Half of the ring is for what must not wait.
    while commit.try_begin(0, 40).is_some() {
        put_by(&commit, 0, |_, _| true);
    }
    assert!(commit.reserve(0, 40, Share::Most).is_ok_and(|room| room.is_late));
}

#[cfg(not(shuttle))]
#[test]
fn a_record_is_logged_once_all_before_it_are() {
    let commit = Commit::new(&space(), 3, 10, false);
    assert!(commit.is_logged(10));
    let (first, second) = (put(&commit, 0), put(&commit, 1));
    assert_eq!((first, second), (11, 12));
    let batch = commit.take(1).expect("a batch");
    commit.end(1, batch.seq, true);
    assert!(!commit.is_logged(first) && !commit.is_logged(second));
    let batch = commit.take(0).expect("a batch");
    commit.end(0, batch.seq, false);
    assert!(!commit.is_logged(first));
    let again = commit.take(0).expect("the batch whose WRITE failed");
    assert_eq!((again.seq, again.at, &again.bytes), (batch.seq, batch.at, &batch.bytes));
    commit.end(0, again.seq, true);
    assert!(commit.is_logged(second));
}

#[cfg(not(shuttle))]
#[test]
fn two_batches_are_outstanding_and_end_in_order() {
    let commit = Commit::new(&space(), 3, 0, false);
    let one = (put(&commit, 0), commit.take(0).expect("a batch")).1.seq;
    let two = (put(&commit, 0), commit.take(0).expect("a second")).1.seq;
    put(&commit, 0);
    assert!(commit.take(0).is_none(), "no third");
    commit.end(0, two, true);
    assert!(!commit.is_logged(1) && commit.is_behind(0, 1));
    commit.end(0, one, true);
    assert!(commit.is_logged(2) && !commit.is_logged(3) && commit.take(0).is_some());
}

#[cfg(not(shuttle))]
#[test]
fn a_full_ring_takes_no_record_before_its_space_is_free() {
    let commit = Commit::new(&space(), 3, 0, false);
    let mut last = 0;
    let crowded = loop {
        match commit.reserve(0, 40, Share::All) {
            Ok(reservation) => drop(reservation),
            Err(crowded) => break crowded,
        }
        last = put(&commit, 0);
        let batch = commit.take(0).expect("a batch");
        commit.end(0, batch.seq, true);
    };
    assert_eq!(crowded, Crowded::Ring);
    let head = commit.truncate(0, last + 1);
    assert_eq!(
        commit.reserve(0, 40, Share::All).err(),
        Some(Crowded::Ring),
        "the control block still has the old head"
    );
    commit.free(0, head);
    assert!(commit.reserve(0, 40, Share::All).is_ok());
    assert_eq!(commit.reserve(0, 4000, Share::All).err(), Some(Crowded::TooLarge { max: 1024 - 128 - 32 }));
}

/// Threads that append, write and wait, against a memory that tells which records are in the log.
#[cfg(shuttle)]
mod shuttle_commit {
    use std::collections::BTreeMap;

    use shuttle::thread;

    use super::*;

    /// Numbers of the records at the address of each batch.
    type Memory = Mutex<BTreeMap<GlobalAddr, Vec<u64>>>;

    /// Writes the next batch of a lane, or fails to.
    fn post(commit: &Commit, memory: &Memory, lane: usize, fails: bool) -> bool {
        let Some(batch) = commit.take(lane) else { return false };
        thread::yield_now();
        if !fails {
            let mut rest = &batch.bytes[batch::HEADER..];
            let mut records = Vec::new();
            while let Some(record) = crate::record::split_record(&mut rest) {
                records.push(record.gsn);
            }
            lock(memory).insert(batch.at, records);
        }
        commit.end(lane, batch.seq, !fails);
        true
    }

    fn has(memory: &Memory, gsn: u64, server: MemoryServerId) -> bool {
        lock(memory).iter().any(|(at, records)| at.server() == server && records.contains(&gsn))
    }

    /// Appends a record and writes it at once.
    fn put_now(commit: &Commit, memory: &Memory, lane: usize) -> u64 {
        put_by(commit, lane, |at, bytes| {
            thread::yield_now();
            let record = crate::record::split_record(&mut &bytes[batch::HEADER..]).expect("a record");
            lock(memory).insert(at, vec![record.gsn]);
            true
        })
    }

    /// Moves the lanes to another memory server.
    fn move_lanes(commit: &Commit, memory: &Memory) {
        commit.freeze(true);
        for lane in 0..LANES {
            while commit.is_in_flight(lane) {
                post(commit, memory, lane, false);
                thread::yield_now();
            }
        }
        let batches = lock(memory).clone();
        thread::yield_now();
        for (at, records) in batches {
            lock(memory).insert(GlobalAddr::new(MemoryServerId(1), at.offset()), records);
        }
        commit.move_to(&space_on(MemoryServerId(1)));
        commit.freeze(false);
    }

    fn run() {
        let shared = Arc::new((Commit::new(&space(), 3, 0, false), Memory::default()));
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let (commit, memory) = &*shared;
                    for round in 0..2 {
                        let mine = match round {
                            0 => put_now(commit, memory, number % LANES),
                            _ => put(commit, number % LANES),
                        };
                        let mut fails = number == 0 && round == 1;
                        while !commit.is_logged(mine) {
                            for lane in 0..LANES {
                                if commit.is_behind(lane, mine) && post(commit, memory, lane, fails) {
                                    fails = false;
                                }
                            }
                            thread::yield_now();
                        }
                        let is_there = |gsn| (0..2).any(|server| has(memory, gsn, MemoryServerId(server)));
                        assert!((1..=mine).all(is_there), "{mine} is not all there");
                    }
                })
            })
            .collect();
        move_lanes(&shared.0, &shared.1);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert!((1..=6).all(|gsn| has(&shared.1, gsn, MemoryServerId(1))), "a record was left behind");
    }

    #[test]
    fn what_is_logged_is_in_the_log_under_any_schedule() {
        let text = std::env::var("SHUTTLE_ITERATIONS").ok();
        let iterations = text.and_then(|text| text.parse().ok()).unwrap_or(1000);
        shuttle::check_random(run, iterations);
        shuttle::check_pct(run, iterations, 3);
    }
}
