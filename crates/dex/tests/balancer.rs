//! The balancer against loads that a model makes: it converges, rests when all is even, and does not thrash.

use pando_dex::Load;
use pando_dex::balancer::{Balancer, BalancerConfig, apply, imbalance};
use proptest::prelude::*;

const KEYS: u64 = 1_000_000;

fn key(n: u64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

/// A stream of pseudo-random numbers.
struct Stream(u64);

impl Stream {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Noted keys of an interval: `hot` percent of them among `width` keys from `spot` on.
fn load(stream: &mut Stream, samples: u64, (spot, width, hot): (u64, u64, u64)) -> Load {
    let one = |stream: &mut Stream| match stream.below(100) < hot {
        true => (spot + stream.below(width)) % KEYS,
        false => stream.below(KEYS),
    };
    Load::of((0..samples).map(|_| (key(one(stream)).into(), 1 + stream.below(127))).collect())
}

struct World {
    boundaries: Vec<Vec<u8>>,
    balancer: Balancer,
    stream: Stream,
    samples: u64,
    moves: usize,
    plans: usize,
}

impl World {
    fn new(servers: u64, seed: u64) -> Self {
        Self {
            boundaries: (1..servers).map(|server| key(KEYS * server / servers)).collect(),
            balancer: Balancer::new(BalancerConfig::default()),
            stream: Stream(seed),
            samples: servers * 200,
            moves: 0,
            plans: 0,
        }
    }

    /// Some intervals with one load; the imbalance at the end by a load of many keys.
    fn run(&mut self, intervals: u32, shape: (u64, u64, u64)) -> f64 {
        for _ in 0..intervals {
            let load = load(&mut self.stream, self.samples, shape);
            let moves = self.balancer.observe(&self.boundaries, &load);
            self.plans += usize::from(!moves.is_empty());
            for step in moves {
                self.moves += 1;
                self.boundaries =
                    apply(&self.boundaries, &step).expect("no boundary passes another on its way");
            }
        }
        imbalance(&load(&mut self.stream, 20_000, shape), &self.boundaries)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_hot_spot_is_divided_and_when_it_moves_divided_again(
        servers in 2u64..12,
        seed: u64,
        spots in prop::collection::vec(0..KEYS, 1..4),
    ) {
        let mut world = World::new(servers, seed);
        for spot in spots {
            let before = world.plans;
            let after = world.run(30, (spot, KEYS / 10, 90));
            prop_assert!(after < 1.3, "{after} with {servers} servers");
            prop_assert!(world.plans - before <= 3, "{} plans", world.plans - before);
        }
    }

    #[test]
    fn an_even_load_moves_nothing(servers in 1u64..12, seed: u64) {
        let mut world = World::new(servers, seed);
        world.run(200, (0, KEYS, 0));
        prop_assert!(world.plans <= 1, "{} plans by noise", world.plans);
    }

    #[test]
    fn a_single_hot_key_does_not_make_it_thrash(servers in 2u64..12, seed: u64, spot in 0..KEYS) {
        let mut world = World::new(servers, seed);
        world.run(100, (spot, 1, 80));
        prop_assert!(world.plans <= 3, "{} plans", world.plans);
    }
}

#[test]
fn what_lasts_for_one_interval_or_was_hardly_seen_moves_nothing() {
    let mut world = World::new(4, 1);
    for _ in 0..10 {
        world.run(1, (0, KEYS / 100, 90));
        world.run(1, (0, KEYS, 0));
    }
    assert_eq!(world.plans, 0);
    world.samples = 10;
    world.run(15, (0, KEYS / 100, 90));
    assert_eq!(world.plans, 0);
    world.samples = 1_000;
    world.run(5, (0, KEYS / 100, 90));
    assert_eq!(world.plans, 1);
}
