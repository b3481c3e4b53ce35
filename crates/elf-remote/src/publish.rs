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
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, join_all};
use pando_pool::{Due, IndexRecord, IndexSpec, Pool, PoolError};

use crate::error::{RemoteError, Result, Retry};
use crate::image::Image;
use crate::limbo::{Batch, Block, Limbo, Unpublished};
use crate::manifest::{Extent, ImageRef, Manifest, PIECES, SEAL};
use crate::options::PublishOptions;

/// Number by which the catalog knows an Elf from other kinds of indexes.
pub const SYSTEM: u16 = 4;
/// Bytes per WRITE, as far as blocks are that large, and the number of WRITEs in flight.
const WRITE_BYTES: u64 = 64 << 10;
const WRITES: usize = 16;

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

/// The right of a process to publish images of one Elf. Others may publish too; the last one counts.
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
        let written = self.write_image(ep, elf.bytes(), &mut unpublished).await;
        let (image, bytes) = match written {
            Ok(written) => written,
            Err(error) => return self.discard(ep, unpublished.take(), error).await,
        };
        for _ in 0..self.options.attempts_max.max(1) {
            let (record, old) = match self.replaced(ep).await {
                Ok(found) => found,
                Err(error) => return self.discard(ep, unpublished.take(), error).await,
            };
            let (root, layout) = (image.manifest.addr, ImageRef::encode(Some(image)));
            let changed = IndexRecord { root, layout, ..record };
            let (version, id) = (changed.version + 1, changed.id);
            // From here on a drop of the future leaves the outcome unknown.
            let new = unpublished.take();
            let undecided = Undecided { version, id, stamp: image.stamp, new, old };
            let deciding = Deciding { publisher: self, undecided: Some(undecided) };
            let updated = self.pool.update_index(ep, &changed).await;
            match updated {
                Ok(_) => {
                    let undecided = deciding.decided();
                    self.retire(ep, undecided.old);
                    return Ok(Published { version, bytes });
                }
                Err(PoolError::StaleRecord { .. }) => {
                    unpublished = self.limbo.begin();
                    unpublished.batch = deciding.decided().new;
                }
                Err(error @ PoolError::CatalogUnknown { .. }) => {
                    drop(deciding);
                    let _ = self.reclaim(ep).await;
                    return Err(error.into());
                }
                Err(error) => return self.discard(ep, deciding.decided().new, error.into()).await,
            }
        }
        let (name, times) = (self.name.clone(), self.options.attempts_max);
        self.discard(ep, unpublished.take(), RemoteError::KeptLosing { name, times }).await
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
            match Image::manifest(ep, &self.pool, &image).await {
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
        let undecided = std::mem::take(&mut *self.undecided());
        if !undecided.is_empty() {
            let record = match self.pool.open_index(ep, &self.name).await {
                Err(PoolError::UnknownIndex { .. }) => None,
                Ok(record) => Some(record),
                Err(error) => {
                    self.undecided().extend(undecided);
                    return Err(error.into());
                }
            };
            for undecided in undecided {
                let fate = fate(&undecided, record.as_ref());
                let Undecided { new, old, .. } = undecided;
                match fate {
                    Fate::Published => self.retire(ep, old),
                    Fate::NotPublished => self.limbo.rest(new, Due::Now),
                    Fate::Unknown => [new, old].into_iter().for_each(|batch| self.limbo.doubt(batch)),
                }
            }
        }
        self.limbo.reclaim(ep, &self.pool).await
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

impl Publisher {
    /// Writes an image and its manifest; returns the image, and the bytes of its blocks. All blocks are in
    /// `unpublished`, also after an error.
    async fn write_image<E: Endpoint>(
        &self,
        ep: &E,
        image: &[u8],
        unpublished: &mut Unpublished<'_>,
    ) -> Result<(ImageRef, u64)> {
        let piece_bytes = u64::from(self.options.piece_bytes);
        let stored = (image.len() as u64).div_ceil(piece_bytes - SEAL) * piece_bytes;
        let block_bytes = stored.next_power_of_two().min(self.pool.max_block());
        let mut manifest = Manifest::new(ep.random(), image.len() as u64, piece_bytes, block_bytes);
        self.allocate(ep, &mut manifest, unpublished).await?;
        self.write_pieces(ep, &manifest, image).await?;
        let placement = pando_pool::Placement::Prefer(MemoryServerId(0));
        let value = self.pool.put_value(ep, placement, &manifest.encode()).await?;
        unpublished.batch.manifest = Some(value);
        let bytes = unpublished.batch.blocks.iter().map(|block| block.1).sum();
        Ok((ImageRef { manifest: value, stamp: manifest.stamp }, bytes))
    }

    /// Allocates the extents of an image, on all active memory servers in turn.
    async fn allocate<E: Endpoint>(
        &self,
        ep: &E,
        manifest: &mut Manifest,
        unpublished: &mut Unpublished<'_>,
    ) -> Result<()> {
        let stripe = (self.options.stripe_bytes / manifest.block_bytes).max(1);
        let mut servers = self.pool.active_servers();
        let first = servers.iter().position(|&server| server == self.pool.least_loaded()).unwrap_or(0);
        servers.rotate_left(first);
        let mut turn = 0;
        while manifest.blocks_missing() > 0 {
            let want = stripe.min(manifest.blocks_missing()).min(u32::MAX.into()) as u32;
            let server = servers[turn % servers.len()];
            match self.pool.lease_run(ep, server, manifest.block_bytes, want).await {
                Ok(mut run) => {
                    let blocks = u64::from(run.left());
                    let Some(addr) = run.next() else { continue };
                    unpublished.batch.blocks.push((addr, manifest.block_bytes));
                    unpublished.batch.blocks.extend(run.map(|block| (block, manifest.block_bytes)));
                    manifest.add(Extent { addr, blocks });
                    turn += 1;
                }
                Err(error) if error.is_full() && servers.len() > 1 => {
                    servers.remove(turn % servers.len());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes the pieces of `image` to their places.
    async fn write_pieces<E: Endpoint>(&self, ep: &E, manifest: &Manifest, image: &[u8]) -> Result<()> {
        let most = (WRITE_BYTES / manifest.piece_bytes).max(1);
        let mut piece = 0;
        while piece < manifest.pieces() {
            let mut writes = Vec::with_capacity(WRITES);
            while writes.len() < WRITES && piece < manifest.pieces() {
                let (at, left) = manifest.locate(piece);
                let pieces = left.min(manifest.pieces() - piece).min(most);
                writes.push((at, piece..piece + pieces));
                piece += pieces;
            }
            let writes = writes.into_iter().map(async |(at, pieces)| {
                let mut page = ep.buffer(((pieces.end - pieces.start) * manifest.piece_bytes) as usize);
                page.copy_from_bytes(&stored(manifest, image, pieces));
                ep.recycle(ep.write(at, page).await?);
                Ok(())
            });
            join_all(writes).await.into_iter().collect::<Result<Vec<()>>>()?;
        }
        Ok(())
    }
}

/// Pieces of `image` as they are stored.
fn stored(manifest: &Manifest, image: &[u8], pieces: std::ops::Range<u64>) -> Vec<u8> {
    let payload = manifest.payload() as usize;
    let mut stored = Vec::with_capacity(((pieces.end - pieces.start) * manifest.piece_bytes) as usize);
    for piece in pieces {
        let from = piece as usize * payload;
        let bytes = &image[from..image.len().min(from + payload)];
        let start = stored.len();
        stored.extend_from_slice(bytes);
        stored.resize(start + payload, 0);
        let seal = manifest.seal(piece, &stored[start..]);
        stored.extend(seal.to_le_bytes());
    }
    stored
}
