//! All operations of all variants on memory of this process: against a model, with many threads, growing from
//! empty and shrinking again, with keys and values of many sizes, and with too little memory.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::common::{INDEX, Load, SMALL_CACHE, Sizes, TINY, check_all, variants};
use pando_fabric::{Endpoint, Fabric};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_pool::{Pool, PoolError, PoolOptions};
use pando_rt::{Worker, block_on};
use pando_sherman::{Config, FILL, Options, OwnKeys, ScanRange, Sherman, ShermanError};

struct Local {
    fabric: LocalFabric,
    pool: Pool,
    tree: Sherman,
    sizes: Sizes,
}

impl Local {
    fn new(options: Options, sizes: Sizes, region: u64) -> Self {
        let config = LocalConfig { server_sizes: vec![region; 2], huge_pages: false };
        let fabric = LocalFabric::new(config).expect("memory");
        let ep = fabric.endpoint(7).expect("an endpoint");
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
        let config = Config::new(INDEX, options);
        let shape = sizes.shape(&options);
        let at = block_on(&ep, Sherman::create(&ep, &pool, &shape, &config)).expect("an index");
        let tree = block_on(&ep, Sherman::open(&ep, pool.clone(), at, shape, config)).expect("a tree");
        Self { fabric, pool, tree, sizes }
    }

    fn ep(&self) -> LocalEndpoint {
        self.fabric.endpoint(11).expect("an endpoint")
    }

    fn put(&self, ep: &LocalEndpoint, k: u64, n: u64) -> Result<bool, ShermanError> {
        block_on(ep, self.tree.put(ep, &self.sizes.key(k), &self.sizes.value(k, n)))
    }

    fn get(&self, ep: &LocalEndpoint, k: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        block_on(ep, self.tree.get(ep, &self.sizes.key(k), &mut out)).expect("no error").then_some(out)
    }
}

#[test]
fn one_thread_agrees_with_a_map() {
    for (name, options) in variants() {
        eprintln!("{name}");
        let local = Local::new(options, TINY, 4 << 20);
        let ep = local.ep();
        let load =
            Load { sizes: TINY, keys: 1500, owners: 1, operations: 12_000, shrinks: true, is_kept: false };
        let model = block_on(&ep, load.run(&ep, 0, BTreeMap::new(), |_| &local.tree));
        let audit = block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &model));
        let counts = local.tree.counts();
        assert!(audit.height >= 3 && audit.unlinked == 0, "{audit:?}");
        assert!(counts.splits > 100 && counts.merges > 15 && counts.repairs == 0, "{counts:?}");
    }
}

#[test]
fn many_threads_agree_with_their_maps() {
    for (name, options) in variants() {
        eprintln!("{name}");
        let local = Local::new(options, TINY, 4 << 20);
        let (threads, slots) = (3, 4);
        let load = Load {
            sizes: TINY,
            keys: 700,
            owners: threads * slots,
            operations: 1500,
            shrinks: true,
            is_kept: false,
        };
        let models = std::thread::scope(|scope| {
            let run = |thread: u64| {
                let (local, load) = (&local, &load);
                move || {
                    let ep = local.fabric.endpoint(thread + 100).expect("an endpoint");
                    Worker::new(&ep, slots as usize).run(|slot| {
                        load.run(&ep, thread * slots + u64::from(slot), BTreeMap::new(), |_| &local.tree)
                    })
                }
            };
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
        });
        let ep = local.ep();
        let all = models.into_iter().flatten().collect();
        block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &all));
        assert!(local.tree.counts().merges > 0, "{:?}", local.tree.counts());
    }
}

/// Two compute servers with index caches, which make each other's copies stale, with and without partitions.
#[test]
fn two_compute_servers_change_the_same_keys() {
    for (name, options) in variants() {
        let partitioned = [false, true];
        let partitioned =
            &partitioned[..if options.check == pando_sherman::ReadCheck::Checksum { 2 } else { 1 }];
        for &partitioned in partitioned {
            eprintln!("{name}, partitioned {partitioned}");
            let local = Local::new(options, TINY, 4 << 20);
            let load =
                Load { sizes: TINY, keys: 600, owners: 8, operations: 1500, shrinks: true, is_kept: false };
            let middle = Some(TINY.key(300));
            let open = |number: usize| {
                let ep = local.ep();
                let own = match number {
                    0 => OwnKeys { low: None, high: middle.clone() },
                    _ => OwnKeys { low: middle.clone(), high: None },
                };
                let config = Config { own: partitioned.then_some(own), ..Config::new(INDEX, options) };
                let opened =
                    Sherman::open(&ep, local.pool.clone(), local.tree.anchor(), *local.tree.shape(), config);
                block_on(&ep, opened).expect("a tree")
            };
            let trees = [open(0), open(1)];
            let models = std::thread::scope(|scope| {
                let run = |thread: usize| {
                    let (local, load, trees) = (&local, &load, &trees);
                    move || {
                        let ep = local.fabric.endpoint(thread as u64 + 100).expect("an endpoint");
                        let tree =
                            |k| if partitioned { &trees[usize::from(k >= 300)] } else { &trees[thread] };
                        Worker::new(&ep, 4).run(|slot| {
                            load.run(&ep, thread as u64 * 4 + u64::from(slot), BTreeMap::new(), tree)
                        })
                    }
                };
                let threads: Vec<_> = (0..2).map(|thread| scope.spawn(run(thread))).collect();
                threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect::<Vec<_>>()
            });
            let ep = local.ep();
            for tree in trees {
                block_on(&ep, tree.close(&ep)).expect("closed");
            }
            let config = Config::new(INDEX, options);
            let opened =
                Sherman::open(&ep, local.pool.clone(), local.tree.anchor(), *local.tree.shape(), config);
            let tree = block_on(&ep, opened).expect("a tree");
            let all = models.into_iter().flatten().collect();
            block_on(&ep, check_all(&ep, &tree, &local.pool, TINY, &all));
        }
    }
}

#[test]
fn keys_of_1_to_64_bytes_and_values_of_many_sizes() {
    for options in [Options::fg(), Options::sherman(SMALL_CACHE).with_locks(64)] {
        for (key, value, node) in
            [(1, 8, 256), (2, 9, 256), (7, 100, 1024), (8, 240, 2048), (20, 8, 512), (64, 64, 1024)]
        {
            let sizes = Sizes { key, value, node };
            let keys = if key == 1 { 256 } else { 600 };
            let local = Local::new(options, sizes, 8 << 20);
            let ep = local.ep();
            let load = Load { sizes, keys, owners: 1, operations: 4000, shrinks: true, is_kept: false };
            let model = block_on(&ep, load.run(&ep, 0, BTreeMap::new(), |_| &local.tree));
            // Numbers of longer keys have a constant prefix.
            if key <= 8 {
                block_on(&ep, check_all(&ep, &local.tree, &local.pool, sizes, &model));
            }
            assert_eq!(
                block_on(&ep, local.tree.audit(&ep)).expect("an audit").violations,
                Vec::<String>::new()
            );
        }
    }
    let wrong = |key, value, node| pando_sherman::Shape::new(key, value, node, &Options::fg());
    for (key, value, node) in
        [(0, 8, 1024), (65, 8, 1024), (8, 8, 1000), (8, 8, 128), (64, 8, 256), (8, 300, 1024)]
    {
        assert!(matches!(wrong(key, value, node), Err(ShermanError::Shape(_))), "{key} {value} {node}");
    }
}

#[test]
fn a_bulk_load_fills_leaves_to_80_percent() {
    for options in [Options::fg(), Options::sherman(1 << 20).with_locks(64)] {
        for count in [0, 1, 8, 9, 5000] {
            let local = Local::new(options, TINY, 4 << 20);
            let ep = local.ep();
            let entries: BTreeMap<u64, Vec<u8>> = (0..count).map(|k| (k * 3, TINY.value(k * 3, 0))).collect();
            let sorted = entries.iter().map(|(&k, value)| (TINY.key(k), value));
            assert_eq!(block_on(&ep, local.tree.load(&ep, FILL, sorted)).expect("loaded"), count);
            let audit = block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &entries));
            assert!(count < 5000 || (0.7..0.85).contains(&audit.leaf_fullness), "{audit:?}");
            for k in 0..count {
                assert_eq!(local.get(&ep, k).is_some(), k % 3 == 0, "{k}");
            }
            if count > 0 {
                let again = block_on(&ep, local.tree.load(&ep, FILL, [(TINY.key(1), TINY.value(1, 1))]));
                assert!(matches!(again, Err(ShermanError::NotEmpty)));
            }
        }
        let local = Local::new(options, TINY, 4 << 20);
        let ep = local.ep();
        let entries = (0..100).chain([99]).map(|k| (TINY.key(k), TINY.value(k, 0)));
        let failed = block_on(&ep, local.tree.load(&ep, FILL, entries));
        assert!(matches!(failed, Err(ShermanError::NotSorted { position: 100 })), "{failed:?}");
        block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &BTreeMap::new()));
    }
}

#[test]
fn a_full_pool_is_an_error_and_nothing_is_lost() {
    for (name, options) in variants() {
        eprintln!("{name}");
        let local = Local::new(options, TINY, 128 << 10);
        let ep = local.ep();
        let mut stored = BTreeMap::new();
        let mut refused = 0;
        for k in 0..20_000 {
            // Scattered, so that many leaves fill up.
            let k = k * 7919 % 20_011;
            match local.put(&ep, k, 1) {
                Ok(existed) => {
                    assert!(!existed);
                    stored.insert(k, TINY.value(k, 1));
                }
                Err(ShermanError::Pool(error)) if error.is_full() => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 1000 && stored.len() > 500, "{refused} refused, {} stored", stored.len());
        block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &stored));
        // Removals make room again.
        let gone: Vec<u64> = stored.keys().copied().filter(|k| k % 8 != 0).collect();
        for k in gone {
            assert!(block_on(&ep, local.tree.remove(&ep, &TINY.key(k))).expect("removed"));
            stored.remove(&k);
        }
        assert!(local.tree.free_nodes() > 10, "{}", local.tree.free_nodes());
        for k in 30_000..30_100 {
            let stored_it = local.put(&ep, k, 2);
            assert!(
                matches!(stored_it, Ok(false)),
                "{k}: {stored_it:?}, {} free nodes",
                local.tree.free_nodes()
            );
            stored.insert(k, TINY.value(k, 2));
        }
        block_on(&ep, check_all(&ep, &local.tree, &local.pool, TINY, &stored));
    }
}

#[test]
fn a_scan_keeps_within_its_bounds() {
    let local = Local::new(Options::sherman(1 << 20).with_locks(64), TINY, 4 << 20);
    let ep = local.ep();
    for k in (0..1000).step_by(2) {
        local.put(&ep, k, 0).expect("stored");
    }
    let keys = |low: Bound<u64>, high: Bound<u64>, limit| {
        let bytes = |bound: Bound<u64>| bound.map(|k| TINY.key(k));
        let (low, high) = (bytes(low), bytes(high));
        let range =
            ScanRange { low: low.as_ref().map(Vec::as_slice), high: high.as_ref().map(Vec::as_slice), limit };
        let mut found = Vec::new();
        let visit = |key: &[u8], _: &[u8]| {
            found.push(TINY.number(key));
            true
        };
        assert_eq!(block_on(&ep, local.tree.scan(&ep, &range, visit)).expect("a scan"), found.len());
        found
    };
    use Bound::{Excluded, Included, Unbounded};
    assert_eq!(keys(Included(10), Excluded(16), 99), [10, 12, 14]);
    assert_eq!(keys(Excluded(10), Included(16), 99), [12, 14, 16]);
    assert_eq!(keys(Included(11), Unbounded, 2), [12, 14]);
    assert_eq!(keys(Unbounded, Unbounded, usize::MAX).len(), 500);
    assert_eq!(keys(Included(998), Unbounded, 9), [998]);
    assert!(keys(Included(20), Excluded(20), 9).is_empty() && keys(Unbounded, Unbounded, 0).is_empty());
    assert!(keys(Included(999), Unbounded, 9).is_empty());
    let mut seen = 0;
    let stop = |_: &[u8], _: &[u8]| {
        seen += 1;
        seen < 5
    };
    assert_eq!(block_on(&ep, local.tree.scan(&ep, &ScanRange::all(), stop)).expect("a scan"), 5);
}

#[test]
fn what_does_not_fit_is_refused() {
    let options = Options::sherman(1 << 20).with_locks(64);
    let local = Local::new(options, TINY, 4 << 20);
    let ep = local.ep();
    let put = |key: &[u8], value: &[u8]| block_on(&ep, local.tree.put(&ep, key, value));
    assert!(matches!(put(b"short", &[0; 8]), Err(ShermanError::WrongKeySize { len: 5, expected: 8 })));
    assert!(matches!(put(&[0; 8], &[0; 9]), Err(ShermanError::WrongValueSize { len: 9, expected: 8 })));
    let open = |options: Options, index| {
        let shape = TINY.shape(&options);
        let config = Config::new(index, options);
        block_on(&ep, Sherman::open(&ep, local.pool.clone(), local.tree.anchor(), shape, config)).map(drop)
    };
    assert!(open(options, INDEX).is_ok());
    assert!(matches!(open(options, INDEX + 1), Err(ShermanError::Anchor { .. })));
    for other in [Options::fg_plus(1 << 20), Options::on_chip(1 << 20).with_locks(64)] {
        assert!(matches!(open(other, INDEX), Err(ShermanError::Anchor { .. })), "{other:?}");
    }
    let own =
        Config { own: Some(OwnKeys { low: None, high: Some(TINY.key(10)) }), ..Config::new(INDEX, options) };
    let opened = Sherman::open(&ep, local.pool.clone(), local.tree.anchor(), *local.tree.shape(), own);
    let partition = block_on(&ep, opened).expect("a tree");
    assert!(block_on(&ep, partition.put(&ep, &TINY.key(9), &TINY.value(9, 0))).is_ok());
    let refused = block_on(&ep, partition.put(&ep, &TINY.key(10), &TINY.value(10, 0)));
    assert!(matches!(refused, Err(ShermanError::NotOwned)));
    let locks = block_on(&ep, async {
        let config = Config::new(INDEX, options.with_locks(48));
        Sherman::create(&ep, &local.pool, local.tree.shape(), &config).await
    });
    assert!(matches!(locks, Err(ShermanError::Shape(_))));
    let blocks = |pool: &Pool| -> u64 {
        block_on(&ep, pool.usage(&ep)).expect("usage").iter().map(|usage| usage.blocks_allocated).sum()
    };
    let before = blocks(&local.pool);
    let full = Config::new(INDEX, options.with_locks(1 << 20));
    let failed = block_on(&ep, Sherman::create(&ep, &local.pool, local.tree.shape(), &full));
    assert!(
        matches!(failed, Err(ShermanError::Pool(PoolError::PoolFull { .. } | PoolError::NoSpace { .. }))),
        "{failed:?}"
    );
    assert_eq!(blocks(&local.pool), before);
    assert_eq!(ep.slots(), 1);
}
