//! Tests of the crate from outside, in one program: what they share is compiled and linked once.

mod balancer;
mod bulk_lost;
mod common;
mod cut_off;
mod drain;
mod edges;
mod freed;
mod growth;
mod left_locks;
mod model;
mod moves;
mod placement;
mod plain;
mod read_ahead;
mod schedules;
mod simulated;
mod stress;
