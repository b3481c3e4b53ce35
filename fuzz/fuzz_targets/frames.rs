//! Any bytes, as a memory server and as its client see them: requests, replies, or refused.
//!
//! What is a request must come back when it is written again.

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
