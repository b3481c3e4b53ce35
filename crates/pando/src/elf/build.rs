//! Building a table from rows.
//!
//! Values get provisional codes while rows come; when all are known, the codes become those of dictionaries that keep
//! the order of values, the column order is chosen, and the Elf is built. With a bound on memory, rows
//! go to a temporary file and the Elf is built outside of memory. The distinct values of each column stay in memory
//! either way.

use std::fs::File;

use pando_elf::{
    Advice, BuildOptions, CodeTable, Dictionary, EncodedTable, ExternalBuild, ExternalOptions, LayoutKind,
    Schema, SqlOptions, TableEncoder, Trees, Value, by_cardinality, for_workload, parse_condition,
};
use pando_elf_remote::{NewPart, NewTree, Source, TableOptions, TableSpec};

use super::spill::{Spill, failed, temporary_file};
use crate::error::Result;

/// Rows of which a column order for a workload is found.
const SAMPLE_ROWS: u64 = 20_000;

/// Rows become a chunk of a temporary file when they take this part of the memory. When it is read back, it takes as
/// much up to three times: as bytes, as codes, and as a table.
const ROWS_SHARE: usize = 8;

/// Order of the columns in the tree, from the top.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Few distinct values first.
    #[default]
    Cardinality,
    /// These columns; those that are not named follow, few distinct values first.
    Columns(Vec<String>),
    /// An order in which these conditions, in SQL notation, cost little. It starts from that by cardinality.
    Workload(Vec<String>),
}

/// How a table is built.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElfOptions {
    /// Default: columnar.
    pub layout: LayoutKind,
    /// Default: by cardinality.
    pub order: Order,
    /// Most rows of a bucket in the columnar layout. Default: 256.
    pub bucket_rows: u32,
    /// Threads that sort and write. Default: 1.
    pub threads: usize,
    /// Trees of the forest. In a pool they are on one memory server each, in turn, so that the server can search a
    /// tree by itself. A single tree is striped over all servers. Default: one.
    pub trees: Trees,
    /// Most bytes that the build allocates, besides the distinct values of each column. Default: no bound.
    pub memory: Option<usize>,
}

impl Default for ElfOptions {
    fn default() -> Self {
        Self {
            layout: LayoutKind::Columnar,
            order: Order::default(),
            bucket_rows: 256,
            threads: 1,
            trees: Trees::ONE,
            memory: None,
        }
    }
}

impl ElfOptions {
    pub fn layout(mut self, layout: LayoutKind) -> Self {
        self.layout = layout;
        self
    }

    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    pub fn bucket_rows(mut self, rows: u32) -> Self {
        self.bucket_rows = rows;
        self
    }

    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// As many trees, if there are that many rows.
    pub fn trees(mut self, trees: usize) -> Self {
        self.trees = Trees { most: trees, rows: 1 };
        self
    }

    /// Up to so many trees, but no more than rows are worth it.
    pub fn trees_up_to(mut self, most: usize) -> Self {
        self.trees = Trees { most, rows: TableOptions::default().tree_rows };
        self
    }

    pub fn memory(mut self, bytes: Option<usize>) -> Self {
        self.memory = bytes;
        self
    }

    fn spec(&self, schema: Schema, order: Vec<usize>) -> TableSpec {
        TableSpec { schema, order, layout: self.layout, bucket_rows: self.bucket_rows }
    }

    /// A build outside of memory. A part of the memory is left to rows on their way there, as codes and as a table.
    fn external(&self, order: &[usize]) -> pando_elf::Result<ExternalBuild> {
        let memory = self.memory.unwrap_or(usize::MAX);
        let memory_bytes = memory - memory / ROWS_SHARE * 3;
        let external = ExternalOptions { build: self.build(), memory_bytes, ..ExternalOptions::default() };
        ExternalBuild::new(order, self.layout, external).map_err(|error| match error {
            pando_elf::Error::MemoryTooSmall { needed, .. } => pando_elf::Error::MemoryTooSmall {
                bytes: memory,
                needed: needed.div_ceil(ROWS_SHARE - 3) * ROWS_SHARE,
            },
            error => error,
        })
    }

    fn build(&self) -> BuildOptions {
        BuildOptions { bucket_rows: self.bucket_rows, threads: self.threads, ..BuildOptions::default() }
    }
}

/// A value of a row that is pushed without a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell<'a> {
    Null,
    /// An integer, days since 1970-01-01, or a decimal without its point, which stands where the column's scale says.
    Number(i128),
    Text(&'a str),
}

/// A table that is being built, outside of any pool. Dropped, it leaves nothing behind.
#[derive(Debug)]
pub struct ElfBuild {
    options: ElfOptions,
    encoder: TableEncoder,
    rows: u64,
    /// Rows that are in memory.
    rows_held: u64,
    spill: Option<Spill>,
}

/// A table that was built, to be put into a pool.
#[derive(Debug)]
pub struct BuiltElf {
    spec: TableSpec,
    dictionaries: Vec<Dictionary>,
    trees: Forest,
    rows: u64,
    /// Bytes of all images.
    bytes: u64,
}

#[derive(Debug)]
enum Forest {
    Memory(Vec<pando_elf::Elf>),
    /// Each with the number of its rows.
    Files(Vec<(File, u64)>),
}

impl BuiltElf {
    pub fn spec(&self) -> &TableSpec {
        &self.spec
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Number of trees.
    pub fn trees(&self) -> usize {
        match &self.trees {
            Forest::Memory(elfs) => elfs.len(),
            Forest::Files(files) => files.len(),
        }
    }

    /// Bytes of all images.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn new_trees(&self) -> Vec<NewTree<'_>> {
        match &self.trees {
            Forest::Memory(elfs) => elfs.iter().map(NewTree::of).collect(),
            Forest::Files(files) => {
                files.iter().map(|(file, rows)| NewTree { image: Source::File(file), rows: *rows }).collect()
            }
        }
    }

    pub(super) fn part<'b>(&'b self, trees: &'b [NewTree<'b>]) -> NewPart<'b> {
        let (rows, dictionaries) = (self.rows, &self.dictionaries[..]);
        NewPart { trees, dictionaries, rows, first_id: 0, id_bound: rows }
    }
}

impl ElfBuild {
    /// A table without rows.
    ///
    /// # Errors
    /// [`Error::Elf`](crate::Error::Elf) for a column order or a bound on memory that is not possible.
    pub fn new(schema: Schema, options: &ElfOptions) -> Result<Self> {
        if let Order::Columns(names) = &options.order {
            columns_of(&schema, names)?;
        }
        if options.bucket_rows == 0 {
            return Err(pando_elf::Error::EmptyBucket.into());
        }
        if options.memory.is_some() {
            // An impossible bound is refused before a row is read.
            let order: Vec<usize> = (0..schema.columns().len()).collect();
            options.external(&order)?;
        }
        let (options, encoder) = (options.clone(), TableEncoder::new(schema));
        Ok(Self { options, encoder, rows: 0, rows_held: 0, spill: None })
    }

    /// Number of rows so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends a row with one value per column. A row that does not fit the columns is not appended.
    ///
    /// # Errors
    /// [`Error::Elf`](crate::Error::Elf); a temporary file that cannot be written, after which the build can only be dropped.
    pub fn push(&mut self, row: &[Value]) -> Result<()> {
        let columns = self.encoder.schema().columns();
        if row.len() != columns.len() {
            return Err(pando_elf::Error::WrongArity { values: row.len(), columns: columns.len() }.into());
        }
        for (column, value) in columns.iter().zip(row) {
            // A dictionary of one value refuses what the column cannot hold.
            Dictionary::new(column, std::iter::once(value))?;
        }
        for (column, value) in row.iter().enumerate() {
            self.encoder.column(column).push(value)?;
        }
        self.end_row()
    }

    /// Appends a row whose cells are known to be of the columns' types. After an error the build can only be
    /// dropped.
    ///
    /// # Errors
    /// As for [`ElfBuild::push`].
    pub fn push_cells(&mut self, row: &[Cell<'_>]) -> Result<()> {
        for (number, cell) in row.iter().enumerate() {
            let column = self.encoder.column(number);
            match *cell {
                Cell::Null => column.push(&Value::Null)?,
                Cell::Number(number) => column.push_unscaled(number)?,
                Cell::Text(text) => column.push_str(text)?,
            }
        }
        self.end_row()
    }

    fn end_row(&mut self) -> Result<()> {
        self.rows += 1;
        self.rows_held += 1;
        let columns = self.encoder.schema().columns().len();
        let bytes = self.rows_held * columns as u64 * 4;
        if self.options.memory.is_some_and(|memory| bytes >= (memory / ROWS_SHARE) as u64) {
            self.write_out()?;
        }
        Ok(())
    }

    /// Moves the rows in memory to the temporary file.
    fn write_out(&mut self) -> Result<()> {
        let columns = self.encoder.schema().columns().len();
        let codes: Vec<Vec<u32>> =
            (0..columns).map(|column| self.encoder.column(column).take_provisional()).collect();
        let spill = match &mut self.spill {
            Some(spill) => spill,
            none => none.insert(Spill::create()?),
        };
        self.rows_held = 0;
        spill.push(&codes)
    }

    /// Builds the table.
    ///
    /// # Errors
    /// [`Error::Elf`](crate::Error::Elf) for a table that does not fit its layout, a wrong condition of the workload, or a temporary file
    /// that cannot be written.
    pub fn finish(mut self) -> Result<BuiltElf> {
        if self.spill.is_some() {
            self.write_out()?;
            return self.finish_outside();
        }
        let Self { options, encoder, .. } = self;
        let EncodedTable { schema, dictionaries, codes } = encoder.finish()?;
        let order = order_of(&options, &schema, &dictionaries, &codes)?;
        let (rows, build) = (codes.rows() as u64, options.build());
        let trees = options.trees.of(rows);
        let built = pando_elf::Elf::build_forest(&codes, &order, options.layout, &build, trees)?;
        let bytes = built.iter().map(|elf| elf.bytes().len() as u64).sum();
        let (spec, trees) = (options.spec(schema, order), Forest::Memory(built));
        Ok(BuiltElf { spec, dictionaries, trees, rows, bytes })
    }

    /// The same for rows in a temporary file.
    fn finish_outside(self) -> Result<BuiltElf> {
        let Self { options, encoder, rows: count, spill, .. } = self;
        let schema = encoder.schema().clone();
        let (dictionaries, ranks): (Vec<_>, Vec<_>) =
            encoder.into_columns().into_iter().map(|column| column.into_dictionary()).unzip();
        let mut rows = Recoded { spill: spill.expect("rows were written out"), ranks };
        let order = match &options.order {
            // A sample does not have all values.
            Order::Cardinality => by_values(&dictionaries, &[]),
            _ => order_of(&options, &schema, &dictionaries, &rows.sample(count)?)?,
        };
        let trees = build_outside(&mut rows, &order, &options)?;
        let (mut rows, mut bytes) = (0, 0);
        for (file, rows_of_tree) in &trees {
            rows += rows_of_tree;
            bytes += file.metadata().map_err(failed)?.len();
        }
        let (spec, trees) = (options.spec(schema, order), Forest::Files(trees));
        Ok(BuiltElf { spec, dictionaries, trees, rows, bytes })
    }
}

/// Rows in a temporary file, and the code of each provisional one.
struct Recoded {
    spill: Spill,
    ranks: Vec<Vec<u32>>,
}

impl Recoded {
    fn read(&mut self, mut take: impl FnMut(CodeTable) -> Result<()>) -> Result<()> {
        let ranks = &self.ranks;
        self.spill.read(ranks.len(), |mut columns| {
            for (codes, ranks) in columns.iter_mut().zip(ranks) {
                codes.iter_mut().for_each(|code| *code = ranks[*code as usize]);
            }
            take(CodeTable::new(columns)?)
        })
    }

    /// A table of rows that are evenly spaced, of `rows`.
    fn sample(&mut self, rows: u64) -> Result<CodeTable> {
        let step = rows.div_ceil(SAMPLE_ROWS).max(1);
        let mut columns = vec![Vec::new(); self.ranks.len()];
        let mut next = 0_u64;
        let mut before = 0_u64;
        self.read(|table| {
            let end = before + table.rows() as u64;
            while next < end {
                for (column, codes) in columns.iter_mut().enumerate() {
                    codes.push(table.code(column, (next - before) as usize));
                }
                next += step;
            }
            before = end;
            Ok(())
        })?;
        Ok(CodeTable::new(columns)?)
    }
}

/// Builds the trees in temporary files; returns the number of rows of each, too.
fn build_outside(rows: &mut Recoded, order: &[usize], options: &ElfOptions) -> Result<Vec<(File, u64)>> {
    let mut build = options.external(order)?;
    rows.read(|table| Ok(build.push(&table)?))?;
    let trees = 0..options.trees.of(build.rows());
    let files = trees.map(|_| temporary_file()).collect::<Result<Vec<_>>>()?;
    let headers = build.finish_forest(files.iter().collect())?;
    Ok(files.into_iter().zip(headers).map(|(file, header)| (file, header.rows)).collect())
}

/// Numbers of the named columns.
fn columns_of(schema: &Schema, names: &[String]) -> pando_elf::Result<Vec<usize>> {
    let columns: Vec<usize> = names.iter().map(|name| schema.position(name)).collect::<Result<_, _>>()?;
    let repeated = columns.iter().enumerate().find(|(at, column)| columns[..*at].contains(column));
    match repeated {
        Some((at, _)) => Err(pando_elf::Error::DuplicateColumn { name: names[at].clone() }),
        None => Ok(columns),
    }
}

/// All columns: `first`, and then those with few values.
fn by_values(dictionaries: &[Dictionary], first: &[usize]) -> Vec<usize> {
    let mut rest: Vec<usize> = (0..dictionaries.len()).filter(|column| !first.contains(column)).collect();
    rest.sort_by_key(|&column| dictionaries[column].len());
    [first, &rest].concat()
}

fn order_of(
    options: &ElfOptions,
    schema: &Schema,
    dictionaries: &[Dictionary],
    table: &CodeTable,
) -> pando_elf::Result<Vec<usize>> {
    match &options.order {
        Order::Cardinality => Ok(by_cardinality(table)),
        Order::Columns(names) => Ok(by_values(dictionaries, &columns_of(schema, names)?)),
        Order::Workload(conditions) => {
            let mut workload = Vec::new();
            for condition in conditions {
                workload.extend(parse_condition(condition, dictionaries, &SqlOptions::default())?);
            }
            let advice = Advice { bucket_rows: options.bucket_rows, ..Advice::default() };
            for_workload(table, &workload, &advice)
        }
    }
}
