//! READs of an image: what one step of a query needs is collected, merged, posted together and verified.
//!
//! Parts that are close to each other are READ as one, since a message costs as much as the bytes of a small
//! gap. READs are of whole pieces, whose checksums say that they are of this image. The first READs of a query
//! are accompanied by one of the catalog's version, which says whether the image is still current: so a query
//! sees the image that was current at that moment, and needs no round trip to find out. A memory server that
//! executes a query finds the pieces in its own memory ([`Access`]).

use std::ops::{AddAssign, Range};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, Work, join_at_most};
use pando_pool::Pool;

use crate::defect::Defect;
use crate::error::{Attempt, Retry, damaged};
use crate::lists::ListCache;
use crate::manifest::{Manifest, SEAL};
use crate::options::ReadOptions;

/// Bytes per READ at most; longer parts take several.
const READ_BYTES: u64 = 256 << 10;
/// READs that a search of one image has in flight: more of them than keep a link busy gain nothing.
const VERBS_AT_ONCE: usize = 256;

/// Verbs of a query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// READs of the image.
    pub reads: u64,
    /// Bytes of these READs, with checksums.
    pub bytes_read: u64,
    /// Number of times that the query waited for READs that were posted together.
    pub round_trips: u64,
    /// READs of 8 bytes that said whether the image was current.
    pub checks: u64,
    /// Times that the query began anew because the image was replaced.
    pub restarts: u32,
    /// Rows whose codes were compared with conditions; in the linear layout MonoLists.
    pub rows_compared: u64,
    /// Rows that were found by the lists above them alone.
    pub rows_taken: u64,
    /// Calls by which memory servers searched.
    pub calls: u64,
    /// Bytes of these calls and their answers.
    pub call_bytes: u64,
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.reads += other.reads;
        self.bytes_read += other.bytes_read;
        self.round_trips += other.round_trips;
        self.checks += other.checks;
        self.restarts += other.restarts;
        self.rows_compared += other.rows_compared;
        self.rows_taken += other.rows_taken;
        self.calls += other.calls;
        self.call_bytes += other.call_bytes;
    }
}

/// Bytes that a part takes besides its own.
pub(crate) const PART_BYTES: u64 = size_of::<(u64, Vec<u8>)>() as u64;

/// Disjoint parts of an image in DRAM, ascending.
#[derive(Clone, Debug, Default)]
pub(crate) struct Parts {
    parts: Vec<(u64, Vec<u8>)>,
}

impl Parts {
    /// Adds the bytes from byte `at` of the image on, which is behind all others.
    pub fn push(&mut self, at: u64, bytes: Vec<u8>) {
        self.parts.push((at, bytes));
    }

    /// Sorts parts that were not added in order.
    pub fn sort(&mut self) {
        // Of two that begin at one place, the longer one is found.
        self.parts.sort_unstable_by_key(|(start, bytes)| (*start, bytes.len()));
    }

    /// The bytes from byte `at` of the image on, as far as the part with them reaches; none if there is no such
    /// part.
    pub fn from(&self, at: u64) -> &[u8] {
        let part = self.parts.partition_point(|&(start, _)| start <= at).checked_sub(1);
        let part = part.and_then(|part| self.parts[part].1.get((at - self.parts[part].0) as usize..));
        part.unwrap_or_default()
    }

    /// The bytes `range` of the image; `None` if they are not at hand.
    pub fn get(&self, range: &Range<u64>) -> Option<&[u8]> {
        self.from(range.start).get(..(range.end - range.start) as usize)
    }

    /// Memory that the parts take.
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|(_, bytes)| bytes.len() as u64 + PART_BYTES).sum()
    }
}

/// A READ of neighbouring pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Read {
    /// Number of the part that the pieces belong to.
    part: usize,
    piece: u64,
    pieces: u64,
    pub at: GlobalAddr,
    pub bytes: usize,
}

/// Where the bytes of an image are.
pub(crate) trait Access {
    /// Gets the bytes of all `reads`, each with the checksums among them.
    async fn read(&mut self, reads: &[Read], cost: &mut Cost) -> Attempt<Vec<Vec<u8>>>;

    /// [`Endpoint::charge`] for whoever searches.
    fn charge(&self, work: Work);
}

/// One-sided READs over a fabric.
pub(crate) struct Remote<'q, E> {
    pub ep: &'q E,
    pub pool: &'q Pool,
    /// Version of the catalog that the next READs confirm.
    pub check: &'q mut Option<u64>,
}

impl<E: Endpoint> Access for Remote<'_, E> {
    async fn read(&mut self, reads: &[Read], cost: &mut Cost) -> Attempt<Vec<Vec<u8>>> {
        let (ep, pool) = (self.ep, self.pool);
        cost.reads += reads.len() as u64;
        cost.bytes_read += reads.iter().map(|read| read.bytes as u64).sum::<u64>();
        cost.round_trips += 1;
        let check = self.check.take();
        cost.checks += u64::from(check.is_some());
        let verbs = reads.iter().map(Verb::Read).chain(check.map(Verb::Confirm));
        let pages = verbs.map(async |verb| match verb {
            Verb::Read(read) => Ok(Some(ep.read(read.at, buffer(ep, read.bytes)).await?)),
            Verb::Confirm(version) => confirm(ep, pool, version).await.map(|()| None),
        });
        let pages = join_at_most(VERBS_AT_ONCE, pages).await.into_iter().collect::<Attempt<Vec<_>>>()?;
        let bytes_of = |(read, page): (&Read, PageBuf)| {
            let mut bytes = Vec::new();
            page.append_bytes_to(read.bytes, &mut bytes);
            ep.recycle(page);
            bytes
        };
        Ok(reads.iter().zip(pages.into_iter().flatten()).map(bytes_of).collect())
    }

    fn charge(&self, work: Work) {
        self.ep.charge(work);
    }
}

/// What is posted together.
enum Verb<'r> {
    Read(&'r Read),
    /// READ of the catalog's version, which is expected to be this one.
    Confirm(u64),
}

/// Merges `wanted` into ranges of pieces.
fn merge(manifest: &Manifest, wanted: Vec<Range<u64>>, gap_bytes: u64) -> Vec<Range<u64>> {
    let nonempty = wanted.into_iter().filter(|range| !range.is_empty());
    let mut pieces: Vec<_> = nonempty.map(|range| manifest.pieces_of(&range)).collect();
    pieces.sort_unstable_by_key(|range| range.start);
    pieces.dedup_by(|next, kept| {
        let is_near = next.start <= kept.end + gap_bytes / manifest.piece_bytes;
        if is_near {
            kept.end = kept.end.max(next.end);
        }
        is_near
    });
    pieces
}

/// Cuts ranges of pieces where extents end, and into READs that are not too long.
fn cut(manifest: &Manifest, parts: &[Range<u64>]) -> Vec<Read> {
    let pieces_max = (READ_BYTES / manifest.piece_bytes).max(1);
    let mut reads = Vec::new();
    for (part, range) in parts.iter().enumerate() {
        let mut piece = range.start;
        while piece < range.end {
            let (at, left) = manifest.locate(piece);
            let pieces = left.min(range.end - piece).min(pieces_max);
            reads.push(Read { part, piece, pieces, at, bytes: (pieces * manifest.piece_bytes) as usize });
            piece += pieces;
        }
    }
    reads
}

/// READs of one attempt of a query, in one image.
pub(crate) struct Fetch<'q, A> {
    access: A,
    manifest: &'q Manifest,
    pub options: &'q ReadOptions,
    pub cost: &'q mut Cost,
    /// Lists that are kept.
    pub lists: Option<&'q ListCache>,
}

/// Bytes of a list that a search needs.
#[derive(Clone, Debug)]
pub(crate) struct ListPart {
    pub bytes: Range<u64>,
    /// Rows below the list.
    pub rows: u64,
}

impl<'q, A: Access> Fetch<'q, A> {
    pub fn new(access: A, manifest: &'q Manifest, options: &'q ReadOptions, cost: &'q mut Cost) -> Self {
        Self { access, manifest, options, cost, lists: None }
    }

    /// Keeps lists in `lists`.
    pub fn with_lists(mut self, lists: Option<&'q ListCache>) -> Self {
        self.lists = lists;
        self
    }

    /// Gets parts of lists, from the cache as far as they are there, and the others in one round trip.
    pub async fn read_lists(&mut self, wanted: Vec<ListPart>) -> Attempt<Parts> {
        let Some(lists) = self.lists else {
            return self.read(wanted.into_iter().map(|part| part.bytes).collect()).await;
        };
        let mut parts = Parts::default();
        let mut missing = Vec::new();
        for part in wanted.into_iter().filter(|part| !part.bytes.is_empty()) {
            match lists.get(&part.bytes) {
                Some(bytes) => parts.push(part.bytes.start, bytes),
                None => missing.push(part),
            }
        }
        let words = |part: &ListPart| ListCache::whole_words(&part.bytes);
        let fetched = self.read(missing.iter().map(words).collect()).await?;
        for part in missing {
            let missing = || damaged(part.bytes.start, "a list is missing");
            let whole = words(&part);
            lists.offer(whole.start, fetched.get(&whole).ok_or_else(missing)?, part.rows);
            parts.push(part.bytes.start, fetched.get(&part.bytes).ok_or_else(missing)?.to_vec());
        }
        parts.sort();
        Ok(parts)
    }

    /// [`Endpoint::charge`] for whoever searches.
    pub fn charge(&self, work: Work) {
        self.access.charge(work);
    }

    /// READs the whole image.
    pub async fn read_all(&mut self) -> Attempt<Vec<u8>> {
        let len = self.manifest.image_bytes;
        let mut image = Vec::new();
        image.try_reserve_exact(len as usize).map_err(|_| pando_elf::Error::NoMemory { bytes: len })?;
        let step = self.options.batch_bytes.max(READ_BYTES);
        for start in (0..len).step_by(step as usize) {
            let range = start..len.min(start + step);
            let parts = self.read(vec![range.clone()]).await?;
            image.extend_from_slice(parts.get(&range).ok_or_else(|| damaged(start, "bytes are missing"))?);
        }
        Ok(image)
    }

    /// READs the ranges `wanted` of bytes of the image, in one round trip.
    pub async fn read(&mut self, wanted: Vec<Range<u64>>) -> Attempt<Parts> {
        if let Some(range) = wanted.iter().find(|range| range.end > self.manifest.image_bytes) {
            return Err(damaged(range.start, "it leads to bytes behind its end"));
        }
        let pieces = merge(self.manifest, wanted, self.options.gap_bytes);
        if pieces.is_empty() {
            return Ok(Parts::default());
        }
        let reads = cut(self.manifest, &pieces);
        let stored = self.access.read(&reads, self.cost).await?;
        let payload = self.manifest.payload();
        let mut parts: Vec<_> = pieces.iter().map(|range| (range.start * payload, Vec::new())).collect();
        for (read, stored) in reads.iter().zip(stored) {
            self.charge(Work::Copy { bytes: stored.len() });
            self.verify(read, &stored, &mut parts[read.part].1)?;
        }
        Ok(Parts { parts })
    }

    /// Appends the image's bytes of the pieces of `read` to `out`.
    fn verify(&self, read: &Read, stored: &[u8], out: &mut Vec<u8>) -> Attempt<()> {
        let size = self.manifest.piece_bytes as usize;
        out.reserve(stored.len());
        for (piece, bytes) in (read.piece..).zip(stored.chunks_exact(size)) {
            let (payload, seal) = bytes.split_at(size - SEAL as usize);
            let is_right = self.manifest.seal(piece, payload).to_le_bytes() == seal;
            if !is_right && !defect(Defect::UnverifiedPiece) {
                return Err(Retry::Changed(self.manifest.locate(piece).0));
            }
            out.extend_from_slice(payload);
        }
        Ok(())
    }
}

/// Fails if the catalog has another version than `expected`, or is being changed.
pub(crate) async fn confirm<E: Endpoint>(ep: &E, pool: &Pool, expected: u64) -> Attempt<()> {
    let is_current = pool.catalog_version(ep).await? == Some(expected);
    if is_current || defect(Defect::UnconfirmedVersion) { Ok(()) } else { Err(Retry::Moved) }
}

/// A buffer with a window of `bytes`. Lengths are few, so that buffers are reused.
fn buffer<E: Endpoint>(ep: &E, bytes: usize) -> PageBuf {
    ep.buffer(bytes.next_power_of_two()).with_window(0..bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Extent;

    #[test]
    fn parts_that_are_close_are_read_as_one() {
        let mut manifest = Manifest::new(1, 56 * 40, 10, 64, 1024);
        let addr = |raw| GlobalAddr::from_raw(raw).expect("not swizzled");
        manifest.add(Extent { addr: addr(0x4000), blocks: 1 });
        manifest.add(Extent { addr: addr(0x1_0000_4000), blocks: 2 });
        let of = |piece: u64| piece * 56 + 1..piece * 56 + 50;
        let merged = merge(&manifest, vec![of(9), of(3), 7..7, of(4), of(6), of(20)], 64);
        assert_eq!(merged, [3..7, 9..10, 20..21]);
        assert_eq!(merge(&manifest, vec![of(9), of(3), of(6), of(14)], 127 + 128), [3..10, 14..15]);
        let over_the_border = 15..18;
        let reads = cut(&manifest, &[over_the_border]);
        let expected = [
            Read { part: 0, piece: 15, pieces: 1, at: addr(0x43c0), bytes: 64 },
            Read { part: 0, piece: 16, pieces: 2, at: addr(0x1_0000_4000), bytes: 128 },
        ];
        assert_eq!(reads, expected);
    }

    #[test]
    fn parts_are_found_by_their_bytes() {
        let mut parts = Parts::default();
        parts.push(30, vec![3; 5]);
        parts.push(10, vec![1; 4]);
        parts.sort();
        assert_eq!(parts.get(&(11..14)), Some([1, 1, 1].as_slice()));
        assert_eq!((parts.get(&(11..15)), parts.get(&(9..11)), parts.get(&(40..41))), (None, None, None));
        assert_eq!((parts.from(33), parts.bytes()), ([3, 3].as_slice(), 9 + 2 * PART_BYTES));
    }
}
