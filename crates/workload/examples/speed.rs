//! Prints the cost of a draw and of an operation, in nanoseconds:
//!
//! `cargo run --release -p pando-workload --example speed`

use pando_workload::*;
use std::hint::black_box;
use std::time::Instant;

const ROUNDS: u64 = 20_000_000;

fn measure(name: &str, mut step: impl FnMut() -> u64) {
    let start = Instant::now();
    let mut sum = 0u64;
    for _ in 0..ROUNDS {
        sum = sum.wrapping_add(step());
    }
    black_box(sum);
    println!("{name:45} {:6.1} ns", start.elapsed().as_nanos() as f64 / ROUNDS as f64);
}

fn main() -> Result<(), SpecError> {
    let records = 20_000_000;
    let mut rng = Rng::new(1);
    measure("random 64 bits", || rng.next_u64());
    measure("uniform", || rng.below(records));
    for theta in [0.5, 0.99, 1.0, 1.5] {
        let zipf = Zipf::new(records, theta)?;
        measure(&format!("zipf {theta}"), || zipf.draw(&mut rng));
    }
    let permutation = Permutation::new(records);
    let mut rank = 0;
    measure("permutation", || {
        rank = (rank + 1) % records;
        permutation.apply(rank)
    });
    for (mix, distribution) in [
        ("read-only", "uniform"),
        ("write-intensive", "zipf"),
        ("insert-intensive", "zipf"),
        ("ycsb-d", "latest"),
    ] {
        for partitions in [1, 4] {
            let keys = KeyCodec::new(KeySpace::Dense, 8, records)?;
            let spec = WorkloadSpec {
                mix: mix.parse()?,
                distribution: distribution.parse()?,
                scatter: Scatter::Hash,
                ranks: None,
                keys,
            };
            let lane = Lane::new(0, 1).owning(keys.partition(0, partitions));
            let mut stream = OpStream::new(&spec, 1, lane)?;
            measure(&format!("{mix}, {distribution}, one of {partitions} partitions"), || {
                stream.next_op().key_number
            });
        }
    }
    Ok(())
}
