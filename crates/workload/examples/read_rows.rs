//! Reads a data set and prints its number of rows, the speed of reading, and the rejected rows:
//!
//! `cargo run --release -p pando-workload --example read_rows -- FILE [KEY_COLUMN,...]`

use pando_workload::dataset::{DatasetError, Format, ReadOptions, open};
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("usage: read_rows FILE [KEY_COLUMN,...]")?);
    let format = Format::of_path(&path).ok_or("the extension of the file names no format")?;
    let key = arguments.next().unwrap_or_default();
    let key = key.split_terminator(',').map(str::parse).collect::<Result<_, DatasetError>>()?;
    let start = Instant::now();
    let (mut rows, mut bytes, mut rejected) = (0u64, 0, 0);
    for row in open(&path, format, &ReadOptions { key, ..ReadOptions::default() })? {
        match row {
            Ok(record) => {
                rows += 1;
                bytes += record.key.len() + record.value.len();
            }
            Err(reason) => {
                rejected += 1;
                if rejected <= 10 {
                    eprintln!("{reason}");
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let rate = rows as f64 / seconds / 1e6;
    println!("{rows} rows, {bytes} bytes of keys and values, {rejected} rejected, {rate:.2} million rows/s");
    Ok(())
}
