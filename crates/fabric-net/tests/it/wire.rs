//! Frames: encoded messages are decoded again, and all other bytes are refused without harm.
//!
//! Requests of all kinds are drawn, also chains; then arbitrary bytes, and requests with changed bytes.
//! `fuzz/fuzz_targets/frames.rs` runs the last two for longer.

use pando_fabric::{FabricError, GlobalAddr, MemoryServerId};
use pando_fabric_net::wire::{
    BODY_MAX, ChainEncoder, Malformed, Op, REPLY_HEADER, REQUEST_HEADER, ReplyEncoder, Request, decode_reply,
    decode_request,
};
use proptest::prelude::*;

const SERVER: MemoryServerId = MemoryServerId(3);

/// A request that owns its bytes.
#[derive(Clone, Debug)]
enum Asked {
    Read(u64, u32),
    Write(u64, Vec<u8>),
    Words(Op, u64, [u64; 4]),
    Call(u16, Vec<u8>),
    Pair(Vec<u8>),
    Ping,
}

impl Asked {
    fn request(&self) -> Request<'_> {
        match self {
            Self::Read(offset, len) => Request::Read { offset: *offset, len: *len },
            Self::Write(offset, bytes) => Request::Write { offset: *offset, bytes },
            Self::Call(kind, body) => Request::Call { kind: *kind, body },
            Self::Ping => Request::Ping,
            Self::Pair(body) => Request::Pair { body },
            Self::Words(op, offset, [a, b, c, d]) => {
                let (offset, a, b) = (*offset, *a, *b);
                match op {
                    Op::CompareSwap => Request::CompareSwap { offset, expected: a, new: b },
                    Op::FetchAdd => Request::FetchAdd { offset, add: a },
                    Op::Reserve => Request::Reserve { offset, len: a },
                    Op::Persist => Request::Persist { offset, len: a },
                    Op::Fence => Request::Fence { process: a, link: b },
                    _ => Request::MaskedCompareSwap {
                        offset,
                        expected: a,
                        compare_mask: b,
                        new: *c,
                        swap_mask: *d,
                    },
                }
            }
        }
    }
}

fn chained() -> impl Strategy<Value = Asked> {
    prop_oneof![
        (any::<u64>(), 0..9000u32).prop_map(|(offset, len)| Asked::Read(offset, len)),
        (any::<u64>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(o, b)| Asked::Write(o, b)),
        (prop::sample::select(vec![Op::CompareSwap, Op::FetchAdd]), any::<u64>(), any::<[u64; 4]>())
            .prop_map(|(op, offset, words)| Asked::Words(op, offset, words)),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let alone = vec![Op::MaskedCompareSwap, Op::Reserve, Op::Persist, Op::Fence];
    prop_oneof![
        3 => chained(),
        1 => (prop::sample::select(alone), any::<u64>(), any::<[u64; 4]>())
            .prop_map(|(op, offset, words)| Asked::Words(op, offset, words)),
        1 => (any::<u16>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(k, b)| Asked::Call(k, b)),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Asked::Pair),
        1 => Just(Asked::Ping),
    ]
}

/// Decodes all requests in arbitrary `bytes`; returns their number.
fn look_through(mut bytes: &[u8], body_max: u32) -> Result<usize, Malformed> {
    let mut requests = 0;
    while let Some((request, used)) = decode_request(bytes, body_max)? {
        assert!((REQUEST_HEADER..=bytes.len()).contains(&used), "a request takes what it takes");
        if let Request::Chain(verbs) = request {
            verbs.for_each(drop);
        }
        let mut again = Vec::new();
        request.encode(&mut again);
        assert_eq!(again, bytes[..used], "what is a request is so in one way only");
        bytes = &bytes[used..];
        requests += 1;
    }
    Ok(requests)
}

proptest! {
    #[test]
    fn requests_come_back(asked in asked(), more in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = Vec::new();
        asked.request().encode(&mut bytes);
        let len = bytes.len();
        bytes.extend(more);
        prop_assert_eq!(decode_request(&bytes, BODY_MAX), Ok(Some((asked.request(), len))));
        // Any incomplete request asks for more bytes.
        for short in 0..len {
            prop_assert_eq!(decode_request(&bytes[..short], BODY_MAX), Ok(None));
        }
    }

    #[test]
    fn chains_come_back(verbs in prop::collection::vec(chained(), 0..8)) {
        let mut bytes = Vec::new();
        let mut chain = ChainEncoder::new(&mut bytes);
        verbs.iter().for_each(|verb| verb.request().encode(chain.out()));
        chain.finish();
        let Ok(Some((Request::Chain(found), used))) = decode_request(&bytes, BODY_MAX) else {
            panic!("it is a chain");
        };
        prop_assert_eq!(used, bytes.len());
        prop_assert!(found.eq(verbs.iter().map(Asked::request)));
    }

    #[test]
    fn any_bytes_are_requests_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400), max in 0..500u32) {
        // Either result is acceptable.
        let _ = look_through(&bytes, max);
    }

    #[test]
    fn changed_requests_are_requests_or_refused(
        asked in prop::collection::vec(asked(), 1..6),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = Vec::new();
        let mut chain = ChainEncoder::new(&mut bytes);
        asked.iter().for_each(|asked| asked.request().encode(chain.out()));
        chain.finish();
        asked.iter().for_each(|asked| asked.request().encode(&mut bytes));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = look_through(&bytes, BODY_MAX);
    }

    #[test]
    fn any_bytes_are_replies_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), op in 1..12u8) {
        let ops = [Op::Read, Op::Write, Op::CompareSwap, Op::Call, Op::Chain, Op::Ping];
        if let Ok(Some((_, used))) = decode_reply(&bytes, SERVER, ops[usize::from(op) % ops.len()], 100) {
            prop_assert!((REPLY_HEADER..=bytes.len()).contains(&used));
        }
    }
}

#[test]
fn fields_that_mean_nothing_must_be_zero() {
    let mut chain = Vec::new();
    ChainEncoder::new(&mut chain).finish();
    let mut requests = vec![chain];
    for request in [
        Request::Call { kind: 1, body: b"what" },
        Request::Fence { process: 1, link: 2 },
        Request::Present { process: 1 },
        Request::Lock,
        Request::Ping,
    ] {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        requests.push(bytes);
    }
    for mut bytes in requests {
        assert!(matches!(decode_request(&bytes, BODY_MAX), Ok(Some(_))));
        // The last byte of the offset.
        bytes[15] = 2;
        assert_eq!(decode_request(&bytes, BODY_MAX), Err(Malformed::NotZero), "{bytes:?}");
    }
}

#[test]
fn what_may_not_be_chained_is_refused() {
    for request in
        [Request::Ping, Request::Reserve { offset: 0, len: 1 }, Request::Call { kind: 1, body: &[] }]
    {
        let mut bytes = Vec::new();
        let mut chain = ChainEncoder::new(&mut bytes);
        request.encode(chain.out());
        chain.finish();
        assert_eq!(decode_request(&bytes, BODY_MAX), Err(Malformed::NotChained(request.op())));
    }
    // A chain within a chain, and one that asks for more than may be answered at once.
    let mut inner = Vec::new();
    ChainEncoder::new(&mut inner).finish();
    let mut bytes = Vec::new();
    let mut chain = ChainEncoder::new(&mut bytes);
    chain.out().extend_from_slice(&inner);
    chain.finish();
    assert_eq!(decode_request(&bytes, BODY_MAX), Err(Malformed::NotChained(Op::Chain)));
    let mut bytes = Vec::new();
    let mut chain = ChainEncoder::new(&mut bytes);
    (0..3).for_each(|_| Request::Read { offset: 0, len: 40 }.encode(chain.out()));
    chain.finish();
    assert_eq!(decode_request(&bytes, 100), Err(Malformed::TooLong { len: 120, max: 100 }));
}

#[test]
fn errors_come_back() {
    let at = GlobalAddr::new(SERVER, 4096);
    let errors = [
        FabricError::OutOfRegion { at, len: 64, region_len: 4100 },
        FabricError::Misaligned { at, len: 3 },
        FabricError::ReadOnly { at, len: 8 },
        FabricError::NoSpace { at, len: 1 << 40, reason: "the disk is full".to_owned() },
        FabricError::Refused { server: SERVER, op: 7, reason: "no".to_owned() },
    ];
    for error in errors {
        let mut bytes = Vec::new();
        let reply = ReplyEncoder::begin(&mut bytes, Op::Write);
        bytes.extend_from_slice(b"what was begun before it failed");
        reply.fail(&mut bytes, &error);
        let decoded = decode_reply(&bytes, SERVER, Op::Write, BODY_MAX);
        let (found, used) = decoded.expect("a reply").expect("a whole one");
        assert_eq!(used, bytes.len());
        assert_eq!(found.expect_err("it failed").to_string(), error.to_string());
        assert!(matches!(decode_reply(&bytes, SERVER, Op::Read, BODY_MAX), Err(Malformed::WrongReply)));
    }
}
