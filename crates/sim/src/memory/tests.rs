//! The model against the published medians and bandwidths of the memory that it describes.
//!
//! Latencies are measured as the publication does: one thread, one read after the other, huge pages, no prefetching.
//! Bandwidths are those of threads that read without waiting.

use super::*;

/// A deterministic permutation of `0..1 << bits` by a full-period generator.
fn shuffled(bits: u32) -> impl Iterator<Item = u64> {
    let (mask, mut state) = ((1u64 << bits) - 1, 1u64);
    (0..1u64 << bits).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407) & mask;
        state ^ state >> (bits / 2)
    })
}

fn bare() -> MemoryModel {
    let mut model = MemoryModel::default();
    model.processor.prefetch_lines = 0;
    model.processor.prefetch_pairs = false;
    model.dram.page_bytes = 2 << 20;
    model.persistent.page_bytes = 2 << 20;
    model
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median and mean time of chained reads of lines.
fn chase(model: &MemoryModel, kind: Kind, lines: impl Iterator<Item = u64>) -> (f64, f64) {
    let (mut machine, mut core) = (Machine::new(model, 1), Core::new(model, 1));
    let times: Vec<f64> = lines
        .map(|line| {
            let before = core.now_ns();
            core.read(&mut machine, kind, line * 64..line * 64 + 8, Order::Chained, 0.0);
            core.now_ns() - before
        })
        .collect();
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    (median(times), mean)
}

/// GB/s of `threads` threads that each read `ranges` of their own without waiting.
fn bandwidth(
    model: &MemoryModel,
    kind: Kind,
    threads: usize,
    at: impl Fn(u64, u64) -> u64,
    step: u64,
) -> f64 {
    let mut machine = Machine::new(model, threads);
    let mut cores = vec![Core::new(model, threads); threads];
    let reads = 4_000;
    for read in 0..reads {
        for (thread, core) in cores.iter_mut().enumerate() {
            let from = at(thread as u64, read);
            core.read(&mut machine, kind, from..from + step, Order::Ahead, 0.0);
        }
    }
    cores.iter_mut().for_each(Core::settle);
    let end = cores.iter().map(Core::now_ns).fold(0.0, f64::max);
    (threads as u64 * reads * step) as f64 / end
}

#[test]
fn random_and_sequential_reads_take_the_published_medians() {
    let model = bare();
    // Lines of 256 MiB in a random order: 101 and 305 ns.
    let random = |kind| chase(&model, kind, shuffled(22)).0;
    assert!((random(Kind::Dram) - 101.0).abs() < 2.0, "{}", random(Kind::Dram));
    assert!((random(Kind::Persistent) - 305.0).abs() < 2.0, "{}", random(Kind::Persistent));
    // One line after the other: 81 and 169 ns.
    let sequential = |kind| chase(&model, kind, 0..100_000).1;
    assert!((sequential(Kind::Dram) - 81.0).abs() < 2.0, "{}", sequential(Kind::Dram));
    assert!((sequential(Kind::Persistent) - 169.0).abs() < 2.0, "{}", sequential(Kind::Persistent));
}

#[test]
fn small_pages_make_random_reads_dearer_and_huge_ones_do_not() {
    let mut model = bare();
    model.persistent.page_bytes = 4 << 10;
    let (_, small) = chase(&model, Kind::Persistent, shuffled(22));
    let (_, huge) = chase(&bare(), Kind::Persistent, shuffled(22));
    assert!(small > huge + 5.0 && small < huge + 120.0, "{small} {huge}");
}

#[test]
fn caches_answer_in_their_cycles() {
    let model = bare();
    for (kib, cycles) in [(16, 4.0), (512, 14.0), (6 << 10, 77.0)] {
        let lines = kib * 16;
        let passes = (0..4).flat_map(|_| 0..lines);
        let (median, _) = chase(&model, Kind::Persistent, passes);
        assert!((median - cycles / 3.4).abs() < 0.1, "{kib} KiB: {median} ns");
    }
}

#[test]
fn six_dimms_deliver_the_published_bandwidth_to_many_threads() {
    let model = MemoryModel::default();
    let sequential = |threads| {
        bandwidth(&model, Kind::Persistent, threads, |thread, read| (thread << 32) + read * 4_096, 4_096)
    };
    let all = sequential(20);
    assert!((35.0..=39.5).contains(&all), "{all} GB/s with 20 threads");
    // One thread is limited by latency: it has a few lines under way.
    let (mut machine, mut core) = (Machine::new(&model, 1), Core::new(&model, 1));
    core.read(&mut machine, Kind::Persistent, 0..16 << 20, Order::Chained, 8.0);
    let one = (16 << 20) as f64 / core.now_ns();
    assert!((2.0..=10.0).contains(&one), "{one} GB/s with one thread");
    let dram =
        |threads| bandwidth(&model, Kind::Dram, threads, |thread, read| (thread << 32) + read * 4_096, 4_096);
    assert!((80.0..=102.5).contains(&dram(20)), "{} GB/s", dram(20));
}

#[test]
fn small_random_reads_move_whole_blocks_of_persistent_memory() {
    let mut model = bare();
    model.processor.overlapping = 10;
    let order: Vec<u64> = shuffled(22).collect();
    let at = |thread: u64, read: u64| (thread << 32) + order[(thread * 4_000 + read) as usize] * 256;
    let lines = bandwidth(&model, Kind::Persistent, 20, at, 64);
    let blocks = bandwidth(&model, Kind::Persistent, 20, at, 256);
    assert!((8.0..=9.9).contains(&lines), "{lines} GB/s by 64 bytes: a quarter of 39.4");
    assert!((30.0..=39.5).contains(&blocks), "{blocks} GB/s by 256 bytes");
}

#[test]
fn independent_reads_overlap_and_chained_ones_do_not() {
    let model = bare();
    let time = |order| {
        let (mut machine, mut core) = (Machine::new(&model, 1), Core::new(&model, 1));
        for line in shuffled(18).take(10_000) {
            core.read(&mut machine, Kind::Persistent, line * 64..line * 64 + 4, order, 1.0);
        }
        core.settle();
        core.now_ns()
    };
    let factor = time(Order::Chained) / time(Order::Ahead);
    assert!((3.0..=4.1).contains(&factor), "{factor}");
}

#[test]
fn prefetching_hides_most_of_a_sequential_read() {
    let cycles = 100.0;
    let time = |model: &MemoryModel| {
        let (mut machine, mut core) = (Machine::new(model, 1), Core::new(model, 1));
        core.read(&mut machine, Kind::Dram, 0..1 << 20, Order::Chained, cycles);
        core.now_ns()
    };
    let mut off = bare();
    off.processor.run_ahead_lines = 1;
    let mut on = MemoryModel::default();
    on.processor.run_ahead_lines = 1;
    let compute = (1 << 14) as f64 * cycles / 3.4;
    assert!(time(&on) < 1.3 * compute, "{} of {compute}", time(&on));
    assert!(time(&off) > 1.8 * compute, "{} of {compute}", time(&off));
}

#[test]
fn a_core_does_not_wait_for_the_future_of_another_one() {
    let model = bare();
    let mut machine = Machine::new(&model, 2);
    let (mut ahead, mut behind) = (Core::new(&model, 2), Core::new(&model, 2));
    ahead.wait_until(1e9);
    ahead.read(&mut machine, Kind::Persistent, 0..4, Order::Chained, 0.0);
    let read = |core: &mut Core, machine: &mut Machine| {
        core.read(machine, Kind::Persistent, 128..132, Order::Chained, 0.0);
        core.now_ns()
    };
    let alone = read(&mut Core::new(&model, 2), &mut Machine::new(&model, 2));
    let beside = read(&mut behind, &mut machine);
    // A read occupies its channel, but for nanoseconds and not until the time of the core that is ahead.
    assert!(beside - alone < 50.0, "{beside} ns, alone {alone}");
}

#[test]
fn caches_shrink_with_the_data() {
    let scaled = MemoryModel::default().scaled(0.1).processor;
    assert_eq!((scaled.l2.bytes, scaled.l3.bytes, scaled.tlb_entries), (104_857, 1_441_792, 153));
    let tiny = MemoryModel::default().scaled(1e-6).processor;
    assert_eq!((tiny.l1.bytes, tiny.l2.bytes, tiny.tlb_entries), (512, 1_024, 12));
}
