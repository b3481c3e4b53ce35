//! Reading a log after its compute server ended.
//!
//! 1. Of each lane, the longest valid prefix of batches behind its head.
//! 2. The *horizon* of the log is the largest of its lanes. Records below it are in their pages.
//! 3. Records are numbered without holes. Behind the first number that is missing, nothing was answered and no
//!    page was written, so what is there is dropped.
//!
//! Reading changes nothing, so it can be repeated. [`crate::Log::resume`] opens the log anew, once the records
//! are in their pages.
//!
//! Where the memory pool has copies, a batch or a control block that was in flight when the compute server died may be in
//! one of them only. Who redoes the log makes all copies begin and end where it saw the log begin and end, before it changes
//! a page: otherwise it might die in the middle, and the next heir find fewer records in another copy, or more. The control
//! blocks come first: what is free by the newer one is in use by the older one.

use std::collections::VecDeque;
use std::ops::Range;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, join_at_most};

use crate::batch::{self, Identity};
use crate::commit::OUTSTANDING;
use crate::defect::{Defect, OfCopies};
use crate::disk;
use crate::error::{LogError, Result};
use crate::record::{self, Record};
use crate::space::{self, Control, Lane, Space, Spot};

/// Lanes whose ends are written at a time.
const AT_ONCE: usize = 16;

/// Numbers about the contents of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Whole batches in all lanes, and their bytes.
    pub batches: u64,
    pub bytes: u64,
    /// Records to be applied.
    pub records: u64,
    /// Records behind a gap, which nobody was told of.
    pub dropped: u64,
}

/// The records of a log.
pub struct Contents {
    space: Space,
    controls: Vec<Control>,
    /// Records of each lane.
    bytes: Vec<Vec<u8>>,
    /// What may differ among copies of each lane.
    edges: Vec<Edges>,
    /// Those to be applied, in the order of their numbers.
    records: Vec<Found>,
    /// Largest number in the log or below its horizon.
    clock: u64,
    report: Report,
}

/// Both ends of a lane.
#[derive(Default)]
struct Edges {
    /// The control blocks as they are, whole or torn.
    controls: Vec<u8>,
    /// The last batches: no other one may have been in flight.
    batches: VecDeque<(Spot, Vec<u8>)>,
    /// Places where the next batch would begin.
    next: Vec<Spot>,
}

struct Found {
    gsn: u64,
    lane: usize,
    range: Range<usize>,
}

impl Edges {
    fn push(&mut self, spot: Spot, batch: &[u8]) {
        if self.batches.len() == OUTSTANDING {
            self.batches.pop_front();
        }
        self.batches.push_back((spot, batch.to_vec()));
    }
}

/// Makes all copies of a lane end where this one does.
async fn make_equal<E: Endpoint>(ep: &E, ring: &Lane, edges: &Edges) -> Result<()> {
    for (spot, batch) in &edges.batches {
        space::write_bytes(ep, ring.addr(*spot), batch).await?;
    }
    for &spot in &edges.next {
        // No epoch is 0.
        ep.write_word(ring.addr(spot), 0).await?;
    }
    Ok(())
}

impl Contents {
    /// Reads the log in `space`.
    ///
    /// # Errors
    /// [`LogError::Damaged`]; errors of the fabric.
    pub async fn read<E: Endpoint>(ep: &E, space: Space) -> Result<Self> {
        let mut contents = Self {
            space,
            controls: Vec::new(),
            bytes: Vec::new(),
            edges: Vec::new(),
            records: Vec::new(),
            clock: 0,
            report: Report::default(),
        };
        for lane in 0..contents.space.lanes.len() {
            let (control, controls) = Control::read(ep, &contents.space, lane).await?;
            let mut edges = Edges { controls, ..Edges::default() };
            let bytes = contents.read_lane(ep, lane, &control, &mut edges).await?;
            contents.bytes.push(bytes);
            contents.edges.push(edges);
            contents.controls.push(control);
        }
        contents.find_records()?;
        Ok(contents)
    }

    /// Reads the log of a dead compute server, which the caller is to redo.
    ///
    /// # Errors
    /// As for [`Contents::read`].
    pub async fn read_to_redo<E: Endpoint>(ep: &E, space: Space) -> Result<Self> {
        let contents = Self::read(ep, space).await?;
        if !defect(OfCopies::ControlsUnequal) {
            // One block of a lane is whole in every copy, and persisted; the other one may be anything. So whatever arrives
            // of these WRITEs, each copy has one that counts.
            let at = contents.space.controls().zip(&contents.edges);
            let writes = at.map(|((at, _), edges)| space::write_bytes(ep, at, &edges.controls));
            join_at_most(AT_ONCE, writes).await.into_iter().collect::<Result<()>>()?;
            disk::persist(ep, &contents.space.controls().collect::<Vec<_>>()).await?;
        }
        if !defect(OfCopies::EndsUnequal) {
            let lanes = contents.space.lanes.iter().zip(&contents.edges);
            let ends = lanes.map(|(ring, edges)| make_equal(ep, ring, edges));
            join_at_most(AT_ONCE, ends).await.into_iter().collect::<Result<()>>()?;
        }
        Ok(contents)
    }

    /// The records of the whole batches of a lane, whose end goes to `edges`.
    async fn read_lane<E: Endpoint>(
        &mut self,
        ep: &E,
        lane: usize,
        control: &Control,
        edges: &mut Edges,
    ) -> Result<Vec<u8>> {
        let (ring, seed) = (&self.space.lanes[lane], self.space.seed_of(lane));
        let mut records = Vec::new();
        let mut identity = Identity { seed, epoch: control.epoch, seq: control.head_seq };
        let mut segment: Option<(usize, Vec<u8>)> = None;
        let mut at = ring.spot(control.head);
        loop {
            let mut found = None;
            for spot in [at, ring.next_segment(at)] {
                let bytes = match &segment {
                    Some((number, bytes)) if *number == spot.segment => bytes,
                    _ => {
                        let len = ring.segment_bytes() as usize;
                        let bytes = space::read_bytes(ep, ring.segment(spot.segment), len).await?;
                        &segment.insert((spot.segment, bytes)).1
                    }
                };
                if let Some(batch) = batch::decode(identity, &bytes[spot.offset as usize..]) {
                    records.extend_from_slice(batch);
                    let len = batch::HEADER + batch.len();
                    edges.push(spot, &bytes[spot.offset as usize..][..len]);
                    found = Some(spot.position + len as u64);
                    break;
                }
            }
            let Some(position) = found else {
                edges.next = [at, ring.next_segment(at)].into();
                // What lies further is in use.
                edges
                    .next
                    .retain(|spot| spot.position + batch::HEADER as u64 <= control.head + ring.ring_len());
                return Ok(records);
            };
            at = ring.spot(position);
            identity.seq += 1;
            self.report.batches += 1;
        }
    }

    /// Finds the records to be applied.
    fn find_records(&mut self) -> Result<()> {
        let horizon = self.controls.iter().map(|control| control.horizon).max().unwrap_or(1);
        let mut all = Vec::new();
        for (lane, bytes) in self.bytes.iter().enumerate() {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let start = bytes.len() - rest.len();
                let addr = self.space.lanes[lane].segment(0);
                let raw = record::split_record(&mut rest)
                    .ok_or(LogError::Damaged { addr, reason: "a batch holds bytes that are no record" })?;
                all.push(Found { gsn: raw.gsn, lane, range: start..bytes.len() - rest.len() });
            }
        }
        self.report.bytes = self.bytes.iter().map(|bytes| bytes.len() as u64).sum();
        self.clock = all.iter().map(|found| found.gsn).max().unwrap_or(0).max(horizon - 1);
        let by_lane = defect(Defect::TruncationByOneLane);
        all.retain(|found| found.gsn >= if by_lane { self.controls[found.lane].horizon } else { horizon });
        all.sort_by_key(|found| found.gsn);
        let first = if by_lane { all.first().map_or(horizon, |found| found.gsn) } else { horizon };
        let whole = (first..).zip(&all).take_while(|(gsn, found)| *gsn == found.gsn).count();
        let whole = if defect(Defect::GapIgnored) { all.len() } else { whole };
        self.report.dropped = (all.len() - whole) as u64;
        all.truncate(whole);
        self.report.records = whole as u64;
        self.records = all;
        Ok(())
    }

    pub fn space(&self) -> &Space {
        &self.space
    }

    pub fn report(&self) -> Report {
        self.report
    }

    /// Whether there is nothing to redo.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The epochs of the lanes in one number.
    pub(crate) fn epochs(&self) -> u64 {
        self.controls.iter().fold(0, |epoch: u64, control| epoch.rotate_left(7) ^ control.epoch)
    }

    /// No record of the log has a larger number.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    pub(crate) fn control_versions(&self) -> impl Iterator<Item = u64> + '_ {
        self.controls.iter().map(|control| control.version)
    }

    /// The records to be applied with their numbers, in order.
    ///
    /// # Errors
    /// [`LogError::Damaged`].
    pub fn records(&self) -> impl Iterator<Item = Result<(u64, Record<'_>)>> + '_ {
        self.records.iter().map(|found| {
            let mut bytes = &self.bytes[found.lane][found.range.clone()];
            let addr = self.space.lanes[found.lane].segment(0);
            let record = record::split_record(&mut bytes).and_then(|raw| Record::decode(&raw));
            let record = record.ok_or(LogError::Damaged { addr, reason: "a record is of no known form" })?;
            Ok((found.gsn, record))
        })
    }
}
