//! Replies of the operation port, the other half of [`wire`](super::wire).
//!
//! A reply says which operation it answers, as a check, and how that ended: done, with an answer; keys that the process does
//! not own; or an error with a code, a sentence, and whether the operation may have been done all the same. Bodies are
//! written as their parts become known, and measured at the end.

use std::ops::Bound;

use pando_dex::KeyRange;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::wire::{Malformed, Op, bound_of, split_counted};
use crate::options::IndexLayout;

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct ReplyHeader {
    status: u8,
    /// The operation that is answered.
    op: u8,
    answer: u8,
    zero: u8,
    len: U32,
}

pub(super) const HEADER: usize = size_of::<ReplyHeader>();

const _: () = assert!(HEADER == 8);

/// Statuses.
const DONE: u8 = 0;
const NOT_OWNED: u8 = 1;
const FAILED: u8 = 2;
/// A length that says that there is no value.
const ABSENT: u32 = u32::MAX;

/// What kind of error an operation ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u16)]
pub enum ErrorCode {
    /// What was asked for is at fault: a key or a value that the index cannot hold, say.
    BadInput = 1,
    /// Memory servers have no room.
    Full = 2,
    /// There is no such index at this port.
    UnknownIndex = 3,
    /// The index is at other work, or closed.
    Unavailable = 4,
    /// Everything else: memory servers that do not answer, damage.
    Other = 5,
}

impl ErrorCode {
    fn of(number: u16) -> Self {
        [Self::BadInput, Self::Full, Self::UnknownIndex, Self::Unavailable]
            .into_iter()
            .find(|code| *code as u16 == number)
            .unwrap_or(Self::Other)
    }
}

/// What a server says of the index at its port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Grows whenever boundaries within the process move; begins anew when it opens the index anew.
    pub epoch: u64,
    pub layout: IndexLayout,
    /// The keys that the process owns, in order.
    pub ranges: Vec<KeyRange>,
}

/// What a server says of the index at its port, to who does not know the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub name: String,
    /// What the creator of the index said of it.
    pub description: Vec<u8>,
    /// Bytes of a node.
    pub node_size: u32,
    /// M: subtrees rooted at this level stand on one memory server.
    pub subtree_level: u8,
}

/// Values of many keys, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Values<'b>(&'b [u8]);

impl<'b> Iterator for Values<'b> {
    type Item = Option<&'b [u8]>;

    fn next(&mut self) -> Option<Option<&'b [u8]>> {
        if let Some((&ABSENT_BYTES, rest)) = self.0.split_first_chunk() {
            self.0 = rest;
            return Some(None);
        }
        let (value, rest) = split_counted(self.0)?;
        self.0 = rest;
        Some(Some(value))
    }
}

const ABSENT_BYTES: [u8; 4] = ABSENT.to_le_bytes();

/// Entries of a scan, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'b>(&'b [u8]);

impl<'b> Entries<'b> {
    /// Those of bytes that were entries before.
    pub(super) fn of(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(&self) -> &'b [u8] {
        self.0
    }
}

impl<'b> Iterator for Entries<'b> {
    type Item = (&'b [u8], &'b [u8]);

    fn next(&mut self) -> Option<(&'b [u8], &'b [u8])> {
        let (key, rest) = split_counted(self.0)?;
        let (value, rest) = split_counted(rest)?;
        self.0 = rest;
        Some((key, value))
    }
}

/// A part of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Page<'b> {
    pub entries: Entries<'b>,
    /// The bound from which the scan goes on, perhaps at another process; `None` if it is complete.
    pub next: Option<Bound<&'b [u8]>>,
}

/// A reply as it lies in the bytes that came.
#[derive(Clone, Debug)]
pub enum Reply<'b> {
    Opened(Opened),
    Described(Described),
    Pong,
    Value(Option<&'b [u8]>),
    /// Whether the key was there (`put`, `remove`), or whether something was changed (`insert`, `update`).
    Was(bool),
    /// What is there instead, if nothing was swapped.
    Swapped(Result<(), Option<&'b [u8]>>),
    /// Of the first so many keys: whoever asked asks again for the rest.
    Values(Values<'b>),
    Page(Page<'b>),
    NotOwned,
    Failed {
        code: ErrorCode,
        may_have_taken_effect: bool,
        text: &'b str,
    },
}

/// Writes one reply: its header, and then its body as it is appended to `out`.
#[derive(Debug)]
pub struct ReplyEncoder {
    start: usize,
    op: Op,
}

impl ReplyEncoder {
    pub fn begin(out: &mut Vec<u8>, op: Op) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER]);
        Self { start, op }
    }

    fn finish_as(self, out: &mut [u8], status: u8, answer: u8) {
        let len = (out.len() - self.start - HEADER) as u32;
        let header = ReplyHeader { status, op: self.op as u8, answer, zero: 0, len: len.into() };
        out[self.start..][..HEADER].copy_from_slice(header.as_bytes());
    }

    /// Bytes of the body so far.
    pub fn len(&self, out: &[u8]) -> usize {
        out.len() - self.start - HEADER
    }

    /// What was appended since is the value, or the body; `yes` if it is there, or so.
    pub fn finish(self, out: &mut [u8], yes: bool) {
        self.finish_as(out, DONE, u8::from(yes));
    }

    /// The answer to a compare-and-swap.
    pub fn swapped(self, out: &mut Vec<u8>, swapped: Result<(), Option<&[u8]>>) {
        let answer = match swapped {
            Ok(()) => 0,
            Err(None) => 1,
            Err(Some(found)) => {
                out.extend_from_slice(found);
                2
            }
        };
        self.finish_as(out, DONE, answer);
    }

    /// The answer to who opens an index or asks for routes.
    pub fn opened(self, out: &mut Vec<u8>, opened: &Opened) {
        let (kind, key_size, value_size) = match opened.layout {
            IndexLayout::Bytes => (0, 0, 0),
            IndexLayout::Fixed { key_size, value_size } => (1, key_size as u32, value_size as u32),
        };
        let numbers = OpenedNumbers {
            epoch: opened.epoch.into(),
            kind: kind.into(),
            key_size: key_size.into(),
            value_size: value_size.into(),
            ranges: (opened.ranges.len() as u32).into(),
        };
        out.extend_from_slice(numbers.as_bytes());
        for range in &opened.ranges {
            out.push(u8::from(range.low.is_some()) + 2 * u8::from(range.high.is_some()));
            for end in [&range.low, &range.high].into_iter().flatten() {
                put_counted(out, end);
            }
        }
        self.finish_as(out, DONE, 0);
    }

    /// The answer to who asks what is served.
    pub fn described(self, out: &mut Vec<u8>, described: &Described) {
        put_counted(out, described.name.as_bytes());
        put_counted(out, &described.description);
        out.extend_from_slice(&described.node_size.to_le_bytes());
        out.push(described.subtree_level);
        self.finish_as(out, DONE, 0);
    }

    /// Begins the entries of a scan.
    pub fn begin_page(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[0; 4]);
    }

    /// Ends a scan; `next` is where it goes on, if anywhere.
    pub fn finish_page(self, out: &mut Vec<u8>, next: Option<Bound<&[u8]>>) {
        let at = self.start + HEADER;
        let len = (out.len() - at - 4) as u32;
        out[at..][..4].copy_from_slice(&len.to_le_bytes());
        let answer = match next {
            None | Some(Bound::Unbounded) => 0,
            Some(Bound::Included(key)) => {
                out.extend_from_slice(key);
                1
            }
            Some(Bound::Excluded(key)) => {
                out.extend_from_slice(key);
                2
            }
        };
        self.finish_as(out, DONE, answer);
    }

    /// Whatever was appended since goes: the process does not own the key, or not all keys.
    pub fn not_owned(self, out: &mut Vec<u8>) {
        out.truncate(self.start + HEADER);
        self.finish_as(out, NOT_OWNED, 0);
    }

    /// Whatever was appended since goes, and the error takes its place.
    pub fn fail(self, out: &mut Vec<u8>, code: ErrorCode, may_have_taken_effect: bool, text: &str) {
        out.truncate(self.start + HEADER);
        out.extend_from_slice(U16::from(code as u16).as_bytes());
        out.extend_from_slice(text.as_bytes());
        self.finish_as(out, FAILED, u8::from(may_have_taken_effect));
    }
}

fn put_counted(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends the value of one of many keys.
pub fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => put_counted(out, value),
        None => out.extend_from_slice(&ABSENT_BYTES),
    }
}

/// Appends an entry of a scan.
pub fn put_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    put_counted(out, key);
    put_counted(out, value);
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OpenedNumbers {
    epoch: U64,
    kind: U32,
    key_size: U32,
    value_size: U32,
    ranges: U32,
}

/// The reply to a request `op` at the front of `bytes`, and how many of them it takes; `None` if more are needed.
///
/// # Errors
/// [`Malformed`] if it cannot be the reply.
pub fn decode_reply(bytes: &[u8], op: Op, body_max: u32) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
    let Ok((header, rest)) = ReplyHeader::ref_from_prefix(bytes) else { return Ok(None) };
    if header.op != op as u8 || header.zero != 0 {
        return Err(Malformed::WrongReply);
    }
    let len = header.len.get();
    if len > body_max {
        return Err(Malformed::TooLong { len, max: body_max });
    }
    if header.status > FAILED {
        return Err(Malformed::UnknownStatus(header.status));
    }
    let Some(body) = rest.get(..len as usize) else { return Ok(None) };
    let reply = match header.status {
        DONE => done(op, header.answer, body),
        NOT_OWNED => (header.answer == 0 && body.is_empty()).then_some(Reply::NotOwned),
        _ => failed(header.answer, body),
    };
    Ok(Some((reply.ok_or(Malformed::WrongReply)?, HEADER + len as usize)))
}

fn failed(answer: u8, body: &[u8]) -> Option<Reply<'_>> {
    let (code, text) = body.split_first_chunk::<2>()?;
    let code = ErrorCode::of(u16::from_le_bytes(*code));
    Some(Reply::Failed { code, may_have_taken_effect: yes(answer)?, text: std::str::from_utf8(text).ok()? })
}

fn yes(answer: u8) -> Option<bool> {
    match answer {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// The answer of an operation that was done.
fn done(op: Op, answer: u8, body: &[u8]) -> Option<Reply<'_>> {
    let nothing = body.is_empty();
    Some(match op {
        Op::Open | Op::Routes => Reply::Opened(opened(body).filter(|_| answer == 0)?),
        Op::Describe => Reply::Described(described(body).filter(|_| answer == 0)?),
        Op::Ping if nothing && answer == 0 => Reply::Pong,
        Op::Get => match yes(answer)? {
            true => Reply::Value(Some(body)),
            false if nothing => Reply::Value(None),
            false => return None,
        },
        Op::Put | Op::Insert | Op::Update | Op::Remove if nothing => Reply::Was(yes(answer)?),
        Op::CompareAndSwap => match answer {
            0 if nothing => Reply::Swapped(Ok(())),
            1 if nothing => Reply::Swapped(Err(None)),
            2 => Reply::Swapped(Err(Some(body))),
            _ => return None,
        },
        Op::MultiGet if answer == 0 => {
            let mut values = Values(body);
            while values.next().is_some() {}
            values.0.is_empty().then_some(Reply::Values(Values(body)))?
        }
        Op::Scan => {
            let (entries, next) = split_counted(body)?;
            let mut left = Entries(entries);
            while left.next().is_some() {}
            let next = bound_of(answer, next)?;
            let next = (next != Bound::Unbounded).then_some(next);
            left.0.is_empty().then_some(Reply::Page(Page { entries: Entries(entries), next }))?
        }
        _ => return None,
    })
}

fn opened(body: &[u8]) -> Option<Opened> {
    let (numbers, mut rest) = OpenedNumbers::ref_from_prefix(body).ok()?;
    let (key_size, value_size) = (numbers.key_size.get() as usize, numbers.value_size.get() as usize);
    let layout = match numbers.kind.get() {
        0 if key_size == 0 && value_size == 0 => IndexLayout::Bytes,
        1 => IndexLayout::Fixed { key_size, value_size },
        _ => return None,
    };
    let mut ranges = Vec::new();
    for _ in 0..numbers.ranges.get() {
        let (&ends, after) = rest.split_first()?;
        if ends > 3 {
            return None;
        }
        rest = after;
        let mut end = |is_there: bool| {
            if !is_there {
                return Some(None);
            }
            let (key, after) = split_counted(rest)?;
            rest = after;
            Some(Some(key.to_vec()))
        };
        ranges.push(KeyRange { low: end(ends & 1 != 0)?, high: end(ends & 2 != 0)? });
    }
    rest.is_empty().then_some(Opened { epoch: numbers.epoch.get(), layout, ranges })
}

fn described(body: &[u8]) -> Option<Described> {
    let (name, rest) = split_counted(body)?;
    let (description, rest) = split_counted(rest)?;
    let (node_size, &[subtree_level]) = rest.split_first_chunk()? else { return None };
    Some(Described {
        name: std::str::from_utf8(name).ok()?.to_owned(),
        description: description.to_vec(),
        node_size: u32::from_le_bytes(*node_size),
        subtree_level,
    })
}
