//! Integration tests of the crate.
//!
//! All are in one program, so that the helpers in `common` are compiled once and the crate is linked once.

mod balancer;
mod bulk_lost;
mod common;
mod cut_off;
mod drain;
mod edges;
mod freed;
mod growth;
mod killed;
mod left_locks;
mod log_costs;
mod model;
mod moves;
mod placement;
mod plain;
mod read_ahead;
mod schedules;
mod simulated;
mod stress;
