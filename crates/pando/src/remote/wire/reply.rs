//! Replies of the operation port.
//!
//! A reply repeats the operation that it answers, as a check, and has a status: done, with an answer;
//! refused, because the process does not own the keys; or failed, with a code, a sentence, and whether the
//! operation may have taken effect. The body is written as its parts become known; its length is filled in at
//! the end.

use std::ops::Bound;

use pando_dex::KeyRange;
use pando_fabric::codec::{BadField, Put, Reader, ReplyFrame, split_reply, text};

use super::request::{BODY_MAX, KEY_MAX, Malformed, Op, bound_of, split_bound};
use crate::error::ErrorCode;
use crate::layout::IndexLayout;
use crate::stats::LogStats;

/// Bytes after which an answer of many values or entries ends.
pub const ANSWER_BYTES: usize = 1 << 20;
/// Longest body of a reply: [`ANSWER_BYTES`], one more entry, and the key at which a scan continues.
pub const REPLY_MAX: u32 = ANSWER_BYTES as u32 + BODY_MAX + 2 * KEY_MAX as u32;

/// Statuses of a reply.
const DONE: u8 = 0;
const NOT_OWNED: u8 = 1;
const FAILED: u8 = 2;
/// Length that stands for an absent value.
const ABSENT: u32 = u32::MAX;

/// The index at a server's port: its layout, and the keys that the server owns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Grows whenever boundaries within the process move; starts again when the process opens the index anew.
    pub epoch: u64,
    pub layout: IndexLayout,
    /// The keys that the process owns, in order.
    pub ranges: Vec<KeyRange>,
}

/// Description of the index at a server's port, for clients that do not know the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    pub name: String,
    /// Bytes that the creator of the index gave it.
    pub description: Vec<u8>,
    /// Bytes of a node.
    pub node_size: u32,
    /// M: the level whose subtrees each lie on one memory server.
    pub subtree_level: u8,
    /// State of the server's log, if it has one.
    pub log: Option<LogStats>,
}

/// Values of many keys, in their order.
#[derive(Clone, Copy, Debug)]
pub struct Values<'b>(Reader<'b>);

impl<'b> Values<'b> {
    fn checked(body: &'b [u8]) -> Result<Self, BadField> {
        let mut left = Reader::new(body);
        while !left.is_empty() {
            value(&mut left)?;
        }
        Ok(Self(Reader::new(body)))
    }
}

impl<'b> Iterator for Values<'b> {
    type Item = Option<&'b [u8]>;

    fn next(&mut self) -> Option<Option<&'b [u8]>> {
        value(&mut self.0).ok()
    }
}

fn value<'b>(left: &mut Reader<'b>) -> Result<Option<&'b [u8]>, BadField> {
    let len = left.u32()?;
    if len == ABSENT { Ok(None) } else { left.bytes(len as usize).map(Some) }
}

/// Entries of a scan, in its order.
#[derive(Clone, Copy, Debug)]
pub struct Entries<'b>(Reader<'b>);

impl<'b> Entries<'b> {
    /// The entries in bytes that have been checked.
    pub(in crate::remote) fn of(bytes: &'b [u8]) -> Self {
        Self(Reader::new(bytes))
    }

    fn checked(bytes: &'b [u8]) -> Result<Self, BadField> {
        let mut left = Reader::new(bytes);
        while !left.is_empty() {
            entry(&mut left)?;
        }
        Ok(Self::of(bytes))
    }

    pub(in crate::remote) fn bytes(&self) -> &'b [u8] {
        self.0.rest()
    }
}

impl<'b> Iterator for Entries<'b> {
    type Item = (&'b [u8], &'b [u8]);

    fn next(&mut self) -> Option<(&'b [u8], &'b [u8])> {
        entry(&mut self.0).ok()
    }
}

fn entry<'b>(left: &mut Reader<'b>) -> Result<(&'b [u8], &'b [u8]), BadField> {
    Ok((left.counted()?, left.counted()?))
}

/// A part of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Page<'b> {
    pub entries: Entries<'b>,
    /// The bound from which the scan continues, perhaps at another process; `None` if it is complete.
    pub next: Option<Bound<&'b [u8]>>,
}

/// A decoded reply; it borrows from the bytes received.
#[derive(Clone, Debug)]
pub enum Reply<'b> {
    Opened(Opened),
    Described(Described),
    Pong,
    Value(Option<&'b [u8]>),
    /// Whether the key was present (`put`, `remove`), or whether a change was made (`insert`, `update`).
    Was(bool),
    /// `Err` has the value that was found instead of the expected one.
    Swapped(Result<(), Option<&'b [u8]>>),
    /// Values of the first keys requested. The others must be requested again.
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
pub struct ReplyEncoder(ReplyFrame);

impl ReplyEncoder {
    pub fn begin(out: &mut Vec<u8>, op: Op) -> Self {
        Self(ReplyFrame::begin(out, op as u8))
    }

    /// Bytes of the body so far.
    pub fn len(&self, out: &[u8]) -> usize {
        out.len() - self.0.body()
    }

    /// Completes a reply whose body has been appended since it was begun. `yes` is the answer, or whether
    /// there is a value.
    pub fn finish(self, out: &mut [u8], yes: bool) {
        self.0.finish(out, DONE, u8::from(yes));
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
        self.0.finish(out, DONE, answer);
    }

    /// The answer to `Open` and `Routes`.
    pub fn opened(self, out: &mut Vec<u8>, opened: &Opened) {
        let (kind, key_size, value_size) = match opened.layout {
            IndexLayout::Bytes => (0, 0, 0),
            IndexLayout::Fixed { key_size, value_size } => (1, key_size as u32, value_size as u32),
        };
        out.put_u64(opened.epoch);
        let numbers = [kind, key_size, value_size, opened.ranges.len() as u32];
        numbers.iter().for_each(|number| out.put_u32(*number));
        for range in &opened.ranges {
            out.push(u8::from(range.low.is_some()) + 2 * u8::from(range.high.is_some()));
            for end in [&range.low, &range.high].into_iter().flatten() {
                out.put_counted(end);
            }
        }
        self.0.finish(out, DONE, 0);
    }

    /// The answer to `Describe`.
    pub fn described(self, out: &mut Vec<u8>, described: &Described) {
        out.put_counted(described.name.as_bytes());
        out.put_counted(&described.description);
        out.put_u32(described.node_size);
        out.push(described.subtree_level);
        out.push(described.log.is_some().into());
        if let Some(LogStats { records, bytes, used_bytes }) = &described.log {
            [records, bytes, used_bytes].into_iter().for_each(|number| out.put_u64(*number));
        }
        self.0.finish(out, DONE, 0);
    }

    /// Begins the entries of a scan.
    pub fn begin_page(&self, out: &mut Vec<u8>) {
        out.put_u32(0);
    }

    /// Completes a scan. `next` is the bound from which it continues; `None` at its end.
    pub fn finish_page(self, out: &mut Vec<u8>, next: Option<Bound<&[u8]>>) {
        let len = self.len(out) - 4;
        out.set_u32(self.0.body(), len as u32);
        let (answer, key) = split_bound(next.unwrap_or(Bound::Unbounded));
        out.extend_from_slice(key);
        self.0.finish(out, DONE, answer);
    }

    /// Completes a reply to a request for keys that the process does not own. Drops what was appended to it.
    pub fn not_owned(self, out: &mut Vec<u8>) {
        out.truncate(self.0.body());
        self.0.finish(out, NOT_OWNED, 0);
    }

    /// Completes a reply with an error in place of what was appended to it.
    pub fn fail(self, out: &mut Vec<u8>, code: ErrorCode, may_have_taken_effect: bool, text: &str) {
        out.truncate(self.0.body());
        out.put_u16(code as u16);
        out.extend_from_slice(text.as_bytes());
        self.0.finish(out, FAILED, u8::from(may_have_taken_effect));
    }
}

/// Appends the value of one of many keys.
pub fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => out.put_counted(value),
        None => out.put_u32(ABSENT),
    }
}

/// Appends an entry of a scan.
pub fn put_entry(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.put_counted(key);
    out.put_counted(value);
}

/// Decodes the reply to a request `op` at the front of `bytes`; also returns the number of bytes that it
/// takes. `None` if more are needed.
///
/// # Errors
/// [`Malformed`] if the bytes cannot be the reply.
pub fn decode_reply(bytes: &[u8], op: Op, body_max: u32) -> Result<Option<(Reply<'_>, usize)>, Malformed> {
    let Some(raw) = split_reply(bytes, op as u8, FAILED, body_max)? else { return Ok(None) };
    let reply = match raw.status {
        DONE => done(op, raw.answer, raw.body)?,
        NOT_OWNED if raw.answer == 0 && raw.body.is_empty() => Reply::NotOwned,
        NOT_OWNED => return Err(Malformed::WrongReply),
        _ => {
            let mut body = Reader::new(raw.body);
            let (code, text) = (ErrorCode::of(body.u16()?), text(body.rest())?);
            Reply::Failed { code, may_have_taken_effect: yes(raw.answer)?, text }
        }
    };
    Ok(Some((reply, raw.used)))
}

fn yes(answer: u8) -> Result<bool, Malformed> {
    match answer {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed::WrongReply),
    }
}

/// The answer of an operation with status `DONE`.
fn done(op: Op, answer: u8, body: &[u8]) -> Result<Reply<'_>, Malformed> {
    let nothing = body.is_empty();
    Ok(match op {
        Op::Open | Op::Routes if answer == 0 => Reply::Opened(opened(Reader::new(body))?),
        Op::Describe if answer == 0 => Reply::Described(described(Reader::new(body))?),
        Op::Ping if nothing && answer == 0 => Reply::Pong,
        Op::Get if answer == 0 && nothing => Reply::Value(None),
        Op::Get if answer == 1 => Reply::Value(Some(body)),
        Op::Put | Op::Insert | Op::Update | Op::Remove if nothing => Reply::Was(yes(answer)?),
        Op::CompareAndSwap => match answer {
            0 if nothing => Reply::Swapped(Ok(())),
            1 if nothing => Reply::Swapped(Err(None)),
            2 => Reply::Swapped(Err(Some(body))),
            _ => return Err(Malformed::WrongReply),
        },
        Op::MultiGet if answer == 0 => Reply::Values(Values::checked(body)?),
        Op::Scan => {
            let mut left = Reader::new(body);
            let entries = Entries::checked(left.counted()?)?;
            let next = bound_of(answer, left.rest()).ok_or(Malformed::WrongReply)?;
            Reply::Page(Page { entries, next: (next != Bound::Unbounded).then_some(next) })
        }
        _ => return Err(Malformed::WrongReply),
    })
}

fn opened(mut left: Reader<'_>) -> Result<Opened, BadField> {
    let epoch = left.u64()?;
    let [kind, key_size, value_size] = [left.u32()?, left.u32()?, left.u32()?];
    let layout = match kind {
        0 if key_size == 0 && value_size == 0 => IndexLayout::Bytes,
        1 => IndexLayout::Fixed { key_size: key_size as usize, value_size: value_size as usize },
        _ => return Err(left.bad("an unknown layout")),
    };
    let mut ranges = Vec::new();
    for _ in 0..left.count(1)? {
        let ends = left.u8()?;
        if ends > 3 {
            return Err(left.bad("an unknown kind of range"));
        }
        let mut end = |flag: u8| match ends & flag {
            0 => Ok(None),
            _ => left.counted().map(|key| Some(key.to_vec())),
        };
        ranges.push(KeyRange { low: end(1)?, high: end(2)? });
    }
    left.end()?;
    Ok(Opened { epoch, layout, ranges })
}

fn described(mut left: Reader<'_>) -> Result<Described, BadField> {
    let name = text(left.counted()?)?.to_owned();
    let description = left.counted()?.to_vec();
    let (node_size, subtree_level) = (left.u32()?, left.u8()?);
    let log = match left.u8()? {
        0 => None,
        _ => Some(LogStats { records: left.u64()?, bytes: left.u64()?, used_bytes: left.u64()? }),
    };
    left.end()?;
    Ok(Described { name, description, node_size, subtree_level, log })
}
