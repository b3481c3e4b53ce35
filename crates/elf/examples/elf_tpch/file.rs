//! Reads a table without NULLs from Parquet.

use std::error::Error;
use std::fs::File;
use std::path::Path;

use pando_elf::{Column, ColumnEncoder, ColumnType, EncodedTable, Schema, TableEncoder};
use parquet::basic::{ConvertedType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::DataType;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::ColumnDescriptor;

/// All columns of the file but `without`.
pub fn read(path: &Path, without: &str) -> Result<EncodedTable, Box<dyn Error>> {
    let reader = SerializedFileReader::new(File::open(path)?)?;
    let columns = reader.metadata().file_metadata().schema_descr().columns().to_vec();
    let used: Vec<usize> = (0..columns.len()).filter(|&column| columns[column].name() != without).collect();
    let kinds = used.iter().map(|&column| Ok(Column::new(columns[column].name(), kind(&columns[column])?)));
    let schema = Schema::new(kinds.collect::<Result<_, Box<dyn Error>>>()?)?;
    let mut encoder = TableEncoder::new(schema);
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group)?;
        for (number, &column) in used.iter().enumerate() {
            append(group.get_column_reader(column)?, encoder.column(number))?;
        }
    }
    Ok(encoder.finish()?)
}

fn kind(column: &ColumnDescriptor) -> Result<ColumnType, Box<dyn Error>> {
    match (column.physical_type(), column.converted_type()) {
        (Type::INT64 | Type::INT32, ConvertedType::DECIMAL) => {
            Ok(ColumnType::Decimal { scale: u8::try_from(column.type_scale())? })
        }
        (Type::INT32, ConvertedType::DATE) => Ok(ColumnType::Date),
        (Type::INT64 | Type::INT32, _) => Ok(ColumnType::Integer),
        (Type::BYTE_ARRAY, _) => Ok(ColumnType::String),
        (other, _) => Err(format!("column {} has the type {other}, which is not read", column.name()).into()),
    }
}

fn append(reader: ColumnReader, to: &mut ColumnEncoder) -> Result<(), Box<dyn Error>> {
    match reader {
        ColumnReader::Int32ColumnReader(reader) => {
            each(reader, |&number| Ok(to.push_unscaled(number.into())?))
        }
        ColumnReader::Int64ColumnReader(reader) => {
            each(reader, |&number| Ok(to.push_unscaled(number.into())?))
        }
        ColumnReader::ByteArrayColumnReader(reader) => {
            each(reader, |text| Ok(to.push_str(std::str::from_utf8(text.data())?)?))
        }
        _ => Err("a column of this type is not read".into()),
    }
}

fn each<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    mut take: impl FnMut(&T::T) -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut values = Vec::new();
    loop {
        values.clear();
        let (_, found, _) = reader.read_records(1 << 16, None, None, &mut values)?;
        if found == 0 {
            return Ok(());
        }
        values.iter().try_for_each(&mut take)?;
    }
}
