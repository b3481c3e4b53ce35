//! Recovery of an index from the log of its compute server (`docs/durability.md`).
//!
//! Each page of the plan gets its last image or its remote bytes, then the changes behind that, and is
//! written. Nothing else is read, so the tree need not be whole before. A redo that stops anywhere may be
//! repeated: pages without an image are written by a [`Rewrite`]. The log is persisted before the first page is
//! written, and the pages at the end.
//!
//! The image of a shared node begins with the word of the lock that its writer held. It is written, and the lock given
//! back, only if the node is still locked like this: else the writer had written it itself, and others may have changed
//! it since.

use std::collections::BTreeSet;

use pando_cache::sync::Word;
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, PageBuf, WORD, join_all};
use pando_log::{Change, Contents, Entry, PagePlan, Record, Rewrite, Span, persist_all, plan};
use pando_pool::defect::OfReclaim;
use pando_pool::lock::{unlock_word, unlocked_version};
use pando_pool::{AttachSlot, Pool, PoolError, ValueRef};

use crate::error::{DexError, Result};
use crate::layout::{Layout, Stored, header};
use crate::node::{Node, NodeMut};
use crate::ownership::range::KeyRange;

/// Numbers of a recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Redone {
    /// Pages written.
    pub pages: u64,
    /// Changes of entries applied to them.
    pub entries: u64,
}

/// Pages that are READ, or written, at a time.
const AT_ONCE: usize = 16;

/// Brings the pages of an index to the end of its log and writes them. No process uses the index. Calls
/// `progress` with the number of pages that are done, and of all. Pages on memory servers that are not `in_use`, since they are
/// drained, moved after the log was written, and are left out.
///
/// # Errors
/// [`DexError::Corrupt`]; [`DexError::Log`] for a damaged log; errors of the fabric.
pub async fn redo<L: Layout, E: Endpoint>(
    ep: &E,
    layout: L,
    contents: &Contents,
    in_use: impl Fn(MemoryServerId) -> bool,
    progress: impl Fn(u64, u64),
) -> Result<Redone> {
    let mut redone = Redone::default();
    persist_all(ep).await?;
    let mut rewrite = Rewrite::begin(ep, contents).await?;
    let is_left = |image: &[u8], left: Span<'_>| is_left(layout, image, left);
    let pages = plan(contents, is_left)?.into_iter();
    let pages: Vec<_> = pages.filter(|(addr, _)| in_use(addr.server())).collect();
    for group in pages.chunks(AT_ONCE) {
        progress(redone.pages, pages.len() as u64);
        redone.pages += group.len() as u64;
        let is_due =
            |(addr, plan): &&(GlobalAddr, PagePlan<'_>)| plan.image.is_some() || !rewrite.has_written(*addr);
        let due: Vec<_> = group.iter().filter(is_due).collect();
        let bases = join_all(due.iter().map(|(addr, plan)| base_of(ep, layout, *addr, plan))).await;
        let mut whole = Vec::new();
        for ((addr, plan), base) in due.into_iter().zip(bases) {
            let page = base?;
            if let Some(lock) = lock_of(&page) {
                redo_shared(ep, layout, contents, *addr, page, lock).await?;
                continue;
            }
            redo_page(NodeMut::new(&layout, page.words()), contents, *addr, plan)?;
            redone.entries += plan.entries.len() as u64;
            if plan.image.is_some() {
                whole.push((*addr, page));
                continue;
            }
            let mut bytes = Vec::new();
            page.append_bytes_to(page.len(), &mut bytes);
            rewrite.push(ep, *addr, bytes).await?;
            ep.recycle(page);
        }
        let writes = whole.into_iter().map(|(addr, page)| write_owned(ep, layout, addr, page));
        for written in join_all(writes).await {
            ep.recycle(written?);
        }
    }
    rewrite.finish(ep).await?;
    persist_all(ep).await?;
    Ok(redone)
}

/// Marks all blocks to which a log leads in the bitmaps that its writer stored, which died in attach slot `of`
/// ([`Pool::mark_allocated`]). To be done before the log is emptied.
///
/// # Errors
/// A damaged log; errors of the fabric, after which it can be done again.
pub async fn mark_linked<L: Layout, E: Endpoint>(
    ep: &E,
    pool: &Pool,
    layout: L,
    contents: &Contents,
    of: AttachSlot,
) -> Result<()> {
    let (mut nodes, mut values) = (BTreeSet::new(), Vec::new());
    for record in contents.records() {
        match record?.1 {
            Record::Entry(entry) => {
                nodes.insert(entry.page);
                if let Change::PutLong(reference) = entry.change {
                    values.extend(long_value(reference));
                }
            }
            Record::Pages { images, .. } => {
                for image in images {
                    nodes.insert(image.page);
                    let words = words_of(image.bytes);
                    let node = Node::new(&layout, &words);
                    match node.level() {
                        0 => values.extend((0..node.count()).filter_map(|i| node.long_value(i))),
                        _ => nodes.extend((0..=node.count()).filter_map(|i| node.child_addr(i))),
                    }
                }
            }
            Record::Left(_) => {}
        }
    }
    let mut blocks: Vec<_> = nodes.into_iter().map(|node| (node, layout.node_size() as u64)).collect();
    for value in values {
        match pool.visit_value_blocks(ep, value, |addr, bytes| blocks.push((addr, bytes))).await {
            // It was replaced by another one since.
            Ok(()) | Err(PoolError::ValueChanged { .. } | PoolError::Corrupt { .. }) => {}
            // It is elsewhere now.
            Err(PoolError::Fabric(error))
                if error.unreached().is_some_and(|server| pool.has_drained(server)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match defect(OfReclaim::LogUnmarked) {
        true => Ok(()),
        false => Ok(pool.mark_allocated(ep, of, blocks).await?),
    }
}

fn words_of(image: &[u8]) -> Vec<Word> {
    image.as_chunks().0.iter().map(|word| Word::new(u64::from_le_bytes(*word))).collect()
}

/// Whether the image is of an owned node with some of the keys that left. That of a shared one is redone under its lock only.
fn is_left<L: Layout>(layout: L, image: &[u8], left: Span<'_>) -> bool {
    let words = words_of(image);
    let left = KeyRange { low: left.low.map(<[u8]>::to_vec), high: left.high.map(<[u8]>::to_vec) };
    header::get(&words, 0) == 0 && !left.is_apart_from_node(Node::new(&layout, &words))
}

/// Gives back the locks of inner nodes of an index that no process uses, all of whose logs were redone. Their holders died,
/// and had not begun to write what was to come.
///
/// # Errors
/// [`DexError::Corrupt`]; errors of the fabric, after which it can be done again.
pub async fn give_back_locks<L: Layout, E: Endpoint>(ep: &E, layout: L, root: GlobalAddr) -> Result<()> {
    let mut to_read = vec![root];
    while !to_read.is_empty() {
        let some = to_read.split_off(to_read.len().saturating_sub(AT_ONCE));
        let reads = some.iter().map(|&addr| ep.read(addr, ep.buffer(layout.node_size())));
        for (addr, page) in some.iter().copied().zip(join_all(reads).await) {
            let page = page?;
            let node = Node::new(&layout, page.words());
            layout.verify(node.words()).map_err(|reason| DexError::Corrupt { addr, reason })?;
            if unlocked_version(page.get(0)).is_none() && node.level() > 0 {
                ep.write_word(addr, unlock_word(page.get(0))).await?;
            }
            if node.level() > 1 {
                let children = (0..=node.count()).map(|i| node.child_addr(i));
                let reason = "a child that is no address";
                to_read
                    .extend(children.collect::<Option<Vec<_>>>().ok_or(DexError::Corrupt { addr, reason })?);
            }
            ep.recycle(page);
        }
    }
    Ok(())
}

/// The word of the lock at the front of the image of a shared node.
fn lock_of(page: &PageBuf) -> Option<u64> {
    Some(page.get(0)).filter(|&word| word != 0)
}

/// Writes a shared node and gives its lock back, if it still has this lock.
async fn redo_shared<L: Layout, E: Endpoint>(
    ep: &E,
    layout: L,
    contents: &Contents,
    addr: GlobalAddr,
    mut page: PageBuf,
    lock: u64,
) -> Result<()> {
    check_page(NodeMut::new(&layout, page.words()), contents, addr)?;
    if ep.read_word(addr).await? == lock {
        page.set_window(WORD..layout.node_size());
        ep.recycle(ep.write(addr.add(WORD as u64), page).await?);
        ep.persist(addr, layout.node_size() as u64).await?;
        ep.write_word(addr, unlock_word(lock)).await?;
    }
    Ok(())
}

/// Writes an owned node. If others know its address, they may use its lock.
async fn write_owned<L: Layout, E: Endpoint>(
    ep: &E,
    layout: L,
    addr: GlobalAddr,
    mut page: PageBuf,
) -> pando_fabric::Result<PageBuf> {
    let mut at = addr;
    if layout.leaves_first_word(page.words()) {
        page.set_window(WORD..layout.node_size());
        at = addr.add(WORD as u64);
    }
    ep.write(at, page).await
}

/// Checks that a page is the node that the log is about.
fn check_page<L: Layout>(node: NodeMut<'_, L>, contents: &Contents, addr: GlobalAddr) -> Result<()> {
    let corrupt = |reason| DexError::Corrupt { addr, reason };
    node.layout().verify(node.words()).map_err(corrupt)?;
    if !node.is_at(addr) || node.index_id() != contents.space().index_id {
        return Err(corrupt("the log is about another node"));
    }
    Ok(())
}

/// Makes the changes of a plan in the bytes that they apply to.
fn redo_page<L: Layout>(
    node: NodeMut<'_, L>,
    contents: &Contents,
    addr: GlobalAddr,
    plan: &PagePlan<'_>,
) -> Result<()> {
    check_page(node, contents, addr)?;
    let changes = plan.entries.iter().try_for_each(|entry| apply(node, entry));
    let reason = "a change in the log does not fit into it";
    changes.ok_or(DexError::Corrupt { addr, reason })
}

/// Bytes that the changes of a plan apply to.
async fn base_of<L: Layout, E: Endpoint>(
    ep: &E,
    layout: L,
    addr: GlobalAddr,
    plan: &PagePlan<'_>,
) -> Result<PageBuf> {
    let mut page = ep.buffer(layout.node_size());
    match plan.image {
        Some(image) if image.len() == layout.node_size() => page.copy_from_bytes(image),
        Some(_) => return Err(DexError::Corrupt { addr, reason: "its image in the log has another size" }),
        None => {
            page = ep.read(addr, page).await?;
            page.set(0, 0);
        }
    }
    Ok(page)
}

/// The long value that a record refers to.
fn long_value(reference: &[u8]) -> Option<ValueRef> {
    let words: [[u8; 8]; 3] = reference.as_chunks::<8>().0.try_into().ok()?;
    ValueRef::from_words(words.map(u64::from_le_bytes))
}

/// Makes a logged change in a leaf; `None` if that is impossible.
fn apply<L: Layout>(leaf: NodeMut<'_, L>, entry: &Entry<'_>) -> Option<()> {
    let key = leaf.layout().key(entry.key).ok().filter(|_| leaf.level() == 0)?;
    let stored = match entry.change {
        Change::Put(bytes) => Some(Stored::Inline(bytes)),
        Change::PutLong(reference) => Some(Stored::Long(long_value(reference)?)),
        Change::Remove => None,
    };
    let fits = match (leaf.find(key), stored) {
        (Ok(i), Some(value)) => leaf.replace(i, value),
        (Err(i), Some(value)) => leaf.insert(i, key, value),
        (Ok(i), None) => {
            leaf.remove(i);
            true
        }
        (Err(_), None) => false,
    };
    fits.then_some(())
}
