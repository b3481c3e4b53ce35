//! Batches: the records of a lane that are written by one WRITE.
//!
//! ```text
//! [epoch] [number] [bytes of the records:32][records:32] [check]   records
//! ```
//! Numbers of a lane rise by one. The check, XXH3 over everything else, is seeded with log and lane. So a batch that is
//! torn, or is left from an earlier lap of the ring, from an earlier opening or from another use of the
//! block, is none.

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Bytes of a batch before its records.
pub(crate) const HEADER: usize = 32;

/// What a batch must be to count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    /// Of the lane.
    pub seed: u64,
    pub epoch: u64,
    pub seq: u64,
}

/// Completes a batch of records behind [`HEADER`] bytes for its header.
pub(crate) fn seal(identity: Identity, count: u32, batch: &mut [u8]) {
    let counts = u64::from(count) << 32 | (batch.len() - HEADER) as u64;
    let words = [identity.epoch, identity.seq, counts].map(u64::to_le_bytes);
    // What the check covers is put side by side first: it is hashed fastest as a whole.
    let (header, _) = batch.split_first_chunk_mut::<HEADER>().expect("room for a header");
    header[8..].copy_from_slice(words.as_flattened());
    let check = xxh3_64_with_seed(&batch[8..], identity.seed);
    let (header, _) = batch.split_first_chunk_mut::<HEADER>().expect("room for a header");
    header[..HEADER - 8].copy_from_slice(words.as_flattened());
    header[HEADER - 8..].copy_from_slice(&check.to_le_bytes());
}

/// The check of a batch, without the place of the check.
fn check(seed: u64, header: &[u8], records: &[u8]) -> u64 {
    let mut hasher = Xxh3::with_seed(seed);
    hasher.update(header);
    hasher.update(records);
    hasher.digest()
}

/// The records of the batch at the front of `bytes`; `None` if there is no such batch.
pub(crate) fn decode(identity: Identity, bytes: &[u8]) -> Option<&[u8]> {
    let header = bytes.get(..HEADER)?;
    let word = |i: usize| u64::from_le_bytes(*header[i * 8..].first_chunk().expect("a whole header"));
    if word(0) != identity.epoch || word(1) != identity.seq {
        return None;
    }
    let records = bytes[HEADER..].get(..word(2) as u32 as usize)?;
    (word(3) == check(identity.seed, &header[..HEADER - 8], records)).then_some(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_counts_only_whole_and_as_itself() {
        let identity = Identity { seed: 5, epoch: 7, seq: 9 };
        let mut bytes = [&[0; HEADER][..], b"two records in all......"].concat();
        seal(identity, 2, &mut bytes);
        assert_eq!(decode(identity, &bytes), Some(&b"two records in all......"[..]));
        for other in [
            Identity { seed: 6, ..identity },
            Identity { epoch: 8, ..identity },
            Identity { seq: 10, ..identity },
        ] {
            assert_eq!(decode(other, &bytes), None);
        }
        for cut in 0..bytes.len() {
            assert_eq!(decode(identity, &bytes[..cut]), None);
            bytes[cut] ^= 4;
            assert_eq!(decode(identity, &bytes), None, "byte {cut}");
            bytes[cut] ^= 4;
        }
    }
}
