//! A table of codes, column by column: what an Elf is built from.
//!
//! Row `i` of the table has the row id (TID) `i`. Codes come from an order-preserving dictionary
//! ([`crate::dictionary`]) or are given as they are; code 0 stands for NULL there.

use crate::error::{Error, Result};

/// Codes of all columns; every column has the same number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeTable {
    columns: Vec<Vec<u32>>,
    rows: usize,
}

impl CodeTable {
    /// Takes `columns[c][row]`. Fails without columns, with more than 65,535, and if their lengths differ.
    pub fn new(columns: Vec<Vec<u32>>) -> Result<Self> {
        let rows = columns.first().ok_or(Error::NoColumns)?.len();
        if columns.len() > usize::from(u16::MAX) {
            return Err(Error::TooManyColumns { columns: columns.len() });
        }
        match columns.iter().position(|column| column.len() != rows) {
            Some(column) => Err(Error::UnevenColumns { column, rows: columns[column].len(), expected: rows }),
            None => Ok(Self { columns, rows }),
        }
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Codes of column `column` in row order.
    pub fn column(&self, column: usize) -> &[u32] {
        &self.columns[column]
    }

    /// Largest code of column `column`, 0 if there are no rows.
    pub fn maximum(&self, column: usize) -> u32 {
        self.columns[column].iter().copied().max().unwrap_or(0)
    }

    /// The rows with the given numbers, in the given order.
    pub fn sample(&self, rows: impl Iterator<Item = usize> + Clone) -> Self {
        let columns: Vec<Vec<u32>> =
            self.columns.iter().map(|column| rows.clone().map(|row| column[row]).collect()).collect();
        let rows = columns[0].len();
        Self { columns, rows }
    }
}
