//! Compares Elf with other ways to find the rows that meet conditions on three columns.
//!
//! The columns are discount, quantity and date of shipment of a table like TPC-H's lineitem. All contenders get the same
//! codes and conditions, take turns, and give row ids in any order. Before anything is measured, the ids of
//! each are compared with those that comparing every row finds. [`kiddo`](contenders::KdTree) has no query for a box;
//! it is asked for a cube around it.

mod contenders;

use std::fmt::Write;
use std::time::Instant;

use pando_workload::columns::{self, Condition, Q6};

pub use contenders::{Contender, Points, all};

/// What is compared.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    pub rows: usize,
    /// Rounds in which all take turns; the median counts.
    pub rounds: usize,
}

/// Medians of one contender.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Line {
    pub name: &'static str,
    pub build_seconds: f64,
    /// Microseconds for each condition.
    pub us: Vec<f64>,
}

/// Result of a comparison.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Report {
    pub rows: usize,
    pub rounds: usize,
    /// Name of each set of conditions, and how many rows meet it.
    pub queries: Vec<(&'static str, usize)>,
    pub lines: Vec<Line>,
}

/// Names and conditions on the three columns: an interval each.
pub type Query = (&'static str, [(u32, u32); 3]);

/// The conditions of Q6, and others around it.
const QUERIES: [Query; 5] = [
    ("one day", [(6, 8), (1, 23), (800, 800)]),
    ("Q6", [(Q6[0].1, Q6[0].2), (Q6[1].1, Q6[1].2), (Q6[2].1, Q6[2].2)]),
    ("a year", [(0, u32::MAX), (0, u32::MAX), (Q6[2].1, Q6[2].2)]),
    ("one discount", [(6, 6), (0, u32::MAX), (0, u32::MAX)]),
    ("half", [(0, u32::MAX), (1, 25), (0, u32::MAX)]),
];

/// Codes of discount, quantity and date of shipment.
pub fn points(rows: usize) -> Points {
    let mut columns = columns::lineitem(rows);
    let used: [Condition; 3] = Q6;
    used.map(|(column, ..)| std::mem::take(&mut columns[column]))
}

/// The query within the domains of the columns.
fn within(query: &Query, points: &Points) -> [(u32, u32); 3] {
    std::array::from_fn(|column| {
        let greatest = points[column].iter().copied().max().unwrap_or(0);
        let (low, high) = query.1[column];
        (low, high.min(greatest))
    })
}

/// Ids of the rows that meet the conditions, by comparing each row.
pub fn brute_force(points: &Points, query: &[(u32, u32); 3]) -> Vec<u32> {
    let meets = |row: usize| {
        query.iter().zip(points).all(|(&(low, high), column)| (low..=high).contains(&column[row]))
    };
    (0..points[0].len()).filter(|&row| meets(row)).map(|row| row as u32).collect()
}

/// Builds all contenders, checks their answers, and measures them in turns.
///
/// # Errors
/// A table that is empty or too large, or a contender with a wrong answer.
pub fn compare(comparison: &Comparison, tell: impl Fn(&str)) -> anyhow::Result<Report> {
    let &Comparison { rows, rounds } = comparison;
    anyhow::ensure!(
        (1..=i32::MAX as usize).contains(&rows),
        "the table must have 1 to {} rows, not {rows}",
        i32::MAX
    );
    anyhow::ensure!(rounds > 0, "there must be at least one round");
    let points = points(rows);
    let queries = QUERIES.map(|query| within(&query, &points));
    let expected = queries.map(|query| brute_force(&points, &query));
    let mut contenders = Vec::new();
    for (name, build) in all() {
        tell(&format!("building {name}"));
        let start = Instant::now();
        let contender = build(&points)?;
        contenders.push((name, start.elapsed().as_secs_f64(), contender));
    }
    let mut found = Vec::with_capacity(rows + 128);
    for (name, _, contender) in &contenders {
        for ((query, expected), (title, _)) in queries.iter().zip(&expected).zip(QUERIES) {
            found.clear();
            contender.ids(query, &mut found)?;
            found.sort_unstable();
            anyhow::ensure!(
                found == *expected,
                "{name} finds other rows than a comparison of all for {title:?}"
            );
        }
    }
    tell("all contenders find the same rows");
    let mut times = vec![vec![Vec::new(); queries.len()]; contenders.len()];
    for _ in 0..rounds {
        for (number, query) in queries.iter().enumerate() {
            for ((_, _, contender), times) in contenders.iter().zip(&mut times) {
                found.clear();
                let start = Instant::now();
                contender.ids(query, &mut found)?;
                times[number].push(start.elapsed().as_secs_f64() * 1e6);
                std::hint::black_box(&found);
            }
        }
    }
    let lines = contenders.iter().zip(times).map(|((name, build_seconds, _), times)| Line {
        name,
        build_seconds: *build_seconds,
        us: times.into_iter().map(median).collect(),
    });
    let queries = QUERIES.iter().zip(&expected).map(|(query, rows)| (query.0, rows.len())).collect();
    Ok(Report { rows, rounds, queries, lines: lines.collect() })
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Report {
    /// A table: a line for each contender, a column for each set of conditions.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "Row ids of {} rows that meet conditions on three columns; microseconds, medians of {} rounds in turns. All answers were \
             compared.\n\n| | build, s |",
            self.rows, self.rounds
        );
        for (name, rows) in &self.queries {
            let _ = write!(text, " {name}: {rows} rows |");
        }
        let _ = writeln!(text, "\n|---|---:|{}", "---:|".repeat(self.queries.len()));
        for line in &self.lines {
            let _ = write!(text, "| {} | {:.2} |", line.name, line.build_seconds);
            for us in &line.us {
                let _ = write!(text, " {us:.1} |");
            }
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contenders_find_the_same_rows() {
        for rows in [1, 2, 1_000, 30_000] {
            let report = compare(&Comparison { rows, rounds: 1 }, |_| ()).expect("right answers");
            assert_eq!((report.lines.len(), report.queries.len()), (all().len(), QUERIES.len()));
            assert!(report.markdown().lines().count() == all().len() + 4, "{}", report.markdown());
        }
    }

    #[test]
    fn an_impossible_comparison_is_refused() {
        for (rows, rounds) in [(0, 1), (1 << 33, 1), (10, 0)] {
            assert!(compare(&Comparison { rows, rounds }, |_| ()).is_err());
        }
    }
}
