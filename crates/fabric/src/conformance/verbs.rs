//! Behaviour of each verb without concurrency.
//!
//! Values and the words around them, windows, atomics, order within chains, exact counters, two-sided calls,
//! and the calls that move no data: `reserve`, `persist`, clock, random numbers, slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};

use super::{Echo, SCRATCH, Suite, at, get, ok, put};
use crate::{Chain, Endpoint, Fabric, FabricError, Request, VerbCounts, VerbResult, WORD};

/// The fabric and its endpoints list the same memory servers by ascending number, each large enough for the
/// suite.
pub fn regions_are_described<F: Fabric>(suite: &Suite<'_, F>) {
    let regions = suite.fabric.regions();
    assert!(!regions.is_empty(), "no memory servers");
    assert!(regions.is_sorted_by(|a, b| a.server < b.server), "not ascending: {regions:?}");
    assert!(
        regions.iter().all(|region| region.len >= SCRATCH),
        "the suite needs {SCRATCH} bytes: {regions:?}"
    );
    suite.with_endpoint(0, async |endpoint| assert_eq!(endpoint.regions(), regions));
}

/// READs return what WRITEs stored, for 8 bytes to 64 KiB on every server; the words around stay unchanged.
pub fn pages_round_trip<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(1, async |endpoint| {
        for server in suite.servers() {
            for len in [8, 16, 56, 64, 72, 512, 1000, 1024, 4096, 8192, 65_536u64] {
                let (start, words) = (4096 - 8, len as usize / WORD);
                let before = at(server, start - 8);
                put(endpoint, before, &vec![0xAAAA; words + 2]).await;
                let written: Vec<u64> = (0..words).map(|_| endpoint.random()).collect();
                put(endpoint, at(server, start), &written).await;
                let found = get(endpoint, before, words + 2).await;
                assert_eq!(&found[1..=words], written, "{len} bytes on server {server}");
                assert_eq!((found[0], found[words + 1]), (0xAAAA, 0xAAAA), "neighbours of {len} bytes");
            }
        }
        for server in suite.servers() {
            // The same offset of different servers is different memory.
            put(endpoint, at(server, 64), &[u64::from(server.0) + 1]).await;
        }
        for server in suite.servers() {
            assert_eq!(get(endpoint, at(server, 64), 1).await, [u64::from(server.0) + 1]);
        }
    });
}

/// Verbs of one word and verbs of pages see the same memory.
pub fn words_round_trip<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(2, async |endpoint| {
        for server in suite.servers() {
            put(endpoint, at(server, 512), &[1, 2, 3]).await;
            assert_eq!(ok(endpoint.read_word(at(server, 520)).await), 2);
            ok(endpoint.write_word(at(server, 520), u64::MAX).await);
            assert_eq!(get(endpoint, at(server, 512), 3).await, [1, u64::MAX, 3]);
        }
    });
}

/// A verb moves only the window of its buffer: a READ leaves the rest of the buffer, a WRITE the rest of the
/// memory.
pub fn windows_limit_what_moves<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    suite.with_endpoint(3, async |endpoint| {
        put(endpoint, at(server, 1024), &[1, 2, 3, 4]).await;
        let buf = endpoint.buffer(4 * WORD).with_window(WORD..3 * WORD);
        (0..4).for_each(|word| buf.set(word, 90 + word as u64));
        let buf = ok(endpoint.read(at(server, 1032), buf).await);
        assert_eq!((0..4).map(|word| buf.get(word)).collect::<Vec<_>>(), [90, 2, 3, 93]);
        assert_eq!(buf.window_len(), 2 * WORD, "the window comes back with the buffer");

        let buf = endpoint.buffer(4 * WORD).with_window(2 * WORD..3 * WORD);
        (0..4).for_each(|word| buf.set(word, 70 + word as u64));
        ok(endpoint.write(at(server, 1040), buf).await);
        assert_eq!(get(endpoint, at(server, 1024), 4).await, [1, 2, 72, 4]);
    });
}

/// A new buffer has the requested length and its whole window, whatever the window of a recycled one was. A
/// verb gives back the buffer that it took.
pub fn buffers_come_back<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    suite.with_endpoint(4, async |endpoint| {
        for len in [8, 1024, 1032, 65_536, 16 << 20] {
            for _ in 0..3 {
                let buf = endpoint.buffer(len);
                assert_eq!((buf.len(), buf.window_len()), (len, len));
                endpoint.recycle(buf.with_window(8..8));
            }
        }
        let held: Vec<_> = (0..100).map(|_| endpoint.buffer(256)).collect();
        for (mark, buf) in (0..).zip(held) {
            buf.set(0, mark);
            let buf = ok(endpoint.write(at(server, 0), buf).await);
            assert_eq!(buf.get(0), mark);
            let buf = ok(endpoint.read(at(server, 0), buf).await);
            assert_eq!((buf.get(0), buf.len()), (mark, 256));
            endpoint.recycle(buf);
        }
    });
}

/// Compare-and-swap and fetch-and-add return the word before. A swap that finds another word changes nothing.
/// Sums wrap.
pub fn atomics<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(5, async |endpoint| {
        for server in suite.servers() {
            let word = at(server, 2048);
            put(endpoint, at(server, 2040), &[7, 10, 7]).await;
            assert_eq!(ok(endpoint.compare_swap(word, 10, 11).await), 10);
            assert_eq!(ok(endpoint.compare_swap(word, 10, 12).await), 11, "a stale swap");
            assert_eq!(ok(endpoint.read_word(word).await), 11);
            assert_eq!(ok(endpoint.fetch_add(word, u64::MAX - 10).await), 11);
            assert_eq!(ok(endpoint.fetch_add(word, 5).await), 0, "the sum wraps");
            assert_eq!(get(endpoint, at(server, 2040), 3).await, [7, 5, 7], "neighbours");
        }
    });
}

/// A masked swap compares and replaces only the bits of its masks.
pub fn masked_swaps<F: Fabric>(suite: &Suite<'_, F>) {
    let word = at(suite.servers()[0], 3072);
    suite.with_endpoint(6, async |endpoint| {
        let swap = async |expected, compare_mask, new, swap_mask| {
            let before = endpoint.masked_compare_swap(word, expected, compare_mask, new, swap_mask).await;
            (ok(before), ok(endpoint.read_word(word).await))
        };
        let start = 0x1111_2222_3333_4444;
        ok(endpoint.write_word(word, start).await);
        // The compared lane is 3333; the other bits of `expected` do not matter.
        let expected = (start, 0x1111_2222_9999_4444);
        assert_eq!(swap(0xFFFF_FFFF_3333_FFFF, 0xFFFF_0000, 0x9999_9999, 0xFFFF_0000).await, expected);
        let unchanged = (expected.1, expected.1);
        assert_eq!(swap(0x3333_0000, 0xFFFF_0000, 0, u64::MAX).await, unchanged, "the lane differs");
        // The compared bits may differ from the swapped ones.
        let swapped = (expected.1, 0x1111_2222_9999_4401);
        assert_eq!(swap(0x1111 << 48, 0xFFFF << 48, 0xFF01, 0x00FF).await, swapped);
        assert_eq!(swap(77, 0, 5, u64::MAX).await, (swapped.1, 5), "nothing compared");
        assert_eq!(swap(5, u64::MAX, 9, 0).await, (5, 5), "nothing swapped");
    });
}

/// Verbs of a chain see the effects of the previous ones, and results are in the order of the verbs.
pub fn chains_keep_order<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    suite.with_endpoint(7, async |endpoint| {
        let (data, lock) = (at(server, 8192), at(server, 8192 + 64));
        put(endpoint, data, &[1, 1]).await;
        put(endpoint, lock, &[0]).await;
        let from = endpoint.buffer(2 * WORD);
        (0..2).for_each(|word| from.set(word, 50 + word as u64));
        let chain = Chain::new()
            .compare_swap(lock, 0, 1)
            .read(data, endpoint.buffer(2 * WORD))
            .write(data, from)
            .compare_swap(lock, 0, 9)
            .fetch_add(data, 100)
            .read(data, endpoint.buffer(2 * WORD))
            .write_word(lock, 0)
            .compare_swap(lock, 0, 3);
        let results = ok(endpoint.submit(chain).await);
        let seen: Vec<Vec<u64>> = results
            .iter()
            .map(|result| match result {
                VerbResult::Buf(buf) => vec![buf.get(0), buf.get(1)],
                VerbResult::Word(word) => vec![*word],
                VerbResult::Done => vec![],
            })
            .collect();
        let expected: [&[u64]; 8] = [&[0], &[1, 1], &[50, 51], &[1], &[50], &[150, 51], &[], &[0]];
        assert_eq!(seen, expected);
        assert_eq!(ok(endpoint.read_word(lock).await), 3);
        assert!(ok(endpoint.submit(Chain::new()).await).is_empty(), "an empty chain");
        let window = endpoint.buffer(4 * WORD).with_window(2 * WORD..3 * WORD);
        window.set(0, 8);
        let results = ok(endpoint.submit(Chain::new().read(data, window)).await);
        let [VerbResult::Buf(buf)] = &results[..] else { panic!("one READ, one result: {results:?}") };
        assert_eq!((buf.get(0), buf.get(2)), (8, 150), "chains respect windows");
    });
}

/// Every verb is counted once, by kind and by the bytes of its window; in a chain as if it were alone.
pub fn counters_are_exact<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    suite.with_endpoint(8, async |endpoint| {
        let place = at(server, 16_384);
        let zero = VerbCounts::default();
        let mut last = endpoint.counters().snapshot();
        assert_eq!(last, zero, "a new endpoint");
        let mut expect = |name: &str, expected: VerbCounts| {
            let now = endpoint.counters().snapshot();
            assert_eq!(now - last, expected, "{name}");
            last = now;
        };
        let buf = endpoint.buffer(1024);
        expect("taking a buffer", zero);
        let buf = ok(endpoint.write(place, buf).await);
        expect("WRITE", VerbCounts { writes: 1, bytes_written: 1024, ..zero });
        let buf = ok(endpoint.read(place, buf.with_window(64..128)).await);
        expect("READ of a window", VerbCounts { reads: 1, bytes_read: 64, ..zero });
        ok(endpoint.read_word(place).await);
        expect("READ of a word", VerbCounts { reads: 1, bytes_read: 8, ..zero });
        ok(endpoint.write_word(place, 1).await);
        expect("WRITE of a word", VerbCounts { writes: 1, bytes_written: 8, ..zero });
        ok(endpoint.compare_swap(place, 1, 2).await);
        ok(endpoint.compare_swap(place, 1, 2).await);
        ok(endpoint.masked_compare_swap(place, 0, 1, 2, 3).await);
        ok(endpoint.fetch_add(place, 1).await);
        expect("atomics, one of them in vain", VerbCounts { atomics: 4, ..zero });
        let chain = Chain::new().fetch_add(place, 1).read(place, endpoint.buffer(512)).write(place, buf);
        ok(endpoint.submit(chain.write_word(place, 0).compare_swap(place, 0, 1)).await);
        let chained =
            VerbCounts { reads: 1, writes: 2, atomics: 2, bytes_read: 512, bytes_written: 72, ..zero };
        expect("a chain", chained);
        endpoint.yield_now().await;
        ok(endpoint.reserve(place, 4096).await);
        assert!(endpoint.read_word(at(server, suite.region_len(server))).await.is_err());
        expect("a pause, a reservation and a refused READ", zero);
    });
}

/// An endpoint reads what another one wrote, in both directions.
pub fn endpoints_see_each_other<F: Fabric>(suite: &Suite<'_, F>) {
    for server in suite.servers() {
        let place = at(server, 24_576);
        suite.with_endpoint(9, async |endpoint| put(endpoint, place, &[5; 128]).await);
        suite.with_endpoint(10, async |endpoint| {
            assert_eq!(get(endpoint, place, 128).await, [5; 128]);
            ok(endpoint.write_word(place, 6).await);
        });
        suite.with_endpoint(11, async |endpoint| assert_eq!(ok(endpoint.read_word(place).await), 6));
    }
}

/// A reserved range keeps its content and can be written. It may be reserved again.
pub fn ranges_are_reserved<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(12, async |endpoint| {
        for server in suite.servers() {
            let place = at(server, 65_536);
            put(endpoint, place, &[3; 8]).await;
            ok(endpoint.reserve(place, 100_000).await);
            ok(endpoint.reserve(place, 200_000).await);
            ok(endpoint.reserve(place, 0).await);
            assert_eq!(get(endpoint, place, 8).await, [3; 8]);
            put(endpoint, place.add(199_992), &[4]).await;
            let len = suite.region_len(server);
            let beyond = endpoint.reserve(place, len).await;
            assert!(matches!(beyond, Err(FabricError::OutOfRegion { .. })), "{beyond:?}");
        }
    });
}

/// Persisting a range does not change its content, whether or not the range was written.
pub fn ranges_are_made_to_last<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(13, async |endpoint| {
        for server in suite.servers() {
            let place = at(server, 65_544);
            put(endpoint, place, &[5; 8]).await;
            ok(endpoint.persist(place, 64).await);
            ok(endpoint.persist(at(server, 0), suite.region_len(server)).await);
            ok(endpoint.persist(place, 0).await);
            assert_eq!(get(endpoint, place, 8).await, [5; 8]);
        }
    });
}

/// A request unknown to the handler.
struct Unknown;

impl Request for Unknown {
    type Reply = ();
    const OP: u16 = 0xEC41;
    fn encode(&self, _: &mut Vec<u8>) {}
    fn decode_reply(&self, _: crate::MemoryServerId, _: &[u8]) -> crate::Result<()> {
        Ok(())
    }
}

/// A call reaches the named server and returns its reply; a server that cannot execute it refuses it.
pub fn calls<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(13, async |endpoint| {
        for server in suite.servers() {
            let before = endpoint.counters().snapshot();
            let answer = endpoint.call(server, &Echo(b"pando".to_vec())).await;
            let counted = endpoint.counters().snapshot() - before;
            assert_eq!(counted.two_sided, 1);
            if suite.options.echo {
                assert_eq!(ok(answer), (server, b"odnap".to_vec()));
                assert_eq!(counted.bytes_two_sided, 5 + 7);
                let large = vec![1; 1 << 20];
                assert_eq!(ok(endpoint.call(server, &Echo(large.clone())).await).1, large);
            } else {
                assert!(matches!(answer, Err(FabricError::Refused { .. })), "{answer:?}");
            }
            let empty = endpoint.call(server, &Echo(Vec::new())).await;
            assert!(matches!(empty, Err(FabricError::Refused { op: Echo::OP, .. })), "{empty:?}");
            let unknown = endpoint.call(server, &Unknown).await;
            assert!(matches!(unknown, Err(FabricError::Refused { op: Unknown::OP, .. })), "{unknown:?}");
        }
    });
}

/// The clock does not go back. A seed repeats its numbers, and different seeds share none.
pub fn clock_and_random_numbers<F: Fabric>(suite: &Suite<'_, F>) {
    let numbers = |seed| {
        let endpoint = ok(suite.fabric.endpoint(seed));
        (0..100).map(|_| endpoint.random()).collect::<Vec<_>>()
    };
    assert_eq!(numbers(1), numbers(1));
    assert!(numbers(1).iter().all(|number| !numbers(2).contains(number)), "seeds 1 and 2 share a number");
    let mut distinct = numbers(3);
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 100);
    suite.with_endpoint(14, async |endpoint| {
        let moments: Vec<_> = (0..1000).map(|_| endpoint.now()).collect();
        assert!(moments.is_sorted(), "the clock went back");
    });
}

#[derive(Default)]
struct WakeCount(AtomicU64);

impl Wake for WakeCount {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A yield is pending once, sets the bit of its slot and wakes its waker.
pub fn yields_set_the_slot_bit<F: Fabric>(suite: &Suite<'_, F>) {
    let endpoint = ok(suite.fabric.endpoint(15));
    assert_eq!(endpoint.slots(), 1);
    endpoint.set_slots(64);
    assert_eq!(endpoint.slots(), 64);
    endpoint.poll_ready();
    let wakes = Arc::new(WakeCount::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut cx = Context::from_waker(&waker);
    let mut pauses: Vec<_> = (0..3).map(|_| Box::pin(endpoint.yield_now())).collect();
    for (slot, pause) in [0, 17, 63].into_iter().zip(&mut pauses) {
        endpoint.enter_slot(slot);
        assert!(pause.as_mut().poll(&mut cx).is_pending());
    }
    assert_eq!(endpoint.poll_ready(), 1 | 1 << 17 | 1 << 63);
    assert_eq!(endpoint.poll_ready(), 0, "bits are taken once");
    assert_eq!(wakes.0.load(Relaxed), 3);
    for pause in &mut pauses {
        assert!(pause.as_mut().poll(&mut cx).is_ready());
    }
    assert_eq!(endpoint.poll_ready(), 0);
}
