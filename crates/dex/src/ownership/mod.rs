//! Ownership of keys by compute servers (DEX §4, §8): ranges, views, routes to owners, and load.
//!
//! These modules know no tree. A tree asks its [`Ownership`](view::Ownership) whether it owns a key. A
//! session asks its [`Router`](routing::Router) which compute server does.

pub(crate) mod load;
pub(crate) mod range;
pub mod rebalancer;
pub(crate) mod routing;
pub(crate) mod scan_range;
pub(crate) mod view;
