//! The data that both ends exchange when they pair: the address of each queue pair and, from the server, the
//! memory.
//!
//! The bytes are sent as a `Pair` request and its answer over a connection after its handshake. They are
//! little-endian and of fixed length; `docs/verbs.md` has drawings.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Address and parameters of one queue pair.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Peer {
    pub queue_pair: U32,
    /// Number of the first packet that it sends.
    pub psn: U32,
    pub gid: [u8; 16],
    pub lid: U16,
    /// MTU code of its port.
    pub mtu: u8,
    /// Maximum number of READs and atomics that it takes, or sends, at a time.
    pub depth: u8,
    /// 1: its port is InfiniBand, 2: Ethernet.
    pub link_layer: u8,
    /// Code of the time after which it sends an unacknowledged packet again.
    pub timeout: u8,
    pub zero: [u8; 2],
}

/// The region of a memory server, as registered with its device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Place {
    pub address: U64,
    pub bytes: U64,
    pub key: U32,
    /// Maximum number of calls in flight over this queue pair; 0 if calls must use the connection.
    pub calls: U32,
}

/// A memory server's answer.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Answer {
    pub peer: Peer,
    pub place: Place,
}

const _: () = assert!(size_of::<Peer>() == 32 && size_of::<Answer>() == 56);

impl Peer {
    /// Checks that a port of this link layer can talk to the peer.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn check(&self, link_layer: u8) -> Result<(), String> {
        if link_layer != self.link_layer {
            let name = |layer| if layer == 1 { "InfiniBand" } else { "Ethernet" };
            return Err(format!(
                "one port is of {} and the other of {}",
                name(link_layer),
                name(self.link_layer)
            ));
        }
        if self.depth == 0 || !(1..=5).contains(&self.mtu) {
            return Err("what it says of its queue pair makes no sense".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change of these bytes needs a new protocol version.
    #[test]
    fn an_answer_has_these_bytes() {
        let peer = Peer {
            queue_pair: 0x0102_0304.into(),
            psn: 5.into(),
            gid: [0xee; 16],
            lid: 6.into(),
            mtu: 3,
            depth: 16,
            link_layer: 2,
            timeout: 14,
            zero: [0; 2],
        };
        let place = Place { address: 0x1122.into(), bytes: 4096.into(), key: 7.into(), calls: 8.into() };
        let answer = Answer { peer, place };
        let hex: String = answer.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = "04030201 05000000 eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee 0600 03 10 02 0e 0000
            2211000000000000 0010000000000000 07000000 08000000";
        assert_eq!(hex, golden.split_whitespace().collect::<String>());
        assert_eq!(Answer::read_from_bytes(answer.as_bytes()), Ok(answer));
    }
}
