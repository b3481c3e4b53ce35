//! Byte format of calls to a memory server and of its answers, little-endian. Decoding accepts or refuses any
//! bytes, and a node is verified before what a call says of it is trusted. A call describes the nodes of its
//! index, so memory servers need not know any index.
//!
//! ```text
//! call   [action:8][level:8][format:8][expected:8][index id:32][node:64]
//!        [node size:32][key size:32][value size:32][fanout limit:32][key: len, bytes] and, for a change,
//!        [expected value: len, bytes or three words][new value: kind:8, len, bytes or three words]
//! answer [status:8] and what belongs to it
//! ```

use pando_fabric::codec::{BadField, Put, Reader};
use pando_fabric::{FabricError, GlobalAddr, MemoryServerId, Request};
use pando_pool::ValueRef;

use crate::change::{Change, Expected, Outcome};
use crate::layout::{LayoutId, NewValue, Stored};

/// The fabric's number for these calls ("DX").
pub(super) const OP: u16 = 0x4458;

/// Operation on the key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action<'c> {
    Get,
    Change(Change<'c>),
}

/// An operation on a key below a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'c> {
    pub layout: LayoutId,
    pub index_id: u32,
    pub node: GlobalAddr,
    pub level: u8,
    pub key: &'c [u8],
    pub action: Action<'c>,
}

/// Answer of the memory server.
#[derive(Debug)]
pub(super) enum Answer {
    /// The key's value or a reference to it; `None` if the key is absent.
    Got(Option<Found>),
    /// Outcome of a change of the leaf at this address.
    Changed { leaf: GlobalAddr, outcome: Outcome },
    /// The change does not fit into the leaf.
    NoRoom,
    /// The current value is long. The compute server must read and compare it first.
    Compare(ValueRef),
    /// The call is out of date, or its descent leaves this memory server.
    Elsewhere,
}

#[derive(Debug)]
pub(super) enum Found {
    Inline(Vec<u8>),
    Long(ValueRef),
}

const GET: u8 = 0;

const UPSERT: u8 = 1;

const INSERT: u8 = 2;

const UPDATE: u8 = 3;

const REMOVE: u8 = 4;

const SWAP: u8 = 5;

const ABSENT: u8 = 0;

const BYTES: u8 = 1;

const LONG: u8 = 2;

const FOUND: u8 = 0;

const MISSING: u8 = 1;

const FOUND_LONG: u8 = 2;

const CHANGED: u8 = 3;

const NO_ROOM: u8 = 4;

const COMPARE: u8 = 5;

const ELSEWHERE: u8 = 6;

const EXISTED: u8 = 1;

const DID_CHANGE: u8 = 2;

const UNDERFULL: u8 = 4;

const UNLINKED: u8 = 8;

impl Request for Call<'_> {
    type Reply = Answer;
    const OP: u16 = OP;

    fn encode(&self, out: &mut Vec<u8>) {
        let (action, expected, new) = match self.action {
            Action::Get => (GET, None, None),
            Action::Change(Change::Upsert(value)) => (UPSERT, None, Some(value)),
            Action::Change(Change::Insert(value)) => (INSERT, None, Some(value)),
            Action::Change(Change::Update(value)) => (UPDATE, None, Some(value)),
            Action::Change(Change::Remove) => (REMOVE, None, None),
            Action::Change(Change::Swap { expected, new }) => (SWAP, Some(expected), new),
        };
        let expected_kind = match expected {
            None | Some(Expected::Absent) => ABSENT,
            Some(Expected::Bytes(_)) => BYTES,
            Some(Expected::Exactly(_)) => LONG,
        };
        out.extend([action, self.level, self.layout.format, expected_kind]);
        out.put_u32(self.index_id);
        out.put_u64(self.node.raw());
        let LayoutId { node_size, key_len, value_len, limit, .. } = self.layout;
        [node_size, key_len, value_len, limit].iter().for_each(|size| out.put_u32(*size));
        out.put_counted(self.key);
        match expected {
            Some(Expected::Bytes(bytes)) => out.put_counted(bytes),
            Some(Expected::Exactly(value)) => put_value(out, value),
            _ => {}
        }
        match new {
            None => out.push(ABSENT),
            Some(Stored::Inline(bytes)) => {
                out.push(BYTES);
                out.put_counted(bytes);
            }
            Some(Stored::Long(value) | Stored::New(&NewValue { reference: value, .. })) => {
                out.push(LONG);
                put_value(out, value);
            }
        }
    }

    fn decode_reply(&self, server: MemoryServerId, reply: &[u8]) -> Result<Answer, FabricError> {
        Answer::read(Reader::new(reply)).map_err(|wrong| FabricError::Refused {
            server,
            op: OP,
            reason: format!("the answer is none to this call: {wrong}"),
        })
    }
}

impl<'c> Call<'c> {
    /// `None` if the bytes are not a call.
    pub fn decode(op: u16, body: &'c [u8]) -> Option<Self> {
        if op == OP { Self::read(Reader::new(body)).ok() } else { None }
    }

    fn read(mut left: Reader<'c>) -> Result<Self, BadField> {
        let [action, level, format, expected] = left.array()?;
        let index_id = left.u32()?;
        let node = read_addr(&mut left)?;
        let (node_size, key_len, value_len, limit) = (left.u32()?, left.u32()?, left.u32()?, left.u32()?);
        let layout = LayoutId { format, node_size, key_len, value_len, limit };
        let key = left.counted()?;
        let expected = match expected {
            ABSENT => Expected::Absent,
            BYTES => Expected::Bytes(left.counted()?),
            LONG => Expected::Exactly(read_value(&mut left)?),
            _ => return Err(left.bad("an unknown kind of expected value")),
        };
        let new = match left.u8()? {
            ABSENT => None,
            BYTES => Some(Stored::Inline(left.counted()?)),
            LONG => Some(Stored::Long(read_value(&mut left)?)),
            _ => return Err(left.bad("an unknown kind of new value")),
        };
        let action = match (action, new) {
            (GET, None) => Action::Get,
            (UPSERT, Some(new)) => Action::Change(Change::Upsert(new)),
            (INSERT, Some(new)) => Action::Change(Change::Insert(new)),
            (UPDATE, Some(new)) => Action::Change(Change::Update(new)),
            (REMOVE, None) => Action::Change(Change::Remove),
            (SWAP, new) => Action::Change(Change::Swap { expected, new }),
            _ => return Err(left.bad("an action with a value that it does not take")),
        };
        left.end()?;
        Ok(Self { layout, index_id, node, level, key, action })
    }
}

impl Answer {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Got(Some(Found::Inline(value))) => {
                out.push(FOUND);
                out.put_counted(value);
            }
            Self::Got(Some(Found::Long(value))) => {
                out.push(FOUND_LONG);
                put_value(out, *value);
            }
            Self::Got(None) => out.push(MISSING),
            Self::Changed { leaf, outcome } => {
                let flag = |on: bool, flag: u8| if on { flag } else { 0 };
                let flags = flag(outcome.existed, EXISTED)
                    | flag(outcome.changed, DID_CHANGE)
                    | flag(outcome.underfull, UNDERFULL)
                    | flag(outcome.unlinked.is_some(), UNLINKED);
                out.extend([CHANGED, flags]);
                out.put_u64(leaf.raw());
                if let Some(value) = outcome.unlinked {
                    put_value(out, value);
                }
            }
            Self::NoRoom => out.push(NO_ROOM),
            Self::Compare(value) => {
                out.push(COMPARE);
                put_value(out, *value);
            }
            Self::Elsewhere => out.push(ELSEWHERE),
        }
    }

    fn read(mut left: Reader<'_>) -> Result<Self, BadField> {
        let answer = match left.u8()? {
            FOUND => Self::Got(Some(Found::Inline(left.counted()?.to_vec()))),
            FOUND_LONG => Self::Got(Some(Found::Long(read_value(&mut left)?))),
            MISSING => Self::Got(None),
            CHANGED => {
                let flags = left.u8()?;
                let leaf = read_addr(&mut left)?;
                let is = |flag: u8| flags & flag != 0;
                let unlinked = if is(UNLINKED) { Some(read_value(&mut left)?) } else { None };
                let (existed, changed, underfull) = (is(EXISTED), is(DID_CHANGE), is(UNDERFULL));
                let outcome = Outcome { existed, changed, unlinked, underfull, ..Outcome::default() };
                Self::Changed { leaf, outcome }
            }
            NO_ROOM => Self::NoRoom,
            COMPARE => Self::Compare(read_value(&mut left)?),
            ELSEWHERE => Self::Elsewhere,
            _ => return Err(left.bad("an unknown status")),
        };
        left.end()?;
        Ok(answer)
    }
}

fn put_value(out: &mut Vec<u8>, value: ValueRef) {
    value.to_words().iter().for_each(|word| out.put_u64(*word));
}

fn read_value(left: &mut Reader<'_>) -> Result<ValueRef, BadField> {
    let words = [left.u64()?, left.u64()?, left.u64()?];
    ValueRef::from_words(words).ok_or_else(|| left.bad("no reference to a value"))
}

fn read_addr(left: &mut Reader<'_>) -> Result<GlobalAddr, BadField> {
    GlobalAddr::from_raw(left.u64()?).ok_or_else(|| left.bad("no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn without_spaces(text: &str) -> String {
        text.split_whitespace().collect()
    }

    fn value() -> ValueRef {
        ValueRef::from_words([0x1000, 100, 7]).expect("a value may be there")
    }

    /// Compute servers and memory servers of one version communicate by these bytes.
    #[test]
    fn calls_have_these_bytes() {
        let layout = LayoutId { format: 1, node_size: 1024, key_len: 8, value_len: 16, limit: 0 };
        let node = GlobalAddr::new(MemoryServerId(2), 0x400);
        let call = |action| Call { layout, index_id: 9, node, level: 3, key: b"key", action };
        let (bytes, long) = (Stored::Inline(b"new"), Stored::Long(value()));
        let words = "0010000000000000 6400000000000000 0700000000000000";
        let head = "09000000 0004000000000200 00040000 08000000 10000000 00000000 03000000 6b6579";
        for (action, front, back) in [
            (Action::Get, "00 03 01 00", "00".to_owned()),
            (Action::Change(Change::Upsert(bytes)), "01 03 01 00", "01 03000000 6e6577".to_owned()),
            (Action::Change(Change::Insert(long)), "02 03 01 00", format!("02 {words}")),
            (Action::Change(Change::Update(bytes)), "03 03 01 00", "01 03000000 6e6577".to_owned()),
            (Action::Change(Change::Remove), "04 03 01 00", "00".to_owned()),
            (
                Action::Change(Change::Swap { expected: Expected::Bytes(b"old!"), new: None }),
                "05 03 01 01",
                "04000000 6f6c6421 00".to_owned(),
            ),
            (
                Action::Change(Change::Swap { expected: Expected::Exactly(value()), new: Some(bytes) }),
                "05 03 01 02",
                format!("{words} 01 03000000 6e6577"),
            ),
        ] {
            let mut message = Vec::new();
            call(action).encode(&mut message);
            assert_eq!(hex(&message), without_spaces(&format!("{front} {head} {back}")), "{action:?}");
            let decoded = Call::decode(OP, &message).expect("it is a call");
            let mut again = Vec::new();
            decoded.encode(&mut again);
            assert_eq!(again, message);
            for len in 0..message.len() {
                assert!(Call::decode(OP, &message[..len]).is_none(), "{len} bytes of it");
            }
            message.push(0);
            assert!(Call::decode(OP, &message).is_none(), "one more");
            assert!(Call::decode(OP + 1, &again).is_none(), "another request");
        }
    }

    #[test]
    fn answers_have_these_bytes() {
        let server = MemoryServerId(2);
        let layout = LayoutId { format: 1, node_size: 1024, key_len: 8, value_len: 16, limit: 0 };
        let node = GlobalAddr::new(server, 0x400);
        let call = Call { layout, index_id: 9, node, level: 3, key: b"key", action: Action::Get };
        let words = "0010000000000000 6400000000000000 0700000000000000";
        let outcome = |unlinked| Outcome { existed: true, changed: true, unlinked, ..Outcome::default() };
        for (answer, golden) in [
            (Answer::Got(Some(Found::Inline(b"value".to_vec()))), "00 05000000 76616c7565".to_owned()),
            (Answer::Got(None), "01".to_owned()),
            (Answer::Got(Some(Found::Long(value()))), format!("02 {words}")),
            (Answer::Changed { leaf: node, outcome: outcome(None) }, "03 03 0004000000000200".to_owned()),
            (
                Answer::Changed { leaf: node, outcome: outcome(Some(value())) },
                format!("03 0b 0004000000000200 {words}"),
            ),
            (Answer::NoRoom, "04".to_owned()),
            (Answer::Compare(value()), format!("05 {words}")),
            (Answer::Elsewhere, "06".to_owned()),
        ] {
            let mut message = Vec::new();
            answer.encode(&mut message);
            assert_eq!(hex(&message), without_spaces(&golden), "{answer:?}");
            let decoded = call.decode_reply(server, &message).expect("it is an answer");
            let mut again = Vec::new();
            decoded.encode(&mut again);
            assert_eq!(again, message);
            for len in 0..message.len() {
                assert!(call.decode_reply(server, &message[..len]).is_err(), "{len} bytes of it");
            }
            message.push(0);
            assert!(call.decode_reply(server, &message).is_err(), "one more");
        }
        // A length beyond the end, and unknown kinds.
        for bad in ["00 ffffffff 76", "07", "03 03 0000000000000080"] {
            let bad: Vec<u8> = without_spaces(bad)
                .as_bytes()
                .chunks(2)
                .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex"))
                .collect();
            assert!(call.decode_reply(server, &bad).is_err(), "{bad:?}");
        }
    }
}
