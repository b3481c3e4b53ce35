//! Keys that move from one compute server to another (DEX §8, repartitioning).
//!
//! [`release`] is the former owner's half, [`acquire`] the new owner's, and [`transfer`] makes a move of both.

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod transfer;
