//! Merge of parts that are kept elsewhere: Elfs with their tables, and rows that no Elf has yet, into a forest.
//!
//! It is the merge of a table that changes: the rows that are left, in the order of their ids, with dictionaries
//! that have exactly their values. Each portion comes with its own dictionaries and deleted rows, and the result
//! is again an Elf with its table and dictionaries.

use std::sync::Arc;

use super::merge::gather_sorted;
use super::options::{Config, LiveOptions};
use super::part::{Form, Part, Rows};
use super::tombstones::Tombstones;
use crate::build::BuildOptions;
use crate::dictionary::Dictionary;
use crate::elf::Elf;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::layout::{LayoutKind, is_permutation};
use crate::schema::Schema;
use crate::table::CodeTable;

/// Rows with ids that ascend.
#[derive(Clone, Debug)]
pub struct Portion {
    pub table: Arc<CodeTable>,
    /// One per column.
    pub dictionaries: Vec<Dictionary>,
    /// The Elf of the rows, with the same table beside it; `None` for rows that are not sorted yet.
    pub elf: Option<Elf>,
    pub deleted: Tombstones,
}

/// How the merged Elf is built.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    pub schema: Schema,
    /// Column at each level.
    pub order: Vec<usize>,
    pub layout: LayoutKind,
    pub build: BuildOptions,
    /// Trees of the result.
    pub trees: Trees,
}

/// Number of trees in a [forest](Elf::build_forest).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trees {
    /// At most that many.
    pub most: usize,
    /// One for each of so many rows.
    pub rows: u64,
}

impl Trees {
    /// One tree, whatever it has.
    pub const ONE: Self = Self { most: 1, rows: 1 };

    /// The number for `rows` rows.
    pub fn of(self, rows: u64) -> usize {
        (rows / self.rows.max(1)).clamp(1, self.most.max(1) as u64) as usize
    }
}

/// The rows of several portions that are left.
#[derive(Debug)]
pub struct Merged {
    pub trees: Vec<Elf>,
    /// The rows of all trees.
    pub table: Arc<CodeTable>,
    pub dictionaries: Vec<Dictionary>,
}

/// Puts the rows of `portions` that are not deleted together; `None` if there are none. The ids of a portion are
/// above those of the one before. Fails if the order does not name each column once, if a bucket has no rows, if
/// a portion has no dictionaries of the schema or another column order, and like a build.
pub fn merge_portions(portions: Vec<Portion>, options: &MergeOptions) -> Result<Option<Merged>> {
    let MergeOptions { schema, order, layout, build, trees } = options;
    let columns = schema.columns().len();
    if !is_permutation(order, columns) {
        return Err(Error::BadOrder { order: order.clone(), columns });
    }
    if build.bucket_rows == 0 {
        return Err(Error::EmptyBucket);
    }
    for portion in &portions {
        check(portion, options)?;
    }
    let ids = portions.windows(2).map(|pair| (pair[0].table.id_bound(), pair[1].table.id_of_first()));
    if ids.into_iter().any(|(bound, first)| first.is_some_and(|first| first < bound)) {
        return Err(Error::UnsortedIds);
    }
    let config = Config {
        order: order.clone(),
        layout: *layout,
        gate: Gate::default(),
        kernel: Kernel::detect(),
        schema: Some(schema.clone()),
        options: LiveOptions { build: *build, ..LiveOptions::default() },
    };
    let parts = portions.into_iter().filter(|portion| portion.table.rows() > 0).map(part);
    let gathered = gather_sorted(&parts.collect::<Vec<_>>(), &config)?;
    let Some((Rows { table, dictionaries, .. }, sorted)) = gathered else { return Ok(None) };
    let pieces = sorted.divide(trees.of(table.rows() as u64)).into_iter();
    let built = pieces.map(|piece| Elf::of_sorted(&table, order, &piece, *layout, build));
    Ok(Some(Merged { trees: built.collect::<Result<_>>()?, table, dictionaries }))
}

fn part(portion: Portion) -> Part {
    let Portion { table, dictionaries, elf, deleted } = portion;
    let form = elf.map_or(Form::Chunk, |elf| Form::Run(Box::new(elf)));
    Part { rows: Arc::new(Rows { table, dictionaries, form }), deleted: Arc::new(deleted) }
}

fn check(portion: &Portion, options: &MergeOptions) -> Result<()> {
    let columns = options.schema.columns();
    let Portion { table, dictionaries, elf, .. } = portion;
    for values in [table.width(), dictionaries.len()] {
        if values != columns.len() {
            return Err(Error::WrongArity { values, columns: columns.len() });
        }
    }
    for (number, (column, dictionary)) in columns.iter().zip(dictionaries).enumerate() {
        let (code, values) = (table.maximum(number), dictionary.len());
        if dictionary.column() != column {
            let (column, found) = (column.name.clone(), dictionary.column().name.clone());
            return Err(Error::ForeignDictionary { column, found });
        }
        if code as usize > values {
            return Err(Error::UnknownCode { column: column.name.clone(), code, values });
        }
    }
    match elf {
        Some(elf) if elf.order() != options.order => {
            Err(Error::BadOrder { order: elf.order().to_vec(), columns: columns.len() })
        }
        Some(elf) if elf.table().is_none() => Err(Error::NoTable),
        _ => Ok(()),
    }
}
