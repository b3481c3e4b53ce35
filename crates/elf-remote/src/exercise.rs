//! Decoding and searching of arbitrary bytes, for fuzzing.
//!
//! They are taken for what the catalog says of an Elf, for a manifest, for the description of a table, for calls and
//! answers, and for an image that a memory server searches. Whatever they are, nothing panics, and what is decoded leads
//! to places in the pool that can be named.

use std::sync::atomic::AtomicU64;

use pando_elf::{Filter, Interval, Predicate};
use pando_fabric::{GlobalAddr, MemoryServerId, Request, RequestHandler, ServerMemory, WORD};

use crate::descriptor::Descriptor;
use crate::manifest::{Extent, Manifest, Root};
use crate::offload::{Call, MemorySide, Want};
use crate::write::{Source, stored};

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

/// Server and place of the image that [`search`] makes.
const SERVER: MemoryServerId = MemoryServerId(0);
const PLACE: u64 = 64;

/// Lets a memory server search an image of these bytes, whose checksums agree, for rows that meet all `conditions`:
/// columns by level, with the least and the largest code. `want` is the kind of answer. Returns the ids, if they
/// were asked for and the search was not refused.
///
/// # Panics
/// If the answer is none to the call.
pub fn search(image: &[u8], id_bound: u64, conditions: &[(usize, u32, u32)], want: u8) -> Option<Vec<u64>> {
    let len = image.len() as u64;
    let block_bytes = (len.div_ceil(56) * 64).next_power_of_two().max(64);
    let mut manifest = Manifest::new(5, len, id_bound, 64, block_bytes);
    manifest.add(Extent { addr: GlobalAddr::new(SERVER, PLACE), blocks: 1 });
    let bytes = stored(&manifest, &Source::Bytes(image), 0..manifest.pieces()).ok()?;
    let mut words: Vec<AtomicU64> = (0..PLACE / WORD as u64).map(|_| AtomicU64::new(0)).collect();
    words.extend(bytes.as_chunks().0.iter().map(|word| AtomicU64::new(u64::from_le_bytes(*word))));
    let all = Predicate::all();
    let predicate =
        conditions.iter().fold(all, |all, &(level, low, high)| all.and(level, [Interval::new(low, high)]));
    let levels: Vec<usize> = (0..8).collect();
    let filter = Filter::new(&predicate, &levels).ok()?;
    let want = [Want::Count, Want::Ids, Want::Rows(&[0, 2])][usize::from(want % 3)];
    let call = Call { manifest: &manifest, filter: &filter, want };
    let (mut body, mut reply) = (Vec::new(), Vec::new());
    call.encode(&mut body);
    let memory = ServerMemory::new(SERVER, &words, &|_| ());
    MemorySide::default().handle(&memory, MemorySide::OP, &body, &mut reply).expect("it is a call");
    let found = call.decode_reply(SERVER, &reply).expect("an answer to the call");
    found.filter(|_| want != Want::Count).map(|found| found.ids)
}

/// Takes `bytes` for a call, and for the answer to one.
pub fn call(bytes: &[u8]) {
    let words: Vec<AtomicU64> = (0..64).map(AtomicU64::new).collect();
    let memory = ServerMemory::new(SERVER, &words, &|_| ());
    let _ = MemorySide::default().handle(&memory, MemorySide::OP, bytes, &mut Vec::new());
    let mut manifest = Manifest::new(5, 64, 1_000, 64, 64);
    manifest.add(Extent { addr: GlobalAddr::new(SERVER, PLACE), blocks: 2 });
    let Ok(filter) = Filter::new(&Predicate::all(), &[0]) else { return };
    for want in [Want::Count, Want::Ids, Want::Rows(&[0])] {
        let _ = Call { manifest: &manifest, filter: &filter, want }.decode_reply(SERVER, bytes);
    }
}
