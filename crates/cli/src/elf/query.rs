//! `pando elf query`: the rows that meet a condition, as a number, ids, CSV or an Arrow stream.
//!
//! A query READs what it needs of the table and keeps little of it, since it is the only one of its process. Results
//! go to standard output, the explanation to standard error.

use std::io::{self, BufWriter, Write, stdout};

use pando::elf::{Cost, Elf, LayoutKind, PartExplained, Rows, Selection, Value};
use pando_lab::units;

use super::args::{QueryArgs, ResultForm as Form};
use super::with_elf;
use crate::failure::{self, Failure};
use crate::pool;
use crate::signals::Interrupt;

/// Most bytes of upper levels that a query loads before it begins.
const CACHE: u64 = 1 << 20;
const BUFFER: usize = 1 << 18;
/// Rows between two looks at signals.
const STRIDE: usize = 4096;

pub fn run(args: &QueryArgs) -> Result<(), Failure> {
    if !args.select.is_empty() && matches!(args.output, Form::Count | Form::Ids) {
        return Err(Failure::bad_input("--select chooses columns of --output csv or arrow"));
    }
    #[cfg(not(feature = "arrow"))]
    if args.output == Form::Arrow {
        return Err(Failure::bad_input(
            "this program was built without Arrow; use --output csv, or build it with the feature `arrow`",
        ));
    }
    let interrupt = Interrupt::listen()?;
    let config = pool::looking(&args.target.pool, &args.look)?.cache(args.target.pool.cache.min(CACHE));
    let config = config.offload(args.offload.policy());
    with_elf(config, &args.target, |_, elf| {
        let selection = match &args.condition {
            Some(condition) => elf.select(condition)?,
            None => elf.all(),
        };
        print(args, elf, &selection, &interrupt)?;
        if args.explain {
            explain(&selection)?;
        }
        Ok(())
    })
}

fn print(args: &QueryArgs, elf: &Elf, selection: &Selection, interrupt: &Interrupt) -> Result<(), Failure> {
    let mut output = BufWriter::with_capacity(BUFFER, stdout().lock());
    match args.output {
        Form::Count => writeln!(output, "{}", selection.count()?)?,
        Form::Ids => {
            for id in selection.sorted_ids()? {
                writeln!(output, "{id}")?;
            }
        }
        Form::Csv => csv(&selection.rows(&columns(args, elf)?)?, interrupt, &mut output)?,
        Form::Arrow => arrow(&selection.rows(&columns(args, elf)?)?, &mut output)?,
    }
    Ok(output.flush()?)
}

/// The columns to print.
fn columns(args: &QueryArgs, elf: &Elf) -> Result<Vec<String>, Failure> {
    if !args.select.is_empty() {
        return Ok(args.select.clone());
    }
    Ok(elf.info()?.spec.schema.columns().iter().map(|column| column.name.clone()).collect())
}

fn csv(rows: &Rows, interrupt: &Interrupt, output: &mut impl Write) -> Result<(), Failure> {
    for (number, column) in rows.columns().iter().enumerate() {
        separate(number, output)?;
        field(&column.name, output)?;
    }
    writeln!(output)?;
    for (at, row) in rows.iter().enumerate() {
        if at.is_multiple_of(STRIDE) {
            interrupt.check()?;
        }
        for (number, value) in row?.1.iter().enumerate() {
            separate(number, output)?;
            match value {
                Value::Null => {}
                Value::String(text) => field(text, output)?,
                Value::Date(days) => write!(output, "{}", date(*days))?,
                value => write!(output, "{value}")?,
            }
        }
        writeln!(output)?;
    }
    Ok(())
}

fn separate(number: usize, output: &mut impl Write) -> io::Result<()> {
    if number > 0 { output.write_all(b",") } else { Ok(()) }
}

/// Writes a text, quoted if that is necessary.
fn field(text: &str, output: &mut impl Write) -> io::Result<()> {
    // Without quotes, an empty text could not be told from NULL.
    match text.is_empty() || text.contains([',', '"', '\r', '\n']) {
        true => write!(output, "\"{}\"", text.replace('"', "\"\"")),
        false => output.write_all(text.as_bytes()),
    }
}

/// The day of the Gregorian calendar that is `days` days after 1970-01-01.
fn date(days: i32) -> String {
    // Years start in March here, so that leap days come last, and form cycles of 400 years.
    const CYCLE: i64 = 146_097;
    let days = i64::from(days) + 719_468;
    let (cycle, day) = (days.div_euclid(CYCLE), days.rem_euclid(CYCLE));
    let year_of_cycle = (day - day / 1460 + day / 36_524 - day / (CYCLE - 1)) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, is_next) = if month >= 10 { (month - 9, 1) } else { (month + 3, 0) };
    format!("{:04}-{month:02}-{day_of_month:02}", 400 * cycle + year_of_cycle + is_next)
}

#[cfg(feature = "arrow")]
fn arrow(rows: &Rows, output: &mut impl Write) -> Result<(), Failure> {
    use arrow_ipc::writer::StreamWriter;
    let failed =
        |error: &dyn std::fmt::Display| Failure::failed(format_args!("cannot write the rows: {error}"));
    let mut writer = StreamWriter::try_new(output, &rows.arrow_schema()).map_err(|error| failed(&error))?;
    for batch in rows.record_batches()? {
        writer.write(&batch).map_err(|error| failed(&error))?;
    }
    writer.finish().map_err(|error| failed(&error))
}

#[cfg(not(feature = "arrow"))]
fn arrow(_: &Rows, _: &mut impl Write) -> Result<(), Failure> {
    unreachable!("it was refused before")
}

/// Tells on standard error how the rows are found.
fn explain(selection: &Selection) -> Result<(), Failure> {
    let answer = selection.explain()?;
    let (explained, cost) = (&answer.value, answer.cost);
    let spec = &explained.info.spec;
    let order = spec.order.iter().map(|&column| {
        let mark = if explained.is_constrained[column] { "*" } else { "" };
        format!("{}{mark}", spec.schema.columns()[column].name)
    });
    let buckets = match explained.layout() {
        LayoutKind::Columnar => format!(", buckets of {} rows", spec.bucket_rows),
        LayoutKind::Linear => String::new(),
    };
    tell("table", format!("{} layout{buckets}, {} parts", spec.layout.name(), explained.parts.len()));
    tell("order", format!("{} (* has a condition)", order.collect::<Vec<_>>().join(", ")));
    for (number, part) in explained.parts.iter().enumerate() {
        explain_part(number, part, spec.order.len());
    }
    tell(
        "verbs",
        format!(
            "{}, {} READs of the catalog's version, begun anew {} times",
            verbs(&cost),
            cost.checks,
            cost.restarts
        ),
    );
    Ok(())
}

fn verbs(cost: &Cost) -> String {
    format!(
        "{} READs of {}, {} calls of {}, {} round trips",
        units::count(cost.reads),
        units::size(cost.bytes_read),
        units::count(cost.calls),
        units::size(cost.call_bytes),
        units::count(cost.round_trips)
    )
}

fn tell(label: &str, text: String) {
    failure::tell(format_args!("{label:<8} {text}"));
}

fn explain_part(number: usize, part: &PartExplained, levels: usize) {
    let PartExplained { info, cost, .. } = part;
    tell(
        &format!("part {number}"),
        format!(
            "{} rows, {} deleted, {} trees of {}; {} found by {} predicates",
            units::count(info.rows),
            units::count(info.deleted_rows),
            info.trees,
            units::size(info.image_bytes),
            units::count(part.found),
            part.predicates
        ),
    );
    tell(
        "  region",
        format!(
            "{} rows taken by the lists above them, {} compared",
            units::count(cost.rows_taken),
            units::count(cost.rows_compared)
        ),
    );
    let gate = match part.reads_at_most {
        Some(bytes) => format!("walk, which READs at most {} besides row ids", units::size(bytes)),
        None => "walk; the linear layout has no bound below the image".to_owned(),
    };
    tell("  gate", gate);
    let cached = part.cached;
    tell("  cache", format!("{} of {levels} levels, {}", cached.levels, units::size(cached.bytes)));
    tell("  verbs", verbs(cost));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_days_of_the_calendar() {
        for (days, expected) in [
            (0, "1970-01-01"),
            (-1, "1969-12-31"),
            (11_016, "2000-02-29"),
            (8_766, "1994-01-01"),
            (-719_162, "0001-01-01"),
        ] {
            assert_eq!(date(days), expected);
        }
    }

    #[test]
    fn texts_are_quoted_where_necessary() {
        let quoted = |text: &str| {
            let mut output = Vec::new();
            field(text, &mut output).expect("memory");
            String::from_utf8(output).expect("text")
        };
        assert_eq!(
            ["a b", "", "a,b", "say \"x\""].map(quoted),
            ["a b", "\"\"", "\"a,b\"", "\"say \"\"x\"\"\""]
        );
    }
}
