//! Searches by a memory server: of images whose bytes were changed behind checksums that agree, and calls and answers
//! of arbitrary bytes. Nothing panics, and an image that was not changed is answered rightly.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
use pando_elf_remote::exercise::{call, search};

#[derive(Arbitrary, Debug)]
enum Input {
    Bytes(Vec<u8>),
    Image {
        rows: Vec<(u8, u8, u16)>,
        is_linear: bool,
        bucket_rows: u8,
        changes: Vec<(u16, u8)>,
        conditions: Vec<(u8, u16, u16)>,
        want: u8,
    },
}

fuzz_target!(|input: Input| {
    let (rows, is_linear, bucket_rows, changes, conditions, want) = match input {
        Input::Bytes(bytes) => return call(&bytes),
        Input::Image { rows, is_linear, bucket_rows, changes, conditions, want } => {
            (rows, is_linear, bucket_rows, changes, conditions, want)
        }
    };
    let columns = vec![
        rows.iter().map(|row| row.0.into()).collect(),
        rows.iter().map(|row| (row.1 % 4).into()).collect(),
        rows.iter().map(|row| row.2.into()).collect(),
    ];
    let table = CodeTable::new(columns).expect("columns of one length");
    let layout = if is_linear { LayoutKind::Linear } else { LayoutKind::Columnar };
    let options = BuildOptions { bucket_rows: u32::from(bucket_rows).max(1), ..BuildOptions::default() };
    let elf = Elf::build(&table, &[0, 1, 2], layout, &options).expect("a small table");
    let mut image = elf.bytes().to_vec();
    for (at, byte) in &changes {
        let at = usize::from(*at) % image.len();
        image[at] ^= byte;
    }
    let conditions: Vec<(usize, u32, u32)> = conditions
        .into_iter()
        .map(|(level, low, high)| (usize::from(level % 3), low.into(), high.into()))
        .collect();
    let found = search(&image, elf.id_bound(), &conditions, want);
    if changes.is_empty() && want % 3 != 0 {
        let all = Predicate::all();
        let predicate = conditions
            .iter()
            .fold(all, |all, &(column, low, high)| all.and(column, [Interval::new(low, high)]));
        let expected = elf.select(&predicate).expect("known columns").sorted_ids::<u64>().expect("64 bits");
        let mut found = found.expect("a sound image is searched");
        found.sort_unstable();
        assert_eq!(found, expected);
    }
});
