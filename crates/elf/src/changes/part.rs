//! A part of a table that changes: rows that stay as they are, and which of them are deleted.
//!
//! Parts follow each other in the order of row ids. A part has dictionaries of its own, so that a new value
//! never changes the codes of rows that are stored; a predicate on values is encoded for each part. A table
//! of codes has no dictionaries, and all of its parts mean the same by a code.

use std::sync::Arc;

use super::tombstones::{Living, Tombstones};
use crate::dictionary::Dictionary;
use crate::elf::{Elf, Selection};
use crate::error::Result;
use crate::gate::Output;
use crate::kernel::Kernel;
use crate::predicate::Predicate;
use crate::scan::{expected_reads, scan};
use crate::sink::Sink;
use crate::table::CodeTable;

/// How the rows of a part are searched.
#[derive(Debug)]
pub(super) enum Form {
    /// By a scan; chunks of the row buffer join each other.
    Chunk,
    /// By a scan, until the Elf is built that replaces the part.
    Sealed,
    /// By an Elf, which keeps the same table beside it.
    Run(Box<Elf>),
}

/// Rows that never change, at least one.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) table: Arc<CodeTable>,
    /// One per column, or none if the table holds codes.
    pub(super) dictionaries: Vec<Dictionary>,
    pub(super) form: Form,
}

/// A version of a part. Versions share the rows.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) rows: Arc<Rows>,
    pub(super) deleted: Arc<Tombstones>,
}

impl Part {
    /// A part of which no row is deleted.
    pub(super) fn new(rows: Rows) -> Self {
        Self { rows: Arc::new(rows), deleted: Arc::default() }
    }

    pub(super) fn table(&self) -> &CodeTable {
        &self.rows.table
    }

    /// Number of rows that are not deleted.
    pub(super) fn living(&self) -> u64 {
        self.table().rows() as u64 - self.deleted.count()
    }

    pub(super) fn is_chunk(&self) -> bool {
        matches!(self.rows.form, Form::Chunk)
    }

    pub(super) fn elf(&self) -> Option<&Elf> {
        match &self.rows.form {
            Form::Run(elf) => Some(elf),
            Form::Chunk | Form::Sealed => None,
        }
    }

    /// Prepares a search for each of `predicates`. Fails if one names a column that does not exist.
    pub(super) fn select(
        &self,
        predicates: impl IntoIterator<Item = Predicate>,
        kernel: Kernel,
    ) -> Result<PartSelection<'_>> {
        let search = |predicate: Predicate| match &self.rows.form {
            Form::Run(elf) => elf.select(&predicate).map(Search::Elf),
            Form::Chunk | Form::Sealed => {
                expected_reads(self.table(), &predicate)?;
                Ok(Search::Scan(self.table(), predicate, kernel))
            }
        };
        let searches = predicates.into_iter().map(search).collect::<Result<_>>()?;
        Ok(PartSelection { searches, deleted: &self.deleted })
    }
}

/// A search of the rows of a part, deleted ones included.
#[derive(Debug)]
pub(super) enum Search<'p> {
    Elf(Selection<'p, Vec<u8>>),
    Scan(&'p CodeTable, Predicate, Kernel),
}

impl Search<'_> {
    fn run<S: Sink>(&self, output: Output, sink: &mut S) {
        match self {
            Self::Elf(selection) => {
                selection.run(output, sink);
            }
            Self::Scan(table, predicate, kernel) => {
                scan(table, predicate, *kernel, sink).expect("the columns were looked up before");
            }
        }
    }
}

/// Searches of a part for predicates that no row meets two of.
#[derive(Debug)]
pub(super) struct PartSelection<'p> {
    pub(super) searches: Vec<Search<'p>>,
    pub(super) deleted: &'p Tombstones,
}

impl PartSelection<'_> {
    /// Gives `sink` the matching rows of one search that are not deleted. `restart` of the sink must forget
    /// no more than these.
    pub(super) fn run<S: Sink>(&self, search: &Search<'_>, output: Output, sink: &mut S) {
        if self.deleted.is_empty() {
            search.run(output, sink);
        } else {
            search.run(output, &mut Living { sink, deleted: self.deleted });
        }
    }
}
