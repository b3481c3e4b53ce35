//! Frames of the TCP fabric, byte for byte: a change needs a new protocol version.
//!
//! Each message is encoded, compared with its bytes, and decoded.

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId};
use pando_fabric_net::wire::{
    BODY_MAX, ChainEncoder, Op, ReplyEncoder, Request, VERSION, decode_reply, decode_request, request_len,
};

const SERVER: MemoryServerId = MemoryServerId(3);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn without_spaces(text: &str) -> String {
    text.split_whitespace().collect()
}

fn written(request: Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(&mut bytes);
    bytes
}

#[test]
fn requests_have_these_bytes() {
    assert_eq!(VERSION, 4);
    let offset = 0x0102_0304_0506;
    // op, zero, kind, length, offset, body.
    for (request, golden) in [
        (Request::Read { offset, len: 4096 }, "01 00 0000 00100000 0605040302010000"),
        (
            Request::Write { offset, bytes: b"8 bytes." },
            "02 00 0000 08000000 0605040302010000 382062797465732e",
        ),
        (
            Request::CompareSwap { offset, expected: 1, new: 2 },
            "03 00 0000 10000000 0605040302010000 0100000000000000 0200000000000000",
        ),
        (
            Request::MaskedCompareSwap { offset, expected: 1, compare_mask: 2, new: 3, swap_mask: u64::MAX },
            "04 00 0000 20000000 0605040302010000 0100000000000000 0200000000000000 0300000000000000 ffffffffffffffff",
        ),
        (Request::FetchAdd { offset, add: 0x1122 }, "05 00 0000 08000000 0605040302010000 2211000000000000"),
        (Request::Call { kind: 0x4458, body: b"abc" }, "06 00 5844 03000000 0000000000000000 616263"),
        (Request::Reserve { offset, len: 1 << 20 }, "08 00 0000 08000000 0605040302010000 0000100000000000"),
        (Request::Persist { offset, len: 64 }, "09 00 0000 08000000 0605040302010000 4000000000000000"),
        (Request::Ping, "0a 00 0000 00000000 0000000000000000"),
        (
            Request::Fence { process: 5, link: 6 },
            "0b 00 0000 10000000 0000000000000000 0500000000000000 0600000000000000",
        ),
        (Request::Lock, "0c 00 0000 00000000 0000000000000000"),
        (Request::Present { process: 7 }, "0d 00 0000 08000000 0000000000000000 0700000000000000"),
        (Request::Pair { body: &[9, 8] }, "0e 00 0000 02000000 0000000000000000 0908"),
        (Request::Group { kind: 4, body: &[7] }, "0f 00 0400 01000000 0000000000000000 07"),
    ] {
        let bytes = written(request);
        assert_eq!(hex(&bytes), without_spaces(golden), "{request:?}");
        assert_eq!(decode_request(&bytes, BODY_MAX), Ok(Some((request, bytes.len()))));
        assert_eq!(request_len(&bytes), Some(bytes.len()));
    }
}

#[test]
fn a_chain_has_these_bytes() {
    let verbs = [
        Request::Read { offset: 64, len: 8 },
        Request::Write { offset: 72, bytes: &[1; 8] },
        Request::CompareSwap { offset: 80, expected: 1, new: 2 },
        Request::FetchAdd { offset: 88, add: 3 },
    ];
    let mut bytes = b"before".to_vec();
    let mut chain = ChainEncoder::new(&mut bytes);
    verbs.iter().for_each(|verb| verb.encode(chain.out()));
    chain.finish();
    let bytes = bytes.split_off(6);
    let golden = "07 00 0000 60000000 0000000000000000
        01 00 0000 08000000 4000000000000000
        02 00 0000 08000000 4800000000000000 0101010101010101
        03 00 0000 10000000 5000000000000000 0100000000000000 0200000000000000
        05 00 0000 08000000 5800000000000000 0300000000000000";
    assert_eq!(hex(&bytes), without_spaces(golden));
    let Ok(Some((Request::Chain(found), used))) = decode_request(&bytes, BODY_MAX) else {
        panic!("it is a chain")
    };
    assert_eq!(used, bytes.len());
    assert!(found.eq(verbs));
}

#[test]
fn replies_have_these_bytes() {
    let mut bytes = b"before".to_vec();
    let reply = ReplyEncoder::begin(&mut bytes, Op::Read);
    bytes.extend_from_slice(b"8 bytes.");
    reply.finish(&mut bytes);
    let bytes = bytes.split_off(6);
    // status, op, zero, length, body.
    assert_eq!(hex(&bytes), without_spaces("00 01 0000 08000000 382062797465732e"));
    let (reply, used) = decode_reply(&bytes, SERVER, Op::Read, BODY_MAX).expect("a reply").expect("whole");
    assert_eq!((reply.expect("it was done"), used), (&b"8 bytes."[..], 16));

    let at = GlobalAddr::new(SERVER, 4096);
    let system = FabricError::System { path: "pool".to_owned(), reason: "gone".to_owned() };
    // The body: offset, length, length of the region, text.
    for (error, golden) in [
        (
            FabricError::OutOfRegion { at, len: 64, region_len: 4100 },
            "01 02 0000 18000000 0010000000000000 4000000000000000 0410000000000000",
        ),
        (
            FabricError::Misaligned { at, len: 3 },
            "02 02 0000 18000000 0010000000000000 0300000000000000 0000000000000000",
        ),
        (
            FabricError::ReadOnly { at, len: 8 },
            "03 02 0000 18000000 0010000000000000 0800000000000000 0000000000000000",
        ),
        (
            FabricError::NoSpace { at, len: 1 << 40, reason: "full".to_owned() },
            "04 02 0000 1c000000 0010000000000000 0000000000010000 0000000000000000 66756c6c",
        ),
        (
            FabricError::Refused { server: SERVER, op: 7, reason: "no".to_owned() },
            "05 02 0000 1a000000 0000000000000000 0700000000000000 0000000000000000 6e6f",
        ),
        (
            system,
            "06 02 0000 22000000 0000000000000000 0000000000000000 0000000000000000 706f6f6c3a20676f6e65",
        ),
    ] {
        let mut bytes = b"before".to_vec();
        let reply = ReplyEncoder::begin(&mut bytes, Op::Write);
        bytes.extend_from_slice(b"what was begun before it failed");
        reply.fail(&mut bytes, &error);
        let bytes = bytes.split_off(6);
        assert_eq!(hex(&bytes), without_spaces(golden), "{error:?}");
        let (reply, used) =
            decode_reply(&bytes, SERVER, Op::Write, BODY_MAX).expect("a reply").expect("whole");
        assert_eq!(used, bytes.len());
        assert!(reply.is_err());
    }
}
