//! Inner nodes (SMART §4.1: homogeneous adaptive internal nodes).
//!
//! ```text
//!  word 0  lock, for nodes that are changed under one
//!       1  header: [tag:24][branch:24][prefix length:8][room:4][class:4]
//!       2  prefix: the bytes of every key below that precede its byte number `branch`
//!       3  end slot: the leaf of the key that ends at `branch`
//!       4  slots, one for each different byte number `branch`, in any order
//! ```
//! `class` tells how many slots are in use and READ, `room` how many fit into the memory: a node grows in
//! place until its room is used up. The rest of the header never changes: if another node is put above, this
//! one keeps the bytes that now belong to the upper one, and readers skip them. So any mixture of words from
//! different times is a state that the node had, up to slots filled meanwhile.

use pando_fabric::{GlobalAddr, PageBuf};

use super::slot::Slot;

/// Numbers of slots by class. ART's are 4, 16, 48 and 256 (SMART's motivation; ART, ICDE 2013), SMART's are
/// the powers of two.
pub(crate) const CLASSES: [usize; 8] = [4, 8, 16, 32, 48, 64, 128, 256];
pub(crate) const LARGEST: u8 = CLASSES.len() as u8 - 1;

pub(crate) const LOCK_AT: u64 = 0;
pub(crate) const HEADER_AT: u64 = 8;
const HEADER: usize = 1;
const PREFIX: usize = 2;
/// The end slot, which is slot number 0.
const FIRST_SLOT: usize = 3;

/// Number of bytes that one node can skip.
pub(crate) const PREFIX_MAX: usize = 8;

/// Smallest class with at least `slots` slots.
pub(crate) fn class_holding(slots: usize) -> u8 {
    CLASSES.iter().position(|&capacity| capacity >= slots).map_or(LARGEST, |class| class as u8)
}

/// Size of a node with the slots of `class`, in bytes.
pub(crate) fn bytes_of(class: u8) -> usize {
    (FIRST_SLOT + 1 + CLASSES[class as usize]) * 8
}

/// Address of slot `number` of the node at `addr`; 0 is the end slot.
#[inline]
pub(crate) fn slot_addr(addr: GlobalAddr, number: usize) -> GlobalAddr {
    addr.add(((FIRST_SLOT + number) * 8) as u64)
}

/// The word with the properties of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header(u64);

impl Header {
    pub fn new(tag: u32, branch: usize, prefix_len: usize, room: u8, class: u8) -> Self {
        debug_assert!(prefix_len <= PREFIX_MAX.min(branch) && branch < 1 << 24 && class <= room);
        Self(
            u64::from(tag & 0xff_ffff) << 40
                | (branch as u64) << 16
                | (prefix_len as u64) << 8
                | u64::from(room) << 4
                | u64::from(class),
        )
    }

    /// `None` if no node of the index with this tag has such a header.
    #[inline]
    pub fn from_raw(raw: u64, tag: u32) -> Option<Self> {
        let header = Self(raw);
        let is_sound = (raw >> 40) as u32 == tag & 0xff_ffff
            && header.room() <= LARGEST
            && header.class() <= header.room()
            && header.prefix_len() <= PREFIX_MAX.min(header.branch());
        is_sound.then_some(header)
    }

    pub fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn class(self) -> u8 {
        (self.0 & 0xf) as u8
    }

    pub fn room(self) -> u8 {
        (self.0 >> 4 & 0xf) as u8
    }

    #[inline]
    pub fn prefix_len(self) -> usize {
        (self.0 >> 8 & 0xff) as usize
    }

    /// Number of the key byte on which this node branches.
    #[inline]
    pub fn branch(self) -> usize {
        (self.0 >> 16 & 0xff_ffff) as usize
    }

    /// Number of the first key byte that this node covers.
    #[inline]
    pub fn depth(self) -> usize {
        self.branch() - self.prefix_len()
    }

    pub fn with_class(self, class: u8) -> Self {
        Self(self.0 & !0xf | u64::from(class))
    }

    /// Size of its block in bytes.
    pub fn block_bytes(self) -> u64 {
        bytes_of(self.room()) as u64
    }
}

/// A node as it was READ: all slots of a class.
pub(crate) struct Node {
    pub addr: GlobalAddr,
    pub header: Header,
    pub page: PageBuf,
}

impl Node {
    /// Key byte number `at`, which the node skips: one of the last `PREFIX_MAX` before its branch.
    #[inline]
    pub fn prefix_byte(&self, at: usize) -> u8 {
        let from_end = self.header.branch() - at;
        self.page.get(PREFIX).to_le_bytes()[PREFIX_MAX - from_end]
    }

    /// Number of slots that were READ, without the end slot.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.page.len() / 8 - FIRST_SLOT - 1
    }

    /// Slot `number`; 0 is the end slot.
    #[inline]
    pub fn slot(&self, number: usize) -> Slot {
        Slot::from_raw(self.page.get(FIRST_SLOT + number))
    }

    /// All slots that were READ, with their numbers.
    pub fn slots(&self) -> impl Iterator<Item = (usize, Slot)> + '_ {
        (0..=self.capacity()).map(|number| (number, self.slot(number)))
    }

    /// Slot of a byte. A bulk load fills a large node so that the slot's number follows from the byte.
    #[inline]
    pub fn find(&self, byte: u8) -> Option<(usize, Slot)> {
        let guess = usize::from(byte) + 1;
        if guess <= self.capacity() && has_byte(self.slot(guess), byte) {
            return Some((guess, self.slot(guess)));
        }
        (1..=self.capacity())
            .map(|number| (number, self.slot(number)))
            .take_while(|(_, slot)| !slot.is_empty())
            .find(|&(_, slot)| has_byte(slot, byte))
    }
}

#[inline]
pub(crate) fn has_byte(slot: Slot, byte: u8) -> bool {
    slot.byte() == byte && !slot.is_empty()
}

/// Contents of a new node.
pub(crate) struct NewNode {
    pub branch: usize,
    /// The bytes before `branch`, of which it keeps as many as it can skip.
    pub prefix: Vec<u8>,
    pub end: Slot,
    pub slots: Vec<Slot>,
}

impl NewNode {
    /// Fills in the words of a node with room for `room`; returns its header.
    pub fn fill(&self, tag: u32, room: u8, page: &PageBuf) -> Header {
        let class = class_holding(self.slots.len()).min(room);
        debug_assert!(self.slots.len() <= CLASSES[class as usize] && page.len() >= bytes_of(room));
        let kept = &self.prefix[self.prefix.len().saturating_sub(PREFIX_MAX)..];
        let header = Header::new(tag, self.branch, kept.len(), room, class);
        let mut prefix = [0; PREFIX_MAX];
        prefix[PREFIX_MAX - kept.len()..].copy_from_slice(kept);
        (0..page.len() / 8).for_each(|word| page.set(word, 0));
        page.set(HEADER, header.raw());
        page.set(PREFIX, u64::from_le_bytes(prefix));
        page.set(FIRST_SLOT, self.end.raw());
        for (number, slot) in self.slots.iter().enumerate() {
            page.set(FIRST_SLOT + 1 + number, slot.raw());
        }
        header
    }
}

/// The header word of a page.
#[inline]
pub(crate) fn raw_header(page: &PageBuf) -> u64 {
    page.get(HEADER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pando_fabric::MemoryServerId;

    #[test]
    fn the_parts_of_a_header_come_back() {
        let header = Header::new(0x12_3456, 70_000, 5, 7, 2);
        let again = Header::from_raw(header.raw(), 0x12_3456).expect("sound");
        assert_eq!((again.branch(), again.prefix_len(), again.depth()), (70_000, 5, 69_995));
        assert_eq!((again.room(), again.class()), (7, 2));
        let changed = again.with_class(6);
        assert_eq!((changed.class(), changed.depth(), changed.branch()), (6, 69_995, 70_000));
        assert_eq!(Header::from_raw(header.raw(), 1), None);
        assert_eq!(Header::from_raw(0, 0).map(Header::class), Some(0));
    }

    #[test]
    fn a_node_finds_its_slots_and_keeps_its_prefix() {
        let addr = GlobalAddr::new(MemoryServerId(0), 4096);
        let child = |byte| Slot::node(byte, 0, addr);
        let new = NewNode {
            branch: 20,
            prefix: b"0123456789".to_vec(),
            end: Slot::EMPTY,
            slots: vec![child(9), Slot::tombstone(3), child(0)],
        };
        let page = PageBuf::zeroed(bytes_of(2));
        let header = new.fill(1, 2, &page);
        assert_eq!((header.class(), header.prefix_len()), (0, 8));
        let node = Node { addr, header, page };
        let kept: Vec<u8> = (header.depth()..20).map(|at| node.prefix_byte(at)).collect();
        assert_eq!(kept, b"23456789");
        assert_eq!(node.find(0), Some((3, child(0))));
        assert_eq!(node.find(3), Some((2, Slot::tombstone(3))));
        assert_eq!((node.find(1), node.capacity()), (None, 16));
    }

    #[test]
    fn classes_hold_what_they_say() {
        assert_eq!(
            (class_holding(0), class_holding(4), class_holding(5), class_holding(256)),
            (0, 0, 1, LARGEST)
        );
        assert_eq!(bytes_of(LARGEST), 32 + 256 * 8);
    }
}
