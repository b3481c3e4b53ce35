//! Several threads append and wait, with several lanes or with one that they share, while another one reads the log.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use pando_fabric::{Endpoint, Fabric};
use pando_log::{Change, Contents, Entry, Log, Options, Record, Share, Space};
use pando_rt::block_on;

use crate::faulty::{block, blocks, fabric};

const THREADS: u64 = 4;
const RECORDS: u64 = 300;

fn run(lanes: usize) {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let space = block_on(ep, Log::create(ep, 7, blocks(ep, lanes, 32 / lanes, 4096))).expect("a log");
    let opened = async { Log::resume(ep, Contents::read(ep, space).await?, Options::default()).await };
    let log = &block_on(ep, opened).expect("it opens");
    // Each thread publishes the last of its numbers that is durable.
    let durable: &Vec<AtomicU64> = &(0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let fabric = &fabric;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let ep = &fabric.endpoint(thread + 2).expect("an endpoint");
                for i in 0..RECORDS {
                    let (key, value) = (thread.to_le_bytes(), i.to_le_bytes());
                    let record =
                        Record::Entry(Entry { page: block(200), key: &key, change: Change::Put(&value) });
                    let lane = thread as usize % lanes;
                    let reserved = block_on(ep, log.reserve(ep, lane, record.stored_len(), Share::All));
                    let room = reserved.expect("it is written").expect("room");
                    let gsn = match ep.random() % 4 {
                        0 => log.append(room, &record),
                        _ => log.begin(room).append(ep, &record),
                    };
                    block_on(ep, log.durable(ep, lane, gsn)).expect("it is written");
                    durable[thread as usize].store(gsn, SeqCst);
                }
            });
        }
        loop {
            let answered = durable.iter().map(|gsn| gsn.load(SeqCst)).max().expect("threads");
            let read = async { Contents::read(ep, Space::read(ep, block(1)).await?).await };
            let contents = block_on(ep, read).expect("it can be read");
            let found: Vec<u64> = contents.records().map(|record| record.expect("whole").0).collect();
            assert!(found.len() as u64 >= answered, "{} records, but {answered} was answered", found.len());
            assert!(found.iter().zip(1..).all(|(gsn, wanted)| *gsn == wanted));
            if answered == THREADS * RECORDS {
                break;
            }
        }
    });
}

#[test]
fn threads_with_lanes_of_their_own_lose_nothing() {
    run(4);
}

#[test]
fn threads_that_share_a_lane_lose_nothing() {
    run(1);
}
