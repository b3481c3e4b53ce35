//! Verbs that must fail without effect.
//!
//! Wrong alignment, addresses beyond a region, servers that do not exist or do not answer, alone and in
//! chains, where one bad verb prevents all others. The error must name the cause.

use super::{Echo, Suite, at, get, ok, put};
use crate::{
    Chain, Endpoint, Fabric, FabricError, GlobalAddr, MAX_OFFSET, MAX_SERVERS, MemoryServerId, WORD,
};

/// Errors of all verbs at `place`; verbs of pages move `len` bytes.
async fn refusals<E: Endpoint>(
    endpoint: &E,
    place: GlobalAddr,
    len: usize,
) -> Vec<(&'static str, FabricError)> {
    let buf = || endpoint.buffer(len);
    vec![
        ("READ", refused(endpoint.read(place, buf()).await)),
        ("WRITE", refused(endpoint.write(place, buf()).await)),
        ("READ of a word", refused(endpoint.read_word(place).await)),
        ("WRITE of a word", refused(endpoint.write_word(place, 1).await)),
        ("compare-and-swap", refused(endpoint.compare_swap(place, 0, 1).await)),
        ("masked swap", refused(endpoint.masked_compare_swap(place, 0, 0, 1, 1).await)),
        ("fetch-and-add", refused(endpoint.fetch_add(place, 1).await)),
        ("chained READ", refused(endpoint.submit(Chain::new().read(place, buf())).await)),
        ("chained WRITE", refused(endpoint.submit(Chain::new().write(place, buf())).await)),
        ("chained word", refused(endpoint.submit(Chain::new().write_word(place, 1)).await)),
        ("chained swap", refused(endpoint.submit(Chain::new().compare_swap(place, 0, 1)).await)),
        ("chained addition", refused(endpoint.submit(Chain::new().fetch_add(place, 1)).await)),
    ]
}

#[track_caller]
fn refused<T>(result: crate::Result<T>) -> FabricError {
    result.err().expect("the verb must be refused")
}

/// Addresses that are not multiples of 8.
pub fn misaligned_addresses<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    suite.with_endpoint(20, async |endpoint| {
        put(endpoint, at(server, 4096), &[0; 4]).await;
        for offset in 4097..4104 {
            for (verb, err) in refusals(endpoint, at(server, offset), 16).await {
                assert!(matches!(err, FabricError::Misaligned { .. }), "{verb} at {offset}: {err:?}");
            }
        }
        assert_eq!(get(endpoint, at(server, 4096), 4).await, [0; 4]);
    });
}

/// The last word of every region can be accessed; no word after it can.
pub fn addresses_beyond_the_region<F: Fabric>(suite: &Suite<'_, F>) {
    suite.with_endpoint(21, async |endpoint| {
        for server in suite.servers() {
            let len = suite.region_len(server);
            let tail: Vec<u64> = (1..=16).collect();
            put(endpoint, at(server, len - 128), &tail).await;
            assert_eq!(ok(endpoint.fetch_add(at(server, len - 8), 0).await), 16);
            for offset in [len, len + 8, len + 4096, MAX_OFFSET - 8].into_iter().filter(|&at| at < MAX_OFFSET)
            {
                for (verb, err) in refusals(endpoint, at(server, offset), 1024).await {
                    let expected =
                        matches!(err, FabricError::OutOfRegion { region_len, .. } if region_len == len);
                    assert!(expected, "{verb} at {offset:#x}: {err:?}");
                }
                let err = refused(endpoint.reserve(at(server, offset), 8).await);
                assert!(matches!(err, FabricError::OutOfRegion { .. }), "reservation: {err:?}");
            }
            // The range starts inside the region and ends outside.
            let over = at(server, len - 120);
            let err = refused(endpoint.write(over, endpoint.buffer(128)).await);
            assert!(matches!(err, FabricError::OutOfRegion { at, len: 128, .. } if at == over), "{err:?}");
            let err = refused(endpoint.read(over, endpoint.buffer(128)).await);
            assert!(matches!(err, FabricError::OutOfRegion { .. }), "{err:?}");
            assert_eq!(
                get(endpoint, at(server, len - 128), 16).await,
                tail,
                "refused WRITEs changed nothing"
            );
        }
    });
}

/// Numbers that belong to no memory server are refused as unknown.
pub fn unknown_servers<F: Fabric>(suite: &Suite<'_, F>) {
    let known = |server| suite.fabric.regions().iter().any(|region| region.server == server);
    let last = suite.fabric.regions().last().expect("there is a memory server").server;
    let candidates = [MemoryServerId(last.0.saturating_add(1)), MemoryServerId(MAX_SERVERS as u16 - 1)];
    suite.with_endpoint(22, async |endpoint| {
        for server in candidates {
            if usize::from(server.0) >= MAX_SERVERS || known(server) {
                continue;
            }
            let mut errs = refusals(endpoint, at(server, 0), 8).await;
            errs.push(("reservation", refused(endpoint.reserve(at(server, 0), 8).await)));
            errs.push(("call", refused(endpoint.call(server, &Echo(vec![1])).await)));
            for (verb, err) in errs {
                assert!(
                    matches!(err, FabricError::UnknownServer(found) if found == server),
                    "{verb}: {err:?}"
                );
            }
        }
        assert_eq!(endpoint.counters().snapshot(), Default::default(), "refused verbs are not counted");
    });
}

/// A chain is checked before its first verb: on a refusal no verb is executed or counted.
pub fn a_chain_with_a_bad_verb_does_nothing<F: Fabric>(suite: &Suite<'_, F>) {
    let server = suite.servers()[0];
    let (place, beyond) = (at(server, 4096), at(server, suite.region_len(server)));
    suite.with_endpoint(23, async |endpoint| {
        put(endpoint, place, &[7; 8]).await;
        let before = endpoint.counters().snapshot();
        let start = || {
            let buf = endpoint.buffer(4 * WORD);
            (0..4).for_each(|word| buf.set(word, 1));
            Chain::new().write(place, buf).write_word(place, 2).fetch_add(place, 1)
        };
        for chain in [
            start().read(beyond, endpoint.buffer(8)),
            start().write(beyond, endpoint.buffer(8)),
            start().write_word(beyond, 1),
            start().compare_swap(beyond, 0, 1),
            start().fetch_add(beyond, 1),
        ] {
            let err = refused(endpoint.submit(chain).await);
            assert!(matches!(err, FabricError::OutOfRegion { .. }), "{err:?}");
        }
        assert_eq!(endpoint.counters().snapshot(), before);
        assert_eq!(get(endpoint, place, 8).await, [7; 8]);
    });
}

/// Every verb to a server that is down fails with an error that says so, and the other servers still answer.
pub fn servers_that_are_down<F: Fabric>(suite: &Suite<'_, F>) {
    let Some(server) = suite.options.down else { return };
    suite.with_endpoint(24, async |endpoint| {
        let mut errs = refusals(endpoint, at(server, 0), 64).await;
        errs.push(("call", refused(endpoint.call(server, &Echo(vec![1])).await)));
        for (verb, err) in errs {
            assert!(err.is_unreachable(), "{verb}: {err:?}");
        }
        for server in suite.servers() {
            put(endpoint, at(server, 0), &[1]).await;
            assert_eq!(get(endpoint, at(server, 0), 1).await, [1]);
        }
    });
}
