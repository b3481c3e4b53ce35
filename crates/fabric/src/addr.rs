//! Global addresses (DEX §3): `[swizzled:1][memory-server-id:15][offset:48]`.
//!
//! An address in a message or in remote memory has a clear top bit; only a cache sets that bit, in words of
//! its own frames. A word from remote memory becomes an address through [`GlobalAddr::from_raw`], which
//! refuses a swizzled one, so corrupt bytes cannot become a frame reference.

use std::fmt;

/// Number of a memory server, below [`MAX_SERVERS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct MemoryServerId(pub u16);

/// Maximum number of memory servers: 15 bits.
pub const MAX_SERVERS: usize = 1 << 15;
/// First offset that does not fit into 48 bits.
pub const MAX_OFFSET: u64 = 1 << 48;

const SWIZZLED: u64 = 1 << 63;

/// Address of a byte in the memory pool: a memory server and an offset into its region.
///
/// The top bit is always clear here. A cache sets it in a word that holds a frame number instead of an
/// address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct GlobalAddr(u64);

impl GlobalAddr {
    /// The null address. Offset 0 of server 0 holds the pool's superblock, never an object.
    pub const NULL: Self = Self(0);

    /// Address of byte `offset` in the region of `server`.
    ///
    /// # Panics
    /// If `server` or `offset` does not fit into its bits.
    #[inline]
    pub fn new(server: MemoryServerId, offset: u64) -> Self {
        assert!((server.0 as usize) < MAX_SERVERS && offset < MAX_OFFSET, "address out of range");
        Self((u64::from(server.0) << 48) | offset)
    }

    /// Address encoded by `raw`, or `None` if its swizzled bit is set.
    #[inline]
    pub fn from_raw(raw: u64) -> Option<Self> {
        (raw & SWIZZLED == 0).then_some(Self(raw))
    }

    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn server(self) -> MemoryServerId {
        MemoryServerId((self.0 >> 48) as u16)
    }

    #[inline]
    pub fn offset(self) -> u64 {
        self.0 & (MAX_OFFSET - 1)
    }

    #[inline]
    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Address `bytes` further on the same server.
    ///
    /// # Panics
    /// If the offset exceeds 48 bits.
    #[inline]
    #[allow(clippy::should_implement_trait, reason = "as pointers do: the operands differ in kind")]
    pub fn add(self, bytes: u64) -> Self {
        Self::new(self.server(), self.offset() + bytes)
    }
}

impl fmt::Debug for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:#x}", self.server().0, self.offset())
    }
}

impl fmt::Display for GlobalAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for MemoryServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

const _: () = assert!(size_of::<GlobalAddr>() == 8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back() {
        let addr = GlobalAddr::new(MemoryServerId(0x7fff), MAX_OFFSET - 8);
        assert_eq!((addr.server().0, addr.offset()), (0x7fff, MAX_OFFSET - 8));
        assert_eq!(GlobalAddr::from_raw(addr.raw()), Some(addr));
        assert_eq!(GlobalAddr::from_raw(addr.raw() | SWIZZLED), None);
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_server_beyond_15_bits_is_refused() {
        GlobalAddr::new(MemoryServerId(0x8000), 0);
    }
}
