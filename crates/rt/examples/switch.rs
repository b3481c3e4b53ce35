//! Nanoseconds per switch between slots and per READ of a cached page, as the best of several runs.
//!
//! `cargo run --release -p pando-rt --example switch`

use std::hint::black_box;
use std::time::Instant;

use pando_fabric::{Endpoint, Fabric, FabricError, GlobalAddr, MemoryServerId};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_rt::{Worker, block_on, pin_to_core};

const RUNS: usize = 7;

fn best(units: u64, mut run: impl FnMut()) -> f64 {
    let times = (0..RUNS).map(|_| {
        let started = Instant::now();
        run();
        started.elapsed().as_nanos() as f64 / units as f64
    });
    times.fold(f64::INFINITY, f64::min)
}

fn main() -> Result<(), FabricError> {
    pin_to_core(0);
    let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![1 << 20], huge_pages: false })?;
    let endpoint = &fabric.endpoint(1)?;
    for slots in [1, 2, 4, 16, 64] {
        let turns = 10_000_000 / slots as u64;
        let ns = best(turns * slots as u64, || {
            Worker::new(endpoint, slots).run(|_| async move {
                for _ in 0..turns {
                    endpoint.yield_now().await;
                }
            });
        });
        println!("switch, {slots:>2} slots: {ns:6.2} ns");
    }
    let at = GlobalAddr::new(MemoryServerId(0), 4096);
    let turns = 1_000_000;
    let ns = best(turns, || {
        for _ in 0..turns {
            black_box(block_on(endpoint, endpoint.read_word(black_box(at))).expect("inside the region"));
        }
    });
    println!("READ of a word: {ns:6.2} ns");
    let ns = best(turns, || {
        for _ in 0..turns {
            black_box(block_on(endpoint, endpoint.fetch_add(black_box(at), 1)).expect("inside the region"));
        }
    });
    println!("fetch-and-add: {ns:6.2} ns");
    for len in [8, 64, 512, 1024, 4096] {
        let mut kept = Some(endpoint.buffer(len));
        let ns = best(turns, || {
            let mut buf = kept.take().expect("the buffer came back");
            for _ in 0..turns {
                buf = block_on(endpoint, endpoint.read(black_box(at), buf)).expect("inside the region");
            }
            kept = Some(buf);
        });
        println!("READ of {len:>4} bytes: {ns:6.2} ns");
    }
    let ns = best(turns, || {
        for _ in 0..turns {
            let buf =
                block_on(endpoint, endpoint.read(black_box(at), endpoint.buffer(1024))).expect("inside");
            endpoint.recycle(buf);
        }
    });
    println!("READ of 1024 bytes with buffer and recycle: {ns:6.2} ns");
    Ok(())
}
