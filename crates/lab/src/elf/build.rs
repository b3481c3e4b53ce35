//! Build of the linear image, and the copy of the hybrid Elf (DAPD 2022 §5.3, §5.4).
//!
//! Builds and copies in DRAM are measured on this machine: processor time of one thread. What persistent memory adds is modelled: a
//! build writes the image once, sequentially; the copy reads it once.

use pando_elf::{ElfLayout, build_linear};
use pando_sim::memory::{Core, Kind, Machine, Order};
use serde_json::{Value, json};

use super::data::{build_options, dataset};
use super::failed;
use super::spec::ElfSpec;
use crate::bench::BenchError;
use crate::process::thread_time;

/// Bytes of the image that the model reads; the rest takes as long in proportion.
const SAMPLE_BYTES: u64 = 64 << 20;
/// Cycles in which a loop copies a line: two loads and two stores of 32 bytes.
const COPY_CYCLES: f64 = 4.0;
/// A page that is touched for the first time: an estimate, about what Linux takes.
const FAULT_NS: f64 = 250.0;
const PAGE_BYTES: f64 = 4_096.0;

/// Seconds of a build by one thread, and bytes of the image.
fn built(spec: &ElfSpec) -> Result<(f64, u64), BenchError> {
    let dataset = dataset(spec.data)?;
    let start = thread_time();
    let image = build_linear(&dataset.table, &dataset.order, &build_options(1)).map_err(failed)?;
    Ok(((thread_time() - start).as_secs_f64(), image.bytes().len() as u64))
}

pub fn build(spec: &ElfSpec) -> Result<Value, BenchError> {
    let (seconds, bytes) = built(spec)?;
    let added = spec.model.persistent.write_seconds(bytes) - spec.model.dram.write_seconds(bytes);
    let of_papers = added * 1e8 / spec.data.rows() as f64;
    Ok(json!({
        "method": "measured in DRAM, writing to persistent memory modelled",
        "build_seconds": seconds,
        "rows_per_second": spec.data.rows() as f64 / seconds,
        "image_bytes": bytes,
        "added_seconds": added,
        "overhead": 1.0 + added / seconds,
        "added_at_paper_rows_seconds": of_papers,
    }))
}

pub fn hybrid(spec: &ElfSpec) -> Result<Value, BenchError> {
    let (build_seconds, bytes) = built(spec)?;
    let dataset = dataset(spec.data)?;
    let image: &[u8] = dataset.image.bytes();
    let start = thread_time();
    let copy = image.to_vec();
    let copied = (thread_time() - start).as_secs_f64();
    if copy.len() as u64 != bytes {
        return Err(BenchError::Index("two builds have different sizes".to_owned()));
    }
    drop(copy);
    let (mut machine, mut core) = (Machine::new(&spec.model, 1), Core::new(&spec.model, 1));
    let sample = bytes.min(SAMPLE_BYTES);
    core.read(&mut machine, Kind::Persistent, 0..sample, Order::Chained, COPY_CYCLES);
    let reading = core.now_ns() / 1e9 * bytes as f64 / sample as f64;
    let faults = bytes as f64 / PAGE_BYTES * FAULT_NS / 1e9;
    let modelled = reading.max(spec.model.dram.write_seconds(bytes)) + faults;
    Ok(json!({
        "method": "build and copy in DRAM measured, copy from persistent memory modelled",
        "build_seconds": build_seconds,
        "image_bytes": bytes,
        "measured_copy_seconds": copied,
        "copy_seconds": modelled,
        "copy_at_paper_bytes_ms": modelled * 4e12 / bytes as f64,
        "build_with_copy": 1.0 + modelled / build_seconds,
        "build_over_recovery": build_seconds / modelled,
    }))
}
