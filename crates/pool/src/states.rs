//! The membership as memory server 0 stores it, and the states of memory servers.
//!
//! ```text
//! epoch, servers that joined, .., largest block        see `layout.rs`
//! states                                               two bits per server, 32 servers in a word
//! ```
//! Whoever reads it takes the epoch first, since a change raises that last. `membership.rs` makes the changes. What a pool needs to
//! know of a drained server, which need not be there, stands beside its state.

use pando_fabric::{Endpoint, GlobalAddr, MAX_SERVERS, MemoryServerId};

use crate::error::{PoolError, Result};
use crate::io::read_words;
use crate::layout::{EPOCH_AT, STATES_AT, STATES_MAX};

/// State of a memory server in the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServerState {
    /// Takes new blocks.
    Active = 0,
    /// Takes no new blocks; its blocks will move to other servers.
    Draining = 1,
    /// Takes no new blocks, holds none, and need not be there.
    Drained = 2,
}

/// States in one word.
const PER_WORD: usize = 32;

/// The word with the state of server `number`, on memory server 0.
pub(crate) fn state_word(number: usize) -> GlobalAddr {
    GlobalAddr::new(MemoryServerId(0), STATES_AT + (number / PER_WORD * 8) as u64)
}

impl ServerState {
    /// `word` with this state of server `number`.
    pub(crate) fn put_into(self, word: u64, number: usize) -> u64 {
        let shift = 2 * (number % PER_WORD);
        word & !(3 << shift) | (self as u64) << shift
    }

    pub(crate) fn from_bits(bits: u64) -> Option<Self> {
        match bits & 3 {
            0 => Some(Self::Active),
            1 => Some(Self::Draining),
            2 => Some(Self::Drained),
            _ => None,
        }
    }
}

/// What memory server 0 says of all of them.
pub(crate) struct Membership {
    pub epoch: u64,
    pub servers: usize,
    /// Size of the largest block of the pool, once a server was drained; 0 before.
    largest: u64,
    states: Vec<u64>,
}

impl Membership {
    /// Reads it from memory server 0, which is reached as `home`, of a pool that was formatted with this number of servers.
    pub async fn read<E: Endpoint>(ep: &E, home: MemoryServerId, formatted: usize) -> Result<Self> {
        let at = |offset| GlobalAddr::new(home, offset);
        // A change raises the epoch last, so the states are at least as new.
        let words = read_words(ep, at(EPOCH_AT), 4).await?;
        let servers = formatted.saturating_add(words[1] as usize);
        if servers > MAX_SERVERS {
            let reason = "it says that more memory servers joined than there can be";
            return Err(PoolError::DamagedSuperblock { server: home, reason });
        }
        let states = read_words(ep, at(STATES_AT), servers.min(STATES_MAX).div_ceil(PER_WORD)).await?;
        Ok(Self { epoch: words[0], servers, largest: words[3], states })
    }

    pub fn state(&self, number: usize) -> Result<ServerState> {
        let word = self.states.get(number / PER_WORD).copied().unwrap_or(0);
        let corrupt =
            || PoolError::Corrupt { addr: state_word(number), reason: "this is no state of a server" };
        ServerState::from_bits(word >> (2 * (number % PER_WORD))).ok_or_else(corrupt)
    }

    /// Size of the largest block of the pool, if the server is drained and need not be there.
    pub fn largest_if_drained(&self, number: usize) -> Result<Option<u64>> {
        let is_drained = self.state(number)? == ServerState::Drained;
        Ok((is_drained && self.largest.is_power_of_two()).then_some(self.largest))
    }
}
