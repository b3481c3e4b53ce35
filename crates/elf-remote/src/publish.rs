//! Publishing of images.
//!
//! 1. The pieces of an image are written to extents on all active memory servers in turn, then its manifest.
//!    Nothing leads there yet, and written blocks are never written again while they are in use.
//! 2. The record of the index is replaced by one that leads to the new manifest. The catalog does this by the
//!    WRITE of one word (docs/pool.md), so a publisher that stops anywhere leaves the old image or the new one.
//! 3. The blocks of the replaced image rest, and are freed after the grace.
//!
//! If the catalog cannot tell whether step 2 took effect, both images stay allocated until its record says so.

use std::sync::{Mutex, PoisonError};

use pando_elf::Elf;
use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Due, IndexRecord, IndexSpec, Pool, PoolError};

use crate::error::{RemoteError, Result, Retry};
use crate::image::Image;
use crate::limbo::{Batch, Block, Limbo};
use crate::manifest::{ImageRef, PIECES};
use crate::options::PublishOptions;
use crate::write::write_image;

/// Number by which the catalog knows an Elf from other kinds of indexes.
pub const SYSTEM: u16 = 4;

/// A change of the record whose outcome is not known.
struct Undecided {
    /// Version that the record has if it took effect.
    version: u64,
    id: u32,
    stamp: u64,
    new: Batch,
    old: Batch,
}

/// Whether a change of the record took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Published,
    NotPublished,
    /// Others have changed the record since, and may have freed what it led to.
    Unknown,
}

/// Result of a change of the record.
enum Switched {
    /// The version that leads to the new image.
    To(u64),
    /// Another publisher was faster; the blocks of the image that was to be published.
    Stale(Batch),
}

/// The right of a process to publish images of one Elf. Others may publish too; the last one counts.
/// Before it is dropped, [`Publisher::settle`] frees what it replaced.
pub struct Publisher {
    pool: Pool,
    name: String,
    options: PublishOptions,
    limbo: Limbo,
    undecided: Mutex<Vec<Undecided>>,
}

/// Version of the index that has a published image, to compare with [`Answer::version`](crate::Answer).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    pub version: u64,
    /// Bytes of blocks that the image takes, without the manifest.
    pub bytes: u64,
}

impl Publisher {
    /// Opens the Elf that the catalog knows as `name`, or enters it, without an image.
    ///
    /// # Errors
    /// [`RemoteError::Options`], [`RemoteError::NotAnElf`] if the name is another index's; errors of the
    /// catalog.
    pub async fn open<E: Endpoint>(ep: &E, pool: Pool, name: &str, options: PublishOptions) -> Result<Self> {
        let size = u64::from(options.piece_bytes);
        if !size.is_power_of_two() || !PIECES.contains(&size) || size > pool.max_block() {
            return Err(RemoteError::Options(
                "the size of pieces must be a power of two from 64 bytes to 64 KiB, and fit into a block",
            ));
        }
        let spec = IndexSpec {
            name: name.to_owned(),
            system: SYSTEM,
            node_size: options.piece_bytes,
            subtree_level: 0,
            root: GlobalAddr::NULL,
            layout: ImageRef::encode(None),
            boundaries: Vec::new(),
        };
        match pool.open_index(ep, name).await {
            Ok(record) => drop(image_of(&record)?),
            Err(PoolError::UnknownIndex { .. }) => match pool.create_index(ep, spec).await {
                Err(PoolError::IndexExists { .. }) => drop(image_of(&pool.open_index(ep, name).await?)?),
                created => drop(created?),
            },
            Err(error) => return Err(error.into()),
        }
        let (limbo, undecided) = (Limbo::default(), Mutex::default());
        Ok(Self { pool, name: name.to_owned(), options, limbo, undecided })
    }

    /// Replaces the image of the index by that of `elf`.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`] and other errors of the pool, [`RemoteError::KeptLosing`]; the old image then
    /// remains, and no block is lost. [`PoolError::CatalogUnknown`] if it is not known which image is current;
    /// a later call of [`Publisher::reclaim`] finds out.
    pub async fn publish<B: AsRef<[u8]>, E: Endpoint>(&self, ep: &E, elf: &Elf<B>) -> Result<Published> {
        // What cannot be freed now is freed later.
        let _ = self.reclaim(ep).await;
        let mut unpublished = self.limbo.begin();
        let written = write_image((ep, &self.pool), elf, &self.options, &mut unpublished).await;
        let (image, bytes) = match written {
            Ok(written) => written,
            Err(error) => return self.discard(ep, unpublished.take(), error).await,
        };
        for _ in 0..self.options.attempts_max.max(1) {
            let (record, old) = match self.replaced(ep).await {
                Ok(found) => found,
                Err(error) => return self.discard(ep, unpublished.take(), error).await,
            };
            let new = unpublished.take();
            match self.switch(ep, record, image, new, old).await? {
                Switched::To(version) => return Ok(Published { version, bytes }),
                Switched::Stale(new) => {
                    unpublished = self.limbo.begin();
                    unpublished.batch = new;
                }
            }
        }
        let (name, times) = (self.name.clone(), self.options.attempts_max);
        self.discard(ep, unpublished.take(), RemoteError::KeptLosing { name, times }).await
    }

    /// Replaces `record` by one that leads to `image`. The blocks of both images are taken care of, except if
    /// the record is stale.
    async fn switch<E: Endpoint>(
        &self,
        ep: &E,
        record: IndexRecord,
        image: ImageRef,
        new: Batch,
        old: Batch,
    ) -> Result<Switched> {
        let (root, layout) = (image.manifest.addr, ImageRef::encode(Some(image)));
        let changed = IndexRecord { root, layout, ..record };
        let (version, stamp) = (changed.version + 1, image.stamp);
        // If the future is dropped from here on, the outcome is not known.
        let undecided = Undecided { version, id: changed.id, stamp, new, old };
        let deciding = Deciding { publisher: self, undecided: Some(undecided) };
        match self.pool.update_index(ep, &changed).await {
            Ok(_) => {
                self.retire(ep, deciding.decided().old);
                Ok(Switched::To(version))
            }
            Err(PoolError::StaleRecord { .. }) => Ok(Switched::Stale(deciding.decided().new)),
            Err(PoolError::CatalogUnknown { error }) => {
                drop(deciding);
                let fates = self.decide(ep).await.unwrap_or_default();
                let fate = fates.into_iter().find(|decided| decided.0 == stamp).map(|decided| decided.1);
                match fate.unwrap_or(Fate::Unknown) {
                    Fate::Published => Ok(Switched::To(version)),
                    Fate::NotPublished => Err(PoolError::CatalogUnchanged { error }.into()),
                    Fate::Unknown => Err(PoolError::CatalogUnknown { error }.into()),
                }
            }
            Err(error) => self.discard(ep, deciding.decided().new, error.into()).await,
        }
    }

    /// Lets the blocks of a replaced image rest.
    fn retire<E: Endpoint>(&self, ep: &E, old: Batch) {
        self.limbo.rest(old, Due::At(ep.now().saturating_add(self.options.grace_ns)));
    }

    /// Frees an image that was not published, none of whose verbs is in flight.
    async fn discard<T, E: Endpoint>(&self, ep: &E, batch: Batch, error: RemoteError) -> Result<T> {
        self.limbo.rest(batch, Due::Now);
        let _ = self.limbo.reclaim(ep, &self.pool).await;
        Err(error)
    }

    /// The record of the index, and the blocks of its image.
    async fn replaced<E: Endpoint>(&self, ep: &E) -> Result<(IndexRecord, Batch)> {
        let mut times = 0;
        loop {
            let record = self.pool.open_index(ep, &self.name).await?;
            let Some(image) = image_of(&record)? else { return Ok((record, Batch::default())) };
            match Image::read_manifest(ep, &self.pool, &image).await {
                Ok(manifest) => {
                    let blocks = manifest.blocks().collect();
                    return Ok((record, Batch { manifest: Some(image.manifest), blocks }));
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Changed(addr)) if times >= self.options.attempts_max => {
                    return Err(RemoteError::BadPiece { name: self.name.clone(), addr });
                }
                // Another publisher has replaced it.
                Err(Retry::Changed(_) | Retry::Moved) => times += 1,
            }
        }
    }

    /// Frees what is due: replaced images after the grace, and images that were not published. Finds out which
    /// publications took effect, where that was not known.
    ///
    /// # Errors
    /// Errors of the pool and of verbs; what is not free yet is kept.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.decide(ep).await?;
        self.limbo.reclaim(ep, &self.pool).await
    }

    /// Finds out which changes took effect; returns their stamps.
    async fn decide<E: Endpoint>(&self, ep: &E) -> Result<Vec<(u64, Fate)>> {
        // Changes that become undecided from here on are not judged by what the catalog says now.
        let stamps: Vec<u64> = self.undecided().iter().map(|change| change.stamp).collect();
        if stamps.is_empty() {
            return Ok(Vec::new());
        }
        let record = match self.pool.open_index(ep, &self.name).await {
            Err(PoolError::UnknownIndex { .. }) => None,
            record => Some(record?),
        };
        let judged = |change: &mut Undecided| stamps.contains(&change.stamp);
        let undecided: Vec<_> = self.undecided().extract_if(.., judged).collect();
        let mut fates = Vec::new();
        for undecided in undecided {
            let fate = fate(&undecided, record.as_ref());
            let Undecided { stamp, new, old, .. } = undecided;
            fates.push((stamp, fate));
            match fate {
                Fate::Published => self.retire(ep, old),
                Fate::NotPublished => self.limbo.rest(new, Due::Now),
                Fate::Unknown => [new, old].into_iter().for_each(|batch| self.limbo.doubt(batch)),
            }
        }
        Ok(fates)
    }

    /// Waits until all replaced images are free, as long as `patience_ns`; returns how many are not.
    ///
    /// # Errors
    /// As for [`Publisher::reclaim`].
    pub async fn settle<E: Endpoint>(&self, ep: &E, patience_ns: u64) -> Result<usize> {
        let deadline = ep.now().saturating_add(patience_ns);
        loop {
            self.reclaim(ep).await?;
            let left = self.limbo.resting() + self.undecided().len();
            if left == 0 || ep.now() >= deadline {
                return Ok(left);
            }
            ep.yield_now().await;
        }
    }

    /// Blocks, with their sizes, that this publisher gave up, because they may be in use or free already.
    pub fn doubtful(&self) -> Vec<Block> {
        self.limbo.doubtful()
    }

    /// Blocks of the current image, with their sizes, for audits and for a rebuild of the allocation.
    ///
    /// # Errors
    /// Errors of the catalog; damage of the manifest.
    pub async fn blocks<E: Endpoint>(&self, ep: &E) -> Result<Vec<Block>> {
        let (_, batch) = self.replaced(ep).await?;
        let mut blocks = batch.blocks;
        if let Some(manifest) = batch.manifest {
            self.pool.visit_value_blocks(ep, manifest, |addr, size| blocks.push((addr, size))).await?;
        }
        Ok(blocks)
    }

    fn undecided(&self) -> std::sync::MutexGuard<'_, Vec<Undecided>> {
        self.undecided.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A change of the record that is in progress. Dropped, its outcome is not known.
struct Deciding<'p> {
    publisher: &'p Publisher,
    undecided: Option<Undecided>,
}

impl Deciding<'_> {
    fn decided(mut self) -> Undecided {
        self.undecided.take().expect("only this consuming method takes it")
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.publisher.undecided().extend(self.undecided.take());
    }
}

/// The image in a record.
fn image_of(record: &IndexRecord) -> Result<Option<ImageRef>> {
    ImageRef::decode(&record.layout).ok_or_else(|| RemoteError::NotAnElf { name: record.name.clone() })
}

/// What the present record says of a change whose outcome was not known.
fn fate(change: &Undecided, record: Option<&IndexRecord>) -> Fate {
    let Some(record) = record.filter(|record| record.id == change.id) else { return Fate::Unknown };
    let stamp = ImageRef::decode(&record.layout).flatten().map(|image| image.stamp);
    match record.version {
        version if version < change.version => Fate::NotPublished,
        _ if stamp == Some(change.stamp) => Fate::Published,
        version if version == change.version => Fate::NotPublished,
        _ => Fate::Unknown,
    }
}
