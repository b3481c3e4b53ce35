//! Histories on a simulated cluster: threads of several compute servers change one tree, and everything is
//! drawn from a seed.

use std::collections::BTreeMap;
use std::ops::Range;

use pando_fabric::{Endpoint, Random, VerbCounts};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;
use pando_sherman::{Config, Options, OwnKeys, Sherman};
use pando_sim::{Faults, Model, SimConfig, SimFabric};

use super::{INDEX, Load, Sizes, TINY, check_all};

/// Seeds from `PANDO_SIM_SEEDS=A..B`, or the first `usually` ones.
pub fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// One history.
#[derive(Clone, Copy)]
pub struct History {
    pub seed: u64,
    pub options: Options,
    pub sizes: Sizes,
    pub partitioned: bool,
    /// Whether everything is torn that can be, in a small, contended tree.
    pub is_rough: bool,
    /// Whether entries are only replaced.
    pub is_kept: bool,
}

/// Result of a history.
#[derive(Debug, PartialEq)]
pub struct Outcome {
    pub verbs: VerbCounts,
    pub end: u64,
    pub splits: u64,
    pub merges: u64,
}

impl History {
    /// A history with tiny nodes.
    pub fn tiny(seed: u64, options: Options) -> Self {
        Self { seed, options, sizes: TINY, partitioned: false, is_rough: false, is_kept: false }
    }

    /// A history in a cluster that tears every READ and WRITE of more than a line, with entries of more than
    /// a line.
    pub fn rough(seed: u64, options: Options) -> Self {
        let sizes = Sizes { key: 8, value: 56, node: 2048 };
        Self { sizes, is_rough: true, ..Self::tiny(seed, options) }
    }

    pub fn run(&self) -> Outcome {
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
        let load = Load {
            sizes: self.sizes,
            keys,
            owners,
            operations,
            shrinks: draw(&[0, 1]) == 1,
            is_kept: self.is_kept,
        };
        let trees = self.trees(&ep, &pool, compute_servers, keys);
        let endpoints: Vec<_> = (0..threads)
            .map(|thread| fabric.thread((thread % compute_servers) as usize, self.seed * 100 + thread))
            .collect();
        let tree_of = |thread: usize, k: u64| match self.partitioned {
            true => &trees[((k * compute_servers / keys) as usize).min(trees.len() - 1)],
            false => &trees[thread % trees.len()],
        };
        let mut kept = vec![BTreeMap::new(); owners as usize];
        for k in (0..keys).filter(|_| self.is_kept) {
            let (key, value) = (self.sizes.key(k), self.sizes.value(k, 0));
            block_on(&ep, tree_of(0, k).put(&ep, &key, &value)).expect("no error");
            kept[(k % owners) as usize].insert(k, value);
        }
        let models = fabric.run(&endpoints.iter().collect::<Vec<_>>(), slots as u32, |thread, slot| {
            let owner = thread as u64 * slots + u64::from(slot);
            load.run(&endpoints[thread], owner, std::mem::take(&mut kept[owner as usize]), move |k| {
                tree_of(thread, k)
            })
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
        // Each compute server gets the keys given by `k * count / keys`.
        let bound = |i: u64| (1..count).contains(&i).then(|| self.sizes.key((keys * i).div_ceil(count)));
        let own = |i| self.partitioned.then(|| OwnKeys { low: bound(i), high: bound(i + 1) });
        (0..count).map(|i| self.open(ep, pool, at, own(i))).collect()
    }
}

/// Whether a history fails: by a wrong answer, a wrong entry at the end, a violated invariant, or a hang.
pub fn is_caught(history: &History) -> bool {
    std::panic::catch_unwind(|| history.run()).is_err()
}
