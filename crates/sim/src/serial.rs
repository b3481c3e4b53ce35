//! Resources that serve one thing at a time: a direction of a NIC, a unit for atomics, a core.
//!
//! Who comes while it is busy waits its turn. That is all there is to saturation: a queue in time, without a list. Who
//! is served first is whoever asks first, so each is asked in the order of virtual time.

use pando_fabric::Nanos;

/// Picoseconds, since a NIC handles a message in a few dozen ns and rounding each up would cost a tenth of its rate.
pub(crate) type Picos = u64;

const PICOS: Picos = 1_000;

/// One such resource.
#[derive(Clone, Debug, Default)]
pub(crate) struct Serial {
    free: Picos,
    /// What takes longer than this takes as long as its payload.
    least: Picos,
    busy: Picos,
    with_payload: Picos,
}

impl Serial {
    /// One for which nothing takes less than `least`.
    pub fn new(least: Picos) -> Self {
        Self { least, ..Self::default() }
    }

    /// How long it has been busy, and of that with what took longer than the least; in ns.
    pub fn busy(&self) -> (Nanos, Nanos) {
        (self.busy / PICOS, self.with_payload / PICOS)
    }

    /// Serves what arrives at `now` and takes `duration`; when that is done.
    #[inline]
    pub fn serve(&mut self, now: Nanos, duration: Picos) -> Nanos {
        self.busy += duration;
        if duration > self.least {
            self.with_payload += duration;
        }
        self.free = self.free.max(now * PICOS) + duration;
        self.free.div_ceil(PICOS)
    }
}

/// How long `amount` takes at a rate per µs.
#[inline]
pub(crate) fn at_rate(amount: u64, per_us: u64) -> Picos {
    (amount * 1_000_000).div_ceil(per_us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_while_it_is_busy_waits() {
        let mut port = Serial::default();
        let message = at_rate(1, 35);
        assert_eq!(port.serve(100, message), 129);
        assert_eq!(port.serve(100, message), 158);
        assert_eq!(port.serve(1_000, message), 1_029);
        let last = (0..34).map(|_| port.serve(1_000, message)).last();
        assert_eq!(last, Some(2_001), "35 messages in a µs, rounded up once");
        assert_eq!(port.busy(), (1_057, 1_057));
        let mut port = Serial::new(message);
        port.serve(0, message);
        port.serve(0, 10 * message);
        assert_eq!(port.busy(), (314, 285));
    }
}
