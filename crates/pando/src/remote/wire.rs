//! Frames of the operation port: what a client asks of a compute server, and how it is answered.
//!
//! A connection carries requests one way and replies the other, both in order, so neither has a number. A request is a
//! header of 16 bytes and a body, a reply a header of 8 bytes and a body; all numbers are little-endian. `docs/operations.md`
//! draws them. Decoding never panics and never looks beyond what is there: whatever bytes come, the answer is a request,
//! "more bytes, please", or [`Malformed`], after which the connection is closed. What is a request comes back bit by bit
//! when it is written again.

use std::ops::Bound;

use pando_dex::ScanRange;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use super::wire_reply::{
    Described, Entries, ErrorCode, Opened, Page, Reply, ReplyEncoder, Values, decode_reply, put_entry,
    put_value,
};

/// Bytes of a request besides its body.
pub const REQUEST_HEADER: usize = size_of::<RequestHeader>();
/// Bytes of a reply besides its body.
pub const REPLY_HEADER: usize = super::wire_reply::HEADER;
/// Bytes of a key at most.
pub const KEY_MAX: usize = 64 << 10;
/// Bytes that the body of a request may have unless a server says otherwise: the longest value with the longest key.
pub const BODY_MAX: u32 = (16 << 20) + 2 * KEY_MAX as u32;
/// Bytes after which an answer of many values or entries ends.
pub const ANSWER_BYTES: usize = 1 << 20;
/// Bytes that the body of a reply may have: those, one more entry, and where a scan goes on.
pub const REPLY_MAX: u32 = ANSWER_BYTES as u32 + BODY_MAX + 2 * KEY_MAX as u32;
/// A limit of a scan that is none.
pub const UNLIMITED: u32 = u32::MAX;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct RequestHeader {
    op: u8,
    /// Of a compare-and-swap, what is there; of a scan, its bounds and direction; else 0.
    flags: u8,
    zero: U16,
    /// Bytes of the body.
    len: U32,
    /// Bytes of the key, or of a scan's low bound, at the beginning of the body.
    key_len: U32,
    /// Bytes of the expected value, the limit of a scan, the number of keys; else 0.
    extra: U32,
}

const _: () = assert!(REQUEST_HEADER == 16);

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Op {
    Open = 1,
    Routes = 2,
    Ping = 3,
    Get = 4,
    Put = 5,
    Insert = 6,
    Update = 7,
    Remove = 8,
    CompareAndSwap = 9,
    MultiGet = 10,
    Scan = 11,
    Describe = 12,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Open,
        Self::Routes,
        Self::Ping,
        Self::Get,
        Self::Put,
        Self::Insert,
        Self::Update,
        Self::Remove,
        Self::CompareAndSwap,
        Self::MultiGet,
        Self::Scan,
        Self::Describe,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == byte)
    }

    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Routes => "routes",
            Self::Ping => "ping",
            Self::Get => "get",
            Self::Put => "put",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Remove => "remove",
            Self::CompareAndSwap => "compare_and_swap",
            Self::MultiGet => "multi_get",
            Self::Scan => "scan",
            Self::Describe => "describe",
        }
    }
}

/// Bytes that are no request or no reply. What follows them is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    #[error("there is no operation {0}")]
    UnknownOp(u8),
    #[error("a field that must be 0 is not")]
    NotZero,
    #[error("{len} bytes are more than the {max} that a body may have")]
    TooLong { len: u32, max: u32 },
    #[error("the lengths in a request {0:?} do not go together")]
    WrongLength(Op),
    #[error("a request {0:?} has flags that mean nothing")]
    UnknownFlags(Op),
    #[error("a name that is no text")]
    NoText,
    #[error("a reply has status {0}")]
    UnknownStatus(u8),
    #[error("a reply does not belong to its request")]
    WrongReply,
}

/// A request as it lies in the bytes that came.
#[derive(Clone, Copy, Debug)]
pub enum Request<'b> {
    /// The first one on a connection; answered like `Routes`.
    Open {
        name: &'b str,
    },
    /// Which keys the process owns.
    Routes,
    Ping,
    /// Which index is served, and what is said of it. It may come before `Open`.
    Describe,
    Get {
        key: &'b [u8],
    },
    Put {
        key: &'b [u8],
        value: &'b [u8],
    },
    Insert {
        key: &'b [u8],
        value: &'b [u8],
    },
    Update {
        key: &'b [u8],
        value: &'b [u8],
    },
    Remove {
        key: &'b [u8],
    },
    CompareAndSwap {
        key: &'b [u8],
        expected: Option<&'b [u8]>,
        new: Option<&'b [u8]>,
    },
    MultiGet(Keys<'b>),
    /// A limit of [`UNLIMITED`] is none.
    Scan {
        low: Bound<&'b [u8]>,
        high: Bound<&'b [u8]>,
        limit: u32,
        reverse: bool,
    },
}

/// The keys of a `MultiGet`, all of them whole.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'b> {
    count: u32,
    bytes: &'b [u8],
}

impl Keys<'_> {
    pub fn len(&self) -> usize {
        self.count as usize
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

impl<'b> Iterator for Keys<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        let (key, rest) = split_counted(self.bytes)?;
        self.bytes = rest;
        self.count -= 1;
        Some(key)
    }
}

/// Bytes behind their length, and what follows them.
pub(super) fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// Flags of a `CompareAndSwap`.
const HAS_EXPECTED: u8 = 1;
const HAS_NEW: u8 = 2;
/// Flags of a `Scan`, besides the kinds of its bounds.
const REVERSE: u8 = 16;
const HIGH_SHIFT: u8 = 2;

/// Kinds of bounds.
fn kind_of<T>(bound: &Bound<T>) -> u8 {
    match bound {
        Bound::Unbounded => 0,
        Bound::Included(_) => 1,
        Bound::Excluded(_) => 2,
    }
}

pub(super) fn bound_of(kind: u8, key: &[u8]) -> Option<Bound<&[u8]>> {
    match kind {
        0 if key.is_empty() => Some(Bound::Unbounded),
        1 => Some(Bound::Included(key)),
        2 => Some(Bound::Excluded(key)),
        _ => None,
    }
}

fn key_of<'b>(bound: &Bound<&'b [u8]>) -> &'b [u8] {
    match bound {
        Bound::Unbounded => &[],
        Bound::Included(key) | Bound::Excluded(key) => key,
    }
}

impl<'b> Request<'b> {
    /// A scan as the facade describes it.
    pub fn scan(range: &ScanRange<'b>) -> Self {
        let limit = u32::try_from(range.limit).unwrap_or(UNLIMITED);
        Self::Scan { low: range.low, high: range.high, limit, reverse: range.reverse }
    }

    pub fn op(&self) -> Op {
        match self {
            Self::Open { .. } => Op::Open,
            Self::Routes => Op::Routes,
            Self::Ping => Op::Ping,
            Self::Describe => Op::Describe,
            Self::Get { .. } => Op::Get,
            Self::Put { .. } => Op::Put,
            Self::Insert { .. } => Op::Insert,
            Self::Update { .. } => Op::Update,
            Self::Remove { .. } => Op::Remove,
            Self::CompareAndSwap { .. } => Op::CompareAndSwap,
            Self::MultiGet(_) => Op::MultiGet,
            Self::Scan { .. } => Op::Scan,
        }
    }

    /// Bytes of its body, which is to be no longer than a server takes: lengths travel as 32 bits.
    pub fn body_len(&self) -> usize {
        match self {
            Self::Open { name } => name.len(),
            Self::Routes | Self::Ping | Self::Describe => 0,
            Self::Get { key } | Self::Remove { key } => key.len(),
            Self::Put { key, value } | Self::Insert { key, value } | Self::Update { key, value } => {
                key.len() + value.len()
            }
            Self::CompareAndSwap { key, expected, new } => {
                key.len() + expected.map_or(0, <[u8]>::len) + new.map_or(0, <[u8]>::len)
            }
            Self::MultiGet(keys) => keys.bytes.len(),
            Self::Scan { low, high, .. } => key_of(low).len() + key_of(high).len(),
        }
    }

    /// Appends the request to `out`. Keys of a `MultiGet` that are not together yet are written by [`put_keys`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (flags, key_len, extra) = self.numbers();
        put_header(out, self.op(), flags, self.body_len(), (key_len, extra));
        match *self {
            Self::Open { name } => out.extend_from_slice(name.as_bytes()),
            Self::Routes | Self::Ping | Self::Describe => {}
            Self::Get { key } | Self::Remove { key } => out.extend_from_slice(key),
            Self::Put { key, value } | Self::Insert { key, value } | Self::Update { key, value } => {
                out.extend_from_slice(key);
                out.extend_from_slice(value);
            }
            Self::CompareAndSwap { key, expected, new } => {
                out.extend_from_slice(key);
                out.extend_from_slice(expected.unwrap_or_default());
                out.extend_from_slice(new.unwrap_or_default());
            }
            Self::MultiGet(keys) => out.extend_from_slice(keys.bytes),
            Self::Scan { low, high, .. } => {
                out.extend_from_slice(key_of(&low));
                out.extend_from_slice(key_of(&high));
            }
        }
    }

    /// Flags, length of the key, and what else is in the header.
    fn numbers(&self) -> (u8, usize, u32) {
        match self {
            Self::Open { .. } | Self::Routes | Self::Ping | Self::Describe => (0, 0, 0),
            Self::Get { key } | Self::Remove { key } => (0, key.len(), 0),
            Self::Put { key, .. } | Self::Insert { key, .. } | Self::Update { key, .. } => (0, key.len(), 0),
            Self::CompareAndSwap { key, expected, new } => {
                let flags = HAS_EXPECTED * u8::from(expected.is_some()) + HAS_NEW * u8::from(new.is_some());
                (flags, key.len(), expected.map_or(0, <[u8]>::len) as u32)
            }
            Self::MultiGet(keys) => (0, 0, keys.count),
            Self::Scan { low, high, limit, reverse } => {
                let flags = kind_of(low) | (kind_of(high) << HIGH_SHIFT) | (REVERSE * u8::from(*reverse));
                (flags, key_of(low).len(), *limit)
            }
        }
    }
}

fn put_header(out: &mut Vec<u8>, op: Op, flags: u8, len: usize, (key_len, extra): (usize, u32)) {
    let header = RequestHeader {
        op: op as u8,
        flags,
        zero: 0.into(),
        len: (len as u32).into(),
        key_len: (key_len as u32).into(),
        extra: extra.into(),
    };
    out.extend_from_slice(header.as_bytes());
}

/// Appends a `MultiGet` of `keys`.
pub fn put_keys<'k>(out: &mut Vec<u8>, keys: impl Iterator<Item = &'k [u8]>) {
    let start = out.len();
    put_header(out, Op::MultiGet, 0, 0, (0, 0));
    let mut count = 0;
    for key in keys {
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(key);
        count += 1;
    }
    let len = out.len() - start - REQUEST_HEADER;
    let mut header = Vec::with_capacity(REQUEST_HEADER);
    put_header(&mut header, Op::MultiGet, 0, len, (0, count));
    out[start..][..REQUEST_HEADER].copy_from_slice(&header);
}

/// Bytes of the request that `bytes` begin with, whole or not, if its header is there.
pub fn request_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = RequestHeader::ref_from_prefix(bytes).ok()?;
    Some(REQUEST_HEADER + header.len.get() as usize)
}

/// The request at the front of `bytes` and how many of them it takes; `None` if more are needed.
///
/// # Errors
/// [`Malformed`] as soon as the header says that no bytes that might follow make a request of it, or when the body is there and
/// does not.
pub fn decode_request(bytes: &[u8], body_max: u32) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    let Ok((header, rest)) = RequestHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let op = Op::from_byte(header.op).ok_or(Malformed::UnknownOp(header.op))?;
    let len = header.len.get();
    if len > body_max {
        return Err(Malformed::TooLong { len, max: body_max });
    }
    check_header(op, header)?;
    let Some(body) = rest.get(..len as usize) else { return Ok(None) };
    let (key, more) = body.split_at(header.key_len.get() as usize);
    let request = match op {
        Op::Open => Request::Open { name: std::str::from_utf8(body).map_err(|_| Malformed::NoText)? },
        Op::Routes => Request::Routes,
        Op::Ping => Request::Ping,
        Op::Describe => Request::Describe,
        Op::Get => Request::Get { key },
        Op::Remove => Request::Remove { key },
        Op::Put => Request::Put { key, value: more },
        Op::Insert => Request::Insert { key, value: more },
        Op::Update => Request::Update { key, value: more },
        Op::CompareAndSwap => {
            let (expected, new) = more.split_at(header.extra.get() as usize);
            Request::CompareAndSwap {
                key,
                expected: (header.flags & HAS_EXPECTED != 0).then_some(expected),
                new: (header.flags & HAS_NEW != 0).then_some(new),
            }
        }
        Op::MultiGet => Request::MultiGet(checked_keys(header.extra.get(), body)?),
        Op::Scan => {
            let unknown = Malformed::UnknownFlags(op);
            Request::Scan {
                low: bound_of(header.flags & 3, key).ok_or(unknown)?,
                high: bound_of(header.flags >> HIGH_SHIFT & 3, more).ok_or(unknown)?,
                limit: header.extra.get(),
                reverse: header.flags & REVERSE != 0,
            }
        }
    };
    Ok(Some((request, REQUEST_HEADER + len as usize)))
}

/// Whether the numbers of a header go together, so that its body can be cut by them.
fn check_header(op: Op, header: &RequestHeader) -> Result<(), Malformed> {
    let (len, key_len, extra) = (header.len.get(), header.key_len.get(), header.extra.get());
    let (has_key, has_more, has_extra) = match op {
        Op::Open => (false, true, false),
        Op::Routes | Op::Ping | Op::Describe => (false, false, false),
        Op::Get | Op::Remove => (true, false, false),
        Op::Put | Op::Insert | Op::Update => (true, true, false),
        Op::CompareAndSwap | Op::Scan => (true, true, true),
        Op::MultiGet => (false, true, true),
    };
    let flags_max = match op {
        Op::CompareAndSwap => HAS_EXPECTED | HAS_NEW,
        Op::Scan => REVERSE | 15,
        _ => 0,
    };
    if header.zero.get() != 0 || (!has_extra && extra != 0) {
        return Err(Malformed::NotZero);
    }
    if header.flags & !flags_max != 0 {
        return Err(Malformed::UnknownFlags(op));
    }
    let wrong = Malformed::WrongLength(op);
    let more = len.checked_sub(key_len).ok_or(wrong)?;
    let is_long = key_len as usize > KEY_MAX || (op == Op::Scan && more as usize > KEY_MAX);
    if (key_len != 0 && !has_key) || (more != 0 && !has_more) || is_long {
        return Err(wrong);
    }
    if op == Op::CompareAndSwap {
        let new = more.checked_sub(extra).ok_or(wrong)?;
        let (no_expected, no_new) = (header.flags & HAS_EXPECTED == 0, header.flags & HAS_NEW == 0);
        if (no_expected && extra != 0) || (no_new && new != 0) {
            return Err(wrong);
        }
    }
    Ok(())
}

/// As many keys as `count` says, all of them whole and none too long, and nothing else.
fn checked_keys(count: u32, bytes: &[u8]) -> Result<Keys<'_>, Malformed> {
    let wrong = Malformed::WrongLength(Op::MultiGet);
    let mut rest = bytes;
    for _ in 0..count {
        let (key, after) = split_counted(rest).ok_or(wrong)?;
        if key.len() > KEY_MAX {
            return Err(wrong);
        }
        rest = after;
    }
    if rest.is_empty() { Ok(Keys { count, bytes }) } else { Err(wrong) }
}
