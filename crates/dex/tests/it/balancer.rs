//! The balancer under modelled loads.
//!
//! It converges, rests when the load is even, and does not oscillate. All random numbers are seeded.

use pando_dex::Load;
use pando_dex::balancer::{Balancer, BalancerConfig, apply, imbalance};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

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

/// Distribution of the load over keys; the rest of a partial one is uniform.
#[derive(Clone, Debug)]
enum Shape {
    Even,
    /// `percent` of the load goes to `width` keys from `from` on.
    Hot {
        percent: u64,
        from: u64,
        width: u64,
    },
    /// Key numbers are this power of a uniform number, so that lower keys are hotter.
    Power(u32),
    /// Several hot keys, each indivisible, with `percent` of the load in total.
    Keys {
        percent: u64,
        keys: Vec<u64>,
    },
}

impl Shape {
    fn draw(&self, stream: &mut Stream) -> u64 {
        let even = stream.below(KEYS);
        match self {
            Shape::Hot { percent, from, width } if stream.below(100) < *percent => {
                (from + stream.below(*width)) % KEYS
            }
            Shape::Power(power) => ((even as f64 / KEYS as f64).powi(*power as i32) * KEYS as f64) as u64,
            Shape::Keys { percent, keys } if stream.below(100) < *percent => {
                keys[stream.below(keys.len() as u64) as usize]
            }
            _ => even,
        }
    }

    /// Sampled keys of an interval, each with a random weight.
    fn load(&self, stream: &mut Stream, samples: u64) -> Load {
        Load::of((0..samples).map(|_| (key(self.draw(stream)).into(), 1 + stream.below(63))).collect())
    }
}

struct World {
    boundaries: Vec<Vec<u8>>,
    balancer: Balancer,
    stream: Stream,
    /// Number of samples per interval.
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
            samples: servers * 50,
            moves: 0,
            plans: 0,
        }
    }

    fn observe(&mut self, load: &Load) {
        let moves = self.balancer.observe(&self.boundaries, load);
        self.plans += usize::from(!moves.is_empty());
        assert!(moves.len() <= self.boundaries.len(), "a boundary moves once in a plan");
        for step in moves {
            self.moves += 1;
            self.boundaries = apply(&self.boundaries, &step).expect("no boundary passes another on its way");
        }
    }

    /// Observes `intervals` intervals with one load.
    fn run(&mut self, intervals: u32, shape: &Shape) {
        for _ in 0..intervals {
            let load = shape.load(&mut self.stream, self.samples);
            self.observe(&load);
        }
    }

    /// Imbalance of a load of many keys.
    fn imbalance(&mut self, shape: &Shape) -> f64 {
        imbalance(&shape.load(&mut self.stream, 20_000), &self.boundaries)
    }
}

fn divisible() -> impl Strategy<Value = Shape> {
    prop_oneof![
        (30u64..100, 0..KEYS, KEYS / 1000..KEYS / 3).prop_map(|(percent, from, width)| Shape::Hot {
            percent,
            from,
            width
        }),
        (2u32..6).prop_map(Shape::Power),
    ]
}

// Claims about noise hold almost always: about one random case in some thousand is an exception. So the cases
// are fixed.
proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        rng_seed: RngSeed::Fixed(1),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_can_be_divided_is_divided_soon_and_then_rests(
        servers in 2u64..10,
        seed: u64,
        shapes in prop::collection::vec(divisible(), 1..4),
        samples in 30u64..150,
    ) {
        let mut world = World::new(servers, seed);
        world.samples = servers * samples;
        for shape in shapes {
            let before = world.plans;
            world.run(60, &shape);
            let after = world.imbalance(&shape);
            let soon = world.plans;
            prop_assert!(after < 1.3, "{after} with {servers} servers, {samples} keys each, {shape:?}");
            prop_assert!(soon - before <= 4, "{} plans for {shape:?}", soon - before);
            world.run(100, &shape);
            let settled = world.imbalance(&shape);
            prop_assert!(world.plans - soon <= 2, "{} plans once settled", world.plans - soon);
            prop_assert!(settled < 1.3, "{settled}");
        }
    }

    #[test]
    fn an_even_load_moves_nothing(servers in 1u64..10, seed: u64, samples in 1u64..100) {
        let mut world = World::new(servers, seed);
        world.samples = servers * samples;
        world.run(200, &Shape::Even);
        prop_assert_eq!(world.plans, 0, "by noise");
    }

    #[test]
    fn a_single_giant_key_is_left_alone_for_ever(
        servers in 2u64..10,
        seed: u64,
        giant in 0..KEYS,
        percent in 60u64..100,
    ) {
        let mut world = World::new(servers, seed);
        let shape = Shape::Keys { percent, keys: vec![giant] };
        world.run(210, &shape);
        // Chance decides when a plan gains enough, if that is a close call; a finer plan may follow.
        prop_assert!(world.plans <= 2, "{} plans, to and fro", world.plans);
    }

    #[test]
    fn a_few_giant_keys_of_one_server_are_given_to_several(seed: u64, first in 0..KEYS / 8 - 10, samples in 30u64..150) {
        let mut world = World::new(8, seed);
        world.samples = 8 * samples;
        let shape = Shape::Keys { percent: 100, keys: (0..4).map(|n| first + 2 * n).collect() };
        world.run(40, &shape);
        let after = world.imbalance(&shape);
        // A quarter of the load on each of four of the eight servers.
        prop_assert!(after < 2.2, "{after}");
        prop_assert!(world.plans <= 2, "{} plans", world.plans);
    }

    #[test]
    fn a_load_that_comes_and_goes_is_not_followed_for_ever(
        servers in 4u64..10,
        seed: u64,
        period in 1u32..10,
        from in 0..KEYS / 2,
    ) {
        let mut world = World::new(servers, seed);
        let hot = |from| Shape::Hot { percent: 90, from, width: KEYS / 10 };
        let (here, there) = (hot(from), hot(from + KEYS / 2));
        for _ in 0..400 / (2 * period) {
            world.run(period, &here);
            world.run(period, &there);
        }
        prop_assert!(world.plans <= 30, "{} plans, the load moved {} times", world.plans, 400 / period);
    }
}

#[test]
fn what_lasts_for_one_interval_moves_nothing() {
    let mut world = World::new(4, 1);
    for _ in 0..10 {
        world.run(1, &Shape::Hot { percent: 90, from: 0, width: KEYS / 100 });
        world.run(30, &Shape::Even);
    }
    assert_eq!(world.plans, 0);
}

#[test]
fn what_was_hardly_seen_moves_nothing_until_it_was_seen_long_enough() {
    let hot = Shape::Hot { percent: 90, from: 0, width: KEYS / 100 };
    let mut world = World::new(4, 1);
    world.samples = 10;
    world.run(11, &hot);
    assert_eq!(world.plans, 0);
    world.run(1, &hot);
    assert_eq!(world.plans, 1);
}
