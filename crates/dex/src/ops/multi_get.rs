//! Lookups of many keys in one batch.
//!
//! The keys of a group descend together, one level per round, so that the memory accesses of a round overlap.
//! Leaves that are not cached are READ together afterwards. A key that meets any other obstacle, or a change,
//! is looked up alone. Each answer is linearizable by itself; a batch as a whole is not.

use std::ops::Range;

use pando_fabric::{Endpoint, PageBuf, Work, outlined};

use crate::descent::fetch_many;
use crate::descent::optimistic::{self, Descent, Step};
use crate::error::Result;
use crate::layout::Layout;
use crate::ops::scan;
use crate::tree::{Ctx, Tree, VersionedNode};

/// Appends the value of `key` to `out` if it is in `page`, the copy of its leaf; returns whether it is.
pub(crate) async fn get_from_copy<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    page: &PageBuf,
    key: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool> {
    ctx.worker.counters().count_inner();
    ctx.ep.charge(Work::NodeSearch);
    let Ok(i) = tree.node(page).find(tree.layout.key(key)?) else { return Ok(false) };
    match tree.node(page).append_value(i, out) {
        Some(long) => scan::long_of(tree, ctx, key, long, out).await,
        None => Ok(true),
    }
}

/// Number of keys that descend together.
const GROUP: usize = 32;

/// Answers of [`Tree::multi_get`], kept for reuse.
#[derive(Debug, Default)]
pub struct Answers {
    bytes: Vec<u8>,
    values: Vec<Option<Range<usize>>>,
}

impl Answers {
    /// Value of the `i`-th key; `None` if the key is absent.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        self.values[i].clone().map(|range| &self.bytes[range])
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.values.iter().map(|range| range.clone().map(|range| &self.bytes[range]))
    }

    /// Makes room for `len` answers, which count as absent until [`Answers::set`] fills them in.
    pub fn reset(&mut self, len: usize) {
        self.bytes.clear();
        self.values.clear();
        self.values.resize(len, None);
    }

    /// Sets the `i`-th answer, which was not set before.
    pub fn set(&mut self, i: usize, value: Option<&[u8]>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.values[i] = value.map(|_| start..self.bytes.len());
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.values.clear();
    }

    #[inline]
    fn push(&mut self, found: bool, start: usize) {
        self.values.push(found.then_some(start..self.bytes.len()));
    }
}

/// State of one key's descent.
#[derive(Clone, Copy)]
enum Lane<'t> {
    /// Between a node and its child.
    Below(Step<'t>),
    /// At its leaf, with the result of the search there.
    At(VersionedNode<'t>, std::result::Result<usize, usize>),
    /// Must be looked up alone, because a node is not cached or has changed.
    Alone,
}

impl<L: Layout> Tree<L> {
    /// Looks up all of `keys`; the answers are in the same order.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn multi_get<E: Endpoint, K: AsRef<[u8]>>(
        &self,
        ctx: Ctx<'_, E>,
        keys: &[K],
        answers: &mut Answers,
    ) -> Result<()> {
        answers.clear();
        for group in keys.chunks(GROUP) {
            let lanes = descend_together(self, group, |work| ctx.ep.charge(work));
            let answered =
                lanes[..group.len()].iter().take_while(|lane| answer(self, ctx, lane, answers)).count();
            if answered < group.len() {
                // Boxed, so that the future of a batch whose nodes are all in frames does not hold the lanes.
                let group: Vec<_> = group.iter().map(AsRef::as_ref).collect();
                outlined(Box::pin(answer_rest(self, ctx, &group, lanes, answered, answers))).await?;
            }
        }
        Ok(())
    }
}

/// Answers a key that has reached its leaf; `false` if the leaf has changed.
#[inline]
fn answer<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    lane: &Lane<'_>,
    answers: &mut Answers,
) -> bool {
    let Lane::At(leaf, found) = *lane else { return false };
    let start = answers.bytes.len();
    let found = optimistic::cached_value(tree, ctx.worker, leaf, found, &mut answers.bytes);
    match found {
        Some(found) => answers.push(found, start),
        None => answers.bytes.truncate(start),
    }
    found.is_some()
}

/// Answers the keys of a group from index `answered` on.
async fn answer_rest<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    group: &[&[u8]],
    lanes: [Lane<'_>; GROUP],
    answered: usize,
    answers: &mut Answers,
) -> Result<()> {
    let is_missing = |i| i >= answered && matches!(lanes[i], Lane::Alone);
    let missing = fetch_many::fetch_leaves_of(tree, ctx, group, is_missing).await?;
    for (i, (&key, lane)) in group.iter().zip(&lanes).enumerate().skip(answered) {
        if answer(tree, ctx, lane, answers) {
            continue;
        }
        ctx.ep.renew_time_limit();
        let start = answers.bytes.len();
        let found = match missing.leaf_of(i) {
            Some(page) => get_from_copy(tree, ctx, page, key, &mut answers.bytes).await?,
            None => tree.get(ctx, key, &mut answers.bytes).await?,
        };
        answers.push(found, start);
    }
    missing.recycle(ctx.ep);
    Ok(())
}

/// Descends with all keys as far as nodes are cached.
#[inline]
fn descend_together<'t, L: Layout, K: AsRef<[u8]>>(
    tree: &'t Tree<L>,
    keys: &[K],
    charge: impl Fn(Work),
) -> [Lane<'t>; GROUP] {
    let mut lanes = [Lane::Alone; GROUP];
    let Ok(root) = tree.root_node() else { return lanes };
    for (key, lane) in keys.iter().zip(&mut lanes) {
        if let Ok(key) = tree.layout.key(key.as_ref()) {
            *lane = search(tree, root, key, &charge);
        }
    }
    // The root may grow meanwhile. A key that needs more levels is looked up alone.
    for _ in 0..tree.node(root).level() {
        for (key, lane) in keys.iter().zip(&mut lanes) {
            if let Lane::Below(step) = *lane {
                let key = tree.layout.key(key.as_ref());
                *lane = match (optimistic::arrive(tree, step), key) {
                    (Some(node), Ok(key)) => search(tree, node, key, &charge),
                    _ => Lane::Alone,
                };
            }
        }
    }
    lanes
}

#[inline(always)]
fn search<'t, L: Layout>(
    tree: &'t Tree<L>,
    node: VersionedNode<'t>,
    key: L::Key<'_>,
    charge: impl Fn(Work),
) -> Lane<'t> {
    let mut node = node;
    loop {
        optimistic::charge_visit(node, &charge);
        match optimistic::descend(tree, node, key) {
            Descent::To(step) => return Lane::Below(step),
            Descent::Leaf => {
                let page = tree.node(node);
                let found = page.find(key);
                if let Ok(i) = found {
                    page.prefetch_value(i);
                }
                return Lane::At(node, found);
            }
            // Such nodes are few and near the root, so they are in the processor's cache.
            Descent::Unswizzled(swip) => match optimistic::enter_listed(tree, node, swip, key, &charge) {
                Some(child) => node = child,
                None => return Lane::Alone,
            },
        }
    }
}
