//! DEX: a B+-tree for disaggregated memory.
#![forbid(unsafe_code)]

mod error;
pub mod layout;

pub use error::{DexError, Result};
