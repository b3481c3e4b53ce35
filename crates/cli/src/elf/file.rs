//! Rows of a file for a table.
//!
//! A file may be read several times: to infer types, and for its rows. So standard input, and any other file that can
//! be read only once, is copied to a temporary file first if it has to be. A field that is no value of its column's
//! type rejects its row.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use pando::elf::{Cell, ColumnType};
use pando::printable;
use pando_workload::dataset::{self, Column, FieldColumn, FieldRows, Format, ReadOptions};
use rustix::fs::{Mode, OFlags};

use super::args::FileArgs;
use super::types::{self, Inferred};
use crate::failure::Failure;
use crate::rejects::Rejects;
use crate::signals::Interrupt;
use crate::{load, progress};

/// Rows between two checks of progress and signals.
const STRIDE: u64 = 1024;
/// Bytes of a field that a message shows.
const SHOWN: usize = 60;

/// A file with rows that can be read any number of times.
pub struct RowFile {
    file: File,
    path: PathBuf,
    format: Format,
    options: ReadOptions,
}

/// A column of the file, and the type of its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileColumn {
    pub name: String,
    pub kind: ColumnType,
}

/// Rows that were read and rejected.
#[derive(Debug, Default)]
pub struct Summary {
    pub rows: u64,
    pub rejects: Rejects,
}

impl RowFile {
    pub fn open(args: &FileArgs) -> Result<RowFile, Failure> {
        let is_stdin = args.file.as_os_str() == "-";
        let path = if is_stdin { PathBuf::from("standard input") } else { args.file.clone() };
        let format = match args.format {
            Some(format) => Some(format),
            None if is_stdin => None,
            None => Format::of_path(&args.file).filter(|format| *format != Format::Words),
        };
        let format = format.ok_or_else(|| {
            Failure::bad_input(format_args!(
                "the name {} does not say what format the file has; use --format csv, tsv or parquet",
                args.file.display()
            ))
        })?;
        let delimiter = match args.delimiter {
            Some(_) if format == Format::Parquet => {
                return Err(Failure::bad_input("--delimiter is for CSV and TSV files"));
            }
            Some(delimiter) if !delimiter.is_ascii() || "\"\r\n".contains(delimiter) => {
                return Err(Failure::bad_input(format_args!("`{delimiter}` cannot be between fields")));
            }
            delimiter => delimiter.map(|delimiter| delimiter as u8),
        };
        if args.no_header && format == Format::Parquet {
            return Err(Failure::bad_input(
                "a Parquet file has names of columns; --no-header is for CSV and TSV",
            ));
        }
        let options = ReadOptions { header: !args.no_header, delimiter, ..ReadOptions::default() };
        let open_error = |error| dataset::DatasetError::Open { path: args.file.clone(), error };
        let file = if is_stdin { load::stdin_file()? } else { File::open(&args.file).map_err(open_error)? };
        let is_file = file.metadata().map_err(open_error)?.is_file();
        let file = if is_file { file } else { copied(file, &path)? };
        Ok(RowFile { file, path, format, options })
    }

    /// The rows from the beginning, with the given columns, or with all.
    fn rows(&self, columns: &[Column]) -> Result<FieldRows, Failure> {
        let failed = |error: io::Error| cannot_read(&self.path, error);
        let mut file = self.file.try_clone().map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        Ok(dataset::open_fields(file, &self.path, self.format, columns, &self.options)?)
    }

    /// The columns of the file, all of them if none are given. `is_known` tells for which of them a type is given.
    pub fn columns(&self, columns: &[Column]) -> Result<Vec<FieldColumn>, Failure> {
        let found = self.rows(columns)?.columns().to_vec();
        match found.is_empty() {
            true => {
                Err(Failure::bad_input(format_args!("{} has no rows and no columns", self.path.display())))
            }
            false => Ok(found),
        }
    }

    /// Types of the columns: the given ones, those of the file, or what all fields are; and a sentence about the last.
    pub fn infer(
        &self,
        columns: &[Column],
        given: &[Option<ColumnType>],
        interrupt: &Interrupt,
    ) -> Result<(Vec<FileColumn>, Option<String>), Failure> {
        let found = self.columns(columns)?;
        let given = |number: usize| given.get(number).copied().flatten();
        let mut known: Vec<Option<ColumnType>> = Vec::new();
        for (number, column) in found.iter().enumerate() {
            if column.content == dataset::Content::Float && given(number).is_none() {
                return Err(Failure::bad_input(format_args!(
                    "column `{0}` has floating-point numbers, which an Elf does not hold; give it a type by --columns, such as \
                     {0}:decimal(2)",
                    column.name
                )));
            }
            known.push(given(number).or(types::kind_of(column.content)));
        }
        // A Parquet file says what its columns are: the others are text.
        let by_text = self.format != Format::Parquet && known.contains(&None);
        let mut inferred = vec![Inferred::default(); found.len()];
        if by_text {
            self.see_all(columns, &known, &mut inferred, interrupt)?;
        }
        let kind = |number: usize| match known[number] {
            Some(kind) => kind,
            None if by_text => inferred[number].kind(),
            None => ColumnType::String,
        };
        let column =
            |(number, column): (usize, FieldColumn)| FileColumn { name: column.name, kind: kind(number) };
        let typed: Vec<FileColumn> = found.into_iter().enumerate().map(column).collect();
        let unknown = typed.iter().zip(&known).filter(|(_, known)| by_text && known.is_none());
        let list: Vec<String> =
            unknown.map(|(column, _)| format!("{}:{}", column.name, types::name_of(column.kind))).collect();
        let told = format!("inferred from all rows: {}", printable(&list.join(",")));
        Ok((typed, by_text.then_some(told)))
    }

    /// Looks at all fields of columns whose type is not known.
    fn see_all(
        &self,
        columns: &[Column],
        known: &[Option<ColumnType>],
        inferred: &mut [Inferred],
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        let mut rows = self.rows(columns)?;
        let bar = progress::bytes_bar("inferring", rows.progress().total);
        let mut count = 0_u64;
        while let Some(row) = rows.next_row() {
            count += 1;
            if count.is_multiple_of(STRIDE) {
                bar.set_position(rows.progress().done);
                interrupt.check()?;
            }
            // Rows that are rejected are reported when they are read for their values.
            if row.is_err() {
                continue;
            }
            for column in (0..known.len()).filter(|&column| known[column].is_none()) {
                if let (false, Some(field)) = (inferred[column].is_text(), rows.field(column)) {
                    inferred[column].see(field);
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Gives `take` the values of all rows that are valid.
    ///
    /// # Errors
    /// More than `max` rejected rows, or a file that cannot be read to its end; the error of `take`.
    pub fn read(
        &self,
        columns: &[Column],
        kinds: &[ColumnType],
        max: u64,
        interrupt: &Interrupt,
        mut take: impl FnMut(&[Cell<'_>]) -> Result<(), Failure>,
    ) -> Result<Summary, Failure> {
        let mut rows = self.rows(columns)?;
        let names: Vec<String> = rows.columns().iter().map(|column| column.name.clone()).collect();
        let bar = match self.format {
            Format::Parquet => progress::bar("reading", rows.progress().total),
            _ => progress::bytes_bar("reading", rows.progress().total),
        };
        let mut summary = Summary::default();
        while let Some(row) = rows.next_row() {
            summary.rows += 1;
            if summary.rows.is_multiple_of(STRIDE) {
                bar.set_position(rows.progress().done);
                interrupt.check()?;
            }
            let reason = match row {
                Err(rejected) if rejected.is_fatal() => return Err(Failure::failed(rejected)),
                Err(rejected) => rejected.to_string(),
                Ok(line) => {
                    let cell = |column: usize| types::cell(rows.field(column), kinds[column]);
                    let mut cells = Vec::with_capacity(kinds.len());
                    cells.extend((0..kinds.len()).map_while(cell));
                    let column = cells.len();
                    if column == kinds.len() {
                        take(&cells)?;
                        continue;
                    }
                    let field = shown(rows.field(column).unwrap_or_default());
                    let kind = types::name_of(kinds[column]);
                    format!("line {line}: `{field}` in column `{}` is no {kind}", names[column])
                }
            };
            summary.rejects.add(|| reason);
            if summary.rejects.is_hopeless(max) {
                break;
            }
        }
        bar.finish_and_clear();
        summary.rejects.check(max)?;
        Ok(summary)
    }
}

/// Copies what can be read only once to a file without a name.
fn copied(mut input: File, path: &Path) -> Result<File, Failure> {
    let directory = std::env::temp_dir();
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let failed = |error: io::Error| {
        Failure::failed(format_args!("cannot copy {} to {}: {error}", path.display(), directory.display()))
    };
    let file =
        rustix::fs::open(&directory, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
    let mut file = File::from(file);
    io::copy(&mut input, &mut file).map_err(failed)?;
    Ok(file)
}

fn cannot_read(path: &Path, error: io::Error) -> Failure {
    Failure::failed(format_args!("cannot read {}: {error}", path.display()))
}

/// The beginning of a field, for a message.
fn shown(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(&field[..field.len().min(SHOWN)]).into_owned();
    let text = printable(&text).to_string();
    if field.len() > SHOWN { text + "..." } else { text }
}
