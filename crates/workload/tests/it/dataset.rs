//! Data set readers: records, rejected rows with reasons, and files that are refused as a whole.

use pando_workload::dataset::{
    Column, DatasetError, Format, Progress, ReadOptions, Reason, Record, Rejected, WordValue, open,
};
use pando_workload::{KeyLayout, escape};
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;
use tempfile::NamedTempFile;

fn file(content: &[u8]) -> NamedTempFile {
    let mut file = NamedTempFile::new().expect("a temporary file");
    file.write_all(content).expect("space");
    file
}

fn columns(text: &str) -> Vec<Column> {
    text.split_terminator(',').map(|column| column.parse().expect("a column")).collect()
}

/// Options with key and value columns; `*` for all remaining ones.
fn options(key: &str, value: &str, header: bool) -> ReadOptions {
    let value = (value != "*").then(|| columns(value));
    ReadOptions { key: columns(key), value, header, ..ReadOptions::default() }
}

fn rows(content: &[u8], format: Format, options: &ReadOptions) -> Vec<Result<Record, Rejected>> {
    let file = file(content);
    let mut records = open(file.path(), format, options).expect("a readable file");
    let rows: Vec<_> = records.by_ref().collect();
    assert!(records.next().is_none(), "the end stays the end");
    let total = content.len() as u64;
    assert_eq!(records.progress(), Progress { done: total, total });
    rows
}

/// Rows as text: `key=value`, or the message of a rejected row.
fn shown(content: &str, format: Format, options: &ReadOptions) -> Vec<String> {
    let show = |row: Result<Record, Rejected>| match row {
        Ok(record) => format!("{}={}", escape(&record.key), escape(&record.value)),
        Err(rejected) => rejected.to_string(),
    };
    rows(content.as_bytes(), format, options).into_iter().map(show).collect()
}

fn refused(content: &str, format: Format, options: &ReadOptions) -> String {
    let file = file(content.as_bytes());
    open(file.path(), format, options).expect_err("must be refused").to_string()
}

#[test]
fn csv_with_a_header_row() {
    let content = "id,name,city\n1,Ann,Oslo\n2,\"Bob, Jr.\",\"New\nYork\"\r\n\n3,\"C\"\"D\",";
    assert_eq!(
        shown(content, Format::Csv, &options("id", "*", true)),
        ["1=Ann\\x09Oslo", "2=Bob, Jr.\\x09New\\x0AYork", "3=C\"D\\x09"]
    );
    assert_eq!(shown(content, Format::Csv, &options("name", "id", true)), ["Ann=1", "Bob, Jr.=2", "C\"D=3"]);
    assert_eq!(shown(content, Format::Csv, &options("2", "", true)), ["Ann=", "Bob, Jr.=", "C\"D="]);
}

#[test]
fn joined_values_escape_what_would_break_them() {
    let records = rows(b"k,\"a\tb\",\"c\nd\"\n", Format::Csv, &options("1", "*", false));
    assert_eq!(records[0].as_ref().expect("a record").value, b"a\\x09b\tc\\x0Ad");
    let records = rows(b"k,\"a\tb\"\n", Format::Csv, &options("1", "*", false));
    assert_eq!(records[0].as_ref().expect("a record").value, b"a\tb", "a single column stays as it is");
}

#[test]
fn broken_rows_are_rejected_one_by_one() {
    let content = "a,b\n1,x\n2\n3,\"x\"y\n4,\"open\n5,ok\n6,x,y\n,z\n7,\"fine\"\n8,\"never closed\n9,last\n";
    let found = shown(content, Format::Csv, &options("a", "b", true));
    let expected = [
        "1=x",
        "line 3: 1 fields instead of 2",
        "line 4: text follows a closing quote",
        "line 5: text follows a closing quote",
        "5=ok",
        "line 7: 3 fields instead of 2",
        "line 8: the key is empty",
        "7=fine",
        "line 10: a quote is not closed",
        "9=last",
    ];
    assert_eq!(found, expected);
}

#[test]
fn line_numbers_count_lines_inside_of_quotes() {
    let content = "\"1\n2\n3\",a\nbad\n4,b\n";
    let found = shown(content, Format::Csv, &options("1", "2", false));
    assert_eq!(found, ["1\\x0A2\\x0A3=a", "line 4: 1 fields instead of 2", "4=b"]);
}

#[test]
fn without_a_header_row_the_first_valid_row_sets_the_width() {
    let found = shown("\"x\"y,1\n1,2\n3\n4,5\n", Format::Csv, &options("1:int", "2", false));
    assert_eq!(found[0], "line 1: text follows a closing quote");
    assert_eq!(found[2], "line 3: 1 fields instead of 2");
    assert_eq!(found.len(), 4);
}

#[test]
fn integer_keys_that_are_none_are_rejected() {
    let content = "k,v\n5,a\n,b\nx,c\n-3,d\n9223372036854775808,e\n 7 ,f\n";
    let file = file(content.as_bytes());
    let records = open(file.path(), Format::Csv, &options("k:int", "v", true)).expect("a readable file");
    let layout: KeyLayout = records.key_layout().clone();
    let (good, bad): (Vec<_>, Vec<_>) = records.partition(Result::is_ok);
    let mut keys: Vec<Vec<u8>> = good.into_iter().flatten().map(|record| record.key).collect();
    keys.sort();
    let shown: Vec<_> = keys.iter().map(|key| layout.display(key, ',').expect("a key")).collect();
    assert_eq!(shown, ["-3", "5", "7"]);
    let lines: Vec<u64> = bad.into_iter().filter_map(Result::err).map(|rejected| rejected.line).collect();
    assert_eq!(lines, [3, 4, 6]);
}

#[test]
fn tsv_knows_no_quotes() {
    let found = shown("a\tb\n\"1\tx\"\n2\t\n", Format::Tsv, &options("a", "b", true));
    assert_eq!(found, ["\"1=x\"", "2="]);
    let bars = ReadOptions { delimiter: Some(b'|'), ..options("1", "2", false) };
    assert_eq!(shown("k|v|\n", Format::Tsv, &bars), ["k=v"]);
}

#[test]
fn word_lists_keep_their_lines() {
    let numbered = ReadOptions::default();
    assert_eq!(
        shown("\u{feff}apple\r\nÅngström\n\nzoo", Format::Words, &numbered),
        ["apple=1", "Ångström=2", "line 3: the key is empty", "zoo=4"]
    );
    let empty = ReadOptions { word_value: WordValue::Empty, ..ReadOptions::default() };
    assert_eq!(shown("a,b\n", Format::Words, &empty), ["a,b="]);
    assert!(refused("a\n", Format::Words, &options("1", "*", true)).contains("word list"));
}

#[test]
fn empty_files_have_no_records() {
    for format in [Format::Csv, Format::Tsv, Format::Words] {
        for content in ["", "\u{feff}"] {
            assert!(rows(content.as_bytes(), format, &ReadOptions::default()).is_empty());
        }
    }
    assert!(rows(b"\n\n", Format::Csv, &options("x", "y", true)).is_empty());
    assert!(rows(b"a,b\n", Format::Csv, &options("a", "b", true)).is_empty());
}

#[test]
fn whole_files_are_refused_with_a_sentence() {
    let unknown = refused("a,b\n", Format::Csv, &options("c", "*", true));
    assert_eq!(unknown, "there is no column `c`; the columns are a, b");
    assert!(refused("a,b\n", Format::Csv, &options("3", "*", true)).contains("2 columns"));
    assert!(refused("a,a\n", Format::Csv, &options("a", "*", true)).contains("several columns"));
    assert!(refused("1,2\n", Format::Csv, &options("a", "*", false)).contains("header"));
    assert!(refused("\"a\"b,c\n", Format::Csv, &options("1", "*", true)).contains("header row is not valid"));
    let missing =
        open(Path::new("/no/such/file"), Format::Csv, &ReadOptions::default()).expect_err("missing");
    assert!(matches!(missing, DatasetError::Open { .. }), "{missing}");
    assert!(open(Path::new("/"), Format::Csv, &ReadOptions::default()).is_err());
    for bad in ["", ":int", "0", "99999999999999999999999"] {
        assert!(bad.parse::<Column>().is_err(), "{bad}");
    }
}

#[test]
fn rows_without_end_are_rejected_and_bounded_in_memory() {
    let mut content = b"a,1\n\"".to_vec();
    content.extend(std::iter::repeat_n(b'x', 900_000));
    content.extend_from_slice(b"\nb,2\n");
    content.extend(std::iter::repeat_n(b'y', 2_000_000));
    content.extend_from_slice(b"\nc,3\n");
    let limited = ReadOptions { row_bytes_max: 100_000, ..options("1", "2", false) };
    let rows = rows(&content, Format::Csv, &limited);
    let lines: Vec<_> =
        rows.iter().filter_map(|row| row.as_ref().err()).map(|rejected| rejected.line).collect();
    assert_eq!(lines, [2, 4]);
    assert!(
        rows.iter()
            .filter_map(|row| row.as_ref().err())
            .all(|row| matches!(row.reason, Reason::TooLong { .. }))
    );
    let keys: Vec<_> = rows.iter().flatten().map(|record| record.key.clone()).collect();
    assert_eq!(keys, [b"a", b"b", b"c"]);
}

fn fields() -> impl Strategy<Value = Vec<Vec<Vec<u8>>>> {
    let byte = prop_oneof![
        4 => prop::sample::select(b"ab,\"\r\n\t".to_vec()),
        1 => any::<u8>(),
    ];
    (1usize..5).prop_flat_map(move |width| {
        let field = prop::collection::vec(byte.clone(), 0..8);
        prop::collection::vec(prop::collection::vec(field, width), 1..20)
    })
}

proptest! {
    /// Output of an independent writer is read back unchanged.
    #[test]
    fn csv_of_another_writer_comes_back(rows_in in fields(), column: prop::sample::Index) {
        let mut writer = csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
        rows_in.iter().for_each(|row| writer.write_record(row).expect("in memory"));
        let content = writer.into_inner().expect("in memory");
        let column = column.index(rows_in[0].len());
        let number = (column + 1).to_string();
        let rows_out = rows(&content, Format::Csv, &options(&number, &number, false));
        prop_assert_eq!(rows_out.len(), rows_in.len());
        for (row_in, row_out) in rows_in.iter().zip(rows_out) {
            match row_out {
                Ok(record) => prop_assert_eq!(&record.value, &row_in[column]),
                Err(rejected) => prop_assert!(row_in[column].is_empty(), "{rejected}"),
            }
        }
    }

    /// Any bytes are read to the end; every line is accounted for, and no line twice.
    #[test]
    fn any_bytes_are_read_to_the_end(content in prop::collection::vec(
        prop_oneof![4 => prop::sample::select(b"a1,\"\r\n\t".to_vec()), 1 => any::<u8>()], 0..300,
    )) {
        for format in [Format::Csv, Format::Tsv, Format::Words] {
            for header in [false, true] {
                let file = file(&content);
                let options = ReadOptions { header, ..ReadOptions::default() };
                if let Ok(records) = open(file.path(), format, &options) {
                    let lines = 1 + content.iter().filter(|&&byte| byte == b'\n').count() as u64;
                    let mut last = 0;
                    for rejected in records.filter_map(Result::err) {
                        prop_assert!(rejected.line > last && rejected.line <= lines);
                        last = rejected.line;
                    }
                }
            }
        }
    }
}
