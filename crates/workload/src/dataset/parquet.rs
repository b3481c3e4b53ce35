//! Parquet files, read column by column in batches of rows.
//!
//! Only the columns of keys and values are read. Columns must be flat. Values become the text that CSV would
//! have, so that both formats of a table load into the same index.

use super::columns::{ColumnInfo, Content, Header, Plan};
use super::fields::FieldSource;
use super::parquet_text::TextForm;
use super::{DatasetError, Progress, ReadOptions, Reason, Record, Rejected, Source};
use crate::key_layout::{ColumnKind, KeyLayout};
use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType, FixedLenByteArray, Int96};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use std::fs::File;
use std::path::Path;

const BATCH_ROWS: usize = 4096;

pub(super) struct ParquetSource {
    reader: SerializedFileReader<File>,
    plan: Plan,
    header: Header,
    /// The columns that are read.
    columns: Vec<UsedColumn>,
    /// Position in `columns` of each column of the file.
    places: Vec<Option<usize>>,
    next_group: usize,
    /// Rows of the current group that have not been read yet.
    left_in_group: usize,
    /// Rows of the batch in memory that have not been returned yet.
    left_in_batch: usize,
    row: u64,
    rows: u64,
}

struct UsedColumn {
    index: usize,
    name: String,
    form: TextForm,
    /// 0 for a column without NULLs, otherwise 1.
    max_level: i16,
    reader: Option<ColumnReader>,
    levels: Vec<i16>,
    next_level: usize,
    values: Values,
    next_value: usize,
    /// The text of the current row, empty if it is NULL.
    text: Vec<u8>,
    is_null: bool,
}

enum Values {
    None,
    Bool(Vec<bool>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Int96(Vec<Int96>),
    Float(Vec<f32>),
    Double(Vec<f64>),
    Bytes(Vec<ByteArray>),
    Fixed(Vec<FixedLenByteArray>),
}

impl ParquetSource {
    pub fn open(file: File, path: &Path, options: &ReadOptions) -> Result<(Self, KeyLayout), DatasetError> {
        let invalid =
            |error: ParquetError| DatasetError::NotParquet { path: path.to_owned(), why: error.to_string() };
        let reader = SerializedFileReader::new(file).map_err(invalid)?;
        let metadata = reader.metadata().file_metadata();
        let rows = u64::try_from(metadata.num_rows()).unwrap_or(0);
        let schema = metadata.schema_descr_ptr();
        let header = header(&schema);
        let plan = Plan::new(&header, &options.key, options.value.as_deref())?;
        let mut columns: Vec<UsedColumn> = Vec::new();
        let mut places = vec![None; schema.num_columns()];
        for index in plan.key.iter().map(|(index, _)| *index).chain(plan.value.iter().copied()) {
            if places[index].is_none() {
                places[index] = Some(columns.len());
                columns.push(UsedColumn::new(&schema, index)?);
            }
        }
        let layout = plan.layout.clone();
        let (next_group, left_in_group, left_in_batch, row) = (0, 0, 0, 0);
        let source = ParquetSource {
            reader,
            plan,
            header,
            columns,
            places,
            next_group,
            left_in_group,
            left_in_batch,
            row,
            rows,
        };
        Ok((source, layout))
    }

    /// Makes at least one row available. Returns false at the end of the file.
    fn fill(&mut self) -> Result<bool, ParquetError> {
        while self.left_in_batch == 0 {
            if self.left_in_group > 0 {
                let rows = self.left_in_group.min(BATCH_ROWS);
                for column in &mut self.columns {
                    column.read_batch(rows)?;
                }
                self.left_in_group -= rows;
                self.left_in_batch = rows;
            } else if self.next_group < self.reader.num_row_groups() {
                let group = self.reader.get_row_group(self.next_group)?;
                for column in &mut self.columns {
                    column.reader = Some(group.get_column_reader(column.index)?);
                }
                self.left_in_group = usize::try_from(group.metadata().num_rows()).unwrap_or(0);
                self.next_group += 1;
            } else {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the texts of the row at hand.
    fn next_texts(&mut self) -> Result<(), Reason> {
        let mut problem = None;
        for column in &mut self.columns {
            if let Err(why) = column.next_text() {
                problem = Some(Reason::NoTextForm { column: column.name.clone(), why });
            }
        }
        problem.map_or(Ok(()), Err)
    }

    fn record(&mut self) -> Result<Record, Reason> {
        self.next_texts()?;
        let place = |index: usize| self.places[index].expect("a planned column is read");
        self.plan.record(|index| &self.columns[place(index)].text)
    }
}

impl FieldSource for ParquetSource {
    fn header(&self) -> Option<&Header> {
        Some(&self.header)
    }

    fn next_row(&mut self) -> Option<Result<u64, Rejected>> {
        let row = self.advance()?;
        Some(
            row.and_then(|line| self.next_texts().map(|()| line).map_err(|reason| Rejected { line, reason })),
        )
    }

    fn field(&self, column: usize) -> Option<&[u8]> {
        let column = &self.columns[self.places[column].expect("a planned column is read")];
        (!column.is_null).then_some(&column.text)
    }

    fn progress(&self) -> Progress {
        Progress { done: self.row, total: self.rows }
    }
}

impl ParquetSource {
    /// Moves to the next row; returns its number.
    fn advance(&mut self) -> Option<Result<u64, Rejected>> {
        let line = self.row + 1;
        match self.fill() {
            Ok(false) => return None,
            Ok(true) => {}
            Err(error) => {
                return Some(Err(Rejected { line, reason: Reason::ReadFailed(error.to_string()) }));
            }
        }
        self.row = line;
        self.left_in_batch -= 1;
        Some(Ok(line))
    }
}

impl Source for ParquetSource {
    fn next_row(&mut self) -> Option<Result<Record, Rejected>> {
        let row = self.advance()?;
        Some(row.and_then(|line| self.record().map_err(|reason| Rejected { line, reason })))
    }

    fn progress(&self) -> Progress {
        FieldSource::progress(self)
    }
}

fn header(schema: &SchemaDescriptor) -> Header {
    let column = |i: usize| {
        let column = schema.column(i);
        let form = TextForm::of(&column);
        let kind = if form.is_integer() { ColumnKind::Int } else { ColumnKind::Str };
        ColumnInfo { name: column.path().string(), kind, content: content(form, column.physical_type()) }
    };
    Header { columns: (0..schema.num_columns()).map(column).collect(), has_names: true }
}

fn content(form: TextForm, physical: Physical) -> Content {
    match form {
        TextForm::Integer | TextForm::Unsigned(_) => Content::Integer,
        TextForm::Decimal { scale } => Content::Decimal { scale },
        TextForm::Date => Content::Date,
        TextForm::Float16 => Content::Float,
        TextForm::Plain if matches!(physical, Physical::FLOAT | Physical::DOUBLE) => Content::Float,
        _ => Content::Text,
    }
}

impl UsedColumn {
    fn new(schema: &SchemaDescriptor, index: usize) -> Result<UsedColumn, DatasetError> {
        let column = schema.column(index);
        let name = column.path().string();
        if column.max_rep_level() > 0 || column.path().parts().len() > 1 {
            return Err(DatasetError::NestedColumn(name));
        }
        Ok(UsedColumn {
            index,
            name,
            form: TextForm::of(&column),
            max_level: column.max_def_level(),
            reader: None,
            levels: Vec::new(),
            next_level: 0,
            values: Values::None,
            next_value: 0,
            text: Vec::new(),
            is_null: false,
        })
    }

    fn read_batch(&mut self, rows: usize) -> Result<(), ParquetError> {
        self.levels.clear();
        (self.next_level, self.next_value) = (0, 0);
        let reader = self.reader.as_mut().expect("the group was opened before");
        let levels = (self.max_level > 0).then_some(&mut self.levels);
        self.values = match reader {
            ColumnReader::BoolColumnReader(reader) => Values::Bool(read(reader, rows, levels)?),
            ColumnReader::Int32ColumnReader(reader) => Values::Int32(read(reader, rows, levels)?),
            ColumnReader::Int64ColumnReader(reader) => Values::Int64(read(reader, rows, levels)?),
            ColumnReader::Int96ColumnReader(reader) => Values::Int96(read(reader, rows, levels)?),
            ColumnReader::FloatColumnReader(reader) => Values::Float(read(reader, rows, levels)?),
            ColumnReader::DoubleColumnReader(reader) => Values::Double(read(reader, rows, levels)?),
            ColumnReader::ByteArrayColumnReader(reader) => Values::Bytes(read(reader, rows, levels)?),
            ColumnReader::FixedLenByteArrayColumnReader(reader) => Values::Fixed(read(reader, rows, levels)?),
        };
        Ok(())
    }

    /// Stores the text of the next row in `text`.
    fn next_text(&mut self) -> Result<(), &'static str> {
        self.text.clear();
        if self.max_level > 0 {
            let level = self.levels[self.next_level];
            self.next_level += 1;
            self.is_null = level < self.max_level;
            if self.is_null {
                return Ok(());
            }
        }
        let (at, out) = (self.next_value, &mut self.text);
        self.next_value += 1;
        match &self.values {
            Values::None => Ok(()),
            Values::Bool(values) => self.form.bool(values[at], out),
            Values::Int32(values) => self.form.integer(values[at].into(), out),
            Values::Int64(values) => self.form.integer(values[at], out),
            Values::Int96(values) => self.form.int96(values[at].data(), out),
            Values::Float(values) => self.form.float(values[at], out),
            Values::Double(values) => self.form.float(values[at], out),
            Values::Bytes(values) => self.form.bytes(values[at].data(), out),
            Values::Fixed(values) => self.form.bytes(values[at].data(), out),
        }
    }
}

/// Reads exactly `rows` rows: their values, and which of them are NULL.
fn read<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    rows: usize,
    mut levels: Option<&mut Vec<i16>>,
) -> Result<Vec<T::T>, ParquetError> {
    let mut values = Vec::with_capacity(rows);
    let mut done = 0;
    while done < rows {
        let (records, _, _) = reader.read_records(rows - done, levels.as_deref_mut(), None, &mut values)?;
        if records == 0 {
            return Err(ParquetError::EOF(
                "a column has fewer values than its row group has rows".to_owned(),
            ));
        }
        done += records;
    }
    let expected = match levels {
        Some(levels) if levels.len() == rows => levels.iter().filter(|&&level| level > 0).count(),
        Some(_) => return Err(ParquetError::General("a column has the wrong number of levels".to_owned())),
        None => rows,
    };
    if values.len() != expected {
        return Err(ParquetError::General("a column has the wrong number of values".to_owned()));
    }
    Ok(values)
}
