//! Keys that move from one compute server to another (DEX §8, repartitioning).
//!
//! [`release`] is the former owner's half: it writes back what it has of the keys and makes the path to the new boundary shared.
//! [`acquire`] is the new owner's. [`transfer`] makes a move of both.

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod transfer;
