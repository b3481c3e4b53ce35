//! The form of keys and values, and the two node layouts that implement it.
//!
//! Trees are generic over the node layout. Values that depend on it are a [`ByLayout`], and [`with_layout`]
//! enters the generic code. A session does so once per operation.

use std::fmt;

use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;

/// Form of the keys and values of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexLayout {
    /// Keys and values of any length: keys of up to a quarter of a node, values of up to 16 MiB.
    Bytes,
    /// Keys and values of these sizes in bytes; a key has 1 to 64.
    Fixed { key_size: usize, value_size: usize },
}

impl fmt::Display for IndexLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes => f.write_str("byte strings of any length"),
            Self::Fixed { key_size, value_size } => {
                write!(f, "keys of {key_size} bytes with values of {value_size} bytes")
            }
        }
    }
}

/// A value that depends on the node layout: `F` for entries of constant sizes, `S` for byte strings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ByLayout<F, S> {
    Fixed(F),
    Slotted(S),
}

/// Node layout of the tree that implements an index.
pub(crate) type NodeLayout = ByLayout<FixedLayout, SlottedLayout>;

/// Evaluates `$body` with the value of either layout.
macro_rules! with_layout {
    ($value:expr, |$name:ident| $body:expr) => {
        match $value {
            $crate::layout::ByLayout::Fixed($name) => $body,
            $crate::layout::ByLayout::Slotted($name) => $body,
        }
    };
}
pub(crate) use with_layout;

/// The value of `$body` for the same layout as `$value`.
macro_rules! map_layout {
    ($value:expr, |$name:ident| $body:expr) => {
        match $value {
            $crate::layout::ByLayout::Fixed($name) => $crate::layout::ByLayout::Fixed($body),
            $crate::layout::ByLayout::Slotted($name) => $crate::layout::ByLayout::Slotted($body),
        }
    };
}
pub(crate) use map_layout;
