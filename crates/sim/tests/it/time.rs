//! Clocks of computing threads, of endpoints outside of time, and of handlers of memory servers.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};

use pando_fabric::{
    Endpoint, FabricError, GlobalAddr, MemoryServerId, Request, RequestHandler, Resource, Result,
    ServerMemory, Work,
};
use pando_rt::block_on;
use pando_sim::{Model, SimConfig, SimFabric};

fn cluster(model: Model) -> SimFabric {
    let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 2, seed: 1, model };
    SimFabric::new(&config).expect("a sound model")
}

fn word(server: u16, offset: u64) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(server), offset)
}

#[test]
fn paced_threads_stay_together_and_pacing_takes_no_time() {
    let cluster = cluster(Model::default());
    let threads: Vec<_> = (0..4).map(|seed| cluster.thread(0, seed)).collect();
    let threads: Vec<_> = threads.iter().collect();
    let order = RefCell::new(Vec::new());
    let order = &order;
    let ends = cluster.run(&threads, 2, |thread, slot| {
        let ep = threads[thread];
        async move {
            for n in 0..50 {
                // Odd threads are slower, and the second slots are idle.
                ep.charge(Work::NodeSearch);
                if thread % 2 == 1 {
                    ep.charge(Work::NodeSearch);
                }
                if slot == 0 {
                    order.borrow_mut().push((ep.now(), thread, n));
                    ep.pace().await;
                }
                if slot == 1 {
                    break;
                }
            }
            ep.now()
        }
    });
    let search = Model::default().compute.node_search_ns;
    let order = order.borrow();
    // Entries are recorded before the pace, so each is early by at most one operation.
    let latest = order.iter().scan(0, |latest, &(now, ..)| {
        *latest = now.max(*latest);
        Some((*latest, now))
    });
    assert!(latest.into_iter().all(|(latest, now)| latest <= now + 2 * search), "{order:?}");
    // The second slot continued once, before or after the end of the first pace.
    let poll = Model::default().compute.poll_ns;
    for (thread, ends) in ends.iter().enumerate() {
        let step = search * (1 + thread as u64 % 2);
        let allowed = 50 * step..=51 * step + 2 * poll;
        assert!(allowed.contains(&ends[0]), "thread {thread} needed {} for 50 of {step}", ends[0]);
    }
}

/// A thread without other driven threads paces too.
#[test]
fn a_lone_thread_lets_events_catch_up() {
    let cluster = cluster(Model::default());
    let (ep, other) = (cluster.thread(0, 1), cluster.thread(1, 2));
    block_on(&ep, async {
        let add = std::pin::pin!(other.fetch_add(word(0, 64), 1));
        // One poll posts the verb.
        assert!(poll_once(add).is_none());
        for _ in 0..100 {
            ep.charge(Work::NodeSearch);
        }
        assert_eq!(cluster.direct(3).read_word(word(0, 64)).await.expect("up"), 0);
        ep.pace().await;
        assert_eq!(cluster.direct(3).read_word(word(0, 64)).await.expect("up"), 1);
    });
    assert!(ep.now() >= 8_000 && ep.now() < 8_000 + 500, "{}", ep.now());
}

/// Polls once.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

#[test]
fn direct_endpoints_are_outside_of_time() {
    let cluster = cluster(Model::default());
    let (thread, direct) = (cluster.thread(0, 1), cluster.direct(2));
    assert_eq!(block_on(&thread, thread.fetch_add(word(1, 8), 5)).expect("up"), 0);
    let now = cluster.now();
    let buf = direct.buffer(4096);
    for word in 0..512 {
        buf.set(word, word as u64);
    }
    // The verb is never pending, so one poll is enough.
    let written = poll_once(std::pin::pin!(direct.write(word(1, 4096), buf)));
    assert!(written.expect("at once").is_ok());
    assert_eq!(poll_once(std::pin::pin!(direct.read_word(word(1, 4104)))).expect("at once").expect("up"), 1);
    assert_eq!(block_on(&direct, direct.read_word(word(1, 8))).expect("up"), 5);
    direct.charge(Work::NodeSearch);
    assert_eq!((cluster.now(), direct.now()), (now, now));
    let counts = direct.counters().snapshot();
    assert_eq!((counts.writes, counts.reads, counts.bytes_written), (1, 2, 4096));
    // An unsuccessful wait sees time pass.
    block_on(&direct, direct.yield_now());
    assert!(direct.now() > now && cluster.now() == now);
}

struct Walk {
    nodes: u64,
}

impl Request for Walk {
    type Reply = u64;
    const OP: u16 = 7;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend(self.nodes.to_le_bytes());
    }

    fn decode_reply(&self, _: MemoryServerId, reply: &[u8]) -> Result<u64> {
        Ok(u64::from_le_bytes(reply.try_into().expect("eight bytes")))
    }
}

/// Searches as many nodes as the call says, and counts calls in a word of its server.
struct Walker;

impl RequestHandler for Walker {
    fn handle(&self, memory: &ServerMemory<'_>, _: u16, body: &[u8], reply: &mut Vec<u8>) -> Result<()> {
        let nodes = u64::from_le_bytes(body.try_into().expect("eight bytes"));
        for _ in 0..nodes {
            memory.charge(Work::NodeSearch);
        }
        let before = memory.words(GlobalAddr::new(memory.server(), 64), 8)?[0].fetch_add(1, Relaxed);
        reply.extend(before.to_le_bytes());
        Ok(())
    }
}

/// Latencies of `calls` concurrent calls of `nodes` nodes each, on a server with `cores` cores.
fn latencies(cores: usize, calls: usize, nodes: u64) -> Vec<u64> {
    let mut model = Model::default();
    model.memory_server.cores = cores;
    let cluster = cluster(model);
    cluster.set_handler(Arc::new(Walker));
    let threads: Vec<_> = (0..calls).map(|seed| cluster.thread(0, seed as u64)).collect();
    let threads: Vec<_> = threads.iter().collect();
    let found = cluster.run(&threads, 1, |thread, _| {
        let ep = threads[thread];
        async move {
            let before = ep.call(MemoryServerId(1), &Walk { nodes }).await?;
            Ok::<_, FabricError>((before, ep.now()))
        }
    });
    let mut found: Vec<_> = found.into_iter().flatten().map(|found| found.expect("it is up")).collect();
    found.sort_unstable();
    assert!(found.iter().zip(0..).all(|((before, _), n)| *before == n), "each call was executed once");
    found.into_iter().map(|(_, latency)| latency).collect()
}

#[test]
fn what_a_handler_charges_makes_its_call_longer() {
    let search = Model::default().memory_server.node_search_ns;
    let (short, long) = (latencies(1, 1, 0)[0], latencies(1, 1, 100)[0]);
    assert_eq!(long, short + 100 * search);
    // Ten calls run one after the other on one core, and in two rounds on five.
    let dispatch = Model::default().memory_server.dispatch_ns;
    for (cores, rounds) in [(1, 10), (5, 2), (10, 1)] {
        let last = latencies(cores, 10, 100).into_iter().max().expect("ten");
        let expected = short + rounds * 100 * search + (rounds - 1) * dispatch;
        assert!((expected..expected + 500).contains(&last), "{cores} cores: {last}, not {expected}");
    }
}

#[test]
fn who_sleeps_wakes_in_time_and_others_go_on() {
    let cluster = cluster(Model::default());
    let threads = [cluster.thread(0, 1), cluster.thread(1, 2)];
    let threads: Vec<_> = threads.iter().collect();
    let at = cluster.now() + 100_000;
    let outputs = cluster.run(&threads, 2, |thread, slot| {
        let ep = threads[thread];
        async move {
            if slot == 1 {
                ep.sleep_until(at).await;
                let awake = ep.now();
                ep.sleep_until(at).await;
                return (awake, ep.now() - awake);
            }
            let mut reads = 0;
            while ep.now() < 2 * at {
                ep.read_word(word(0, 64)).await.expect("it is up");
                reads += 1;
            }
            (ep.now(), reads)
        }
    });
    for slots in outputs {
        // The other slot may be computing at that time.
        assert!((at..at + 1_000).contains(&slots[1].0), "{slots:?}");
        assert_eq!(slots[1].1, 0, "what is past is not waited for");
        assert!(slots[0].1 > 80, "READs of 2 us each: {slots:?}");
    }
    let direct = cluster.direct(3);
    let before = direct.now();
    block_on(&direct, direct.sleep_until(before + 1_000));
    assert_eq!(direct.now(), before);
    let alone = cluster.thread(0, 4);
    let until = alone.now() + 5_000;
    block_on(&alone, alone.sleep_until(until));
    assert!((until..until + 1_000).contains(&alone.now()));
}

/// Virtual time in which `threads` threads of each of `servers` servers take a resource 100 times.
fn contending(servers: usize, threads: usize, resource: impl Fn(usize) -> Resource) -> u64 {
    let config =
        SimConfig { regions: vec![1 << 20], compute_servers: servers, seed: 1, model: Model::default() };
    let cluster = SimFabric::new(&config).expect("a sound model");
    let threads: Vec<_> =
        (0..servers * threads).map(|thread| cluster.thread(thread % servers, thread as u64)).collect();
    let threads: Vec<_> = threads.iter().collect();
    let resource = &resource;
    let ends = cluster.run(&threads, 1, |thread, _| {
        let ep = threads[thread];
        async move {
            for _ in 0..100 {
                ep.charge(Work::Hold(resource(thread)));
                ep.pace().await;
            }
            ep.now()
        }
    });
    ends.into_iter().flatten().max().expect("some threads")
}

#[test]
fn threads_of_a_server_wait_for_each_other_and_for_nobody_else() {
    let queue = Model::default().compute.bucket_ns;
    let alone = contending(1, 1, |_| Resource::CoolingQueue);
    assert!((100 * queue..110 * queue).contains(&alone), "{alone}");
    let hand_over = Model::default().compute.hand_over_ns;
    let eight = contending(1, 8, |_| Resource::CoolingQueue);
    assert!(eight >= 800 * queue + 700 * hand_over, "eight threads one after the other: {eight}");
    assert_eq!(contending(8, 1, |_| Resource::CoolingQueue), alone, "each server has its own");
    let latch = contending(1, 8, |thread| Resource::Frame(thread as u32));
    assert!(latch < 101 * Model::default().compute.latch_ns.max(1), "each thread has its own: {latch}");
}

#[test]
fn a_memory_server_joins_in_the_middle_of_a_run() {
    let cluster = cluster(Model::default());
    let threads: Vec<_> = (0..2).map(|thread| cluster.thread(thread, 1)).collect();
    let threads: Vec<_> = threads.iter().collect();
    let ends = cluster.run(&threads, 1, |thread, _| {
        let (ep, cluster) = (threads[thread], &cluster);
        async move {
            let unknown = ep.read_word(word(2, 0)).await;
            assert!(matches!(unknown, Err(FabricError::UnknownServer(_))), "{unknown:?}");
            if thread == 0 {
                ep.read_word(word(0, 0)).await.expect("it is there");
                assert_eq!(cluster.add_memory_server(1 << 16).expect("memory"), MemoryServerId(2));
                assert_eq!(ep.fetch_add(word(2, 8), 7).await.expect("it is there"), 0);
            }
            // The second server existed before.
            while !matches!(ep.read_word(word(2, 8)).await, Ok(7)) {
                ep.read_word(word(1, 0)).await.expect("it is there");
            }
            assert_eq!(ep.regions().len(), 3);
            ep.now()
        }
    });
    assert!(ends.into_iter().flatten().all(|end| end > 4_000), "verbs there take their time");
    assert_eq!(
        block_on(&cluster.direct(1), cluster.direct(1).read_word(word(2, 8))).expect("it is there"),
        7
    );
}

/// Otherwise its first operation after the run would seem to have lasted since its previous one.
#[test]
fn a_thread_that_ends_early_has_the_time_of_the_others_after_the_run() {
    let cluster = cluster(Model::default());
    let threads = [cluster.thread(0, 1), cluster.thread(1, 2)];
    let [early, late] = &threads;
    cluster.run(&[early, late], 1, |thread, _| {
        let ep = &threads[thread];
        async move {
            if thread == 1 {
                ep.sleep_until(5_000_000).await;
            }
            ep.read_word(word(0, 64)).await.expect("a word");
        }
    });
    assert!(early.now() >= 5_000_000 && late.now() >= 5_000_000, "{} and {}", early.now(), late.now());
    let begun = early.now();
    block_on(early, early.read_word(word(0, 64))).expect("a word");
    assert!(early.now() - begun < 100_000, "one READ took {} ns", early.now() - begun);
}
