//! Helpers of the integration tests.
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;

use pando::{Cluster, Config, Create, Index, IndexOptions, Ownership};

/// Layouts under test: constant sizes and any length; nodes with a fanout limit of 4, and full ones.
pub fn layouts() -> [(&'static str, IndexOptions); 4] {
    [
        ("fixed", IndexOptions::integers()),
        ("fixed, tiny", IndexOptions::integers().node_size(256).fanout_limit(4)),
        ("bytes", IndexOptions::bytes()),
        ("bytes, tiny", IndexOptions::bytes().node_size(512).fanout_limit(4)),
    ]
}

/// Clusters under test: both local fabrics, one and several memory and compute servers, large and tiny
/// caches.
pub fn configs(directory: &Path) -> Vec<(&'static str, Config)> {
    vec![
        ("embedded", Config::embedded().memory(64 << 20)),
        (
            "embedded, divided",
            Config::embedded().memory_servers(3).memory(32 << 20).compute_servers(3).cache(32 << 10),
        ),
        ("file", Config::at(directory.join("pool")).memory(64 << 20).create(Create::Replace)),
        (
            "directory, divided",
            Config::at(directory.join("pools/"))
                .memory_servers(2)
                .memory(32 << 20)
                .create(Create::Replace)
                .compute_servers(2)
                .cache(32 << 10),
        ),
    ]
}

/// Runs `test` on each cluster with each layout. Afterwards the cluster must be sound, and close.
pub fn everywhere(test: impl Fn(&Cluster, &Index)) {
    let directory = tempfile::tempdir().expect("temporary directory");
    for (place, config) in configs(directory.path()) {
        for (shape, options) in layouts() {
            println!("{place}, {shape}");
            let cluster = Cluster::open(config.clone()).expect("opens");
            let index = cluster.create_index("index", &options).expect("new");
            test(&cluster, &index);
            sound(&cluster);
            cluster.close().expect("closes");
        }
    }
}

pub fn sound(cluster: &Cluster) {
    let report = cluster.check().expect("at rest");
    assert_eq!(report.violations, Vec::<String>::new());
    assert!(report.is_clean());
}

/// Encodes a number as 8 bytes in the order of the numbers, spread over the key space.
pub fn key(n: u64) -> [u8; 8] {
    (n << 48).to_be_bytes()
}

/// Decodes such a key.
pub fn number(key: &[u8]) -> u64 {
    u64::from_be_bytes(key.try_into().expect("8 bytes")) >> 48
}

/// A pool in files, with an index "x" of integers that also has partitions at `boundaries`, not owned by any
/// process.
pub fn create_divided(path: &Path, boundaries: &[u64], tiny: bool) -> Cluster {
    let config = Config::at(path).memory_servers(2).memory(64 << 20).create(Create::New);
    let cluster = Cluster::open(config).expect("opens");
    let boundaries = boundaries.iter().map(|&n| key(n).to_vec()).collect();
    let mut options = IndexOptions::integers().boundaries(boundaries);
    if tiny {
        options = options.node_size(256).fanout_limit(4);
    }
    cluster.create_index("x", &options.own(Ownership::Partitions(Vec::new()))).expect("new");
    cluster
}

/// Waits until the process says that it is ready.
pub fn wait_ready(child: &mut Child) {
    let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let ready = lines.map(|line| line.expect("text")).any(|line| line.ends_with("ready"));
    assert!(ready, "the process ended");
}
