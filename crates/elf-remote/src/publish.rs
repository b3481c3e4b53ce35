//! Publishing of images.
//!
//! 1. The pieces of an image are written to extents on all active memory servers in turn, then its manifest.
//!    Nothing leads there yet, and written blocks are never written again while they are in use.
//! 2. The record of the index is replaced by one that leads to the new manifest. The catalog does this by the
//!    WRITE of one word (docs/pool.md), so a publisher that stops anywhere leaves the old image or the new one.
//! 3. The blocks of the replaced image rest, and are freed after the grace.
//!
//! Steps 2 and 3 are those of [`crate::switch`].

use pando_elf::Elf;
use pando_fabric::Endpoint;
use pando_pool::{IndexRecord, Pool, PoolError};

use crate::error::{RemoteError, Result, Retry};
use crate::image::Image;
use crate::limbo::{Batch, Block};
use crate::manifest::{Kind, PIECES, Root, Stamped};
use crate::options::PublishOptions;
use crate::switch::{Switched, Switcher, spec};
use crate::write::{NewImage, Source, write_image};

/// The right of a process to publish images of one Elf. Others may publish too; the last one counts.
/// Before it is dropped, [`Publisher::settle`] frees what it replaced.
pub struct Publisher {
    switcher: Switcher,
    options: PublishOptions,
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
        check_options(&pool, &options)?;
        let spec = spec(name, Root { kind: Kind::Image, target: None }, options.piece_bytes);
        match pool.open_index(ep, name).await {
            Ok(record) => drop(image_of(&record)?),
            Err(PoolError::UnknownIndex { .. }) => match pool.create_index(ep, spec).await {
                Err(PoolError::IndexExists { .. }) => drop(image_of(&pool.open_index(ep, name).await?)?),
                created => drop(created?),
            },
            Err(error) => return Err(error.into()),
        }
        let switcher = Switcher::new(pool, name.to_owned(), options.grace_ns);
        Ok(Self { switcher, options })
    }

    /// Replaces the image of the index by that of `elf`.
    ///
    /// # Errors
    /// [`PoolError::PoolFull`] and other errors of the pool, [`RemoteError::KeptLosing`]; the old image then
    /// remains, and no block is lost. [`PoolError::CatalogUnknown`] if it is not known which image is current;
    /// a later call of [`Publisher::reclaim`] finds out.
    pub async fn publish<B: AsRef<[u8]>, E: Endpoint>(&self, ep: &E, elf: &Elf<B>) -> Result<Published> {
        let switcher = &self.switcher;
        // What cannot be freed now is freed later.
        let _ = self.reclaim(ep).await;
        let mut unpublished = switcher.limbo.begin();
        let (source, id_bound) = (Source::Bytes(elf.bytes()), elf.id_bound());
        let image = NewImage { source, id_bound, home: self.options.home };
        let written = write_image(ep, &switcher.pool, image, &self.options, &mut unpublished).await;
        let (image, bytes) = match written {
            Ok(written) => written,
            Err(error) => return switcher.discard(ep, unpublished.take(), error).await,
        };
        for _ in 0..self.options.attempts_max.max(1) {
            let (record, old) = match self.replaced(ep).await {
                Ok(found) => found,
                Err(error) => return switcher.discard(ep, unpublished.take(), error).await,
            };
            let new = unpublished.take();
            match switcher.switch(ep, record, Kind::Image, image, new, old).await? {
                Switched::To(version) => return Ok(Published { version, bytes }),
                Switched::Stale(new) => {
                    unpublished = switcher.limbo.begin();
                    unpublished.batch = new;
                }
            }
        }
        let (name, times) = (switcher.name.clone(), self.options.attempts_max);
        switcher.discard(ep, unpublished.take(), RemoteError::KeptLosing { name, times }).await
    }

    /// The record of the index, and the blocks of its image.
    async fn replaced<E: Endpoint>(&self, ep: &E) -> Result<(IndexRecord, Batch)> {
        let mut times = 0;
        loop {
            let record = self.switcher.pool.open_index(ep, &self.switcher.name).await?;
            let Some(image) = image_of(&record)? else { return Ok((record, Batch::default())) };
            match Image::read_manifest(ep, &self.switcher.pool, &image).await {
                Ok(manifest) => {
                    let blocks = manifest.blocks().collect();
                    return Ok((record, Batch { values: vec![image.value], blocks }));
                }
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Changed(addr)) if times >= self.options.attempts_max => {
                    return Err(RemoteError::BadPiece { name: self.switcher.name.clone(), addr });
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
        self.switcher.reclaim(ep).await
    }

    /// Waits until all replaced images are free, as long as `patience_ns`; returns how many are not.
    ///
    /// # Errors
    /// As for [`Publisher::reclaim`].
    pub async fn settle<E: Endpoint>(&self, ep: &E, patience_ns: u64) -> Result<usize> {
        self.switcher.settle(ep, patience_ns).await
    }

    /// Blocks, with their sizes, that this publisher gave up, because they may be in use or free already.
    pub fn doubtful(&self) -> Vec<Block> {
        self.switcher.doubtful()
    }

    /// Blocks of the current image, with their sizes, for audits and for a rebuild of the allocation.
    ///
    /// # Errors
    /// Errors of the catalog; damage of the manifest.
    pub async fn blocks<E: Endpoint>(&self, ep: &E) -> Result<Vec<Block>> {
        let (_, batch) = self.replaced(ep).await?;
        let mut blocks = batch.blocks;
        for value in batch.values {
            self.switcher.pool.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await?;
        }
        Ok(blocks)
    }
}

/// The image in a record.
fn image_of(record: &IndexRecord) -> Result<Option<Stamped>> {
    let image = Root::of_kind(Kind::Image, &record.layout);
    image.ok_or_else(|| RemoteError::NotAnElf { name: record.name.clone() })
}

/// Fails if images cannot be published like this in `pool`.
pub(crate) fn check_options(pool: &Pool, options: &PublishOptions) -> Result<()> {
    let size = u64::from(options.piece_bytes);
    match size.is_power_of_two() && PIECES.contains(&size) && size <= pool.max_block() {
        true => Ok(()),
        false => Err(RemoteError::Options(
            "the size of pieces must be a power of two from 64 bytes to 64 KiB, and fit into a block",
        )),
    }
}
