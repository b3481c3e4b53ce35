//! Answers conditions on lineitem from Parquet with Elf: prints the number of rows of each and the sum of their row
//! numbers. `benchmarks/elf_tpch.sh` compares them with DuckDB's.
//!
//! `elf_tpch LINEITEM.parquet CONDITIONS.txt [ROUNDS]`: a line of the second file is `NAME: CONDITION`, optionally
//! followed by ` | COLUMN < COLUMN and ..`, comparisons of columns with each other, which are made for each
//! row that is found. With rounds, the times of Q6 go to the standard error.

mod file;

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pando_elf::{
    Advice, Bitmap, BuildOptions, Count, Elf, EncodedTable, Ids, Kernel, LayoutKind, NumberSlice, Predicate,
    Sink, SqlOptions, Value, for_workload, parse_condition, scan,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// What a timed search gives.
#[derive(Clone, Copy)]
enum Kind {
    Count,
    /// Ids as slices of the image; a scan copies them.
    Spans,
    Ids,
    Bitmap,
}

struct Query {
    name: String,
    /// Their rows do not overlap.
    predicates: Vec<Predicate>,
    /// Columns whose first is below the second in every row that is a result.
    less: Vec<[usize; 2]>,
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [file, conditions, rounds @ ..] = arguments.as_slice() else {
        return Err("usage: elf_tpch LINEITEM.parquet CONDITIONS.txt [ROUNDS]".into());
    };
    let start = Instant::now();
    let table = file::read(Path::new(file), "l_comment")?;
    eprintln!("{} rows read and encoded in {:.1} s", table.codes.rows(), start.elapsed().as_secs_f64());
    let text = std::fs::read_to_string(conditions)?;
    let queries = text.lines().map(|line| query(line, &table)).collect::<Outcome<Vec<_>>>()?;

    let workload: Vec<Predicate> = queries.iter().flat_map(|query| query.predicates.clone()).collect();
    let order = for_workload(&table.codes, &workload, &Advice::default())?;
    let start = Instant::now();
    let elf = Elf::build(&table.codes, &order, LayoutKind::Columnar, &BuildOptions::default())?;
    eprintln!(
        "15 columns: {} MB, built in {:.2} s",
        elf.bytes().len() / 1_000_000,
        start.elapsed().as_secs_f64()
    );
    let codes = Arc::new(table.codes.clone());
    let elf = elf.with_table(codes)?;
    for query in &queries {
        let ids = answer(query, &elf, &table)?;
        let sum: u128 = ids.iter().map(|&id| u128::from(id)).sum();
        println!("{} {} {sum}", query.name, ids.len());
    }
    if let Some(rounds) = rounds.first() {
        let q6 = queries.iter().find(|query| query.name == "Q6").ok_or("there is no Q6")?;
        time_q6(&q6.predicates[0], &elf, &table, rounds.parse()?)?;
    }
    Ok(())
}

fn query(line: &str, table: &EncodedTable) -> Outcome<Query> {
    let (name, rest) = line.split_once(": ").ok_or("a line has the form NAME: CONDITION")?;
    let (condition, less) = rest.split_once(" | ").unwrap_or((rest, ""));
    let column = |name: &str| table.schema.position(name.trim());
    let pair = |text: &str| -> Outcome<[usize; 2]> {
        let (low, high) = text.split_once('<').ok_or("columns are compared by <")?;
        Ok([column(low)?, column(high)?])
    };
    Ok(Query {
        name: name.to_owned(),
        predicates: parse_condition(condition, &table.dictionaries, &SqlOptions::default())?,
        less: less.split(" and ").filter(|text| !text.is_empty()).map(pair).collect::<Outcome<_>>()?,
    })
}

/// Ids of the rows that meet the query's condition.
fn answer(query: &Query, elf: &Elf, table: &EncodedTable) -> Outcome<Vec<u32>> {
    let mut ids = Vec::new();
    for predicate in &query.predicates {
        elf.select(predicate)?.ids_into(&mut ids)?;
    }
    for &[low, high] in &query.less {
        let values = |column: usize| -> Outcome<Vec<Value>> {
            let dictionary = &table.dictionaries[column];
            Ok((0..=dictionary.len() as u32).map(|code| dictionary.value(code)).collect::<Result<_, _>>()?)
        };
        let (lows, highs) = (values(low)?, values(high)?);
        let date = |values: &[Value], column: usize, id: u32| match values
            [table.codes.code(column, id as usize) as usize]
        {
            Value::Date(days) => days,
            _ => unreachable!("only dates are compared with each other"),
        };
        ids.retain(|&id| date(&lows, low, id) < date(&highs, high, id));
    }
    Ok(ids)
}

/// Times of Q6's predicate: the best scan, this Elf, and one of the predicate's columns alone. Medians of rounds in
/// which all take turns.
fn time_q6(predicate: &Predicate, all: &Elf, table: &EncodedTable, rounds: usize) -> Outcome<()> {
    let mut columns: Vec<usize> = predicate.conditions().map(|(column, _)| column).collect();
    columns.sort_by_key(|&column| table.dictionaries[column].len());
    let few = table.codes.project(&columns)?;
    let in_few = columns.iter().enumerate().fold(Predicate::all(), |all, (number, &column)| {
        let condition = predicate.conditions().find(|(other, _)| *other == column);
        all.and(number, condition.map(|(_, intervals)| intervals.to_vec()).unwrap_or_default())
    });
    let order: Vec<usize> = (0..columns.len()).collect();
    let build = |layout| Elf::build(&few, &order, layout, &BuildOptions::default());
    let (linear, columnar) = (build(LayoutKind::Linear)?, build(LayoutKind::Columnar)?);

    let kernel = Kernel::detect();
    let rows = table.codes.rows();
    let mut ids: Vec<u32> = Vec::with_capacity(rows + 128);
    let mut bitmap = Bitmap::new(rows as u64);
    let elves = [None, Some((&linear, &in_few)), Some((&columnar, &in_few)), Some((all, predicate))];
    let mut run = |method: &Option<(&Elf, &Predicate)>, output| -> Result<f64, Box<dyn Error>> {
        ids.clear();
        let start = Instant::now();
        match (method, output) {
            (None, Kind::Count) => scan(&table.codes, predicate, kernel, &mut Count::default())?,
            (None, Kind::Ids | Kind::Spans) => {
                scan(&table.codes, predicate, kernel, &mut Ids::new(&mut ids, kernel))?
            }
            (None, Kind::Bitmap) => {
                bitmap.restart();
                scan(&table.codes, predicate, kernel, &mut bitmap)?;
            }
            (Some((elf, predicate)), Kind::Count) => {
                elf.select(predicate)?.count();
            }
            (Some((elf, predicate)), Kind::Ids) => {
                elf.select(predicate)?.ids_into(&mut ids)?;
            }
            (Some((elf, predicate)), Kind::Spans) => {
                black_box(elf.select(predicate)?.spans());
            }
            (Some((elf, predicate)), Kind::Bitmap) => {
                elf.select(predicate)?.bitmap_into(&mut bitmap)?;
            }
        }
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    let mut times = vec![[const { [const { Vec::new() }; 2] }; 4]; 4];
    for _ in 0..rounds {
        for (method, times) in elves.iter().zip(&mut times) {
            for (output, times) in [Kind::Count, Kind::Spans, Kind::Ids, Kind::Bitmap].into_iter().zip(times)
            {
                // First after the other methods, which leave little of it in caches, and then again.
                for times in times {
                    times.push(run(method, output)?);
                }
            }
        }
    }
    eprintln!("Q6, us, medians of {rounds} rounds, kernel {}", kernel.name());
    print_times(times);
    time_bits(columnar.select(&in_few)?.ids::<u32>()?, &mut bitmap, rounds)
}

/// Prints the medians of each method: after the other methods, and again.
fn print_times(times: Vec<[[Vec<f64>; 2]; 4]>) {
    eprintln!(
        "count, ids as slices (of the scan: copied), ids, bitmap; first after other methods, then again"
    );
    let names = ["scan", "linear, 3 columns", "columnar, 3 columns", "columnar, 15 columns"];
    for (name, times) in names.iter().zip(times) {
        eprint!("{name:22}");
        for which in 0..2 {
            for output in &times {
                eprint!(" {:9.1}", median(output[which].clone()));
            }
        }
        eprintln!();
    }
}

/// What a bitmap takes when its ids are known: what no search for them can undercut.
fn time_bits(ids: Vec<u32>, bitmap: &mut Bitmap, rounds: usize) -> Outcome<()> {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    let ids = NumberSlice::open(&bytes, size_of::<u32>()).ok_or("ids have four bytes")?;
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..rounds {
        let start = Instant::now();
        bitmap.restart();
        times[0].push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        bitmap.span(ids);
        times[1].push(start.elapsed().as_secs_f64() * 1e6);
    }
    let [clear, set] = times.map(median);
    eprintln!("the bitmap alone: {clear:.1} to clear it, {set:.1} to set the bits of {} ids", ids.len());
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
