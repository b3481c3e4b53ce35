//! The changes of indexes while they are being read: the last one of each key.
//!
//! The sink of a tap gathers changes in memory. When they reach a bound, they are handed to a thread that writes them to a
//! file, sorted, a *run*, while others are gathered. If that thread is behind, changers wait for it.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use pando_fabric::defect::defect;
use pando_log::Log;
use pando_log::defect::OfBackup;

use super::data::{DataReader, DataWriter, FileId};
use super::files::{Files, Result};
use super::merge::{Source, merge};
use crate::error::BackupError;
use crate::shared::lock;

/// What a change has made of a key: its value, or `None` if it was removed.
pub(super) type Value = Option<Box<[u8]>>;

/// The last change of each key.
pub(super) type Changes = BTreeMap<Box<[u8]>, Value>;

/// Bytes that a change takes besides its key and value, about.
const CHANGE_BYTES: usize = 64;
/// Runs of an index before they are merged to one.
const RUNS_MAX: usize = 16;

/// Changes of an index that become a run.
pub(super) struct Full {
    index: usize,
    changes: Changes,
}

/// Changes of an index in memory.
struct Gathered {
    index: usize,
    changes: Changes,
    bytes: usize,
    bytes_max: usize,
    full: SyncSender<Full>,
}

impl Gathered {
    fn note(&mut self, key: &[u8], value: Option<&[u8]>) {
        let len = |value: Option<&[u8]>| value.map_or(0, <[u8]>::len);
        match self.changes.get_mut(key) {
            Some(_) if defect(OfBackup::FirstChange) => {}
            Some(last) => {
                self.bytes += len(value);
                self.bytes -= len(last.as_deref());
                *last = value.map(Box::from);
            }
            None => {
                self.bytes += CHANGE_BYTES + key.len() + len(value);
                self.changes.insert(key.into(), value.map(Box::from));
            }
        }
        if self.bytes >= self.bytes_max {
            self.bytes = 0;
            let full = Full { index: self.index, changes: std::mem::take(&mut self.changes) };
            // The thread that writes runs ends before this only by a panic, which its join reports.
            let _ = self.full.send(full);
        }
    }
}

/// The open taps of all indexes of a backup. Closes them when it is dropped.
pub(super) struct Taps<'l> {
    logs: Vec<&'l Log>,
    gathered: Vec<Arc<Mutex<Gathered>>>,
}

impl<'l> Taps<'l> {
    /// Opens the taps of the logs of each index, which has a name. Of each index, `bytes_max` bytes are kept in memory,
    /// and as many may be on the way to a run.
    ///
    /// # Errors
    /// [`BackupError::UnderWay`].
    pub fn open(
        indexes: impl Iterator<Item = (&'l str, &'l [Arc<Log>])>,
        bytes_max: usize,
        full: &SyncSender<Full>,
    ) -> Result<Self> {
        let mut taps = Self { logs: Vec::new(), gathered: Vec::new() };
        for (index, (name, logs)) in indexes.enumerate() {
            let (changes, full) = (Changes::new(), full.clone());
            let gathered = Gathered { index, changes, bytes: 0, bytes_max, full };
            let gathered = Arc::new(Mutex::new(gathered));
            for log in logs {
                // A key is changed by one compute server at a time.
                let sink = Arc::clone(&gathered);
                if !log.open_tap(Box::new(move |key, value| lock(&sink).note(key, value))) {
                    return Err(BackupError::UnderWay { index: name.to_owned() });
                }
                taps.logs.push(log);
            }
            taps.gathered.push(gathered);
        }
        Ok(taps)
    }

    /// Closes all taps at one moment. Returns it, and for each index the changes that are in no run.
    pub fn close(mut self) -> (SystemTime, Vec<Changes>) {
        if defect(OfBackup::TapsClosedInTurn) {
            Log::close_taps(&self.logs[..1], || ());
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let moment = Log::close_taps(&std::mem::take(&mut self.logs), SystemTime::now);
        let taken = |gathered: &Arc<Mutex<Gathered>>| std::mem::take(&mut lock(gathered).changes);
        (moment, self.gathered.iter().map(taken).collect())
    }
}

impl Drop for Taps<'_> {
    fn drop(&mut self) {
        Log::close_taps(&self.logs, || ());
    }
}

/// Files with changes of one index, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Runs {
    names: Vec<String>,
    /// Number of runs so far, for their names.
    made: usize,
}

impl Runs {
    fn begin(&mut self, files: &Files, id: FileId) -> Result<DataWriter> {
        let name = format!("index-{}.run-{}", id.number, self.made);
        self.made += 1;
        let out = DataWriter::begin(files, &name, id)?;
        self.names.push(name);
        Ok(out)
    }

    fn add(&mut self, files: &Files, id: FileId, changes: &Changes) -> Result<()> {
        if self.names.len() == RUNS_MAX {
            let mut sources = self.sources(files, id)?;
            let old = std::mem::take(&mut self.names);
            let mut out = self.begin(files, id)?;
            merge(&mut sources, |key, value| out.push(key, value))?;
            out.finish()?;
            old.iter().try_for_each(|name| files.remove(name))?;
        }
        let mut out = self.begin(files, id)?;
        changes.iter().try_for_each(|(key, value)| out.push(key, value.as_deref()))?;
        out.finish().map(drop)
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The runs, to be merged.
    pub fn sources<'c>(&self, files: &Files, id: FileId) -> Result<Vec<Source<'c>>> {
        self.names.iter().map(|name| DataReader::open(files, name, id).map(Source::file)).collect()
    }

    pub fn remove(self, files: &Files) -> Result<()> {
        self.names.iter().try_for_each(|name| files.remove(name))
    }
}

/// Writes runs of `indexes` indexes until all taps are closed. After a failure it goes on to take changes, so that no
/// changer waits for ever.
pub(super) fn write_runs(
    files: &Files,
    backup: u64,
    indexes: usize,
    full: Receiver<Full>,
) -> Result<Vec<Runs>> {
    let mut runs: Vec<Runs> = (0..indexes).map(|_| Runs::default()).collect();
    let mut written = Ok(());
    for Full { index, changes } in full {
        if written.is_ok() {
            let id = FileId { backup, number: index as u32 };
            written = runs[index].add(files, id, &changes);
        }
    }
    written.map(|()| runs)
}
