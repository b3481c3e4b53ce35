//! Slots: the words that link nodes (SMART §4.1).
//!
//! One word holds everything that a client needs to READ a child: its address, whether it is a leaf, and how
//! many bytes to READ. So every move of a child is one 8-byte compare-and-swap.
//!
//! - A slot is *empty* (zero), a *tombstone* (its leaf was removed; it can only take a child of the same byte
//!   again), or leads to a node or a leaf.
//! - A *frozen* slot never changes again: its node is being replaced.
//! - In one node a byte never has two slots: slots are filled from the front, and a slot keeps its byte.

use std::fmt;

use pando_fabric::{GlobalAddr, MAX_OFFSET, MemoryServerId};

use super::node::CLASSES;

const LEAF: u64 = 1 << 8;
const TOMBSTONE: u64 = 1 << 9;
const FROZEN: u64 = 1 << 10;
const SIZE_AT: u32 = 11;
const SIZE_MASK: u64 = 0x7f;
const OFFSET_AT: u32 = 18;
const OFFSET_BITS: u32 = 36;
const SERVER_AT: u32 = OFFSET_AT + OFFSET_BITS;
/// Shift of the bits that describe the child: its address and size.
pub(crate) const TARGET_AT: u32 = SIZE_AT;
/// Blocks of the pool are aligned to this.
const GRANULE: u64 = 16;

/// First offset in a region beyond the reach of slots: 1 TiB.
pub(crate) const OFFSET_END: u64 = GRANULE << OFFSET_BITS;
/// First memory server number beyond the reach of slots.
pub(crate) const SERVERS_END: u16 = 1 << (64 - SERVER_AT);

const _: () = assert!(OFFSET_END <= MAX_OFFSET && CLASSES.len() <= SIZE_MASK as usize);

/// A slot as stored in remote memory: `[server:10][offset /
/// 16:36][size:7][frozen:1][tombstone:1][leaf:1][byte:8]`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u64);

impl Slot {
    pub const EMPTY: Self = Self(0);

    #[inline]
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }

    /// Leads to a leaf of length `size`.
    pub fn leaf(byte: u8, size: LeafSize, addr: GlobalAddr) -> Self {
        Self(u64::from(byte) | LEAF | u64::from(size.0) << SIZE_AT | pack(addr))
    }

    /// Leads to a node of capacity class `class`.
    pub fn node(byte: u8, class: u8, addr: GlobalAddr) -> Self {
        Self(u64::from(byte) | u64::from(class) << SIZE_AT | pack(addr))
    }

    /// Reserves the slot of a byte whose leaf was removed.
    pub fn tombstone(byte: u8) -> Self {
        Self(u64::from(byte) | TOMBSTONE)
    }

    /// Whether it never had a child.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 & !FROZEN == 0
    }

    /// Whether it leads to a child.
    #[inline]
    pub fn is_taken(self) -> bool {
        !self.is_empty() && self.0 & TOMBSTONE == 0
    }

    #[inline]
    pub fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    #[inline]
    pub fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub fn frozen(self) -> Self {
        Self(self.0 | FROZEN)
    }

    pub fn thawed(self) -> Self {
        Self(self.0 & !FROZEN)
    }

    #[inline]
    pub fn byte(self) -> u8 {
        self.0 as u8
    }

    pub fn with_byte(self, byte: u8) -> Self {
        Self(self.0 & !0xff | u64::from(byte))
    }

    #[inline]
    pub fn addr(self) -> GlobalAddr {
        let server = MemoryServerId((self.0 >> SERVER_AT) as u16);
        let offset = (self.0 >> OFFSET_AT) & ((1 << OFFSET_BITS) - 1);
        GlobalAddr::new(server, offset * GRANULE)
    }

    /// Capacity class of the node to which it leads.
    #[inline]
    pub fn class(self) -> u8 {
        (self.0 >> SIZE_AT & SIZE_MASK) as u8
    }

    pub fn with_class(self, class: u8) -> Self {
        Self(self.0 & !(SIZE_MASK << SIZE_AT) | u64::from(class) << SIZE_AT)
    }

    /// Length of the leaf to which it leads.
    #[inline]
    pub fn leaf_size(self) -> LeafSize {
        LeafSize(self.class())
    }

    /// Address and size of the child, without byte and marks.
    pub fn target(self) -> u64 {
        self.0 >> TARGET_AT
    }

    /// The slot of a leaf with this target.
    pub fn of_leaf_target(byte: u8, target: u64) -> Self {
        Self(u64::from(byte) | LEAF | target << TARGET_AT)
    }
}

fn pack(addr: GlobalAddr) -> u64 {
    debug_assert!(can_lead_to(addr) && addr.offset().is_multiple_of(GRANULE), "{addr}");
    u64::from(addr.server().0) << SERVER_AT | (addr.offset() / GRANULE) << OFFSET_AT
}

/// Whether slots have enough bits for the address.
pub(crate) fn can_lead_to(addr: GlobalAddr) -> bool {
    addr.server().0 < SERVERS_END && addr.offset() < OFFSET_END
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frozen = if self.is_frozen() { "frozen " } else { "" };
        match () {
            () if self.is_empty() => write!(f, "{frozen}empty"),
            () if !self.is_taken() => write!(f, "{frozen}tombstone {:#04x}", self.byte()),
            () if self.is_leaf() => write!(f, "{frozen}leaf {:#04x} at {}", self.byte(), self.addr()),
            () => write!(f, "{frozen}node {:#04x} at {}", self.byte(), self.addr()),
        }
    }
}

/// Length of a leaf in words: every number up to 32, eight per doubling above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafSize(u8);

/// Lengths up to this are exact.
const EXACT: usize = 32;
const STEPS: usize = 8;

impl LeafSize {
    /// Smallest size that holds `words`; `None` beyond the largest.
    pub fn holding(words: usize) -> Option<Self> {
        let code = match words {
            0..=EXACT => words,
            _ => {
                let doubling = ((words - 1) / EXACT).ilog2() as usize;
                let step = (EXACT / STEPS) << doubling;
                let steps = (words - (EXACT << doubling)).div_ceil(step);
                EXACT + doubling * STEPS + steps
            }
        };
        (code <= SIZE_MASK as usize).then_some(Self(code as u8))
    }

    #[inline]
    pub fn words(self) -> usize {
        match usize::from(self.0).checked_sub(EXACT + 1) {
            None => usize::from(self.0),
            Some(code) => {
                let doubling = code / STEPS;
                (EXACT << doubling) + (code % STEPS + 1) * ((EXACT / STEPS) << doubling)
            }
        }
    }

    pub fn bytes(self) -> u64 {
        self.words() as u64 * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_slot_come_back() {
        let addr = GlobalAddr::new(MemoryServerId(SERVERS_END - 1), OFFSET_END - GRANULE);
        let size = LeafSize::holding(9).expect("a size");
        let leaf = Slot::leaf(0xfe, size, addr);
        assert_eq!((leaf.byte(), leaf.addr(), leaf.leaf_size().words()), (0xfe, addr, 9));
        assert!(leaf.is_leaf() && leaf.is_taken() && !leaf.is_frozen());
        assert_eq!(Slot::of_leaf_target(0xfe, leaf.target()), leaf);
        let node = Slot::node(7, 3, addr).frozen();
        assert_eq!((node.byte(), node.class(), node.addr()), (7, 3, addr));
        assert!(!node.is_leaf() && node.is_frozen() && node.thawed() == Slot::node(7, 3, addr));
        assert_eq!(node.with_class(5).with_byte(9).thawed(), Slot::node(9, 5, addr));
        let gone = Slot::tombstone(3);
        assert!(!gone.is_taken() && !gone.is_empty() && gone.byte() == 3);
        assert!(Slot::EMPTY.frozen().is_empty() && !Slot::EMPTY.is_taken());
        assert!(!can_lead_to(GlobalAddr::new(MemoryServerId(SERVERS_END), 0)));
    }

    #[test]
    fn every_length_has_the_smallest_size() {
        let mut before = 0;
        for code in 1..=SIZE_MASK as u8 {
            let words = LeafSize(code).words();
            assert!(words > before, "{code}");
            for wanted in before + 1..=words {
                assert_eq!(LeafSize::holding(wanted), Some(LeafSize(code)), "{wanted}");
            }
            before = words;
        }
        assert!(before * 8 > 64 << 10);
        assert_eq!(LeafSize::holding(before + 1), None);
    }
}
