//! Operations on the fabric of this process: one thread with all techniques and shapes of keys, and several
//! threads with slots.

use std::ops::Bound;

use crate::common::{Life, Setup, Shape, audit, get, value};
use pando_fabric::Fabric;
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::{Worker, block_on};
use pando_smart::{CachePolicy, NodeRoom, Smart, SmartError, Techniques};

const SHAPES: [Shape; 3] = [Shape::Dense, Shape::Sparse, Shape::Strings];

struct Local {
    fabric: LocalFabric,
    pool: Pool,
}

impl Local {
    fn new(bytes: u64) -> Self {
        let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![bytes; 2], huge_pages: false });
        let fabric = fabric.expect("regions");
        let ep = fabric.endpoint(1).expect("an endpoint");
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
        Self { fabric, pool }
    }

    fn endpoint(&self, seed: u64) -> LocalEndpoint {
        self.fabric.endpoint(seed).expect("an endpoint")
    }

    fn open(&self, setup: Setup, users: usize) -> Vec<Smart> {
        let ep = self.endpoint(2);
        block_on(&ep, async {
            let config = setup.create(&ep, &self.pool).await;
            let mut opened = Vec::new();
            for _ in 0..users {
                opened.push(Smart::open(&ep, self.pool.clone(), config.clone()).await.expect("opened"));
            }
            opened
        })
    }
}

fn setups() -> Vec<(String, Setup)> {
    let mut setups = Vec::new();
    for (name, techniques) in Techniques::STEPS {
        let setup = Setup::new(techniques);
        setups.push((name.to_owned(), setup));
        setups.push((format!("{name}, no cache"), Setup { cache_bytes: 0, ..setup }));
        let scalable = Setup { cache_policy: CachePolicy::Scalable, ..setup };
        setups.push((format!("{name}, exact, scalable"), Setup { node_room: NodeRoom::Exact, ..scalable }));
    }
    setups
}

#[test]
fn one_thread_against_a_model() {
    for (name, setup) in setups() {
        for shape in SHAPES {
            eprintln!("{name}, {shape:?}");
            let local = Local::new(8 << 20);
            let indexes = local.open(setup, 1);
            let ep = local.endpoint(3);
            let life = Life { shape, keys: 400, owner: 0, owners: 1, operations: 2500 };
            let model = block_on(&ep, life.live(&indexes[0], &ep));
            audit(&ep, &[&indexes[0]], model.len() as u64);
        }
    }
}

#[test]
fn several_threads_and_compute_servers() {
    const THREADS: u64 = 3;
    const SLOTS: u64 = 3;
    for (name, setup) in setups() {
        for shape in SHAPES {
            eprintln!("{name}, {shape:?}");
            let local = Local::new(8 << 20);
            let indexes = local.open(setup, 2);
            let lens = std::thread::scope(|scope| {
                let thread = |thread: u64| {
                    let (local, smart) = (&local, &indexes[thread as usize % 2]);
                    scope.spawn(move || {
                        let ep = local.endpoint(10 + thread);
                        let lives = Worker::new(&ep, SLOTS as usize).run(|slot| {
                            let owner = thread * SLOTS + u64::from(slot);
                            let owners = THREADS * SLOTS;
                            let ep = &ep;
                            Life { shape, keys: 300, owner, owners, operations: 400 }.live(smart, ep)
                        });
                        lives.iter().map(|model| model.len() as u64).sum::<u64>()
                    })
                };
                let threads: Vec<_> = (0..THREADS).map(thread).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).sum::<u64>()
            });
            let ep = local.endpoint(99);
            audit(&ep, &indexes.iter().collect::<Vec<_>>(), lens);
        }
    }
}

#[test]
fn everything_removed_is_everything_freed() {
    for (name, setup) in setups() {
        for shape in SHAPES {
            eprintln!("{name}, {shape:?}");
            let local = Local::new(8 << 20);
            let smart = local.open(setup, 1).pop().expect("one");
            let ep = local.endpoint(3);
            let count = || {
                let mut blocks = 0;
                block_on(&ep, local.pool.visit_allocated(&ep, |_, _| blocks += 1)).expect("no error");
                blocks
            };
            let before = count();
            block_on(&ep, async {
                for round in 0..2 {
                    for k in 0..600 {
                        assert!(!smart.put(&ep, &shape.key(k), &value(k, round)).await.expect("no error"));
                    }
                    for k in 0..600 {
                        assert!(smart.remove(&ep, &shape.key(k)).await.expect("no error"), "{k}");
                    }
                }
            });
            audit(&ep, &[&smart], 0);
            assert_eq!(block_on(&ep, smart.close(&ep)).expect("closed"), 0);
            assert_eq!(count(), before);
        }
    }
}

#[test]
fn a_full_pool_is_an_error_and_nothing_is_lost() {
    for (name, techniques) in Techniques::STEPS {
        eprintln!("{name}");
        let local = Local::new(512 << 10);
        let smart = local.open(Setup::new(techniques), 1).pop().expect("one");
        let ep = local.endpoint(3);
        block_on(&ep, async {
            let mut put = 0;
            loop {
                match smart.put(&ep, &Shape::Sparse.key(put), &value(put, 0)).await {
                    Ok(_) => put += 1,
                    Err(error) if error.is_full() => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(put > 100, "{put}");
            for k in 0..put {
                assert_eq!(get(&smart, &ep, Shape::Sparse, k).await, Some(0), "{k} of {put}");
            }
            assert_eq!(get(&smart, &ep, Shape::Sparse, put).await, None);
            for k in 0..put / 2 {
                assert!(smart.remove(&ep, &Shape::Sparse.key(k)).await.expect("no error"));
            }
            // Removed entries make room, as soon as nothing can lead to them.
            assert!(!smart.put(&ep, &Shape::Sparse.key(put), &value(put, 0)).await.expect("room"));
        });
        let entries = block_on(&ep, smart.audit(&ep)).expect("no error").entries;
        audit(&ep, &[&smart], entries);
    }
}

#[test]
fn keys_of_all_lengths() {
    for (name, setup) in setups() {
        eprintln!("{name}");
        let local = Local::new(40 << 20);
        let smart = local.open(setup, 1).pop().expect("one");
        let ep = local.endpoint(3);
        block_on(&ep, async {
            let lens = [0, 1, 7, 8, 9, 10, 17, 18, 100, 1000, 9000];
            for (i, &len) in lens.iter().enumerate() {
                assert!(smart.insert(&ep, &vec![7; len], &[i as u8; 20]).await.expect("no error"), "{len}");
            }
            let mut found = Vec::new();
            let all = (Bound::Unbounded, Bound::Unbounded);
            smart
                .scan(&ep, all, usize::MAX, |key, _| {
                    found.push(key.len());
                    true
                })
                .await
                .expect("no error");
            assert_eq!(found, lens);
            let too_long = smart.put(&ep, &vec![1; 70_000], b"").await;
            assert!(matches!(too_long, Err(SmartError::EntryTooLong { .. })), "{too_long:?}");
            let too_long = smart.put(&ep, b"key", &vec![1; 70_000]).await;
            assert!(matches!(too_long, Err(SmartError::EntryTooLong { .. })), "{too_long:?}");
            let mut out = Vec::new();
            assert!(!smart.get(&ep, b"key", &mut out).await.expect("no error"));
        });
        audit(&ep, &[&smart], 11);
    }
}

#[test]
fn bulk_load_is_what_inserts_would_make() {
    for (name, setup) in setups() {
        for shape in SHAPES {
            eprintln!("{name}, {shape:?}");
            let local = Local::new(16 << 20);
            let smart = local.open(setup, 1).pop().expect("one");
            let ep = local.endpoint(3);
            let mut entries: Vec<_> = (0..2000).map(|k| (shape.key(k), value(k, 1))).collect();
            entries.sort();
            block_on(&ep, async {
                let twice = entries.iter().chain([&entries[7]]).map(|(key, value)| (key, value));
                let failed = smart.bulk_load(&ep, twice).await;
                assert!(matches!(failed, Err(SmartError::NotSorted { position: 2000 })), "{failed:?}");
                let loaded = smart.bulk_load(&ep, entries.iter().map(|(key, value)| (key, value))).await;
                assert_eq!(loaded.expect("loaded"), 2000);
                for k in 0..2000 {
                    assert_eq!(get(&smart, &ep, shape, k).await, Some(1), "{k}");
                }
                assert!(matches!(smart.bulk_load(&ep, [("a", "b")]).await, Err(SmartError::NotEmpty)));
                let (low, high) = (&entries[100].0, &entries[1500].0);
                let mut found = Vec::new();
                let bounds = (Bound::Excluded(low.as_slice()), Bound::Included(high.as_slice()));
                smart
                    .scan(&ep, bounds, usize::MAX, |key, _| {
                        found.push(key.to_vec());
                        true
                    })
                    .await
                    .expect("no error");
                assert!(found.iter().eq(entries[101..=1500].iter().map(|(key, _)| key)));
            });
            audit(&ep, &[&smart], 2000);
        }
    }
}
