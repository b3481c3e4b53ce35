//! `pando bench`: the fields of the JSON are stable, the text is not.

use crate::common::Place;
use serde_json::Value;

const SMALL: &str = "bench --keys 20k --cache 64KiB --warmup 5k --ops 20k";
const FEW: &str = "bench --keys 20k --cache 64KiB --warmup 2k --ops 4k";
const PROMISED: [&str; 24] = [
    "system",
    "fabric",
    "workload",
    "dist",
    "keys",
    "key_size",
    "value_size",
    "node_size",
    "memory_servers",
    "compute_servers",
    "threads",
    "slots",
    "cache_bytes",
    "ops",
    "failed_ops",
    "verify_errors",
    "seconds",
    "virtual_seconds",
    "throughput_ops",
    "latency_ns",
    "per_op",
    "cache",
    "peak_rss_bytes",
    "config_hash",
];

#[test]
fn the_json_is_one_object_with_the_promised_fields() {
    let place = Place::new();
    let text = place.ok(&format!("{SMALL} --verify --audit --workload write-intensive --json -"));
    let report: Value = serde_json::from_str(&text).expect("nothing but one object is printed");
    for field in PROMISED.iter().chain(&["commit"]) {
        assert!(report.get(field).is_some(), "{field} is missing");
    }
    for (object, fields) in [
        ("latency_ns", &["mean", "p50", "p90", "p99", "p999"][..]),
        (
            "per_op",
            &["reads", "writes", "atomics", "two_sided", "bytes_read", "bytes_written", "bytes_total"],
        ),
        ("cache", &["hit_ratio_leaf", "hit_ratio_inner", "evictions", "admissions", "offloads"]),
    ] {
        for field in fields {
            assert!(report[object][field].is_number(), "{object}.{field}: {}", report[object]);
        }
    }
    assert_eq!((&report["system"], &report["workload"]), (&"dex".into(), &"write-intensive".into()));
    assert_eq!(
        (&report["ops"], &report["verify_errors"], &report["failed_ops"]),
        (&20_000.into(), &0.into(), &0.into())
    );
    assert_eq!((&report["keys"], &report["cache_bytes"]), (&20_000.into(), &65_536.into()));
    assert!(report["per_op"]["writes"].as_f64() > Some(0.0) && report["per_op"]["atomics"] == 0.0);
    assert!(report["virtual_seconds"].is_null() && report["peak_rss_bytes"].as_u64() > Some(1 << 20));
    let order: Vec<usize> =
        PROMISED.iter().map(|field| text.find(&format!("\"{field}\":")).expect("found")).collect();
    assert!(order.is_sorted(), "{text}");
}

#[test]
fn json_goes_to_a_file_too_one_line_for_each_workload() {
    let place = Place::new();
    let printed =
        place.ok(&format!("{SMALL} --workload read-only,ycsb-b --no-verify --no-audit --json out.json"));
    assert_eq!(printed, "");
    let written = std::fs::read_to_string(place.path("out.json")).expect("it was written");
    let reports: Vec<Value> =
        written.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(reports.len(), 2);
    assert_eq!(reports[1]["workload"], "ycsb-b");
    assert!(reports[0]["verify_errors"].is_null() && reports[0]["audit_violations"].is_null());
    assert_ne!(reports[0]["config_hash"], reports[1]["config_hash"]);
}

#[test]
fn people_get_two_tables_and_two_drawings() {
    let place = Place::new();
    let text = place.ok(SMALL);
    assert_eq!(text.matches("latency of one operation in 8").count(), 2, "{text}");
    assert_eq!(
        text.matches("every answer verified, no errors; audit clean; no operation failed").count(),
        2,
        "{text}"
    );
    assert!(text.contains("read-only, zipf:0.99") && text.contains("write-intensive, zipf:0.99"), "{text}");
}

#[test]
fn every_ablation_runs_verified_and_a_pool_in_a_file_stays() {
    let place = Place::new();
    for switches in
        ["--leaf-admission 1", "--cooling fifo", "--eviction random", "--no-swizzle", "--cooling-share 0.3"]
    {
        place.ok(&format!("{SMALL} --workload ycsb-a {switches} --json -"));
    }
    place.ok(&format!("{SMALL} --workload read-only --fabric shm --pool bench.pando/ --json -"));
    assert_eq!(place.index_stats("bench.pando")["entries"], 20_000);
}

/// Answers are verified and the audit accounts for every block, which `ok` demands.
#[test]
fn every_peer_runs_verified_on_the_fabrics_of_this_machine() {
    let place = Place::new();
    let with_threads = "--threads 2 --slots 16 --compute-servers 2 --memory-servers 2";
    for system in ["fg", "fg+", "sherman", "p-sherman", "art", "smart", "p-smart"] {
        for fabric in ["local", "shm"] {
            let arguments = format!("--system {system} --fabric {fabric} {with_threads} --json -");
            let text = place.ok(&format!("{FEW} --workload ycsb-a,ycsb-e {arguments}"));
            for line in text.lines() {
                let report: Value = serde_json::from_str(line).expect("one object in a line");
                assert_eq!(report["system"], system);
                assert_eq!((&report["verify_errors"], &report["audit_violations"]), (&0.into(), &0.into()));
                assert!(report["techniques"].is_array(), "{report}");
            }
        }
    }
    for more in [
        "--system sherman --with version-reads --fabric tcp",
        "--system smart --with exact-nodes,scalable-cache --key-space random64 --key-size 20 --value-size 100",
        "--system p-smart --fabric sim --threads 8",
        "--system sherman --without on-chip,two-level --fabric sim --threads 8",
    ] {
        place.ok(&format!("{FEW} --workload ycsb-a --memory-servers 2 {more} --json -"));
    }
}

/// The fields that must be equal in two runs of the program.
fn without_wall_clock(text: &str) -> Value {
    let mut report: Value = serde_json::from_str(text).expect("nothing but one object is printed");
    let fields = report.as_object_mut().expect("an object");
    for field in ["seconds", "load_seconds", "warmup_seconds", "peak_rss_bytes"] {
        assert!(fields.remove(field).expect(field).is_number(), "{field}");
    }
    report
}

#[test]
fn a_simulated_cluster_repeats_itself_in_another_process() {
    let place = Place::new();
    place.write("slow.toml", "[network]\nread_ns = 6000\n");
    let simulate = |more: &str| {
        let workload = "--workload insert-intensive --threads 8 --interval 500us";
        without_wall_clock(&place.ok(&format!("{SMALL} --fabric sim {workload} {more} --json -")))
    };
    let first = simulate("--seed 7");
    assert_eq!(first, simulate("--seed 7"));
    for field in PROMISED.iter().filter(|field| !["seconds", "peak_rss_bytes"].contains(*field)) {
        assert!(first.get(field).is_some(), "{field} is missing");
    }
    assert_eq!(
        (&first["fabric"], &first["verify_errors"], &first["ops"]),
        (&"sim".into(), &0.into(), &20_000.into())
    );
    let seconds = first["virtual_seconds"].as_f64().expect("virtual time");
    let throughput = first["throughput_ops"].as_f64().expect("a number");
    // Both went through decimal text, hence the tolerance.
    assert!((throughput * seconds - 20_000.0).abs() < 1e-6, "{throughput} a second for {seconds} s");
    assert_eq!(first["series"]["ops"].as_array().map(Vec::len), Some(4));

    let other = simulate("--seed 8");
    assert_ne!((&first["virtual_seconds"], &first["per_op"]), (&other["virtual_seconds"], &other["per_op"]));
    let slow = simulate("--seed 7 --cluster slow.toml --memory-cores 1");
    assert_eq!(slow["memory_cores"], 1);
    assert_ne!(slow["config_hash"], first["config_hash"]);
    assert!(slow["virtual_seconds"].as_f64() > Some(1.5 * seconds), "{slow}");
}
