//! Writing of an image to blocks of the pool, before anything leads to it.
//!
//! Extents go to the active memory servers in turn, as long as these have room, so that READs of different parts
//! are served by different servers. A tree of a forest has a *home*: one server that has all of it, so that it can
//! search it by itself. Every block belongs to the [`Unpublished`] from the moment it is allocated:
//! whatever happens then, it is published or freed.

use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use pando_fabric::{Endpoint, MemoryServerId, join_all};
use pando_pool::{Placement, Pool};

use crate::error::{RemoteError, Result};
use crate::limbo::Unpublished;
use crate::manifest::{Extent, Manifest, SEAL, Stamped};
use crate::options::PublishOptions;

/// Bytes per WRITE, as far as blocks are that large, and the number of WRITEs in flight.
const WRITE_BYTES: u64 = 64 << 10;
const WRITES: usize = 16;

/// Where the bytes of an image are.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    Bytes(&'a [u8]),
    /// A file with nothing else in it.
    File(&'a File),
}

impl Source<'_> {
    pub(crate) fn len(&self) -> Result<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.len() as u64),
            Self::File(file) => Ok(file.metadata().map_err(unreadable)?.len()),
        }
    }

    /// The bytes in `range`, as far as there are any.
    fn bytes(&self, range: Range<u64>) -> Result<Cow<'_, [u8]>> {
        match self {
            Self::Bytes(bytes) => {
                let end = range.end.min(bytes.len() as u64) as usize;
                Ok(Cow::Borrowed(&bytes[range.start as usize..end]))
            }
            Self::File(file) => {
                let end = range.end.min(self.len()?);
                let mut bytes = vec![0; (end - range.start) as usize];
                file.read_exact_at(&mut bytes, range.start).map_err(unreadable)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}

fn unreadable(error: std::io::Error) -> RemoteError {
    RemoteError::UnreadableImage { reason: error.to_string() }
}

/// An image to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewImage<'a> {
    pub source: Source<'a>,
    /// All row ids are below it.
    pub id_bound: u64,
    /// The server that gets all of it, as long as it has room.
    pub home: Option<MemoryServerId>,
}

/// Writes an image and its manifest; returns the image, and the bytes of its blocks. All blocks are in
/// `unpublished`, also after an error.
pub(crate) async fn write_image<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    image: NewImage<'_>,
    options: &PublishOptions,
    unpublished: &mut Unpublished<'_>,
) -> Result<(Stamped, u64)> {
    let NewImage { source, id_bound, home } = image;
    let (len, piece_bytes) = (source.len()?, u64::from(options.piece_bytes));
    let stored = len.div_ceil(piece_bytes - SEAL) * piece_bytes;
    let block_bytes = stored.next_power_of_two().min(pool.max_block());
    let mut manifest = Manifest::new(ep.random(), len, id_bound, piece_bytes, block_bytes);
    let blocks_before = unpublished.batch.blocks.len();
    allocate(ep, pool, options.stripe_bytes, home, &mut manifest, unpublished).await?;
    write_pieces(ep, &manifest, &source).await?;
    let placement = Placement::Prefer(MemoryServerId(0));
    let value = pool.put_value(ep, placement, &manifest.encode()).await?;
    unpublished.batch.values.push(value);
    let bytes = unpublished.batch.blocks[blocks_before..].iter().map(|block| block.1).sum();
    Ok((Stamped { value, stamp: manifest.stamp }, bytes))
}

/// Allocates the extents of an image: at home, and without a home or room there on all active memory servers in
/// turn.
async fn allocate<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    stripe_bytes: u64,
    mut home: Option<MemoryServerId>,
    manifest: &mut Manifest,
    unpublished: &mut Unpublished<'_>,
) -> Result<()> {
    let stripe = (stripe_bytes / manifest.block_bytes).max(1);
    let mut servers = pool.active_servers();
    let first = servers.iter().position(|&server| server == pool.least_loaded()).unwrap_or(0);
    servers.rotate_left(first);
    let mut turn = 0;
    while manifest.blocks_missing() > 0 {
        let most = if home.is_some() { manifest.blocks_missing() } else { stripe };
        let want = most.min(manifest.blocks_missing()).min(u32::MAX.into()) as u32;
        let server = home.unwrap_or(servers[turn % servers.len()]);
        match pool.lease_run(ep, server, manifest.block_bytes, want).await {
            Ok(mut run) => {
                let blocks = u64::from(run.left());
                let Some(addr) = run.next() else { continue };
                unpublished.batch.blocks.push((addr, manifest.block_bytes));
                unpublished.batch.blocks.extend(run.map(|block| (block, manifest.block_bytes)));
                manifest.add(Extent { addr, blocks });
                turn += 1;
            }
            Err(error) if error.is_full() && home.is_some() => home = None,
            Err(error) if error.is_full() && servers.len() > 1 => {
                servers.remove(turn % servers.len());
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes the pieces of the image in `source` to their places.
async fn write_pieces<E: Endpoint>(ep: &E, manifest: &Manifest, source: &Source<'_>) -> Result<()> {
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
            page.copy_from_bytes(&stored(manifest, source, pieces)?);
            ep.recycle(ep.write(at, page).await?);
            Ok(())
        });
        join_all(writes).await.into_iter().collect::<Result<Vec<()>>>()?;
    }
    Ok(())
}

/// Pieces of the image in `source` as they are stored.
pub(crate) fn stored(manifest: &Manifest, source: &Source<'_>, pieces: Range<u64>) -> Result<Vec<u8>> {
    let payload = manifest.payload() as usize;
    let image = source.bytes(pieces.start * payload as u64..pieces.end * payload as u64)?;
    let mut stored = Vec::with_capacity(((pieces.end - pieces.start) * manifest.piece_bytes) as usize);
    for (piece, bytes) in pieces.zip(image.chunks(payload)) {
        let start = stored.len();
        stored.extend_from_slice(bytes);
        stored.resize(start + payload, 0);
        let seal = manifest.seal(piece, &stored[start..]);
        stored.extend(seal.to_le_bytes());
    }
    Ok(stored)
}
