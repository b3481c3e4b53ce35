//! Long values, out of line: bytes in separate blocks, referred to by address, length and hash.
//!
//! A value that fits the largest block is one block. A longer one is a list block,
//! `[length][checksum][addresses..]`, with pieces of the largest block size. Values are not changed in place.
//! A replaced value is freed at once, although it may still be read: the hash then fails, and the reader
//! looks up the reference again.

use pando_fabric::{Chain, Endpoint, GlobalAddr, MemoryServerId, PageBuf, VerbResult, WORD};

use crate::alloc::Placement;
use crate::error::{PoolError, Result};
use crate::io::{checksum, read_words, write_words};
use crate::pool::Pool;

/// Maximum length of a value in bytes.
pub const MAX_VALUE: u64 = 16 << 20;
/// Words of a list block before its addresses.
const LIST_HEADER: usize = 2;
/// Pieces moved by one chain.
const PIECES_PER_CHAIN: usize = 32;

/// Number of failed reads of one reference after which the value counts as corrupt.
const READS_MAX: u32 = 3;

/// Failed reads of one operation, which found other bytes than the reference says. A replaced value is no
/// longer referred to, so if the reference stays the same, the bytes are wrong.
#[derive(Debug, Default)]
pub struct FailedReads {
    last: Option<ValueRef>,
    count: u32,
}

impl FailedReads {
    /// Records that reading `value` gave [`PoolError::ValueChanged`]; the caller looks up its reference
    /// again.
    ///
    /// # Errors
    /// [`PoolError::Corrupt`] if several such reads had the same reference.
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

/// Reference to a long value: its address, length and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ValueRef {
    /// Its block or its list block; [`GlobalAddr::NULL`] for an empty value.
    pub addr: GlobalAddr,
    /// Length in bytes.
    pub len: u64,
    /// XXH3 of the bytes, seeded with the length.
    pub hash: u64,
}

impl ValueRef {
    pub fn to_words(self) -> [u64; 3] {
        [self.addr.raw(), self.len, self.hash]
    }

    /// Decodes a reference; `None` if no pool could have produced the words.
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

/// Layout of a value of `len` bytes on a server whose largest block has `max_block` bytes.
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

    /// Length of piece `piece` in bytes.
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
    /// [`PoolError::ValueTooLong`] beyond [`MAX_VALUE`]; errors of [`Pool::alloc`], after which no part of
    /// the value stays allocated.
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

    /// Allocates and writes. Every allocated block is in `blocks`, even after an error.
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

    /// Reads the value into `out`, replacing its contents.
    ///
    /// # Errors
    /// [`PoolError::ValueChanged`] if the bytes there are other ones now, in which case the caller looks up
    /// its reference again; [`PoolError::Corrupt`] if no value can be there.
    pub async fn get_value<E: Endpoint>(&self, ep: &E, value: ValueRef, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        self.append_value(ep, value, out).await
    }

    /// Appends the value to `out`, which is unchanged after an error.
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

    /// Overwrites `value` in place with as many bytes, for owners that exclude or warn its readers.
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
    /// [`PoolError::ValueChanged`] or [`PoolError::Corrupt`] if the blocks of the value cannot be determined,
    /// in which case none is freed; errors of [`Pool::free`].
    pub async fn free_value<E: Endpoint>(&self, ep: &E, value: ValueRef) -> Result<()> {
        let mut blocks = Vec::new();
        self.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await?;
        for (addr, size) in blocks {
            self.free(ep, addr, size).await?;
        }
        Ok(())
    }

    /// Calls `visit` with address and size of each block of the value. The size is the requested one;
    /// [`Pool::visit_allocated`] reports that of the size class.
    ///
    /// # Errors
    /// [`PoolError::ValueChanged`] or [`PoolError::Corrupt`] if the blocks of the value cannot be determined.
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

    /// Blocks that hold the value's bytes, all of them within the chunks.
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

    /// Size of the largest block that every memory server has, in bytes.
    pub fn max_block(&self) -> u64 {
        let largest = self.inner.servers.iter().map(|server| server.geometry.max_block());
        largest.min().expect("a pool has a memory server")
    }
}

/// Groups of consecutive pieces on one server.
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
