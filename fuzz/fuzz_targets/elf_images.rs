//! Arbitrary bytes as the image of an Elf in either layout: an error, or an image that every search can read.
//!
//! The input says whether the bytes are all its own or an image of a small table with some bytes exchanged. The checksum
//! is made to agree, as a broken program would write it, unless the input says otherwise.

#![no_main]

use std::sync::Arc;

use libfuzzer_sys::arbitrary::{self, Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate, Width};

/// Bytes of the header, at whose end the checksum is.
const HEADER: usize = 64;
const CHECKSUM: usize = 56;

#[derive(Arbitrary, Debug)]
enum Source {
    Bytes(Vec<u8>),
    Image { table: Table, is_linear: bool, is_wide: bool, bucket_rows: u8, changes: Vec<(u16, u8)> },
}

/// Rows of one to four columns.
#[derive(Debug)]
struct Table(CodeTable);

impl<'a> Arbitrary<'a> for Table {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        let (width, rows) = (input.int_in_range(1..=4)?, input.int_in_range(0..=60)?);
        let column = |input: &mut Unstructured<'a>| {
            // The published layout has a pointer for each possible value of the first column.
            let maximum = [1, 7, 300, 70_000][input.int_in_range(0..=3)?];
            (0..rows).map(|_| input.int_in_range(0..=maximum)).collect::<Result<Vec<u32>>>()
        };
        let columns = (0..width).map(|_| column(input)).collect::<Result<Vec<_>>>()?;
        Ok(Self(CodeTable::new(columns).expect("columns of one length")))
    }
}

#[derive(Arbitrary, Debug)]
struct Input {
    source: Source,
    keeps_checksum: bool,
    conditions: Vec<(u8, u32, u32)>,
    threads: u8,
}

/// The bytes, and the table beside them if they were not changed.
fn bytes_of(source: Source) -> (Vec<u8>, Option<CodeTable>) {
    match source {
        Source::Bytes(bytes) => (bytes, None),
        Source::Image { table, is_linear, is_wide, bucket_rows, changes } => {
            let order: Vec<usize> = (0..table.0.width()).collect();
            let width = if is_wide { Width::Wide } else { Width::Auto };
            let options = BuildOptions { bucket_rows: u32::from(bucket_rows).max(1), width, threads: 1 };
            let layout = if is_linear { LayoutKind::Linear } else { LayoutKind::Columnar };
            let elf = Elf::build(&table.0, &order, layout, &options).expect("a small table");
            let mut bytes = elf.bytes().to_vec();
            for (at, byte) in &changes {
                let at = usize::from(*at) % bytes.len();
                bytes[at] ^= byte;
            }
            (bytes, changes.is_empty().then_some(table.0))
        }
    }
}

fn seal(bytes: &mut [u8]) {
    if let Some((head, body)) = bytes.split_at_mut_checked(HEADER) {
        let sum = xxhash_rust::xxh3::xxh3_64(&[&head[..CHECKSUM], body].concat());
        head[CHECKSUM..].copy_from_slice(&sum.to_le_bytes());
    }
}

fuzz_target!(|input: Input| {
    let (mut bytes, table) = bytes_of(input.source);
    if !input.keeps_checksum {
        seal(&mut bytes);
    }
    let Ok(elf) = Elf::open(bytes) else {
        assert!(table.is_none(), "an image that was not changed opens");
        return;
    };
    let width = elf.order().len();
    let all = Predicate::all();
    let predicate = input.conditions.iter().fold(all, |all, &(column, low, high)| {
        all.and(usize::from(column) % width, [Interval::new(low, high)])
    });
    let codes: Vec<u32> = (0..width as u32).collect();
    elf.exact_into(&codes, &mut Vec::<u64>::new()).expect("one code per column");
    let elf = elf.with_threads(usize::from(input.threads % 4));
    let elf = match &table {
        Some(table) => elf.with_table(Arc::new(table.clone())).expect("the table it was built from"),
        None => elf,
    };
    let selection = elf.select(&predicate).expect("known columns");
    let ids: Vec<u64> = selection.sorted_ids().expect("64 bits");
    assert_eq!(selection.count(), ids.len() as u64);
    assert_eq!(selection.tree_ids::<u64>().expect("64 bits").len(), ids.len());
    if let Some(table) = table {
        let row = |row: &usize| predicate.matches(|column| table.code(column, *row));
        assert!((0..table.rows()).filter(row).map(|row| row as u64).eq(ids));
    }
});
