//! Check that a page is a well-formed slotted node.
//!
//! Other processes write the memory that pages come from, so their bytes are not trusted: after this check
//! every accessor of the layout stays within the page. It runs on every page that is READ, so it is linear in
//! the size of the page and allocates nothing.

use std::cmp::Ordering;

use pando_cache::sync::Word;

use super::SlottedLayout;
use super::bytes::{self, Span};
use super::node::{HEADER, LEFTMOST, Node, PREFIX, SLOT, ValueAt};
use crate::layout::Side;
use crate::layout::header::{self, Format, get};

type Verdict = Result<(), &'static str>;

const MAX_BYTES: usize = *super::NODE_SIZES.end();

/// Record of the heap bytes in use.
struct HeapUse {
    start: usize,
    end: usize,
    used: usize,
    taken: [u64; MAX_BYTES / 64],
}

impl HeapUse {
    /// Marks a range as used. An empty range must be at 0.
    fn take(&mut self, span: Span) -> Verdict {
        let Span { at, len } = span;
        if len == 0 {
            return if at == 0 { Ok(()) } else { Err("an empty range that is somewhere") };
        }
        let end = at + len;
        if at < self.start || end > self.end {
            return Err("a range outside the heap");
        }
        self.used += len;
        for i in at / 64..=(end - 1) / 64 {
            let from = at.saturating_sub(64 * i);
            let to = (end - 64 * i).min(64);
            let bits = (u64::MAX >> (64 - (to - from))) << from;
            if self.taken[i] & bits != 0 {
                return Err("ranges of the heap overlap");
            }
            self.taken[i] |= bits;
        }
        Ok(())
    }
}

pub fn verify(layout: &SlottedLayout, page: &[Word]) -> Verdict {
    header::verify(page, Format::Slotted)?;
    if page.len() * 8 != layout.node_bytes() {
        return Err("a node of another size");
    }
    let node = Node::open(page);
    let (start, garbage) = node.heap();
    if header::raw_count(page) != node.count || start < HEADER + SLOT * node.count || start > page.len() * 8 {
        return Err("slots and heap overlap");
    }
    let mut heap = HeapUse { start, end: page.len() * 8, used: garbage, taken: [0; MAX_BYTES / 64] };
    verify_fences(layout, node, &mut heap)?;
    for i in 0..node.count {
        verify_entry(layout, node, i, &mut heap)?;
    }
    if start + heap.used != heap.end {
        return Err("the bytes of the heap do not add up");
    }
    verify_order(node)
}

fn verify_fences(layout: &SlottedLayout, node: Node<'_>, heap: &mut HeapUse) -> Verdict {
    let (low, high) = (node.fence(Side::Low), node.fence(Side::High));
    for span in [low, high].into_iter().flatten() {
        heap.take(span)?;
    }
    let prefix = node.prefix;
    if get(node.page, PREFIX) != prefix as u64 {
        return Err("an impossible prefix");
    }
    if low.is_some_and(|low| low.len > layout.max_key())
        || high.is_some_and(|high| high.len == 0 || prefix + high.len > layout.max_key())
    {
        return Err("a fence of an impossible length");
    }
    let (Some(low), Some(high)) = (low, high) else {
        return if prefix == 0 { Ok(()) } else { Err("a prefix without fences") };
    };
    if prefix > low.len {
        return Err("a prefix longer than the low fence");
    }
    let behind = node.suffix_at(Span { at: low.at + prefix, len: low.len - prefix });
    let high = node.suffix_at(high);
    if node.compare(behind, high).is_ge() {
        return Err("fences out of order");
    }
    if behind.len > 0 && behind.head >> 56 == high.head >> 56 {
        return Err("a prefix shorter than what the fences have in common");
    }
    Ok(())
}

fn verify_entry(layout: &SlottedLayout, node: Node<'_>, i: usize, heap: &mut HeapUse) -> Verdict {
    let suffix = node.suffix(i);
    if node.prefix + suffix.len > layout.max_key() {
        return Err("a key of an impossible length");
    }
    if bytes::first_bytes(suffix.head, suffix.len) != suffix.head {
        return Err("a head longer than its key");
    }
    heap.take(suffix.tail)?;
    if !node.leaf {
        return verify_child(node.right_child(i));
    }
    let ValueAt { span, long } = node.value(i);
    heap.take(span)?;
    if long && (span.len != size_of::<pando_pool::ValueRef>() || node.reference(span).is_none()) {
        return Err("an impossible reference to a long value");
    }
    if !long && span.len > layout.max_inline() {
        return Err("a value of an impossible length");
    }
    Ok(())
}

fn verify_child(child: u64) -> Verdict {
    if child << 16 == 0 || child >> 63 == 1 { Err("a child without an address") } else { Ok(()) }
}

fn verify_order(node: Node<'_>) -> Verdict {
    if !node.leaf {
        verify_child(get(node.page, LEFTMOST))?;
    }
    if (1..node.count).any(|i| node.compare(node.suffix(i - 1), node.suffix(i)).is_ge()) {
        return Err("keys out of order");
    }
    let Some(last) = node.count.checked_sub(1) else {
        return Ok(());
    };
    // An infinite low fence counts as an empty one.
    let low = node.fence(Side::Low).unwrap_or_default();
    let low = node.suffix_at(Span { at: low.at + node.prefix, len: low.len - node.prefix });
    match node.compare(low, node.suffix(0)) {
        Ordering::Greater => return Err("a key below the low fence"),
        Ordering::Equal if !node.leaf => return Err("a separator with no key below it"),
        _ => {}
    }
    match node.fence(Side::High) {
        Some(span) if node.compare(node.suffix(last), node.suffix_at(span)).is_ge() => {
            Err("a key not below the high fence")
        }
        _ => Ok(()),
    }
}
