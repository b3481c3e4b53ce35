//! Options and arguments of `pando elf`.
//!
//! Options that other commands have, too, mean the same here; those of files are shared by `build` and `insert`.
//! A table is named like an index, and where only one is there it need not be named.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use pando::elf::LayoutKind;
use pando_lab::units::{parse_count, parse_size};
use pando_workload::dataset::Format;

use super::types::TypedColumn;
use crate::args::{IndexArgs, LookArgs, NewPoolArgs, OffloadArg, TargetArgs};

#[derive(Debug, Subcommand)]
pub enum ElfCommand {
    /// Make a table from a CSV, TSV or Parquet file
    Build(BuildArgs),
    /// Find the rows that meet a condition
    Query(QueryArgs),
    /// Insert the rows of a file
    Insert(InsertArgs),
    /// Delete the rows that meet a condition
    Delete(DeleteArgs),
    /// Merge parts that were inserted, and drop deleted rows
    Merge(MergeArgs),
    /// Show the columns and parts of the tables
    Stats(ElfStatsArgs),
    /// Read all of a table and check whether everything fits together
    Check(ElfCheckArgs),
    /// Remove a table and free its memory
    Drop(IndexArgs),
}

/// A file with rows.
#[derive(Args, Debug)]
pub struct FileArgs {
    /// The file; - is standard input
    pub file: PathBuf,
    /// csv, tsv or parquet [default: by the file's extension]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// The first row is data, not names of columns
    #[arg(long)]
    pub no_header: bool,
    /// The byte between fields, if not the format's own
    #[arg(long, value_name = "CHAR")]
    pub delimiter: Option<char>,
    /// Rows that may be rejected; with more the command fails and changes nothing
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_count)]
    pub max_rejects: u64,
    /// Write the summary as JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct BuildArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub target: IndexArgs,
    #[command(flatten)]
    pub new_pool: NewPoolArgs,
    /// Columns of the table: names or numbers from 1 of columns of the file, each with :int, :decimal(DIGITS), :date or
    /// :str for its type [default: all, with the types of the file, or of CSV what all its fields are]
    #[arg(long, value_name = "COL,..", value_delimiter = ',')]
    pub columns: Vec<TypedColumn>,
    /// Columns from the top of the tree: auto, cardinality (few values first), or names; those that are not named follow
    /// [auto: for the conditions of --workload if there are any, else cardinality]
    #[arg(long, value_name = "ORDER", value_delimiter = ',', default_value = "auto")]
    pub order: Vec<String>,
    /// A file with typical conditions, one a line, for which the column order is chosen
    #[arg(long, value_name = "FILE")]
    pub workload: Option<PathBuf>,
    /// How the tree is stored
    #[arg(long, value_name = "LAYOUT", value_enum, default_value_t = Layout::Columnar)]
    pub layout: Layout,
    /// Most rows of a bucket in the columnar layout
    #[arg(long, value_name = "N", default_value = "256")]
    pub bucket_rows: u32,
    /// Memory that the build may take besides the distinct values of each column; what does not fit goes to temporary
    /// files [default: as much as it needs]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// Threads that sort and write [default: the cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Trees of the forest, each on one memory server [default: one for each memory server, if it has 65,536 rows]
    #[arg(long, value_name = "N")]
    pub trees: Option<usize>,
    /// Take the place of an Elf of this name, which is found until the new one is complete
    #[arg(long)]
    pub replace: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// Levels as columns, with buckets
    Columnar,
    /// One array, as published
    Linear,
}

impl Layout {
    pub fn kind(self) -> LayoutKind {
        match self {
            Layout::Columnar => LayoutKind::Columnar,
            Layout::Linear => LayoutKind::Linear,
        }
    }
}

#[derive(Args, Debug)]
pub struct QueryArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub look: LookArgs,
    /// What stands behind WHERE in SQL, such as "day >= date '1994-01-01' and (price < 9.5 or kind like 'a%')"
    /// [default: all rows]
    #[arg(long = "where", value_name = "CONDITION", allow_hyphen_values = true)]
    pub condition: Option<String>,
    /// What to print
    #[arg(long, value_name = "FORM", value_enum, default_value_t = ResultForm::Count)]
    pub output: ResultForm,
    /// Columns to print, with --output csv or arrow [default: all]
    #[arg(long, value_name = "COL,..", value_delimiter = ',')]
    pub select: Vec<String>,
    /// When memory servers search the trees that they have
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = OffloadArg::Never)]
    pub offload: OffloadArg,
    /// Tell on standard error how the rows were found: column order, region, gate, cache and verbs
    #[arg(long)]
    pub explain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ResultForm {
    /// The number of rows
    Count,
    /// Ids of the rows, ascending, one a line
    Ids,
    /// Rows with a line of column names before them
    Csv,
    /// Rows as an Arrow stream
    Arrow,
}

#[derive(Args, Debug)]
pub struct InsertArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub target: TargetArgs,
    /// Columns of the file, names or numbers from 1, in the order of the table's columns [default: those of the same
    /// names, or without a header all of them]
    #[arg(long, value_name = "COL,..", value_delimiter = ',')]
    pub columns: Vec<String>,
}

#[derive(Args, Debug)]
pub struct DeleteArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// What stands behind WHERE in SQL
    #[arg(
        long = "where",
        value_name = "CONDITION",
        required_unless_present = "all",
        allow_hyphen_values = true
    )]
    pub condition: Option<String>,
    /// Delete all rows
    #[arg(long, conflicts_with = "condition")]
    pub all: bool,
}

#[derive(Args, Debug)]
pub struct MergeArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Make one part of all, not only of those that are due
    #[arg(long)]
    pub all: bool,
}

#[derive(Args, Debug)]
pub struct ElfStatsArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub look: LookArgs,
    /// Print JSON to a file, or to standard output
    #[arg(long, value_name = "FILE|-", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub struct ElfCheckArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub look: LookArgs,
}
