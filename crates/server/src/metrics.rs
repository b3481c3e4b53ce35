//! Counters of a daemon as metrics: names, labels, and their texts in the formats of Prometheus and
//! OpenMetrics.
//!
//! Names begin with `pando_`; those of counters end with `_total`. Sizes are in bytes, times in seconds. A
//! label separates values that can be added (`kind`, `memory_server`), so that the sum of a metric is
//! meaningful.

use std::fmt::{self, Write};
use std::sync::Mutex;

use crate::counts::OperationCounts;
use crate::histogram::Latencies;
use pando::{
    ComputeServerStats, Copies, LogStats, MemberCondition, ServerCounts, ServerUsage, Stats, VerbCounts,
};
use pando_fabric_net::serve::ConnectionCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Labels of a sample, in order.
type Labels = Vec<(&'static str, String)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Only grows.
    Counter,
    Gauge,
}

/// A metric and its samples.
#[derive(Clone, Debug)]
struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, u64)>,
}

/// All metrics of a daemon at one moment.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    families: Vec<Family>,
    /// Latencies of operations, from the arrival of the complete request to the complete answer.
    latencies: Option<Vec<(Labels, Latencies)>>,
}

impl Metrics {
    fn add(&mut self, kind: Kind, name: &'static str, help: &'static str, samples: Vec<(Labels, u64)>) {
        self.families.push(Family { name, help, kind, samples });
    }

    fn counter(&mut self, name: &'static str, help: &'static str, samples: Vec<(Labels, u64)>) {
        self.add(Kind::Counter, name, help, samples);
    }

    fn gauge(&mut self, name: &'static str, help: &'static str, samples: Vec<(Labels, u64)>) {
        self.add(Kind::Gauge, name, help, samples);
    }

    /// The metrics in the text format of Prometheus, version 0.0.4.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.write(&mut text).expect("writing to a string does not fail");
        text
    }

    /// The metrics in the text format of OpenMetrics, version 1.0.0.
    pub fn open_metrics(&self) -> String {
        let mut registry = Registry::with_prefix("pando");
        registry.register_collector(Box::new(Once(Mutex::new(self.clone()))));
        let mut text = String::new();
        encode(&mut text, &registry).expect("writing to a string does not fail");
        text
    }

    fn write(&self, text: &mut String) -> fmt::Result {
        for Family { name, help, kind, samples } in &self.families {
            let (suffix, kind) = match kind {
                Kind::Counter => ("_total", "counter"),
                Kind::Gauge => ("", "gauge"),
            };
            writeln!(text, "# HELP pando_{name}{suffix} {help}\n# TYPE pando_{name}{suffix} {kind}")?;
            for (labels, value) in samples {
                writeln!(text, "pando_{name}{suffix}{} {value}", Braced(labels, None))?;
            }
        }
        let Some(latencies) = &self.latencies else { return Ok(()) };
        writeln!(text, "# HELP pando_{LATENCIES} {LATENCIES_HELP}\n# TYPE pando_{LATENCIES} histogram")?;
        for (labels, latencies) in latencies {
            for (ns, total) in latencies.cumulative() {
                let within = (ns as f64 / 1e9).to_string();
                writeln!(text, "pando_{LATENCIES}_bucket{} {total}", Braced(labels, Some(&within)))?;
            }
            let (count, sum) = (latencies.count(), latencies.sum().as_secs_f64());
            writeln!(text, "pando_{LATENCIES}_bucket{} {count}", Braced(labels, Some("+Inf")))?;
            writeln!(text, "pando_{LATENCIES}_sum{} {sum}", Braced(labels, None))?;
            writeln!(text, "pando_{LATENCIES}_count{} {count}", Braced(labels, None))?;
        }
        Ok(())
    }
}

const VIEW_HELP: &str = "Number of the newest view of the memory servers that this process knows";
const LATENCIES: &str = "port_operation_duration_seconds";
const LATENCIES_HELP: &str = "How long operations took, from when they were whole until their answers were";

/// Labels of a sample in braces; for a bucket also its upper bound `le`.
struct Braced<'l>(&'l Labels, Option<&'l str>);

impl fmt::Display for Braced<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(labels, within) = self;
        let labels = labels.iter().map(|(label, value)| (*label, value.as_str()));
        let mut before = '{';
        for (label, value) in labels.chain(within.map(|within| ("le", within))) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            write!(f, "{before}{label}=\"{value}\"")?;
            before = ',';
        }
        if before == ',' { f.write_char('}') } else { Ok(()) }
    }
}

/// A collector for metrics that are encoded once.
#[derive(Debug)]
struct Once(Mutex<Metrics>);

impl Collector for Once {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Metrics { families, latencies } =
            std::mem::take(&mut *self.0.lock().expect("nobody panics with it"));
        for Family { name, help, kind, samples } in families {
            let metric_type = match kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut metric = encoder.encode_descriptor(name, help, None, metric_type)?;
            match &samples[..] {
                [(labels, value)] if labels.is_empty() => encode_sample(kind, *value, metric)?,
                samples => {
                    for (labels, value) in samples {
                        encode_sample(kind, *value, metric.encode_family(labels)?)?;
                    }
                }
            }
        }
        let Some(latencies) = latencies else { return Ok(()) };
        let mut metric = encoder.encode_descriptor(LATENCIES, LATENCIES_HELP, None, MetricType::Histogram)?;
        for (labels, latencies) in latencies {
            let (mut buckets, mut before) = (Vec::new(), 0);
            for (ns, total) in latencies.cumulative() {
                buckets.push((ns as f64 / 1e9, total - before));
                before = total;
            }
            buckets.push((f64::MAX, 0));
            let (sum, count) = (latencies.sum().as_secs_f64(), latencies.count());
            metric.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

fn encode_sample(kind: Kind, value: u64, encoder: MetricEncoder<'_>) -> fmt::Result {
    match kind {
        Kind::Counter => ConstCounter::new(value).encode(encoder),
        Kind::Gauge => ConstGauge::new(value as f64).encode(encoder),
    }
}

fn one(value: u64) -> Vec<(Labels, u64)> {
    vec![(Vec::new(), value)]
}

/// Samples with one label.
fn by<const N: usize>(label: &'static str, samples: [(&str, u64); N]) -> Vec<(Labels, u64)> {
    samples.into_iter().map(|(value, count)| (vec![(label, value.to_owned())], count)).collect()
}

/// Metrics of a memory server of `size` bytes, and of what it does for those that have copies of each other's memory.
pub fn memory_server_metrics(size: u64, counts: &ServerCounts, member: Option<&MemberCondition>) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.gauge("memory_bytes", "Bytes of memory that this server offers", one(size));
    let verbs = [
        ("read", counts.reads),
        ("write", counts.writes),
        ("atomic", counts.atomics),
        ("two_sided", counts.calls),
    ];
    metrics.counter("verbs_served", "Verbs executed for clients", by("kind", verbs));
    connection_metrics(&mut metrics, &counts.of_connections());
    member.iter().for_each(|member| member_metrics(&mut metrics, member));
    metrics
}

fn member_metrics(metrics: &mut Metrics, member: &MemberCondition) {
    metrics.gauge("view", VIEW_HELP, one(member.epoch));
    metrics.gauge(
        "in_view",
        "1 if this memory server is in the view, 0 if the others go on without it",
        one(member.is_in.into()),
    );
    let has_lease = member.lease_left_ns > 0;
    metrics.gauge(
        "has_lease",
        "1 while this memory server has a lease; without one it serves nothing",
        one(has_lease.into()),
    );
    let copies =
        [("serves", member.serves.len()), ("backs_up", member.backs_up.len()), ("fills", member.fills.len())];
    metrics.gauge(
        "copies",
        "Copies of parts of the pool that this memory server serves, has as backups, or fills",
        by("role", copies.map(|(role, count)| (role, count as u64))),
    );
    let left = member.fills.iter().map(|fill| fill.bytes - fill.whole).sum();
    metrics.gauge("fill_left_bytes", "Bytes of copies that are still to be filled", one(left));
}

fn connection_metrics(metrics: &mut Metrics, counts: &ConnectionCounts) {
    let bytes = [("in", counts.bytes_in), ("out", counts.bytes_out)];
    metrics.counter("network_bytes", "Bytes that came in and went out", by("direction", bytes));
    metrics.gauge("connections", "Connections that are open", one(counts.connections));
    metrics.gauge("clients", "Connections that are open and have said who they are", one(counts.clients));
    metrics.counter("connections_accepted", "Connections that were accepted", one(counts.accepted));
    metrics.counter(
        "connections_refused",
        "Connections that did not know the secret, spoke another version, or came when there were too many",
        one(counts.refused),
    );
    metrics.counter(
        "connections_expelled",
        "Connections that were closed because of what they sent, or did not send in time",
        one(counts.expelled),
    );
}

/// Metrics of a process with compute servers and an operation port; a standby has no `port` yet.
pub fn compute_server_metrics(stats: &Stats, port: Option<&OperationCounts>) -> Metrics {
    let mut metrics = Metrics::default();
    let stands_by = u64::from(port.is_none());
    metrics.gauge("standby", "1 while this process waits for another one's partitions", one(stands_by));
    port.iter().for_each(|port| port_metrics(&mut metrics, port));
    verb_metrics(&mut metrics, &[("operations", stats.verbs), ("management", stats.management)]);
    let servers: Vec<(&str, &ComputeServerStats)> = stats
        .indexes
        .iter()
        .flat_map(|index| index.compute_servers.iter().map(|server| (index.name.as_str(), server)))
        .collect();
    let each = |value: fn(&ComputeServerStats) -> u64| -> Vec<(Labels, u64)> {
        servers.iter().map(|&(index, server)| (labels_of(index, server), value(server))).collect()
    };
    metrics.counter("operations", "Operations performed", each(|server| server.operations));
    metrics.gauge("cache_bytes", "Bytes of caches", each(|server| server.cache_bytes));
    metrics.gauge("cache_frames", "Nodes that caches hold at most", each(|server| server.frames as u64));
    cache_metrics(&mut metrics, &servers);
    smo_metrics(&mut metrics, &servers);
    log_metrics(&mut metrics, stats);
    pool_metrics(&mut metrics, &stats.pool);
    stats.copies.iter().for_each(|copies| copies_metrics(&mut metrics, copies));
    metrics
}

fn copies_metrics(metrics: &mut Metrics, copies: &Copies) {
    metrics.gauge("view", VIEW_HELP, one(copies.epoch));
    let out = copies.servers.iter().filter(|server| !server.is_in).count();
    metrics.gauge("memory_servers_out", "Memory servers that are not in the view", one(out as u64));
    metrics.gauge(
        "lacking_copies",
        "Parts of the pool that have fewer copies than they should have",
        one(copies.lacking().len() as u64),
    );
}

fn log_metrics(metrics: &mut Metrics, stats: &Stats) {
    let logs = || stats.indexes.iter().filter_map(|index| Some((index.name.as_str(), index.log?)));
    let each = |value: fn(&LogStats) -> u64| -> Vec<(Labels, u64)> {
        logs().map(|(index, log)| (vec![("index", index.to_owned())], value(&log))).collect()
    };
    metrics.counter("log_records", "Records of logs since they were made", each(|log| log.records));
    metrics.gauge("log_bytes", "Bytes of logs", each(|log| log.bytes));
    metrics.gauge(
        "log_used_bytes",
        "Bytes of logs that an heir would have to redo, until the next checkpoint",
        each(|log| log.used_bytes),
    );
}

fn port_metrics(metrics: &mut Metrics, port: &OperationCounts) {
    let mut ended = Vec::new();
    let mut latencies = Vec::new();
    for kind in &port.kinds {
        let of = |result: &str| vec![("kind", kind.name.to_owned()), ("result", result.to_owned())];
        ended.extend([
            (of("done"), kind.done),
            (of("not_owned"), kind.not_owned),
            (of("failed"), kind.failed),
        ]);
        latencies.push((vec![("kind", kind.name.to_owned())], kind.latencies.clone()));
    }
    metrics.counter("port_operations", "Operations that clients asked for at the operation port", ended);
    metrics.latencies = Some(latencies);
    connection_metrics(metrics, &port.connections);
}

fn labels_of(index: &str, server: &ComputeServerStats) -> Labels {
    vec![("index", index.to_owned()), ("compute_server", server.number.to_string())]
}

fn verb_metrics(metrics: &mut Metrics, verbs: &[(&'static str, VerbCounts)]) {
    let (mut counts, mut bytes) = (Vec::new(), Vec::new());
    for &(purpose, verbs) in verbs {
        let labels = |kind: &str| vec![("purpose", purpose.to_owned()), ("kind", kind.to_owned())];
        counts.extend([
            (labels("read"), verbs.reads),
            (labels("write"), verbs.writes),
            (labels("atomic"), verbs.atomics),
            (labels("two_sided"), verbs.two_sided),
        ]);
        bytes.extend([
            (labels("read"), verbs.bytes_read),
            (labels("write"), verbs.bytes_written),
            (labels("two_sided"), verbs.bytes_two_sided),
        ]);
    }
    metrics.counter("verbs", "Verbs sent to memory servers", counts);
    metrics.counter("verb_bytes", "Bytes that these verbs moved", bytes);
}

fn cache_metrics(metrics: &mut Metrics, servers: &[(&str, &ComputeServerStats)]) {
    let mut accesses = Vec::new();
    let mut misses = Vec::new();
    let mut events = Vec::new();
    for &(index, server) in servers {
        let cache = server.cache;
        let with = |label: &'static str, value: &str| {
            let mut labels = labels_of(index, server);
            labels.push((label, value.to_owned()));
            labels
        };
        accesses.extend([
            (with("node", "leaf"), cache.leaf_accesses),
            (with("node", "inner"), cache.inner_accesses),
        ]);
        misses
            .extend([(with("node", "leaf"), cache.leaf_misses), (with("node", "inner"), cache.inner_misses)]);
        events.extend(
            [
                ("admission", cache.admissions),
                ("eviction", cache.evictions),
                ("cooling", cache.coolings),
                ("reheat", cache.reheats),
                ("write_back", cache.write_backs),
                ("restart", cache.restarts),
                ("offload", cache.offloads),
                ("offload_refused", cache.offloads_refused),
            ]
            .map(|(event, count)| (with("event", event), count)),
        );
    }
    metrics.counter("cache_accesses", "Nodes that operations went through", accesses);
    metrics.counter("cache_misses", "Nodes that were read from memory servers", misses);
    metrics.counter("cache_events", "What caches did", events);
}

fn smo_metrics(metrics: &mut Metrics, servers: &[(&str, &ComputeServerStats)]) {
    let samples = servers.iter().flat_map(|&(index, server)| {
        let smo = server.smo;
        let kinds = [
            ("split", smo.splits),
            ("merge", smo.merges),
            ("root_change", smo.root_changes),
            ("shared_change", smo.shared_changes),
            ("refresh", smo.refreshes),
        ];
        kinds.map(|(kind, count)| {
            let mut labels = labels_of(index, server);
            labels.push(("kind", kind.to_owned()));
            (labels, count)
        })
    });
    metrics.counter("structure_changes", "Structure modification operations", samples.collect());
}

fn pool_metrics(metrics: &mut Metrics, pool: &[ServerUsage]) {
    let each = |value: fn(&ServerUsage) -> u64| -> Vec<(Labels, u64)> {
        pool.iter()
            .map(|server| (vec![("memory_server", server.server.0.to_string())], value(server)))
            .collect()
    };
    metrics.gauge("pool_bytes", "Bytes of the region of a memory server", each(|server| server.bytes_total));
    metrics.gauge(
        "pool_allocated_bytes",
        "Bytes of allocated blocks; chunks that other processes lease count whole",
        each(|server| server.bytes_allocated),
    );
    metrics.gauge(
        "pool_blocks",
        "Allocated blocks, without those of other processes",
        each(|s| s.blocks_allocated),
    );
    metrics.gauge("pool_chunks", "Chunks of a memory server", each(|server| server.chunks_total));
    metrics.gauge("pool_free_chunks", "Chunks that nobody has", each(|server| server.chunks_free));
}

#[cfg(test)]
mod tests {
    use pando::{Cluster, Config, Fill, IndexOptions, VolumeId};

    use super::*;
    use crate::operations::{OperationConfig, OperationServer};

    #[test]
    fn a_page_has_names_help_labels_and_values() {
        let metrics = memory_server_metrics(4096, &ServerCounts::default(), None);
        let (plain, open) = (
            [
                "# HELP pando_verbs_served_total Verbs executed for clients",
                "# TYPE pando_verbs_served_total counter",
                "pando_verbs_served_total{kind=\"read\"} 0",
                "pando_memory_bytes 4096",
            ],
            [
                "# HELP pando_verbs_served Verbs executed for clients",
                "# TYPE pando_verbs_served counter",
                "pando_memory_bytes 4096.0",
                "# EOF",
            ],
        );
        for (text, lines) in [(metrics.text(), plain), (metrics.open_metrics(), open)] {
            for line in lines {
                assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
            }
        }
    }

    #[test]
    fn a_memory_server_with_copies_tells_what_it_does_for_the_others() {
        let fills = vec![Fill { volume: VolumeId(2), whole: 1000, bytes: 4096 }];
        let mut member = MemberCondition::default();
        (member.epoch, member.is_in, member.fills) = (7, true, fills);
        let text = memory_server_metrics(4096, &ServerCounts::default(), Some(&member)).text();
        for line in [
            "pando_view 7",
            "pando_in_view 1",
            "pando_has_lease 0",
            "pando_copies{role=\"serves\"} 0",
            "pando_copies{role=\"fills\"} 1",
            "pando_fill_left_bytes 3096",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    /// A check similar to `promtool check metrics`.
    #[test]
    fn every_sample_of_the_plain_text_has_help_and_a_type_before_it() {
        let cluster = Cluster::open(Config::embedded()).expect("opens");
        let index = cluster.create_index("x", &IndexOptions::integers()).expect("new");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = OperationServer::start(listener, index, OperationConfig::default()).expect("starts");
        let text = compute_server_metrics(&cluster.stats().expect("opened"), Some(&port.counts())).text();
        let mut known = std::collections::HashMap::new();
        let (mut help, mut samples) = (None, 0);
        for line in text.lines() {
            let words: Vec<&str> = line.splitn(4, ' ').collect();
            match words[..] {
                ["#", "HELP", name, of] if !of.is_empty() => help = Some(name),
                ["#", "TYPE", name, kind] => {
                    assert_eq!(help.take(), Some(name), "{line}");
                    assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                    assert!(known.insert(name, kind).is_none(), "{line} twice");
                }
                _ => {
                    let name = line.split(['{', ' ']).next().expect("a name");
                    let of =
                        |suffix| known.get(name.strip_suffix(suffix)?).filter(|kind| **kind == "histogram");
                    let is_known = known.contains_key(name)
                        || ["_bucket", "_sum", "_count"].into_iter().any(|s| of(s).is_some());
                    assert!(is_known, "{line}");
                    samples += 1;
                }
            }
        }
        assert!(samples > 50, "{text}");
    }

    #[test]
    fn a_compute_server_tells_what_it_did() {
        let cluster = Cluster::open(Config::embedded().compute_servers(2)).expect("opens");
        let index = cluster.create_index("a \"quoted\" name", &IndexOptions::integers()).expect("new");
        let session = index.integers().expect("of integers");
        session.put(1, 2).expect("room");
        drop(session);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let port = OperationServer::start(listener, index, OperationConfig::default()).expect("starts");
        let text = compute_server_metrics(&cluster.stats().expect("opened"), Some(&port.counts())).text();
        assert!(text.contains("pando_port_operations_total{kind=\"get\",result=\"done\"} 0\n"), "{text}");
        assert!(text.contains("pando_port_operation_duration_seconds_count{kind=\"get\"} 0\n"), "{text}");
        let line = "pando_operations_total{index=\"a \\\"quoted\\\" name\",compute_server=\"0\"} 1";
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        assert!(text.contains("pando_pool_bytes{memory_server=\"0\"} 1073741824\n"), "{text}");
    }
}
