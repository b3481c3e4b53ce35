//! Description of a table in the pool: its columns and the parts that it consists of.
//!
//! A table is a list of parts in the order of row ids. Each part has a forest: the images of one or more trees,
//! each with a range of its rows in lexicographic order. It has a dictionary per column with exactly the values of
//! its rows, and the set of rows that were deleted since. All of it is never changed, only
//! replaced. The description is one long value of the pool, to which the catalog leads, so that one word of the
//! catalog switches from one version of the whole table to the next.
//!
//! ```text
//! table      [version][stamp][id bound][layout][bucket rows][columns] column.. | level.. [parts] part..
//! column     [type: 0 integer, 1 decimal, 2 date, 3 string][scale][nullable][bytes of the name] name
//! level      [column]
//! part       [rows][deleted][first id][id bound][trees] tree.. | value (per column) | value (deleted)
//! tree       [rows][image bytes][manifest: 3][stamp]
//! value      [pieces] [address, length, hash]..           the bytes of all pieces one after the other
//! ```

use pando_elf::{Column, ColumnType, LayoutKind, RunSize, Schema};
use pando_pool::ValueRef;

use crate::manifest::Stamped;

const VERSION: u64 = 2;

/// What all parts of a table have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    pub schema: Schema,
    /// Column at each level.
    pub order: Vec<usize>,
    pub layout: LayoutKind,
    /// Most rows of a bucket.
    pub bucket_rows: u32,
}

/// Bytes in long values of the pool, one after the other.
pub(crate) type Pieces = Vec<ValueRef>;

/// Place and size of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeRef {
    pub rows: u64,
    pub image_bytes: u64,
    pub image: Stamped,
}

/// Place and size of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartRef {
    /// Rows of all trees, with deleted ones.
    pub rows: u64,
    pub deleted_rows: u64,
    pub first_id: u64,
    pub id_bound: u64,
    /// At least one, in the order of their rows.
    pub trees: Vec<TreeRef>,
    /// Values of each column.
    pub dictionaries: Vec<Pieces>,
    /// Set of deleted rows, without pieces if it is empty.
    pub deleted: Pieces,
}

impl PartRef {
    pub fn size(&self) -> RunSize {
        RunSize { rows: self.rows, deleted: self.deleted_rows }
    }

    /// Rows that are not deleted.
    pub fn living(&self) -> u64 {
        self.rows.saturating_sub(self.deleted_rows)
    }

    /// The image that is in no other part.
    pub fn first_image(&self) -> Stamped {
        self.trees[0].image
    }

    /// Whether both have the same trees and dictionaries.
    pub fn is_same_run(&self, other: &Self) -> bool {
        self.first_image() == other.first_image()
    }

    /// Bytes of the images of all trees.
    pub fn image_bytes(&self) -> u64 {
        self.trees.iter().map(|tree| tree.image_bytes).sum()
    }

    /// Bytes of dictionaries.
    pub fn dictionary_bytes(&self) -> u64 {
        self.dictionaries.iter().flatten().map(|value| value.len).sum()
    }
}

/// A version of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub stamp: u64,
    /// The id of the next row.
    pub id_bound: u64,
    pub spec: TableSpec,
    /// Ascending by row ids, each with a row at least.
    pub parts: Vec<PartRef>,
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn words(&mut self, words: &[u64]) {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
    }

    fn pieces(&mut self, pieces: &Pieces) {
        self.words(&[pieces.len() as u64]);
        pieces.iter().for_each(|value| self.words(&value.to_words()));
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(len).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    /// A number of things that take `bytes` bytes each, at least.
    fn count(&mut self, bytes: usize) -> Option<usize> {
        let count = usize::try_from(self.word()?).ok()?;
        (count <= self.0.len() / bytes).then_some(count)
    }

    fn value(&mut self) -> Option<ValueRef> {
        ValueRef::from_words([self.word()?, self.word()?, self.word()?])
    }

    fn pieces(&mut self) -> Option<Pieces> {
        (0..self.count(24)?).map(|_| self.value()).collect()
    }
}

fn kind_words(kind: ColumnType) -> [u64; 2] {
    match kind {
        ColumnType::Integer => [0, 0],
        ColumnType::Decimal { scale } => [1, scale.into()],
        ColumnType::Date => [2, 0],
        ColumnType::String => [3, 0],
    }
}

fn kind_of(words: [u64; 2]) -> Option<ColumnType> {
    Some(match words {
        [0, 0] => ColumnType::Integer,
        [1, scale] => ColumnType::Decimal { scale: u8::try_from(scale).ok()? },
        [2, 0] => ColumnType::Date,
        [3, 0] => ColumnType::String,
        _ => return None,
    })
}

impl Descriptor {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        let TableSpec { schema, order, layout, bucket_rows } = &self.spec;
        let layout = match layout {
            LayoutKind::Linear => 1,
            LayoutKind::Columnar => 2,
        };
        let columns = schema.columns();
        let head = [VERSION, self.stamp, self.id_bound, layout, (*bucket_rows).into(), columns.len() as u64];
        out.words(&head);
        for Column { name, kind, is_nullable } in columns {
            out.words(&kind_words(*kind));
            out.words(&[u64::from(*is_nullable), name.len() as u64]);
            out.0.extend_from_slice(name.as_bytes());
        }
        order.iter().for_each(|&column| out.words(&[column as u64]));
        out.words(&[self.parts.len() as u64]);
        for part in &self.parts {
            let trees = part.trees.len() as u64;
            out.words(&[part.rows, part.deleted_rows, part.first_id, part.id_bound, trees]);
            for TreeRef { rows, image_bytes, image } in &part.trees {
                out.words(&[*rows, *image_bytes]);
                out.words(&image.value.to_words());
                out.words(&[image.stamp]);
            }
            part.dictionaries.iter().for_each(|pieces| out.pieces(pieces));
            out.pieces(&part.deleted);
        }
        out.0
    }

    /// Decodes a description whose hash was verified; an error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut bytes = Reader(bytes);
        if bytes.word() != Some(VERSION) {
            return Err("it was made by another version of this program");
        }
        let decoded = Self::decode_rest(&mut bytes).filter(|_| bytes.0.is_empty());
        let decoded = decoded.ok_or("it has another length than it says, or impossible numbers")?;
        decoded.check().map(|()| decoded)
    }

    fn decode_rest(bytes: &mut Reader<'_>) -> Option<Self> {
        let (stamp, id_bound) = (bytes.word()?, bytes.word()?);
        let layout = match bytes.word()? {
            1 => LayoutKind::Linear,
            2 => LayoutKind::Columnar,
            _ => return None,
        };
        let bucket_rows = u32::try_from(bytes.word()?).ok()?;
        let columns = (0..bytes.count(32)?).map(|_| {
            let kind = kind_of([bytes.word()?, bytes.word()?])?;
            let is_nullable = match bytes.word()? {
                0 => false,
                1 => true,
                _ => return None,
            };
            let len = bytes.word()?;
            let name = str::from_utf8(bytes.bytes(len)?).ok()?.to_owned();
            Some(Column { name, kind, is_nullable })
        });
        let schema = Schema::new(columns.collect::<Option<_>>()?).ok()?;
        let columns = schema.columns().len();
        let order: Vec<usize> =
            (0..columns).map(|_| usize::try_from(bytes.word()?).ok()).collect::<Option<_>>()?;
        let parts =
            (0..bytes.count(96)?).map(|_| Self::decode_part(bytes, columns)).collect::<Option<_>>()?;
        Some(Self { stamp, id_bound, spec: TableSpec { schema, order, layout, bucket_rows }, parts })
    }

    fn decode_part(bytes: &mut Reader<'_>, columns: usize) -> Option<PartRef> {
        Some(PartRef {
            rows: bytes.word()?,
            deleted_rows: bytes.word()?,
            first_id: bytes.word()?,
            id_bound: bytes.word()?,
            trees: (0..bytes.count(48)?).map(|_| Self::decode_tree(bytes)).collect::<Option<_>>()?,
            dictionaries: (0..columns).map(|_| bytes.pieces()).collect::<Option<_>>()?,
            deleted: bytes.pieces()?,
        })
    }

    fn decode_tree(bytes: &mut Reader<'_>) -> Option<TreeRef> {
        let (rows, image_bytes) = (bytes.word()?, bytes.word()?);
        Some(TreeRef { rows, image_bytes, image: Stamped { value: bytes.value()?, stamp: bytes.word()? } })
    }

    fn check(&self) -> Result<(), &'static str> {
        let mut seen = vec![false; self.spec.order.len()];
        for &column in &self.spec.order {
            let is_new = seen.get_mut(column).is_some_and(|seen| !std::mem::replace(seen, true));
            if !is_new {
                return Err("its column order does not name each column once");
            }
        }
        let mut bound = 0;
        for part in &self.parts {
            let fits = part.first_id >= bound && part.first_id < part.id_bound && part.rows > 0;
            if !fits || part.deleted_rows > part.rows || part.rows > part.id_bound - part.first_id {
                return Err("its parts do not follow each other");
            }
            let rows = part.trees.iter().try_fold(0_u64, |sum, tree| sum.checked_add(tree.rows));
            if part.trees.is_empty() || rows != Some(part.rows) {
                return Err("its trees have other rows than their part");
            }
            bound = part.id_bound;
        }
        if bound > self.id_bound { Err("row ids are above their bound") } else { Ok(()) }
    }

    /// Number of rows that are not deleted.
    pub fn living(&self) -> u64 {
        self.parts.iter().map(PartRef::living).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_fabric::GlobalAddr;

    fn value(raw: u64) -> ValueRef {
        ValueRef { addr: GlobalAddr::from_raw(raw).expect("not swizzled"), len: 70, hash: 9 }
    }

    fn descriptor() -> Descriptor {
        let kinds =
            [ColumnType::Integer, ColumnType::Decimal { scale: 2 }, ColumnType::Date, ColumnType::String];
        let column = |(number, kind): (usize, &ColumnType)| Column::new("ä".repeat(number + 1), *kind);
        let columns: Vec<Column> = kinds.iter().enumerate().map(column).collect();
        let part = |first_id: u64, rows| PartRef {
            rows,
            deleted_rows: 1,
            first_id,
            id_bound: first_id + rows,
            trees: (0..rows.min(3))
                .map(|tree| TreeRef {
                    rows: (rows + tree) / rows.min(3),
                    image_bytes: 4_000,
                    image: Stamped { value: value(0x40), stamp: first_id + tree },
                })
                .collect(),
            dictionaries: vec![
                vec![value(0x80)],
                vec![],
                vec![value(0xc0), value(0x100)],
                vec![value(0x140)],
            ],
            deleted: vec![value(0x180)],
        };
        Descriptor {
            stamp: 5,
            id_bound: 90,
            spec: TableSpec {
                schema: Schema::new(columns).expect("names"),
                order: vec![2, 0, 3, 1],
                layout: LayoutKind::Columnar,
                bucket_rows: 256,
            },
            parts: vec![part(0, 30), part(40, 5)],
        }
    }

    #[test]
    fn a_description_comes_back_and_a_wrong_one_is_refused() {
        let descriptor = descriptor();
        let bytes = descriptor.encode();
        assert_eq!(Descriptor::decode(&bytes), Ok(descriptor));
        assert!((0..bytes.len()).all(|len| Descriptor::decode(&bytes[..len]).is_err()));
        for at in 0..bytes.len() {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut wrong = bytes.clone();
                wrong[at] = byte;
                if let Ok(decoded) = Descriptor::decode(&wrong) {
                    assert_eq!(decoded.check(), Ok(()));
                }
            }
        }
    }
}
