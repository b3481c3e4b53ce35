//! A NIC: messages and bytes of each direction, fetches from host memory, and the state of connections.
//!
//! Each is a serial resource of its own, and all work at the same time: a message waits for the later of its
//! turn in the message engine and its turn on the wire. So small messages are limited by the rate of
//! messages, long ones by bandwidth, and a mixture by both. The answer to a READ of host memory also waits
//! for its fetch over PCIe.
//!
//! The NIC keeps the state of its connections (queue pairs) in a cache. With more connections than the cache
//! holds, a share of the messages misses, and the message engine waits for the state (eRPC, NSDI 2019, §4).

use pando_fabric::Nanos;

use crate::model::Network;
use crate::serial::{Picos, Serial, at_rate};

/// Time for which a message occupies one direction of a NIC.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    pub message: Picos,
    pub wire: Picos,
}

impl Load {
    /// The load at a server that is `factor` times as slow.
    pub fn times(self, factor: u64) -> Self {
        Self { message: self.message * factor, wire: self.wire * factor }
    }

    /// Time that the message takes on an idle NIC.
    pub fn longest(self) -> Picos {
        self.message.max(self.wire)
    }
}

/// One direction.
#[derive(Default)]
pub(crate) struct Port {
    messages: Serial,
    wire: Serial,
}

impl Port {
    #[inline]
    fn serve(&mut self, now: Nanos, load: Load, miss: Picos) -> Nanos {
        self.messages.serve(now, load.message + miss).max(self.wire.serve(now, load.wire))
    }

    /// Busy times of the message engine and of the wire.
    pub fn busy(&self) -> [Nanos; 2] {
        [self.messages.busy(), self.wire.busy()]
    }
}

#[derive(Default)]
pub(crate) struct Nic {
    pub outbound: Port,
    pub inbound: Port,
    /// Fetches from host memory for READs.
    fetches: Serial,
    connections: u64,
    /// Mean time that a message waits for the state of its connection.
    miss: Picos,
}

impl Nic {
    /// Adds connections that threads of this machine or of others have.
    pub fn connect(&mut self, count: u64, network: &Network) {
        self.connections += count;
        let missing = self.connections.saturating_sub(network.connections_cached);
        self.miss = network.connection_miss_ns * 1_000 * missing / self.connections.max(1);
    }

    /// Sends a message; returns when it has left.
    #[inline]
    pub fn send(&mut self, now: Nanos, load: Load) -> Nanos {
        self.outbound.serve(now, load, self.miss)
    }

    /// Receives a message; returns when it is there.
    #[inline]
    pub fn receive(&mut self, now: Nanos, load: Load) -> Nanos {
        self.inbound.serve(now, load, self.miss)
    }

    /// Fetches from host memory what a READ asks for; returns when it is there.
    #[inline]
    pub fn fetch(&mut self, now: Nanos, duration: Picos) -> Nanos {
        self.fetches.serve(now, duration)
    }

    /// Busy time of the fetches.
    pub fn fetching(&self) -> Nanos {
        self.fetches.busy()
    }
}

/// Loads of messages on a NIC.
#[derive(Clone, Copy)]
pub(crate) struct Costs {
    message: Picos,
    /// Time of 1 KiB on the wire.
    kib: Picos,
    header_bytes: u64,
    /// Time of a fetch from host memory.
    pub fetch: Picos,
    /// Time between two atomics on the chip.
    pub on_chip: Picos,
}

impl Costs {
    pub fn new(network: &Network) -> Self {
        Self {
            message: at_rate(1, network.messages_per_us),
            kib: at_rate(1024, network.bytes_per_us),
            header_bytes: network.header_bytes,
            fetch: at_rate(1, network.small_reads_per_us),
            on_chip: network.on_chip_atomic_ns * 1_000,
        }
    }

    /// Load of a message of `bytes` payload bytes.
    #[inline]
    pub fn message(&self, bytes: usize) -> Load {
        Load { message: self.message, wire: (bytes as u64 + self.header_bytes) * self.kib / 1024 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages of `bytes` that a NIC sends, in millions a second.
    fn rate(nic: &mut Nic, costs: &Costs, bytes: usize) -> f64 {
        (1..).take_while(|_| nic.send(0, costs.message(bytes)) <= 1_000_000).count() as f64 / 1e3
    }

    #[test]
    fn small_messages_are_limited_by_their_number_and_long_ones_by_their_bytes() {
        let network = Network::default();
        let costs = Costs::new(&network);
        let rates = [0, 8, 256, 1024, 64 << 10].map(|bytes| rate(&mut Nic::default(), &costs, bytes));
        assert_eq!(rates[..3].iter().map(|rate| rate.round()).collect::<Vec<_>>(), [35.0; 3]);
        assert!((10.0..10.75).contains(&rates[3]), "{rates:?}");
        let gigabytes = rates[4] * 65.536;
        assert!((10.8..=11.0).contains(&gigabytes), "{gigabytes} GB/s of payload");
    }

    #[test]
    fn connections_beyond_the_cache_slow_messages_down() {
        let network = Network::default();
        let costs = Costs::new(&network);
        let rates = [network.connections_cached, 5_000, 20_000].map(|connections| {
            let mut nic = Nic::default();
            nic.connect(connections, &network);
            rate(&mut nic, &costs, 8)
        });
        assert!(rates[0] > 34.9 && rates[1] < 0.5 * rates[0] && rates[2] < rates[1], "{rates:?}");
    }
}
