//! Restoring indexes from a backup, into a pool of any shape.
//!
//! All files that are needed are read and checked before anything is changed. The entries are then loaded in bulk. If an
//! index cannot be filled, all those that were created are dropped again.

use std::path::Path;

use super::data::Verified;
use super::manifest::{IndexPart, Manifest, file_name};
use super::{Backup, chosen};
use crate::cluster::Cluster;
use crate::error::{BackupError, Error, Result};
use crate::index::BulkOptions;
use crate::layout::IndexLayout;
use crate::options::{Descriptor, IndexOptions};

/// Options of a restore.
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions<'o> {
    /// The backup; the last complete one.
    pub id: Option<&'o str>,
    /// The only index to restore; all.
    pub index: Option<&'o str>,
    /// Name that this index gets; the one that it had.
    pub name: Option<&'o str>,
    /// How the entries are loaded.
    pub bulk: BulkOptions<'o>,
}

/// Restores the indexes of a backup into `cluster`, which must not have indexes of these names.
///
/// An index gets the node size, the level M and the description that it had. It gets the boundaries that it had unless the
/// cluster asks for another number of compute servers or keeps logs. Returns what the backup has of the indexes.
///
/// # Errors
/// [`BackupError`] in [`Error::Backup`] for a backup that is not there, incomplete or damaged; [`Error::IndexExists`];
/// a full pool. No index is left behind then.
pub fn restore(destination: &Path, cluster: &Cluster, options: &RestoreOptions<'_>) -> Result<Backup> {
    cluster.shared.writable()?;
    let (id, manifest) = chosen(destination, options.id)?;
    let mut work = Restore { cluster, options, made: Vec::new() };
    let parts = work.parts(destination, &id, &manifest)?;
    for &(_, part) in &parts {
        let name = work.name_of(part);
        options_of(part, cluster)?.check(name, &cluster.shared.config)?;
        if cluster.index_names()?.iter().any(|there| there == name) {
            return Err(Error::IndexExists { name: name.to_owned() });
        }
    }
    let files = super::files::Files::of(destination, &id);
    let mut sources = Vec::new();
    for &(number, part) in &parts {
        sources.push(Verified::read(
            &files,
            &file_name(number),
            manifest.file(number),
            part.extent,
            &|_| (),
        )?);
    }
    for (&(_, part), source) in parts.iter().zip(sources) {
        if let Err(error) = work.load(part, source) {
            work.take_back();
            return Err(error);
        }
    }
    let restored =
        Manifest { indexes: parts.iter().map(|(_, part)| (*part).clone()).collect(), ..manifest.clone() };
    Ok(Backup::of(&id, &restored))
}

struct Restore<'r> {
    cluster: &'r Cluster,
    options: &'r RestoreOptions<'r>,
    /// Names of the indexes that were created.
    made: Vec<String>,
}

impl Restore<'_> {
    /// The indexes to restore, with the numbers of their files.
    fn parts<'m>(
        &self,
        destination: &Path,
        id: &str,
        manifest: &'m Manifest,
    ) -> Result<Vec<(u32, &'m IndexPart)>> {
        let all = (0..).zip(&manifest.indexes);
        let Some(name) = self.options.index else {
            return match self.options.name {
                Some(_) => Err(Error::InvalidOption("a new name is for one index; name it".to_owned())),
                None => Ok(all.collect()),
            };
        };
        let found: Vec<_> = all.filter(|(_, part)| part.name == name).collect();
        match found.is_empty() {
            false => Ok(found),
            true => Err(BackupError::UnknownIndex {
                name: name.to_owned(),
                path: destination.join(id),
                existing: manifest.indexes.iter().map(|part| part.name.clone()).collect(),
            }
            .into()),
        }
    }

    fn name_of<'n>(&'n self, part: &'n IndexPart) -> &'n str {
        self.options.name.unwrap_or(&part.name)
    }

    /// Creates an index and fills it.
    fn load(&mut self, part: &IndexPart, source: Verified) -> Result<()> {
        let name = self.name_of(part).to_owned();
        let index = self.cluster.create_index(&name, &options_of(part, self.cluster)?)?;
        self.made.push(name);
        match index.bulk_load(&source, &self.options.bulk) {
            Ok(_) => Ok(()),
            Err(error) => Err(source.failure().map_or(error, Error::from)),
        }
    }

    /// Drops the indexes that were created.
    fn take_back(&self) {
        for name in &self.made {
            // The error of the restore is the one to report.
            let _ = self.cluster.drop_index(name);
        }
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
    let wanted = cluster.shared.config.compute_servers_wanted();
    match wanted.is_none_or(|servers| servers == part.boundaries.len() + 1) {
        true => Ok(options.boundaries(part.boundaries.clone())),
        false => Ok(options),
    }
}
