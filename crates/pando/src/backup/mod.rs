//! Backups: all indexes of a pool as they were at one moment, in files elsewhere (`docs/backup.md`).
//!
//! [`Cluster::backup`](crate::Cluster::backup) makes one, while operations run if the indexes have logs. [`list`] shows
//! those of a destination, [`verify`] reads one to its end, and [`restore`] makes indexes of it in a pool of any shape.
//! A backup is a sub-directory of the destination, or in an object store what is below a prefix; the name of that is its id.

mod changes;
mod create;
mod data;
mod directory;
mod files;
mod manifest;
mod merge;
#[cfg(feature = "object-store")]
mod objects;
mod restore;
mod utc;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::data::Verified;
pub use self::files::Destination;
use self::files::Files;
use self::manifest::{Manifest, file_name};
use self::utc::Utc;
pub use crate::error::BackupError;
use crate::error::Result;
pub use restore::{Prepared, RestoreOptions, prepare, restore};

/// Options of a backup.
#[derive(Clone, Copy)]
pub struct BackupOptions<'p> {
    /// Bytes of memory for what operations change while the indexes are read; 64 MiB, and at least 128 KiB for each
    /// index. More goes to files in the destination.
    pub changes_memory: u64,
    /// Leaves out Elf tables, which a backup cannot hold; `false`. Without this a pool that has some is refused.
    pub without_tables: bool,
    /// Called from time to time with the number of entries of an index that were written.
    pub progress: Option<&'p dyn Fn(u64)>,
    /// Asked from time to time whether to go on; once it says no, the backup fails as [`BackupError::Stopped`].
    pub goes_on: Option<&'p dyn Fn() -> bool>,
}

impl Default for BackupOptions<'_> {
    fn default() -> Self {
        Self { changes_memory: 64 << 20, without_tables: false, progress: None, goes_on: None }
    }
}

impl std::fmt::Debug for BackupOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { changes_memory, without_tables, .. } = self;
        let mut fields = f.debug_struct("BackupOptions");
        fields.field("changes_memory", changes_memory).field("without_tables", without_tables);
        fields.finish_non_exhaustive()
    }
}

/// A complete backup, according to its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// Name of its directory.
    pub id: String,
    /// The moment whose state it has.
    pub moment: SystemTime,
    pub indexes: Vec<IndexBackup>,
    /// Elf tables that the pool had and the backup has not.
    pub tables_left_out: Vec<String>,
}

/// An index in a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexBackup {
    pub name: String,
    pub entries: u64,
    /// Bytes of its file.
    pub bytes: u64,
}

/// A backup in a destination.
#[derive(Debug)]
#[non_exhaustive]
pub struct Listed {
    pub id: String,
    /// [`BackupError::Incomplete`], or what is wrong with its manifest.
    pub backup: Result<Backup, BackupError>,
}

impl Backup {
    fn of(id: &str, manifest: &Manifest) -> Self {
        let index = |part: &manifest::IndexPart| IndexBackup {
            name: part.name.clone(),
            entries: part.extent.entries,
            bytes: part.extent.bytes,
        };
        Self {
            id: id.to_owned(),
            moment: UNIX_EPOCH + Duration::from_nanos(manifest.moment_ns),
            indexes: manifest.indexes.iter().map(index).collect(),
            tables_left_out: manifest.tables_left_out.clone(),
        }
    }

    /// Entries of all indexes.
    pub fn entries(&self) -> u64 {
        self.indexes.iter().map(|index| index.entries).sum()
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.indexes.iter().map(|index| index.bytes).sum()
    }

    /// The moment, as in `2026-11-26 20:36:12 UTC`.
    pub fn moment_utc(&self) -> String {
        Utc::of(self.moment).readable()
    }
}

/// Nanoseconds since 1970.
fn nanos(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// Whether a directory of this name is a backup: `20261126T203612Z-1a2b3c4d`.
fn is_id(name: &str) -> bool {
    let form = b"00000000T000000Z-xxxxxxxx";
    name.len() == form.len()
        && name.bytes().zip(form).all(|(byte, form)| match form {
            b'0' => byte.is_ascii_digit(),
            b'x' => byte.is_ascii_hexdigit(),
            _ => byte == *form,
        })
}

/// The backups of a destination, the oldest first, by the time at which they were begun. Reads their manifests only.
///
/// # Errors
/// [`BackupError::NoBackup`]; a destination that cannot be read.
pub fn list(destination: impl Into<Destination>) -> Result<Vec<Listed>> {
    list_of(&destination.into())
}

fn list_of(destination: &Destination) -> Result<Vec<Listed>> {
    let mut ids = destination.names()?;
    ids.retain(|name| is_id(name));
    if ids.is_empty() {
        return Err(BackupError::NoBackup { path: destination.path().to_owned() }.into());
    }
    let listed = |id: String| {
        let manifest = Manifest::read(&Files::of(destination, &id));
        Listed { backup: manifest.map(|manifest| Backup::of(&id, &manifest)), id }
    };
    Ok(ids.into_iter().map(listed).collect())
}

/// The backup of this id; the last complete one if none is named. Reads manifests only.
///
/// # Errors
/// [`BackupError::NoBackup`], [`BackupError::Unknown`] and [`BackupError::Incomplete`]; a damaged manifest.
pub fn find(destination: impl Into<Destination>, id: Option<&str>) -> Result<Backup> {
    chosen(&destination.into(), id).map(|(id, manifest)| Backup::of(&id, &manifest))
}

/// The manifest of a backup; of the last complete one if none is named.
fn chosen(destination: &Destination, id: Option<&str>) -> Result<(String, Manifest)> {
    let all = list_of(destination)?;
    let found = match id {
        Some(id) => all.iter().find(|listed| listed.id == id),
        None => {
            let complete =
                all.iter().filter_map(|listed| Some((listed.backup.as_ref().ok()?.moment, listed)));
            complete.max_by_key(|(moment, _)| *moment).map(|(_, listed)| listed).or(all.last())
        }
    };
    let unknown = || BackupError::Unknown {
        id: id.unwrap_or_default().to_owned(),
        path: destination.path().to_owned(),
    };
    let id = &found.ok_or_else(unknown)?.id;
    Ok((id.clone(), Manifest::read(&Files::of(destination, id))?))
}

/// Reads all of a backup, the last complete one if none is named, and checks it: each byte, the order of the keys, the
/// numbers of entries. Calls `progress` with the number of entries so far.
///
/// # Errors
/// [`BackupError`] in [`Error::Backup`](crate::Error::Backup): a backup that is not there or incomplete; the first damage,
/// with its file and byte.
pub fn verify(
    destination: impl Into<Destination>,
    id: Option<&str>,
    progress: Option<&dyn Fn(u64)>,
) -> Result<Backup> {
    let destination = destination.into();
    let (id, manifest) = chosen(&destination, id)?;
    let files = Files::of(&destination, &id);
    let seen = std::cell::Cell::new(0);
    let tell = |entries| {
        seen.set(seen.get() + entries);
        progress.into_iter().for_each(|progress| progress(seen.get()));
    };
    for (number, part) in (0..).zip(&manifest.indexes) {
        Verified::read(&files, &file_name(number), manifest.file(number), part.extent, &tell)?;
    }
    Ok(Backup::of(&id, &manifest))
}
