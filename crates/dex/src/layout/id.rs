//! A layout as numbers, for memory servers, which serve an index without opening it (DEX §6).
//!
//! Every layout provides the numbers from which it can be reconstructed, including the fanout limits of
//! tests. The numbers come from a network, so those that no layout has are refused.

use super::FANOUT_MIN;
use super::fixed::FixedLayout;
use super::header::Format;
use super::slotted::SlottedLayout;

/// Parameters of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayoutId {
    /// Number of a [`Format`].
    pub format: u8,
    /// Size of a node in bytes.
    pub node_size: u32,
    /// Sizes of keys and values of a fixed layout in bytes.
    pub key_len: u32,
    pub value_len: u32,
    /// Largest number of entries of a node, whatever its room.
    pub limit: u32,
}

/// A layout of either kind.
#[derive(Clone, Copy, Debug)]
pub enum AnyLayout {
    Fixed(FixedLayout),
    Slotted(SlottedLayout),
}

impl AnyLayout {
    /// The layout with these numbers, as returned by [`Layout::id`](super::Layout::id); `None` if there is
    /// none.
    pub fn of(id: LayoutId) -> Option<Self> {
        let (node_size, limit) = (id.node_size as usize, id.limit as usize);
        if limit < FANOUT_MIN {
            return None;
        }
        if id.format == Format::Fixed as u8 {
            let layout = FixedLayout::new(node_size, id.key_len as usize, id.value_len as usize).ok()?;
            Some(Self::Fixed(layout.with_fanout_limit(limit)))
        } else if id.format == Format::Slotted as u8 {
            let layout = SlottedLayout::new(node_size).ok()?;
            Some(Self::Slotted(if id.limit == u32::MAX { layout } else { layout.with_fanout_limit(limit) }))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;

    #[test]
    fn a_layout_comes_back_from_its_numbers() {
        let fixed = [
            FixedLayout::new(1024, 8, 8).expect("possible"),
            FixedLayout::new(256, 8, 8).expect("possible").with_fanout_limit(4),
            FixedLayout::new(4096, 33, 100).expect("possible"),
        ];
        for layout in fixed {
            let again = AnyLayout::of(layout.id());
            assert!(matches!(again, Some(AnyLayout::Fixed(again)) if again == layout), "{again:?}");
        }
        for layout in [512, 8192].map(|size| SlottedLayout::new(size).expect("possible")) {
            for layout in [layout, layout.with_fanout_limit(4)] {
                let again = AnyLayout::of(layout.id());
                assert!(matches!(again, Some(AnyLayout::Slotted(again)) if again == layout), "{again:?}");
            }
        }
    }

    #[test]
    fn impossible_numbers_are_no_layout() {
        let id = FixedLayout::new(1024, 8, 8).expect("possible").id();
        for wrong in [
            LayoutId { format: 9, ..id },
            LayoutId { node_size: 1000, ..id },
            LayoutId { node_size: 0, ..id },
            LayoutId { key_len: 0, ..id },
            LayoutId { value_len: u32::MAX, ..id },
            LayoutId { limit: 0, ..id },
        ] {
            assert!(AnyLayout::of(wrong).is_none(), "{wrong:?}");
        }
    }
}
