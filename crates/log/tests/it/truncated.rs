//! What a checkpoint leaves in the log is there before it drops the rest.
//!
//! A node counts as written if a record that stays has its image, for example when other compute servers share it from
//! then on.

use pando_fabric::Fabric;
use pando_log::{Change, Contents, Entry, Image, Log, Options, Record, Space};
use pando_rt::block_on;

use crate::faulty::{block, blocks, fabric};

/// Numbers of the records that are left if the process dies after a checkpoint that leaves the last record, which was just
/// appended.
fn left() -> Vec<u64> {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let space = block_on(ep, Log::create(ep, 7, blocks(ep, 1, 4, 4096))).expect("a log");
    let opened = async { Log::resume(ep, Contents::read(ep, space).await?, Options::default()).await };
    let log = block_on(ep, opened).expect("it opens");
    let append = |record: &Record<'_>| {
        log.append(log.try_reserve(0, record.stored_len()).expect("an empty log has room"), record)
    };
    let page = block(20);
    let changed = append(&Record::Entry(Entry { page, key: b"key", change: Change::Put(b"value") }));
    block_on(ep, log.durable(ep, 0, changed)).expect("memory");
    append(&Record::Pages { images: vec![Image { page, bytes: &[1; 64] }], freed: Vec::new() });
    block_on(ep, log.begin_checkpoint().expect("the only one").except(1).end(ep)).expect("memory");
    let read = async { Contents::read(ep, Space::read(ep, block(1)).await?).await };
    block_on(ep, read).expect("it can be read").records().map(|record| record.expect("whole").0).collect()
}

#[test]
fn the_record_that_stays_is_in_the_log() {
    assert_eq!(left(), [2]);
}

#[cfg(feature = "defects")]
#[test]
fn else_nothing_is_left() {
    let defect = pando_log::defect::OfMoves::TruncatedBeforeLog;
    assert_ne!(pando_fabric::defect::with_defect(Some(defect), left), [2]);
}
