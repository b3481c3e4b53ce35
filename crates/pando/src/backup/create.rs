//! Making a backup: all indexes of a pool as they were at one moment.
//!
//! An index is read by a scan, which other operations may change meanwhile. What makes the result the state of
//! one moment depends on how this process has the pool open:
//!
//! - *with logs*: operations go on. 1. The taps of all logs are opened ([`pando_log`], `tap.rs`). 2. All indexes
//!   are scanned. 3. The taps are closed at one moment, the moment of the backup. 4. The last change of each key
//!   is merged over what the scan found. A key without a change had one value from before the scan to the
//!   moment, and the scan found it; for other keys it does not matter what the scan found. 5. The logs are
//!   settled up to the moment, before the manifest is written: a crash takes back nothing that a backup has.
//! - *without logs*: all indexes are at rest, and no session can be opened.
//! - *for reading*: no process has any of the indexes open for writing, before and after all scans, and their
//!   records in the catalog have not changed. A writer would have changed them.

use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::SystemTime;

use pando_dex::ScanRange;
use pando_fabric::Endpoint;
use pando_fabric::defect::defect;
use pando_log::defect::OfBackup;
use pando_pool::IndexRecord;
use pando_rt::block_on;

use super::changes::{Changes, Runs, Taps, write_runs};
use super::data::{DataReader, DataWriter, Extent};
use super::files::{Destination, Files, Result as FileResult};
use super::manifest::{IndexPart, Manifest, file_name};
use super::merge::{Source, merge};
use super::utc::Utc;
use super::{Backup, BackupOptions, nanos};
use crate::cluster::Cluster;
use crate::error::{BackupError, Error, Result};
use crate::index::Index;
use crate::layout::with_layout;
use crate::local::Servers;
use crate::local::open::record_at_rest;
use crate::local::servers::with_ctx;
use crate::options::Durability;

const WHAT: &str = "a backup";
/// Least bytes of changes of an index in memory.
const BYTES_MIN: u64 = 64 << 10;

/// Receives the entries of a scan, until it returns `false`.
type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> bool + 'v;

impl Cluster {
    /// Writes a backup of all indexes of the pool into a new sub-directory of `destination`, which is created if it
    /// is not there. The backup has the state of one moment, which lies within this call.
    ///
    /// If the indexes have logs ([`Config::durability`](crate::Config::durability)), operations go on meanwhile, and moves of
    /// keys between compute servers wait. Without
    /// logs the indexes must be at rest, and no session can be opened meanwhile. In a pool that is open
    /// [for reading](crate::Config::read_only), no process may open an index for writing meanwhile. Indexes that are
    /// not open in this process are opened. Those that are created meanwhile are not in the backup.
    /// ```
    /// use pando::backup::{self, BackupOptions, RestoreOptions};
    /// use pando::{Cluster, Config, Create, Durability, IndexOptions};
    ///
    /// let directory = tempfile::tempdir()?;
    /// let (pool, backups) = (directory.path().join("birds.pando"), directory.path().join("backups"));
    /// let config = Config::at(pool).memory(64 << 20).create(Create::New).durability(Durability::Process);
    /// let cluster = Cluster::open(config)?;
    /// let birds = cluster.create_index("birds", &IndexOptions::bytes())?;
    /// let session = birds.session()?;
    /// session.put(b"owl", b"night")?;
    /// let made = cluster.backup(&backups, &BackupOptions::default())?;
    /// session.put(b"owl", b"day")?;
    ///
    /// assert_eq!(backup::verify(&backups, Some(&made.id), None)?, made);
    /// let elsewhere = Cluster::open(Config::embedded().memory_servers(3))?;
    /// backup::restore(&backups, &elsewhere, &RestoreOptions::default())?;
    /// let restored = elsewhere.open_index("birds")?.session()?;
    /// assert_eq!(restored.get(b"owl")?.as_deref(), Some(&b"night"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`BackupError`] in [`Error::Backup`]: files that cannot be written; Elf tables, unless they are left out; another
    /// backup under way. [`Error::SessionsOpen`] and [`Error::Busy`] for an index without a log;
    /// [`Error::NotAllOwned`], [`Error::PartitionOwned`] and [`Error::OpenForWriting`] if another process works on an
    /// index. Nothing is left in the destination then.
    pub fn backup(&self, destination: impl Into<Destination>, options: &BackupOptions<'_>) -> Result<Backup> {
        self.back_up(&destination.into(), options)
    }

    fn back_up(&self, destination: &Destination, options: &BackupOptions<'_>) -> Result<Backup> {
        self.shared.check_open()?;
        if self.shared.looking() {
            let text = "what is opened for looking only may be incomplete, and is not backed up";
            return Err(Error::InvalidOption(text.to_owned()));
        }
        let tables_left_out = self.elf_names()?;
        if !tables_left_out.is_empty() && !options.without_tables {
            return Err(BackupError::Tables { names: tables_left_out }.into());
        }
        let names: Vec<String> = self.indexes()?.into_iter().map(|info| info.name).collect();
        let number = self.shared.with_endpoint(|ep| Ok(ep.random()))?;
        let id = format!("{}-{:08x}", Utc::of(SystemTime::now()).compact(), number as u32);
        let files = Files::create(destination, &id)?;
        let work = Work {
            cluster: self,
            files: &files,
            manifest: Manifest { number, ..Manifest::default() },
            options,
        };
        let made = work.run(&names).and_then(|(moment, indexes)| {
            let manifest = Manifest { number, moment_ns: nanos(moment), indexes, tables_left_out };
            files.complete(&manifest.encode())?;
            Ok(Backup::of(&id, &manifest))
        });
        if made.is_err() {
            files.discard();
        }
        made
    }
}

/// A backup that is being made.
struct Work<'b> {
    cluster: &'b Cluster,
    files: &'b Files,
    /// With the number only.
    manifest: Manifest,
    options: &'b BackupOptions<'b>,
}

/// Moment of a backup, and what it holds.
type Made = (SystemTime, Vec<IndexPart>);

impl Work<'_> {
    fn run(&self, names: &[String]) -> Result<Made> {
        let shared = &self.cluster.shared;
        if shared.read_only() {
            return self.reading(names);
        }
        let indexes = names.iter().map(|name| self.cluster.open_index(name)).collect::<Result<Vec<_>>>()?;
        match shared.config.durability {
            Durability::Off => self.at_rest(&indexes),
            _ => self.tapped(&indexes),
        }
    }

    fn record(&self, name: &str) -> Result<IndexRecord> {
        self.cluster.shared.with_endpoint(|ep| self.cluster.shared.record(ep, name))
    }

    /// Writes the entries that a scan finds.
    fn scanned(&self, number: u32, scan: impl FnOnce(&mut Visit<'_>) -> Result<()>) -> Result<Extent> {
        let mut out = DataWriter::begin(self.files, &file_name(number), self.manifest.file(number))?;
        let mut written = Ok(());
        scan(&mut |key, value| {
            // A scan of several trees goes on with the next one.
            if written.is_ok() {
                written = out.push(key, Some(value)).and_then(|()| self.tell(out.entries()));
            }
            written.is_ok()
        })?;
        written?;
        Ok(out.finish()?)
    }

    /// Tells the caller of the number of entries from time to time.
    ///
    /// # Errors
    /// [`BackupError::Stopped`] if the caller says so then.
    fn tell(&self, entries: u64) -> FileResult<()> {
        if entries.is_multiple_of(1024) {
            self.options.progress.inspect(|progress| progress(entries));
            self.check_goes_on()?;
        }
        Ok(())
    }

    fn check_goes_on(&self) -> FileResult<()> {
        match self.options.goes_on {
            Some(goes_on) if !goes_on() => Err(BackupError::Stopped),
            _ => Ok(()),
        }
    }

    /// A pool that is open for reading.
    fn reading(&self, names: &[String]) -> Result<Made> {
        let shared = &self.cluster.shared;
        let records = || {
            let record = |name: &String| shared.with_endpoint(|ep| record_at_rest(shared, ep, name));
            names.iter().map(record).collect::<Result<Vec<_>>>()
        };
        let before = records()?;
        let mut parts = Vec::new();
        for (number, record) in before.iter().enumerate() {
            let session = self.cluster.open_index(&record.name)?.session()?;
            let scan = |visit: &mut Visit<'_>| session.scan(&ScanRange::all(), visit).map(drop);
            parts.push(part(record, self.scanned(number as u32, scan)?));
        }
        let moment = SystemTime::now();
        let is_same = |(before, after): &(&IndexRecord, &IndexRecord)| {
            (before.id, before.version) == (after.id, after.version)
        };
        match before.iter().zip(&records()?).find(|pair| !is_same(pair)) {
            Some((changed, _)) => Err(BackupError::Changed { index: changed.name.clone() }.into()),
            None => Ok((moment, parts)),
        }
    }

    /// Indexes without logs, which this process has open for writing.
    fn at_rest(&self, indexes: &[Index]) -> Result<Made> {
        let alone = indexes.iter().map(|index| index.data.exclusive(WHAT));
        let _alone = alone.collect::<Result<Vec<_>>>()?;
        let mut parts = Vec::new();
        for (number, index) in indexes.iter().enumerate() {
            let servers = index.data.servers()?;
            servers.check_runs_all(WHAT)?;
            let extent = self.scanned(number as u32, |visit| self.scan_all(&servers, visit))?;
            parts.push(part(&self.record(index.name())?, extent));
        }
        Ok((SystemTime::now(), parts))
    }

    /// Scans an index that is at rest.
    fn scan_all(&self, servers: &Servers, visit: &mut Visit<'_>) -> Result<()> {
        self.cluster.shared.with_endpoint(|ep| {
            with_layout!(&servers.trees, |trees| {
                for tree in
                    servers.routes.table().owners().iter().filter_map(|&number| trees[number].as_deref())
                {
                    with_ctx(ep, tree, |ctx| {
                        Ok(block_on(ep, tree.scan(ctx, &ScanRange::all(), &mut *visit))?)
                    })?;
                }
            });
            Ok(())
        })
    }

    /// Indexes with logs.
    fn tapped(&self, indexes: &[Index]) -> Result<Made> {
        for index in indexes {
            if index.data.servers()?.logs().iter().any(|log| log.is_tapped()) {
                return Err(BackupError::UnderWay { index: index.name().to_owned() }.into());
            }
        }
        // A compute server that is added meanwhile would have a log without a tap.
        let still = indexes.iter().map(|index| index.data.begin_move());
        let _still = still.collect::<Result<Vec<_>>>()?;
        let mut logs = Vec::new();
        for index in indexes {
            let servers = index.data.servers()?;
            servers.check_runs_all(WHAT)?;
            logs.push(servers.logs());
        }
        // While a session is open, an index is neither loaded in bulk nor dropped, and the cluster not closed.
        let sessions = indexes.iter().map(Index::session).collect::<Result<Vec<_>>>()?;
        let records = indexes.iter().map(|index| self.record(index.name())).collect::<Result<Vec<_>>>()?;
        let (mut parts, mut runs, mut rests) = (Vec::new(), Vec::new(), Vec::new());
        let moment = thread::scope(|scope| {
            // 1.
            let (full, to_write) = sync_channel(0);
            let (files, backup) = (self.files, self.manifest.number);
            let writer = scope.spawn(move || write_runs(files, backup, indexes.len(), to_write));
            let share = self.options.changes_memory / (2 * indexes.len().max(1) as u64);
            let share = share.max(BYTES_MIN) as usize;
            let names = || indexes.iter().map(Index::name).zip(logs.iter().map(|logs| &logs[..]));
            let mut taps = None;
            if !defect(OfBackup::TapsOpenedLate) {
                taps = Some(Taps::open(names(), share, &full)?);
            }
            // 2.
            for (number, session) in sessions.iter().enumerate() {
                let scan = |visit: &mut Visit<'_>| session.scan(&ScanRange::all(), visit).map(drop);
                parts.push(part(&records[number], self.scanned(number as u32, scan)?));
            }
            // 3.
            let taps = match taps {
                Some(taps) => taps,
                None => Taps::open(names(), share, &full)?,
            };
            let moment;
            (moment, rests) = taps.close();
            drop(full);
            runs = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            Ok::<_, Error>(moment)
        })?;
        // 4.
        for (number, (runs, rest)) in runs.into_iter().zip(&rests).enumerate() {
            if !(runs.is_empty() && rest.is_empty()) {
                parts[number].extent = self.merged(number as u32, runs, rest)?;
            }
        }
        // 5.
        self.cluster.shared.with_endpoint(|ep| {
            logs.iter()
                .flatten()
                .try_for_each(|log| block_on(ep, log.settled(ep, 0, log.clock())).map_err(Error::from))
        })?;
        Ok((moment, parts))
    }

    /// Merges changes over the entries of a scan.
    fn merged(&self, number: u32, runs: Runs, rest: &Changes) -> FileResult<Extent> {
        let (files, id, name) = (self.files, self.manifest.file(number), file_name(number));
        let old = format!("{name}.scan");
        files.rename(&name, &old)?;
        let mut sources = vec![Source::file(DataReader::open(files, &old, id)?)];
        sources.extend(runs.sources(files, id)?);
        sources.push(Source::memory(rest));
        let mut out = DataWriter::begin(files, &name, id)?;
        merge(&mut sources, |key, value| match value {
            Some(_) => out.push(key, value).and_then(|()| self.tell(out.entries())),
            None => Ok(()),
        })?;
        files.remove(&old)?;
        runs.remove(files)?;
        out.finish()
    }
}

/// What the manifest has of an index.
fn part(record: &IndexRecord, extent: Extent) -> IndexPart {
    IndexPart {
        name: record.name.clone(),
        layout: record.layout.clone(),
        node_size: record.node_size,
        subtree_level: record.subtree_level,
        boundaries: record.boundaries.clone(),
        extent,
    }
}
