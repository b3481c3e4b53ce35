//! Arbitrary bytes as the manifest of an image in a pool, and as what the catalog says of an image: refused, or places for
//! all pieces.
//!
//! Half of the inputs have a valid head and some extents, so that they get beyond the magic.

#![no_main]

use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;
use pando_elf_remote::exercise::decode;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Bytes(&'a [u8]),
    Words {
        pieces: u8,
        blocks: u8,
        image_bytes: u64,
        id_bound: u64,
        extents: Vec<(u64, u32)>,
        change: (u16, u8),
    },
}

const MAGIC: u64 = u64::from_le_bytes(*b"PANDOELR");
const VERSION: u64 = 1;

fuzz_target!(|input: Input<'_>| match input {
    Input::Bytes(bytes) => decode(bytes),
    Input::Words { pieces, blocks, image_bytes, id_bound, extents, change } => {
        let (piece_bytes, block_bytes) = (1_u64 << (pieces % 20), 1_u64 << (blocks % 40));
        let count = extents.len() as u64;
        let mut words =
            vec![MAGIC, VERSION << 32 | piece_bytes, 5, image_bytes, id_bound, block_bytes, count];
        words.extend(extents.iter().flat_map(|&(place, blocks)| [place, blocks.into()]));
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        decode(&bytes);
        let at = usize::from(change.0) % bytes.len();
        bytes[at] ^= change.1;
        decode(&bytes);
    }
});
