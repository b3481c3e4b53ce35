//! All variants on a simulated cluster: many threads of several compute servers with an index cache each, torn READs and WRITEs,
//! delays, partitioned and not. The same seed is the same history; a failure names the seed.
//!
//! `PANDO_SIM_SEEDS=A..B` replays seeds A to B - 1.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;

use common::{INDEX, Load, Sizes, TINY, check_all, variants};
use pando_fabric::{Endpoint, Random, VerbCounts};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sherman::{Config, Options, OwnKeys, ReadCheck, Sherman};
use pando_sim::{Faults, Model, SimConfig, SimFabric};

fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// One history.
struct History {
    seed: u64,
    options: Options,
    sizes: Sizes,
    partitioned: bool,
    /// Whether all is torn that can be, in a small tree that many change.
    is_rough: bool,
}

/// What it came to.
#[derive(Debug, PartialEq)]
struct Outcome {
    verbs: VerbCounts,
    end: u64,
    splits: u64,
    merges: u64,
}

impl History {
    fn run(&self) -> Outcome {
        let random = Random::new(self.seed);
        let draw = |choices: &[u64]| choices[(random.next() >> 33) as usize % choices.len()];
        let compute_servers = draw(&[1, 2, 3]);
        let mut faults = Faults {
            torn_share: draw(&[0, 1, 10]) as f64 / 10.0,
            spike_share: draw(&[0, 0, 1]) as f64 / 10.0,
            ..Faults::default()
        };
        if self.is_rough {
            faults.torn_share = 1.0;
        }
        let config = SimConfig {
            regions: vec![4 << 20; draw(&[1, 2, 3]) as usize],
            compute_servers: compute_servers as usize,
            seed: self.seed,
            model: Model { faults, ..Model::default() },
        };
        let fabric = SimFabric::new(&config).expect("a sound model");
        let ep = fabric.direct(self.seed);
        let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
        let (threads, slots) = if self.is_rough { (9, 4) } else { (draw(&[1, 4, 9]), draw(&[1, 3])) };
        let owners = threads * slots;
        let keys = if self.is_rough { 72 } else { draw(&[100, 400]) };
        let operations = if self.is_rough { 300 } else { 2400 / owners };
        let load = Load { sizes: self.sizes, keys, owners, operations, shrinks: draw(&[0, 1]) == 1 };
        let trees = self.trees(&ep, &pool, compute_servers, keys);
        let endpoints: Vec<_> = (0..threads)
            .map(|thread| fabric.thread((thread % compute_servers) as usize, self.seed * 100 + thread))
            .collect();
        let tree_of = |thread: usize, k: u64| match self.partitioned {
            true => &trees[((k * compute_servers / keys) as usize).min(trees.len() - 1)],
            false => &trees[thread % trees.len()],
        };
        let models = fabric.run(&endpoints.iter().collect::<Vec<_>>(), slots as u32, |thread, slot| {
            let owner = thread as u64 * slots + u64::from(slot);
            load.run(&endpoints[thread], owner, BTreeMap::new(), move |k| tree_of(thread, k))
        });
        let ep = fabric.direct(99);
        let counts: Vec<_> = trees.iter().map(Sherman::counts).collect();
        for tree in &trees {
            block_on(&ep, tree.close(&ep)).expect("closed");
        }
        let tree = self.open(&ep, &pool, trees[0].anchor(), None);
        let all = models.into_iter().flatten().flatten().collect();
        block_on(&ep, check_all(&ep, &tree, &pool, self.sizes, &all));
        Outcome {
            verbs: endpoints.iter().map(|ep| ep.counters().snapshot()).sum(),
            end: fabric.now(),
            splits: counts.iter().map(|counts| counts.splits).sum(),
            merges: counts.iter().map(|counts| counts.merges).sum(),
        }
    }

    fn open<E: Endpoint>(
        &self,
        ep: &E,
        pool: &Pool,
        at: pando_fabric::GlobalAddr,
        own: Option<OwnKeys>,
    ) -> Sherman {
        let config = Config { own, patience_ns: 50_000_000, ..Config::new(INDEX, self.options) };
        let shape = self.sizes.shape(&self.options);
        block_on(ep, Sherman::open(ep, pool.clone(), at, shape, config)).expect("a tree")
    }

    fn trees<E: Endpoint>(&self, ep: &E, pool: &Pool, count: u64, keys: u64) -> Vec<Sherman> {
        let config = Config::new(INDEX, self.options);
        let shape = self.sizes.shape(&self.options);
        let at = block_on(ep, Sherman::create(ep, pool, &shape, &config)).expect("an index");
        // The same keys for a compute server as `k * count / keys` says.
        let bound = |i: u64| (1..count).contains(&i).then(|| self.sizes.key((keys * i).div_ceil(count)));
        let own = |i| self.partitioned.then(|| OwnKeys { low: bound(i), high: bound(i + 1) });
        (0..count).map(|i| self.open(ep, pool, at, own(i))).collect()
    }
}

#[test]
fn every_variant_agrees_with_its_models() {
    let variants = variants();
    let (mut splits, mut merges) = (0, 0);
    for seed in seeds(60) {
        let (name, options) = &variants[seed as usize % variants.len()];
        for partitioned in [false, true] {
            if partitioned && options.check != ReadCheck::Checksum {
                continue;
            }
            // Shown if it fails.
            eprintln!("seed {seed}: {name}, partitioned {partitioned}");
            let outcome =
                History { seed, options: *options, sizes: TINY, partitioned, is_rough: false }.run();
            splits += outcome.splits;
            merges += outcome.merges;
        }
    }
    assert!(seeds(60).count() < 20 || (splits > 1000 && merges > 100), "{splits} splits, {merges} merges");
}

#[test]
fn long_keys_and_values_agree_with_their_models() {
    for seed in seeds(10) {
        eprintln!("seed {seed}");
        let options = Options::sherman(16 << 10).with_locks(64);
        History {
            seed,
            options,
            sizes: Sizes { key: 8, value: 200, node: 2048 },
            partitioned: false,
            is_rough: false,
        }
        .run();
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let history = || History {
        seed: 3,
        options: Options::sherman(16 << 10).with_locks(64),
        sizes: TINY,
        partitioned: false,
        is_rough: false,
    };
    assert_eq!(history().run(), history().run());
}

/// Whether a history goes wrong in a cluster where every READ and WRITE of more than a line is torn.
fn is_caught(seed: u64, options: Options) -> bool {
    let sizes = Sizes { key: 8, value: 56, node: 2048 };
    let run = || History { seed, options, sizes, partitioned: false, is_rough: true }.run();
    std::panic::catch_unwind(run).is_err()
}

/// The published check believes that a READ fetches lines in order. In a cluster where none does it lets torn nodes pass, which
/// the two sound ones do not.
#[test]
fn versions_at_both_ends_are_unsound() {
    let ladder = [Options::fg_plus(16 << 10), Options::sherman(16 << 10).with_locks(64)];
    let unsound = ladder.map(|options| options.with_check(ReadCheck::UnsoundEnds));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let caught = unsound.map(|options| (0..40).find(|&seed| is_caught(seed, options)));
    std::panic::set_hook(hook);
    assert!(caught.iter().all(Option::is_some), "no history was found to be wrong: {caught:?}");
    for options in ladder {
        for check in [ReadCheck::Checksum, ReadCheck::VersionReads] {
            for seed in 0..4 {
                eprintln!("seed {seed}, {check:?}");
                assert!(!is_caught(seed, options.with_check(check)));
            }
        }
    }
}
