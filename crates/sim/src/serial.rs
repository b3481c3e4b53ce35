//! Resources that serve one request at a time, such as the wire of a NIC in one direction.
//!
//! A request waits while the resource is busy. The time at which the resource is free represents the whole
//! queue, so saturation needs no list. Requests are served in the order of the calls, which is the order of
//! virtual time.

use pando_fabric::Nanos;

/// Picoseconds: a NIC handles a message in a few dozen ns, so rounding to ns would cost a tenth of its rate.
pub(crate) type Picos = u64;

const PICOS: Picos = 1_000;

/// One resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serial {
    /// Time from which on it is free.
    free: Picos,
    /// Total busy time.
    busy: Picos,
}

impl Serial {
    /// Busy time in ns.
    pub fn busy(&self) -> Nanos {
        self.busy / PICOS
    }

    /// Serves a request that arrives at `now` and takes `duration`; returns its end.
    #[inline]
    pub fn serve(&mut self, now: Nanos, duration: Picos) -> Nanos {
        self.busy += duration;
        self.free = self.free.max(now * PICOS) + duration;
        self.free.div_ceil(PICOS)
    }
}

/// Time for `amount` at a rate per µs.
#[inline]
pub(crate) fn at_rate(amount: u64, per_us: u64) -> Picos {
    (amount * 1_000_000).div_ceil(per_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_it_is_busy_waits() {
        let mut wire = Serial::default();
        let message = at_rate(1, 35);
        assert_eq!(wire.serve(100, message), 129);
        assert_eq!(wire.serve(100, message), 158);
        assert_eq!(wire.serve(1_000, message), 1_029);
        let last = (0..34).map(|_| wire.serve(1_000, message)).last();
        assert_eq!(last, Some(2_001), "35 messages in a µs, rounded up once");
        assert_eq!(wire.busy(), 1_057);
    }
}
