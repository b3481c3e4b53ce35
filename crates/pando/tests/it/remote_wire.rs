//! Frames of the operation port: encoded frames are decoded, and all other bytes are refused without harm.
//!
//! The inputs are random requests and replies of all kinds, random bytes, and frames with changed bytes.
//! `fuzz/fuzz_targets/operation_frames.rs` tests the last two for longer.

use std::ops::Bound;

use pando::remote::wire::{
    BODY_MAX, KEY_MAX, Malformed, Op, Opened, REPLY_HEADER, REPLY_MAX, REQUEST_HEADER, Reply, ReplyEncoder,
    Request, decode_reply, decode_request, put_entry, put_keys, put_value,
};
use pando::remote::{Described, ErrorCode};
use pando::{IndexLayout, KeyRange};
use proptest::prelude::*;

type Bytes = Vec<u8>;

/// A request that owns its bytes.
#[derive(Clone, Debug)]
enum Asked {
    Open(String),
    Routes,
    Ping,
    Describe,
    /// Number of the operation, key and value.
    Keyed(usize, Bytes, Bytes),
    Swap(Bytes, Option<Bytes>, Option<Bytes>),
    Scan(Bound<Bytes>, Bound<Bytes>, u32, bool),
    MultiGet(Vec<Bytes>),
}

impl Asked {
    fn encode(&self, out: &mut Bytes) {
        let bound = |bound: &Bound<Bytes>| bound.clone();
        match self {
            Self::Open(name) => Request::Open { name }.encode(out),
            Self::Routes => Request::Routes.encode(out),
            Self::Ping => Request::Ping.encode(out),
            Self::Describe => Request::Describe.encode(out),
            Self::Keyed(op, key, value) => match op % 5 {
                0 => Request::Get { key }.encode(out),
                1 => Request::Put { key, value }.encode(out),
                2 => Request::Insert { key, value }.encode(out),
                3 => Request::Update { key, value }.encode(out),
                _ => Request::Remove { key }.encode(out),
            },
            Self::Swap(key, expected, new) => {
                Request::CompareAndSwap { key, expected: expected.as_deref(), new: new.as_deref() }
                    .encode(out);
            }
            Self::Scan(low, high, limit, reverse) => {
                let (low, high) = (bound(low), bound(high));
                let (low, high) = (low.as_ref().map(Vec::as_slice), high.as_ref().map(Vec::as_slice));
                Request::Scan { low, high, limit: *limit, reverse: *reverse }.encode(out);
            }
            Self::MultiGet(keys) => put_keys(out, keys.iter().map(Vec::as_slice)),
        }
    }

    /// Whether a decoded request equals this one.
    fn is(&self, request: &Request<'_>) -> bool {
        match (self, request) {
            (Self::Open(name), Request::Open { name: found }) => name == found,
            (Self::Routes, Request::Routes)
            | (Self::Ping, Request::Ping)
            | (Self::Describe, Request::Describe) => true,
            (Self::Keyed(op, key, value), request) => match *request {
                Request::Get { key: found } => op % 5 == 0 && key == found,
                Request::Put { key: k, value: v } => op % 5 == 1 && key == k && value == v,
                Request::Insert { key: k, value: v } => op % 5 == 2 && key == k && value == v,
                Request::Update { key: k, value: v } => op % 5 == 3 && key == k && value == v,
                Request::Remove { key: found } => op % 5 == 4 && key == found,
                _ => false,
            },
            (Self::Swap(key, expected, new), Request::CompareAndSwap { key: k, expected: e, new: n }) => {
                key == k && expected.as_deref() == *e && new.as_deref() == *n
            }
            (
                Self::Scan(low, high, limit, reverse),
                Request::Scan { low: l, high: h, limit: n, reverse: r },
            ) => {
                low.as_ref().map(Vec::as_slice) == *l
                    && high.as_ref().map(Vec::as_slice) == *h
                    && (limit, reverse) == (n, r)
            }
            (Self::MultiGet(keys), Request::MultiGet(found)) => {
                keys.len() == found.len() && found.eq(keys.iter().map(Vec::as_slice))
            }
            _ => false,
        }
    }
}

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn bound() -> impl Strategy<Value = Bound<Bytes>> {
    prop_oneof![Just(Bound::Unbounded), bytes().prop_map(Bound::Included), bytes().prop_map(Bound::Excluded),]
}

fn asked() -> impl Strategy<Value = Asked> {
    let optional = || prop::option::of(bytes());
    prop_oneof![
        ".{0,12}".prop_map(Asked::Open),
        Just(Asked::Routes),
        Just(Asked::Ping),
        Just(Asked::Describe),
        (0..5usize, bytes(), bytes()).prop_map(|(op, key, value)| Asked::Keyed(op, key, value)),
        (bytes(), optional(), optional()).prop_map(|(key, expected, new)| Asked::Swap(key, expected, new)),
        (bound(), bound(), any::<u32>(), any::<bool>())
            .prop_map(|(low, high, limit, reverse)| Asked::Scan(low, high, limit, reverse)),
        prop::collection::vec(bytes(), 0..6).prop_map(Asked::MultiGet),
    ]
}

/// Decodes all requests in `bytes`, and checks that each is encoded to the same bytes again.
fn look_through(mut bytes: &[u8], body_max: u32) -> Result<(), Malformed> {
    while let Some((request, used)) = decode_request(bytes, body_max)? {
        assert!((REQUEST_HEADER..=bytes.len()).contains(&used), "a request takes what it takes");
        assert_eq!(used - REQUEST_HEADER, request.body_len());
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, bytes[..used]);
        if let Request::MultiGet(keys) = request {
            assert_eq!(keys.len(), keys.count());
        }
        bytes = &bytes[used..];
    }
    Ok(())
}

proptest! {
    #[test]
    fn requests_come_back(asked in asked(), more in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = Vec::new();
        asked.encode(&mut bytes);
        let len = bytes.len();
        bytes.extend(more);
        let (request, used) = decode_request(&bytes, BODY_MAX).expect("well-formed").expect("whole");
        prop_assert!(asked.is(&request), "{request:?}");
        prop_assert_eq!(used, len);
        // Every truncated request asks for more bytes.
        for short in 0..len {
            prop_assert!(matches!(decode_request(&bytes[..short], BODY_MAX), Ok(None)));
        }
    }

    #[test]
    fn any_bytes_are_requests_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), max in 0..500u32) {
        // Valid or not, the bytes must not cause a panic.
        let _ = look_through(&bytes, max);
    }

    #[test]
    fn changed_requests_are_requests_or_refused(
        asked in prop::collection::vec(asked(), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = Vec::new();
        asked.iter().for_each(|asked| asked.encode(&mut bytes));
        prop_assert_eq!(look_through(&bytes, BODY_MAX), Ok(()));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = look_through(&bytes, BODY_MAX);
    }

    #[test]
    fn any_bytes_are_replies_or_refused(
        op in prop::sample::select(Op::ALL.to_vec()),
        head in any::<(u8, u8)>(),
        body in prop::collection::vec(0..4u8, 0..60),
    ) {
        // Small lengths are often valid.
        let mut bytes = vec![head.0 % 4, op as u8, head.1 % 4, 0];
        bytes.extend((body.len() as u32).to_le_bytes());
        bytes.extend(&body);
        if let Ok(Some((_, used))) = decode_reply(&bytes, op, 100) {
            prop_assert_eq!(used, bytes.len());
        }
        for short in 0..bytes.len() {
            prop_assert!(!matches!(decode_reply(&bytes[..short], op, 100), Ok(Some(_))));
        }
    }

    #[test]
    fn values_and_entries_come_back(
        values in prop::collection::vec(prop::option::of(bytes()), 0..8),
        entries in prop::collection::vec((bytes(), bytes()), 0..8),
        next in prop::option::of((bytes(), any::<bool>())),
    ) {
        let mut bytes = Vec::new();
        let reply = ReplyEncoder::begin(&mut bytes, Op::MultiGet);
        values.iter().for_each(|value| put_value(&mut bytes, value.as_deref()));
        reply.finish(&mut bytes, false);
        let Reply::Values(found) = whole(&bytes, Op::MultiGet) else { panic!("it is one") };
        prop_assert!(found.eq(values.iter().map(Option::as_deref)));

        let mut bytes = Vec::new();
        let reply = ReplyEncoder::begin(&mut bytes, Op::Scan);
        reply.begin_page(&mut bytes);
        entries.iter().for_each(|(key, value)| put_entry(&mut bytes, key, value));
        let next = next.map(|(key, included)| if included { Bound::Included(key) } else { Bound::Excluded(key) });
        let next = next.as_ref().map(|next| next.as_ref().map(Vec::as_slice));
        reply.finish_page(&mut bytes, next);
        let Reply::Page(page) = whole(&bytes, Op::Scan) else { panic!("it is one") };
        prop_assert_eq!(page.next, next);
        prop_assert!(page.entries.eq(entries.iter().map(|(key, value)| (key.as_slice(), value.as_slice()))));
    }
}

fn whole(bytes: &[u8], op: Op) -> Reply<'_> {
    let (reply, used) = decode_reply(bytes, op, REPLY_MAX).expect("well-formed").expect("whole");
    assert_eq!(used, bytes.len());
    for short in 0..bytes.len() {
        assert!(matches!(decode_reply(&bytes[..short], op, REPLY_MAX), Ok(None)));
    }
    let other = if op == Op::Ping { Op::Get } else { Op::Ping };
    assert!(matches!(decode_reply(bytes, other, REPLY_MAX), Err(Malformed::WrongReply)));
    reply
}

/// A description of an index; `golden_frames` has its bytes.
pub(crate) fn described() -> Described {
    Described {
        name: "trees".to_owned(),
        description: vec![0, 255],
        node_size: 1024,
        subtree_level: 3,
        log: None,
    }
}

#[test]
fn answers_of_all_kinds_come_back() {
    let written = |op: Op, write: &dyn Fn(ReplyEncoder, &mut Bytes)| {
        let mut bytes = b"what is there already".to_vec();
        let start = bytes.len();
        let reply = ReplyEncoder::begin(&mut bytes, op);
        write(reply, &mut bytes);
        bytes.split_off(start)
    };
    for yes in [false, true] {
        let bytes = written(Op::Insert, &|reply, out| reply.finish(out, yes));
        assert!(matches!(whole(&bytes, Op::Insert), Reply::Was(was) if was == yes));
    }
    let found = written(Op::Get, &|reply, out| {
        out.extend(b"value");
        reply.finish(out, true);
    });
    assert!(matches!(whole(&found, Op::Get), Reply::Value(Some(b"value"))));
    let absent = written(Op::Get, &|reply, out| reply.finish(out, false));
    assert!(matches!(whole(&absent, Op::Get), Reply::Value(None)));
    for swapped in [Ok(()), Err(None), Err(Some(&b"other"[..]))] {
        let bytes = written(Op::CompareAndSwap, &|reply, out| reply.swapped(out, swapped));
        assert!(matches!(whole(&bytes, Op::CompareAndSwap), Reply::Swapped(found) if found == swapped));
    }
    let refused = written(Op::Put, &|reply, out| {
        out.extend(b"what was begun");
        reply.not_owned(out);
    });
    assert!(matches!(whole(&refused, Op::Put), Reply::NotOwned));
    let failed = written(Op::Scan, &|reply, out| {
        out.extend(b"what was begun");
        reply.fail(out, ErrorCode::Full, true, "no room");
    });
    let Reply::Failed { code, may_have_taken_effect, text } = whole(&failed, Op::Scan) else {
        panic!("it failed")
    };
    assert_eq!((code, may_have_taken_effect, text), (ErrorCode::Full, true, "no room"));
    let key = |text: &str| Some(text.as_bytes().to_vec());
    let ranges = vec![KeyRange { low: None, high: key("b") }, KeyRange { low: key(""), high: None }];
    for layout in [IndexLayout::Bytes, IndexLayout::Fixed { key_size: 8, value_size: 0 }] {
        let opened = Opened { epoch: 7, layout, ranges: ranges.clone() };
        let bytes = written(Op::Routes, &|reply, out| reply.opened(out, &opened));
        assert!(matches!(whole(&bytes, Op::Routes), Reply::Opened(found) if found == opened));
    }
    let described = described();
    let bytes = written(Op::Describe, &|reply, out| reply.described(out, &described));
    assert!(matches!(whole(&bytes, Op::Describe), Reply::Described(found) if found == described));
}

#[test]
fn lengths_that_do_not_go_together_are_refused() {
    // [op, flags, 0, 0, len, key_len, extra]
    let header = |op: Op, flags: u8, len: u32, key_len: u32, extra: u32| {
        let mut bytes = vec![op as u8, flags, 0, 0];
        [len, key_len, extra].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        bytes.extend(vec![0; (len as usize).min(2 * KEY_MAX)]);
        decode_request(&bytes, BODY_MAX).map(|decoded| decoded.is_some())
    };
    let wrong = |op| Err(Malformed::WrongLength(op));
    assert_eq!(header(Op::Get, 0, 4, 4, 0), Ok(true));
    assert_eq!(header(Op::Get, 0, 4, 5, 0), wrong(Op::Get));
    assert_eq!(header(Op::Get, 0, 4, 3, 0), wrong(Op::Get));
    assert_eq!(header(Op::Get, 0, 4, 4, 1), Err(Malformed::NotZero));
    assert_eq!(header(Op::Get, 1, 4, 4, 0), Err(Malformed::UnknownFlags(Op::Get)));
    assert_eq!(header(Op::Ping, 0, 1, 0, 0), wrong(Op::Ping));
    let long = KEY_MAX as u32 + 1;
    assert_eq!(header(Op::Put, 0, long, long, 0), wrong(Op::Put));
    assert_eq!(header(Op::Scan, 5, long, 0, 0), wrong(Op::Scan));
    assert_eq!(header(Op::Scan, 0, 1, 0, 0), Err(Malformed::UnknownFlags(Op::Scan)));
    assert_eq!(header(Op::Scan, 3, 0, 0, 0), Err(Malformed::UnknownFlags(Op::Scan)));
    assert_eq!(header(Op::CompareAndSwap, 3, 6, 2, 2), Ok(true));
    assert_eq!(header(Op::CompareAndSwap, 3, 6, 2, 5), wrong(Op::CompareAndSwap));
    assert_eq!(header(Op::CompareAndSwap, 2, 6, 2, 2), wrong(Op::CompareAndSwap));
    assert_eq!(header(Op::CompareAndSwap, 1, 6, 2, 2), wrong(Op::CompareAndSwap));
    assert_eq!(header(Op::MultiGet, 0, 8, 0, 2), Ok(true));
    assert_eq!(header(Op::MultiGet, 0, 8, 0, 3), wrong(Op::MultiGet));
    assert_eq!(header(Op::MultiGet, 0, 8, 0, 1), wrong(Op::MultiGet));
    assert_eq!(
        header(Op::Put, 0, BODY_MAX + 1, 0, 0),
        Err(Malformed::TooLong { len: BODY_MAX + 1, max: BODY_MAX })
    );
    assert_eq!(decode_request(&[99; 16], BODY_MAX).err(), Some(Malformed::UnknownOp(99)));
    let mut reply = vec![9, Op::Ping as u8, 0, 0];
    reply.extend([0; REPLY_HEADER - 4]);
    assert_eq!(decode_reply(&reply, Op::Ping, 9).err(), Some(Malformed::UnknownStatus(9)));
}
