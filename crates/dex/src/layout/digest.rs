//! Digests in word 7 of the remote copy of a shared node. They tell the result of an interrupted change.
//!
//! Each write-through stores a digest of the bytes before it and one of the bytes after it. If the bytes of a
//! node match neither, its writer died during the WRITE. Word 7 lies in the first cache line that is written,
//! and the words of a WRITE land in rising order, if not at once.

use crate::layout::header;
use pando_cache::sync::Word;

/// Flag of a word 7 with digests: `[1:1][before:31][0:1][after:31]`.
pub(crate) const DIGESTS: u64 = 1 << 63;

const DIGEST_MASK: u64 = (1 << 31) - 1;

/// Digest, of 31 bits, of all words except the lock and the digests.
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

/// Whether the bytes of a remote node are all from before or all from after a change.
pub(crate) fn is_whole(words: &[Word]) -> bool {
    let noted = header::get(words, header::REMOTE_VERSION);
    let digest = digest(words);
    !has_digests(words) || digest == noted & DIGEST_MASK || digest == noted >> 32 & DIGEST_MASK
}

/// Makes a page that was READ an owned copy: removes what only remote copies contain.
pub(crate) fn own_copy(words: &[Word]) {
    header::set_flag(words, header::SHARED, false);
    if has_digests(words) {
        header::set(words, header::REMOTE_VERSION, 0);
    }
}
