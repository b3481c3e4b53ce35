//! Small verbs over vectors of words, for metadata. Data paths use [`PageBuf`]s directly.
//!
//! Long tables move in pieces. A concurrent write can tear a read, so data that changes under readers has a
//! checksum or is one word.

use pando_fabric::{Endpoint, GlobalAddr, Nanos, PageBuf, WORD};

use crate::error::{PoolError, Result};

/// Maximum bytes per verb; longer tables move in pieces.
const PIECE: usize = 256 << 10;

/// Reads `words` words from `at` on. A concurrent write can tear them.
pub(crate) async fn read_words<E: Endpoint>(ep: &E, at: GlobalAddr, words: usize) -> Result<Vec<u64>> {
    let mut out = Vec::with_capacity(words);
    while out.len() < words {
        let bytes = ((words - out.len()) * WORD).min(PIECE);
        let buf = ep.buffer(bytes).with_window(0..bytes);
        let buf = ep.read(at.add((out.len() * WORD) as u64), buf).await?;
        out.extend((0..bytes / WORD).map(|word| buf.get(word)));
        ep.recycle(buf);
    }
    Ok(out)
}

/// Writes `words` from `at` on.
pub(crate) async fn write_words<E: Endpoint>(ep: &E, at: GlobalAddr, words: &[u64]) -> Result<()> {
    for (piece, words) in words.chunks(PIECE / WORD).enumerate() {
        let buf = ep.write(at.add((piece * PIECE) as u64), buf_of_words(ep, words)).await?;
        ep.recycle(buf);
    }
    Ok(())
}

/// Repeats an idempotent `attempt` while it is not known whether it took effect, until `deadline`. An error says so if one of the attempts
/// may have.
pub(crate) async fn until_answered<E: Endpoint, T>(
    ep: &E,
    deadline: Nanos,
    attempt: impl AsyncFn() -> Result<T>,
) -> Result<T> {
    let mut is_unknown = false;
    loop {
        match attempt().await {
            Err(PoolError::Fabric(error)) if error.may_have_taken_effect() && ep.now() < deadline => {
                is_unknown = true;
                ep.yield_now().await;
            }
            Err(PoolError::Fabric(error)) if is_unknown => return Err(error.as_unknown().into()),
            done => return done,
        }
    }
}

/// Persists `len` bytes at `at`, and repeats that while it is not known whether they are persisted, until
/// `deadline`.
pub(crate) async fn persist<E: Endpoint>(ep: &E, at: GlobalAddr, len: u64, deadline: Nanos) -> Result<()> {
    until_answered(ep, deadline, async || Ok(ep.persist(at, len).await?)).await
}

/// Writes `value` to `at` and persists it, and repeats that while it is not known whether it took effect, until
/// `deadline`. The word must have no other writer meanwhile.
///
/// # Errors
/// [`PoolError::CatalogUnknown`] if it is not known whether the word was written.
pub(crate) async fn write_word_surely<E: Endpoint>(
    ep: &E,
    at: GlobalAddr,
    value: u64,
    deadline: Nanos,
) -> Result<()> {
    let mut is_unknown = false;
    loop {
        let written = ep.write_word(at, value).await;
        // A word that is written but not persisted may be lost.
        is_unknown |= written.is_ok();
        let persisted = match written {
            Ok(()) => ep.persist(at, WORD as u64).await,
            failed => failed,
        };
        let Err(error) = persisted else { return Ok(()) };
        is_unknown |= error.may_have_taken_effect();
        if !error.may_have_taken_effect() || ep.now() >= deadline {
            return Err(match is_unknown {
                true => PoolError::CatalogUnknown { error },
                false => error.into(),
            });
        }
        ep.yield_now().await;
    }
}

/// Writes `words` zero words from `at` on.
pub(crate) async fn write_zeros<E: Endpoint>(ep: &E, at: GlobalAddr, words: usize) -> Result<()> {
    let zeros = vec![0; words.min(PIECE / WORD)];
    let mut done = 0;
    while done < words {
        let piece = (words - done).min(zeros.len());
        write_words(ep, at.add((done * WORD) as u64), &zeros[..piece]).await?;
        done += piece;
    }
    Ok(())
}

pub(crate) fn buf_of_words<E: Endpoint>(ep: &E, words: &[u64]) -> PageBuf {
    let bytes = words.len() * WORD;
    let buf = ep.buffer(bytes).with_window(0..bytes);
    for (word, &value) in words.iter().enumerate() {
        buf.set(word, value);
    }
    buf
}

/// Checksum of metadata words; `identity` distinguishes equal words at different places.
pub(crate) fn checksum(words: &[u64], identity: u64) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(identity);
    for word in words {
        hasher.update(&word.to_le_bytes());
    }
    hasher.digest()
}

/// Little-endian bytes of `words`.
pub(crate) fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Appends `bytes` to `words`, with the last word padded with zeros.
pub(crate) fn push_bytes(words: &mut Vec<u64>, bytes: &[u8]) {
    words.extend(bytes.chunks(WORD).map(|chunk| {
        let mut le = [0; WORD];
        le[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(le)
    }));
}
