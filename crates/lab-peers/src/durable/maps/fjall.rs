//! fjall: a log-structured merge tree with a journal.
//!
//! An update alone is an insert, or a batch of one if it is to be on the disk, since inserts have no persist mode. With
//! [`Promise::Group`], a thread persists the journal once in an interval.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Map, number};
use crate::durable::feed::Feed;
use crate::durable::{INTERVAL, Promise};

struct Fjall {
    // The first field: the thread ends before the database is closed.
    _persister: Option<Persister>,
    keyspace: Keyspace,
    database: Database,
    promise: Promise,
}

pub(super) fn load(home: &Path, promise: Promise, pairs: &[(u64, u64)]) -> anyhow::Result<Box<dyn Map>> {
    let is_manual = promise == Promise::Off;
    let database = Database::builder(home.join("fjall")).manual_journal_persist(is_manual).open()?;
    let options = || KeyspaceCreateOptions::default().manual_journal_persist(is_manual);
    let keyspace = database.keyspace("peers", options)?;
    let persister = (promise == Promise::Group).then(|| Persister::start(database.clone()));
    let map = Fjall { _persister: persister, keyspace, database, promise };
    map.commit(pairs)?;
    map.database.persist(PersistMode::SyncAll)?;
    Ok(Box::new(map))
}

impl Fjall {
    fn commit(&self, updates: &[(u64, u64)]) -> anyhow::Result<()> {
        if let (&[(key, value)], false) = (updates, self.promise == Promise::Immediate) {
            return Ok(self.keyspace.insert(key.to_be_bytes(), value.to_be_bytes())?);
        }
        let mut batch = self.database.batch();
        for &(key, value) in updates {
            batch.insert(&self.keyspace, key.to_be_bytes(), value.to_be_bytes());
        }
        if self.promise == Promise::Immediate {
            batch = batch.durability(Some(PersistMode::SyncData));
        }
        Ok(batch.commit()?)
    }
}

impl Map for Fjall {
    fn run(&self, feed: &Feed<'_>, together: usize) -> anyhow::Result<()> {
        feed.in_batches(together, |updates| self.commit(updates))
    }

    fn get(&self, key: u64) -> anyhow::Result<Option<u64>> {
        self.keyspace.get(key.to_be_bytes())?.map(|value| number(&value)).transpose()
    }
}

/// The thread that persists the journal.
struct Persister {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Persister {
    fn start(database: Database) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ends);
        let persist = move || {
            while !told.load(Relaxed) {
                thread::park_timeout(INTERVAL);
                // After an error, updates fail too.
                let _ = database.persist(PersistMode::SyncData);
            }
        };
        Self { ends, thread: Some(thread::spawn(persist)) }
    }
}

impl Drop for Persister {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic was reported by its thread.
            let _ = thread.join();
        }
    }
}
