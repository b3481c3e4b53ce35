//! Range queries by a frontier of intervals (SMART §5).
//!
//! The frontier is a sequence of slots, in key order, that together lead to the whole range. The first ones
//! are READ in parallel; a node is replaced by its slots that reach into the range, a leaf by its entry. Only
//! as many are READ as seem to lead to the wanted entries, so a scan with a limit READs hardly more than it
//! needs.
//!
//! Every node of a frontier is READ anew, since a cached one may lack later inserts. The cache only tells at
//! which node to begin; the scan then continues behind the keys of that node. Each slot is seen at one moment
//! during the scan, so every key is returned that was present throughout, and none that was absent
//! throughout.

use std::collections::VecDeque;
use std::ops::{Bound, RangeBounds};

use pando_fabric::{Endpoint, GlobalAddr, Work, join_all};

use crate::error::{Attempt, Result, Retry};
use crate::layout::leaf::Rear;
use crate::layout::node::{CLASSES, Node, slot_addr};
use crate::leaves::Place;
use crate::tree::{Op, Smart};

/// Entries returned at once: a restart READs only the remaining ones again.
const ENTRIES_AT_ONCE: usize = 1024;

/// An element of the frontier.
enum Item {
    /// Leads to keys that begin with `path`.
    Slot {
        place: Place,
        path: Vec<u8>,
    },
    /// A node where the scan begins.
    Start {
        node: GlobalAddr,
        class: u8,
        path: Vec<u8>,
    },
    Entry(Vec<u8>, Vec<u8>),
}

impl Item {
    /// Estimated number of entries below it: at least half of the slots of a node's class are in use, unless
    /// entries were removed.
    fn entries_expected(&self) -> usize {
        let class = match self {
            Self::Slot { place, .. } if place.slot.is_taken() && !place.slot.is_leaf() => place.slot.class(),
            Self::Start { class, .. } => *class,
            Self::Slot { .. } | Self::Entry(..) => return 1,
        };
        // An invalid class is detected when the node is READ.
        CLASSES.get(usize::from(class)).map_or(1, |slots| slots / 2)
    }
}

/// The rest of a range.
struct Rest<'r> {
    low: Bound<Vec<u8>>,
    high: Bound<&'r [u8]>,
}

impl Rest<'_> {
    fn contains(&self, key: &[u8]) -> bool {
        let is_above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) => low.as_slice() <= key,
            Bound::Excluded(low) => low.as_slice() < key,
        };
        is_above && self.reaches(key)
    }

    /// Whether keys from `key` on are below the end of the range.
    fn reaches(&self, key: &[u8]) -> bool {
        match self.high {
            Bound::Unbounded => true,
            Bound::Included(high) => key <= high,
            Bound::Excluded(high) => key < high,
        }
    }

    /// Whether keys that begin with `path` may be in the range.
    fn meets(&self, path: &[u8]) -> bool {
        let is_above = match &self.low {
            Bound::Unbounded => true,
            Bound::Included(low) | Bound::Excluded(low) => low.as_slice() <= path || low.starts_with(path),
        };
        is_above && self.reaches(path)
    }

    fn low_key(&self) -> &[u8] {
        match &self.low {
            Bound::Unbounded => &[],
            Bound::Included(low) | Bound::Excluded(low) => low,
        }
    }
}

/// Entries, and the bound from which the range continues.
struct Piece {
    entries: Vec<(Vec<u8>, Vec<u8>)>,
    next: Option<Bound<Vec<u8>>>,
}

/// The first key behind all that begin with `path`.
fn behind(path: &[u8]) -> Option<Vec<u8>> {
    let last = path.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut key = path[..=last].to_vec();
    key[last] += 1;
    Some(key)
}

impl Smart {
    /// Passes the entries in a range of keys to `visit`, in ascending order, each once, until it returns
    /// `false` or has got `limit`; returns how many it was given.
    ///
    /// # Errors
    /// Corruption; too long a wait; errors of the fabric. Entries passed before the error are valid.
    pub async fn scan<E: Endpoint>(
        &self,
        ep: &E,
        range: impl RangeBounds<[u8]>,
        limit: usize,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        let mut rest = Rest { low: range.start_bound().map(<[u8]>::to_vec), high: range.end_bound() };
        let mut visited = 0;
        while visited < limit {
            let wanted = (limit - visited).min(ENTRIES_AT_ONCE);
            let piece =
                self.run(ep, "a range to be read", async |op| self.piece(op, &rest, wanted).await).await?;
            ep.charge(Work::Entries { count: piece.entries.len() });
            ep.renew_time_limit();
            for (key, value) in &piece.entries {
                visited += 1;
                if !visit(key, value) {
                    return Ok(visited);
                }
            }
            match piece.next {
                Some(low) => rest.low = low,
                None => break,
            }
        }
        Ok(visited)
    }

    /// The first `wanted` entries of a range, or the entries below the cached node at which it begins.
    async fn piece<E: Endpoint>(&self, op: &Op<'_, E>, rest: &Rest<'_>, wanted: usize) -> Attempt<Piece> {
        let low = rest.low_key();
        let hit = if op.trusts_cache { self.cache.find(op.ep, low, op.epoch) } else { None };
        let (first, end) = match hit {
            Some(hit) => {
                let path = low[..hit.branch].to_vec();
                let end = behind(&path);
                (Item::Start { node: hit.node, class: hit.class, path }, end)
            }
            None => (Item::Slot { place: self.root_place(op).await?, path: Vec::new() }, None),
        };
        let mut frontier = VecDeque::from([first]);
        let mut entries: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        while !frontier.is_empty() && entries.len() < wanted {
            let width = self.width(&frontier, wanted - entries.len());
            let ahead: Vec<_> = frontier.drain(..width).collect();
            let mut expanded = VecDeque::new();
            for items in join_all(ahead.into_iter().map(|item| self.expand(op, rest, item))).await {
                expanded.extend(items?);
            }
            expanded.append(&mut frontier);
            frontier = expanded;
            while let Some(Item::Entry(..)) = frontier.front() {
                if entries.len() == wanted {
                    break;
                }
                if let Some(Item::Entry(key, value)) = frontier.pop_front() {
                    entries.push((key, value));
                }
            }
        }
        let next = match entries.last() {
            Some((key, _)) if !frontier.is_empty() => Some(Bound::Excluded(key.clone())),
            _ => end.filter(|end| rest.reaches(end)).map(Bound::Included),
        };
        Ok(Piece { entries, next })
    }

    /// Number of items at the front to READ together, so that they lead to about `wanted` entries.
    fn width(&self, frontier: &VecDeque<Item>, wanted: usize) -> usize {
        let mut expected = 0;
        let needed = frontier.iter().take_while(|item| {
            let is_needed = expected < wanted;
            expected += item.entries_expected();
            is_needed
        });
        needed.take(self.config.scan_width).count()
    }

    /// READs the target of an item; returns its replacement.
    async fn expand<E: Endpoint>(&self, op: &Op<'_, E>, rest: &Rest<'_>, item: Item) -> Attempt<Vec<Item>> {
        match item {
            Item::Entry(..) => Ok(vec![item]),
            Item::Start { node, class, path } => {
                let node = self.read_node(op, node, class).await?;
                if node.slots().any(|(_, slot)| slot.is_frozen()) {
                    self.cache.forget(&path, node.addr, path.len());
                    return Err(Retry::Restart);
                }
                Ok(self.children(rest, &node, &path))
            }
            Item::Slot { mut place, path } => {
                while place.slot.is_taken() {
                    if place.slot.is_frozen() {
                        return Err(Retry::Restart);
                    }
                    if place.slot.is_leaf() {
                        let leaf = self.read_leaf(op, place.slot.addr(), place.slot.leaf_size()).await?;
                        match leaf.rear() {
                            Rear::Dead => break,
                            Rear::Moved(to) => {
                                op.check("a leaf that moves again and again")?;
                                place.slot = to;
                                continue;
                            }
                            Rear::Free(_) | Rear::Locked(_) => {}
                        }
                        let (mut key, mut value) = (Vec::new(), Vec::new());
                        leaf.append_key(&mut key);
                        leaf.append_value(&mut value);
                        op.ep.recycle(leaf.into_page());
                        return Ok(match rest.contains(&key) {
                            true => vec![Item::Entry(key, value)],
                            false => Vec::new(),
                        });
                    }
                    let node = self.read_node(op, place.slot.addr(), place.slot.class()).await?;
                    if node.header.depth() > path.len() || node.header.branch() < path.len() {
                        return Err(Self::no_node(node.addr).into());
                    }
                    let mut path = path;
                    path.extend((path.len()..node.header.branch()).map(|at| node.prefix_byte(at)));
                    let is_frozen = node.slots().any(|(_, slot)| slot.is_frozen());
                    if is_frozen && self.may_change(&path) {
                        self.replace(op, &path, &place).await?;
                        return Err(Retry::Restart);
                    }
                    if !is_frozen {
                        self.cache.admit(op.ep, &path, &node, op.epoch);
                    }
                    // The frozen slots of a node that only others may replace had this content at some moment
                    // of the scan, since the slot above led here during it.
                    return Ok(self.children(rest, &node, &path));
                }
                Ok(Vec::new())
            }
        }
    }

    /// Slots of a node that reach into the range, in order.
    fn children(&self, rest: &Rest<'_>, node: &Node, path: &[u8]) -> Vec<Item> {
        let branch = node.header.branch();
        let is_own = self.owns_prefix(path);
        let mut taken: Vec<_> = node.slots().filter(|(_, slot)| slot.is_taken()).collect();
        taken.sort_unstable_by_key(|&(number, slot)| (number > 0, slot.byte()));
        let items = taken.into_iter().filter_map(|(number, slot)| {
            let mut path = path.to_vec();
            if number > 0 {
                path.push(slot.byte());
            }
            let is_wanted = if number > 0 { rest.meets(&path) } else { rest.contains(&path) };
            let at = slot_addr(node.addr, number);
            let place = Place {
                at,
                slot: slot.thawed(),
                depth: path.len(),
                node: node.addr,
                branch,
                number,
                is_fresh: true,
                is_own,
            };
            is_wanted.then_some(Item::Slot { place, path })
        });
        items.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_compared_with_bounds() {
        let rest = Rest { low: Bound::Excluded(b"bc".to_vec()), high: Bound::Excluded(b"bd") };
        assert!(rest.meets(b"") && rest.meets(b"b") && rest.meets(b"bc") && rest.meets(b"bcx"));
        assert!(!rest.meets(b"a") && !rest.meets(b"bb") && !rest.meets(b"bd") && !rest.meets(b"c"));
        assert!(!rest.contains(b"bc") && rest.contains(b"bc\0") && !rest.contains(b"bd"));
        assert_eq!((behind(b"a\xff"), behind(b"\xff"), behind(b"")), (Some(b"b".to_vec()), None, None));
    }
}
