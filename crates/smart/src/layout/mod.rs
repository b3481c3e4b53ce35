//! Layout of remote memory: slots, inner nodes, leaves. Drawn in `docs/smart.md`.
//!
//! Data that is read without a lock is valid however READs and WRITEs interleave: a slot and the header of a
//! node are one word each, the other words of a node never change or change only once, and a leaf has a
//! checksum.

pub(crate) mod leaf;
pub(crate) mod node;
pub(crate) mod slot;

/// Words as little-endian bytes, with the last one padded with zeros.
pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks(8).map(|chunk| {
        let mut le = [0; 8];
        le[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(le)
    })
}

/// A bijection of words in which every input bit changes about half of the output bits.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
