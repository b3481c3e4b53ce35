//! Byte format of calls to a memory server and of its answers, little-endian. Decoding accepts or refuses any
//! bytes. A call says where the image is and how its pieces are verified, so a memory server need not know any
//! index.
//!
//! ```text
//! call   [want:8][manifest: len, bytes][wanted levels: count, u32..][conditions: count, condition..]
//!        condition [level:32][intervals: count, [low:32][high:32]..]
//! answer [status:8] and, if rows were searched for,
//!        [rows compared:64][rows taken:64][rows:64][ids][codes..]
//! ids    [kind:8] and: nothing | rows x u32 | rows x u64 | [first:64][words: count, u64..]
//! codes  [bytes of a code:8][rows x code]
//! ```

use pando_elf::{Filter, Interval, Predicate, code_bytes};
use pando_fabric::codec::{BadField, Put, Reader};
use pando_fabric::{FabricError, MemoryServerId, Request};

use super::{Found, Want};
use crate::manifest::Manifest;

/// The fabric's number for these calls ("EL").
pub(crate) const OP: u16 = 0x454c;

const COUNT: u8 = 0;
const IDS: u8 = 1;
const ROWS: u8 = 2;

const FOUND: u8 = 0;
const REFUSED: u8 = 1;

const NO_IDS: u8 = 0;
const NARROW_IDS: u8 = 1;
const WIDE_IDS: u8 = 2;
const BITMAP: u8 = 3;

/// A search of an image on the memory server that has all of it.
#[derive(Debug)]
pub(crate) struct Call<'c> {
    pub manifest: &'c Manifest,
    pub filter: &'c Filter,
    pub want: Want<'c>,
}

/// The same, as a memory server reads it.
#[derive(Debug)]
pub(super) struct Called {
    pub manifest: Manifest,
    /// Conditions by level.
    pub predicate: Predicate,
    /// The kind of answer and the wanted levels.
    want: u8,
    levels: Vec<usize>,
}

impl Called {
    pub fn want(&self) -> Want<'_> {
        match self.want {
            COUNT => Want::Count,
            IDS => Want::Ids,
            _ => Want::Rows(&self.levels),
        }
    }

    /// `None` if the bytes are not a call.
    pub fn decode(op: u16, body: &[u8]) -> Option<Self> {
        if op == OP { Self::read(Reader::new(body)).ok() } else { None }
    }

    fn read(mut left: Reader<'_>) -> Result<Self, BadField> {
        let want = left.u8()?;
        let manifest = Manifest::decode(left.counted()?).map_err(|what| left.bad(what))?;
        let levels = left.count(4)?;
        let levels = (0..levels).map(|_| Ok(left.u32()? as usize)).collect::<Result<_, BadField>>()?;
        let mut predicate = Predicate::all();
        for _ in 0..left.count(8)? {
            let level = left.u32()? as usize;
            let intervals = left.count(8)?;
            let interval = |_| Ok(Interval::new(left.u32()?, left.u32()?));
            let intervals: Vec<_> = (0..intervals).map(interval).collect::<Result<_, BadField>>()?;
            predicate = predicate.and(level, intervals);
        }
        left.end()?;
        match want {
            COUNT..=ROWS => Ok(Self { manifest, predicate, want, levels }),
            _ => Err(left.bad("no kind of answer")),
        }
    }
}

impl Request for Call<'_> {
    /// `None` if the memory server refused.
    type Reply = Option<Found>;
    const OP: u16 = OP;

    fn encode(&self, out: &mut Vec<u8>) {
        let (want, levels) = match self.want {
            Want::Count => (COUNT, &[][..]),
            Want::Ids => (IDS, &[][..]),
            Want::Rows(levels) => (ROWS, levels),
        };
        out.push(want);
        out.put_counted(&self.manifest.encode());
        out.put_u32(levels.len() as u32);
        levels.iter().for_each(|&level| out.put_u32(level as u32));
        let conditions = self.filter.constrained();
        out.put_u32(conditions.len() as u32);
        for &level in conditions {
            let intervals = self.filter.level(level).unwrap_or_default();
            out.put_u32(level as u32);
            out.put_u32(intervals.len() as u32);
            intervals.iter().for_each(|interval| {
                out.put_u32(interval.low);
                out.put_u32(interval.high);
            });
        }
    }

    fn decode_reply(&self, server: MemoryServerId, reply: &[u8]) -> Result<Self::Reply, FabricError> {
        let refused = |reason: String| FabricError::Refused { server, op: OP, reason };
        let found = read_answer(Reader::new(reply)).map_err(|wrong| refused(wrong.to_string()))?;
        let fits = found.as_ref().is_none_or(|found| self.is_answer(found));
        if fits { Ok(found) } else { Err(refused("the answer is none to this call".to_owned())) }
    }
}

impl Call<'_> {
    /// Whether an answer has what was asked for, with ids that the image may have.
    fn is_answer(&self, found: &Found) -> bool {
        let levels = match self.want {
            Want::Count => return found.ids.is_empty() && found.codes.is_empty(),
            Want::Ids => 0,
            Want::Rows(levels) => levels.len(),
        };
        found.ids.len() as u64 == found.count
            && found.codes.len() == levels
            && found.ids.iter().all(|&id| id < self.manifest.id_bound)
    }
}

/// Appends the answer.
pub(super) fn put_answer(answer: Option<&Found>, out: &mut Vec<u8>) {
    let Some(Found { count, ids, codes, rows_compared, rows_taken }) = answer else {
        out.push(REFUSED);
        return;
    };
    out.push(FOUND);
    [rows_compared, rows_taken, count].iter().for_each(|number| out.put_u64(**number));
    put_ids(ids, out);
    for codes in codes {
        let bytes = code_bytes(codes.iter().copied().max().unwrap_or(0));
        out.push(bytes as u8);
        codes.iter().for_each(|code| out.extend_from_slice(&code.to_le_bytes()[..bytes]));
    }
    // The number of levels follows from the bytes.
}

/// Appends ids in the shortest form. A bitmap loses their order, on which nothing depends, and cannot hold an id
/// twice, which a damaged image may have.
fn put_ids(ids: &[u64], out: &mut Vec<u8>) {
    let (Some(&first), Some(&last)) = (ids.iter().min(), ids.iter().max()) else {
        out.push(NO_IDS);
        return;
    };
    let width = if last <= u32::MAX.into() { 4 } else { 8 };
    let words = ((last - first) / 64 + 1) as usize;
    if words < ids.len().saturating_mul(width) / 8 {
        let mut bits = vec![0_u64; words];
        ids.iter().for_each(|id| bits[((id - first) / 64) as usize] |= 1 << ((id - first) % 64));
        if bits.iter().map(|word| word.count_ones() as usize).sum::<usize>() == ids.len() {
            out.push(BITMAP);
            out.put_u64(first);
            out.put_u32(words as u32);
            bits.iter().for_each(|word| out.put_u64(*word));
            return;
        }
    }
    out.push(if width == 4 { NARROW_IDS } else { WIDE_IDS });
    ids.iter().for_each(|id| out.extend_from_slice(&id.to_le_bytes()[..width]));
}

fn read_answer(mut left: Reader<'_>) -> Result<Option<Found>, BadField> {
    match left.u8()? {
        FOUND => {}
        REFUSED => return left.end().map(|()| None),
        _ => return Err(left.bad("no status of an answer")),
    }
    let (rows_compared, rows_taken, count) = (left.u64()?, left.u64()?, left.u64()?);
    let ids = read_ids(&mut left, count)?;
    let mut codes = Vec::new();
    while !left.is_empty() {
        let width = usize::from(left.u8()?);
        let bytes = left.bytes(ids.len().saturating_mul(width))?;
        let code = |code: &[u8]| code.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
        match width {
            1 | 2 | 4 => codes.push(bytes.chunks_exact(width).map(code).collect()),
            _ => return Err(left.bad("codes have an impossible size")),
        }
    }
    Ok(Some(Found { count, ids, codes, rows_compared, rows_taken }))
}

fn read_ids(left: &mut Reader<'_>, count: u64) -> Result<Vec<u64>, BadField> {
    let kind = left.u8()?;
    let width = match kind {
        NO_IDS => return Ok(Vec::new()),
        NARROW_IDS => 4,
        WIDE_IDS => 8,
        BITMAP => {
            let (first, words) = (left.u64()?, left.count(8)?);
            let mut ids = Vec::new();
            for word in 0..words as u64 {
                let place = first.checked_add(word * 64).filter(|place| *place <= u64::MAX - 64);
                let place = place.ok_or_else(|| left.bad("an id is no number"))?;
                ids.extend(pando_elf::bits(left.u64()?).map(|bit| place + bit as u64));
            }
            return Ok(ids);
        }
        _ => return Err(left.bad("ids have an unknown form")),
    };
    let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(width));
    let bytes = left.bytes(bytes.ok_or_else(|| left.bad("too many ids"))?)?;
    let id = |id: &[u8]| id.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
    Ok(bytes.chunks_exact(width).map(id).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_arrive_in_every_form() {
        let wide = u64::from(u32::MAX) + 9;
        let forms = [
            (NO_IDS, vec![]),
            (NARROW_IDS, vec![7]),
            (NARROW_IDS, vec![1, 900, 5]),
            (WIDE_IDS, vec![wide, 3]),
            (BITMAP, (30..200).collect()),
            (BITMAP, (wide..wide + 100).collect()),
            // A damaged image: an id twice.
            (NARROW_IDS, (30..200).chain([31]).collect()),
        ];
        for (form, ids) in forms {
            let mut bytes = Vec::new();
            put_ids(&ids, &mut bytes);
            assert_eq!(bytes[0], form, "{ids:?}");
            assert_eq!(read_ids(&mut Reader::new(&bytes), ids.len() as u64).expect("ids"), ids);
        }
    }
}
