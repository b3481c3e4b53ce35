//! Seeds of simulated runs, and the choices that follow from a seed.
//!
//! `PANDO_SIM_SEEDS=A..B` in the environment replays seeds A to B - 1 of every test that uses seeds.

use std::ops::Range;

use pando_fabric::Random;

/// Seeds to run: 0 to `usually` - 1, unless the environment gives others.
pub fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// Draws the choices of a seed, one by one.
pub struct Draw(pub Random);

impl Draw {
    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[(self.0.next() >> 32) as usize % choices.len()]
    }
}
