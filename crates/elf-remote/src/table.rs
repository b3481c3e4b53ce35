//! A version of a table, as far as it is in DRAM.
//!
//! Upper levels of the images and sets of deleted rows are loaded with the version; dictionaries when a condition or
//! a result needs their column. Parts that two versions have in common are loaded once. What a version leads to
//! is verified by hashes, so that a replaced table is noticed while it is loaded.

use std::sync::{Arc, Mutex, PoisonError};

use pando_elf::{Column, Dictionary, Tombstones};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, join_all};
use pando_pool::{Pool, PoolError};

use crate::defect::Defect;
use crate::descriptor::{Descriptor, PartRef, Pieces};
use crate::error::{Attempt, RemoteError, Retry};
use crate::follow::{Reads, Version};
use crate::image::{Cached, Image};
use crate::lists::ListCacheOptions;
use crate::manifest::{Kind, Stamped};
use crate::options::ReadOptions;

/// Dictionaries of a part; those that were not loaded are empty.
#[derive(Clone, Debug)]
pub(crate) struct Dictionaries {
    pub all: Vec<Dictionary>,
    is_loaded: Vec<bool>,
}

/// What never changes of a part.
#[derive(Debug)]
pub(crate) struct Run {
    pub trees: Vec<Image>,
    dictionaries: Mutex<Arc<Dictionaries>>,
}

/// A part of a version.
#[derive(Debug)]
pub(crate) struct Part {
    pub at: PartRef,
    pub run: Arc<Run>,
    pub deleted: Arc<Tombstones>,
}

#[derive(Debug)]
pub(crate) struct Table {
    pub descriptor: Descriptor,
    pub parts: Vec<Part>,
}

/// The share of `bytes` for `part` of `whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// READs bytes that are in long values.
pub(crate) async fn read_pieces<E: Endpoint>(ep: &E, pool: &Pool, pieces: &Pieces) -> Attempt<Vec<u8>> {
    let mut bytes = Vec::new();
    for &value in pieces {
        match pool.append_value(ep, value, &mut bytes).await {
            Err(PoolError::ValueChanged { addr }) => return Err(Retry::Changed(addr)),
            read => read?,
        }
    }
    Ok(bytes)
}

/// READs the description of a table.
pub(crate) async fn read_descriptor<E: Endpoint>(ep: &E, pool: &Pool, root: &Stamped) -> Attempt<Descriptor> {
    let bytes = read_pieces(ep, pool, &vec![root.value]).await?;
    let addr = root.value.addr;
    let descriptor = Descriptor::decode(&bytes).map_err(|reason| RemoteError::BadTable { addr, reason })?;
    match descriptor.stamp == root.stamp {
        true => Ok(descriptor),
        false => Err(RemoteError::BadTable { addr, reason: "it belongs to another table" }.into()),
    }
}

/// READs the dictionary of a column of a part.
pub(crate) async fn read_dictionary<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    column: &Column,
    pieces: &Pieces,
) -> Attempt<Dictionary> {
    Ok(Dictionary::of_bytes(column, &read_pieces(ep, pool, pieces).await?)?)
}

/// READs the set of deleted rows of a part.
pub(crate) async fn read_deleted<E: Endpoint>(ep: &E, pool: &Pool, part: &PartRef) -> Attempt<Tombstones> {
    let deleted = Tombstones::of_bytes(&read_pieces(ep, pool, &part.deleted).await?)?;
    let reason = "its set of deleted rows has another number of rows than it says";
    match deleted.count() == part.deleted_rows {
        true => Ok(deleted),
        false => Err(RemoteError::BadTable { addr: part.first_image().value.addr, reason }.into()),
    }
}

impl Dictionaries {
    fn none(columns: &[Column]) -> Attempt<Self> {
        let all = columns.iter().map(|column| Dictionary::new(column, std::iter::empty()));
        Ok(Self { all: all.collect::<Result<_, _>>()?, is_loaded: vec![false; columns.len()] })
    }
}

impl Run {
    async fn load<E: Endpoint>(
        reads: &mut Reads<'_, E>,
        columns: &[Column],
        part: &PartRef,
        all_bytes: u64,
    ) -> Attempt<Self> {
        let mut trees = Vec::with_capacity(part.trees.len());
        for tree in &part.trees {
            // Each tree caches its share.
            let part_of = |bytes| share(bytes, tree.image_bytes, all_bytes);
            let list_cache = reads.options.list_cache;
            let list_cache =
                list_cache.map(|lists| ListCacheOptions { bytes: part_of(lists.bytes), ..lists });
            let cache_bytes = part_of(reads.options.cache_bytes);
            let options = ReadOptions { cache_bytes, list_cache, ..*reads.options };
            trees.push(Image::load(reads.ep, reads.pool, &tree.image, &options, &mut reads.cost).await?);
        }
        Ok(Self { trees, dictionaries: Mutex::new(Arc::new(Dictionaries::none(columns)?)) })
    }

    /// What is cached of its trees: the least number of levels, and the bytes of all.
    pub fn cached(&self) -> Cached {
        let cached = self.trees.iter().map(Image::cached);
        let join = |all: Cached, tree: Cached| Cached {
            levels: all.levels.min(tree.levels),
            bytes: all.bytes + tree.bytes,
        };
        cached.reduce(join).unwrap_or(Cached { levels: 0, bytes: 0 })
    }

    fn known(&self) -> Arc<Dictionaries> {
        Arc::clone(&self.dictionaries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Part {
    /// The dictionaries of the part, of which those of the given columns are loaded.
    pub async fn dictionaries<E: Endpoint>(
        &self,
        reads: &mut Reads<'_, E>,
        is_needed: &[bool],
    ) -> Attempt<Arc<Dictionaries>> {
        let known = self.run.known();
        let is_missing = |&column: &usize| is_needed[column] && !known.is_loaded[column];
        let missing: Vec<usize> = (0..is_needed.len()).filter(is_missing).collect();
        if missing.is_empty() {
            return Ok(known);
        }
        let (ep, pool) = (reads.ep, reads.pool);
        reads.cost.round_trips += 1;
        for &column in &missing {
            reads.cost.reads += self.at.dictionaries[column].len() as u64;
            reads.cost.bytes_read += self.at.dictionaries[column].iter().map(|value| value.len).sum::<u64>();
        }
        let read = async |column: usize| {
            read_dictionary(ep, pool, known.all[column].column(), &self.at.dictionaries[column]).await
        };
        let loaded = join_all(missing.iter().map(|&column| read(column))).await;
        let loaded = loaded.into_iter().collect::<Attempt<Vec<_>>>()?;
        let mut current = self.run.dictionaries.lock().unwrap_or_else(PoisonError::into_inner);
        // Another query may have loaded others meanwhile.
        let mut all = Dictionaries::clone(&current);
        for (column, dictionary) in missing.into_iter().zip(loaded) {
            (all.all[column], all.is_loaded[column]) = (dictionary, true);
        }
        *current = Arc::new(all);
        Ok(Arc::clone(&current))
    }
}

impl Version for Table {
    const KIND: Kind = Kind::Table;

    fn stamp(&self) -> u64 {
        self.descriptor.stamp
    }

    async fn load<E: Endpoint>(
        reads: &mut Reads<'_, E>,
        root: &Stamped,
        known: Option<&Self>,
    ) -> Attempt<Self> {
        let descriptor = read_descriptor(reads.ep, reads.pool, root).await?;
        let image_bytes: u64 = descriptor.parts.iter().map(PartRef::image_bytes).sum();
        let mut parts = Vec::with_capacity(descriptor.parts.len());
        for at in &descriptor.parts {
            let known = known.and_then(|known| known.parts.iter().find(|part| part.at.is_same_run(at)));
            let run = match known {
                Some(known) => Arc::clone(&known.run),
                None => Arc::new(Run::load(reads, descriptor.spec.schema.columns(), at, image_bytes).await?),
            };
            let is_same = |known: &&Part| known.at.deleted == at.deleted || defect(Defect::StaleDeletes);
            let deleted = match known.filter(is_same) {
                Some(known) => Arc::clone(&known.deleted),
                None => Arc::new(read_deleted(reads.ep, reads.pool, at).await?),
            };
            let fits =
                |tree: &Image| tree.order == descriptor.spec.order && tree.manifest.id_bound == at.id_bound;
            if !run.trees.iter().all(fits) {
                let (addr, reason) = (at.first_image().value.addr, "a part has the image of another table");
                return Err(RemoteError::BadTable { addr, reason }.into());
            }
            parts.push(Part { at: at.clone(), run, deleted });
        }
        Ok(Self { descriptor, parts })
    }
}
