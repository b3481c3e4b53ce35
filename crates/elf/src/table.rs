//! A table of codes, column by column: what an Elf is built from, and what scans read.
//!
//! Row `i` of the table has the row id (TID) `i`. Codes come from an order-preserving dictionary or are given as
//! they are; code 0 stands for NULL there. Each column takes as few bytes per code as its largest one needs, so
//! that random accesses and scans touch little memory.

use crate::codes::{CodeSlice, code_bytes};
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

/// Codes of all columns; every column has the same number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeTable {
    columns: Vec<CodeColumn>,
    rows: usize,
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
        let narrow = |codes: Vec<u32>| {
            let maximum = codes.iter().copied().max().unwrap_or(0);
            CodeColumn::new(codes.into_iter(), maximum)
        };
        Ok(Self { columns: columns.into_iter().map(narrow).collect(), rows })
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
                Ok(Self { columns, rows: self.rows })
            }
        }
    }

    /// The rows with the given numbers, in the given order.
    pub(crate) fn sample(&self, rows: impl ExactSizeIterator<Item = usize> + Clone) -> Self {
        let column = |column: &CodeColumn| {
            let codes = column.codes();
            CodeColumn::new(rows.clone().map(|row| codes.get(row)), column.maximum)
        };
        Self { columns: self.columns.iter().map(column).collect(), rows: rows.len() }
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
}
