//! Room in slotted nodes: split points, and conditions for merges.
//!
//! A split is planned for all items: the entries and the pending one. Sizes are those under the node's
//! current prefix, which are upper bounds, since the prefixes of the halves are at least as long. Candidates
//! are visited from the wanted place outwards, so that few separators are computed in most cases.
//!
//! One split makes room if keys have at most 3/16 of a node less 20 bytes. Longer keys may have so much in
//! common that their separators, which are fences of both halves, leave no half with room. Then the present
//! entries are split so that as little as possible stays with the pending entry, and the caller splits again,
//! up to three times.

use std::ops::Range;

use super::bytes;
use super::edit::fence;
use super::node::{Node, entry_size};
use crate::layout::Side;

/// Weight of each separator byte beyond the prefix, in bytes of imbalance.
const SEPARATOR_WEIGHT: usize = 2;

/// A node and the entry that does not fit into it.
pub struct SplitPlan<'a> {
    node: Node<'a>,
    key: &'a [u8],
    /// Index of the pending entry, present or not.
    pending: usize,
    /// The pending entry replaces an existing one.
    replaces: bool,
    /// Bytes by which the pending entry enlarges the node.
    growth: usize,
    /// Sums of the sizes of all items before each one, and of all items.
    before: Vec<usize>,
    capacity: usize,
    limit: usize,
    low: usize,
    high: usize,
}

/// A possible split: between items `at - 1` and `at` of a leaf, or around separator `at`.
struct Candidate {
    cost: usize,
    /// Whether the pending entry fits into its half.
    fits: bool,
    at: usize,
}

impl<'a> SplitPlan<'a> {
    pub fn new(node: Node<'a>, key: &'a [u8], value_len: usize, capacity: usize, limit: usize) -> Self {
        let (pending, found) = match node.search(key) {
            Ok(i) => (i, true),
            Err(i) => (i, false),
        };
        let replaces = found && node.leaf;
        let head_bytes = node.head_bytes();
        let size_of = |i: usize| entry_size(node.key_len(i), node.prefix, head_bytes, node.value_len(i));
        let mut sizes: Vec<usize> = (0..node.count).map(size_of).collect();
        let size = entry_size(key.len(), node.prefix, head_bytes, value_len);
        let growth = if replaces {
            let growth = size.saturating_sub(sizes[pending]);
            sizes[pending] += growth;
            growth
        } else {
            sizes.insert(pending, size);
            size
        };
        let mut before = vec![0];
        before.extend(sizes.iter().scan(0, |sum, size| {
            *sum += size;
            Some(*sum)
        }));
        let fence = |side| node.fence(side).map_or(0, |span| span.len);
        let (low, high) = (fence(Side::Low), fence(Side::High));
        Self { node, key, pending, replaces, growth, before, capacity, limit, low, high }
    }

    fn items(&self) -> usize {
        self.before.len() - 1
    }

    /// Index in the node of item `i`.
    fn entry(&self, i: usize) -> usize {
        if !self.replaces && i > self.pending { i - 1 } else { i }
    }

    fn append_item(&self, i: usize, out: &mut Vec<u8>) {
        if i == self.pending {
            out.extend_from_slice(self.key)
        } else {
            self.node.append_key(self.entry(i), out)
        }
    }

    fn separator(&self, at: usize) -> Vec<u8> {
        let mut right = Vec::new();
        self.append_item(at, &mut right);
        if self.node.leaf {
            let mut left = Vec::new();
            self.append_item(at - 1, &mut left);
            right.truncate(bytes::common_prefix(&left, &right) + 1);
        }
        right
    }

    /// Candidate at `at`, with its separator; `None` if the halves could not even hold the present entries.
    fn candidate(&self, at: usize, wanted: usize) -> Option<(Candidate, Vec<u8>)> {
        let leaf = self.node.leaf;
        if !leaf && at == self.pending {
            return None;
        }
        let separator = self.separator(at);
        let behind = if leaf { at } else { at + 1 };
        let pending_left = self.pending < at;
        let cut = separator.len().saturating_sub(self.node.prefix);
        let left = self.low + cut + self.before[at];
        let right = separator.len() + self.high + self.before[self.items()] - self.before[behind];
        let fits = left.max(right) <= self.capacity && at.max(self.items() - behind) <= self.limit;
        let (left_now, right_now) =
            if pending_left { (left - self.growth, right) } else { (left, right - self.growth) };
        if left_now.max(right_now) > self.capacity {
            return None;
        }
        let cost = match fits {
            true => self.before[at].abs_diff(wanted) + SEPARATOR_WEIGHT * cut,
            // The half of the pending entry will be split again.
            false if pending_left => left,
            false => right,
        };
        Some((Candidate { cost, fits, at }, separator))
    }

    /// Best split point and its separator.
    pub fn choose(&self, appends: bool) -> Option<(usize, Vec<u8>)> {
        let (first, end) = if self.node.leaf { (1, self.items()) } else { (0, self.items()) };
        let total = self.before[self.items()];
        let wanted = if appends { total / 10 * 9 } else { total / 2 };
        let mut down = self.before.partition_point(|&sum| sum < wanted).clamp(first, end.max(first));
        let mut up = down;
        let mut best: Option<(Candidate, Vec<u8>)> = None;
        while down > first || up < end {
            let distance = |at: usize| self.before[at].abs_diff(wanted);
            let at = if up >= end || (down > first && distance(down - 1) < distance(up)) {
                down -= 1;
                down
            } else {
                up += 1;
                up - 1
            };
            if best.as_ref().is_some_and(|(best, _)| best.fits && best.cost <= distance(at)) {
                break;
            }
            let better = |(found, _): &(Candidate, _)| {
                best.as_ref().is_none_or(|(best, _)| (!found.fits, found.cost) < (!best.fits, best.cost))
            };
            best = self.candidate(at, wanted).filter(better).or(best);
        }
        best.map(|(found, separator)| (self.entry_behind(found.at), separator))
    }

    /// Result of [`crate::layout::Layout::split_point`] for a candidate.
    fn entry_behind(&self, at: usize) -> usize {
        if !self.replaces && at > self.pending { at - 1 } else { at }
    }
}

/// Size of two neighbours as one node: bytes of fences, bytes of content, number of entries.
pub struct Merged {
    pub fences: usize,
    pub content: usize,
    pub count: usize,
}

impl Merged {
    pub fn new(left: Node<'_>, right: Node<'_>, separator: &[u8]) -> Self {
        let (low, high) = (fence(left, Side::Low), fence(right, Side::High));
        let prefix = shared_prefix(&low, &high);
        let moved = if left.leaf { 0 } else { entry_size(separator.len(), prefix, left.head_bytes(), 0) };
        Self {
            fences: fence_bytes(&low, &high),
            content: left.content_with(0..left.count, prefix)
                + right.content_with(0..right.count, prefix)
                + moved,
            count: left.count + right.count + usize::from(!left.leaf),
        }
    }
}

/// Bytes of the fences and of some entries of a node under other fences.
pub fn part(node: Node<'_>, entries: Range<usize>, low: &Option<Vec<u8>>, high: &Option<Vec<u8>>) -> usize {
    fence_bytes(low, high) + node.content_with(entries, shared_prefix(low, high))
}

/// Length of the common prefix of all keys between two fences.
pub fn shared_prefix(low: &Option<Vec<u8>>, high: &Option<Vec<u8>>) -> usize {
    match (low, high) {
        (Some(low), Some(high)) => bytes::common_prefix(low, high),
        _ => 0,
    }
}

/// Bytes of two fences in a node.
pub fn fence_bytes(low: &Option<Vec<u8>>, high: &Option<Vec<u8>>) -> usize {
    let len = |fence: &Option<Vec<u8>>| fence.as_ref().map_or(0, Vec::len);
    len(low) + len(high) - shared_prefix(low, high)
}
