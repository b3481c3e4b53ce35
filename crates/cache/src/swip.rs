//! Swizzled pointers (DEX §5.1, LeanStore §3.1). The only module that opens the tag.
//!
//! A child word of a cached node holds the child's global address or, with the top bit set, the number of the
//! child's frame. Remote copies of nodes hold addresses only.

use pando_fabric::GlobalAddr;

/// Number of a frame in its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameId(pub u32);

const SWIZZLED: u64 = 1 << 63;

/// Child word of a node: hot (a frame of this cache) or the child's global address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swip(u64);

impl Swip {
    #[inline]
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    #[inline]
    pub fn raw(self) -> u64 {
        self.0
    }

    #[inline]
    pub fn hot(frame: FrameId) -> Self {
        Self(SWIZZLED | u64::from(frame.0))
    }

    #[inline]
    pub fn addr(addr: GlobalAddr) -> Self {
        Self(addr.raw())
    }

    /// The frame, if this is swizzled.
    #[inline]
    pub fn frame(self) -> Option<FrameId> {
        (self.0 & SWIZZLED != 0).then_some(FrameId(self.0 as u32))
    }

    /// The global address, if this is not swizzled.
    #[inline]
    pub fn global(self) -> Option<GlobalAddr> {
        GlobalAddr::from_raw(self.0)
    }
}
