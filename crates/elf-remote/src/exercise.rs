//! Decoding of arbitrary bytes, for fuzzing.
//!
//! They are taken for what the catalog says of an Elf, for a manifest, and for the description of a table. Whatever
//! they are, nothing panics, and what is decoded leads to places in the pool that can be named.

use crate::descriptor::Descriptor;
use crate::manifest::{Manifest, Root};

/// Decodes `bytes` as all of them.
///
/// # Panics
/// If what was decoded does not encode to the same bytes, or if a piece has no place.
pub fn decode(bytes: &[u8]) {
    if let Some(root) = Root::decode(bytes) {
        assert_eq!(root.encode(), bytes);
    }
    if let Ok(descriptor) = Descriptor::decode(bytes) {
        assert_eq!(descriptor.encode(), bytes);
    }
    let Ok(manifest) = Manifest::decode(bytes) else { return };
    assert_eq!(manifest.encode(), bytes);
    let last = manifest.pieces() - 1;
    for piece in [0, last / 3, last / 2, last] {
        assert!(manifest.locate(piece).1 > 0, "piece {piece} of {last}");
    }
    assert_eq!(manifest.pieces_of(&(0..manifest.image_bytes)), 0..last + 1);
    assert!(manifest.blocks().take(10).all(|(addr, size)| !addr.is_null() && size == manifest.block_bytes));
}
