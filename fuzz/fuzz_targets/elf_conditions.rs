//! Arbitrary text as an SQL condition: an error that names a byte of it, or predicates of which no row meets two.
//!
//! Half of the inputs are made of words of the language, so that they get beyond the lexer.

#![no_main]

use libfuzzer_sys::arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use pando_elf::{Column, ColumnType, Dictionary, Error, Predicate, SqlOptions, Value, parse_condition};

const WORDS: &[&str] = &[
    "a",
    "b",
    "price",
    "\"day\"",
    "mode",
    "and",
    "or",
    "not",
    "(",
    ")",
    "(",
    ")",
    "=",
    "<>",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "is",
    "null",
    "between",
    "in",
    ",",
    "like",
    "'A%'",
    "'RAIL'",
    "''",
    "date",
    "'1994-01-31'",
    "interval",
    "'3'",
    "month",
    "day",
    "year",
    "+",
    "-",
    "1",
    "0.05",
    "7",
    "99999999999999999999",
    "1e3",
    ".",
    "%",
    "'",
    "\"",
];

#[derive(Debug)]
struct Text(String);

impl<'a> Arbitrary<'a> for Text {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        if input.ratio(1, 2)? {
            return String::arbitrary(input).map(Self);
        }
        let count = input.int_in_range(0..=60)?;
        let words = (0..count).map(|_| input.choose(WORDS).copied()).collect::<Result<Vec<_>>>()?;
        Ok(Self(words.join(" ")))
    }
}

fn dictionaries() -> Vec<Dictionary> {
    let of = |name: &str, kind: ColumnType, values: &[Value]| {
        let column = Column::new(name, kind).nullable();
        Dictionary::new(&column, values.iter()).expect("values of the type")
    };
    let decimal = |unscaled| Value::Decimal { unscaled, scale: 2 };
    let text = |text: &str| Value::String(text.to_owned());
    vec![
        of("a", ColumnType::Integer, &[1, 2, 3, 7].map(Value::Integer)),
        of("b", ColumnType::Integer, &[-5, 0, 7].map(Value::Integer)),
        of("price", ColumnType::Decimal { scale: 2 }, &[4, 5, 6, 700].map(decimal)),
        of("day", ColumnType::Date, &[8_765, 8_796, 9_000].map(Value::Date)),
        of("mode", ColumnType::String, &["AIR", "MAIL", "RAIL"].map(text)),
    ]
}

/// Whether a row with one code per column meets two of the predicates.
fn is_met_twice(predicates: &[Predicate], row: &[u32]) -> bool {
    predicates.iter().filter(|predicate| predicate.matches(|column| row[column])).count() > 1
}

fuzz_target!(|input: (Text, u8, u8)| {
    let (Text(text), predicates_max, depth_max) = input;
    let options =
        SqlOptions { predicates_max: usize::from(predicates_max), depth_max: usize::from(depth_max) };
    let dictionaries = dictionaries();
    match parse_condition(&text, &dictionaries, &options) {
        Ok(predicates) => {
            assert!(predicates.len() <= options.predicates_max);
            // Every row of the product of all columns, NULL included.
            let sizes: Vec<u32> = dictionaries.iter().map(|all| all.len() as u32 + 1).collect();
            for number in 0..sizes.iter().product() {
                let digit = |rest: &mut u32, size: &u32| {
                    let code = *rest % size;
                    *rest /= size;
                    Some(code)
                };
                let row: Vec<u32> = sizes.iter().scan(number, digit).collect();
                assert!(!is_met_twice(&predicates, &row), "{text}");
            }
        }
        Err(Error::BadCondition { at, .. }) => assert!(text.is_char_boundary(at), "byte {at} of {text}"),
        Err(error) => panic!("{error}"),
    }
});
