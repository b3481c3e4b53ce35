//! Frames of the TCP fabric: requests of clients and replies of memory servers.
//!
//! A connection carries requests in one direction and replies in the other, both in order, so neither has a
//! number. A request is a header of 16 bytes and a body, a reply a header of 8 bytes and a body; all numbers
//! are little-endian. `docs/fabric.md` has drawings. Decoding never panics and never reads beyond the bytes
//! at hand. It returns a request, the need for more bytes, or [`Malformed`], after which the connection is
//! closed.

pub use pando_fabric::codec::REPLY_HEADER;
use pando_fabric::codec::{self, Put, Reader, ReplyFrame, split_reply};
use pando_fabric::{FabricError, GlobalAddr, MAX_OFFSET, MemoryServerId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, TryFromBytes, Unaligned};

/// Version of this protocol. Peers with different versions do not talk to each other.
pub const VERSION: u16 = 4;
/// Length of a request's header in bytes.
pub const REQUEST_HEADER: usize = size_of::<RequestHeader>();
/// Default maximum length of a body, and of the answer to a READ.
pub const BODY_MAX: u32 = 4 << 20;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct RequestHeader {
    op: u8,
    zero: u8,
    /// Kind of a call or of a message to the group, otherwise 0.
    kind: U16,
    /// Bytes that a READ asks for, otherwise the length of the body.
    len: U32,
    offset: U64,
}

const _: () = assert!(REQUEST_HEADER == 16);

/// Reason why bytes are not a request or a reply.
pub type Malformed = codec::Malformed<Op>;

/// Operation of a request.
#[derive(TryFromBytes, KnownLayout, Immutable, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    Read = 1,
    Write = 2,
    CompareSwap = 3,
    MaskedCompareSwap = 4,
    FetchAdd = 5,
    Call = 6,
    Chain = 7,
    Reserve = 8,
    Persist = 9,
    Ping = 10,
    Fence = 11,
    Lock = 12,
    Present = 13,
    Pair = 14,
    Group = 15,
}

impl Op {
    fn from_byte(byte: u8) -> Option<Self> {
        Self::try_read_from_bytes(&[byte]).ok()
    }

    /// Whether the operation may be a verb of a chain.
    fn is_chained(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::CompareSwap | Self::FetchAdd)
    }

    /// Whether the operation reads or changes words of the server's memory.
    pub(crate) fn is_one_sided(self) -> bool {
        self.is_chained() || matches!(self, Self::MaskedCompareSwap | Self::Chain)
    }

    /// Whether a late execution may change state that others see.
    pub(crate) fn may_change(self) -> bool {
        matches!(
            self,
            Self::Write
                | Self::CompareSwap
                | Self::MaskedCompareSwap
                | Self::FetchAdd
                | Self::Call
                | Self::Chain
                | Self::Lock
        )
    }

    /// Whether the operation has an address; a chain's verbs each have their own.
    fn has_offset(self) -> bool {
        !matches!(
            self,
            Self::Call
                | Self::Chain
                | Self::Fence
                | Self::Lock
                | Self::Present
                | Self::Ping
                | Self::Pair
                | Self::Group
        )
    }

    /// Length of the body in bytes, if it is fixed.
    fn body_len(self) -> Option<u32> {
        match self {
            Self::CompareSwap | Self::Fence => Some(16),
            Self::MaskedCompareSwap => Some(32),
            Self::FetchAdd | Self::Reserve | Self::Persist | Self::Present => Some(8),
            Self::Ping | Self::Lock => Some(0),
            Self::Read | Self::Write | Self::Call | Self::Chain | Self::Pair | Self::Group => None,
        }
    }
}

/// A request within received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    Read {
        offset: u64,
        len: u32,
    },
    Write {
        offset: u64,
        bytes: &'b [u8],
    },
    CompareSwap {
        offset: u64,
        expected: u64,
        new: u64,
    },
    MaskedCompareSwap {
        offset: u64,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    },
    FetchAdd {
        offset: u64,
        add: u64,
    },
    Call {
        kind: u16,
        body: &'b [u8],
    },
    Chain(Verbs<'b>),
    Reserve {
        offset: u64,
        len: u64,
    },
    Persist {
        offset: u64,
        len: u64,
    },
    /// Fences off connection `link` of `process`, or all of its connections if `link` is 0: none of their
    /// later requests is executed.
    Fence {
        process: u64,
        link: u64,
    },
    /// Takes the lock of this memory server for this connection, with which the lock ends. The answer is 1;
    /// or 0 if another connection has it; or the number of the silent process from which it was taken over
    /// and which is fenced off here.
    Lock,
    /// Whether `process` is present. The answer is 1 or 0.
    Present {
        process: u64,
    },
    Ping,
    /// Asks for another way to the same memory, which ends with this connection. The body is opaque to this
    /// protocol.
    Pair {
        body: &'b [u8],
    },
    /// A message to the memory server as one of a group whose memory has copies.
    Group {
        kind: u16,
        body: &'b [u8],
    },
}

/// The verbs of a chain: a sequence of complete requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verbs<'b> {
    bytes: &'b [u8],
    body_max: u32,
}

impl<'b> Iterator for Verbs<'b> {
    type Item = Request<'b>;

    fn next(&mut self) -> Option<Request<'b>> {
        // The requests were checked when the chain was decoded.
        let (request, used) = decode_request(self.bytes, self.body_max).ok()??;
        self.bytes = &self.bytes[used..];
        Some(request)
    }
}

impl Request<'_> {
    pub fn op(&self) -> Op {
        match self {
            Self::Read { .. } => Op::Read,
            Self::Write { .. } => Op::Write,
            Self::CompareSwap { .. } => Op::CompareSwap,
            Self::MaskedCompareSwap { .. } => Op::MaskedCompareSwap,
            Self::FetchAdd { .. } => Op::FetchAdd,
            Self::Call { .. } => Op::Call,
            Self::Chain(_) => Op::Chain,
            Self::Reserve { .. } => Op::Reserve,
            Self::Persist { .. } => Op::Persist,
            Self::Fence { .. } => Op::Fence,
            Self::Lock => Op::Lock,
            Self::Present { .. } => Op::Present,
            Self::Ping => Op::Ping,
            Self::Pair { .. } => Op::Pair,
            Self::Group { .. } => Op::Group,
        }
    }

    /// Whether the request is executed on the server's memory, or does nothing.
    pub(crate) fn is_of_memory(&self) -> bool {
        !matches!(self.op(), Op::Fence | Op::Lock | Op::Present | Op::Pair | Op::Group)
    }

    /// Appends the request to `out`. [`ChainEncoder`] writes a chain verb by verb.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let op = self.op();
        match *self {
            Self::Read { offset, len } => put_header(out, op, 0, len, offset),
            Self::Write { offset, bytes } => put_request(out, op, 0, offset, bytes),
            Self::CompareSwap { offset, expected, new } => put_words(out, op, offset, &[expected, new]),
            Self::MaskedCompareSwap { offset, expected, compare_mask, new, swap_mask } => {
                put_words(out, op, offset, &[expected, compare_mask, new, swap_mask]);
            }
            Self::FetchAdd { offset, add } => put_words(out, op, offset, &[add]),
            Self::Reserve { offset, len } | Self::Persist { offset, len } => {
                put_words(out, op, offset, &[len])
            }
            Self::Call { kind, body } | Self::Group { kind, body } => put_request(out, op, kind, 0, body),
            Self::Chain(Verbs { bytes: body, .. }) | Self::Pair { body } => put_request(out, op, 0, 0, body),
            Self::Fence { process, link } => put_words(out, op, 0, &[process, link]),
            Self::Present { process } => put_words(out, op, 0, &[process]),
            Self::Ping | Self::Lock => put_request(out, op, 0, 0, &[]),
        }
    }
}

/// Writes a chain verb by verb.
pub struct ChainEncoder<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> ChainEncoder<'o> {
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        put_header(out, Op::Chain, 0, 0, 0);
        Self { out, start }
    }

    /// The output, to which the next verb is appended.
    pub fn out(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Fills in the length of the chain.
    pub fn finish(self) {
        let len = (self.out.len() - self.start - REQUEST_HEADER) as u32;
        self.out.set_u32(self.start + std::mem::offset_of!(RequestHeader, len), len);
    }
}

fn put_header(out: &mut Vec<u8>, op: Op, kind: u16, len: u32, offset: u64) {
    let header =
        RequestHeader { op: op as u8, zero: 0, kind: kind.into(), len: len.into(), offset: offset.into() };
    out.extend_from_slice(header.as_bytes());
}

fn put_request(out: &mut Vec<u8>, op: Op, kind: u16, offset: u64, body: &[u8]) {
    put_header(out, op, kind, body.len() as u32, offset);
    out.extend_from_slice(body);
}

/// Appends the header of a WRITE; the caller appends its `len` bytes.
pub fn put_write_header(out: &mut Vec<u8>, offset: u64, len: u32) {
    put_header(out, Op::Write, 0, len, offset);
}

fn put_words(out: &mut Vec<u8>, op: Op, offset: u64, words: &[u64]) {
    put_header(out, op, 0, size_of_val(words) as u32, offset);
    words.iter().for_each(|word| out.put_u64(*word));
}

/// Length of the request at the front of `bytes`, once its header is complete.
pub fn request_len(bytes: &[u8]) -> Option<usize> {
    let (header, _) = RequestHeader::ref_from_prefix(bytes).ok()?;
    let body = if header.op == Op::Read as u8 { 0 } else { header.len.get() as usize };
    Some(REQUEST_HEADER + body)
}

/// Decodes the request at the front of `bytes`; returns it with its length, or `None` if more bytes are
/// needed.
///
/// # Errors
/// [`Malformed`] as soon as the bytes cannot become a request, whatever follows.
pub fn decode_request(bytes: &[u8], body_max: u32) -> Result<Option<(Request<'_>, usize)>, Malformed> {
    let Ok((header, rest)) = RequestHeader::ref_from_prefix(bytes) else { return Ok(None) };
    let op = Op::from_byte(header.op).ok_or(Malformed::UnknownOp(header.op))?;
    let (len, offset) = (header.len.get(), header.offset.get());
    let rest_is_zero =
        (header.kind.get() == 0 || matches!(op, Op::Call | Op::Group)) && (offset == 0 || op.has_offset());
    if header.zero != 0 || !rest_is_zero {
        return Err(Malformed::NotZero);
    }
    if len > body_max {
        return Err(Malformed::TooLong { len, max: body_max });
    }
    if op.body_len().is_some_and(|expected| expected != len) {
        return Err(Malformed::WrongLength(op));
    }
    let body_len = if op == Op::Read { 0 } else { len as usize };
    let Some(body) = rest.get(..body_len) else { return Ok(None) };
    let mut words = Reader::new(body);
    let mut word = || words.u64();
    let request = match op {
        Op::Read => Request::Read { offset, len },
        Op::Write => Request::Write { offset, bytes: body },
        Op::CompareSwap => Request::CompareSwap { offset, expected: word()?, new: word()? },
        Op::MaskedCompareSwap => Request::MaskedCompareSwap {
            offset,
            expected: word()?,
            compare_mask: word()?,
            new: word()?,
            swap_mask: word()?,
        },
        Op::FetchAdd => Request::FetchAdd { offset, add: word()? },
        Op::Call => Request::Call { kind: header.kind.get(), body },
        Op::Chain => Request::Chain(checked_chain(body, body_max)?),
        Op::Reserve => Request::Reserve { offset, len: word()? },
        Op::Persist => Request::Persist { offset, len: word()? },
        Op::Fence => Request::Fence { process: word()?, link: word()? },
        Op::Lock => Request::Lock,
        Op::Present => Request::Present { process: word()? },
        Op::Ping => Request::Ping,
        Op::Pair => Request::Pair { body },
        Op::Group => Request::Group { kind: header.kind.get(), body },
    };
    Ok(Some((request, REQUEST_HEADER + body_len)))
}

/// Checks that the verbs of a chain are complete, may be chained, and return at most `body_max` bytes
/// together.
fn checked_chain(bytes: &[u8], body_max: u32) -> Result<Verbs<'_>, Malformed> {
    let (mut left, mut answered) = (Reader::new(bytes), 0u64);
    while let Some(&op) = left.rest().first() {
        // Check the operation first, so that chains cannot nest.
        if let Some(op) = Op::from_byte(op).filter(|op| !op.is_chained()) {
            return Err(Malformed::NotChained(op));
        }
        let decoded = decode_request(left.rest(), body_max)?;
        let (request, used) = decoded.ok_or_else(|| left.bad("a chain ends within a verb"))?;
        answered += match request {
            Request::Read { len, .. } => u64::from(len),
            Request::Write { .. } => 0,
            _ => 8,
        };
        if answered > u64::from(body_max) {
            return Err(Malformed::TooLong { len: answered.min(u32::MAX.into()) as u32, max: body_max });
        }
        left.bytes(used)?;
    }
    Ok(Verbs { bytes, body_max })
}

/// Result of a request.
#[derive(TryFromBytes, KnownLayout, Immutable, Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    Done = 0,
    OutOfRegion = 1,
    Misaligned = 2,
    ReadOnly = 3,
    NoSpace = 4,
    Refused = 5,
    System = 6,
    /// Not executed, because of the view of the memory servers.
    OtherView = 7,
}

/// Writes one reply: its header, then the body that the caller appends to `out`.
pub struct ReplyEncoder(ReplyFrame);

impl ReplyEncoder {
    pub fn begin(out: &mut Vec<u8>, op: Op) -> Self {
        Self(ReplyFrame::begin(out, op as u8))
    }

    /// Ends the reply. Its body was appended to `out` since the beginning.
    pub fn finish(self, out: &mut [u8]) {
        self.0.finish(out, Status::Done as u8, 0);
    }

    /// Ends the reply with `error` in place of the body appended so far.
    pub fn fail(self, out: &mut Vec<u8>, error: &FabricError) {
        out.truncate(self.0.body());
        let status = put_error(out, error);
        self.0.finish(out, status as u8, 0);
    }
}

/// Appends three numbers (offset, length, length of the region) and a text.
fn put_error(out: &mut Vec<u8>, error: &FabricError) -> Status {
    let (status, at, len, region_len, text) = match error {
        FabricError::OutOfRegion { at, len, region_len } => {
            (Status::OutOfRegion, Some(at), *len as u64, *region_len, String::new())
        }
        FabricError::Misaligned { at, len } => (Status::Misaligned, Some(at), *len as u64, 0, String::new()),
        FabricError::ReadOnly { at, len } => (Status::ReadOnly, Some(at), *len as u64, 0, String::new()),
        FabricError::NoSpace { at, len, reason } => (Status::NoSpace, Some(at), *len, 0, reason.clone()),
        FabricError::NotConnected { reason, .. } => (Status::OtherView, None, 0, 0, reason.clone()),
        FabricError::Refused { op, reason, .. } => (Status::Refused, None, u64::from(*op), 0, reason.clone()),
        other => (Status::System, None, 0, 0, other.to_string()),
    };
    [at.map_or(0, |at| at.offset()), len, region_len].iter().for_each(|number| out.put_u64(*number));
    out.extend_from_slice(text.as_bytes());
    status
}

/// Text of another host, with control characters and characters that change the direction or order of text
/// escaped.
pub fn printable(text: &str) -> String {
    let is_dangerous = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_dangerous(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// Decodes the error in the body of a reply of memory server `server`.
fn error_of(server: MemoryServerId, status: Status, body: &[u8]) -> Result<FabricError, Malformed> {
    let mut body = Reader::new(body);
    let (offset, len, region_len) = (body.u64()?, body.u64()?, body.u64()?);
    let at = GlobalAddr::new(server, offset.min(MAX_OFFSET - 1));
    let reason = printable(&String::from_utf8_lossy(body.rest()));
    Ok(match status {
        Status::Done => return Err(Malformed::WrongReply),
        Status::OutOfRegion => FabricError::OutOfRegion { at, len: len as usize, region_len },
        Status::Misaligned => FabricError::Misaligned { at, len: len as usize },
        Status::ReadOnly => FabricError::ReadOnly { at, len: len as usize },
        Status::NoSpace => FabricError::NoSpace { at, len, reason },
        Status::Refused => FabricError::Refused { server, op: len as u16, reason },
        Status::System => FabricError::System { path: format!("memory server {server}"), reason },
        Status::OtherView => FabricError::NotConnected { server, reason },
    })
}

/// A decoded reply: the body, or the error.
pub type Reply<'b> = Result<&'b [u8], FabricError>;

/// Decodes the reply of `server` to a request `op` at the front of `bytes`; returns it with its length, or
/// `None` if more bytes are needed.
///
/// # Errors
/// [`Malformed`] if the bytes cannot be the reply.
pub fn decode_reply(
    bytes: &[u8],
    server: MemoryServerId,
    op: Op,
    body_max: u32,
) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
    let Some(raw) = split_reply(bytes, op as u8, Status::OtherView as u8, body_max)? else { return Ok(None) };
    let status = Status::try_read_from_bytes(&[raw.status]).ok();
    let status = status.ok_or(Malformed::UnknownStatus(raw.status))?;
    if raw.answer != 0 {
        return Err(Malformed::WrongReply);
    }
    let reply = if status == Status::Done { Ok(raw.body) } else { Err(error_of(server, status, raw.body)?) };
    Ok(Some((reply, raw.used)))
}
