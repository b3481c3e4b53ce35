//! Images: the same bytes with any number of threads, and errors instead of panics for damaged ones.

use pando_elf::{
    BuildOptions, CodeTable, Columnar, ElfLayout, Error, Linear, Result, Width, build_columnar, build_linear,
};
use proptest::prelude::*;

use crate::model::{conditions, order, predicate, search, search_exact, table};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn threads_do_not_change_a_byte(table in table(), keys in prop::collection::vec(any::<u32>(), 16), wide: bool) {
        let order = order(&table, &keys);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = |threads| BuildOptions { bucket_rows: 5, width, threads };
        let columnar = |threads| build_columnar(&table, &order, &options(threads)).expect("a small table");
        prop_assert!(columnar(1).bytes() == columnar(3).bytes());
        if table.maximum(order[0]) < 100_000 {
            let linear = |threads| build_linear(&table, &order, &options(threads)).expect("a small table");
            prop_assert!(linear(1).bytes() == linear(3).bytes());
        }
    }

    #[test]
    fn what_was_built_can_be_opened(table in table(), keys in prop::collection::vec(any::<u32>(), 16), wide: bool) {
        let order = order(&table, &keys);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = BuildOptions { bucket_rows: 3, width, threads: 1 };
        let built = build_columnar(&table, &order, &options).expect("a small table");
        let opened = Columnar::open(built.bytes()).expect("a whole image");
        prop_assert_eq!((opened.order(), opened.header()), (built.order(), built.header()));
        if table.maximum(order[0]) < 100_000 {
            let built = build_linear(&table, &order, &options).expect("a small table");
            let opened = Linear::open(built.bytes()).expect("a whole image");
            prop_assert_eq!((opened.order(), opened.header()), (built.order(), built.header()));
        }
    }

    /// Bytes that a broken program wrote, with a checksum that agrees.
    #[test]
    fn damage_behind_a_valid_checksum_never_panics(
        table in table(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        conditions in conditions(),
        wide: bool,
    ) {
        let order = order(&table, &[1]);
        let width = if wide { Width::Wide } else { Width::Auto };
        let options = BuildOptions { bucket_rows: 4, width, threads: 1 };
        let predicate = predicate(&table, &conditions);
        let codes: Vec<u32> = (0..table.width()).map(|column| table.maximum(column)).collect();
        let damage = |bytes: &[u8]| {
            let mut bytes = bytes.to_vec();
            for (at, byte) in &changes {
                *at.get_mut(&mut bytes[8..]) = *byte;
            }
            seal(&mut bytes);
            bytes
        };
        let built = build_columnar(&table, &order, &options).expect("a small table");
        if let Ok(opened) = Columnar::open(damage(built.bytes())) {
            search(&opened, &predicate);
            search_exact(&opened, &codes);
        }
        if table.maximum(order[0]) < 100_000 {
            let built = build_linear(&table, &order, &options).expect("a small table");
            if let Ok(opened) = Linear::open(damage(built.bytes())) {
                search(&opened, &predicate);
                search_exact(&opened, &codes);
            }
        }
    }
}

/// Writes the checksum that the bytes have.
fn seal(bytes: &mut [u8]) {
    let (head, body) = bytes.split_at_mut(64);
    let sum = xxhash_rust::xxh3::xxh3_64(&[&head[..56], body].concat());
    head[56..].copy_from_slice(&sum.to_le_bytes());
}

fn small() -> CodeTable {
    let column = |factor: usize, values: usize| (0..40).map(|row| (row * factor % values) as u32).collect();
    CodeTable::new(vec![column(7, 3), column(5, 4), column(11, 300), column(3, 7)]).expect("four columns")
}

fn demand_errors(bytes: &[u8], open: impl Fn(Vec<u8>) -> Result<()>) {
    assert_eq!(open(bytes.to_vec()), Ok(()));
    for at in 0..bytes.len() {
        for flip in [1, 0x80, 0xff] {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= flip;
            assert!(open(damaged).is_err(), "byte {at} was flipped by {flip:#x}");
        }
        assert!(open(bytes[..at].to_vec()).is_err(), "cut to {at} bytes");
    }
    assert!(open([bytes, &[0; 8]].concat()).is_err(), "longer than the header says");
}

#[test]
fn every_flipped_or_missing_byte_is_an_error() {
    for width in [Width::Auto, Width::Wide] {
        let options = BuildOptions { bucket_rows: 3, width, threads: 1 };
        let linear = build_linear(&small(), &[0, 1, 2, 3], &options).expect("a small table");
        demand_errors(linear.bytes(), |bytes| Linear::open(bytes).map(|_| ()));
        let columnar = build_columnar(&small(), &[0, 1, 2, 3], &options).expect("a small table");
        demand_errors(columnar.bytes(), |bytes| Columnar::open(bytes).map(|_| ()));
    }
}

#[test]
fn requests_that_do_not_fit_are_refused_with_a_reason() {
    let options = BuildOptions::default();
    let message = |error: Option<Error>| error.map(|error| error.to_string()).unwrap_or_default();
    let order = message(build_columnar(&small(), &[0, 1, 1, 3], &options).err());
    assert_eq!(order, "the column order [0, 1, 1, 3] does not name each of the 4 columns once");
    let bucket = BuildOptions { bucket_rows: 0, ..options };
    assert_eq!(build_columnar(&small(), &[0, 1, 2, 3], &bucket).err(), Some(Error::EmptyBucket));
    let large = CodeTable::new(vec![vec![1 << 31]]).expect("one column");
    let code = message(build_linear(&large, &[0], &options).err());
    assert_eq!(code, "column 0 has the code 2147483648; the linear layout holds codes up to 2147483647");
    let columnar = build_columnar(&small(), &[0, 1, 2, 3], &options).expect("a small table");
    let layout = message(Linear::open(columnar.bytes()).err());
    assert_eq!(layout, "the image has the layout 2, where linear was expected");
    assert_eq!(Linear::open(b"PANDO".as_slice()).err(), Some(Error::ShortHeader { bytes: 5 }));
}
