//! Restoring indexes from a backup, into a pool of any shape.
//!
//! All files that are needed are read and checked before anything is changed. The entries are then loaded in bulk. If an
//! index cannot be filled, all those that were created are dropped again.

use super::data::Verified;
use super::files::{Destination, Files};
use super::manifest::{IndexPart, Manifest, file_name};
use super::{Backup, chosen};
use crate::cluster::Cluster;
use crate::error::{BackupError, Error, Result};
use crate::index::BulkOptions;
use crate::layout::IndexLayout;
use crate::options::{Descriptor, IndexOptions};

/// The part of a backup that is restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions<'o> {
    /// The backup; the last complete one.
    pub id: Option<&'o str>,
    /// The only index to restore; all.
    pub index: Option<&'o str>,
    /// Name that this index gets; the one that it had.
    pub name: Option<&'o str>,
}

/// Restores the indexes of a backup into `cluster`, which must not have indexes of these names.
///
/// An index gets the node size, the level M and the description that it had. It gets the boundaries that it had unless the
/// cluster asks for another number of compute servers. Returns what the backup has of the indexes.
///
/// # Errors
/// [`BackupError`] in [`Error::Backup`] for a backup that is not there, incomplete or damaged; [`Error::IndexExists`];
/// a full pool. No index is left behind then.
pub fn restore(
    destination: impl Into<Destination>,
    cluster: &Cluster,
    options: &RestoreOptions<'_>,
) -> Result<Backup> {
    let chosen = Chosen::find(&destination.into(), options)?;
    chosen.check(cluster)?;
    chosen.read()?.load(cluster, &BulkOptions::default())
}

/// Reads and checks all that a restore needs, so that nothing need be created before, and [`Prepared::load`] does the rest.
///
/// # Errors
/// [`BackupError`] in [`Error::Backup`].
pub fn prepare(destination: impl Into<Destination>, options: &RestoreOptions<'_>) -> Result<Prepared> {
    Chosen::find(&destination.into(), options)?.read()
}

/// Indexes of a backup to be restored.
struct Chosen {
    id: String,
    files: Files,
    /// With these indexes only.
    manifest: Manifest,
    /// The number of the file of each, and its name in the pool.
    places: Vec<Place>,
}

struct Place {
    number: u32,
    name: String,
}

/// A backup that was read and checked, to be restored.
pub struct Prepared {
    chosen: Chosen,
    sources: Vec<Verified>,
}

impl Chosen {
    fn find(destination: &Destination, options: &RestoreOptions<'_>) -> Result<Self> {
        if options.name.is_some() && options.index.is_none() {
            return Err(Error::InvalidOption("a new name is for one index, which must be named".to_owned()));
        }
        let (id, mut manifest) = chosen(destination, options.id)?;
        let files = Files::of(destination, &id);
        let (mut places, mut indexes) = (Vec::new(), Vec::new());
        let existing = manifest.indexes.iter().map(|part| part.name.clone()).collect();
        for (number, part) in (0..).zip(std::mem::take(&mut manifest.indexes)) {
            if options.index.is_none_or(|wanted| wanted == part.name) {
                places.push(Place { number, name: options.name.unwrap_or(&part.name).to_owned() });
                indexes.push(part);
            }
        }
        if let Some(wanted) = options.index.filter(|_| indexes.is_empty()) {
            let path = files.path().to_owned();
            return Err(BackupError::UnknownIndex { name: wanted.to_owned(), path, existing }.into());
        }
        Ok(Self { id, files, manifest: Manifest { indexes, ..manifest }, places })
    }

    /// Checks whether the indexes can be created.
    fn check(&self, cluster: &Cluster) -> Result<()> {
        cluster.shared.writable()?;
        let there = cluster.index_names()?;
        for (part, Place { name, .. }) in self.manifest.indexes.iter().zip(&self.places) {
            options_of(part, cluster)?.check(name, &cluster.shared.config)?;
            if there.contains(name) {
                return Err(Error::IndexExists { name: name.clone() });
            }
        }
        Ok(())
    }

    fn read(self) -> Result<Prepared> {
        let mut sources = Vec::new();
        for (part, &Place { number, .. }) in self.manifest.indexes.iter().zip(&self.places) {
            let file = self.manifest.file(number);
            sources.push(Verified::read(&self.files, &file_name(number), file, part.extent, &|_| ())?);
        }
        Ok(Prepared { chosen: self, sources })
    }
}

impl Prepared {
    /// What the backup has of the indexes that are restored.
    pub fn backup(&self) -> Backup {
        Backup::of(&self.chosen.id, &self.chosen.manifest)
    }

    /// Creates the indexes in `cluster` and loads them.
    ///
    /// # Errors
    /// As for [`restore`].
    pub fn load(self, cluster: &Cluster, bulk: &BulkOptions<'_>) -> Result<Backup> {
        self.chosen.check(cluster)?;
        let (backup, Self { chosen: Chosen { manifest, places, .. }, sources }) = (self.backup(), self);
        let mut made = Vec::new();
        for ((part, Place { name, .. }), source) in manifest.indexes.iter().zip(&places).zip(sources) {
            let loaded = options_of(part, cluster).and_then(|options| {
                let index = cluster.create_index(name, &options)?;
                made.push(name);
                index.bulk_load(&source, bulk)
            });
            if let Err(error) = loaded {
                // The error of the restore is the one to report.
                made.into_iter().for_each(|name| drop(cluster.drop_index(name)));
                return Err(source.failure().map_or(error, Error::from));
            }
        }
        Ok(backup)
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("id", &self.chosen.id).finish_non_exhaustive()
    }
}

/// Options with which an index of a backup is created in `cluster`.
fn options_of(part: &IndexPart, cluster: &Cluster) -> Result<IndexOptions> {
    let bad = |reason| Error::BadIndex { name: part.name.clone(), reason };
    let descriptor = Descriptor::decode(&part.layout).map_err(bad)?;
    let mut options = match descriptor.layout {
        IndexLayout::Bytes => IndexOptions::bytes(),
        IndexLayout::Fixed { key_size, value_size } => IndexOptions::fixed(key_size, value_size),
    };
    options = options
        .node_size(part.node_size as usize)
        .subtree_level(part.subtree_level)
        .description(Descriptor::description(&part.layout));
    if let Some(limit) = descriptor.fanout_limit {
        options = options.fanout_limit(limit as usize);
    }
    let wanted = cluster.shared.config.compute_servers;
    match wanted.is_none_or(|servers| servers == part.boundaries.len() + 1) {
        true => Ok(options.boundaries(part.boundaries.clone())),
        false => Ok(options),
    }
}
