//! A pool in a file, which is closed and opened again: its contents persist.
//!
//! `cargo run -p pando --example pool_in_a_file [FILE]`; each run counts one more.

use std::path::PathBuf;
use std::time::Duration;

use pando::{Cluster, Config, Create, IndexOptions};

fn main() -> pando::Result<()> {
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => std::env::temp_dir().join(format!("counter-{}.pando", std::process::id())),
    };
    for _ in 0..3 {
        let count = count_one_more(&path)?;
        println!("run {count}");
    }
    Ok(())
}

fn count_one_more(path: &PathBuf) -> pando::Result<u64> {
    // The file is sparse: it takes only as much disk space as it has contents.
    let config = Config::at(path).create(Create::IfMissing).memory(64 << 20);
    let cluster = Cluster::open(config)?;
    let counters = cluster.open_or_create_index("counters", &IndexOptions::integers())?;
    let session = counters.integers()?;
    let count = session.get(1)?.unwrap_or(0) + 1;
    session.put(1, count)?;
    drop(session);
    // Without this call, dropping the last handle closes the pool, but a failure goes unreported. A process
    // that ends otherwise, for instance by `exit`, leaves a pool that is refused.
    cluster.close_within(Duration::from_secs(10))?;
    Ok(count)
}
