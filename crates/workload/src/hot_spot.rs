//! A hot spot: a stretch of neighbouring keys that gets most of the operations.
//!
//! The hot keys of a Zipf distribution are scattered over all compute servers; the hot keys of a hot spot belong to
//! one or a few (DEX §4, load imbalance). All keys within the stretch are equally likely, and so are all keys
//! outside it. The stretch is part of the key space: in a dense space also of the records, in a random space
//! of the integers.

use crate::error::SpecError;
use crate::keys::{KeyCodec, KeySpace, OwnedRange, loaded_key};
use crate::rng::Rng;
use std::fmt;
use std::str::FromStr;

/// Number of draws, as a multiple of the expected number and up to `DRAWS_MAX`, after which a misplaced key
/// of a random key space (record 0) is accepted.
const PATIENCE: f64 = 64.0;
const DRAWS_MAX: f64 = 4096.0;

/// As named on the command line: `hotspot:SHARE:WIDTH` or `hotspot:SHARE:WIDTH:FROM`, all three as fractions
/// of 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotSpot {
    share: f64,
    width: f64,
    from: f64,
}

impl HotSpot {
    /// `share` of the operations go to a stretch of the key space of width `width` that begins at `from`.
    ///
    /// # Errors
    /// `share` is not from 0 to 1, or the stretch is empty, not within the key space, or leaves no keys for
    /// the remaining operations, if there are any.
    pub fn new(share: f64, width: f64, from: f64) -> Result<HotSpot, SpecError> {
        let hot_spot = HotSpot { share, width, from };
        let is_share = (0.0..=1.0).contains(&share);
        let is_stretch = width > 0.0 && width <= 1.0 && from >= 0.0 && from + width <= 1.0;
        let leaves_some = width < 1.0 || share == 1.0;
        if is_share && is_stretch && leaves_some {
            Ok(hot_spot)
        } else {
            Err(SpecError::BadHotSpot(hot_spot.to_string()))
        }
    }

    /// Parses the text after the name.
    pub(crate) fn of_parts(parts: &str) -> Option<Result<HotSpot, SpecError>> {
        let numbers: Result<Vec<f64>, _> = parts.split(':').map(f64::from_str).collect();
        match numbers.ok()?[..] {
            [share, width] => Some(HotSpot::new(share, width, 0.0)),
            [share, width, from] => Some(HotSpot::new(share, width, from)),
            _ => None,
        }
    }
}

impl fmt::Display for HotSpot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HotSpot { share, width, from } = self;
        write!(f, "hotspot:{share}:{width}")?;
        if *from == 0.0 { Ok(()) } else { write!(f, ":{from}") }
    }
}

/// Draws records of a key space according to a [`HotSpot`].
#[derive(Clone, Debug)]
pub(crate) struct HotRecords {
    share: f64,
    stretch: Stretch,
}

#[derive(Clone, Debug)]
enum Stretch {
    /// The hot records, among `all` records.
    Records { first: u64, count: u64, all: u64 },
    /// The integers of the hot keys, and the maximum numbers of draws inside and outside of them.
    Integers { hot: OwnedRange, draws_max: [u64; 2] },
}

impl HotRecords {
    pub fn new(hot_spot: HotSpot, keys: &KeyCodec) -> HotRecords {
        let HotSpot { share, width, from } = hot_spot;
        let stretch = match keys.space() {
            KeySpace::Dense | KeySpace::Packed => {
                let all = keys.records();
                let first = ((from * all as f64) as u64).min(all - 1);
                let count = ((width * all as f64).round() as u64).clamp(1, all - first);
                Stretch::Records { first, count, all }
            }
            KeySpace::Random64 => {
                let all = keys.width() as f64;
                // Values beyond 2^64 become 2^64 - 1.
                let (first, end) = ((from * all) as u64, ((from + width) * all) as u64);
                let hot = OwnedRange { first, last: end.max(first + 1) - 1 };
                let draws_max = [width, 1.0 - width].map(|part| (PATIENCE / part).min(DRAWS_MAX) as u64);
                Stretch::Integers { hot, draws_max }
            }
        };
        HotRecords { share, stretch }
    }

    #[inline]
    pub fn draw(&self, keys: &KeyCodec, rng: &mut Rng) -> u64 {
        let is_hot = rng.unit() < self.share;
        match self.stretch {
            Stretch::Records { first, count, all } if is_hot || count == all => first + rng.below(count),
            Stretch::Records { first, count, all } => {
                let record = rng.below(all - count);
                if record < first { record } else { record + count }
            }
            Stretch::Integers { hot, draws_max } => {
                let records = keys.records();
                let is_meant = |record| hot.contains(keys.integer(loaded_key(record))) == is_hot;
                let mut draws = (0..draws_max[usize::from(!is_hot)]).map(|_| rng.below(records));
                draws.find(|&record| is_meant(record)).unwrap_or(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Distribution;

    fn drawn(text: &str, space: KeySpace, records: u64) -> Vec<u64> {
        let Ok(Distribution::HotSpot(hot_spot)) = text.parse() else { panic!("{text} is a hot spot") };
        let keys = KeyCodec::new(space, 8, records).expect("fits");
        let hot = HotRecords::new(hot_spot, &keys);
        let mut rng = Rng::new(7);
        (0..100_000).map(|_| hot.draw(&keys, &mut rng)).collect()
    }

    fn share(drawn: &[u64], wanted: impl Fn(u64) -> bool) -> f64 {
        drawn.iter().filter(|&&record| wanted(record)).count() as f64 / drawn.len() as f64
    }

    #[test]
    fn the_stretch_gets_its_share_and_all_keys_their_part() {
        for (text, hot) in [("hotspot:0.9:0.1", 0..100), ("hotspot:0.9:0.1:0.35", 350..450)] {
            let drawn = drawn(text, KeySpace::Dense, 1000);
            let found = share(&drawn, |record| hot.contains(&record));
            // Six standard deviations.
            assert!((found - 0.9).abs() < 0.006, "{text}: {found}");
            let lower_half = share(&drawn, |record| (hot.start..hot.start + 50).contains(&record));
            assert!((lower_half - 0.45).abs() < 0.01, "{text}: {lower_half}");
            let counts = (0..1000).map(|of| drawn.iter().filter(|&&record| record == of).count());
            assert!(counts.clone().all(|count| count > 0), "{text}: no key is left out");
        }
    }

    #[test]
    fn in_a_random_key_space_neighbouring_integers_are_hot() {
        let keys = KeyCodec::new(KeySpace::Random64, 8, 100_000).expect("fits");
        let drawn = drawn("hotspot:0.8:0.05:0.5", KeySpace::Random64, 100_000);
        let (low, high) = (1 << 63, (0.55 * 2f64.powi(64)) as u64);
        let found = share(&drawn, |record| (low..high).contains(&keys.integer(loaded_key(record))));
        assert!((found - 0.8).abs() < 0.01, "{found}");
    }

    #[test]
    fn edges_are_what_they_say() {
        assert!(drawn("hotspot:1:0.001", KeySpace::Dense, 1000).iter().all(|&record| record == 0));
        assert!(drawn("hotspot:0:0.5", KeySpace::Dense, 1000).iter().all(|&record| record >= 500));
        assert!(drawn("hotspot:1:1", KeySpace::Dense, 10).contains(&9));
        assert!(drawn("hotspot:1:0.1:0.9", KeySpace::Dense, 1000).iter().all(|&record| record >= 900));
        // With so few records, the stretch can only be one of them; and a single record.
        assert!(drawn("hotspot:1:0.01:0.99", KeySpace::Dense, 3).iter().all(|&record| record == 2));
        assert!(drawn("hotspot:0.5:0.5", KeySpace::Dense, 1).iter().all(|&record| record == 0));
        // No key lies there.
        assert!(drawn("hotspot:0.01:1e-12", KeySpace::Random64, 2).iter().all(|&record| record < 2));
    }

    #[test]
    fn they_read_as_they_print_and_others_are_refused_in_a_sentence() {
        for text in ["hotspot:0.9:0.1", "hotspot:1:1", "hotspot:0:0.25:0.75", "hotspot:0.5:0.1:0.3"] {
            assert_eq!(text.parse::<Distribution>().expect("valid").to_string(), text);
        }
        for text in [
            "hotspot:1.1:0.1",
            "hotspot:-0.1:0.1",
            "hotspot:0.9:0",
            "hotspot:0.9:1",
            "hotspot:0.9:1.5",
            "hotspot:0.9:0.2:0.9",
            "hotspot:0.9:0.2:-0.1",
            "hotspot:NaN:0.1",
            "hotspot:0.9:NaN",
            "hotspot:0.9:0.1:NaN",
            "hotspot:0.9:inf",
        ] {
            let refused = text.parse::<Distribution>().expect_err(text).to_string();
            assert!(refused.contains("a hot spot"), "{refused}");
        }
        for text in
            ["hotspot", "hotspot:", "hotspot:0.9", "hotspot:0.9:0.1:0.2:0.3", "hotspot:a:b", "hotspots:1:1"]
        {
            let refused = text.parse::<Distribution>().expect_err(text);
            assert_eq!(refused, SpecError::UnknownDistribution(text.to_owned()));
        }
    }
}
