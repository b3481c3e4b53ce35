//! Lookup of cached nodes: a radix tree in local memory over the bytes that keys have in common.
//!
//! It has the shape of the cached part of the remote tree. A place without a cached node stays while there is
//! something below it. Each place has its own latch, and no thread holds two. So a node stored at a place
//! that is being removed may be lost, which is acceptable for a cache.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::Unit;

/// An edge: its bytes, at least one, and its target.
type Edge = (Box<[u8]>, Arc<Place>);

#[derive(Default)]
struct Place(RwLock<Inner>);

#[derive(Default)]
struct Inner {
    unit: Option<Arc<Unit>>,
    /// Sorted; no two begin with the same byte.
    edges: Vec<Edge>,
}

impl Place {
    fn read(&self) -> RwLockReadGuard<'_, Inner> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Inner> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn position(&self, byte: u8) -> Result<usize, usize> {
        self.edges.binary_search_by_key(&byte, |(label, _)| label[0])
    }

    /// The edge on the path `rest`, if all of its bytes match.
    fn follow(&self, rest: &[u8]) -> Option<&Edge> {
        let at = self.position(*rest.first()?).ok()?;
        Some(&self.edges[at]).filter(|(label, _)| rest.starts_with(label))
    }

    fn is_bare(&self) -> bool {
        self.unit.is_none() && self.edges.is_empty()
    }
}

#[derive(Default)]
pub(super) struct Index {
    root: Arc<Place>,
}

impl Index {
    /// Visits all cached nodes on the path of `key`, the deepest last; returns the number of places.
    pub fn walk(&self, key: &[u8], mut visit: impl FnMut(&Unit)) -> usize {
        let (mut place, mut rest, mut places) = (Arc::clone(&self.root), key, 0);
        loop {
            places += 1;
            let next = {
                let inner = place.read();
                if let Some(unit) = &inner.unit {
                    visit(unit);
                }
                inner.follow(rest).map(|(label, next)| (label.len(), Arc::clone(next)))
            };
            let Some((len, next)) = next else { return places };
            rest = &rest[len..];
            place = next;
        }
    }

    pub fn get(&self, path: &[u8]) -> Option<Arc<Unit>> {
        let (mut place, mut rest) = (Arc::clone(&self.root), path);
        loop {
            let next = {
                let inner = place.read();
                if rest.is_empty() {
                    return inner.unit.clone();
                }
                inner.follow(rest).map(|(label, next)| (label.len(), Arc::clone(next)))
            };
            let (len, next) = next?;
            rest = &rest[len..];
            place = next;
        }
    }

    /// Stores a unit at its path; returns the replaced one.
    pub fn put(&self, unit: &Arc<Unit>) -> Option<Arc<Unit>> {
        let (mut place, mut rest) = (Arc::clone(&self.root), &unit.path[..]);
        loop {
            let next = {
                let mut inner = place.write();
                if rest.is_empty() {
                    return inner.unit.replace(Arc::clone(unit));
                }
                let (taken, next) = inner.make_way(rest);
                rest = &rest[taken..];
                next
            };
            place = next;
        }
    }

    /// Removes a unit, and the places that become bare; returns whether it was present.
    pub fn remove(&self, unit: &Unit) -> bool {
        let mut way = vec![Arc::clone(&self.root)];
        let mut rest = &unit.path[..];
        while !rest.is_empty() {
            let next = match way[way.len() - 1].read().follow(rest) {
                Some((label, next)) => (label.len(), Arc::clone(next)),
                None => return false,
            };
            rest = &rest[next.0..];
            way.push(next.1);
        }
        {
            let mut inner = way[way.len() - 1].write();
            if !inner.unit.as_ref().is_some_and(|there| std::ptr::eq(&**there, unit)) {
                return false;
            }
            inner.unit = None;
        }
        while let [.., above, below] = &way[..] {
            if !below.read().is_bare() {
                break;
            }
            above.write().edges.retain(|(_, place)| !Arc::ptr_eq(place, below));
            way.pop();
        }
        true
    }
}

impl Inner {
    /// Returns the child place for the first bytes of `rest`, and their number; creates it if necessary.
    fn make_way(&mut self, rest: &[u8]) -> (usize, Arc<Place>) {
        let at = match self.position(rest[0]) {
            Ok(at) => at,
            Err(at) => {
                let place = Arc::new(Place::default());
                self.edges.insert(at, (rest.into(), Arc::clone(&place)));
                return (rest.len(), place);
            }
        };
        let (label, below) = &self.edges[at];
        let common = label.iter().zip(rest).take_while(|(a, b)| a == b).count();
        if common == label.len() {
            return (common, Arc::clone(below));
        }
        let edges = vec![(label[common..].into(), Arc::clone(below))];
        let middle = Arc::new(Place(RwLock::new(Inner { unit: None, edges })));
        self.edges[at] = (rest[..common].into(), Arc::clone(&middle));
        (common, middle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::node::{Header, Node, bytes_of};
    use pando_fabric::{GlobalAddr, MemoryServerId, PageBuf};

    fn unit(path: &[u8]) -> Arc<Unit> {
        let addr = GlobalAddr::new(MemoryServerId(0), 4096 + path.len() as u64 * 64);
        let header = Header::new(0, path.len(), 0, 0, 0);
        Arc::new(Unit::new(path, &Node { addr, header, page: PageBuf::zeroed(bytes_of(0)) }, 0))
    }

    fn found(index: &Index, key: &[u8]) -> Vec<Vec<u8>> {
        let mut paths = Vec::new();
        index.walk(key, |unit| paths.push(unit.path.to_vec()));
        paths
    }

    #[test]
    fn units_are_found_on_the_way_of_a_key() {
        let index = Index::default();
        let paths: [&[u8]; 5] = [b"", b"abcd", b"ab", b"abxy", b"b"];
        let units: Vec<_> = paths.into_iter().map(unit).collect();
        assert!(units.iter().all(|unit| index.put(unit).is_none()));
        assert_eq!(found(&index, b"abcdef"), [&b""[..], b"ab", b"abcd"]);
        assert_eq!(found(&index, b"abxz"), [&b""[..], b"ab"]);
        assert_eq!(found(&index, b"ab"), [&b""[..], b"ab"]);
        assert_eq!(index.get(b"abxy").map(|unit| unit.path.to_vec()), Some(b"abxy".to_vec()));
        assert!(index.get(b"abx").is_none());
        let again = unit(b"ab");
        assert!(index.put(&again).is_some_and(|before| Arc::ptr_eq(&before, &units[2])));
        assert!(!index.remove(&units[2]) && index.remove(&again) && !index.remove(&again));
        assert_eq!(found(&index, b"abcd"), [&b""[..], b"abcd"]);
    }

    #[test]
    fn nothing_is_left_of_what_was_taken_out() {
        let index = Index::default();
        let units: Vec<_> = [&b"aaaa"[..], b"aabb", b"aabbcc", b"x"].into_iter().map(unit).collect();
        units.iter().for_each(|unit| drop(index.put(unit)));
        assert!(units.iter().all(|unit| index.remove(unit)));
        assert!(index.root.read().is_bare());
    }
}
