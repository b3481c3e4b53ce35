//! Where a log lies: a root block, which leads to lists of the segments of each lane, and two control blocks per
//! lane.
//!
//! ```text
//! root     "PANDOLOG" [seed] [lanes:32][segments of each:32] [bytes of a segment] [index id] [scratch]
//!          [check of the lists] [check of the root]  [address of a list]...
//! list     [address of a segment]...   each as long as a segment, the last one in part
//!
//! lane     segment 0                                segment 1               ...
//!         +----------+----------+----------------+ +-----------------------+
//!         | control 0| control 1| batch  batch.. | | batch  batch ...      |    a ring of batches
//!         +----------+----------+----------------+ +-----------------------+
//!            64 B       64 B
//! control  [version][epoch][head][number of the batch at the head][horizon][check]
//! ```
//! A *position* counts the bytes of a lane since it was opened; the ring has position `p` at `p` modulo its
//! length. A batch lies in one segment: one that does not fit behind the last begins at the next segment.
//! Version `v` of a control block is block `v % 2`, so a torn one leaves the one before. Checks are seeded
//! with the log's seed and the address, so that bytes of other logs and other uses are not taken for one.

use std::collections::BTreeSet;
use std::ops::Range;

use pando_fabric::codec::{Put, Reader};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{LogError, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"PANDOLOG");
const ROOT_HEADER: usize = 64;
/// Bytes of one control block.
const CONTROL: usize = 64;
/// Bytes of both control blocks, at the beginning of a lane's first segment.
const CONTROLS: u64 = 2 * CONTROL as u64;
/// Smallest segment: room for the control blocks and as many bytes of batches.
const SEGMENT_MIN: u64 = 2 * CONTROLS;
/// Maximum bytes per verb.
const PIECE: usize = 256 << 10;

/// The blocks of one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lane {
    segments: Vec<GlobalAddr>,
    segment_bytes: u64,
}

/// A place in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub position: u64,
    pub segment: usize,
    /// Offset in the segment.
    pub offset: u64,
}

impl Lane {
    /// Bytes for batches.
    pub fn ring_len(&self) -> u64 {
        self.segments.len() as u64 * self.segment_bytes - CONTROLS
    }

    /// Largest batch in bytes.
    pub fn batch_max(&self) -> u64 {
        self.segment_bytes - CONTROLS
    }

    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    pub fn spot(&self, position: u64) -> Spot {
        let at = position % self.ring_len() + CONTROLS;
        let segment = (at / self.segment_bytes) as usize;
        Spot { position, segment, offset: at % self.segment_bytes }
    }

    /// First spot of the segment behind `spot`.
    pub fn next_segment(&self, spot: Spot) -> Spot {
        self.spot(spot.position + self.segment_bytes - spot.offset)
    }

    /// Spot for a batch of `len` bytes behind position `tail`.
    pub fn place(&self, tail: u64, len: u64) -> Spot {
        let spot = self.spot(tail);
        if spot.offset + len <= self.segment_bytes { spot } else { self.next_segment(spot) }
    }

    pub fn addr(&self, spot: Spot) -> GlobalAddr {
        self.segments[spot.segment].add(spot.offset)
    }

    /// The segments with these positions, and the one with the control blocks.
    pub fn segments_of(&self, positions: Range<u64>) -> impl Iterator<Item = usize> {
        let (first, len) = (self.spot(positions.start), self.segments.len());
        // A lap also passes the control blocks.
        let bytes = first.offset + (positions.end - positions.start) + CONTROLS;
        let count = (bytes.div_ceil(self.segment_bytes) as usize).min(len);
        let used = (0..count).map(|i| (first.segment + i) % len);
        used.chain([0]).collect::<BTreeSet<_>>().into_iter()
    }

    pub fn segment(&self, segment: usize) -> GlobalAddr {
        self.segments[segment]
    }

    fn control_addr(&self, version: u64) -> GlobalAddr {
        self.segments[0].add(version % 2 * CONTROL as u64)
    }
}

/// Size of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub lanes: usize,
    /// Segments of each lane.
    pub segments: usize,
    pub segment_bytes: u64,
}

impl Shape {
    /// Number of lists that name all segments.
    fn lists(self) -> usize {
        let addresses = (self.lanes as u64).saturating_mul(self.segments as u64);
        addresses.saturating_mul(8).div_ceil(self.segment_bytes.max(1)) as usize
    }

    fn root_bytes(self) -> u64 {
        (ROOT_HEADER + self.lists() * 8) as u64
    }
}

/// Blocks for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Room for the root.
    pub root: GlobalAddr,
    /// Blocks of one segment's size for the addresses of all segments.
    pub lists: Vec<GlobalAddr>,
    /// A segment for recovery.
    pub scratch: GlobalAddr,
    /// Segments of each lane.
    pub lanes: Vec<Vec<GlobalAddr>>,
    pub segment_bytes: u64,
}

impl Blocks {
    /// Gets each block that a log of this shape needs from `alloc`, which is given the size in bytes.
    ///
    /// # Errors
    /// The first one of `alloc`. The caller knows which blocks it has given.
    pub async fn gather<X>(
        shape: Shape,
        mut alloc: impl AsyncFnMut(u64) -> std::result::Result<GlobalAddr, X>,
    ) -> std::result::Result<Self, X> {
        let mut lanes = vec![Vec::with_capacity(shape.segments); shape.lanes];
        for _ in 0..shape.segments {
            for lane in &mut lanes {
                lane.push(alloc(shape.segment_bytes).await?);
            }
        }
        let mut lists = Vec::new();
        while lists.len() < shape.lists() {
            lists.push(alloc(shape.segment_bytes).await?);
        }
        let scratch = alloc(shape.segment_bytes).await?;
        let root = alloc(shape.root_bytes()).await?;
        Ok(Self { root, lists, scratch, lanes, segment_bytes: shape.segment_bytes })
    }
}

/// Where a log lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub(crate) root: GlobalAddr,
    lists: Vec<GlobalAddr>,
    /// Segment for recovery; see [`crate::Rewrite`].
    pub(crate) scratch: GlobalAddr,
    /// Random number of this log, which no other log has.
    pub(crate) seed: u64,
    pub(crate) lanes: Vec<Lane>,
    /// Number of the index whose changes the log holds.
    pub index_id: u32,
}

impl Space {
    /// Address of the root block, by which the log is found.
    pub fn root(&self) -> GlobalAddr {
        self.root
    }

    fn shape(&self) -> Shape {
        let segments = self.lanes[0].segments.len();
        Shape { lanes: self.lanes.len(), segments, segment_bytes: self.segment_bytes() }
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.lanes[0].segment_bytes
    }

    /// Bytes of all segments of lanes.
    pub fn bytes(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.segments.len() as u64 * lane.segment_bytes).sum()
    }

    /// Control blocks of all lanes.
    pub(crate) fn controls(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        self.lanes.iter().map(|lane| (lane.control_addr(0), CONTROLS))
    }

    /// Address and size of the root block, and of the lists.
    pub(crate) fn root_and_lists(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        let lists = self.lists.iter().map(|&at| (at, self.segment_bytes()));
        [(self.root, self.shape().root_bytes())].into_iter().chain(lists)
    }

    /// Addresses and sizes of all blocks of the log.
    pub fn blocks(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        let segments = self.lanes.iter().flat_map(|lane| &lane.segments).chain([&self.scratch]);
        self.root_and_lists().chain(segments.map(|&at| (at, self.segment_bytes())))
    }

    /// Tells the fabric how the segments are used.
    pub(crate) fn expect_appends<E: Endpoint>(&self, ep: &E) {
        let mut segments: Vec<_> = self.lanes.iter().flat_map(|lane| &lane.segments).copied().collect();
        segments.sort_unstable();
        let bytes = self.segment_bytes();
        for side_by_side in segments.chunk_by(|one, next| one.add(bytes) == *next) {
            ep.expect_appends(side_by_side[0], side_by_side.len() as u64 * bytes);
        }
    }

    /// Blocks for the same log on which none `leaves`: each that does, the lists and the root are replaced by one from `alloc`,
    /// which is given the size in bytes.
    ///
    /// # Errors
    /// The first one of `alloc`. The caller knows which blocks it has given.
    pub async fn without<X>(
        &self,
        leaves: impl Fn(GlobalAddr) -> bool,
        mut alloc: impl AsyncFnMut(u64) -> std::result::Result<GlobalAddr, X>,
    ) -> std::result::Result<Blocks, X> {
        let segment_bytes = self.segment_bytes();
        let mut blocks = Blocks {
            root: alloc(self.shape().root_bytes()).await?,
            lists: Vec::new(),
            scratch: self.scratch,
            lanes: self.lanes.iter().map(|lane| lane.segments.clone()).collect(),
            segment_bytes,
        };
        while blocks.lists.len() < self.lists.len() {
            blocks.lists.push(alloc(segment_bytes).await?);
        }
        let segments = blocks.lanes.iter_mut().flatten().chain([&mut blocks.scratch]);
        for segment in segments.filter(|segment| leaves(**segment)) {
            *segment = alloc(segment_bytes).await?;
        }
        Ok(blocks)
    }

    /// This log in other blocks of the same shape.
    ///
    /// # Errors
    /// [`LogError::Geometry`].
    pub(crate) fn moved_to(&self, blocks: Blocks) -> Result<Self> {
        let moved = Self::new(self.seed, self.index_id, blocks)?;
        let Shape { lanes, segments, segment_bytes } = moved.shape();
        match moved.shape() == self.shape() && moved.root != self.root {
            true => Ok(moved),
            false => {
                let reason = "a log that moves keeps its shape, and gets another root";
                Err(LogError::Geometry { lanes, segments, segment_bytes, reason })
            }
        }
    }

    /// The log in these blocks.
    ///
    /// # Errors
    /// [`LogError::Geometry`].
    pub(crate) fn new(seed: u64, index_id: u32, blocks: Blocks) -> Result<Self> {
        let Blocks { root, lists, scratch, lanes: segments, segment_bytes } = blocks;
        let (lanes, each) = (segments.len(), segments.first().map_or(0, Vec::len));
        let reason = match () {
            () if lanes == 0 => Some("it has no lane"),
            () if segments.iter().any(|lane| lane.len() != each) => Some("the lanes differ"),
            () if each < 2 => Some("a lane needs two segments"),
            () if segment_bytes < SEGMENT_MIN || !segment_bytes.is_multiple_of(8) => {
                Some("a segment has at least 256 bytes, in whole words")
            }
            () if lists.len() != (Shape { lanes, segments: each, segment_bytes }).lists() => {
                Some("the number of lists is wrong")
            }
            () => None,
        };
        if let Some(reason) = reason {
            return Err(LogError::Geometry { lanes, segments: each, segment_bytes, reason });
        }
        let lanes = segments.into_iter().map(|segments| Lane { segments, segment_bytes }).collect();
        Ok(Self { root, lists, scratch, seed, lanes, index_id })
    }

    /// Writes the lists, and then the root block.
    pub(crate) async fn write_root<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let mut addresses = Vec::new();
        self.lanes.iter().flat_map(|lane| &lane.segments).for_each(|at| addresses.put_u64(at.raw()));
        for (list, part) in self.lists.iter().zip(addresses.chunks(self.segment_bytes() as usize)) {
            write_bytes(ep, *list, part).await?;
        }
        let mut bytes = Vec::new();
        bytes.put_u64(MAGIC);
        bytes.put_u64(self.seed);
        bytes.put_u32(self.lanes.len() as u32);
        bytes.put_u32(self.lanes[0].segments.len() as u32);
        bytes.put_u64(self.segment_bytes());
        bytes.put_u64(u64::from(self.index_id));
        bytes.put_u64(self.scratch.raw());
        bytes.put_u64(self.check_of(&addresses));
        let mut lists = Vec::new();
        self.lists.iter().for_each(|at| lists.put_u64(at.raw()));
        bytes.put_u64(check_of_root(self.root, &bytes, &lists));
        bytes.append(&mut lists);
        write_bytes(ep, self.root, &bytes).await
    }

    /// Check of the addresses in all lists.
    fn check_of(&self, addresses: &[u8]) -> u64 {
        xxh3_64_with_seed(addresses, self.seed ^ self.root.raw())
    }

    /// Reads the root block at `root`, and the lists.
    ///
    /// # Errors
    /// [`LogError::Damaged`]; errors of the fabric.
    pub async fn read<E: Endpoint>(ep: &E, root: GlobalAddr) -> Result<Self> {
        let damaged = |reason| LogError::Damaged { addr: root, reason };
        let header = read_bytes(ep, root, ROOT_HEADER).await?;
        let mut reader = Reader::new(&header);
        let mut word = || reader.u64().expect("a whole header");
        let (magic, seed, counts, segment_bytes) = (word(), word(), word(), word());
        let (index_id, scratch, check_of_lists, check) = (word(), word(), word(), word());
        let (lanes, segments) = (counts as u32 as usize, (counts >> 32) as usize);
        let shape = Shape { lanes, segments, segment_bytes };
        if magic != MAGIC || shape.lists() > PIECE / 8 {
            return Err(damaged("it has no root block"));
        }
        let lists = read_bytes(ep, root.add(ROOT_HEADER as u64), shape.lists() * 8).await?;
        if check_of_root(root, &header[..ROOT_HEADER - 8], &lists) != check {
            return Err(damaged("the check of its root block is wrong"));
        }
        let no_address = || damaged("a segment has no address");
        let lists = addresses_in(&lists).ok_or_else(no_address)?;
        let (mut addresses, bytes) = (Vec::new(), lanes * segments * 8);
        for &list in &lists {
            let part = (bytes - addresses.len()).min(segment_bytes as usize);
            addresses.extend(read_bytes(ep, list, part).await?);
        }
        let all = addresses_in(&addresses).ok_or_else(no_address)?;
        let lanes = all.chunks(segments.max(1)).map(<[_]>::to_vec).collect();
        let scratch = GlobalAddr::from_raw(scratch).ok_or_else(no_address)?;
        let space = Self::new(seed, index_id as u32, Blocks { root, lists, scratch, lanes, segment_bytes })?;
        if space.check_of(&addresses) == check_of_lists {
            Ok(space)
        } else {
            Err(damaged("the check of its lists is wrong"))
        }
    }

    /// Seed of the checks of a lane.
    pub(crate) fn seed_of(&self, lane: usize) -> u64 {
        self.seed ^ (lane as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

fn check_of_root(root: GlobalAddr, header: &[u8], lists: &[u8]) -> u64 {
    xxh3_64_with_seed(&[header, lists].concat(), root.raw())
}

fn addresses_in(bytes: &[u8]) -> Option<Vec<GlobalAddr>> {
    bytes.as_chunks().0.iter().map(|raw| GlobalAddr::from_raw(u64::from_le_bytes(*raw))).collect()
}

/// What a control block says of its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Control {
    pub version: u64,
    /// Random number of the time for which the log is open; batches of other times do not count.
    pub epoch: u64,
    /// Position behind which the first batch lies, and its number.
    pub head: u64,
    pub head_seq: u64,
    /// All records of the log with lower numbers are in their pages.
    pub horizon: u64,
}

impl Control {
    fn words(&self) -> [u64; 5] {
        [self.version, self.epoch, self.head, self.head_seq, self.horizon]
    }

    pub async fn write<E: Endpoint>(&self, ep: &E, space: &Space, lane: usize) -> Result<()> {
        let mut bytes = Vec::with_capacity(CONTROL);
        self.words().iter().for_each(|&word| bytes.put_u64(word));
        let check = xxh3_64_with_seed(&bytes, space.seed_of(lane));
        bytes.put_u64(check);
        write_bytes(ep, space.lanes[lane].control_addr(self.version), &bytes).await
    }

    /// The current control block of a lane, and the bytes of both.
    pub async fn read<E: Endpoint>(ep: &E, space: &Space, lane: usize) -> Result<(Self, Vec<u8>)> {
        let addr = space.lanes[lane].control_addr(0);
        let bytes = read_bytes(ep, addr, CONTROLS as usize).await?;
        let whole = |block: &[u8]| {
            let mut reader = Reader::new(block);
            let mut word = || reader.u64().expect("a whole block");
            let [version, epoch, head, head_seq, horizon] = std::array::from_fn(|_| word());
            let is_whole = word() == xxh3_64_with_seed(&block[..40], space.seed_of(lane));
            is_whole.then_some(Self { version, epoch, head, head_seq, horizon })
        };
        let current = bytes.chunks(CONTROL).filter_map(whole).max_by_key(|control| control.version);
        let current =
            current.ok_or(LogError::Damaged { addr, reason: "both control blocks of a lane are wrong" })?;
        Ok((current, bytes))
    }
}

/// Reads `len` bytes, a multiple of 8.
pub(crate) async fn read_bytes<E: Endpoint>(ep: &E, at: GlobalAddr, len: usize) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(len);
    while out.len() < len {
        let piece = (len - out.len()).min(PIECE);
        let buf = ep.read(at.add(out.len() as u64), ep.buffer(piece).with_window(0..piece)).await?;
        buf.append_bytes_to(piece, &mut out);
        ep.recycle(buf);
    }
    Ok(out)
}

/// Writes bytes, a multiple of 8, by one WRITE for each 256 KiB.
pub(crate) async fn write_bytes<E: Endpoint>(ep: &E, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
    for (at, buf) in pieces(ep, at, bytes) {
        ep.recycle(ep.write(at, buf).await?);
    }
    Ok(())
}

/// The same for bytes that nobody reads before they are written.
pub(crate) async fn write_unread<E: Endpoint>(ep: &E, at: GlobalAddr, bytes: &[u8]) -> Result<()> {
    for (at, buf) in pieces(ep, at, bytes) {
        ep.recycle(ep.write_unread(at, buf).await?);
    }
    Ok(())
}

/// Buffers with the bytes for each WRITE, and where it goes.
fn pieces<E: Endpoint>(ep: &E, at: GlobalAddr, bytes: &[u8]) -> impl Iterator<Item = (GlobalAddr, PageBuf)> {
    bytes.chunks(PIECE).enumerate().map(move |(i, piece)| {
        // Few different lengths, so that buffers are reused.
        let mut buf = ep.buffer(piece.len().next_power_of_two());
        buf.copy_from_bytes(piece);
        buf.set_window(0..piece.len());
        (at.add((i * PIECE) as u64), buf)
    })
}

#[cfg(test)]
mod tests {
    use pando_fabric::MemoryServerId;

    use super::*;

    #[test]
    fn batches_stay_inside_segments() {
        let at = |i: u64| GlobalAddr::new(MemoryServerId(0), i * 4096);
        let lane = Lane { segments: (1..4).map(at).collect(), segment_bytes: 512 };
        assert_eq!((lane.ring_len(), lane.batch_max()), (3 * 512 - 128, 384));
        let mut tail = 0;
        for len in (8..=384).step_by(8).cycle().take(500) {
            let spot = lane.place(tail, len);
            assert!(spot.offset + len <= 512 && (spot.segment > 0 || spot.offset >= 128), "{spot:?}");
            assert!(
                spot.position >= tail && spot.position + len <= tail + 2 * len.max(8) + 8,
                "{spot:?} of {len} at {tail}"
            );
            assert_eq!(lane.spot(spot.position), spot);
            tail = spot.position + len;
        }
    }
}
