//! Arbitrary bytes as frames for a memory server and its client: requests, replies, or refused.
//!
//! A decoded request must encode to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pando_fabric::MemoryServerId;
use pando_fabric_net::wire::{Op, Request, decode_reply, decode_request};

fuzz_target!(|input: (u16, &[u8])| {
    let (body_max, bytes) = (u32::from(input.0), input.1);
    let mut rest = bytes;
    while let Ok(Some((request, used))) = decode_request(rest, body_max) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, rest[..used]);
        if let Request::Chain(verbs) = request {
            assert!(verbs.map(|verb| verb.op()).all(|op| op != Op::Chain && op != Op::Call));
        }
        rest = &rest[used..];
    }
    for op in [Op::Read, Op::Chain, Op::Call] {
        if let Ok(Some((_, used))) = decode_reply(bytes, MemoryServerId(0), op, body_max) {
            assert!(used <= bytes.len());
        }
    }
});
