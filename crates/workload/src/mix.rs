//! Named mixes of operations.
//!
//! The microbenchmarks of DEX (Table 1, and Table 3 of the extended paper) and the core workloads of YCSB. A
//! mix consists of shares in percent and rules for choosing keys; `ops.rs` draws the operations.

use crate::error::SpecError;
use crate::zipf::{DEFAULT_THETA, Distribution};
use std::fmt;
use std::str::FromStr;

/// Keys of inserts, as named on the command line: `drawn`, `half-new`, `new`. Key numbers are explained in
/// [`crate::keys`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InsertKeys {
    /// The key is drawn from the distribution like any other; with equal probability it is a loaded key or
    /// the new key beside it. Inserting a present key updates it. So half of the inserts go to keys that were
    /// not loaded. But hot keys repeat, so with a skewed distribution few inserts find their key absent.
    Drawn,
    /// With equal probability a loaded key drawn from the distribution, which is updated, or a key chosen as
    /// for `New`. So half of the inserts make the index larger, as in the papers' mixes, for any
    /// distribution.
    HalfNew,
    /// Every insert goes to an unused key, anywhere in the key space, until the n new keys are used up; from
    /// then on as for `Drawn`.
    New,
}

const INSERT_KEYS: [(&str, InsertKeys); 3] =
    [("drawn", InsertKeys::Drawn), ("half-new", InsertKeys::HalfNew), ("new", InsertKeys::New)];

impl FromStr for InsertKeys {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<InsertKeys, SpecError> {
        let found = INSERT_KEYS.iter().find(|(name, _)| *name == text);
        found.map(|&(_, keys)| keys).ok_or_else(|| SpecError::UnknownInsertKeys(text.to_owned()))
    }
}

impl fmt::Display for InsertKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = INSERT_KEYS.iter().find(|(_, keys)| keys == self).map(|(name, _)| *name);
        f.write_str(name.expect("every choice has a name"))
    }
}

/// Number of records that a scan requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanLength {
    /// Always the same number.
    Fixed(u32),
    /// Any number from `min` to `max`, with equal probability.
    Uniform { min: u32, max: u32 },
}

/// Shares of operations in percent, and rules for choosing keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mix {
    pub read: u8,
    pub update: u8,
    pub insert: u8,
    pub scan: u8,
    pub read_modify_write: u8,
    pub scan_length: ScanLength,
    pub insert_keys: InsertKeys,
    /// Distribution used if the user names none.
    pub distribution: Distribution,
}

const READ_ONLY: Mix = Mix {
    read: 100,
    update: 0,
    insert: 0,
    scan: 0,
    read_modify_write: 0,
    scan_length: ScanLength::Fixed(100),
    insert_keys: InsertKeys::HalfNew,
    distribution: Distribution::Zipf { theta: DEFAULT_THETA },
};
const WRITE_INTENSIVE: Mix = Mix { read: 50, update: 50, ..READ_ONLY };
const READ_INTENSIVE: Mix = Mix { read: 95, update: 5, ..READ_ONLY };
/// The extended paper tests it with uniform keys only, since otherwise not all inserts would be new.
const INSERT_ONLY: Mix = Mix {
    read: 0,
    insert: 100,
    insert_keys: InsertKeys::New,
    distribution: Distribution::Uniform,
    ..READ_ONLY
};
const YCSB_D: Mix = Mix {
    read: 95,
    insert: 5,
    insert_keys: InsertKeys::New,
    distribution: Distribution::Latest { theta: DEFAULT_THETA },
    ..READ_ONLY
};
const YCSB_E: Mix = Mix {
    read: 0,
    insert: 5,
    scan: 95,
    scan_length: ScanLength::Uniform { min: 1, max: 100 },
    insert_keys: InsertKeys::New,
    ..READ_ONLY
};

/// Sherman §5.1: a write stores a value whether or not the key is present.
const SHERMAN_WRITE: Mix = Mix { read: 50, insert: 50, insert_keys: InsertKeys::Drawn, ..READ_ONLY };

/// Table 1 of DEX, Table 3 of its extended version, YCSB, then Sherman's.
const NAMED: [(&str, Mix); 18] = [
    ("read-only", READ_ONLY),
    ("read-intensive", READ_INTENSIVE),
    ("read-intensive-2", Mix { read: 95, insert: 5, ..READ_ONLY }),
    ("write-intensive", WRITE_INTENSIVE),
    ("insert-intensive", Mix { read: 50, insert: 50, ..READ_ONLY }),
    ("insert-only", INSERT_ONLY),
    ("scan-intensive", Mix { read: 0, insert: 5, scan: 95, ..READ_ONLY }),
    ("ycsb-a", WRITE_INTENSIVE),
    ("ycsb-b", READ_INTENSIVE),
    ("ycsb-c", READ_ONLY),
    ("ycsb-d", YCSB_D),
    ("ycsb-e", YCSB_E),
    ("ycsb-f", Mix { read: 50, read_modify_write: 50, ..READ_ONLY }),
    ("write-only", Mix { read: 0, insert: 100, ..SHERMAN_WRITE }),
    ("sherman-write", SHERMAN_WRITE),
    ("sherman-read", Mix { read: 95, insert: 5, ..SHERMAN_WRITE }),
    ("scan-only", Mix { read: 0, scan: 100, ..READ_ONLY }),
    ("scan-write", Mix { read: 0, scan: 50, ..SHERMAN_WRITE }),
];

impl Mix {
    /// The names accepted by [`FromStr`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// Whether any operation of the mix changes the index.
    pub fn writes(&self) -> bool {
        self.update > 0 || self.insert > 0 || self.read_modify_write > 0
    }

    /// # Errors
    /// The shares do not add up to 100%, or a scan may have no length.
    pub fn validate(&self) -> Result<(), SpecError> {
        let total: u32 = self.shares().iter().map(|&share| u32::from(share)).sum();
        if total != 100 {
            return Err(SpecError::BadShares(total));
        }
        let (min, max) = match self.scan_length {
            ScanLength::Fixed(length) => (length, length),
            ScanLength::Uniform { min, max } => (min, max),
        };
        if min < 1 || min > max { Err(SpecError::BadScanLength { min, max }) } else { Ok(()) }
    }

    pub(crate) fn shares(&self) -> [u8; 5] {
        [self.read, self.update, self.insert, self.scan, self.read_modify_write]
    }
}

impl FromStr for Mix {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Mix, SpecError> {
        let found = NAMED.iter().find(|(name, _)| *name == text);
        let names = || Mix::names().collect::<Vec<_>>().join(", ");
        let unknown = || SpecError::UnknownMix { name: text.to_owned(), names: names() };
        found.map(|(_, mix)| *mix).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_mix_is_valid() {
        for name in Mix::names() {
            let mix: Mix = name.parse().expect("its name");
            mix.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }

    #[test]
    fn shares_are_those_of_the_papers() {
        let shares = |name: &str| name.parse::<Mix>().expect("its name").shares();
        assert_eq!(shares("read-only"), [100, 0, 0, 0, 0]);
        assert_eq!(shares("read-intensive"), [95, 5, 0, 0, 0]);
        assert_eq!(shares("read-intensive-2"), [95, 0, 5, 0, 0]);
        assert_eq!(shares("write-intensive"), [50, 50, 0, 0, 0]);
        assert_eq!(shares("insert-intensive"), [50, 0, 50, 0, 0]);
        assert_eq!(shares("insert-only"), [0, 0, 100, 0, 0]);
        assert_eq!(shares("scan-intensive"), [0, 0, 5, 95, 0]);
        assert_eq!(shares("ycsb-d"), [95, 0, 5, 0, 0]);
        assert_eq!(shares("ycsb-e"), [0, 0, 5, 95, 0]);
        assert_eq!(shares("ycsb-f"), [50, 0, 0, 0, 50]);
    }

    #[test]
    fn half_of_the_papers_inserts_are_of_new_keys_and_all_of_the_others() {
        for (name, keys) in [
            ("insert-intensive", InsertKeys::HalfNew),
            ("read-intensive-2", InsertKeys::HalfNew),
            ("scan-intensive", InsertKeys::HalfNew),
            ("insert-only", InsertKeys::New),
            ("ycsb-d", InsertKeys::New),
            ("ycsb-e", InsertKeys::New),
        ] {
            assert_eq!(name.parse::<Mix>().expect("its name").insert_keys, keys, "{name}");
        }
        for (name, keys) in INSERT_KEYS {
            assert_eq!((name.parse(), keys.to_string()), (Ok(keys), name.to_owned()));
        }
        assert!("old".parse::<InsertKeys>().expect_err("no such name").to_string().contains("half-new"));
    }

    #[test]
    fn bad_mixes_are_refused() {
        let error = "ycsb-g".parse::<Mix>().expect_err("no such name");
        assert!(error.to_string().contains("ycsb-f"), "{error}");
        assert_eq!(Mix { read: 99, ..READ_ONLY }.validate(), Err(SpecError::BadShares(99)));
        let lengths = ScanLength::Uniform { min: 2, max: 1 };
        assert!(Mix { scan_length: lengths, ..READ_ONLY }.validate().is_err());
        assert!(Mix { scan_length: ScanLength::Fixed(0), ..READ_ONLY }.validate().is_err());
    }
}
