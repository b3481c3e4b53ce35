//! Calls by messages: all lengths, more calls than places, mixed with verbs, abandoned by their callers, and
//! fenced off.
//!
//! The handler of these tests repeats the request's bytes up to the requested length, after the requested
//! delay.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Waker};
use std::time::Duration;

use pando_fabric::{
    Endpoint, Fabric, FabricError, MemoryServerId, PageBuf, Request, RequestHandler, Result, ServerMemory,
};
use pando_fabric_net::TcpServer;
use pando_fabric_verbs::{VerbsEndpoint, VerbsFabric};
use pando_rt::{block_on, run_slots};

use super::{SERVER, at, connect, serve_with};

/// Maximum bytes of a message's body.
const FITS: usize = 4096 - 16;
/// Length of a reply's header in bytes.
const REPLY: usize = 8;

/// Asks for `reply` bytes after `millis`.
#[derive(Clone, Default)]
struct Say {
    millis: u16,
    reply: u32,
    body: Vec<u8>,
}

impl Request for Say {
    type Reply = Vec<u8>;
    const OP: u16 = 77;

    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.millis.to_le_bytes());
        out.extend_from_slice(&self.reply.to_le_bytes());
        out.extend_from_slice(&self.body);
    }

    fn decode_reply(&self, _: MemoryServerId, reply: &[u8]) -> Result<Vec<u8>> {
        Ok(reply.to_vec())
    }
}

/// Repeats the request's bytes; an empty request gets an empty reply.
#[derive(Default)]
struct Parrot {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl RequestHandler for Parrot {
    fn handle(&self, _: &ServerMemory<'_>, op: u16, request: &[u8], out: &mut Vec<u8>) -> Result<()> {
        assert_eq!(op, Say::OP, "it panics about what it does not know");
        let Some((head, body)) = request.split_first_chunk::<6>() else { return Ok(()) };
        self.begun.fetch_add(1, SeqCst);
        let [a, b, len @ ..] = *head;
        std::thread::sleep(Duration::from_millis(u16::from_le_bytes([a, b]).into()));
        out.extend(body.iter().cycle().take(u32::from_le_bytes(len) as usize));
        self.ended.fetch_add(1, SeqCst);
        Ok(())
    }
}

/// A request without a body, with operation number `OP`.
struct Nothing<const OP: u16>;

impl<const OP: u16> Request for Nothing<OP> {
    type Reply = usize;
    const OP: u16 = OP;

    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode_reply(&self, _: MemoryServerId, reply: &[u8]) -> Result<usize> {
        Ok(reply.len())
    }
}

fn parrot() -> (TcpServer, VerbsFabric, Arc<Parrot>) {
    let parrot = Arc::new(Parrot::default());
    let server = serve_with(1 << 20, Some(Arc::clone(&parrot) as _), true);
    let fabric = connect(std::slice::from_ref(&server));
    (server, fabric, parrot)
}

fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|place| ((place * 31 + seed) % 251) as u8).collect()
}

async fn say(ep: &VerbsEndpoint, body: usize, reply: usize, seed: usize) {
    let body = bytes(body, seed);
    let expected: Vec<u8> = body.iter().copied().cycle().take(reply).collect();
    let said = ep.call(SERVER, &Say { millis: 0, reply: reply as u32, body }).await;
    assert!(said.expect("an answer") == expected, "a reply of {reply} bytes is another one");
}

#[test]
#[ignore = "needs an RDMA device"]
fn calls_and_replies_of_all_lengths() {
    let (server, fabric, _) = parrot();
    let ep = fabric.endpoint(1).expect("an endpoint");
    let around = |len: usize| [len - 1, len, len + 1];
    let bodies = [[1, 2, 100], around(FITS - 6), [100_000, 1 << 20, 17]].concat();
    let replies =
        [[0, 1, 100], around(FITS - REPLY), around(2 * FITS - REPLY), [100_000, 1 << 20, 3]].concat();
    block_on(&ep, async {
        for &body in &bodies {
            for &reply in &replies {
                let before = ep.counters().snapshot();
                say(&ep, body, reply, reply).await;
                let counted = ep.counters().snapshot() - before;
                assert_eq!((counted.two_sided, counted.bytes_two_sided), (1, (6 + body + reply) as u64));
            }
        }
        assert_eq!(ep.call(SERVER, &Nothing::<77>).await.expect("an answer"), 0);
        // The handler panics, which is a refusal of this call only.
        let refused = ep.call(SERVER, &Nothing::<78>).await;
        assert!(matches!(refused, Err(FabricError::Refused { op: 78, .. })), "{refused:?}");
        // Beyond the maximum length, as a request and as a reply.
        let long = ep.call(SERVER, &Say { body: bytes(5 << 20, 0), ..Say::default() }).await;
        assert!(matches!(long, Err(FabricError::Refused { .. })), "{long:?}");
        let long = ep.call(SERVER, &Say { reply: 5 << 20, body: vec![1], ..Say::default() }).await;
        assert!(matches!(long, Err(FabricError::Refused { .. })), "{long:?}");
        say(&ep, 10, 10, 1).await;
    });
    assert_eq!(
        server.counts().calls,
        (bodies.len() * replies.len()) as u64 + 4,
        "calls are counted anywhere"
    );
}

/// Short calls, and replies of any length, do not use the connection, which carries only signs of life.
#[test]
#[ignore = "needs an RDMA device"]
fn calls_need_no_connection() {
    let (server, fabric, _) = parrot();
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, say(&ep, 10, 10, 0));
    let before = server.counts();
    block_on(&ep, async {
        for seed in 0..500 {
            say(&ep, 1000, 1000, seed).await;
        }
        say(&ep, FITS - 6, 1 << 20, 7).await;
    });
    let after = server.counts();
    assert_eq!(after.calls - before.calls, 501);
    let moved = (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out);
    assert!(moved.0 < 10_000 && moved.1 < 10_000, "{moved:?} bytes in and out over connections");
}

/// Four times as many calls as places, concurrently with verbs, from several threads.
#[test]
#[ignore = "needs an RDMA device"]
fn more_calls_than_go_at_once_and_verbs_between_them() {
    let (server, fabric, _) = parrot();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let fabric = &fabric;
            scope.spawn(move || {
                let ep = fabric.endpoint(thread).expect("an endpoint");
                let slot = async |slot: u64| {
                    let place = at(4096 * (1 + thread) + 64 * slot);
                    for round in 0..40 {
                        let len = [10, 1000, FITS - REPLY, 10_000][(slot + round) as usize % 4];
                        say(&ep, 1 + slot as usize, len, round as usize).await;
                        let page = PageBuf::zeroed(64);
                        page.set(3, round);
                        ep.write(place, page).await.expect("a WRITE");
                        let page = ep.read(place, ep.buffer(64)).await.expect("a READ");
                        assert_eq!(page.get(3), round);
                        ep.fetch_add(at(0), 1).await.expect("an atomic");
                    }
                };
                run_slots(&ep, (0..64).map(slot).collect());
            });
        }
    });
    assert_eq!(server.counts().calls, 3 * 64 * 40);
    let ep = fabric.endpoint(9).expect("an endpoint");
    assert_eq!(block_on(&ep, ep.read_word(at(0))).expect("a READ"), 3 * 64 * 40);
}

/// Abandoned calls do not lose their places and buffers.
#[test]
#[ignore = "needs an RDMA device"]
fn calls_that_nobody_waits_for() {
    let (server, fabric, _) = parrot();
    let ep = fabric.endpoint(1).expect("an endpoint");
    block_on(&ep, say(&ep, 1, 1, 0));
    let mut cx = Context::from_waker(Waker::noop());
    for round in 0..200 {
        for len in [1, FITS, 50_000] {
            let mut call = pin!(say(&ep, 20, len, round));
            assert!(call.as_mut().poll(&mut cx).is_pending());
            if round % 2 == 0 {
                ep.poll_ready();
            }
        }
        if round % 10 == 0 {
            block_on(&ep, say(&ep, 30, 9000, round));
        }
    }
    block_on(&ep, async {
        for round in 0..50 {
            say(&ep, 30, 9000, round).await;
        }
    });
    assert_eq!(server.counts().calls, 1 + 600 + 20 + 50);
}

/// Once a process was given up for dead, no call of it is in progress, and none will be executed.
#[test]
#[ignore = "needs an RDMA device"]
fn a_fence_waits_for_the_call_and_ends_the_others() {
    let (server, other, parrot) = parrot();
    for round in 0..5 {
        let cut_off = connect(std::slice::from_ref(&server));
        let process = cut_off.control().process();
        let before = parrot.begun.load(SeqCst);
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| {
                let ep = cut_off.endpoint(1).expect("an endpoint");
                let request = Say { millis: 100, reply: 1, body: vec![1] };
                run_slots(&ep, (0..24).map(async |_| ep.call(SERVER, &request).await.err()).collect())
            });
            while parrot.begun.load(SeqCst) == before {
                std::thread::sleep(Duration::from_millis(1));
            }
            // This server considers a process alive only while it sends.
            while other.control().is_alive(process) {}
            let (ended, begun) = (parrot.ended.load(SeqCst), parrot.begun.load(SeqCst));
            assert_eq!(begun, ended, "a call is being executed after the fence");
            assert!(ended < before + 16, "the fence came too late to say anything");
            std::thread::sleep(Duration::from_millis(400));
            assert_eq!(parrot.begun.load(SeqCst), begun, "a call was executed after the fence");
            let errors = calls.join().expect("it does not panic");
            let failed = errors.iter().flatten().collect::<Vec<_>>();
            assert!(failed.iter().all(|error| error.is_unreachable()), "{failed:?}");
            assert!(failed.len() as u64 >= 24 - (ended - before), "{failed:?}");
            assert!(failed.iter().any(|error| error.may_have_taken_effect()), "round {round}: {failed:?}");
            assert!(failed.iter().any(|error| !error.may_have_taken_effect()), "round {round}: {failed:?}");
        });
    }
    let ep = other.endpoint(3).expect("an endpoint");
    block_on(&ep, say(&ep, 10, 10, 1));
}

/// The buffers of departed clients are available to new ones.
#[test]
#[ignore = "needs an RDMA device"]
fn clients_come_and_go_with_calls_under_way() {
    let (server, fabric, _) = parrot();
    let mut cx = Context::from_waker(Waker::noop());
    for round in 0..60 {
        let ep = fabric.endpoint(round).expect("an endpoint");
        block_on(&ep, say(&ep, 10, 5000, 1));
        let mut calls: Vec<_> = (0..40).map(|len| Box::pin(say(&ep, 10, 100 * len, 1))).collect();
        for call in &mut calls {
            let _ = call.as_mut().poll(&mut cx);
        }
        ep.poll_ready();
    }
    // All clients at the same time.
    let eps: Vec<_> = (0..20).map(|seed| fabric.endpoint(seed).expect("an endpoint")).collect();
    for ep in &eps {
        run_slots(ep, (0..32).map(|slot| say(ep, 10, 100 * slot, slot)).collect());
    }
    assert!(server.counts().calls >= 60 + 20 * 32);
}
