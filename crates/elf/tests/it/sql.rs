//! Conditions in SQL: against direct evaluation in three-valued logic, TPC-H's, and errors with their places.

use std::cmp::Ordering;

use pando_elf::{
    BuildOptions, Column, ColumnType, Elf, EncodedTable, Error, LayoutKind, Predicate, Result, Schema,
    SqlOptions, Value, parse_condition,
};
use proptest::prelude::*;

fn encode(columns: Vec<Column>, values: &[Vec<Value>]) -> EncodedTable {
    EncodedTable::encode(Schema::new(columns).expect("names"), values).expect("values of the columns' types")
}

fn parse(table: &EncodedTable, text: &str) -> Result<Vec<Predicate>> {
    parse_condition(text, &table.dictionaries, &SqlOptions::default())
}

/// How many of `predicates` each row meets.
fn matches(table: &EncodedTable, predicates: &[Predicate]) -> Vec<usize> {
    let code = |row: usize| move |column: usize| table.codes.code(column, row);
    let count = |row| predicates.iter().filter(|predicate| predicate.matches(code(row))).count();
    (0..table.codes.rows()).map(count).collect()
}

/// A condition with its text and, for a row, its truth: `None` is unknown.
#[derive(Clone, Debug)]
enum Condition {
    Compare(usize, &'static str, Literal),
    Mirrored(Literal, &'static str, usize),
    Between(usize, bool, Literal, Literal),
    In(usize, bool, Vec<Literal>),
    IsNull(usize, bool),
    Like(usize, bool, &'static str),
    Constant(Literal, &'static str, Literal),
    Not(Box<Condition>),
    And(Vec<Condition>),
    Or(Vec<Condition>),
}

/// A number in halves, so that decimals meet integers, or NULL.
type Literal = Option<i64>;

const COLUMNS: [&str; 4] = ["a", "\"b\"\"c\"", "D", "mode"];
const MODES: [&str; 5] = ["AIR", "AIR REG", "MAIL", "RAIL", "SHIP"];
const MODE: usize = 3;

fn number(halves: i64) -> Value {
    Value::Decimal { unscaled: i128::from(halves) * 5, scale: 1 }
}

/// Writes a literal for `column`: strings are drawn from few, others are numbers.
fn literal(column: usize, literal: Literal) -> String {
    match literal {
        None => "NULL".to_owned(),
        Some(halves) if column == MODE => format!("'{}'", MODES[halves.rem_euclid(5) as usize]),
        Some(halves) if halves % 2 == 0 => format!("{}", halves / 2),
        Some(halves) if halves < 0 => format!("-{}.50", -halves / 2),
        Some(halves) => format!("{} + .5", halves / 2),
    }
}

/// Order of a row's value and a literal; `None` if one is NULL.
fn order(values: &[Literal], column: usize, literal: Literal) -> Option<Ordering> {
    let right = if column == MODE { literal?.rem_euclid(5) } else { literal? };
    Some(values[column]?.cmp(&right))
}

fn holds(sign: &str, order: Ordering) -> bool {
    match sign {
        "=" => order.is_eq(),
        "<>" | "!=" => order.is_ne(),
        "<" => order.is_lt(),
        "<=" => order.is_le(),
        ">" => order.is_gt(),
        _ => order.is_ge(),
    }
}

fn conjunction(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let truths: Vec<_> = truths.collect();
    match truths.contains(&Some(false)) {
        true => Some(false),
        false => (!truths.contains(&None)).then_some(true),
    }
}

fn disjunction(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    conjunction(truths.map(|truth| truth.map(|truth| !truth))).map(|truth| !truth)
}

impl Condition {
    fn text(&self) -> String {
        let not = |has_not: &bool| if *has_not { "nOT " } else { "" };
        let join = |terms: &[Condition], word: &str| {
            terms.iter().map(|term| format!("({})", term.text())).collect::<Vec<_>>().join(word)
        };
        match self {
            Self::Compare(c, sign, value) => format!("{} {sign}{}", COLUMNS[*c], literal(*c, *value)),
            Self::Mirrored(value, sign, c) => format!("{}{sign} {}", literal(*c, *value), COLUMNS[*c]),
            Self::Between(c, has_not, low, high) => {
                let (low, high) = (literal(*c, *low), literal(*c, *high));
                format!("{} {}between {low} AND {high}", COLUMNS[*c], not(has_not))
            }
            Self::In(c, has_not, values) => {
                let values: Vec<_> = values.iter().map(|value| literal(*c, *value)).collect();
                format!("{} {}in({})", COLUMNS[*c], not(has_not), values.join(","))
            }
            Self::IsNull(c, has_not) => format!("{} is {}null", COLUMNS[*c], not(has_not)),
            Self::Like(c, has_not, prefix) => format!("{} {}like '{prefix}'", COLUMNS[*c], not(has_not)),
            Self::Constant(left, sign, right) => {
                format!("{} {sign} {}", literal(0, *left), literal(0, *right))
            }
            Self::Not(term) => format!("not({})", term.text()),
            Self::And(terms) => join(terms, " and "),
            Self::Or(terms) => join(terms, "\nor\t"),
        }
    }

    fn truth(&self, values: &[Literal]) -> Option<bool> {
        let compare = |c: usize, sign: &str, value: Literal| Some(holds(sign, order(values, c, value)?));
        match self {
            Self::Compare(c, sign, value) => compare(*c, sign, *value),
            Self::Mirrored(value, sign, c) => Some(holds(sign, order(values, *c, *value)?.reverse())),
            Self::Between(c, has_not, low, high) => {
                let between = conjunction([compare(*c, ">=", *low), compare(*c, "<=", *high)].into_iter());
                between.map(|truth| truth != *has_not)
            }
            Self::In(c, has_not, list) => {
                disjunction(list.iter().map(|value| compare(*c, "=", *value))).map(|truth| truth != *has_not)
            }
            Self::IsNull(c, has_not) => Some(values[*c].is_none() != *has_not),
            Self::Like(c, has_not, pattern) => {
                let text = MODES[values[*c]? as usize];
                let is_like = match pattern.strip_suffix('%') {
                    Some(prefix) => text.starts_with(prefix),
                    None => text == *pattern,
                };
                Some(is_like != *has_not)
            }
            Self::Constant(left, sign, right) => Some(holds(sign, (*left)?.cmp(&(*right)?))),
            Self::Not(term) => term.truth(values).map(|truth| !truth),
            Self::And(terms) => conjunction(terms.iter().map(|term| term.truth(values))),
            Self::Or(terms) => disjunction(terms.iter().map(|term| term.truth(values))),
        }
    }
}

fn condition() -> impl Strategy<Value = Condition> {
    use Condition::{And, Between, Compare, Constant, In, IsNull, Like, Mirrored, Not, Or};
    let literal = || prop_oneof![1 => Just(None), 9 => (-3..24_i64).prop_map(Some)];
    let sign = || prop::sample::select(vec!["=", "<>", "!=", "<", "<=", ">", ">="]);
    let pattern = prop::sample::select(vec!["AIR%", "MAIL", "%", "S%", "Z%", "RAI%"]);
    let leaf = prop_oneof![
        4 => (0..4_usize, sign(), literal()).prop_map(|(c, sign, value)| Compare(c, sign, value)),
        2 => (literal(), sign(), 0..4_usize).prop_map(|(value, sign, c)| Mirrored(value, sign, c)),
        2 => (0..4_usize, any::<bool>(), literal(), literal()).prop_map(|(c, not, a, b)| Between(c, not, a, b)),
        2 => (0..4_usize, any::<bool>(), prop::collection::vec(literal(), 1..5))
            .prop_map(|(c, not, list)| In(c, not, list)),
        1 => (0..4_usize, any::<bool>()).prop_map(|(c, not)| IsNull(c, not)),
        1 => (any::<bool>(), pattern).prop_map(|(not, pattern)| Like(MODE, not, pattern)),
        1 => (literal(), sign(), literal()).prop_map(|(a, sign, b)| Constant(a, sign, b)),
    ];
    leaf.prop_recursive(4, 24, 3, |inner| {
        prop_oneof![
            inner.clone().prop_map(|term| Not(Box::new(term))),
            prop::collection::vec(inner.clone(), 2..4).prop_map(And),
            prop::collection::vec(inner, 2..4).prop_map(Or),
        ]
    })
}

/// Values in halves; the integer columns hold even ones, and strings are numbers of modes.
fn rows() -> impl Strategy<Value = Vec<[Literal; 4]>> {
    let value = |limit: i64, factor: i64| {
        let some = (0..limit).prop_map(move |value| Some(value * factor));
        prop_oneof![1 => Just(None), 7 => some]
    };
    let row = (value(10, 2), value(20, 1), (0..10_i64).prop_map(|value| Some(value * 2)), value(5, 1));
    prop::collection::vec(row.prop_map(|(a, b, c, d)| [a, b, c, d]), 0..60)
}

fn table(rows: &[[Literal; 4]]) -> EncodedTable {
    let value = |column: usize, value: Literal| match value {
        None => Value::Null,
        Some(mode) if column == MODE => Value::String(MODES[mode as usize].to_owned()),
        Some(halves) => number(halves),
    };
    let values: Vec<Vec<Value>> =
        (0..4).map(|column| rows.iter().map(|row| value(column, row[column])).collect()).collect();
    let columns = vec![
        Column::new("a", ColumnType::Integer).nullable(),
        Column::new("b\"c", ColumnType::Decimal { scale: 2 }).nullable(),
        Column::new("d", ColumnType::Integer),
        Column::new("mode", ColumnType::String).nullable(),
    ];
    encode(columns, &values)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn rows_meet_one_predicate_if_and_only_if_the_condition_is_true(condition in condition(), rows in rows()) {
        let table = table(&rows);
        let text = condition.text();
        let options = SqlOptions { predicates_max: 1_000, ..SqlOptions::default() };
        let predicates = parse_condition(&text, &table.dictionaries, &options).expect("a condition");
        let expected: Vec<usize> =
            rows.iter().map(|row| usize::from(condition.truth(row) == Some(true))).collect();
        prop_assert_eq!(matches(&table, &predicates), expected, "{}: {:?}", text, predicates);
    }

    #[test]
    fn no_text_panics(text in any::<String>(), marks in "[-+a<>=!('\" .,0-9)]{0,40}") {
        let table = table(&[]);
        let _ = (parse(&table, &text), parse(&table, &marks));
    }

    /// Words of conditions in any order reach all parts of the parser.
    #[test]
    fn no_sequence_of_words_panics(picks in prop::collection::vec(any::<prop::sample::Index>(), 0..14)) {
        const WORDS: [&str; 34] = [
            "a", "mode", "d", "\"b\"\"c\"", "and", "or", "not", "between", "in", "like", "is", "null", "date",
            "interval", "year", "day", "(", "(", ")", ")", ",", "=", "<>", "<", ">=", "+", "-", "1", "'AI%'",
            "'1994-01-01'", "99999999999999999999999999999999999999", "'3'", ".5", "é",
        ];
        let text: Vec<&str> = picks.iter().map(|pick| *pick.get(&WORDS)).collect();
        let table = table(&[]);
        if let Err(Error::BadCondition { at, .. }) = parse(&table, &text.join(" ")) {
            prop_assert!(at <= text.join(" ").len());
        }
    }
}

/// Rows like lineitem's, in the columns of the queries' conditions.
fn lineitem() -> (EncodedTable, Vec<Lineitem>) {
    let mut state = 7_u64;
    let mut below = |limit: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let rows: Vec<Lineitem> = (0..3_000)
        .map(|_| {
            let ship = 8_036 + below(2_500) as i32;
            Lineitem {
                quantity: 1 + below(50) as i64,
                discount: below(11) as i64,
                flag: ["A", "N", "R"][below(3) as usize],
                ship,
                commit: ship + below(60) as i32 - 30,
                receipt: ship + 1 + below(30) as i32,
                instruct: ["COLLECT COD", "DELIVER IN PERSON", "NONE", "TAKE BACK RETURN"][below(4) as usize],
                mode: ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"][below(7) as usize],
            }
        })
        .collect();
    let of = |value: &dyn Fn(&Lineitem) -> Value| rows.iter().map(value).collect::<Vec<_>>();
    let text = |text: &str| Value::String(text.to_owned());
    let values = [
        of(&|row| Value::Decimal { unscaled: i128::from(row.quantity) * 100, scale: 2 }),
        of(&|row| Value::Decimal { unscaled: row.discount.into(), scale: 2 }),
        of(&|row| text(row.flag)),
        of(&|row| Value::Date(row.ship)),
        of(&|row| Value::Date(row.commit)),
        of(&|row| Value::Date(row.receipt)),
        of(&|row| text(row.instruct)),
        of(&|row| text(row.mode)),
    ];
    let decimal = ColumnType::Decimal { scale: 2 };
    let columns = [
        ("l_quantity", decimal),
        ("l_discount", decimal),
        ("l_returnflag", ColumnType::String),
        ("l_shipdate", ColumnType::Date),
        ("l_commitdate", ColumnType::Date),
        ("l_receiptdate", ColumnType::Date),
        ("l_shipinstruct", ColumnType::String),
        ("l_shipmode", ColumnType::String),
    ];
    let columns = columns.into_iter().map(|(name, kind)| Column::new(name, kind)).collect();
    (encode(columns, &values), rows)
}

struct Lineitem {
    quantity: i64,
    /// In hundredths.
    discount: i64,
    flag: &'static str,
    ship: i32,
    commit: i32,
    receipt: i32,
    instruct: &'static str,
    mode: &'static str,
}

fn day(year: i32, month: u8, day: u8) -> i32 {
    match Value::date(year, month, day) {
        Some(Value::Date(days)) => days,
        _ => panic!("no such day"),
    }
}

/// Whether a query selects a row, in plain Rust.
type Selects = fn(&Lineitem) -> bool;

/// Name, condition, number of predicates, and the rows that it selects.
const TPCH: [(&str, &str, usize, Selects); 7] = [
    ("Q1", "l_shipdate <= date '1998-12-01' - interval '90' day (3)", 1, |row| row.ship <= day(1998, 9, 2)),
    (
        "Q6",
        "l_shipdate >= date '1994-01-01' and l_shipdate < date '1994-01-01' + interval '1' year
         and l_discount between .06 - 0.01 and .06 + 0.01 and l_quantity < 24",
        1,
        |row| {
            (day(1994, 1, 1)..day(1995, 1, 1)).contains(&row.ship)
                && (5..=7).contains(&row.discount)
                && row.quantity < 24
        },
    ),
    ("Q10", "L_RETURNFLAG = 'R'", 1, |row| row.flag == "R"),
    (
        "Q12 without its comparisons of columns",
        "l_shipmode in ('MAIL', 'SHIP') and l_receiptdate >= date '1994-01-01'
         and l_receiptdate < date '1994-01-01' + interval '1' year",
        1,
        |row| {
            ["MAIL", "SHIP"].contains(&row.mode) && (day(1994, 1, 1)..day(1995, 1, 1)).contains(&row.receipt)
        },
    ),
    (
        "Q14",
        "l_shipdate >= date '1995-09-01' and l_shipdate < date '1995-09-01' + interval '1' month",
        1,
        |row| (day(1995, 9, 1)..day(1995, 10, 1)).contains(&row.ship),
    ),
    (
        "Q19 without the columns of part",
        "(l_quantity >= 1 and l_quantity <= 1 + 10 and l_shipmode in ('AIR', 'AIR REG')
           and l_shipinstruct = 'DELIVER IN PERSON')
         or (l_quantity >= 10 and l_quantity <= 10 + 10 and l_shipmode in ('AIR', 'AIR REG')
           and l_shipinstruct = 'DELIVER IN PERSON')
         or (l_quantity >= 20 and l_quantity <= 20 + 10 and l_shipmode in ('AIR', 'AIR REG')
           and l_shipinstruct = 'DELIVER IN PERSON')",
        1,
        |row| row.mode == "AIR" && row.instruct == "DELIVER IN PERSON" && row.quantity <= 30,
    ),
    (
        "Q19 with discounts for the columns of part",
        "(l_quantity >= 1 and l_quantity <= 1 + 10 and l_shipmode in ('AIR', 'AIR REG', 'REG AIR')
           and l_shipinstruct = 'DELIVER IN PERSON' and l_discount < 0.03)
         or (l_quantity >= 10 and l_quantity <= 10 + 10 and l_shipmode in ('AIR', 'AIR REG', 'REG AIR')
           and l_shipinstruct = 'DELIVER IN PERSON' and l_discount < 0.05)
         or (l_quantity >= 20 and l_quantity <= 20 + 10 and l_shipmode in ('AIR', 'AIR REG', 'REG AIR')
           and l_shipinstruct = 'DELIVER IN PERSON' and l_discount < 0.07)",
        3,
        |row| {
            let branch =
                |low: i64, discount: i64| (low..=low + 10).contains(&row.quantity) && row.discount < discount;
            ["AIR", "REG AIR"].contains(&row.mode)
                && row.instruct == "DELIVER IN PERSON"
                && (branch(1, 3) || branch(10, 5) || branch(20, 7))
        },
    ),
];

#[test]
fn lineitem_conditions_of_tpch_select_their_rows() {
    let (table, rows) = lineitem();
    let order: Vec<usize> = (0..table.codes.width()).collect();
    let elf = Elf::build(&table.codes, &order, LayoutKind::Columnar, &BuildOptions::default()).expect("rows");
    for (name, text, number, truth) in TPCH {
        let predicates = parse(&table, text).expect(name);
        assert_eq!(predicates.len(), number, "{name}: {predicates:?}");
        let expected: Vec<usize> = rows.iter().map(|row| usize::from(truth(row))).collect();
        assert_eq!(matches(&table, &predicates), expected, "{name}");
        let count = |predicate: &Predicate| elf.select(predicate).expect("known columns").count();
        assert_eq!(
            predicates.iter().map(count).sum::<u64>(),
            expected.iter().sum::<usize>() as u64,
            "{name}"
        );
    }
    // The dates of Q12 that are compared with each other.
    assert!(rows.iter().any(|row| row.commit < row.receipt && row.ship < row.commit));
    let message = error(&table, "l_commitdate < l_receiptdate");
    assert!(message.starts_with("two columns are compared"), "{message}");
}

/// Branches that differ in one column become one predicate.
#[test]
fn alternatives_are_joined_where_one_conjunction_says_the_same() {
    let (table, _) = lineitem();
    let one = |text: &str| parse(&table, text).map(|predicates| predicates.len());
    assert_eq!(one("l_quantity < 10 or l_quantity > 20 or l_quantity in (12, 14)"), Ok(1));
    assert_eq!(
        one(
            "(l_quantity < 10 and l_shipmode = 'AIR') or (l_shipmode = 'AIR' and l_quantity between 5 and 30)"
        ),
        Ok(1)
    );
    assert_eq!(one("l_quantity < 10 or l_shipmode = 'AIR'"), Ok(2));
    assert_eq!(one("l_quantity < 1000 or l_shipmode = 'AIR'"), Ok(1));
    assert_eq!(one("l_quantity > 1000 and l_shipmode = 'AIR'"), Ok(0));
    assert_eq!(parse(&table, "l_quantity >= -5 or 1 = 2"), Ok(vec![Predicate::all()]));
}

fn error(table: &EncodedTable, text: &str) -> String {
    parse(table, text).map(|predicates| format!("{predicates:?}")).expect_err(text).to_string()
}

/// Conditions that are none, and what is said of them.
const ERRORS: [(&str, &str); 23] = [
    (
        "l_quantiti < 5",
        "there is no column `l_quantiti`; the nearest is `l_quantity`, at byte 0: >>l_quantiti<< < 5",
    ),
    (
        "\"L_TAX\" = 1",
        "there is no column `L_TAX`; the nearest is `l_quantity`, at byte 0: >>\"L_TAX\"<< = 1",
    ),
    (
        "l_discount > 0 and l_quantity = 'x' or 1 = 1",
        "column `l_quantity` holds values of type decimal with 2 digits behind the point, not string, \
         at byte 32: ...nt > 0 and l_quantity = >>'x'<< or 1 = 1",
    ),
    (
        "l_quantity == 5",
        "`==` is no operator: there are = <> != < <= > >= + -, at byte 11: l_quantity >>==<< 5",
    ),
    ("(l_quantity = 5", "the `(` at byte 0 needs a `)`, at byte 15: (l_quantity = 5>><<"),
    ("l_quantity = 5)", "this `)` has no `(` before it, at byte 14: l_quantity = 5>>)<<"),
    (
        "l_quantity = 5 limit 3",
        "the condition is complete here, but text follows, at byte 15: l_quantity = 5 >>limit<< 3",
    ),
    ("l_quantity", "a comparison of the column is expected here, at byte 10: l_quantity>><<"),
    ("", "a column or a value is expected here, at byte 0: >><<"),
    ("l_quantity = ", "a column or a value is expected here, at byte 13: l_quantity = >><<"),
    (
        "l_quantity not 5",
        "`between`, `in` or `like` is expected behind `not`, at byte 15: l_quantity not >>5<<",
    ),
    (
        "l_quantity between 1 or 2",
        "`and` is expected between the bounds of `between`, at byte 21: l_quantity between 1 >>or<< 2",
    ),
    (
        "l_quantity in (1, 2",
        "`,` or `)` is expected behind a value of a list, at byte 19: l_quantity in (1, 2>><<",
    ),
    ("l_quantity is 5", "`null` or `not null` is expected behind `is`, at byte 14: l_quantity is >>5<<"),
    (
        "l_shipmode like '%AIR'",
        "only a pattern with one `%` at its end, 'prefix%', can be an interval of codes, \
         at byte 16: l_shipmode like >>'%AIR'<<",
    ),
    (
        "l_quantity like '1%'",
        "column `l_quantity` holds no strings that `like` could compare, at byte 0: >>l_quantity<< like '1%'",
    ),
    (
        "l_commitdate < l_receiptdate",
        "two columns are compared, which is no condition on the values of one column, \
         at byte 0: >>l_commitdate < l_receipt...<<",
    ),
    (
        "l_quantity + 1 < 5",
        "a column stands alone in a comparison; only constants can be added, at byte 11: l_quantity >>+<< 1 < 5",
    ),
    (
        "l_shipdate < date '1994-02-30'",
        "this is no date: write date '1994-01-31', at byte 18: l_shipdate < date >>'1994-02-30'<<",
    ),
    (
        "l_shipdate < date '1994-02-01' + interval '1' week",
        "this is no interval: write interval '3' year, month or day, \
         at byte 46: ...4-02-01' + interval '1' >>week<<",
    ),
    (
        "l_shipdate < '1994-02-01'",
        "column `l_shipdate` holds values of type date, not string, at byte 13: l_shipdate < >>'1994-02-01'<<",
    ),
    ("1 < 'x'", "a decimal cannot be compared with a string, at byte 0: >>1 < 'x'<<"),
    (
        "l_quantity = 1 +\n'x'",
        "this decimal and this string have no sum, or one that is out of range, at byte 13: l_quantity = >>1 + 'x'<<",
    ),
];

#[test]
fn errors_say_what_is_wrong_and_where() {
    let (table, _) = lineitem();
    for (text, message) in ERRORS {
        assert_eq!(error(&table, text), message);
    }
}

#[test]
fn bounds_on_a_condition_are_errors() {
    let (table, _) = lineitem();
    let nested = |depth: usize| format!("{}1 = 1{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(parse(&table, &nested(200)), Ok(vec![Predicate::all()]));
    let message = error(&table, &nested(100_000));
    assert!(message.starts_with("more than 200 parentheses lie within each other, at byte 200"), "{message}");
    assert!(parse(&table, &format!("{}1 = 1", "not ".repeat(100_001))).is_ok_and(|none| none.is_empty()));
    let list: Vec<String> = (0..20_000).map(|i| format!("l_quantity = {i}")).collect();
    assert!(parse(&table, &list.join(" or ")).is_ok_and(|one| one.len() == 1));

    let branches: Vec<String> = (1..40)
        .map(|i| format!("(l_quantity = {i} and l_shipdate > date '1992-01-01' + interval {i} day)"))
        .collect();
    let text = branches.join(" or ");
    assert!(parse(&table, &text).is_ok_and(|predicates| predicates.len() > 20));
    let options = SqlOptions { predicates_max: 5, ..SqlOptions::default() };
    let message =
        parse_condition(&text, &table.dictionaries, &options).expect_err("39 alternatives").to_string();
    assert!(
        message.starts_with("this needs more than 5 predicates that do not overlap, at byte 0"),
        "{message}"
    );
}
