//! Moves of keys from one compute server to another (DEX §8, repartitioning).
//!
//! [`release`] is the former owner's half: it writes back the cached nodes of the keys and shares the path to
//! the new boundary. [`acquire`] is the new owner's half. [`transfer`] combines both into a move.

pub(crate) mod acquire;
pub(crate) mod release;
pub(crate) mod transfer;
