//! Long values, out of line: bytes in blocks of their own, referred to by address, length and hash.
//!
//! A value that fits the largest block is one block. A longer one is a list block, `[length][checksum][addresses..]`,
//! that points to pieces of the largest block size. Values are not changed in place; who replaces one frees the old one
//! at once, although others may be reading it. The hash tells them: what they read is then another value's bytes,
//! and they look up the reference again.

use pando_fabric::{Chain, Endpoint, GlobalAddr, MemoryServerId, PageBuf, VerbResult, WORD};

use crate::alloc::Placement;
use crate::error::{PoolError, Result};
use crate::io::{checksum, read_words, write_words};
use crate::pool::Pool;

/// Bytes of the longest value.
pub const MAX_VALUE: u64 = 16 << 20;
/// Words of a list block before its addresses.
const LIST_HEADER: usize = 2;
/// Pieces that one chain moves.
const PIECES_PER_CHAIN: usize = 32;

/// How often a value whose reference stays the same may fail to be read before it counts as corrupt.
const READS_MAX: u32 = 3;

/// The reads of one operation that found other bytes than the reference says. A value that was replaced is no longer
/// referred to, so when the reference is still the same it is the bytes that are wrong.
#[derive(Debug, Default)]
pub struct FailedReads {
    last: Option<ValueRef>,
    count: u32,
}

impl FailedReads {
    /// Notes that reading `value` gave [`PoolError::ValueChanged`]; the caller looks up its reference again.
    ///
    /// # Errors
    /// [`PoolError::Corrupt`] if the reference did not change over several such reads.
    pub fn note(&mut self, value: ValueRef) -> Result<()> {
        self.count = if self.last == Some(value) { self.count + 1 } else { 1 };
        self.last = Some(value);
        if self.count < READS_MAX {
            return Ok(());
        }
        Err(PoolError::Corrupt {
            addr: value.addr,
            reason: "the bytes of the value there are not those that were stored",
        })
    }
}

/// Where a long value is, and what it must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueRef {
    /// Its block or its list of blocks; [`GlobalAddr::NULL`] for no bytes.
    pub addr: GlobalAddr,
    /// Bytes.
    pub len: u64,
    /// XXH3 of the bytes, seeded with the length.
    pub hash: u64,
}

impl ValueRef {
    pub fn to_words(self) -> [u64; 3] {
        [self.addr.raw(), self.len, self.hash]
    }

    /// `None` if the words cannot be a reference, whatever the pool holds.
    pub fn from_words([addr, len, hash]: [u64; 3]) -> Option<Self> {
        let addr = GlobalAddr::from_raw(addr)?;
        let plausible = len <= MAX_VALUE && addr.is_null() == (len == 0);
        plausible.then_some(Self { addr, len, hash })
    }
}

const _: () = assert!(size_of::<ValueRef>() == 24);

fn hash_of(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64_with_seed(bytes, bytes.len() as u64)
}

/// How a value of `len` bytes lies on a server whose largest block has `max_block` bytes.
#[derive(Clone, Copy)]
struct Shape {
    len: u64,
    max_block: u64,
}

impl Shape {
    fn is_one_block(self) -> bool {
        self.len <= self.max_block
    }

    fn pieces(self) -> usize {
        self.len.div_ceil(self.max_block) as usize
    }

    /// Bytes of piece `piece`.
    fn piece_len(self, piece: usize) -> u64 {
        (self.len - piece as u64 * self.max_block).min(self.max_block)
    }

    fn list_words(self) -> usize {
        LIST_HEADER + self.pieces()
    }

    fn list_bytes(self) -> u64 {
        (self.list_words() * WORD) as u64
    }
}

impl Pool {
    /// Stores `bytes`.
    ///
    /// # Errors
    /// [`PoolError::ValueTooLong`] beyond [`MAX_VALUE`]; those of [`Pool::alloc`], after which nothing of the value is
    /// left allocated.
    pub async fn put_value<E: Endpoint>(
        &self,
        ep: &E,
        placement: Placement,
        bytes: &[u8],
    ) -> Result<ValueRef> {
        let len = bytes.len() as u64;
        if len > MAX_VALUE {
            return Err(PoolError::ValueTooLong { len, max: MAX_VALUE });
        }
        self.writer_slot()?;
        let mut blocks = Vec::new();
        match self.put_blocks(ep, placement, bytes, &mut blocks).await {
            Ok(addr) => Ok(ValueRef { addr, len, hash: hash_of(bytes) }),
            Err(error) => {
                for (addr, size) in blocks {
                    self.free(ep, addr, size).await?;
                }
                Err(error)
            }
        }
    }

    /// Allocates and writes; every allocated block is in `blocks` whatever happens.
    async fn put_blocks<E: Endpoint>(
        &self,
        ep: &E,
        placement: Placement,
        bytes: &[u8],
        blocks: &mut Vec<(GlobalAddr, u64)>,
    ) -> Result<GlobalAddr> {
        if bytes.is_empty() {
            return Ok(GlobalAddr::NULL);
        }
        let shape = Shape { len: bytes.len() as u64, max_block: self.max_block() };
        if shape.is_one_block() {
            let addr = self.alloc(ep, placement, shape.len).await?;
            blocks.push((addr, shape.len));
            write_pieces(ep, &[addr], bytes, shape).await?;
            return Ok(addr);
        }
        let list_at = self.alloc(ep, placement, shape.list_bytes()).await?;
        blocks.push((list_at, shape.list_bytes()));
        let mut list = vec![shape.len, 0];
        let mut pieces = Vec::with_capacity(shape.pieces());
        for piece in 0..shape.pieces() {
            let addr = self.alloc(ep, placement, shape.piece_len(piece)).await?;
            blocks.push((addr, shape.piece_len(piece)));
            list.push(addr.raw());
            pieces.push(addr);
        }
        write_pieces(ep, &pieces, bytes, shape).await?;
        list[1] = checksum(&list[LIST_HEADER..], shape.len);
        write_words(ep, list_at, &list).await?;
        Ok(list_at)
    }

    /// Replaces the contents of `out` by the value.
    ///
    /// # Errors
    /// [`PoolError::ValueChanged`] if other bytes lie there now, in which case the caller looks up its reference
    /// again; [`PoolError::Corrupt`] if there can be no value there at all.
    pub async fn get_value<E: Endpoint>(&self, ep: &E, value: ValueRef, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.append_value(ep, value, out).await
    }

    /// Appends the value to `out`, which is as before if that fails.
    ///
    /// # Errors
    /// As for [`Pool::get_value`].
    pub async fn append_value<E: Endpoint>(&self, ep: &E, value: ValueRef, out: &mut Vec<u8>) -> Result<()> {
        let pieces = self.pieces_of(ep, value).await?;
        let start = out.len();
        out.reserve(value.len as usize);
        let shape = Shape { len: value.len, max_block: self.max_block() };
        let read = read_pieces(ep, &pieces, shape, out).await;
        if read.is_ok() && hash_of(&out[start..]) == value.hash {
            return Ok(());
        }
        out.truncate(start);
        read.and(Err(PoolError::ValueChanged { addr: value.addr }))
    }

    /// Replaces the bytes of `value` by as many others, in place, for owners that lock out or warn its readers.
    pub(crate) async fn overwrite_value<E: Endpoint>(
        &self,
        ep: &E,
        value: ValueRef,
        bytes: &[u8],
    ) -> Result<ValueRef> {
        assert_eq!(value.len, bytes.len() as u64, "a value keeps its length when it is overwritten");
        let pieces = self.pieces_of(ep, value).await?;
        write_pieces(ep, &pieces, bytes, Shape { len: value.len, max_block: self.max_block() }).await?;
        Ok(ValueRef { hash: hash_of(bytes), ..value })
    }

    /// Frees the blocks of the value.
    ///
    /// # Errors
    /// [`PoolError::ValueChanged`] or [`PoolError::Corrupt`] if the blocks of the value cannot be told, in which case
    /// none is freed; those of [`Pool::free`].
    pub async fn free_value<E: Endpoint>(&self, ep: &E, value: ValueRef) -> Result<()> {
        let mut blocks = Vec::new();
        self.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await?;
        for (addr, size) in blocks {
            self.free(ep, addr, size).await?;
        }
        Ok(())
    }

    /// Calls `visit` with address and bytes of each block of the value. The bytes are those asked for at allocation;
    /// [`Pool::visit_allocated`] reports them rounded up to the size class.
    ///
    /// # Errors
    /// [`PoolError::ValueChanged`] or [`PoolError::Corrupt`] if the blocks of the value cannot be told.
    pub async fn visit_value_blocks<E: Endpoint>(
        &self,
        ep: &E,
        value: ValueRef,
        mut visit: impl FnMut(GlobalAddr, u64),
    ) -> Result<()> {
        let pieces = self.pieces_of(ep, value).await?;
        let shape = Shape { len: value.len, max_block: self.max_block() };
        if !shape.is_one_block() {
            visit(value.addr, shape.list_bytes());
        }
        for (piece, &addr) in pieces.iter().enumerate() {
            visit(addr, shape.piece_len(piece));
        }
        Ok(())
    }

    /// The blocks that hold the value's bytes, all of them within the chunks.
    async fn pieces_of<E: Endpoint>(&self, ep: &E, value: ValueRef) -> Result<Vec<GlobalAddr>> {
        if value.len == 0 {
            return Ok(Vec::new());
        }
        if usize::from(value.addr.server().0) >= self.servers() {
            self.learn(ep).await?;
        }
        let shape = Shape { len: value.len, max_block: self.max_block() };
        let addr = value.addr;
        if value.len > MAX_VALUE {
            return Err(PoolError::Corrupt { addr, reason: "a value is never that long" });
        }
        let first_len = if shape.is_one_block() { shape.len } else { shape.list_bytes() };
        if !self.can_be_block(addr, first_len) {
            return Err(PoolError::Corrupt { addr, reason: "no value can begin there" });
        }
        if shape.is_one_block() {
            return Ok(vec![addr]);
        }
        let list = read_words(ep, addr, shape.list_words()).await?;
        let changed = PoolError::ValueChanged { addr };
        if list[0] != shape.len || list[1] != checksum(&list[LIST_HEADER..], shape.len) {
            return Err(changed);
        }
        let pieces = list[LIST_HEADER..].iter().enumerate().map(|(piece, &raw)| {
            GlobalAddr::from_raw(raw).filter(|&at| self.can_be_block(at, shape.piece_len(piece)))
        });
        pieces.collect::<Option<Vec<_>>>().ok_or(changed)
    }

    /// Whether a block of `size` bytes may lie at `addr`.
    pub(crate) fn can_be_block(&self, addr: GlobalAddr, size: u64) -> bool {
        let Ok(server) = self.server(addr.server()) else { return false };
        server.class_of(size).is_ok_and(|class| server.geometry.locate(addr, class).is_ok())
    }

    /// Bytes of the largest block that every memory server has.
    pub fn max_block(&self) -> u64 {
        let largest = self.inner.servers.iter().map(|server| server.geometry.max_block());
        largest.min().expect("a pool has a memory server")
    }
}

/// Numbers of the pieces in groups that lie next to each other in the value and on one server.
fn chains(pieces: &[GlobalAddr]) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next;
        let server: MemoryServerId = pieces.get(start)?.server();
        let same = pieces[start..].iter().take(PIECES_PER_CHAIN).take_while(|piece| piece.server() == server);
        next += same.count();
        Some(start..next)
    })
}

fn buffer_for<E: Endpoint>(ep: &E, len: u64) -> PageBuf {
    let bytes = (len as usize).next_multiple_of(WORD);
    ep.buffer(bytes).with_window(0..bytes)
}

async fn write_pieces<E: Endpoint>(ep: &E, pieces: &[GlobalAddr], bytes: &[u8], shape: Shape) -> Result<()> {
    if let &[at] = pieces {
        let mut buf = buffer_for(ep, shape.len);
        buf.copy_from_bytes(bytes);
        ep.recycle(ep.write(at, buf).await?);
        return Ok(());
    }
    for group in chains(pieces) {
        let mut chain = Chain::new();
        for piece in group {
            let start = piece * shape.max_block as usize;
            let part = &bytes[start..start + shape.piece_len(piece) as usize];
            let mut buf = buffer_for(ep, part.len() as u64);
            buf.copy_from_bytes(part);
            chain = chain.write(pieces[piece], buf);
        }
        recycle(ep, ep.submit(chain).await?);
    }
    Ok(())
}

async fn read_pieces<E: Endpoint>(
    ep: &E,
    pieces: &[GlobalAddr],
    shape: Shape,
    out: &mut Vec<u8>,
) -> Result<()> {
    if let &[at] = pieces {
        let buf = ep.read(at, buffer_for(ep, shape.len)).await?;
        buf.append_bytes_to(shape.len as usize, out);
        ep.recycle(buf);
        return Ok(());
    }
    for group in chains(pieces) {
        let reads = group.clone().fold(Chain::new(), |chain, piece| {
            chain.read(pieces[piece], buffer_for(ep, shape.piece_len(piece)))
        });
        let results = ep.submit(reads).await?;
        for (piece, result) in group.zip(&results) {
            if let VerbResult::Buf(buf) = result {
                buf.append_bytes_to(shape.piece_len(piece) as usize, out);
            }
        }
        recycle(ep, results);
    }
    Ok(())
}

fn recycle<E: Endpoint>(ep: &E, results: Vec<VerbResult>) {
    for result in results {
        if let VerbResult::Buf(buf) = result {
            ep.recycle(buf);
        }
    }
}
