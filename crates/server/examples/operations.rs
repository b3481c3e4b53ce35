//! Operations per second and latencies over loopback: one server thread and one client, with one operation
//! and with 64 operations at a time. `cargo run --release -p pando-server --example operations`
//!
//! Keys and values have 8 bytes; the index has 200,000 entries, all of them cached.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use pando::remote::{Client, ClientConfig, RemoteSession};
use pando::{Cluster, Config, IndexOptions};
use pando_server::{OperationConfig, OperationServer};

const KEYS: u64 = 200_000;
const TIME: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::open(Config::embedded().memory(256 << 20))?;
    let index = cluster.create_index("numbers", &IndexOptions::integers())?;
    let local = index.session()?;
    for n in 0..KEYS {
        local.put(&spread(n), &n.to_be_bytes())?;
    }
    drop(local);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let server = OperationServer::start(listener, index, OperationConfig::default())?;
    let client = Client::connect(ClientConfig::new([server.addr().to_string()]))?;
    let session = client.open_index("numbers")?.session();
    println!("{:>6} {:>6} {:>14} {:>12} {:>12}", "", "depth", "operations/s", "p50", "p99");
    for depth in [1, 64] {
        for (name, is_put) in [("get", false), ("put", true)] {
            let (rate, times) = measure(&session, depth, is_put)?;
            let at = |q: f64| times[((times.len() - 1) as f64 * q) as usize];
            println!("{name:>6} {depth:>6} {rate:>14.0} {:>12.1?} {:>12.1?}", at(0.5), at(0.99));
        }
    }
    for kind in server.counts().kinds.iter().filter(|kind| kind.done > 0) {
        println!("server: {} {}, p50 {:?}", kind.done, kind.name, kind.latencies.quantile(0.5));
    }
    Ok(())
}

/// Different keys, spread over the key space.
fn spread(n: u64) -> [u8; 8] {
    (n % KEYS).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

/// Operations per second, and the sorted times of batches of `depth`.
fn measure(session: &RemoteSession, depth: u64, is_put: bool) -> pando::Result<(f64, Vec<Duration>)> {
    let (mut times, mut done, begun) = (Vec::new(), 0u64, Instant::now());
    let mut batch = session.batch();
    while begun.elapsed() < TIME {
        let at = Instant::now();
        for n in done..done + depth {
            match is_put {
                true => batch.put(&spread(n * 7), &n.to_be_bytes()),
                false => batch.get(&spread(n * 7)),
            };
        }
        for answer in batch.run() {
            answer?;
        }
        times.push(at.elapsed());
        done += depth;
    }
    let rate = done as f64 / begun.elapsed().as_secs_f64();
    times.sort_unstable();
    Ok((rate, times))
}
