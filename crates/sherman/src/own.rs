//! Keys that belong to one compute server: P-Sherman (DEX §8.1).
//!
//! Under logical partitioning every key belongs to one compute server, which serves all operations on it.
//! Nodes whose fences lie within its keys are *own*: its threads synchronise by local locks. All other nodes
//! are locked remotely, by their compute server too. A node's fences, read under its lock, decide which kind
//! it is. A split may turn a shared node into an own one. The reverse never happens, since only own nodes are
//! merged; so the right kind of lock stays right until it is released. A node without a key of this compute
//! server may be another one's own, so it is never changed.

use crate::error::Result;
use crate::shape::{Key, Shape};

/// A range of keys; `None` is unbounded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnKeys {
    /// The first key.
    pub low: Option<Vec<u8>>,
    /// The first key behind the range.
    pub high: Option<Vec<u8>>,
}

/// The same range as words.
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

    /// Whether any key between these fences is in the range.
    pub fn has_any(&self, low: Option<Key>, high: Option<Key>) -> bool {
        let begins_before = |a: Option<Key>, b: Option<Key>| a.is_none_or(|a| b.is_none_or(|b| a < b));
        begins_before(self.low, high) && begins_before(low, self.high)
    }

    /// Whether all keys between these fences are in the range.
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
