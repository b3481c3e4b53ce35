//! Writes the lineitem table of TPC-H to a file, as CSV with a header row or as Parquet by the file's
//! extension:
//!
//! `cargo run --release -p pando-workload --example tpch_lineitem -- --scale 0.1 lineitem.csv`
//!
//! Scale factor 1 is six million rows. The table's key is (l_orderkey, l_linenumber).

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use tpchgen::csv::LineItemCsv;
use tpchgen::generators::LineItemGenerator;

const USAGE: &str = "usage: tpch_lineitem [--scale FACTOR] FILE.csv|FILE.parquet";

fn main() -> Result<(), Box<dyn Error>> {
    let mut scale = 1.0;
    let mut path = None;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--scale" => scale = arguments.next().ok_or(USAGE)?.parse()?,
            _ if path.is_none() && !argument.starts_with('-') => path = Some(PathBuf::from(argument)),
            _ => return Err(USAGE.into()),
        }
    }
    let path = path.ok_or(USAGE)?;
    let file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
    let rows = match path.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => write_csv(scale, file)?,
        #[cfg(feature = "parquet")]
        Some("parquet") => parquet_file::write(scale, file)?,
        _ => return Err(USAGE.into()),
    };
    println!("{rows} rows written to {}", path.display());
    Ok(())
}

fn write_csv(scale: f64, mut file: impl Write) -> Result<u64, Box<dyn Error>> {
    writeln!(file, "{}", LineItemCsv::header())?;
    let mut rows = 0;
    for row in LineItemGenerator::new(scale, 1, 1).iter() {
        writeln!(file, "{}", LineItemCsv::new(row))?;
        rows += 1;
    }
    file.flush()?;
    Ok(rows)
}

#[cfg(feature = "parquet")]
mod parquet_file {
    use super::{Error, LineItemGenerator, Write};
    use parquet::basic::Compression;
    use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
    use parquet::schema::parser::parse_message_type;
    use std::sync::Arc;
    use tpchgen::generators::LineItem;

    const GROUP_ROWS: usize = 1 << 18;
    const SCHEMA: &str = "message lineitem {
        REQUIRED INT64 l_orderkey; REQUIRED INT64 l_partkey; REQUIRED INT64 l_suppkey;
        REQUIRED INT32 l_linenumber; REQUIRED INT64 l_quantity (DECIMAL(15,2));
        REQUIRED INT64 l_extendedprice (DECIMAL(15,2)); REQUIRED INT64 l_discount (DECIMAL(15,2));
        REQUIRED INT64 l_tax (DECIMAL(15,2));
        REQUIRED BYTE_ARRAY l_returnflag (UTF8); REQUIRED BYTE_ARRAY l_linestatus (UTF8);
        REQUIRED INT32 l_shipdate (DATE); REQUIRED INT32 l_commitdate (DATE); REQUIRED INT32 l_receiptdate (DATE);
        REQUIRED BYTE_ARRAY l_shipinstruct (UTF8); REQUIRED BYTE_ARRAY l_shipmode (UTF8);
        REQUIRED BYTE_ARRAY l_comment (UTF8);
    }";

    pub fn write(scale: f64, file: impl Write + Send) -> Result<u64, Box<dyn Error>> {
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
        let generator = LineItemGenerator::new(scale, 1, 1);
        let mut rows = generator.iter();
        let mut total = 0;
        loop {
            let group: Vec<LineItem<'_>> = rows.by_ref().take(GROUP_ROWS).collect();
            if group.is_empty() {
                break;
            }
            total += group.len() as u64;
            let mut group_writer = writer.next_row_group()?;
            write_group(&mut group_writer, &group)?;
            group_writer.close()?;
        }
        writer.close()?;
        Ok(total)
    }

    fn write_group<W: Write + Send>(
        writer: &mut SerializedRowGroupWriter<'_, W>,
        rows: &[LineItem<'_>],
    ) -> Result<(), Box<dyn Error>> {
        let text = |text: &str| ByteArray::from(text.as_bytes().to_vec());
        column::<Int64Type, W>(writer, rows, |row| row.l_orderkey)?;
        column::<Int64Type, W>(writer, rows, |row| row.l_partkey)?;
        column::<Int64Type, W>(writer, rows, |row| row.l_suppkey)?;
        column::<Int32Type, W>(writer, rows, |row| row.l_linenumber)?;
        column::<Int64Type, W>(writer, rows, |row| row.l_quantity * 100)?;
        column::<Int64Type, W>(writer, rows, |row| row.l_extendedprice.into_inner())?;
        column::<Int64Type, W>(writer, rows, |row| row.l_discount.into_inner())?;
        column::<Int64Type, W>(writer, rows, |row| row.l_tax.into_inner())?;
        column::<ByteArrayType, W>(writer, rows, |row| text(row.l_returnflag))?;
        column::<ByteArrayType, W>(writer, rows, |row| text(row.l_linestatus))?;
        column::<Int32Type, W>(writer, rows, |row| row.l_shipdate.to_unix_epoch())?;
        column::<Int32Type, W>(writer, rows, |row| row.l_commitdate.to_unix_epoch())?;
        column::<Int32Type, W>(writer, rows, |row| row.l_receiptdate.to_unix_epoch())?;
        column::<ByteArrayType, W>(writer, rows, |row| text(row.l_shipinstruct))?;
        column::<ByteArrayType, W>(writer, rows, |row| text(row.l_shipmode))?;
        column::<ByteArrayType, W>(writer, rows, |row| text(row.l_comment))?;
        Ok(())
    }

    fn column<T: DataType, W: Write + Send>(
        group: &mut SerializedRowGroupWriter<'_, W>,
        rows: &[LineItem<'_>],
        value: impl Fn(&LineItem<'_>) -> T::T,
    ) -> Result<(), Box<dyn Error>> {
        let values: Vec<T::T> = rows.iter().map(value).collect();
        let mut column = group.next_column()?.ok_or("the schema has a column for every field")?;
        column.typed::<T>().write_batch(&values, None, None)?;
        column.close()?;
        Ok(())
    }
}
