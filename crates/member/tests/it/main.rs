//! Tests of the crate from outside, in one program: what they share is compiled and linked once.
//!
//! `PANDO_SIM_SEEDS=A..B` in the environment replays seeds A to B - 1 of the simulations.

mod cluster;
#[cfg(feature = "defects")]
mod defects;
mod encodings;
mod leases;
mod register;
mod views;

use pando_fabric::Random;

/// A random number below `end`.
fn below(random: &Random, end: u64) -> u64 {
    random.next() % end
}

/// Seeds of a simulation: 0 to `usually` - 1, if the environment does not say otherwise.
fn seeds(usually: u64) -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("PANDO_SIM_SEEDS") else { return 0..usually };
    let (first, end) = text.split_once("..").expect("PANDO_SIM_SEEDS=A..B");
    let number = |text: &str| text.parse().expect("PANDO_SIM_SEEDS=A..B");
    number(first)..number(end)
}
