//! Arbitrary bytes as frames for a compute server's operation port and its client: requests, replies, or
//! refused.
//!
//! A decoded request must encode to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pando::remote::wire::{Op, Reply, Request, decode_reply, decode_request};

fuzz_target!(|input: (u16, &[u8])| {
    let (body_max, bytes) = (u32::from(input.0), input.1);
    let mut rest = bytes;
    while let Ok(Some((request, used))) = decode_request(rest, body_max) {
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, rest[..used]);
        if let Request::MultiGet(keys) = request {
            assert_eq!(keys.len(), keys.count());
        }
        rest = &rest[used..];
    }
    for op in Op::ALL {
        if let Ok(Some((reply, used))) = decode_reply(bytes, op, body_max) {
            assert!(used <= bytes.len());
            match reply {
                Reply::Values(values) => assert!(values.count() <= bytes.len()),
                Reply::Page(page) => assert!(page.entries.count() <= bytes.len()),
                _ => {}
            }
        }
    }
});
