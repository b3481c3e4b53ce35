//! A simulated cluster: threads of several compute servers, torn READs and WRITEs, one history per seed.
//! Every slot owns a share of the keys and checks every answer for them against a model.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::common::{Life, Setup, Shape, audit, value};
use pando_fabric::{Endpoint, Nanos, Random, VerbCounts};
use pando_pool::{AttachOptions, Pool, PoolOptions, ProcessIdentity};
use pando_rt::block_on;
use pando_sim::{Fault, FaultPlan, Faults, Model, SimConfig, SimFabric};
use pando_smart::{CachePolicy, NodeRoom, Partition, Smart, SmartConfig, SmartError, Techniques};

fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

struct Draw(Random);

impl Draw {
    fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[(self.0.next() >> 32) as usize % choices.len()]
    }
}

fn cluster(seed: u64, compute_servers: usize, torn_share: f64) -> SimFabric {
    let faults = Faults { torn_share, ..Faults::default() };
    let config = SimConfig {
        regions: vec![8 << 20; 2],
        compute_servers,
        seed,
        model: Model { faults, ..Model::default() },
    };
    SimFabric::new(&config).expect("a sound model")
}

fn open(fabric: &SimFabric, pool: &Pool, configs: &[SmartConfig]) -> Vec<Smart> {
    let ep = fabric.direct(7);
    let opened = configs
        .iter()
        .map(|config| block_on(&ep, Smart::open(&ep, pool.clone(), config.clone())).expect("opened"));
    opened.collect()
}

/// Runs one history with options drawn from the seed; returns all verbs, and the virtual time it took.
fn run(seed: u64, techniques: Techniques) -> (VerbCounts, Nanos) {
    let draw = Draw(Random::new(seed));
    let compute_servers = draw.one_of(&[1, 2, 3]);
    let fabric = cluster(seed, compute_servers, draw.one_of(&[0.0, 0.1, 1.0]));
    let ep = fabric.direct(seed);
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let setup = Setup {
        node_room: draw.one_of(&[NodeRoom::Full, NodeRoom::Exact]),
        cache_bytes: draw.one_of(&[0, 8 << 10, 1 << 20]),
        cache_policy: draw.one_of(&[CachePolicy::Fifo, CachePolicy::Scalable]),
        limbo_bytes: draw.one_of(&[512, 4 << 10, 1 << 20]),
        ..Setup::new(techniques)
    };
    let mut config = block_on(&ep, setup.create(&ep, &pool));
    config.patience_ns = 50_000_000;
    let indexes = open(&fabric, &pool, &vec![config; compute_servers]);
    let (threads, slots) = (draw.one_of(&[1, 3, 6]), draw.one_of(&[1, 3]));
    let owners = threads * slots;
    let shape = draw.one_of(&[Shape::Dense, Shape::Sparse, Shape::Strings]);
    let keys = draw.one_of(&[20, 200]);
    let endpoints: Vec<_> = (0..threads)
        .map(|thread| fabric.thread(thread as usize % compute_servers, seed * 100 + thread))
        .collect();
    let models = fabric.run(&endpoints.iter().collect::<Vec<_>>(), slots as u32, |thread, slot| {
        let owner = thread as u64 * slots + u64::from(slot);
        let life = Life { shape, keys, owner, owners, operations: 900 / owners };
        life.live(&indexes[thread % compute_servers], &endpoints[thread])
    });
    let entries = models.iter().flatten().map(|model| model.len() as u64).sum();
    audit(&fabric.direct(99), &indexes.iter().collect::<Vec<_>>(), entries);
    (endpoints.iter().map(|ep| ep.counters().snapshot()).sum(), fabric.now())
}

#[test]
fn every_step_from_art_to_smart() {
    for seed in seeds(60) {
        for (name, techniques) in Techniques::STEPS {
            // Shown if the test fails.
            eprintln!("seed {seed}, {name}");
            run(seed, techniques);
        }
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    for (_, techniques) in [Techniques::STEPS[0], Techniques::STEPS[5]] {
        assert_eq!(run(5, techniques), run(5, techniques));
    }
}

/// Partitioned compute servers, each of whose slots owns some of its keys.
fn run_partitioned(seed: u64, techniques: Techniques) -> VerbCounts {
    const KEYS: u64 = 240;
    let draw = Draw(Random::new(seed));
    let compute_servers = draw.one_of(&[1, 2, 3]);
    let fabric = cluster(seed, compute_servers as usize, draw.one_of(&[0.0, 0.1, 1.0]));
    let ep = fabric.direct(seed);
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    let setup =
        Setup { node_room: draw.one_of(&[NodeRoom::Full, NodeRoom::Exact]), ..Setup::new(techniques) };
    let mut config = block_on(&ep, setup.create(&ep, &pool));
    config.patience_ns = 50_000_000;
    let bound = |server: u64| match server {
        0 => None,
        _ if server == compute_servers => None,
        _ => Some(((KEYS * server / compute_servers) << 16).to_be_bytes().to_vec()),
    };
    let config_of = |server: u64| {
        let low = bound(server).map_or(Bound::Unbounded, Bound::Included);
        let high = bound(server + 1).map_or(Bound::Unbounded, Bound::Excluded);
        SmartConfig { partition: Some(Partition { low, high }), ..config.clone() }
    };
    let indexes = open(&fabric, &pool, &(0..compute_servers).map(config_of).collect::<Vec<_>>());
    let (threads, slots) = (2 * compute_servers, draw.one_of(&[1, 3]));
    let endpoints: Vec<_> = (0..threads)
        .map(|thread| fabric.thread((thread % compute_servers) as usize, seed * 100 + thread))
        .collect();
    let counts = fabric.run(&endpoints.iter().collect::<Vec<_>>(), slots as u32, |thread, slot| {
        let (ep, thread) = (&endpoints[thread], thread as u64);
        let server = thread % compute_servers;
        let smart = &indexes[server as usize];
        async move {
            let (low, high) = (KEYS * server / compute_servers, KEYS * (server + 1) / compute_servers);
            let (member, members) = (thread / compute_servers * slots + u64::from(slot), 2 * slots);
            let key = |k: u64| (k << 16).to_be_bytes();
            let mut model = std::collections::BTreeMap::new();
            for n in 0..300 / members {
                let k = low + ep.random() % (high - low) / members * members + member;
                if k >= high {
                    continue;
                }
                match ep.random() >> 40 & 3 {
                    0 => {
                        let existed = smart.remove(ep, &key(k)).await.expect("no error");
                        assert_eq!(existed, model.remove(&k).is_some());
                    }
                    1 => {
                        let mut out = Vec::new();
                        let found = smart.get(ep, &key(k), &mut out).await.expect("no error");
                        assert_eq!(found.then_some(out), model.get(&k).map(|&n| value(k, n)));
                    }
                    _ => {
                        let existed = smart.put(ep, &key(k), &value(k, n)).await.expect("no error");
                        assert_eq!(existed, model.insert(k, n).is_some());
                    }
                }
                ep.pace().await;
            }
            let other = (KEYS * (server + 1) / compute_servers % KEYS) << 16;
            if compute_servers > 1 {
                let refused = smart.put(ep, &other.to_be_bytes(), b"").await;
                assert!(matches!(refused, Err(SmartError::NotOwned)), "{refused:?}");
            }
            model.len() as u64
        }
    });
    let entries = counts.into_iter().flatten().sum();
    audit(&fabric.direct(99), &indexes.iter().collect::<Vec<_>>(), entries);
    endpoints.iter().map(|ep| ep.counters().snapshot()).sum()
}

#[test]
fn every_step_with_partitions() {
    for seed in seeds(30) {
        for (name, techniques) in Techniques::STEPS {
            eprintln!("seed {seed}, {name}");
            run_partitioned(seed, techniques);
        }
    }
}

/// One of two processes is killed during its changes; the other continues, also with the keys of the first.
fn a_process_is_killed(seed: u64, techniques: Techniques) -> u64 {
    const LATE: Nanos = 1_000_000;
    const KEYS: u64 = 60;
    let fabric = cluster(seed, 2, 0.1);
    let ep = fabric.direct(seed);
    let at = ep.now() + 50_000 + Random::new(seed ^ 0xdead).next() % 400_000;
    let direct = fabric.direct_fabric();
    let is_alive = Arc::new(move |process: &ProcessIdentity| {
        use pando_fabric::Fabric;
        process.pid == 1 || direct.endpoint(0).expect("an endpoint").now() < at + LATE
    });
    let attach = |pid| {
        let process = ProcessIdentity { pid, ..ProcessIdentity::default() };
        AttachOptions::new(process, is_alive.clone()).wait_ns_max(20_000_000)
    };
    let first = block_on(&ep, Pool::create(&ep, PoolOptions::new(attach(1)))).expect("a pool");
    let second = block_on(&ep, Pool::attach(&ep, attach(2))).expect("attached");
    let mut config = block_on(&ep, Setup::new(techniques).create(&ep, &first));
    config.patience_ns = 20_000_000;
    let indexes = [first, second].map(|pool| open(&fabric, &pool, std::slice::from_ref(&config)).remove(0));
    fabric.plan(&FaultPlan { faults: vec![(at, Fault::KillCompute { compute_server: 1 })] });
    let endpoints: Vec<_> = (0..2).map(|server| fabric.thread(server, seed * 10 + server as u64)).collect();
    let until = at + 2 * LATE;
    fabric.run_mortals(&endpoints.iter().collect::<Vec<_>>(), 4, |thread, slot| {
        let (ep, smart) = (&endpoints[thread], &indexes[thread]);
        async move {
            let mut n = 0;
            while ep.now() < until {
                n += 1;
                // All slots work on the same keys.
                let k = ep.random() % KEYS;
                let key = Shape::Strings.key(k);
                match ep.random() >> 40 & 3 {
                    0 => drop(smart.remove(ep, &key).await.expect("no error")),
                    1 => drop(smart.scan(ep, (Bound::Unbounded, Bound::Unbounded), 9, |_, _| true).await),
                    _ => drop(
                        smart.put(ep, &key, &value(k, n * 10 + u64::from(slot))).await.expect("no error"),
                    ),
                }
                ep.pace().await;
            }
        }
    });
    // Everything can be changed, and nothing is locked any more.
    let (ep, smart) = (fabric.thread(0, 1), &indexes[0]);
    block_on(&ep, async {
        for k in 0..KEYS {
            smart.put(&ep, &Shape::Strings.key(k), &value(k, 3)).await.expect("no error");
        }
        for k in 0..KEYS {
            assert_eq!(crate::common::get(smart, &ep, Shape::Strings, k).await, Some(3), "{k}");
            assert!(smart.remove(&ep, &Shape::Strings.key(k)).await.expect("no error"), "{k}");
        }
        smart.reclaim(&ep).await.expect("no error");
    });
    let audit = block_on(&ep, smart.audit(&ep)).expect("no error");
    let is_harmless = |violation: &String| violation.contains("frozen");
    let wrong: Vec<_> = audit.violations.iter().filter(|violation| !is_harmless(violation)).collect();
    assert!(wrong.is_empty() && audit.entries == 0, "seed {seed}: {wrong:?}");
    smart.pool().locks_taken_over()
}

#[test]
fn what_a_killed_process_had_locked_is_put_right() {
    for (name, techniques) in Techniques::STEPS {
        let mut taken_over = 0;
        for seed in seeds(40) {
            eprintln!("seed {seed}, {name}");
            taken_over += a_process_is_killed(seed, techniques);
        }
        eprintln!("{name}: {taken_over} locks were taken over");
        // A rear lock is held so briefly that few are left.
        let has_table = techniques.in_place_leaves && !techniques.rear_locks;
        let locks = !techniques.lock_free_nodes || has_table;
        assert!(!locks || seeds(40).count() < 40 || taken_over > 0, "{name}: no lock was taken over");
    }
}
