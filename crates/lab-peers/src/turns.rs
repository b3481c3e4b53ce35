//! Two builds of this program in turns: what a change costs, on a machine whose speed wanders.
//!
//! Each turn is a run of both programs with the same options, a moment apart, so what slows the machine down for longer than a
//! turn slows both. The figure is the median over turns of the rate after, divided by that before.

use anyhow::{Context, bail};
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::report::median;

/// A map under one combination of keys, distribution and threads, and what it was asked to do.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    /// By phase: its name, and the rate.
    rates: Vec<(String, f64)>,
}

/// Runs `before` and `after` with `options`, `turns` times each, and gives a Markdown table of ratios.
///
/// # Errors
/// If one of them cannot be run, fails, or does other work than the other.
pub fn compare(before: &Path, after: &Path, options: &[String], turns: usize) -> anyhow::Result<String> {
    let mut ratios: Vec<(Row, Vec<Vec<f64>>)> = Vec::new();
    for turn in 0..turns {
        eprintln!("turn {} of {turns}", turn + 1);
        // Who comes second may find a warmer machine.
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
    // The table for people comes first.
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

/// The median of the ratios, and in brackets the least and the greatest.
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
