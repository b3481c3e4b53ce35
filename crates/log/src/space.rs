//! Where a log lies: a root block, which lists the segments of each lane, and two control blocks per lane.
//!
//! ```text
//! root     "PANDOLOG" [seed] [lanes:32][segments of each:32] [bytes of a segment] [index id] [scratch] [check]
//!          [address of a segment]...
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

use pando_fabric::codec::{Put, Reader};
use pando_fabric::{Endpoint, GlobalAddr};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{LogError, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"PANDOLOG");
const ROOT_HEADER: usize = 56;
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

    pub fn segment(&self, segment: usize) -> GlobalAddr {
        self.segments[segment]
    }

    fn control_addr(&self, version: u64) -> GlobalAddr {
        self.segments[0].add(version % 2 * CONTROL as u64)
    }
}

/// Blocks for a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Block of [`Space::root_bytes`] for the root.
    pub root: GlobalAddr,
    /// A segment for recovery.
    pub scratch: GlobalAddr,
    /// Segments of each lane.
    pub lanes: Vec<Vec<GlobalAddr>>,
    pub segment_bytes: u64,
}

/// Where a log lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Space {
    pub(crate) root: GlobalAddr,
    /// Segment for recovery; see [`crate::Rewrite`].
    pub(crate) scratch: GlobalAddr,
    /// Random number of this log, which no other log has.
    pub(crate) seed: u64,
    pub(crate) lanes: Vec<Lane>,
    /// Number of the index whose changes the log holds.
    pub index_id: u32,
}

impl Space {
    /// Bytes of the root block of a log.
    pub fn root_bytes(lanes: usize, segments: usize) -> u64 {
        (ROOT_HEADER + lanes * segments * 8) as u64
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

    pub(crate) fn root_range(&self) -> (GlobalAddr, u64) {
        (self.root, Self::root_bytes(self.lanes.len(), self.lanes[0].segments.len()))
    }

    /// Addresses and sizes of all blocks of the log.
    pub fn blocks(&self) -> impl Iterator<Item = (GlobalAddr, u64)> + '_ {
        let scratch = (self.scratch, self.segment_bytes());
        let of_lane =
            |lane: &Lane| lane.segments.iter().map(|&at| (at, lane.segment_bytes)).collect::<Vec<_>>();
        [self.root_range(), scratch].into_iter().chain(self.lanes.iter().flat_map(of_lane))
    }

    /// The log in these blocks.
    ///
    /// # Errors
    /// [`LogError::Geometry`].
    pub(crate) fn new(seed: u64, index_id: u32, blocks: Blocks) -> Result<Self> {
        let Blocks { root, scratch, lanes: segments, segment_bytes } = blocks;
        let (lanes, each) = (segments.len(), segments.first().map_or(0, Vec::len));
        let reason = match () {
            () if lanes == 0 => Some("it has no lane"),
            () if segments.iter().any(|lane| lane.len() != each) => Some("the lanes differ"),
            () if each < 2 => Some("a lane needs two segments"),
            () if segment_bytes < SEGMENT_MIN || !segment_bytes.is_multiple_of(8) => {
                Some("a segment has at least 256 bytes, in whole words")
            }
            () => None,
        };
        if let Some(reason) = reason {
            return Err(LogError::Geometry { lanes, segments: each, segment_bytes, reason });
        }
        let lanes = segments.into_iter().map(|segments| Lane { segments, segment_bytes }).collect();
        Ok(Self { root, scratch, seed, lanes, index_id })
    }

    /// Writes the root block.
    pub(crate) async fn write_root<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let lane = &self.lanes[0];
        let mut bytes = Vec::new();
        bytes.put_u64(MAGIC);
        bytes.put_u64(self.seed);
        bytes.put_u32(self.lanes.len() as u32);
        bytes.put_u32(lane.segments.len() as u32);
        bytes.put_u64(lane.segment_bytes);
        bytes.put_u64(u64::from(self.index_id));
        bytes.put_u64(self.scratch.raw());
        let mut addresses = Vec::new();
        for lane in &self.lanes {
            lane.segments.iter().for_each(|at| addresses.put_u64(at.raw()));
        }
        let check = xxh3_64_with_seed(&[&bytes[..], &addresses].concat(), self.root.raw());
        bytes.put_u64(check);
        bytes.append(&mut addresses);
        write_bytes(ep, self.root, &bytes).await
    }

    /// Reads the root block at `root`.
    ///
    /// # Errors
    /// [`LogError::Damaged`]; errors of the fabric.
    pub async fn read<E: Endpoint>(ep: &E, root: GlobalAddr) -> Result<Self> {
        let damaged = |reason| LogError::Damaged { addr: root, reason };
        let header = read_bytes(ep, root, ROOT_HEADER).await?;
        let mut reader = Reader::new(&header);
        let mut word = || reader.u64().expect("a whole header");
        let (magic, seed, counts, segment_bytes) = (word(), word(), word(), word());
        let (index_id, scratch, check) = (word(), word(), word());
        let (lanes, each) = (counts as u32 as usize, (counts >> 32) as usize);
        if magic != MAGIC || lanes.saturating_mul(each) > PIECE / 8 {
            return Err(damaged("it has no root block"));
        }
        let addresses = read_bytes(ep, root.add(ROOT_HEADER as u64), lanes * each * 8).await?;
        if xxh3_64_with_seed(&[&header[..ROOT_HEADER - 8], &addresses].concat(), root.raw()) != check {
            return Err(damaged("the check of its root block is wrong"));
        }
        let mut reader = Reader::new(&addresses);
        let mut address = || GlobalAddr::from_raw(reader.u64().ok()?);
        let segments: Option<Vec<Vec<_>>> =
            (0..lanes).map(|_| (0..each).map(|_| address()).collect()).collect();
        let lanes = segments.ok_or_else(|| damaged("a segment has no address"))?;
        let scratch = GlobalAddr::from_raw(scratch).ok_or_else(|| damaged("a segment has no address"))?;
        Self::new(seed, index_id as u32, Blocks { root, scratch, lanes, segment_bytes })
    }

    /// Seed of the checks of a lane.
    pub(crate) fn seed_of(&self, lane: usize) -> u64 {
        self.seed ^ (lane as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
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

    /// The current control block of a lane.
    pub async fn read<E: Endpoint>(ep: &E, space: &Space, lane: usize) -> Result<Self> {
        let addr = space.lanes[lane].control_addr(0);
        let bytes = read_bytes(ep, addr, CONTROLS as usize).await?;
        let whole = |block: &[u8]| {
            let mut reader = Reader::new(block);
            let mut word = || reader.u64().expect("a whole block");
            let [version, epoch, head, head_seq, horizon] = std::array::from_fn(|_| word());
            let is_whole = word() == xxh3_64_with_seed(&block[..40], space.seed_of(lane));
            is_whole.then_some(Self { version, epoch, head, head_seq, horizon })
        };
        bytes
            .chunks(CONTROL)
            .filter_map(whole)
            .max_by_key(|control| control.version)
            .ok_or(LogError::Damaged { addr, reason: "both control blocks of a lane are wrong" })
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
    for (i, piece) in bytes.chunks(PIECE).enumerate() {
        // Few different lengths, so that buffers are reused.
        let mut buf = ep.buffer(piece.len().next_power_of_two());
        buf.copy_from_bytes(piece);
        buf.set_window(0..piece.len());
        ep.recycle(ep.write(at.add((i * PIECE) as u64), buf).await?);
    }
    Ok(())
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
