//! Writing of an image to blocks of the pool, before anything leads to it.
//!
//! Extents go to the active memory servers in turn, as long as these have room, so that READs of different parts
//! are served by different servers. Every block belongs to the [`Unpublished`] from the moment it is allocated:
//! whatever happens then, it is published or freed.

use std::ops::Range;

use pando_elf::Elf;
use pando_fabric::{Endpoint, MemoryServerId, join_all};
use pando_pool::{Placement, Pool};

use crate::error::Result;
use crate::limbo::Unpublished;
use crate::manifest::{Extent, ImageRef, Manifest, SEAL};
use crate::options::PublishOptions;

/// Bytes per WRITE, as far as blocks are that large, and the number of WRITEs in flight.
const WRITE_BYTES: u64 = 64 << 10;
const WRITES: usize = 16;

/// Writes the image of `elf` and its manifest; returns the image, and the bytes of its blocks. All blocks are in
/// `unpublished`, also after an error.
pub(crate) async fn write_image<B: AsRef<[u8]>, E: Endpoint>(
    (ep, pool): (&E, &Pool),
    elf: &Elf<B>,
    options: &PublishOptions,
    unpublished: &mut Unpublished<'_>,
) -> Result<(ImageRef, u64)> {
    let (image, piece_bytes) = (elf.bytes(), u64::from(options.piece_bytes));
    let stored = (image.len() as u64).div_ceil(piece_bytes - SEAL) * piece_bytes;
    let block_bytes = stored.next_power_of_two().min(pool.max_block());
    let mut manifest =
        Manifest::new(ep.random(), image.len() as u64, elf.id_bound(), piece_bytes, block_bytes);
    allocate((ep, pool), options.stripe_bytes, &mut manifest, unpublished).await?;
    write_pieces(ep, &manifest, image).await?;
    let placement = Placement::Prefer(MemoryServerId(0));
    let value = pool.put_value(ep, placement, &manifest.encode()).await?;
    unpublished.batch.manifest = Some(value);
    let bytes = unpublished.batch.blocks.iter().map(|block| block.1).sum();
    Ok((ImageRef { manifest: value, stamp: manifest.stamp }, bytes))
}

/// Allocates the extents of an image, on all active memory servers in turn.
async fn allocate<E: Endpoint>(
    (ep, pool): (&E, &Pool),
    stripe_bytes: u64,
    manifest: &mut Manifest,
    unpublished: &mut Unpublished<'_>,
) -> Result<()> {
    let stripe = (stripe_bytes / manifest.block_bytes).max(1);
    let mut servers = pool.active_servers();
    let first = servers.iter().position(|&server| server == pool.least_loaded()).unwrap_or(0);
    servers.rotate_left(first);
    let mut turn = 0;
    while manifest.blocks_missing() > 0 {
        let want = stripe.min(manifest.blocks_missing()).min(u32::MAX.into()) as u32;
        let server = servers[turn % servers.len()];
        match pool.lease_run(ep, server, manifest.block_bytes, want).await {
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
async fn write_pieces<E: Endpoint>(ep: &E, manifest: &Manifest, image: &[u8]) -> Result<()> {
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

/// Pieces of `image` as they are stored.
fn stored(manifest: &Manifest, image: &[u8], pieces: Range<u64>) -> Vec<u8> {
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
