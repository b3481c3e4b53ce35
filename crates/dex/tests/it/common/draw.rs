//! Seeds of simulated runs, and what each stands for.
//!
//! `PANDO_SIM_SEEDS=A..B` in the environment replays seeds A to B - 1 of every test that uses them.

use std::ops::Range;

use pando_fabric::Random;

/// The seeds to run: so many unless the environment names others.
pub fn seeds(usually: u64) -> Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    first.parse().expect("a number")..end.parse().expect("a number")
}

/// What a seed stands for, choice by choice.
pub struct Draw(pub Random);

impl Draw {
    pub fn one_of<T: Copy>(&self, choices: &[T]) -> T {
        choices[(self.0.next() >> 32) as usize % choices.len()]
    }
}
