//! Compares two builds of this program in turns: the effect of a change, on a machine of varying speed.
//!
//! A turn runs both programs with the same options one after the other, so a slowdown that lasts longer than
//! a turn affects both. The result is the median over turns of the rate after the change divided by the rate
//! before it.

use anyhow::{Context, bail};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::median;

/// Rates of one map for one combination of key space, distribution and number of threads.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    /// Name and rate of each phase.
    rates: Vec<(String, f64)>,
}

/// Runs `before` and `after` with `options`, `turns` times each, and returns a Markdown table of ratios.
///
/// # Errors
/// If a program cannot be run or fails, or if the two measure different things.
pub fn compare(before: &Path, after: &Path, options: &[String], turns: usize) -> anyhow::Result<String> {
    let mut ratios: Vec<(Row, Vec<Vec<f64>>)> = Vec::new();
    for turn in 0..turns {
        eprintln!("turn {} of {turns}", turn + 1);
        // The order alternates, since the second program may find a warmer machine.
        let (one, other) = if turn % 2 == 0 { (before, after) } else { (after, before) };
        let (one, other) = (run(one, options)?, run(other, options)?);
        let (before, after) = if turn % 2 == 0 { (one, other) } else { (other, one) };
        if ratios.is_empty() {
            ratios = before.iter().map(|row| (row.clone(), vec![Vec::new(); row.rates.len()])).collect();
        }
        if after.len() != ratios.len() || before.len() != ratios.len() {
            bail!("the two programs measure different things");
        }
        for ((before, after), (_, ratios)) in before.iter().zip(&after).zip(&mut ratios) {
            for ((before, after), ratios) in before.rates.iter().zip(&after.rates).zip(ratios) {
                ratios.push(after.1 / before.1);
            }
        }
    }
    Ok(table(&ratios))
}

fn run(program: &Path, options: &[String]) -> anyhow::Result<Vec<Row>> {
    let said = Command::new(program)
        .args(options)
        .args(["--json", "/dev/stdout"])
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {}", program.display()))?;
    if !said.status.success() {
        bail!("{} failed: {}", program.display(), said.status);
    }
    let text = String::from_utf8(said.stdout)?;
    // The Markdown table precedes the JSON.
    let json = text.find("\n{").context("there is no JSON")?;
    rows(&serde_json::from_str(&text[json..])?)
}

fn rows(report: &Value) -> anyhow::Result<Vec<Row>> {
    let list = |value: &Value| value.as_array().cloned().context("a list is missing");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut rows = Vec::new();
    for table in list(&report["tables"])? {
        for map in list(&table["maps"])? {
            let of =
                format!("{}, {}, {}", text(&table["space"]), text(&table["distribution"]), table["threads"]);
            let phases = list(&map["phases"])?;
            let rates = phases.iter().map(|phase| {
                let rate = phase["median"].as_f64().context("a rate is missing")?;
                Ok((text(&phase["phase"]), rate))
            });
            let rates = rates.collect::<anyhow::Result<_>>()?;
            rows.push(Row { name: format!("{}: {of}", text(&map["name"])), rates });
        }
    }
    Ok(rows)
}

/// Markdown table of median ratios, with minimum and maximum in brackets.
fn table(ratios: &[(Row, Vec<Vec<f64>>)]) -> String {
    let mut out = String::from("| map: keys, distribution, threads |");
    let Some((first, _)) = ratios.first() else { return out };
    first.rates.iter().for_each(|(phase, _)| write!(out, " {phase} |").expect("it is a string"));
    out.push_str("\n|---|");
    first.rates.iter().for_each(|_| out.push_str("---|"));
    out.push('\n');
    for (row, ratios) in ratios {
        write!(out, "| {} |", row.name).expect("it is a string");
        for ratios in ratios {
            let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
            let greatest = ratios.iter().copied().fold(0.0, f64::max);
            write!(out, " {:.3} ({least:.2}-{greatest:.2}) |", median(ratios)).expect("it is a string");
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_becomes_rows_and_turns_become_medians() {
        let report = serde_json::json!({"tables": [{"space": "dense", "distribution": "uniform", "threads": 2, "maps": [
            {"name": "Pando", "phases": [{"phase": "lookup", "median": 2.0}, {"phase": "scan", "median": 1.0}]}
        ]}]});
        let rows = rows(&report).expect("a report");
        assert_eq!(rows[0].name, "Pando: dense, uniform, 2");
        let text = table(&[(rows[0].clone(), vec![vec![1.5, 0.5, 1.0], vec![1.0, 2.0]])]);
        assert!(text.contains("| lookup | scan |"), "{text}");
        assert!(text.contains("| 1.000 (0.50-1.50) | 1.500 (1.00-2.00) |"), "{text}");
        assert!(super::rows(&serde_json::json!({})).is_err());
    }
}
