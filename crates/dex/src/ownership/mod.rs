//! Which compute server owns which keys (DEX §4, §8): ranges, views, routes to owners, and load.
//!
//! Nothing here knows of a tree. A tree asks its [`Ownership`](view::Ownership) whether it owns a key, and a session asks its
//! [`Router`](routing::Router) which compute server does.

pub(crate) mod load;
pub(crate) mod range;
pub mod rebalancer;
pub(crate) mod routing;
pub(crate) mod scan_range;
pub(crate) mod view;
