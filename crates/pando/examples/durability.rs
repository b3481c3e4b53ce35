//! Updates per second of a pool in a file, by what survives: nothing but what is written back, the end of the
//! process, or a loss of power. One and 64 updates in flight on one thread, in turns, beside the time of one
//! synced write of 4 KiB in the same directory.
//!
//! `cargo run --release -p pando --example durability -- [DIRECTORY] [SECONDS]`

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pando::{BulkOptions, Cluster, Config, Create, Durability, IndexOptions, Result};

const KEYS: u64 = 200_000;
const TURNS: usize = 3;
const IN_FLIGHT: [usize; 2] = [1, 64];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let seconds = arguments.next().map_or(Ok(1.0), |text| text.parse())?;
    let directory = tempfile::tempdir_in(parent)?;
    let group = Durability::Group(Duration::from_millis(50));
    let all = [Durability::Off, Durability::Process, group, Durability::Immediate];
    let mut rates = vec![[[0.0; TURNS]; 2]; all.len()];
    let mut syncs = [0.0; TURNS];
    for turn in 0..TURNS {
        syncs[turn] = sync_millis(directory.path())?;
        for (number, &durability) in all.iter().enumerate() {
            for (i, in_flight) in IN_FLIGHT.into_iter().enumerate() {
                rates[number][i][turn] =
                    updates_per_second(directory.path(), durability, in_flight, seconds)?;
            }
        }
    }
    println!("one synced write of 4 KiB: {:.2} ms", median(syncs));
    for (durability, [one, many]) in all.into_iter().zip(rates) {
        println!("{durability:?}: {:.0}/s, with 64 in flight {:.0}/s", median(one), median(many));
    }
    Ok(())
}

fn median(mut values: [f64; TURNS]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[TURNS / 2]
}

/// Mean time of overwriting 4 KiB of a file and waiting for the disk.
fn sync_millis(directory: &Path) -> std::io::Result<f64> {
    const WRITES: u32 = 100;
    let file = File::create(directory.join("synced"))?;
    file.write_all_at(&[0; 4096], 0)?;
    file.sync_all()?;
    let begun = Instant::now();
    for write in 0..WRITES {
        file.write_all_at(&[write as u8; 4096], 0)?;
        file.sync_data()?;
    }
    Ok(begun.elapsed().as_secs_f64() * 1e3 / f64::from(WRITES))
}

/// Updates of random keys, all in the cache.
fn updates_per_second(
    directory: &Path,
    durability: Durability,
    in_flight: usize,
    seconds: f64,
) -> Result<f64> {
    let path = directory.join("pool");
    let config = Config::at(&path).memory(512 << 20).create(Create::Replace).durability(durability);
    let cluster = Cluster::open(config)?;
    let index = cluster.create_index("n", &IndexOptions::integers())?;
    let entries: Vec<_> = (0..KEYS).map(|key| (key.to_be_bytes(), key.to_be_bytes())).collect();
    index.bulk_load(&entries[..], &BulkOptions::default())?;
    let session = index.integers()?;
    let begun = Instant::now();
    let done = session.in_flight(in_flight, |slot, session| async move {
        let (mut random, mut done) = (u64::from(slot) + 1, 0_u64);
        while begun.elapsed().as_secs_f64() < seconds {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            session.put((random >> 33) % KEYS, random).await?;
            done += 1;
        }
        Ok::<_, pando::Error>(done)
    })?;
    let done = done.into_iter().sum::<Result<u64>>()?;
    let rate = done as f64 / begun.elapsed().as_secs_f64();
    drop((session, index));
    cluster.close()?;
    std::fs::remove_file(path).map_err(|error| pando::Error::InvalidOption(error.to_string()))?;
    Ok(rate)
}
