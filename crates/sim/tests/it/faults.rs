//! Faults: each kind alone, and plans of all kinds.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use pando_fabric::conformance::Echo;
use pando_fabric::{Endpoint, FabricError, GlobalAddr, MemoryServerId, Nanos, Result};
use pando_rt::block_on;
use pando_sim::{Fault, FaultBounds, FaultKind, FaultPlan, Faults, Model, SimConfig, SimEndpoint, SimFabric};

const SERVER: MemoryServerId = MemoryServerId(1);

fn cluster(faults: Faults) -> SimFabric {
    let model = Model { faults, ..Model::default() };
    let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 2, seed: 1, model };
    SimFabric::new(&config).expect("a sound model")
}

fn calm() -> Faults {
    Faults { torn_share: 0.0, ..Faults::default() }
}

fn word(offset: u64) -> GlobalAddr {
    GlobalAddr::new(SERVER, offset)
}

/// Result and latency of one addition to a word.
fn add(ep: &SimEndpoint, at: GlobalAddr) -> (Result<u64>, Nanos) {
    let before = ep.now();
    let found = block_on(ep, ep.fetch_add(at, 1));
    (found, ep.now() - before)
}

/// The word at `at`, independent of faults.
fn look(cluster: &SimFabric, at: GlobalAddr) -> u64 {
    let direct = cluster.direct(0);
    block_on(&direct, direct.read_word(at)).expect("it is up")
}

#[test]
fn a_slow_server_is_slow_until_it_is_not() {
    let cluster = cluster(calm());
    let ep = cluster.thread(0, 1);
    let usual = add(&ep, word(64)).1;
    cluster.fail(Fault::Slow { server: SERVER, factor: 10 });
    let slow = add(&ep, word(64)).1;
    assert!((8 * usual..=11 * usual).contains(&slow), "{usual} ns, and {slow} ns ten times slower");
    assert_eq!(add(&ep, GlobalAddr::new(MemoryServerId(0), 64)).1, usual, "the other server");
    cluster.fail(Fault::Slow { server: SERVER, factor: 1 });
    assert_eq!(add(&ep, word(64)).1, usual);
}

#[test]
fn a_server_that_goes_on_in_time_has_lost_nothing() {
    let cluster = cluster(calm());
    let ep = cluster.thread(0, 1);
    cluster.fail(Fault::Stop { server: SERVER });
    cluster.plan(&FaultPlan { faults: vec![(300_000, Fault::Resume { server: SERVER })] });
    let (found, latency) = add(&ep, word(64));
    assert_eq!(found.expect("it went on"), 0);
    assert!((300_000..600_000).contains(&latency), "{latency}");
    cluster.fail(Fault::Stop { server: SERVER });
    let (found, latency) = add(&ep, word(64));
    assert!(matches!(found, Err(FabricError::TimedOut(SERVER))), "{found:?}");
    assert!((900_000..=1_100_000).contains(&latency), "{latency}");
    cluster.fail(Fault::Resume { server: SERVER });
    assert_eq!(look(&cluster, word(64)), 1, "what timed out there took no effect");
}

#[test]
fn what_a_killed_server_was_doing_fails_and_its_memory_is_kept_or_lost() {
    for memory_lost in [false, true] {
        let mut model = Model { faults: calm(), ..Model::default() };
        model.memory_server.cores = 1;
        let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 1, seed: 1, model };
        let cluster = SimFabric::new(&config).expect("a sound model");
        cluster.set_handler(Echo::handler());
        let threads: Vec<_> = (0..40).map(|seed| cluster.thread(0, seed)).collect();
        add(&threads[0], word(64)).0.expect("up");
        let began = cluster.now();
        cluster.plan(&FaultPlan {
            faults: vec![
                (began + 1_900, Fault::Kill { server: SERVER }),
                (began + 20_000, Fault::Restart { server: SERVER, memory_lost }),
            ],
        });
        // Verbs on the way to the server and on the way back; calls in execution and waiting for the core.
        let threads: Vec<_> = threads.iter().collect();
        let outcomes = cluster.run(&threads, 1, |thread, _| {
            let ep = threads[thread];
            async move {
                match thread % 2 {
                    0 => ep.fetch_add(word(64), 1).await.map(drop),
                    _ => ep.call(SERVER, &Echo(vec![1, 2])).await.map(drop),
                }
            }
        });
        let failed = outcomes.iter().flatten().filter(|outcome| outcome.is_err()).count();
        assert!(failed > 20, "{failed} of 40");
        for outcome in outcomes.into_iter().flatten().filter_map(Result::err) {
            assert!(matches!(outcome, FabricError::ServerUnreachable(SERVER)), "{outcome:?}");
        }
        assert!(cluster.now() - began < 20_000, "nobody had to wait for a timeout");
        // An addition posted while the server is down does not end before it is back.
        let again = add(threads[0], word(64)).0;
        assert!(matches!(again, Err(FabricError::ServerUnreachable(SERVER))), "{again:?}");
        assert!(cluster.now() - began >= 20_000);
        let left = look(&cluster, word(64));
        assert!(if memory_lost { left == 0 } else { left >= 1 }, "{left}");
        assert_eq!(add(threads[0], word(64)).0.expect("it is back"), left);
        // The calls from before the restart do not occupy its core.
        assert!(block_on(threads[0], threads[0].call(SERVER, &Echo(vec![3]))).is_ok());
    }
}

#[test]
fn the_verbs_of_a_killed_compute_server_still_take_effect() {
    let cluster = cluster(calm());
    let threads: Vec<_> = (0..6).map(|thread| cluster.thread(thread / 3, thread as u64)).collect();
    let threads: Vec<_> = threads.iter().collect();
    cluster.plan(&FaultPlan { faults: vec![(100_600, Fault::KillCompute { compute_server: 1 })] });
    let (begun, dropped) = (Cell::new(0), Cell::new(0));
    struct Dropped<'c>(&'c Cell<u32>);
    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let (begun, dropped) = (&begun, &dropped);
    let outcomes = cluster.run_mortals(&threads, 2, |thread, _| {
        let ep = threads[thread];
        async move {
            let _dropped = Dropped(dropped);
            while ep.now() < 200_000 {
                if thread >= 3 {
                    begun.set(begun.get() + 1);
                }
                ep.fetch_add(word(64 + 8 * (thread as u64 / 3)), 1).await?;
            }
            Ok::<_, FabricError>(ep.now())
        }
    });
    assert_eq!(dropped.get(), 12);
    for (thread, slots) in outcomes.iter().enumerate() {
        for slot in slots {
            match slot {
                Some(ended) => assert!(thread < 3 && *ended.as_ref().expect("up") >= 200_000),
                None => assert!(thread >= 3, "thread {thread} of the other server"),
            }
        }
    }
    // Additions posted before the kill took effect, except for those that were not posted yet at its time.
    let (added, posted) = (look(&cluster, word(72)), begun.get());
    assert!((posted - 6..=posted).contains(&added) && added > posted - 6, "{added} of {posted}");
    assert_eq!(cluster.now() / 1_000, 200_000 / 1_000 + 2, "the others went on");
}

#[test]
fn a_lost_connection_fails_both_ways_and_for_one_pair_only() {
    let cluster = cluster(calm());
    let threads: Vec<_> = (0..100).map(|seed| cluster.thread(0, seed)).collect();
    let threads: Vec<_> = threads.iter().collect();
    // Some operations are on the way to the server, others on the way back.
    cluster
        .plan(&FaultPlan { faults: vec![(1_400, Fault::Disconnect { compute_server: 0, server: SERVER })] });
    let outcomes = cluster.run(&threads, 1, |thread, _| {
        let ep = threads[thread];
        async move {
            ep.charge(pando_fabric::Work::Copy { bytes: 64 * thread * 3 });
            ep.fetch_add(word(64 + 8 * thread as u64), 1).await
        }
    });
    let mut seen = BTreeSet::new();
    for (thread, outcome) in outcomes.into_iter().flatten().enumerate() {
        seen.insert((outcome.is_ok(), look(&cluster, word(64 + 8 * thread as u64))));
    }
    assert_eq!(seen, BTreeSet::from([(false, 0), (false, 1)]), "failed with and without effect");
    let (found, latency) = add(threads[0], word(8));
    let not_sent = matches!(found, Err(FabricError::NotConnected { server: SERVER, .. }));
    assert!(not_sent && latency < 10_000, "{found:?}");
    assert!(add(threads[0], GlobalAddr::new(MemoryServerId(0), 8)).0.is_ok(), "to the other memory server");
    assert!(add(&cluster.thread(1, 0), word(8)).0.is_ok(), "from the other compute server");
    cluster.fail(Fault::Reconnect { compute_server: 0, server: SERVER });
    assert_eq!(add(threads[0], word(8)).0.expect("connected"), 1);
}

#[test]
fn a_verb_whose_answer_is_lost_took_effect() {
    let cluster = cluster(Faults { lost_answer_share: 1.0, ..calm() });
    cluster.set_handler(Echo::handler());
    let ep = cluster.thread(0, 1);
    let (found, latency) = add(&ep, word(64));
    assert!(matches!(found, Err(FabricError::TimedOut(SERVER))), "{found:?}");
    assert!((1_000_000..1_010_000).contains(&latency), "{latency}");
    assert_eq!(look(&cluster, word(64)), 1);
    let said = block_on(&ep, ep.call(SERVER, &Echo(vec![1])));
    assert!(matches!(said, Err(FabricError::TimedOut(SERVER))), "{said:?}");
}

#[test]
fn spikes_delay_a_share_of_ways() {
    let latencies = |share| -> Vec<_> {
        let cluster = cluster(Faults { spike_share: share, spike_ns: 50_000, ..calm() });
        let ep = cluster.thread(0, 1);
        (0..200).map(|_| add(&ep, word(64)).1).collect()
    };
    let (usual, some) = (latencies(0.0), latencies(0.1));
    assert_eq!(some, latencies(0.1), "the same seed is the same history");
    let late = some.iter().zip(&usual).filter(|(some, usual)| some > usual).count();
    assert!((20..60).contains(&late), "{late} of 200: a fifth has one of its two ways delayed");
    assert!(*some.iter().max().expect("200") > 20_000 && some.iter().all(|ns| *ns < 110_000));
}

#[test]
fn a_queue_pair_has_sixteen_reads_outstanding() {
    let elapsed = |limit, slots| {
        let mut model = Model { faults: calm(), ..Model::default() };
        model.network.reads_outstanding = limit;
        let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 1, seed: 1, model };
        let cluster = SimFabric::new(&config).expect("a sound model");
        let ep = cluster.thread(0, 1);
        let outcomes = cluster.run(&[&ep], slots, |_, _| ep.read_word(word(64)));
        assert!(outcomes.into_iter().flatten().all(|outcome| outcome.is_ok()));
        cluster.now()
    };
    let (at_once, in_rounds) = (elapsed(64, 64), elapsed(16, 64));
    assert!(at_once < 8_000, "64 at once take {at_once} ns");
    assert!(in_rounds >= 4 * 2_000 && in_rounds > at_once, "four rounds take {in_rounds} ns");
    assert_eq!(elapsed(16, 16), elapsed(64, 16));
}

#[test]
fn compute_and_memory_server_of_a_machine_share_a_nic() {
    // Both servers of machine 0 send pages: one answers READs of machine 1, the other WRITEs to it.
    let elapsed = |nic_shared| {
        let mut model = Model { faults: calm(), ..Model::default() };
        model.network.nic_shared = nic_shared;
        let config = SimConfig { regions: vec![1 << 20; 2], compute_servers: 2, seed: 1, model };
        let cluster = SimFabric::new(&config).expect("a sound model");
        let threads: Vec<_> = (0..8).map(|thread| cluster.thread(thread / 4, thread as u64)).collect();
        let threads: Vec<_> = threads.iter().collect();
        let outcomes = cluster.run(&threads, 8, |thread, slot| {
            let ep = threads[thread];
            async move {
                for _ in 0..50 {
                    let buf = ep.buffer(4096);
                    let at = u64::from(slot) * 4096;
                    let buf = match thread / 4 {
                        0 => ep.write(GlobalAddr::new(MemoryServerId(1), at), buf).await,
                        _ => ep.read(GlobalAddr::new(MemoryServerId(0), at), buf).await,
                    };
                    ep.recycle(buf?);
                }
                Ok::<_, FabricError>(())
            }
        });
        assert!(outcomes.into_iter().flatten().all(|outcome| outcome.is_ok()));
        cluster.now()
    };
    let (alone, shared) = (elapsed(false), elapsed(true));
    // 1,600 pages of 4 KiB each way out of one NIC at 11 GB/s.
    assert!(alone > 1_600 * 4096 / 11 && shared > 3 * alone / 2, "{alone} and {shared}");
}

fn bounds(faults: usize) -> FaultBounds {
    FaultBounds {
        compute_servers: 2,
        memory_servers: 2,
        from: 10_000,
        until: 5_000_000,
        faults,
        usual: calm(),
    }
}

#[test]
fn after_a_plan_all_is_well_again() {
    let kinds = FaultKind::ALL;
    assert_eq!(FaultPlan::draw(3, &kinds, &bounds(8)), FaultPlan::draw(3, &kinds, &bounds(8)));
    assert_ne!(FaultPlan::draw(3, &kinds, &bounds(8)), FaultPlan::draw(4, &kinds, &bounds(8)));
    let mut failures = 0;
    for seed in 0..200 {
        let plan = FaultPlan::draw(seed, &kinds, &bounds(8));
        assert!(plan.faults.is_sorted_by_key(|(at, _)| *at));
        assert!(plan.faults.iter().all(|(at, _)| (10_000..=5_000_000).contains(at)), "{plan:?}");
        let cluster = cluster(calm());
        cluster.plan(&plan);
        let threads: Vec<_> = (0..4).map(|thread| cluster.thread(thread / 2, thread as u64)).collect();
        let threads: Vec<_> = threads.iter().collect();
        let outcomes = cluster.run_mortals(&threads, 1, |thread, _| {
            let ep = threads[thread];
            async move {
                let (mut failed, mut later) = (0, 0);
                while later < 20 {
                    let server = MemoryServerId((ep.random() % 2) as u16);
                    let began = ep.now();
                    let outcome = ep.fetch_add(GlobalAddr::new(server, 64), 1).await;
                    let well = began > 5_000_000;
                    assert!(!well || outcome.is_ok(), "seed {seed}, at {began}: {outcome:?}");
                    failed += u64::from(outcome.is_err());
                    later += u64::from(well);
                    if let Err(error) = outcome {
                        assert!(error.is_unreachable(), "{error}");
                    }
                }
                failed
            }
        });
        let ended = outcomes.iter().flatten().flatten();
        failures += ended.clone().sum::<u64>();
        assert!(ended.count() >= 2, "seed {seed}: one compute server survives");
    }
    assert!(failures > 1_000, "{failures} verbs failed in 200 plans");
}

#[test]
fn kinds_of_faults_have_names() {
    for kind in FaultKind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    let error = "stopp".parse::<FaultKind>().expect_err("no such name").to_string();
    assert!(error.contains("stopp") && error.contains("kill-memory"), "{error}");
}

#[test]
fn a_handler_may_be_shared() {
    let cluster = cluster(calm());
    let handler = Echo::handler();
    cluster.set_handler(Arc::clone(&handler));
    drop(cluster);
    assert_eq!(Arc::strong_count(&handler), 1, "a cluster that is gone keeps no handler");
}
