//! The part of a scan that this process owns.
//!
//! A scan is answered as far as the process owns the keys, with the bound from which it continues elsewhere.
//! If its first keys belong to another process, it is refused.

use std::ops::Bound;

use pando::{KeyRange, ScanRange};

/// Part of a scan within one range of keys, and the bound from which the rest continues, if there is one.
#[derive(Debug)]
pub(crate) struct Part<'k> {
    pub range: ScanRange<'k>,
    pub rest: Option<Bound<&'k [u8]>>,
}

/// The first part of `range`, within one of the `owned` ranges; `None` if `range` begins in none.
pub(crate) fn first_part<'k>(range: &ScanRange<'k>, owned: &'k [KeyRange]) -> Option<Part<'k>> {
    let own = owned.iter().find(|own| range.starts_in(own))?;
    let mut part = *range;
    let end = if range.reverse { &own.low } else { &own.high };
    let Some(end) = end.as_deref() else { return Some(Part { range: part, rest: None }) };
    let rest = if range.reverse {
        // The rest is the keys below this range.
        let goes_on = match range.low {
            Bound::Unbounded => true,
            Bound::Included(low) | Bound::Excluded(low) => low < end,
        };
        goes_on.then(|| {
            part.low = Bound::Included(end);
            Bound::Excluded(end)
        })
    } else {
        // The rest begins with the first key above this range.
        let goes_on = match range.high {
            Bound::Unbounded => true,
            Bound::Included(high) => end <= high,
            Bound::Excluded(high) => end < high,
        };
        goes_on.then(|| {
            part.high = Bound::Excluded(end);
            Bound::Included(end)
        })
    };
    Some(Part { range: part, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Bound::{Excluded, Included, Unbounded};

    fn bounds() -> Vec<Bound<&'static [u8]>> {
        let keys: [&[u8]; 6] = [b"", b"b", b"c", b"c1", b"e", b"f"];
        let bounds = keys.into_iter().flat_map(|key| [Included(key), Excluded(key)]);
        std::iter::once(Unbounded).chain(bounds).collect()
    }

    /// Test keys that are in the range, in its order.
    fn keys_of(range: &ScanRange<'_>) -> Vec<&'static str> {
        let all = ["", "a", "b", "b1", "c", "c1", "d", "e", "e1", "f", "g"];
        let within = |key: &&str| range.above_low(key.as_bytes()) && range.below_high(key.as_bytes());
        let mut keys: Vec<_> = all.into_iter().filter(within).collect();
        if range.reverse {
            keys.reverse();
        }
        keys
    }

    #[test]
    fn parts_tile_every_scan() {
        let key = |text: &str| Some(text.as_bytes().to_vec());
        let ranges = [
            KeyRange { low: None, high: key("c") },
            KeyRange { low: key("c"), high: key("e") },
            KeyRange { low: key("e"), high: None },
        ];
        for (low, high) in bounds().iter().flat_map(|low| bounds().into_iter().map(move |high| (*low, high)))
        {
            for reverse in [false, true] {
                let whole = ScanRange { low, high, limit: usize::MAX, reverse };
                let (mut range, mut found) = (whole, Vec::new());
                for _ in 0..4 {
                    let of: Vec<_> = ranges.iter().filter(|own| range.starts_in(own)).collect();
                    assert_eq!(of.len(), 1, "{range:?}");
                    let part = first_part(&range, &ranges).expect("all keys are owned");
                    let keys = keys_of(&part.range);
                    assert!(keys.iter().all(|key| of[0].contains(key.as_bytes())), "{part:?}");
                    found.extend(keys);
                    let Some(rest) = part.rest else { break };
                    *(if reverse { &mut range.high } else { &mut range.low }) = rest;
                }
                assert_eq!(found, keys_of(&whole), "{whole:?}");
                assert!(first_part(&whole, &ranges[..0]).is_none());
            }
        }
    }
}
