//! `pando backup`: makes, lists, verifies and restores backups of whole pools (`docs/backup.md`).
//!
//! A pool is backed up as readers read it: no process may have its indexes open for writing meanwhile. A program that
//! works on a pool with logs makes backups itself while it goes on. A restore reads the backup before it creates
//! anything.

use std::io::{Write, stdout};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use pando::backup::{self, Backup, BackupError, BackupOptions, Destination, RestoreOptions};
use pando::{BulkOptions, Error};
use pando_lab::units;
use serde_json::{Value, json};

use crate::args::{LookArgs, NewPoolArgs, PoolArgs};
use crate::failure::{self, Failure};
use crate::signals::Interrupt;
use crate::{output, pool, progress};

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Write all indexes of a pool to a new directory below DESTINATION
    Create(CreateArgs),
    /// Show the backups of a destination
    List(ListArgs),
    /// Read all of a backup and check it
    Verify(VerifyArgs),
    /// Make indexes from a backup, and the pool if needed
    Restore(RestoreArgs),
}

#[derive(Args, Debug)]
pub struct CreateArgs {
    /// Directory of the backups, which is created if it is not there; or s3://BUCKET/PREFIX in a program that was built with the
    /// feature object-store, with the variables AWS_* of the environment
    destination: Destination,
    #[command(flatten)]
    pool: PoolArgs,
    /// Leave out Elf tables, which a backup cannot hold
    #[arg(long)]
    without_tables: bool,
}

#[derive(Args, Debug)]
pub struct ListArgs {
    /// Directory of the backups, or s3://BUCKET/PREFIX
    destination: Destination,
    /// Write the list as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct VerifyArgs {
    /// Directory of the backups, or s3://BUCKET/PREFIX
    destination: Destination,
    /// The backup [default: the last complete one]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
}

#[derive(Args, Debug)]
pub struct RestoreArgs {
    /// Directory of the backups, or s3://BUCKET/PREFIX
    destination: Destination,
    #[command(flatten)]
    pool: PoolArgs,
    #[command(flatten)]
    new_pool: NewPoolArgs,
    /// The backup [default: the last complete one]
    #[arg(long, value_name = "ID")]
    backup: Option<String>,
    /// The only index to restore [default: all]
    #[arg(long, value_name = "NAME")]
    index: Option<String>,
    /// Another name for this index
    #[arg(long = "as", value_name = "NAME", requires = "index")]
    name: Option<String>,
}

pub fn run(command: &BackupCommand) -> Result<(), Failure> {
    match command {
        BackupCommand::Create(args) => create(args),
        BackupCommand::List(args) => list(args),
        BackupCommand::Verify(args) => verify(args),
        BackupCommand::Restore(args) => restore(args),
    }
}

fn create(args: &CreateArgs) -> Result<(), Failure> {
    let config = pool::looking(&args.pool, &LookArgs { unclean: false })?;
    let bar = progress::bar("writing", 0);
    let tell = |entries| bar.set_position(entries);
    let options = BackupOptions {
        without_tables: args.without_tables,
        progress: Some(&tell),
        ..BackupOptions::default()
    };
    let made = pool::with_cluster(config, |cluster| match cluster.backup(&args.destination, &options) {
        Err(Error::Backup(error)) if matches!(*error, BackupError::Tables { .. }) => {
            Err(Failure::from(Error::Backup(error)).with("--without-tables leaves them out"))
        }
        done => Ok(done?),
    })?;
    bar.finish_and_clear();
    if !made.tables_left_out.is_empty() {
        failure::tell(format_args!("left out: {}", made.tables_left_out.join(", ")));
    }
    Ok(writeln!(stdout(), "backup {}: {}", made.id, content(&made))?)
}

fn list(args: &ListArgs) -> Result<(), Failure> {
    let listed = backup::list(&args.destination)?;
    let text = || {
        let heads = ["backup", "moment", "indexes", "entries", "bytes", "state"];
        let mut rows = vec![heads.map(str::to_owned)];
        rows.extend(listed.iter().map(|listed| match &listed.backup {
            Ok(found) => [
                found.id.clone(),
                found.moment_utc(),
                units::count(found.indexes.len() as u64),
                units::count(found.entries()),
                units::size(found.bytes()),
                "complete".to_owned(),
            ],
            Err(error) => {
                let [moment, indexes, entries, bytes] = ["-"; 4].map(str::to_owned);
                [listed.id.clone(), moment, indexes, entries, bytes, state(error).to_owned()]
            }
        }));
        pool::aligned(&rows)
    };
    let document = || {
        Value::from(
            listed
                .iter()
                .map(|listed| match &listed.backup {
                    Ok(found) => document_of(found),
                    Err(error) => {
                        json!({ "backup": listed.id, "state": state(error), "reason": error.to_string() })
                    }
                })
                .collect::<Vec<_>>(),
        )
    };
    output::tell(args.json.as_deref(), document, text)
}

fn state(error: &BackupError) -> &'static str {
    match error {
        BackupError::Incomplete { .. } => "incomplete",
        BackupError::OtherVersion { .. } => "another version",
        BackupError::Damaged { .. } => "damaged",
        _ => "unreadable",
    }
}

fn document_of(found: &Backup) -> Value {
    let since = found.moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let index = |index: &backup::IndexBackup| json!({ "name": index.name, "entries": index.entries, "bytes": index.bytes });
    json!({
        "backup": found.id,
        "state": "complete",
        "moment": found.moment_utc(),
        "moment_unix_ns": since.as_nanos() as u64,
        "indexes": found.indexes.iter().map(index).collect::<Vec<_>>(),
        "entries": found.entries(),
        "bytes": found.bytes(),
        "tables_left_out": found.tables_left_out,
    })
}

fn verify(args: &VerifyArgs) -> Result<(), Failure> {
    let id = args.backup.as_deref();
    let bar = progress::bar("checking", backup::find(&args.destination, id)?.entries());
    let found = backup::verify(&args.destination, id, Some(&|entries| bar.set_position(entries)))?;
    bar.finish_and_clear();
    Ok(writeln!(stdout(), "backup {} is whole: {}", found.id, content(&found))?)
}

/// What a backup has, in one line.
fn content(found: &Backup) -> String {
    let indexes = found.indexes.iter().map(|index| index.name.as_str()).collect::<Vec<_>>();
    format!(
        "{} entries of {} ({}), {}, as of {}",
        units::count(found.entries()),
        match indexes.len() {
            1 => "1 index".to_owned(),
            count => format!("{} indexes", units::count(count as u64)),
        },
        indexes.join(", "),
        units::size(found.bytes()),
        found.moment_utc()
    )
}

fn restore(args: &RestoreArgs) -> Result<(), Failure> {
    let (id, index, name) = (args.backup.as_deref(), args.index.as_deref(), args.name.as_deref());
    let found = backup::find(&args.destination, id)?;
    pool::look(&args.pool, &args.new_pool, |cluster| {
        let there = cluster.index_names()?;
        let wanted = found.indexes.iter().filter(|found| index.is_none_or(|index| index == found.name));
        match wanted
            .map(|found| name.unwrap_or(&found.name))
            .find(|&name| there.iter().any(|there| there == name))
        {
            Some(name) => Err(Error::IndexExists { name: name.to_owned() }.into()),
            None => Ok(()),
        }
    })?;
    // The pool must be closed, whatever happens.
    let _interrupt = Interrupt::listen()?;
    let options = RestoreOptions { id: Some(&found.id), index, name };
    let prepared = backup::prepare(&args.destination, &options)?;
    let restored = prepared.backup();
    let config = pool::perhaps_new(&args.pool, &args.new_pool, restored.bytes())?;
    let bar = progress::bar("loading", restored.entries());
    let tell = |entries| bar.set_position(entries);
    let bulk = BulkOptions { progress: Some(&tell), ..BulkOptions::default() };
    pool::with_cluster(config, |cluster| Ok(prepared.load(cluster, &bulk)?))?;
    bar.finish_and_clear();
    Ok(writeln!(stdout(), "restored: {}", content(&restored))?)
}
