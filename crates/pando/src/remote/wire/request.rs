//! Requests of the operation port.
//!
//! The lengths in a header are checked for consistency before the body is split by them. Encoding a decoded
//! request yields the same bytes.

use std::ops::Bound;

use pando_dex::ScanRange;
use pando_fabric::codec::{self, Put, Reader, text};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a request without its body.
pub const REQUEST_HEADER: usize = size_of::<RequestHeader>();
/// Longest key, in bytes.
pub const KEY_MAX: usize = 64 << 10;
/// Longest body of a request, in bytes, unless a server sets another limit: the longest value with the
/// longest key.
pub const BODY_MAX: u32 = (16 << 20) + 2 * KEY_MAX as u32;
/// A scan without a limit.
pub const UNLIMITED: u32 = u32::MAX;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, Default)]
#[repr(C)]
struct RequestHeader {
    op: u8,
    /// Values present in a compare-and-swap, or bounds and direction of a scan; otherwise 0.
    flags: u8,
    zero: U16,
    /// Bytes of the body.
    len: U32,
    /// Bytes of the key, or of a scan's low bound, at the start of the body.
    key_len: U32,
    /// Length of the expected value, limit of a scan, or number of keys; otherwise 0.
    extra: U32,
}

const _: () = assert!(REQUEST_HEADER == 16);

/// Kind of a request.
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
    /// All operations, in the order of their numbers.
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

    /// Name in metrics.
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

/// Reason why bytes are no valid request or reply.
pub type Malformed = codec::Malformed<Op>;

/// A decoded request; it borrows from the bytes received.
#[derive(Clone, Copy, Debug)]
pub enum Request<'b> {
    /// The first request on a connection; answered like `Routes`.
    Open {
        name: &'b str,
    },
    /// Asks which keys the process owns.
    Routes,
    Ping,
    /// Asks for the name and the description of the index that is served. May come before `Open`.
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
    /// [`UNLIMITED`] stands for no limit.
    Scan {
        low: Bound<&'b [u8]>,
        high: Bound<&'b [u8]>,
        limit: u32,
        reverse: bool,
    },
}

/// The checked keys of a `MultiGet`.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'b> {
    count: u32,
    left: Reader<'b>,
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
        let key = self.left.counted().ok()?;
        self.count -= 1;
        Some(key)
    }
}

/// Flags of a `CompareAndSwap`.
const HAS_EXPECTED: u8 = 1;
const HAS_NEW: u8 = 2;
/// Flags of a `Scan`, in addition to the kinds of its bounds.
const REVERSE: u8 = 16;
const HIGH_SHIFT: u8 = 2;

/// The kind of a bound, and its key.
pub(super) fn split_bound(bound: Bound<&[u8]>) -> (u8, &[u8]) {
    match bound {
        Bound::Unbounded => (0, &[]),
        Bound::Included(key) => (1, key),
        Bound::Excluded(key) => (2, key),
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

impl<'b> Request<'b> {
    /// The scan of a [`ScanRange`].
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

    /// Bytes of the body. The caller must check them against the server's limit, because lengths are sent as
    /// 32 bits.
    pub fn body_len(&self) -> usize {
        self.parts().2.iter().map(|part| part.len()).sum()
    }

    /// Appends the request to `out`. [`put_keys`] writes a `MultiGet` whose keys are not encoded yet.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (flags, extra, parts) = self.parts();
        let len = parts.iter().map(|part| part.len()).sum();
        put_header(out, self.op(), flags, len, parts[0].len(), extra);
        parts.iter().for_each(|part| out.extend_from_slice(part));
    }

    /// Flags and `extra` of the header, and the parts of the body; the first part is the key.
    fn parts(&self) -> (u8, u32, [&'b [u8]; 3]) {
        match *self {
            Self::Open { name } => (0, 0, [&[], name.as_bytes(), &[]]),
            Self::Routes | Self::Ping | Self::Describe => (0, 0, [&[]; 3]),
            Self::Get { key } | Self::Remove { key } => (0, 0, [key, &[], &[]]),
            Self::Put { key, value } | Self::Insert { key, value } | Self::Update { key, value } => {
                (0, 0, [key, value, &[]])
            }
            Self::CompareAndSwap { key, expected, new } => {
                let flags = HAS_EXPECTED * u8::from(expected.is_some()) + HAS_NEW * u8::from(new.is_some());
                let (expected, new) = (expected.unwrap_or_default(), new.unwrap_or_default());
                (flags, expected.len() as u32, [key, expected, new])
            }
            Self::MultiGet(keys) => (0, keys.count, [&[], keys.left.rest(), &[]]),
            Self::Scan { low, high, limit, reverse } => {
                let ((low_kind, low), (high_kind, high)) = (split_bound(low), split_bound(high));
                let flags = low_kind | (high_kind << HIGH_SHIFT) | (REVERSE * u8::from(reverse));
                (flags, limit, [low, high, &[]])
            }
        }
    }
}

fn put_header(out: &mut Vec<u8>, op: Op, flags: u8, len: usize, key_len: usize, extra: u32) {
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
    put_header(out, Op::MultiGet, 0, 0, 0, 0);
    let mut count = 0;
    for key in keys {
        out.put_counted(key);
        count += 1;
    }
    let len = out.len() - start - REQUEST_HEADER;
    out.set_u32(start + std::mem::offset_of!(RequestHeader, len), len as u32);
    out.set_u32(start + std::mem::offset_of!(RequestHeader, extra), count);
}

/// Length of the request at the front of `bytes`, once its header is complete; its body may be missing.
pub fn request_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = RequestHeader::ref_from_prefix(bytes).ok()?;
    Some(REQUEST_HEADER + header.len.get() as usize)
}

/// Decodes the request at the front of `bytes`; also returns the number of bytes that it takes. `None` if
/// more are needed.
///
/// # Errors
/// [`Malformed`] as soon as the header rules out a valid request, or when the complete body is invalid.
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
        Op::Open => Request::Open { name: text(body)? },
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

/// Checks that the numbers of a header are consistent, so that the body can be split by them.
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

/// Checks that a body consists of exactly `count` keys, none of them too long.
fn checked_keys(count: u32, bytes: &[u8]) -> Result<Keys<'_>, Malformed> {
    let wrong = Malformed::WrongLength(Op::MultiGet);
    let mut left = Reader::new(bytes);
    for _ in 0..count {
        if left.counted().map_err(|_| wrong)?.len() > KEY_MAX {
            return Err(wrong);
        }
    }
    left.end().map_err(|_| wrong)?;
    Ok(Keys { count, left: Reader::new(bytes) })
}
