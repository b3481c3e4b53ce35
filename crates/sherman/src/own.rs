//! Keys that one compute server has for itself: P-Sherman (DEX §8.1).
//!
//! Under logical partitioning every key belongs to one compute server, which alone is asked for it. Nodes whose fences lie within its
//! keys are *own*: its threads synchronise among themselves, by local locks. All others are locked remotely, also by it. Whose a node is
//! follows from its fences as they are under its lock. A shared node may become an own one by a split, and never the
//! other way, since only own nodes are merged then; so who holds the right kind of lock holds it until it gives it back. A node without a
//! key of this compute server may be another one's own: it is never changed.

use crate::error::Result;
use crate::shape::{Key, Shape};

/// A range of keys; `None` is no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnKeys {
    /// The first of them.
    pub low: Option<Vec<u8>>,
    /// The first behind them.
    pub high: Option<Vec<u8>>,
}

/// The same as words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    low: Option<Key>,
    high: Option<Key>,
}

impl Own {
    pub fn new(keys: &OwnKeys, shape: &Shape) -> Result<Self> {
        let bound = |key: &Option<Vec<u8>>| key.as_ref().map(|key| shape.key(key)).transpose();
        Ok(Self { low: bound(&keys.low)?, high: bound(&keys.high)? })
    }

    pub fn has_key(&self, key: &Key) -> bool {
        self.low.is_none_or(|low| low <= *key) && self.high.is_none_or(|high| *key < high)
    }

    /// Whether a key between these fences is among them.
    pub fn has_any(&self, low: Option<Key>, high: Option<Key>) -> bool {
        let begins_before = |a: Option<Key>, b: Option<Key>| a.is_none_or(|a| b.is_none_or(|b| a < b));
        begins_before(self.low, high) && begins_before(low, self.high)
    }

    /// Whether all keys between these fences are among them.
    pub fn has_all(&self, low: Option<Key>, high: Option<Key>) -> bool {
        let low_fits = self.low.is_none_or(|own| low.is_some_and(|low| own <= low));
        low_fits && self.high.is_none_or(|own| high.is_some_and(|high| high <= own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;

    #[test]
    fn a_node_is_own_within_the_bounds_only() {
        let shape = Shape::new(8, 8, 1024, &Options::fg()).expect("a shape");
        let key = |n: u64| shape.key(&n.to_be_bytes()).expect("a key");
        let bytes = |n: u64| Some(n.to_be_bytes().to_vec());
        let own = Own::new(&OwnKeys { low: bytes(10), high: bytes(20) }, &shape).expect("keys");
        assert!(
            own.has_key(&key(10)) && own.has_key(&key(19)) && !own.has_key(&key(20)) && !own.has_key(&key(9))
        );
        assert!(own.has_all(Some(key(10)), Some(key(20))));
        assert!(!own.has_all(Some(key(9)), Some(key(20))) && !own.has_all(Some(key(10)), Some(key(21))));
        assert!(
            own.has_any(None, None)
                && own.has_any(Some(key(19)), None)
                && own.has_any(Some(key(5)), Some(key(11)))
        );
        assert!(!own.has_any(Some(key(20)), None) && !own.has_any(None, Some(key(10))));
        assert!(!own.has_all(None, Some(key(20))) && !own.has_all(Some(key(10)), None));
        assert!(Own::new(&OwnKeys::default(), &shape).expect("all").has_all(None, None));
    }
}
