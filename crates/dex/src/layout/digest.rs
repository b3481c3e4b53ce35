//! Digests in word 7 of the remote copy of a shared node, by which others tell what became of a change that was broken off.
//!
//! Each change that is written through leaves a digest of the bytes before and one of those after. A node whose bytes have
//! neither was being written when its writer died. Word 7 is in the first line of the bytes that are written, and the words of
//! a WRITE arrive in rising order, if not together.

use crate::layout::header;
use pando_cache::sync::Word;

/// Word 7 of a remote copy has digests: `[1:1][before:31][after:32]`, of 31 bits each.
pub(crate) const DIGESTS: u64 = 1 << 63;

const DIGEST_MASK: u64 = (1 << 31) - 1;

/// Of all words but the lock and the digests.
pub(crate) fn digest(words: &[Word]) -> u64 {
    let is_content = |&at: &usize| at != header::LOCK && at != header::REMOTE_VERSION;
    let hash = (0..words.len()).filter(is_content).fold(0u64, |hash, at| {
        (hash.rotate_left(5) ^ header::get(words, at)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash ^ hash >> 32) & DIGEST_MASK
}

/// Whether word 7 of an inner node has digests.
pub(crate) fn has_digests(words: &[Word]) -> bool {
    header::level(words) > 0 && header::get(words, header::REMOTE_VERSION) & DIGESTS != 0
}

/// Whether the bytes of a node that are in remote memory are all from before or all from after a change.
pub(crate) fn is_whole(words: &[Word]) -> bool {
    let noted = header::get(words, header::REMOTE_VERSION);
    let digest = digest(words);
    !has_digests(words) || digest == noted & DIGEST_MASK || digest == noted >> 32 & DIGEST_MASK
}

/// Makes a page that was READ a copy of this compute server's own: without what only remote copies say.
pub(crate) fn own_copy(words: &[Word]) {
    header::set_flag(words, header::SHARED, false);
    if has_digests(words) {
        header::set(words, header::REMOTE_VERSION, 0);
    }
}
