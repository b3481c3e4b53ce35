//! State common to the endpoints of all fabrics.
//!
//! A fabric embeds an [`EndpointState`] in its endpoint and returns it from
//! [`Endpoint::state`](crate::Endpoint::state). The default methods of the trait use it, so buffers,
//! counters, slots and random numbers behave alike on all fabrics.

use std::cell::Cell;

use crate::{Buffers, Random, TimeLimit, VerbCounters};

/// Counters, buffers, slots, time limit and random numbers of one endpoint.
pub struct EndpointState {
    pub counters: VerbCounters,
    pub buffers: Buffers,
    pub time_limit: TimeLimit,
    pub random: Random,
    pub(crate) slots: Cell<u32>,
    slot_bit: Cell<u64>,
    ready: Cell<u64>,
}

impl EndpointState {
    /// Creates the state of an endpoint with one slot. `seed` seeds its random numbers.
    pub fn new(seed: u64) -> Self {
        Self {
            counters: VerbCounters::default(),
            buffers: Buffers::default(),
            time_limit: TimeLimit::default(),
            random: Random::new(seed),
            slots: Cell::new(1),
            slot_bit: Cell::new(1),
            ready: Cell::new(0),
        }
    }

    /// Bit of the slot that is being polled.
    #[inline]
    pub fn slot_bit(&self) -> u64 {
        self.slot_bit.get()
    }

    #[inline]
    pub(crate) fn enter_slot(&self, slot: u32) {
        debug_assert!(slot < u64::BITS, "slot {slot} of 64");
        self.slot_bit.set(1 << slot);
    }

    /// Marks the slots with the given bits as ready.
    #[inline]
    pub fn make_ready(&self, bits: u64) {
        self.ready.set(self.ready.get() | bits);
    }

    /// Takes the bits of the slots that became ready.
    #[inline]
    pub fn take_ready(&self) -> u64 {
        self.ready.take()
    }
}
