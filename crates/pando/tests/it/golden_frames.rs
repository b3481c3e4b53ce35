//! Frames of the operation port, byte for byte: they change only with a new version of the protocol.
//!
//! Each message is encoded, compared with its bytes, and decoded again.

use std::ops::Bound;

use pando::remote::ErrorCode;
use pando::remote::wire::{
    BODY_MAX, Op, Opened, REPLY_MAX, ReplyEncoder, Request, UNLIMITED, decode_reply, decode_request,
    put_entry, put_keys, put_value, request_len,
};
use pando::{IndexLayout, KeyRange};

use crate::remote_wire::described;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

/// Decodes a request, and encodes the result again.
fn check_request(bytes: &[u8], golden: &str) {
    assert_eq!(hex(bytes), without_spaces(golden));
    let (request, used) = decode_request(bytes, BODY_MAX).expect("well-formed").expect("whole");
    assert_eq!((used, request_len(bytes)), (bytes.len(), Some(used)));
    let mut again = Vec::new();
    request.encode(&mut again);
    assert_eq!(again, bytes);
}

#[test]
fn requests_have_these_bytes() {
    let (key, value) = (&b"key"[..], &b"value"[..]);
    // op, flags, zero, body length, key length, extra, body.
    for (request, golden) in [
        (Request::Open { name: "trees" }, "01 00 0000 05000000 00000000 00000000 7472656573"),
        (Request::Routes, "02 00 0000 00000000 00000000 00000000"),
        (Request::Ping, "03 00 0000 00000000 00000000 00000000"),
        (Request::Get { key }, "04 00 0000 03000000 03000000 00000000 6b6579"),
        (Request::Put { key, value }, "05 00 0000 08000000 03000000 00000000 6b6579 76616c7565"),
        (Request::Insert { key, value }, "06 00 0000 08000000 03000000 00000000 6b6579 76616c7565"),
        (Request::Update { key, value }, "07 00 0000 08000000 03000000 00000000 6b6579 76616c7565"),
        (Request::Remove { key }, "08 00 0000 03000000 03000000 00000000 6b6579"),
        (
            Request::CompareAndSwap { key, expected: Some(b"old"), new: Some(b"new!") },
            "09 03 0000 0a000000 03000000 03000000 6b6579 6f6c64 6e657721",
        ),
        (
            Request::CompareAndSwap { key, expected: None, new: Some(b"") },
            "09 02 0000 03000000 03000000 00000000 6b6579",
        ),
        (
            Request::Scan {
                low: Bound::Included(b"a"),
                high: Bound::Excluded(b"bc"),
                limit: 7,
                reverse: true,
            },
            "0b 19 0000 03000000 01000000 07000000 61 6263",
        ),
        (
            Request::Scan { low: Bound::Unbounded, high: Bound::Unbounded, limit: UNLIMITED, reverse: false },
            "0b 00 0000 00000000 00000000 ffffffff",
        ),
        (Request::Describe, "0c 00 0000 00000000 00000000 00000000"),
    ] {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        check_request(&bytes, golden);
    }
    let mut bytes = b"before".to_vec();
    put_keys(&mut bytes, [&b"key"[..], b"", b"b"].into_iter());
    let golden = "0a 00 0000 10000000 00000000 03000000 03000000 6b6579 00000000 01000000 62";
    check_request(&bytes.split_off(6), golden);
}

/// Compares the reply to `op` that `write` encodes with its golden bytes, and decodes it.
fn check_reply(op: Op, golden: &str, write: impl FnOnce(ReplyEncoder, &mut Vec<u8>)) {
    let mut bytes = b"before".to_vec();
    let reply = ReplyEncoder::begin(&mut bytes, op);
    write(reply, &mut bytes);
    let bytes = bytes.split_off(6);
    assert_eq!(hex(&bytes), without_spaces(golden));
    let (_, used) = decode_reply(&bytes, op, REPLY_MAX).expect("well-formed").expect("whole");
    assert_eq!(used, bytes.len());
}

#[test]
fn replies_have_these_bytes() {
    // status, op, answer, zero, length, body.
    check_reply(Op::Get, "00 04 01 00 05000000 76616c7565", |reply, out| {
        out.extend(b"value");
        reply.finish(out, true);
    });
    check_reply(Op::Get, "00 04 00 00 00000000", |reply, out| reply.finish(out, false));
    check_reply(Op::Insert, "00 06 01 00 00000000", |reply, out| reply.finish(out, true));
    check_reply(Op::Ping, "00 03 00 00 00000000", |reply, out| reply.finish(out, false));
    check_reply(Op::CompareAndSwap, "00 09 00 00 00000000", |reply, out| reply.swapped(out, Ok(())));
    check_reply(Op::CompareAndSwap, "00 09 01 00 00000000", |reply, out| reply.swapped(out, Err(None)));
    check_reply(Op::CompareAndSwap, "00 09 02 00 03000000 6f6c64", |reply, out| {
        reply.swapped(out, Err(Some(b"old")));
    });
    check_reply(Op::MultiGet, "00 0a 00 00 0d000000 01000000 76 ffffffff 00000000", |reply, out| {
        [Some(&b"v"[..]), None, Some(b"")].iter().for_each(|value| put_value(out, *value));
        reply.finish(out, false);
    });
    check_reply(Op::Scan, "00 0b 02 00 10000000 0b000000 01000000 6b 02000000 7676 6c", |reply, out| {
        reply.begin_page(out);
        put_entry(out, b"k", b"vv");
        reply.finish_page(out, Some(Bound::Excluded(b"l")));
    });
    check_reply(Op::Scan, "00 0b 00 00 04000000 00000000", |reply, out| {
        reply.begin_page(out);
        reply.finish_page(out, None);
    });
    check_reply(Op::Put, "01 05 00 00 00000000", |reply, out| {
        out.extend(b"what was begun");
        reply.not_owned(out);
    });
    check_reply(Op::Put, "02 05 01 00 09000000 0200 6e6f20726f6f6d", |reply, out| {
        out.extend(b"what was begun");
        reply.fail(out, ErrorCode::Full, true, "no room");
    });
    let key = |text: &str| Some(text.as_bytes().to_vec());
    let ranges = vec![
        KeyRange { low: None, high: key("b") },
        KeyRange { low: key("c"), high: key("de") },
        KeyRange { low: key(""), high: None },
    ];
    let layout = IndexLayout::Fixed { key_size: 8, value_size: 16 };
    let golden = "00 02 00 00 2f000000 0700000000000000 01000000 08000000 10000000 03000000
        02 01000000 62 03 01000000 63 02000000 6465 01 00000000";
    check_reply(Op::Routes, golden, |reply, out| reply.opened(out, &Opened { epoch: 7, layout, ranges }));
    let golden = "00 01 00 00 18000000 0100000000000000 00000000 00000000 00000000 00000000";
    check_reply(Op::Open, golden, |reply, out| {
        reply.opened(out, &Opened { epoch: 1, layout: IndexLayout::Bytes, ranges: Vec::new() });
    });
    let golden = "00 0c 00 00 15000000 05000000 7472656573 02000000 00ff 00040000 03 00";
    check_reply(Op::Describe, golden, |reply, out| reply.described(out, &described()));
}
