//! Builds outside of memory: the bytes of one in memory, the bound on memory, and what remains of failures.

use std::io::{Cursor, Error as IoError, ErrorKind, Read, Result as IoResult, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use pando_elf::{
    BuildOptions, CodeTable, Elf, ElfLayout, Error, ExternalBuild, ExternalOptions, LayoutKind, LiveElf,
    LiveOptions, Result, Width, build_columnar, build_linear,
};
use peak_alloc::PeakAlloc;
use proptest::prelude::*;

use crate::model::{order, table};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

pub const KINDS: [LayoutKind; 2] = [LayoutKind::Linear, LayoutKind::Columnar];
const KIB: usize = 1 << 10;

pub fn options(memory_bytes: usize, build: BuildOptions, directory: &Path) -> ExternalOptions {
    ExternalOptions { build, memory_bytes, directory: directory.to_owned() }
}

/// Rows `from..to` of a table.
fn part(table: &CodeTable, from: usize, to: usize) -> CodeTable {
    let column = |column| table.column(column).slice(from..to).iter().collect();
    CodeTable::new((0..table.width()).map(column).collect()).expect("columns of equal length")
}

/// The image of `table`, given in batches of `batch` rows.
pub fn build(
    table: &CodeTable,
    order: &[usize],
    kind: LayoutKind,
    options: ExternalOptions,
    batch: usize,
) -> Result<Vec<u8>> {
    let mut build = ExternalBuild::new(order, kind, options)?;
    for from in (0..table.rows()).step_by(batch) {
        build.push(&part(table, from, table.rows().min(from + batch)))?;
    }
    let mut image = Cursor::new(Vec::new());
    let header = build.finish(&mut image)?;
    assert_eq!(header.rows, table.rows() as u64);
    Ok(image.into_inner())
}

pub fn in_memory(table: &CodeTable, order: &[usize], kind: LayoutKind, options: &BuildOptions) -> Vec<u8> {
    match kind {
        LayoutKind::Linear => build_linear(table, order, options).expect("a small table").bytes().to_vec(),
        LayoutKind::Columnar => {
            build_columnar(table, order, options).expect("a small table").bytes().to_vec()
        }
    }
}

/// The images of a forest of `table`, given in batches of 700 rows.
fn build_forest(
    table: &CodeTable,
    order: &[usize],
    kind: LayoutKind,
    options: ExternalOptions,
    trees: usize,
) -> Result<Vec<Vec<u8>>> {
    let mut build = ExternalBuild::new(order, kind, options)?;
    for from in (0..table.rows()).step_by(700) {
        build.push(&part(table, from, table.rows().min(from + 700)))?;
    }
    let mut images = vec![Cursor::new(Vec::new()); trees];
    build.finish_forest(images.iter_mut().collect())?;
    Ok(images.into_iter().map(Cursor::into_inner).collect())
}

/// Checks that a forest has the bytes of one that is built in memory.
fn check_forest(
    table: &CodeTable,
    order: &[usize],
    kind: LayoutKind,
    options: ExternalOptions,
    trees: usize,
) {
    let build = options.build;
    let images = build_forest(table, order, kind, options, trees).expect("a small table");
    let expected = Elf::build_forest(table, order, kind, &build, trees).expect("a small table");
    assert!(
        expected.iter().map(Elf::bytes).eq(images[..expected.len()].iter().map(Vec::as_slice)),
        "{kind:?}"
    );
    for image in &images[expected.len()..] {
        assert_eq!(Elf::open(image.as_slice()).expect("an image").header().rows, 0);
    }
}

/// Least memory that a build takes.
pub fn least_memory(columns: usize, threads: usize) -> usize {
    let order: Vec<usize> = (0..columns).collect();
    let build = BuildOptions { threads, ..BuildOptions::default() };
    match ExternalBuild::new(&order, LayoutKind::Linear, options(0, build, &std::env::temp_dir())) {
        Err(Error::MemoryTooSmall { needed, .. }) => needed,
        _ => panic!("no memory is too little"),
    }
}

/// A table from a seed: `rows` rows whose codes are below `limits`, by column.
fn drawn(rows: usize, limits: &[u32], mut state: u64) -> CodeTable {
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let mut column = |limit: u32| (0..rows).map(|_| (next() % limit).min(next() % limit)).collect();
    CodeTable::new(limits.iter().map(|&limit| column(limit)).collect()).expect("columns of equal length")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn small_tables_have_the_bytes_of_a_build_in_memory(
        table in table(),
        keys in prop::collection::vec(any::<u32>(), 16),
        wide: bool,
        bucket_rows in 1..40_u32,
        batch in 1..500_usize,
        memory in prop_oneof![Just(0), Just(100 * KIB), Just(100 << 20)],
        trees in 2..6_usize,
    ) {
        let order = order(&table, &keys);
        let width = if wide { Width::Wide } else { Width::Auto };
        let build_options = BuildOptions { bucket_rows, width, threads: 1 };
        let memory = least_memory(table.width(), 1) + memory;
        for kind in KINDS {
            if kind == LayoutKind::Linear && table.maximum(order[0]) >= 100_000 {
                continue;
            }
            let options = options(memory, build_options, &std::env::temp_dir());
            let image = build(&table, &order, kind, options.clone(), batch).expect("a small table");
            check_forest(&table, &order, kind, options, trees);
            prop_assert!(image == in_memory(&table, &order, kind, &build_options), "{kind:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Several runs, and with one or two columns several passes of merging.
    #[test]
    fn many_runs_have_the_bytes_of_a_build_in_memory(
        limits in prop::collection::vec(prop::sample::select(vec![1, 2, 9, 300, 70_000]), 1..=16),
        rows in 0..40_000_usize,
        seed: u64,
        wide: bool,
        bucket_rows in prop::sample::select(vec![1, 2, 17, 60]),
        threads in 1..4_usize,
        trees in 2..6_usize,
    ) {
        let table = drawn(rows, &limits, seed);
        let order: Vec<usize> = (0..limits.len()).rev().collect();
        let width = if wide { Width::Wide } else { Width::Auto };
        let build_options = BuildOptions { bucket_rows, width, threads };
        let memory = least_memory(limits.len(), threads);
        for kind in KINDS {
            let options = options(memory, build_options, &std::env::temp_dir());
            let image = build(&table, &order, kind, options.clone(), 1_000).expect("a small table");
            check_forest(&table, &order, kind, options, trees);
            prop_assert!(image == in_memory(&table, &order, kind, &build_options), "{kind:?}");
        }
    }
}

/// Set in the process whose memory is counted.
const INSIDE: &str = "PANDO_ELF_COUNTED";

/// Other tests would count in the same process.
#[test]
fn the_bound_on_memory_is_kept() {
    if std::env::var_os(INSIDE).is_none() {
        let name = "external::the_bound_on_memory_is_kept";
        let mut command = Command::new(std::env::current_exe().expect("own path"));
        let output =
            command.args(["--exact", name, "--nocapture"]).env(INSIDE, "").output().expect("it runs");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{}{}", text[0], text[1]);
        return;
    }
    let wide: Vec<u32> = (0..200).map(|column| [2, 9, 300][column % 3]).collect();
    let shapes: [(usize, &[u32]); 4] = [
        (40_000, &[70_000, 300, 70_000, 5, 70_000]),
        (100_000, &[1_000_000]),
        (20_000, &[2, 3, 4, 5, 6, 7, 80, 900, 9, 8, 7, 6, 5, 4_000, 3]),
        (1_500, &wide),
    ];
    for (rows, limits) in shapes {
        let table = drawn(rows, limits, 5);
        let order: Vec<usize> = (0..limits.len()).collect();
        let cases =
            [(1, 0, 1), (1, 0, 3), (3, 300 * KIB, 1), (3, 300 * KIB, 2), (2, 8 << 20, 4), (1, 100 << 20, 1)];
        for (threads, more, trees) in cases {
            let memory = least_memory(limits.len(), threads) + more;
            for kind in KINDS {
                let bucket_rows = if more >= 8 << 20 { 256 } else { 8 };
                let build_options = BuildOptions { bucket_rows, threads, ..BuildOptions::default() };
                let batches: Vec<CodeTable> =
                    (0..rows).step_by(500).map(|from| part(&table, from, rows.min(from + 500))).collect();
                let files = (0..trees).map(|_| tempfile::tempfile().expect("a temporary file")).collect();
                let base = MEMORY.current_usage();
                MEMORY.reset_peak_usage();
                let options = options(memory, build_options, &std::env::temp_dir());
                let mut build = ExternalBuild::new(&order, kind, options).expect("enough memory");
                batches.iter().try_for_each(|batch| build.push(batch)).expect("batches of the table");
                build.finish_forest(files).expect("images");
                let used = MEMORY.peak_usage() - base;
                println!("{rows} rows of {} columns, {kind:?}: {used} of {memory} bytes", limits.len());
                assert!(used <= memory, "{kind:?}, {rows} rows, {threads} threads: {used} of {memory} bytes");
            }
        }
    }
}

/// An output that fails after some bytes.
struct Full {
    file: Cursor<Vec<u8>>,
    room: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> IoResult<usize> {
        match self.room.checked_sub(bytes.len()) {
            Some(room) => self.room = room,
            None => return Err(IoError::from(ErrorKind::StorageFull)),
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> IoResult<()> {
        Ok(())
    }
}

impl Read for Full {
    fn read(&mut self, bytes: &mut [u8]) -> IoResult<usize> {
        self.file.read(bytes)
    }
}

impl Seek for Full {
    fn seek(&mut self, to: SeekFrom) -> IoResult<u64> {
        self.file.seek(to)
    }
}

/// Beside its table, an image that was built outside of memory is the base of a table that changes.
#[test]
fn an_image_is_the_base_of_a_table_that_changes() {
    let all = drawn(5_200, &[300, 7, 40], 11);
    let base = Arc::new(part(&all, 0, 5_000));
    let order = [1, 0, 2];
    let deleted = [0, 17, 4_999, 5_100];
    let kept: Vec<u64> = (0..5_200).filter(|id| !deleted.contains(id)).collect();
    let column = |column| kept.iter().map(|&row| all.code(column, row as usize)).collect();
    let rest = CodeTable::new((0..3).map(column).collect()).and_then(|rest| rest.with_ids(&kept));
    let rest = rest.expect("ids that ascend");
    for kind in KINDS {
        let memory = options(least_memory(3, 1), BuildOptions::default(), &std::env::temp_dir());
        let image = build(&base, &order, kind, memory, 700).expect("a small table");
        let elf = Elf::open(image).and_then(|elf| elf.with_table(base.clone())).expect("its table");
        let live = LiveElf::new(elf, LiveOptions::default()).expect("an Elf with its table");
        assert_eq!(live.insert(part(&all, 5_000, 5_200)), Ok(5_000..5_200));
        assert_eq!(live.delete(&deleted), Ok(4));
        assert_eq!(live.merge_all(), Ok(true));
        let snapshot = live.snapshot();
        let merged: Vec<&[u8]> = snapshot.runs().map(Elf::bytes).collect();
        assert!(merged == [in_memory(&rest, &order, kind, &BuildOptions::default())], "{kind:?}");
    }
}

#[test]
fn nothing_remains_of_a_build() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = || std::fs::read_dir(directory.path()).expect("the directory").count();
    let table = drawn(5_000, &[7, 900, 60], 3);
    for kind in KINDS {
        let start = || {
            let options = options(least_memory(3, 1), BuildOptions::default(), directory.path());
            let bucket_rows = 10;
            let options = ExternalOptions { build: BuildOptions { bucket_rows, ..options.build }, ..options };
            let mut build = ExternalBuild::new(&[0, 1, 2], kind, options).expect("enough memory");
            build.push(&table).expect("three columns");
            assert_eq!(files(), 0);
            build
        };
        start().finish(Cursor::new(Vec::new())).expect("an image");
        drop(start());
        for room in [0, 30_000] {
            let full = Full { file: Cursor::new(Vec::new()), room };
            let message = start().finish(full).map(|_| ()).map_err(|error| error.to_string());
            assert_eq!(message, Err("cannot write the image: no storage space".into()));
        }
        assert_eq!(files(), 0);
    }
}

#[test]
fn builds_that_cannot_be_are_refused_with_a_reason() {
    let with = |memory: usize| options(memory, BuildOptions::default(), &std::env::temp_dir());
    let new = |order: &[usize], kind, options| {
        ExternalBuild::new(order, kind, options).map(|_| ()).map_err(|error| error.to_string())
    };
    let needed = least_memory(2, 1);
    assert_eq!(
        new(&[0, 1], LayoutKind::Linear, with(needed - 1)),
        Err(format!("a build with {} bytes of memory is not possible: it needs {needed}", needed - 1))
    );
    let message = new(&[0, 2], LayoutKind::Linear, with(1 << 20));
    assert_eq!(message, Err("the column order [0, 2] does not name each of the 2 columns once".into()));
    assert_eq!(new(&[], LayoutKind::Linear, with(1 << 20)), Err("a table needs at least one column".into()));
    let nowhere = ExternalOptions { directory: "/nowhere".into(), ..with(1 << 20) };
    let reason = "cannot create a temporary file in /nowhere: No such file or directory (os error 2)";
    assert_eq!(new(&[0], LayoutKind::Columnar, nowhere), Err(reason.into()));

    let mut build = ExternalBuild::new(&[0], LayoutKind::Linear, with(1 << 20)).expect("enough memory");
    let wide = CodeTable::new(vec![vec![1], vec![2]]).expect("two columns");
    assert_eq!(build.push(&wide), Err(Error::WrongArity { values: 2, columns: 1 }));
    let large = CodeTable::new(vec![vec![1 << 31]]).expect("one column");
    assert!(matches!(build.push(&large), Err(Error::CodeTooLarge { column: 0, .. })));
    assert_eq!(build.finish(Cursor::new(vec![0; 9])).err(), Some(Error::OutputNotEmpty { bytes: 9 }));

    // Buckets of any number of rows are possible, as long as the rows in view fit.
    let table = drawn(20_000, &[30, 400], 8);
    let huge = BuildOptions { bucket_rows: u32::MAX, ..BuildOptions::default() };
    let run = |memory| build_with(&table, memory, huge);
    assert!(
        run(8 << 20).expect("an eighth holds the rows")
            == in_memory(&table, &[0, 1], LayoutKind::Columnar, &huge)
    );
    assert!(matches!(run(1 << 20), Err(Error::MemoryTooSmall { needed, .. }) if needed > 1 << 20));
}

fn build_with(table: &CodeTable, memory: usize, build_options: BuildOptions) -> Result<Vec<u8>> {
    let options = options(memory, build_options, &std::env::temp_dir());
    build(table, &[0, 1], LayoutKind::Columnar, options, 3_000)
}
