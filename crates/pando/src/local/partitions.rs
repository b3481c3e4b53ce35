//! Boundaries between the compute servers of an index (DEX §4).
//!
//! A nonempty index is cut into parts with about equally many keys, by the separators of the highest level
//! that has enough of them. An empty index is cut into equal parts of the key space.

use pando_dex::layout::{Layout, header};
use pando_fabric::{Endpoint, GlobalAddr, PageBuf};
use pando_pool::IndexRecord;
use pando_rt::block_on;

use crate::error::{Error, Result};
use crate::layout::IndexLayout;
use crate::place::AnyEndpoint;

/// Separators per part; with this many, the sizes of the parts differ by a few percent.
const SEPARATORS_PER_PART: usize = 64;

/// Checks the order of `boundaries`.
///
/// # Errors
/// [`Error::InvalidOption`] unless they ascend strictly.
pub(crate) fn check(boundaries: &[Vec<u8>]) -> Result<()> {
    match boundaries.is_sorted_by(|a, b| a < b) {
        true => Ok(()),
        false => Err(Error::InvalidOption("the boundaries of partitions must ascend strictly".to_owned())),
    }
}

/// Cuts the key space into `parts` equal parts by the first two bytes of keys, or by the only one.
///
/// # Errors
/// [`Error::InvalidOption`] if these bytes have fewer values than there are parts.
pub(crate) fn equal(layout: IndexLayout, parts: usize) -> Result<Vec<Vec<u8>>> {
    let (size, values) = match layout {
        IndexLayout::Fixed { key_size: 1, .. } => (1, 1 << 8),
        IndexLayout::Fixed { key_size, .. } => (key_size, 1 << 16),
        IndexLayout::Bytes => (2, 1 << 16),
    };
    if parts > values {
        return Err(Error::InvalidOption(format!(
            "keys of {size} byte cannot be divided among {parts} compute servers"
        )));
    }
    let cut = |i: usize| {
        let first = values * i / parts;
        let mut key = if size == 1 { vec![first as u8] } else { (first as u16).to_be_bytes().to_vec() };
        key.resize(size, 0);
        key
    };
    Ok((1..parts).map(cut).collect())
}

/// Positions at which the parts after the first begin if `len` entries are divided into `parts`. Strictly
/// ascending if `len >= parts`.
pub(crate) fn quantiles(len: u64, parts: usize) -> impl Iterator<Item = u64> {
    (1..parts).map(move |i| (u128::from(len) * i as u128 / parts as u128) as u64)
}

/// Boundaries that cut the keys of an index into `parts`. No process has a dirty node of the index in its
/// cache.
pub(crate) fn of_keys<L: Layout>(
    ep: &AnyEndpoint,
    layout: L,
    kind: IndexLayout,
    record: &IndexRecord,
    parts: usize,
) -> Result<Vec<Vec<u8>>> {
    let wanted = parts * SEPARATORS_PER_PART;
    let mut level = vec![record.root];
    loop {
        let Level { keys, children } = read_level(ep, layout, record, &level)?;
        let enough = keys.len() >= wanted || (children.is_empty() && keys.len() >= parts);
        if enough {
            return Ok(quantiles(keys.len() as u64, parts).map(|at| keys[at as usize].clone()).collect());
        }
        if children.is_empty() {
            return equal(kind, parts);
        }
        level = children;
    }
}

/// All nodes of one level of an index.
struct Level {
    /// In leaves the keys, in inner nodes the separators; in both, the low fences of the nodes.
    keys: Vec<Vec<u8>>,
    children: Vec<GlobalAddr>,
}

fn read_level<L: Layout>(
    ep: &AnyEndpoint,
    layout: L,
    record: &IndexRecord,
    nodes: &[GlobalAddr],
) -> Result<Level> {
    let mut found = Level { keys: Vec::new(), children: Vec::new() };
    let bad = |reason: String| Error::BadIndex { name: record.name.clone(), reason };
    let mut page = ep.buffer(layout.node_size());
    for &addr in nodes {
        page = block_on(ep, ep.read(addr, page))?;
        let words = page.words();
        let ours = header::addr(words) == addr.raw() && header::index_id(words) == record.id;
        layout.verify(words).map_err(|reason| bad(format!("the node at {addr} is corrupt: {reason}")))?;
        if !ours {
            return Err(bad(format!("the node at {addr} is not one of its own")));
        }
        collect(layout, &page, &mut found);
    }
    ep.recycle(page);
    found.keys.dedup();
    Ok(found)
}

fn collect<L: Layout>(layout: L, page: &PageBuf, found: &mut Level) {
    let words = page.words();
    let key = |i| {
        let mut key = Vec::new();
        layout.append_key(words, i, &mut key);
        key
    };
    let mut low = Vec::new();
    if layout.append_fence(words, pando_dex::layout::Side::Low, &mut low) {
        found.keys.push(low);
    }
    found.keys.extend((0..layout.count(words)).map(key));
    let children = (0..layout.child_count(words)).map(|i| header::get(words, layout.child_word(words, i)));
    found.children.extend(children.filter_map(GlobalAddr::from_raw));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_ascend_and_have_the_size_of_keys() {
        for (layout, size) in [
            (IndexLayout::Bytes, 2),
            (IndexLayout::Fixed { key_size: 1, value_size: 0 }, 1),
            (IndexLayout::Fixed { key_size: 9, value_size: 8 }, 9),
        ] {
            for parts in [1, 2, 3, 200, 256] {
                let cuts = equal(layout, parts).expect("not too many");
                assert_eq!(cuts.len(), parts - 1);
                assert!(check(&cuts).is_ok() && cuts.iter().all(|cut| cut.len() == size));
            }
        }
        assert!(equal(IndexLayout::Fixed { key_size: 1, value_size: 0 }, 257).is_err());
    }

    #[test]
    fn quantiles_ascend_as_long_as_there_is_one_for_each() {
        for len in 4..40 {
            let cuts: Vec<u64> = quantiles(len, 4).collect();
            assert!(cuts.is_sorted_by(|a, b| a < b) && cuts.len() == 3 && cuts[2] < len, "{len}: {cuts:?}");
        }
    }
}
