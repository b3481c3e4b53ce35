//! Costs of the work that one thread does alone.
//!
//! Short work is timed in pieces of some hundred calls, and the median piece is the result: a piece in which
//! the thread lost its core is an outlier. If two kinds of work alternate, each is timed separately, and the
//! cost of reading the clock is subtracted.

use std::hint::black_box;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use pando_cache::{Admission, Cache, CacheConfig, CoolingMap, FrameId, FrameRef, Lookup, NoFrame};
use pando_dex::layout::Layout;
use pando_dex::{DexError, ScanRange};
use pando_fabric::{Endpoint, GlobalAddr, LINE, MemoryServerId};
use pando_rt::{Worker, block_on};

use super::CalibrateError;
use super::testbed::{NODE_SIZE, Testbed};

const LOOKUPS: usize = 200_000;
const PAGES: usize = 20_000;
/// Frames of the cache in which pages are replaced: 16 MiB, more than the caches of a core.
const FRAMES: u64 = 16_384;
const SLOTS: usize = 4;
const YIELDS: u32 = 1_000;
/// Entries of a timed scan: enough that passing them to the visitor dominates.
const SCANNED: usize = 2_000;
const SCANS: usize = 101;

type Note<'n> = &'n mut dyn FnMut(&'static str, &'static str, f64);

pub(super) fn measure(
    testbed: &Testbed,
    round: u64,
    note: &mut impl FnMut(&'static str, &'static str, f64),
) -> Result<(), CalibrateError> {
    let note: Note<'_> = note;
    note("poll_ns", "Going to the next slot of a thread", yields(testbed));
    lookups(testbed, round, note)?;
    pages(testbed, round, note)?;
    admissions(testbed, note)?;
    let map = CoolingMap::new(FRAMES as usize / 10);
    let bucket = per_one(LOOKUPS, |i| {
        let addr = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16;
        black_box(map.push(addr, FrameId(i as u32 % FRAMES as u32)));
    });
    note("bucket_ns", "A node put into a bucket of the cooling map", bucket);
    Ok(())
}

/// Number of pieces of a measurement.
const PIECES: usize = 500;

/// Median time of a call in ns, over about `count` calls.
fn per_one(count: usize, mut each: impl FnMut(usize)) -> f64 {
    let piece = (count / PIECES).max(1);
    let mut pieces: Vec<f64> = (0..count / piece)
        .map(|number| {
            let began = Instant::now();
            (number * piece..(number + 1) * piece).for_each(&mut each);
            began.elapsed().as_nanos() as f64 / piece as f64
        })
        .collect();
    median(&mut pieces)
}

fn median(list: &mut [f64]) -> f64 {
    list.sort_by(f64::total_cmp);
    list.get(list.len() / 2).copied().unwrap_or(0.0)
}

fn yields(testbed: &Testbed) -> f64 {
    let run = |_| {
        Worker::new(&testbed.ep, SLOTS).run(|_| async {
            for _ in 0..YIELDS {
                testbed.ep.yield_now().await;
            }
        });
    };
    per_one(PIECES, run) / (SLOTS as f64 * f64::from(YIELDS))
}

/// Measures cached lookups and changes, and entries of a scan.
fn lookups(testbed: &Testbed, round: u64, note: Note<'_>) -> Result<(), CalibrateError> {
    let (ctx, keys) = (testbed.ctx(), testbed.keys(round, LOOKUPS));
    let mut value = Vec::with_capacity(64);
    let mut failed = None;
    let mut get = |key: &[u8]| {
        value.clear();
        if let Err(error) = block_on(ctx.ep, testbed.tree.get(ctx, black_box(key), &mut value)) {
            failed = Some(error);
        }
    };
    keys.iter().for_each(|key| get(key));
    let looked_up = per_one(LOOKUPS, |i| get(&keys[i]));
    let search = looked_up / f64::from(testbed.tree.height());
    note("node_search_ns", "A level of a cached lookup, keys drawn by Zipf 0.99", search);
    let mut put = |i: usize| {
        if let Err(error) =
            block_on(ctx.ep, testbed.tree.put(ctx, black_box(&keys[i]), &(i as u64).to_le_bytes()))
        {
            failed = Some(error);
        }
    };
    let changed = per_one(LOOKUPS, &mut put);
    note("latch_ns", "The latch of a leaf, held while a value is replaced", (changed - looked_up).max(1.0));
    let mut entries = Vec::with_capacity(SCANS);
    for key in keys.iter().take(SCANS) {
        let began = Instant::now();
        let range = ScanRange {
            low: std::ops::Bound::Included(key),
            high: std::ops::Bound::Unbounded,
            limit: SCANNED,
            reverse: false,
        };
        let visit = |key: &[u8], value: &[u8]| {
            black_box((key, value));
            true
        };
        let scanned = block_on(ctx.ep, testbed.tree.scan(ctx, &range, visit))?.entries;
        entries.push(began.elapsed().as_nanos() as f64 / scanned.max(1) as f64);
    }
    let entry = median(&mut entries);
    // A scan also searches and copies each leaf; the model charges both separately.
    let leaf = search / (testbed.layout.max_entries() as f64 / 2.0);
    note("entry_ns", "An entry handed out by a scan", (entry - leaf).max(1.0));
    failed.map_or(Ok(()), |error: DexError| Err(error.into()))
}

/// Measures the work on pages that come from memory servers, with pages that are in none of the core's
/// caches.
fn pages(testbed: &Testbed, round: u64, note: Note<'_>) -> Result<(), CalibrateError> {
    let cache = testbed.tree.cache();
    let mut random = round.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut frames = Vec::with_capacity(PAGES);
    // A cache that is not full uses its frames from the front.
    let used = (0..cache.frames() as u32).take_while(|&id| cache.frame(FrameId(id)).addr() != 0).count();
    while frames.len() < PAGES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        frames.push(cache.frame(FrameId((random % used.max(1) as u64) as u32)));
    }
    let to = testbed.ep.buffer(NODE_SIZE);
    let copied = per_one(PAGES, |i| {
        for (to, from) in to.words().iter().zip(frames[i].words()) {
            to.store(from.load(Relaxed), Relaxed);
        }
        black_box(&to);
    });
    note("copy_line_ns", "64 bytes of a page that is copied", copied / (NODE_SIZE / LINE) as f64);
    testbed.ep.recycle(to);
    frames.reverse();
    let copies: Vec<_> = frames.iter().take(2_000).map(|frame| copy_of(testbed, *frame)).collect();
    let checked = per_one(PAGES, |i| {
        let _ = black_box(testbed.layout.verify(copies[i % copies.len()].words()));
    });
    note("page_check_ns", "Looking whether a page is a node", checked);
    let addrs: Vec<_> = frames.iter().filter_map(|frame| GlobalAddr::from_raw(frame.addr())).collect();
    let looked_up = per_one(addrs.len().max(1), |i| {
        black_box(addrs.get(i).and_then(|addr| cache.table().frame_of(*addr)));
    });
    note("table_lookup_ns", "A look at the mapping table", looked_up);
    copies.into_iter().for_each(|copy| testbed.ep.recycle(copy));
    Ok(())
}

fn copy_of(testbed: &Testbed, frame: FrameRef<'_>) -> pando_fabric::PageBuf {
    let copy = testbed.ep.buffer(NODE_SIZE);
    copy.words().iter().zip(frame.words()).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    copy
}

/// Measures admissions into a full cache, each of which evicts a page.
fn admissions(testbed: &Testbed, note: Note<'_>) -> Result<(), CalibrateError> {
    let mut config = CacheConfig::new(FRAMES * NODE_SIZE as u64, NODE_SIZE);
    config.admission = Admission::lazy(1.0);
    let cache = Cache::new(&config)?;
    let worker = cache.worker();
    let clock = per_one(10_000, |_| {
        black_box(Instant::now());
    });
    let (mut allocating, mut admitting) = (Vec::with_capacity(PAGES), Vec::with_capacity(PAGES));
    let total = 2 * FRAMES + PAGES as u64;
    for number in 0..total {
        let addr = GlobalAddr::new(MemoryServerId(0), (1 + number) * NODE_SIZE as u64);
        let Lookup::Miss(ticket) = cache.table().begin(addr) else { continue };
        let page = testbed.leaf_at(addr);
        let began = Instant::now();
        let free = match block_on(&testbed.ep, cache.allocate(&worker, &testbed.ep, testbed.layout)) {
            Ok(free) => free,
            Err(NoFrame::Failed(error)) => return Err(error.into()),
            Err(NoFrame::GiveWay | NoFrame::Crowded) => continue,
        };
        let allocated = Instant::now();
        black_box(free.admit(&page, ticket, None::<(FrameRef<'_>, fn() -> Option<usize>)>));
        let admitted = Instant::now();
        // Before this point the cache is not full or not in a steady state of one eviction per admission.
        if number >= 2 * FRAMES {
            allocating.push((allocated - began).as_nanos() as f64 - clock);
            admitting.push((admitted - allocated).as_nanos() as f64 - clock);
        }
        testbed.ep.recycle(page);
    }
    note("admit_ns", "A page published in the cache", median(&mut admitting).max(1.0));
    note(
        "evict_ns",
        "A frame made free: two sampled, one cooled, one evicted",
        median(&mut allocating).max(1.0),
    );
    Ok(())
}
