//! The log of a compute server, as its tree writes it (`docs/durability.md`).
//!
//! Room for a record is reserved before the first latch
//! ([`room`](crate::recovery::room)); the record is appended under the latches of the
//! nodes that it is about, and its number goes into their frames. An operation answers once the log has
//! everything that it has seen. A node is written once the log has everything up to its number and, if its
//! entries moved, its image. Without a log nothing of this happens.

use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use pando_cache::{CacheError, FrameRef, Mark, NodeShape, Swip, Version};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, PageBuf, outlined};
use pando_log::defect::OfIndex;
use pando_log::{Appending, Entry, Image, Log, LogError, Record, Reservation, Share};
use pando_pool::ValueRef;

use crate::change::{Change, Outcome};
use crate::error::{DexError, Result};
use crate::layout::{Layout, NewValue, Stored};
use crate::tree::{Ctx, Tree};

/// Bytes of a log for each byte of cache: a checkpoint may log an image of each node in the cache, in a
/// quarter of the log.
pub const LOG_PER_CACHE_BYTE: u64 = 4;

/// Smallest number of segments of a lane.
pub const LOG_SEGMENTS_MIN: u64 = 4;

/// Room for a record; `None` without a log.
pub(crate) type Room<'t> = Option<Reservation<'t>>;

pub(crate) fn log_of<L: Layout>(tree: &Tree<L>) -> Option<&Log> {
    tree.config.log.as_deref()
}

pub(crate) fn lane_of<E>(ctx: Ctx<'_, E>, log: &Log) -> usize {
    ctx.worker.number() % log.lanes()
}

/// Appends the record of a change of one entry of a latched leaf, and notes it in the frame and the outcome.
pub(crate) fn note_change<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    appending: Appending<'_>,
    leaf: FrameRef<'_>,
    key: L::Key<'_>,
    change: &Change<'_>,
    outcome: &mut Outcome,
) {
    let Some(log) = log_of(tree) else { return };
    let addr = own_addr(leaf);
    let key = tree.layout.key_bytes(key);
    let gsn = note_entry(ctx.ep, appending, addr, key, change);
    tap_change(log, key, change);
    leaf.set_mark(Mark { gsn, has_moved: leaf.mark().has_moved || outcome.in_place.is_none() });
    outcome.seen = gsn;
}

/// Appends the record of a change of one entry of a leaf that no other operation can use meanwhile.
pub(crate) fn note_entry<E: Endpoint>(
    ep: &E,
    appending: Appending<'_>,
    page: GlobalAddr,
    key: &[u8],
    change: &Change<'_>,
) -> u64 {
    let reference;
    let change = match change.stored() {
        Some(Stored::Inline(bytes)) => pando_log::Change::Put(bytes),
        Some(Stored::Long(value) | Stored::New(&NewValue { reference: value, .. })) => {
            reference = value.to_words().map(u64::to_le_bytes);
            pando_log::Change::PutLong(reference.as_flattened())
        }
        None => pando_log::Change::Remove,
    };
    appending.append(ep, &Record::Entry(Entry { page, key, change }))
}

/// Gives a change that was made and logged to the tap of the log, if one is open. The caller still holds the
/// latch or the ticket of the leaf.
#[inline]
pub(crate) fn tap_change(log: &Log, key: &[u8], change: &Change<'_>) {
    if !log.is_tapped() {
        return;
    }
    match change.stored() {
        Some(Stored::Inline(bytes) | Stored::New(&NewValue { bytes, .. })) => log.note(key, Some(bytes)),
        // A value that moves to another memory server has the same bytes there.
        Some(Stored::Long(_)) => {}
        None => log.note(key, None),
    }
}

/// Appends the record of a change of the structure and notes it in the frames. The caller has latched all
/// nodes that changed, with their swizzled children below them.
pub(crate) fn note_nodes<L: Layout>(
    tree: &Tree<L>,
    room: Room<'_>,
    nodes: &[FrameRef<'_>],
    freed: &[GlobalAddr],
) -> u64 {
    let (Some(room), Some(log)) = (room, log_of(tree)) else { return 0 };
    let bytes: Vec<_> = nodes.iter().map(|node| image_of(tree, *node)).collect();
    let images =
        nodes.iter().zip(&bytes).map(|(node, bytes)| Image { page: own_addr(*node), bytes }).collect();
    let gsn = log.append(room, &Record::Pages { images, freed: freed.to_vec() });
    nodes.iter().for_each(|node| node.set_mark(Mark { gsn, has_moved: false }));
    gsn
}

pub(crate) fn own_addr(node: FrameRef<'_>) -> GlobalAddr {
    GlobalAddr::from_raw(node.addr()).expect("own addresses are not swizzled")
}

/// Bytes of the remote copy of a latched node. Its children keep their addresses as long as it is latched.
pub(crate) fn image_of<L: Layout>(tree: &Tree<L>, node: FrameRef<'_>) -> Vec<u8> {
    let words: Vec<Word> = node.words().iter().map(|word| Word::new(word.load(Relaxed))).collect();
    words[0].store(0, Relaxed);
    for i in 0..tree.layout.child_count(&words) {
        let at = tree.layout.child_word(&words, i);
        if let Some(child) = Swip::from_raw(words[at].load(Relaxed)).frame() {
            words[at].store(tree.cache.frame(child).addr(), Relaxed);
        }
    }
    bytes_of(&words)
}

pub(crate) fn bytes_of(words: &[Word]) -> Vec<u8> {
    words.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect()
}

/// Appends the image of a page that no other operation can use meanwhile.
pub(crate) fn note_page<E: Endpoint>(
    ep: &E,
    appending: Appending<'_>,
    page: &PageBuf,
    addr: GlobalAddr,
) -> u64 {
    append_image(ep, appending, addr, &bytes_of(page.words()))
}

fn append_image<E: Endpoint>(ep: &E, appending: Appending<'_>, page: GlobalAddr, bytes: &[u8]) -> u64 {
    appending.append(ep, &Record::Pages { images: vec![Image { page, bytes }], freed: Vec::new() })
}

/// Whether the log has everything up to `gsn`.
#[inline]
pub(crate) fn is_durable<L: Layout>(tree: &Tree<L>, gsn: u64) -> bool {
    log_of(tree).is_none_or(|log| log.is_durable(gsn))
}

/// Waits until the log has everything up to `gsn`, which the operation has seen.
#[inline]
pub(crate) async fn durable<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, gsn: u64) -> Result<()> {
    match log_of(tree) {
        Some(log) if !log.is_durable(gsn) => {
            Ok(outlined(Box::pin(log.durable(ctx.ep, lane_of(ctx, log), gsn))).await?)
        }
        _ => Ok(()),
    }
}

/// Waits until a page with record `gsn` may be written, or a block used again that this record freed.
pub(crate) async fn settled<L: Layout, E: Endpoint>(tree: &Tree<L>, ctx: Ctx<'_, E>, gsn: u64) -> Result<()> {
    match log_of(tree) {
        Some(log) => Ok(outlined(Box::pin(log.settled(ctx.ep, lane_of(ctx, log), gsn))).await?),
        None => Ok(()),
    }
}

/// Waits until a new long value is persisted, before a record refers to it.
pub(crate) async fn persist_value<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    value: ValueRef,
) -> Result<()> {
    let Some(log) = log_of(tree).filter(|log| log.persists()) else { return Ok(()) };
    let mut blocks = Vec::new();
    tree.pool
        .visit_value_blocks(ctx.ep, value, |addr, bytes| blocks.push((addr, bytes.next_multiple_of(8))))
        .await?;
    Ok(log.persist_value(ctx.ep, &blocks).await?)
}

/// Persists what a record is about to rely on, if the log is persisted: a lock, under which redo is to write a node, or
/// a new node that is in no record.
pub(crate) async fn persist_first<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    addr: GlobalAddr,
    bytes: usize,
) -> Result<()> {
    match log_of(tree).is_some_and(Log::persists) {
        true => Ok(ctx.ep.persist(addr, bytes as u64).await?),
        false => Ok(()),
    }
}

/// Number of the last record of the log.
pub(crate) fn clock<L: Layout>(tree: &Tree<L>) -> u64 {
    log_of(tree).map_or(0, Log::clock)
}

/// Number of the last record about a node. The caller validates the frame's version afterwards.
#[inline]
pub(crate) fn seen<L: Layout>(tree: &Tree<L>, node: FrameRef<'_>) -> u64 {
    if log_of(tree).is_some() { node.mark().gsn } else { 0 }
}

/// Whether a lookup may answer by what it has read of a node with this number. (A seeded defect: it does not ask.)
#[inline]
pub(crate) fn may_answer<L: Layout>(tree: &Tree<L>, gsn: u64) -> bool {
    is_durable(tree, gsn) || defect(OfIndex::GetBeforeLog)
}

/// Layout of the nodes for the cache, with the rule that the log comes first.
pub(crate) struct Logged<'t, L> {
    layout: L,
    log: Option<&'t Log>,
    share: Share,
}

impl<L: Copy> Clone for Logged<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L: Copy> Copy for Logged<'_, L> {}

/// Layout of the nodes for calls of the cache that may write some of them, and may use this share of the log.
pub(crate) fn shape<L: Layout>(tree: &Tree<L>, share: Share) -> Logged<'_, L> {
    Logged { layout: tree.layout, log: log_of(tree), share }
}

impl<L: Layout> Tree<L> {
    /// Layout of the nodes for calls of the cache that may write some of them.
    pub(crate) fn shape(&self) -> Logged<'_, L> {
        shape(self, Share::Most)
    }
}

impl<L: Layout> NodeShape for Logged<'_, L> {
    #[inline]
    fn child_count(&self, page: &[Word]) -> usize {
        self.layout.child_count(page)
    }

    #[inline]
    fn child_word(&self, page: &[Word], i: usize) -> usize {
        self.layout.child_word(page, i)
    }

    #[inline]
    fn swizzles(&self, page: &[Word]) -> bool {
        self.layout.swizzles(page)
    }

    fn leaves_first_word(&self, page: &[Word]) -> bool {
        self.layout.leaves_first_word(page)
    }

    #[inline]
    fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    #[inline]
    async fn before_write<E: Endpoint>(
        &self,
        endpoint: &E,
        frame: FrameRef<'_>,
        version: Version,
        page: &PageBuf,
    ) -> pando_cache::Result<bool> {
        let Some(log) = self.log.filter(|_| !defect(OfIndex::PageBeforeLog)) else { return Ok(true) };
        let logged = outlined(Box::pin(log_before_write(log, endpoint, frame, version, page, self.share)));
        logged.await.map_err(|error| match error {
            LogError::Fabric(error) => CacheError::Fabric(error),
            error => CacheError::Unlogged { reason: error.to_string() },
        })
    }
}

/// Sees to it that the log has everything of a node that is about to be written: its records and, if its
/// entries moved, its image. `false` if the log has no room, or the node has changed.
async fn log_before_write<E: Endpoint>(
    log: &Log,
    ep: &E,
    frame: FrameRef<'_>,
    version: Version,
    page: &PageBuf,
    share: Share,
) -> Result<bool, LogError> {
    let Mark { mut gsn, has_moved } = frame.mark();
    if frame.validate(version).is_err() {
        return Ok(false);
    }
    // No worker waits for these records, and they may be many.
    let lane = if has_moved { log.emptiest_lane() } else { 0 };
    if has_moved {
        let len = Record::pages_len(1, page.len(), 0);
        let Some(room) = log.reserve(ep, lane, len, share).await? else { return Ok(false) };
        let Some(addr) = GlobalAddr::from_raw(page.get(1)) else { return Ok(false) };
        let bytes = bytes_of(page.words());
        // Under the latch: a record of a later change must get a larger number than the image.
        let Ok(guard) = frame.upgrade(version) else { return Ok(false) };
        gsn = append_image(ep, log.begin(room), addr, &bytes);
        guard.release_unchanged();
    }
    log.settled(ep, lane, gsn).await?;
    Ok(true)
}

/// Appends the images that dirty nodes need before they are written, so that they share batches and are persisted
/// together. Leaves the last part of the log alone: a node that changes again needs another image when it is
/// written, and only that one is certain to have room.
pub(crate) async fn note_moved<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    log: &Log,
) -> Result<()> {
    let len = Record::pages_len(1, tree.layout.node_size(), 0);
    for frame in tree.cache.dirty_frames().filter(|frame| frame.mark().has_moved) {
        let lane = log.emptiest_lane();
        let Some(room) = log.reserve(ctx.ep, lane, len, Share::Most).await? else { break };
        let Ok(version) = frame.optimistic() else { continue };
        let Ok(guard) = frame.upgrade(version) else { continue };
        if version.is_dirty() && frame.mark().has_moved {
            note_nodes(tree, Some(room), &[frame], &[]);
        }
        guard.release_unchanged();
    }
    settled(tree, ctx, log.clock()).await
}

impl From<LogError> for DexError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Fabric(error) => Self::Fabric(error),
            error => Self::Log(error),
        }
    }
}
