//! A table of codes, column by column: what an Elf is built from, and what scans read.
//!
//! Row `i` of the table has the row id (TID) `i`, unless the table has been given other ids, which ascend and
//! may have gaps. Codes come from an order-preserving dictionary or are given as they are; code 0 stands for
//! NULL there. Each column takes as few bytes per code as its largest one needs, so that random accesses and
//! scans touch little memory.

use crate::codes::{CodeSlice, NumberSlice, code_bytes};
use crate::error::{Error, Result};
use crate::memory;

#[derive(Clone, Debug, PartialEq, Eq)]
struct CodeColumn {
    bytes: Vec<u8>,
    code_bytes: usize,
    maximum: u32,
}

impl CodeColumn {
    fn new(codes: impl ExactSizeIterator<Item = u32>, maximum: u32) -> Self {
        let code_bytes = code_bytes(maximum);
        let mut bytes = memory::reserve(codes.len() * code_bytes).unwrap_or_default();
        match code_bytes {
            1 => bytes.extend(codes.map(|code| code as u8)),
            2 => bytes.extend(codes.flat_map(|code| (code as u16).to_le_bytes())),
            _ => bytes.extend(codes.flat_map(u32::to_le_bytes)),
        }
        Self { bytes, code_bytes, maximum }
    }

    fn codes(&self) -> CodeSlice<'_> {
        CodeSlice::open(&self.bytes, self.code_bytes).expect("the column has whole codes")
    }
}

/// Row ids in 4 or 8 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
struct IdColumn {
    bytes: Vec<u8>,
    id_bytes: usize,
}

impl IdColumn {
    fn new(ids: &[u64]) -> Self {
        let fits = ids.last().is_none_or(|&last| u32::try_from(last).is_ok());
        let id_bytes = if fits { 4 } else { 8 };
        let bytes = ids.iter().flat_map(|id| id.to_le_bytes().into_iter().take(id_bytes)).collect();
        Self { bytes, id_bytes }
    }

    fn ids(&self) -> NumberSlice<'_> {
        NumberSlice::open(&self.bytes, self.id_bytes).expect("the column has whole ids")
    }
}

/// Codes of all columns; every column has the same number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeTable {
    columns: Vec<CodeColumn>,
    rows: usize,
    /// Absent if row `i` has the id `i`.
    ids: Option<IdColumn>,
}

impl CodeTable {
    /// Takes `columns[c][row]`. Fails without columns, with more than 65,535, and if their lengths differ.
    pub fn new(columns: Vec<Vec<u32>>) -> Result<Self> {
        let rows = columns.first().ok_or(Error::NoColumns)?.len();
        if columns.len() > usize::from(u16::MAX) {
            return Err(Error::TooManyColumns { columns: columns.len() });
        }
        if let Some(column) = columns.iter().position(|column| column.len() != rows) {
            return Err(Error::UnevenColumns { column, rows: columns[column].len(), expected: rows });
        }
        Ok(Self::of_columns(columns.into_iter(), rows))
    }

    /// Takes columns of `rows` codes one by one, so that only one of them takes 4 bytes per code at a time.
    pub(crate) fn of_columns(columns: impl Iterator<Item = Vec<u32>>, rows: usize) -> Self {
        let narrow = |codes: Vec<u32>| {
            let maximum = codes.iter().copied().max().unwrap_or(0);
            CodeColumn::new(codes.into_iter(), maximum)
        };
        Self { columns: columns.map(narrow).collect(), rows, ids: None }
    }

    /// Gives row `i` the id `ids[i]`. Fails if there is not one id per row, and if they do not ascend.
    ///
    /// ```
    /// use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
    /// let table = CodeTable::new(vec![vec![3, 1, 2]])?.with_ids(&[10, 11, 40])?;
    /// let elf = Elf::build(&table, &[0], LayoutKind::Linear, &BuildOptions::default())?;
    /// let selection = elf.select(&Predicate::all().and(0, [Interval::new(2, 3)]))?;
    /// assert_eq!(selection.sorted_ids::<u64>()?, [10, 40]);
    /// # Ok::<(), pando_elf::Error>(())
    /// ```
    pub fn with_ids(mut self, ids: &[u64]) -> Result<Self> {
        if ids.len() != self.rows {
            return Err(Error::WrongNumberOfIds { ids: ids.len(), rows: self.rows });
        }
        // The bound above the last id has to be a number, too.
        let is_valid = ids.is_sorted_by(|a, b| a < b) && ids.last() != Some(&u64::MAX);
        if !is_valid {
            return Err(Error::UnsortedIds);
        }
        let is_dense = ids.last().is_none_or(|&last| last + 1 == self.rows as u64);
        self.ids = (!is_dense).then(|| IdColumn::new(ids));
        Ok(self)
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Size of all columns in bytes.
    pub fn bytes(&self) -> usize {
        self.columns.iter().map(|column| column.bytes.len()).sum()
    }

    /// Codes of column `column`, which is below [`width`](Self::width), in row order.
    pub fn column(&self, column: usize) -> CodeSlice<'_> {
        self.columns[column].codes()
    }

    /// Code of row `row`, which is below [`rows`](Self::rows), in column `column`.
    pub fn code(&self, column: usize, row: usize) -> u32 {
        self.column(column).get(row)
    }

    /// Bytes of each code of column `column`: 1, 2 or 4.
    pub fn code_bytes(&self, column: usize) -> usize {
        self.columns[column].code_bytes
    }

    /// Largest code of column `column`, 0 if there are no rows.
    pub fn maximum(&self, column: usize) -> u32 {
        self.columns[column].maximum
    }

    /// Row ids, ascending; `None` if row `i` has the id `i`.
    #[inline]
    pub fn ids(&self) -> Option<NumberSlice<'_>> {
        self.ids.as_ref().map(IdColumn::ids)
    }

    /// Id of row `row`, which is below [`rows`](Self::rows).
    #[inline]
    pub fn id(&self, row: usize) -> u64 {
        self.ids().map_or(row as u64, |ids| ids.get(row))
    }

    /// All row ids are below this number, which is 0 without rows and otherwise one above the last id.
    pub fn id_bound(&self) -> u64 {
        self.rows.checked_sub(1).map_or(0, |last| self.id(last) + 1)
    }

    /// Id of the first row.
    pub fn id_of_first(&self) -> Option<u64> {
        (self.rows > 0).then(|| self.id(0))
    }

    /// The row with the id `id`.
    pub fn row_of(&self, id: u64) -> Option<usize> {
        let row = match self.ids() {
            None => usize::try_from(id).ok()?,
            Some(ids) => ids.partition_point(|other| other < id),
        };
        (row < self.rows && self.id(row) == id).then_some(row)
    }

    /// The given columns, each of which exists, in the given order. Fails if there are none.
    pub fn project(&self, columns: &[usize]) -> Result<Self> {
        if columns.is_empty() {
            return Err(Error::NoColumns);
        }
        let (missing, width) = (columns.iter().find(|&&column| column >= self.width()), self.width());
        match missing {
            Some(&column) => Err(Error::ColumnOutOfRange { column, columns: width }),
            None => {
                let columns = columns.iter().map(|&column| self.columns[column].clone()).collect();
                Ok(Self { columns, rows: self.rows, ids: self.ids.clone() })
            }
        }
    }

    /// The rows with the given numbers, in the given order. Their ids are their places in it.
    pub(crate) fn sample(&self, rows: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let column = |column: &CodeColumn| {
            let codes = column.codes();
            CodeColumn::new(rows.clone().map(|row| codes.get(row)), column.maximum)
        };
        Self { columns: self.columns.iter().map(column).collect(), rows: rows.len(), ids: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_take_few_bytes() {
        let table =
            CodeTable::new(vec![vec![0, 255], vec![256, 1], vec![1 << 16, 7]]).expect("three columns");
        assert_eq!([0, 1, 2].map(|column| table.code_bytes(column)), [1, 2, 4]);
        assert_eq!([0, 1, 2].map(|column| table.code(column, 0)), [0, 256, 1 << 16]);
        assert_eq!((table.bytes(), table.maximum(2)), (14, 1 << 16));
        assert_eq!(table.project(&[2]).expect("column 2").code(0, 1), 7);
        assert_eq!(table.project(&[3]), Err(Error::ColumnOutOfRange { column: 3, columns: 3 }));
        assert_eq!(table.sample([1, 1].into_iter()).code(1, 1), 1);
    }

    #[test]
    fn ids_ascend_and_may_have_gaps() {
        let table = || CodeTable::new(vec![vec![5, 6, 7]]).expect("one column");
        let gaps = table().with_ids(&[2, 3, 1 << 40]).expect("ascending ids");
        assert_eq!([0, 1, 2].map(|row| gaps.id(row)), [2, 3, 1 << 40]);
        assert_eq!([0, 2, 3, 4, 1 << 40].map(|id| gaps.row_of(id)), [None, Some(0), Some(1), None, Some(2)]);
        assert_eq!((gaps.id_bound(), table().id_bound()), ((1 << 40) + 1, 3));
        assert_eq!(table().with_ids(&[0, 1, 2]), Ok(table()));
        assert_eq!(table().row_of(3), None);
        assert_eq!(table().with_ids(&[0, 1]), Err(Error::WrongNumberOfIds { ids: 2, rows: 3 }));
        for wrong in [[0, 2, 2], [3, 1, 4], [0, 1, u64::MAX]] {
            assert_eq!(table().with_ids(&wrong), Err(Error::UnsortedIds));
        }
    }
}
