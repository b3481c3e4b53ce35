//! The anchor of an index: a block with the fixed properties of the index and the addresses of its parts.
//! Except for the free list, it is written once, when the index is created. (Sherman keeps only the root's
//! address in such a place, and the rest in each process.) Opening an index checks that its keys, values,
//! nodes and read checks match the anchor.
//!
//! ```text
//! word 0   check of all words but that of the free list
//!      1   magic
//!      2   index
//!      3   [key bytes:32][value bytes:32]
//!      4   [node bytes:32][read check:8][leaf format:8][locks in tables:8][zeros:8]
//!      5   root, which never moves
//!      6   first of the nodes that are gone and free, chained; 0 if there is none
//!      7   locks of each table
//!      8   [servers:32][segments of each table:32]
//!      9   segments of all tables, server by server
//! ```
//! A table is longer than a block of the pool, so it lies in segments, each a power of two long.

use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId, WORD};
use pando_pool::{Placement, Pool};

use crate::check::Sum;
use crate::error::{Result, ShermanError};
use crate::options::{LockPlace, Options};
use crate::shape::Shape;

const MAGIC: u64 = u64::from_le_bytes(*b"SHERMAN\x01");
const FREE: usize = 6;
const SEGMENTS: usize = 9;
/// Maximum size of a segment in bytes: the largest block of a pool with chunks of at least that size.
const SEGMENT_MAX: u64 = 64 << 10;

/// Contents of an anchor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Anchor {
    pub root: GlobalAddr,
    /// Lock tables by memory server; empty if locks are in nodes.
    pub tables: Vec<Vec<GlobalAddr>>,
    pub locks: u32,
}

impl Anchor {
    /// Address of the head of the free list.
    pub fn free_list(at: GlobalAddr) -> GlobalAddr {
        at.add((FREE * WORD) as u64)
    }

    /// Size of its block in bytes.
    pub fn bytes(&self) -> u64 {
        let segments: usize = self.tables.iter().map(Vec::len).sum();
        ((SEGMENTS + segments) * WORD) as u64
    }

    /// Size of each segment of its tables in bytes.
    pub fn segment_bytes(&self) -> u64 {
        let segments = self.tables.first().map_or(1, Vec::len) as u64;
        u64::from(self.locks) * WORD as u64 / segments
    }

    /// Lock of the node at `addr`; `None` if locks are in nodes.
    pub fn lock_addr(&self, node: GlobalAddr, node_size: usize) -> Option<GlobalAddr> {
        let table = self.tables.get(usize::from(node.server().0))?;
        // Nodes are a power of two apart, so use the upper bits of a product: they depend on all bits.
        let hash = (node.offset() / node_size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let lock = (hash >> 32) % u64::from(self.locks);
        let in_segment = self.segment_bytes() / WORD as u64;
        Some(table[(lock / in_segment) as usize].add(lock % in_segment * WORD as u64))
    }

    /// Allocates tables of free locks on every memory server. Every allocated block is in `blocks`, even
    /// after an error.
    pub async fn make_tables<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        options: &Options,
        blocks: &mut Vec<(GlobalAddr, u64)>,
    ) -> Result<(Vec<Vec<GlobalAddr>>, u32)> {
        let LockPlace::Table { locks, .. } = options.locks else { return Ok((Vec::new(), 0)) };
        if !locks.is_power_of_two() {
            return Err(ShermanError::Shape(format!("a table has a power of two of locks, not {locks}")));
        }
        let bytes = u64::from(locks) * WORD as u64;
        let mut tables = Vec::new();
        for server in (0..pool.servers() as u16).map(MemoryServerId) {
            let segment = bytes.min(SEGMENT_MAX).min(pool.chunk_size(server)?);
            let mut table = Vec::new();
            for _ in 0..bytes / segment {
                let at = pool.alloc(ep, Placement::Server(server), segment).await?;
                blocks.push((at, segment));
                table.push(at);
                let zeros = ep.buffer(segment as usize);
                zeros.words().iter().for_each(|word| word.store(0, std::sync::atomic::Ordering::Relaxed));
                ep.recycle(ep.write(at, zeros).await?);
            }
            tables.push(table);
        }
        match tables.iter().all(|table| table.len() == tables[0].len()) {
            true => Ok((tables, locks)),
            false => Err(ShermanError::Shape("memory servers with chunks of different sizes".into())),
        }
    }

    fn words(&self, shape: &Shape, index_id: u32) -> Vec<u64> {
        let segments = self.tables.first().map_or(0, Vec::len) as u64;
        let in_tables = u64::from(!self.tables.is_empty());
        let mut words = vec![
            0,
            MAGIC,
            u64::from(index_id),
            (shape.key_len() as u64) << 32 | shape.value_len() as u64,
            (shape.node_size() as u64) << 32 | shape.kind() << 16 | in_tables << 8,
            self.root.raw(),
            0,
            u64::from(self.locks),
            (self.tables.len() as u64) << 32 | segments,
        ];
        words.extend(self.tables.iter().flatten().map(|segment| segment.raw()));
        words[0] = words[1..].iter().fold(Sum::new(0), |sum, &word| sum.add(word)).end();
        words
    }

    pub async fn write<E: Endpoint>(
        &self,
        ep: &E,
        at: GlobalAddr,
        shape: &Shape,
        index_id: u32,
    ) -> Result<()> {
        let words = self.words(shape, index_id);
        let page = ep.buffer(words.len() * WORD);
        words.iter().enumerate().for_each(|(i, &word)| page.set(i, word));
        ep.recycle(ep.write(at, page).await?);
        Ok(())
    }

    /// Reads the anchor at `at`, which must belong to an index of this shape.
    pub async fn read<E: Endpoint>(
        ep: &E,
        at: GlobalAddr,
        shape: &Shape,
        index_id: u32,
        options: &Options,
    ) -> Result<Self> {
        let wrong = |reason| Err(ShermanError::Anchor { addr: at, reason });
        let head = ep.read(at, ep.buffer(SEGMENTS * WORD)).await?;
        if head.get(1) != MAGIC {
            return wrong("there is none");
        }
        let (servers, segments) = (head.get(8) >> 32, head.get(8) & 0xffff_ffff);
        let root = GlobalAddr::from_raw(head.get(5)).unwrap_or_default();
        let locks = u32::try_from(head.get(7)).unwrap_or(0);
        let is_possible = servers <= ep.regions().len() as u64 && segments <= u64::from(locks);
        if !is_possible || root.is_null() {
            return wrong("its anchor is corrupt");
        }
        let mut tables = Vec::new();
        let mut next = at.add((SEGMENTS * WORD) as u64);
        for _ in 0..servers {
            let mut table = Vec::new();
            for _ in 0..segments {
                table.push(GlobalAddr::from_raw(ep.read_word(next).await?).unwrap_or_default());
                next = next.add(WORD as u64);
            }
            tables.push(table);
        }
        let anchor = Self { root, tables, locks };
        let words = anchor.words(shape, index_id);
        let is_same = (1..SEGMENTS).filter(|&i| i != FREE).all(|i| head.get(i) == words[i]);
        if !is_same {
            return wrong("it has another number, or other keys, values, nodes or options");
        }
        if head.get(0) != words[0] {
            return wrong("its anchor is corrupt");
        }
        ep.recycle(head);
        match options.locks {
            LockPlace::Node if !anchor.tables.is_empty() => wrong("its locks are in tables"),
            LockPlace::Table { .. } if anchor.tables.is_empty() => wrong("its locks are in nodes"),
            _ => Ok(anchor),
        }
    }
}
