//! Arbitrary bytes as a run of an external build: rows, or an error.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u16, u8, u8, &[u8])| {
    let (rows, levels, block_rows, bytes) = input;
    let (levels, block_rows) = (usize::from(levels % 20) + 1, usize::from(block_rows) + 1);
    if let Ok(found) = pando_elf::read_run(bytes, rows.into(), levels, block_rows) {
        assert_eq!(found, u64::from(rows));
    }
});
