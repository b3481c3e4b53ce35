//! Several operations in flight on one thread, in three ways: many lookups by one call, a batch of arbitrary
//! operations, and slots that run the caller's futures.
//!
//! `cargo run -p pando --example in_flight`

use pando::{Answers, Cluster, Config, IndexOptions};

const SLOTS: usize = 16;
const KEYS: u64 = 4_000;

fn main() -> pando::Result<()> {
    // A cache that holds a small part of the index: most operations have to wait for memory.
    let config = Config::embedded().memory(64 << 20).cache(64 << 10);
    let cluster = Cluster::open(config)?;
    let index = cluster.create_index("accounts", &IndexOptions::integers())?;
    let session = index.integers()?;

    // Slots: while one waits, the others run. Each slot has every 16th key.
    let slots = session.in_flight(SLOTS, |slot, session| async move {
        for account in (u64::from(slot)..KEYS).step_by(SLOTS) {
            session.insert(account, 100).await?;
            // The operations of one slot are executed in order.
            let balance = session.get(account).await?.unwrap_or(0);
            session.update(account, balance + account).await?;
        }
        Ok::<_, pando::Error>(())
    })?;
    slots.into_iter().collect::<pando::Result<()>>()?;

    // A batch: operations on one key stay in order, and each has an answer of its own.
    let mut batch = session.batch();
    batch.get(7).remove(7).get(7).compare_and_swap(8, Some(108), Some(0)).put(9, 1);
    for answer in batch.run() {
        println!("{:?}", answer?);
    }

    // Lookups only: the fastest way, which does not copy values.
    let keys: Vec<_> = (0..10_u64).map(u64::to_be_bytes).collect();
    let mut answers = Answers::default();
    session.bytes().multi_get(&keys, &mut answers)?;
    let present = answers.iter().flatten().count();
    println!("{present} of {} accounts, {} in all", answers.len(), session.iter().count());
    Ok(())
}
