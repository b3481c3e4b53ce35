//! Properties between threads that hold in every schedule. Each thread has its own endpoint.
//!
//! No atomic is lost, no word is torn, and a reader of a later WRITE also reads the earlier ones. Pairs of
//! threads start together with a random head start, so that the races cover different moments.

use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use super::{Suite, at, get, ok, put};
use crate::{Chain, Endpoint, Fabric, GlobalAddr, VerbResult, WORD};

/// Words of the racing pages: 1 KiB, the usual node size.
const PAGE_WORDS: usize = 128;

/// Polls for the other thread of a pair between two yields of the core: the two should start together.
const LOOKS_PER_YIELD: u32 = 5000;
/// Maximum head start within a pair, in steps of about a nanosecond.
const HEAD_START_MAX: u64 = 256;

/// Concurrent additions, compare-and-swaps and masked swaps of 16-bit lanes: none is lost, and no two
/// additions return the same word.
pub fn concurrent_atomics_lose_nothing<F: Fabric>(suite: &Suite<'_, F>) {
    let server = *suite.servers().last().expect("there is a memory server");
    let (sum, swapped, lanes) = (at(server, 4096), at(server, 4160), at(server, 4168));
    let rounds = suite.options.rounds.min(u64::from(u16::MAX));
    suite.with_endpoint(30, async |endpoint| {
        for word in [sum, swapped, lanes] {
            ok(endpoint.write_word(word, 0).await);
        }
    });
    let seen = Mutex::new(Vec::new());
    suite.on_threads(|thread| {
        suite.with_endpoint(31 + thread as u64, async |endpoint| {
            let mut mine = Vec::new();
            for _ in 0..rounds {
                mine.push(ok(endpoint.fetch_add(sum, 1).await));
                increment_by_swaps(endpoint, swapped).await;
                increment_lane(endpoint, lanes, thread % 4 * 16).await;
            }
            assert!(mine.is_sorted_by(|a, b| a < b), "an addition of this thread was undone");
            seen.lock().expect("no thread panicked").extend(mine);
        });
    });
    let mut seen = seen.into_inner().expect("no thread panicked");
    seen.sort_unstable();
    let threads = suite.options.threads as u64;
    assert!(seen.into_iter().eq(0..threads * rounds), "additions overlapped");
    suite.with_endpoint(30, async |endpoint| {
        assert_eq!(ok(endpoint.read_word(sum).await), threads * rounds);
        assert_eq!(ok(endpoint.read_word(swapped).await), threads * rounds);
        let found = ok(endpoint.read_word(lanes).await);
        for lane in 0..4 {
            let users = (0..threads).filter(|thread| thread % 4 == lane).count() as u64;
            assert_eq!((found >> (lane * 16)) & 0xFFFF, (users * rounds) & 0xFFFF, "lane {lane}");
        }
    });
}

async fn increment_by_swaps<E: Endpoint>(endpoint: &E, word: GlobalAddr) {
    let mut expected = ok(endpoint.read_word(word).await);
    loop {
        let found = ok(endpoint.compare_swap(word, expected, expected + 1).await);
        if found == expected {
            return;
        }
        expected = found;
        endpoint.yield_now().await;
    }
}

/// Adds 1 to 16 bits, wrapping, regardless of the other 48.
async fn increment_lane<E: Endpoint>(endpoint: &E, word: GlobalAddr, shift: usize) {
    let mask = 0xFFFF << shift;
    let mut expected = ok(endpoint.read_word(word).await);
    loop {
        let new = (expected & mask).wrapping_add(1 << shift) & mask;
        let found = ok(endpoint.masked_compare_swap(word, expected, mask, new, mask).await);
        if (found ^ expected) & mask == 0 {
            return;
        }
        expected = found;
        endpoint.yield_now().await;
    }
}

/// READs race WRITEs of whole pages: every word that a READ returns was written to its place.
pub fn racing_reads_tear_no_word<F: Fabric>(suite: &Suite<'_, F>) {
    if suite.options.threads < 2 {
        return;
    }
    let place = at(suite.servers()[0], 8192);
    // The halves of a word determine each other, so a mixture of two words is detected.
    let word = |version: u64, index: usize| {
        let low = (version << 8 | index as u64) & 0xFFFF_FFFF;
        (!low << 32) | low
    };
    let page = |version| (0..PAGE_WORDS).map(|index| word(version, index)).collect::<Vec<_>>();
    suite.with_endpoint(40, async |endpoint| put(endpoint, place, &page(0)).await);
    let writers = AtomicUsize::new(suite.options.threads / 2);
    suite.on_threads(|thread| {
        suite.with_endpoint(41 + thread as u64, async |endpoint| {
            if thread < suite.options.threads / 2 {
                for version in 0..suite.options.rounds {
                    put(endpoint, place, &page(version)).await;
                }
                writers.fetch_sub(1, SeqCst);
                return;
            }
            while writers.load(SeqCst) > 0 && suite.all_well() {
                for (index, found) in get(endpoint, place, PAGE_WORDS).await.into_iter().enumerate() {
                    let low = found & 0xFFFF_FFFF;
                    let whole = found == (!low << 32) | low && low & 0xFF == index as u64;
                    assert!(whole, "word {index} was never written: {found:#x}");
                }
            }
        });
    });
}

/// A writer WRITEs a page and then publishes its version with a word, an atomic or a second WRITE, in one
/// chain or verb by verb. A reader of the version READs a page at least as new.
pub fn later_writes_imply_earlier_ones<F: Fabric>(suite: &Suite<'_, F>) {
    if suite.options.threads < 2 {
        return;
    }
    let server = suite.servers()[0];
    let (page, version) = (at(server, 16_384), at(server, 32_768));
    suite.with_endpoint(50, async |endpoint| {
        put(endpoint, page, &[0; PAGE_WORDS]).await;
        put(endpoint, version, &[0]).await;
    });
    let done = AtomicBool::new(false);
    suite.on_threads(|thread| {
        suite.with_endpoint(51 + thread as u64, async |endpoint| {
            if thread == 0 {
                for next in 1..=suite.options.rounds {
                    publish(endpoint, page, version, next).await;
                }
                done.store(true, SeqCst);
                return;
            }
            while !done.load(SeqCst) && suite.all_well() {
                check_published(endpoint, page, version, thread.is_multiple_of(2)).await;
            }
        });
    });
}

async fn publish<E: Endpoint>(endpoint: &E, page: GlobalAddr, version: GlobalAddr, next: u64) {
    let (from, word) = (endpoint.buffer(PAGE_WORDS * WORD), endpoint.buffer(WORD));
    (0..PAGE_WORDS).for_each(|index| from.set(index, next));
    word.set(0, next);
    match next % 4 {
        0 => {
            put(endpoint, page, &[next; PAGE_WORDS]).await;
            ok(endpoint.write_word(version, next).await);
        }
        1 => drop(ok(endpoint.submit(Chain::new().write(page, from).write_word(version, next)).await)),
        2 => drop(ok(endpoint.submit(Chain::new().write(page, from).write(version, word)).await)),
        _ => drop(ok(endpoint.submit(Chain::new().write(page, from).fetch_add(version, 1)).await)),
    }
}

async fn check_published<E: Endpoint>(endpoint: &E, page: GlobalAddr, version: GlobalAddr, chained: bool) {
    let (published, found) = if chained {
        let chain =
            Chain::new().read(version, endpoint.buffer(WORD)).read(page, endpoint.buffer(PAGE_WORDS * WORD));
        let results = ok(endpoint.submit(chain).await);
        let [VerbResult::Buf(version), VerbResult::Buf(page)] = &results[..] else {
            panic!("two READs, two results: {results:?}")
        };
        (version.get(0), (0..PAGE_WORDS).map(|index| page.get(index)).collect())
    } else {
        (ok(endpoint.read_word(version).await), get(endpoint, page, PAGE_WORDS).await)
    };
    let oldest = found.iter().min().copied().unwrap_or_default();
    assert!(oldest >= published, "version {published} was READ, then a page of version {oldest}");
}

/// Two threads each WRITE their own word and READ the other's in one chain. At least one of them sees the
/// other's WRITE, or the chain did not take effect in order. Effective in optimised builds only.
pub fn changes_come_before_later_reads_of_a_chain<F: Fabric>(suite: &Suite<'_, F>) {
    if suite.options.threads < 2 {
        return;
    }
    let server = suite.servers()[0];
    let words = [at(server, 40_960), at(server, 45_056)];
    suite.with_endpoint(60, async |endpoint| {
        for word in words {
            ok(endpoint.write_word(word, 0).await);
        }
    });
    let seen = [const { Mutex::new(Vec::new()) }; 2];
    let arrived = AtomicUsize::new(0);
    suite.on_threads(|thread| {
        if thread >= 2 {
            return;
        }
        suite.with_endpoint(61 + thread as u64, async |endpoint| {
            let mut mine = Vec::new();
            for round in 1..=suite.options.rounds {
                let read = endpoint.buffer(WORD);
                let chain = Chain::new().write_word(words[thread], round).read(words[1 - thread], read);
                let head_start = endpoint.random() % HEAD_START_MAX;
                arrived.fetch_add(1, SeqCst);
                let mut looks = 0;
                while arrived.load(SeqCst) < 2 * round as usize && suite.all_well() {
                    looks += 1;
                    if looks % LOOKS_PER_YIELD == 0 {
                        endpoint.yield_now().await;
                    }
                }
                // The thread that arrives last starts earlier, by about the time the other one needs to
                // notice it.
                for step in 0..head_start {
                    black_box(step);
                }
                match ok(endpoint.submit(chain).await).pop() {
                    Some(VerbResult::Buf(buf)) => mine.push(buf.get(0)),
                    other => panic!("a READ gave {other:?}"),
                }
            }
            *seen[thread].lock().expect("no thread panicked") = mine;
        });
    });
    let [first, second] = seen.map(|seen| seen.into_inner().expect("no thread panicked"));
    for ((round, first), second) in (1..).zip(first).zip(second) {
        assert!(first >= round || second >= round, "round {round}: neither saw the other's WRITE");
    }
}
