//! A report as readable text: a table and a histogram of the latencies.
//!
//! The bins of the histogram double from line to line, since local hits, misses and waits lie decades apart.
//! Failures are in capitals.

use std::fmt::Write;
use std::time::Duration;

use super::BenchReport;
use super::latency::Latency;
use crate::{process, units};

/// Characters of the longest bar.
const BAR: usize = 48;
/// Characters of the table's first column.
const LABEL: usize = 15;
/// Quantile at which the bins end; slower operations share one line.
const TAIL: f64 = 0.999;

/// Renders the report as text of several lines, the last one terminated.
pub fn render(report: &BenchReport) -> String {
    let mut text = String::new();
    heading(report, &mut text);
    results(report, &mut text);
    text.push('\n');
    histogram(report, &mut text);
    complaints(report, &mut text);
    text
}

fn row(text: &mut String, label: &str, content: &str) {
    writeln!(text, "  {label:LABEL$} {content}").expect("writing to a string does not fail");
}

fn heading(report: &BenchReport, text: &mut String) {
    let title =
        format!("{}, {}, {} on the {} fabric", report.workload, report.dist, report.system, report.fabric);
    writeln!(text, "{title}\n{}", "-".repeat(title.chars().count()))
        .expect("writing to a string does not fail");
    let data = format!(
        "{} of {} B with values of {} B, nodes of {} ({}, {:.0}% full when loaded)",
        units::count(report.keys),
        report.key_size,
        report.value_size,
        units::size(report.node_size as u64),
        report.layout,
        report.fill * 100.0
    );
    row(text, "keys", &data);
    if let Some(techniques) = &report.techniques {
        row(
            text,
            "techniques",
            &if techniques.is_empty() { "none".to_owned() } else { techniques.join(", ") },
        );
    }
    let machines = format!(
        "{} memory, {} compute with {} thread{} x {} in flight and {} of cache each",
        report.memory_servers,
        report.compute_servers,
        report.threads,
        if report.threads == 1 { "" } else { "s" },
        report.slots,
        units::size(report.cache_bytes)
    );
    row(text, "servers", &machines);
    let seconds = |seconds: f64| units::duration(Duration::from_secs_f64(seconds));
    let phases = format!(
        "load {}, warm-up {} ({} operations)",
        seconds(report.load_seconds),
        seconds(report.warmup_seconds),
        units::count(report.warmup_ops)
    );
    row(text, "before", &phases);
}

fn results(report: &BenchReport, text: &mut String) {
    let here = units::duration(Duration::from_secs_f64(report.seconds));
    let time = match report.virtual_seconds {
        None => here,
        Some(seconds) => format!("{} of virtual time ({here} here)", units::nanos((seconds * 1e9) as u64)),
    };
    row(text, "measured", &format!("{} operations in {time}: {}", units::count(report.ops), by_kind(report)));
    row(text, "throughput", &format!("{} operations/s", units::count(report.throughput_ops as u64)));
    let ns = &report.latency_ns;
    let latency = format!(
        "mean {}, median {}, 90% {}, 99% {}, 99.9% {}",
        units::nanos(ns.mean as u64),
        units::nanos(ns.p50),
        units::nanos(ns.p90),
        units::nanos(ns.p99),
        units::nanos(ns.p999)
    );
    row(text, "latency", &latency);
    let per_op = &report.per_op;
    let verbs = format!(
        "{:.4} READs, {:.4} WRITEs, {:.4} atomics, {:.4} two-sided",
        per_op.reads, per_op.writes, per_op.atomics, per_op.two_sided
    );
    row(text, "per operation", &verbs);
    let bytes = format!(
        "{:.1} B: {:.1} read, {:.1} written",
        per_op.bytes_total, per_op.bytes_read, per_op.bytes_written
    );
    row(text, "", &bytes);
    let percent = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{:.2}%", ratio * 100.0));
    let cache = format!(
        "hits {} of leaves, {} of inner nodes; {} admitted, {} evicted, {} written back",
        percent(report.cache.hit_ratio_leaf),
        percent(report.cache.hit_ratio_inner),
        units::count(report.cache.admissions),
        units::count(report.cache.evictions),
        units::count(report.cache.write_backs)
    );
    row(text, "cache", &cache);
    resources(report, text);
    loads(report, text);
    tree(report, text);
    if let Some(peak) = report.peak_rss_bytes {
        row(text, "memory", &format!("{} resident at most", units::size(peak)));
    }
    row(text, "checks", &checks(report));
    row(
        text,
        "configuration",
        &format!("{}, commit {}", report.config_hash, process::short_commit(report.commit)),
    );
}

fn resources(report: &BenchReport, text: &mut String) {
    let Some(of) = report.resources else { return };
    let percent = |share: f64| format!("{:.0}%", share * 100.0);
    let busy = format!(
        "by {}; busy: NIC's messages {}, its wire {}, atomics {}, memory server's cores {}; threads compute {}, wait for each other {}",
        of.limit,
        percent(of.shares.messages),
        percent(of.shares.bytes),
        percent(of.shares.atomics.max(of.shares.blocked)),
        percent(of.shares.cores),
        percent(of.shares.compute),
        percent(of.shares.contention)
    );
    row(text, "limited", &busy);
}

fn loads(report: &BenchReport, text: &mut String) {
    const LISTED: usize = 16;
    let Some(loads) = report.loads.as_ref().filter(|loads| loads.len() > 1) else { return };
    let mut shares: Vec<String> =
        loads.iter().take(LISTED).map(|load| format!("{:.1}%", load.share * 100.0)).collect();
    if loads.len() > LISTED {
        shares.push("...".to_owned());
    }
    let busiest = super::report::busiest_over_mean(loads);
    row(
        text,
        "load",
        &format!("{} by compute server, the busiest {busiest:.2} x the mean", shares.join(" ")),
    );
    if let Some(balance) = &report.balance {
        let moved = format!(
            "{} boundaries moved, and {} in the warm-up before; looked every {}",
            units::count(balance.moves),
            units::count(balance.warmup_moves),
            units::nanos(balance.every_ns)
        );
        row(text, "balancer", &moved);
    }
}

fn tree(report: &BenchReport, text: &mut String) {
    if let Some(tree) = &report.tree {
        let shape = format!(
            "{} entries in {} leaves ({:.0}% full) under {} inner nodes, {} levels",
            units::count(tree.entries),
            units::count(tree.leaves),
            tree.leaf_fullness * 100.0,
            units::count(tree.inner_nodes),
            tree.height
        );
        row(text, "tree", &shape);
    }
    let smo = &report.smo;
    if smo.splits + smo.merges + smo.shared_changes + smo.refreshes > 0 {
        let changes = format!(
            "{} splits, {} merges, {} changes of shared nodes, {} refreshes",
            units::count(smo.splits),
            units::count(smo.merges),
            units::count(smo.shared_changes),
            units::count(smo.refreshes)
        );
        row(text, "structure", &changes);
    }
}

fn by_kind(report: &BenchReport) -> String {
    let operations = &report.operations;
    let kinds = [
        (operations.reads, "lookups"),
        (operations.updates, "updates"),
        (operations.inserts, "inserts"),
        (operations.scans, "scans"),
        (operations.read_modify_writes, "read-modify-writes"),
    ];
    let mut parts: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, kind)| format!("{:.0}% {kind}", *count as f64 * 100.0 / report.ops.max(1) as f64))
        .collect();
    if operations.inserts > 0 {
        parts.push(format!("{} new keys", units::count(operations.new_keys)));
    }
    if operations.scans > 0 {
        parts.push(format!("{} records scanned", units::count(operations.scanned)));
    }
    parts.join(", ")
}

fn checks(report: &BenchReport) -> String {
    let verified = match report.verify_errors {
        None => "answers not verified".to_owned(),
        Some(0) => "every answer verified, no errors".to_owned(),
        Some(errors) => format!("{} WRONG ANSWERS", units::count(errors)),
    };
    let audited = match report.audit_violations {
        None => "not audited".to_owned(),
        Some(0) => "audit clean".to_owned(),
        Some(violations) => format!("{} VIOLATIONS found by the audit", units::count(violations)),
    };
    let failed = match report.failed_ops {
        0 => "no operation failed".to_owned(),
        failed => format!("{} OPERATIONS FAILED", units::count(failed)),
    };
    format!("{verified}; {audited}; {failed}")
}

fn complaints(report: &BenchReport, text: &mut String) {
    if !report.complaints.is_empty() {
        text.push_str("\nwhat went wrong first:\n");
        report.complaints.iter().for_each(|complaint| row(text, "-", complaint));
    }
}

/// Histogram with bins that double from one line to the next, and one line for the slowest thousandth.
fn histogram(report: &BenchReport, text: &mut String) {
    let latency: &Latency = &report.latency;
    if latency.is_empty() {
        return;
    }
    let timed = match report.timed_one_in {
        1 => "every operation".to_owned(),
        n => format!("one operation in {n}"),
    };
    writeln!(text, "  latency of {timed}").expect("writing to a string does not fail");
    let first = latency.min().max(1).ilog2();
    let last = latency.value_at_quantile(TAIL).max(1).ilog2();
    let bins = (first..=last).map(|power| {
        let range = format!("{:>9} to {:>9}", units::nanos(1 << power), units::nanos(2 << power));
        (range, latency.count_between(1 << power, (2 << power) - 1))
    });
    let mut bins: Vec<(String, u64)> = bins.collect();
    let slower = latency.count_between(2 << last, u64::MAX);
    if slower > 0 {
        bins.push((format!("  more, up to {:>9}", units::nanos(latency.max())), slower));
    }
    let longest = bins.iter().map(|bin| bin.1).max().unwrap_or(1).max(1);
    for (range, count) in bins {
        let share = count as f64 * 100.0 / latency.len() as f64;
        let line = format!("  {range} {share:7.3}% {}", bar(count, longest));
        writeln!(text, "{}", line.trim_end()).expect("writing to a string does not fail");
    }
}

/// A bar with a resolution of an eighth of a character; a count above 0 shows at least one eighth.
fn bar(count: u64, longest: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 {
        return String::new();
    }
    let eighths = (u128::from(count) * 8 * BAR as u128 / u128::from(longest)).max(1) as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{sample, simulated_sample};

    #[test]
    fn the_text_says_what_the_report_says() {
        let text = render(&sample());
        for part in [
            "read-only, zipf:0.99, dex on the local fabric",
            "0.3300 READs",
            "hits 67.00% of leaves",
            "500 operations/s",
            "70.0% 10.0% 10.0% 10.0% by compute server, the busiest 2.80 x the mean",
            "audit clean",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
        assert!(text.lines().all(|line| !line.ends_with(' ')), "no line ends in blanks:\n{text}");
    }

    #[test]
    fn the_text_of_a_simulation_says_which_time_is_meant() {
        let text = render(&simulated_sample());
        for part in [
            "on the sim fabric",
            "in 2.00 s of virtual time (30.0 s here)",
            "500 operations/s",
            "of every operation",
        ] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn bars_are_in_proportion_and_nothing_vanishes() {
        assert_eq!(bar(100, 100).chars().count(), BAR);
        assert_eq!(bar(50, 100).chars().count(), BAR / 2);
        assert_eq!(bar(1, 1_000_000_000), "▏");
        assert_eq!(bar(0, 100), "");
    }

    #[test]
    fn wrong_answers_are_shouted() {
        let mut report = sample();
        report.verify_errors = Some(3);
        report.complaints.push("key number 7 is missing".to_owned());
        let text = render(&report);
        assert!(text.contains("3 WRONG ANSWERS") && text.contains("key number 7 is missing"), "{text}");
    }
}
