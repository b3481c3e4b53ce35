//! The conformance suite of the fabric, over two and three copies: who uses volumes notices nothing, but for the
//! number of verbs.

use std::pin::Pin;
use std::sync::Arc;

use pando_fabric::conformance::{self as suite, Options, Suite};
use pando_fabric::{Endpoint, Fabric, GlobalAddr, MemoryServerId, Nanos, RegionInfo, Result, VerbCounts};
use pando_fabric_local::{LocalConfig, LocalEndpoint, LocalFabric};
use pando_replica::{Placement, Replicated, Views};
use pando_rt::block_on;

/// A view that never changes.
struct Fixed(Arc<Placement>);

impl Views for Fixed {
    fn epoch(&self, _: Nanos) -> u64 {
        self.0.epoch
    }

    fn placement(&self) -> Arc<Placement> {
        Arc::clone(&self.0)
    }

    fn suspect(&self, _: u64, server: MemoryServerId, _: Nanos) {
        panic!("memory server {server} is there");
    }

    fn patience(&self) -> Nanos {
        1_000_000_000
    }
}

struct Volumes {
    below: LocalFabric,
    views: Arc<Fixed>,
    regions: Vec<RegionInfo>,
}

impl Volumes {
    fn new(copies: usize) -> Self {
        let config = LocalConfig { server_sizes: vec![3 << 20; 3], huge_pages: false };
        let below = LocalFabric::new(config).expect("so little memory");
        let placement = Arc::new(Placement::chained(1, below.regions(), copies));
        let regions = placement.regions();
        Self { below, views: Arc::new(Fixed(placement)), regions }
    }
}

impl Fabric for Volumes {
    type Endpoint = Replicated<LocalEndpoint>;

    fn endpoint(&self, seed: u64) -> Result<Self::Endpoint> {
        Ok(Replicated::new(self.below.endpoint(seed)?, Arc::clone(&self.views) as Arc<dyn Views>))
    }

    fn regions(&self) -> &[RegionInfo] {
        &self.regions
    }
}

fn drive(ep: &Replicated<LocalEndpoint>, future: Pin<&mut dyn Future<Output = ()>>) {
    block_on(ep, future);
}

/// Checks that all copies of all volumes have the same bytes.
fn assert_equal(volumes: &Volumes) {
    let ep = volumes.below.endpoint(1).expect("it is local");
    for (number, volume) in volumes.views.0.volumes.iter().enumerate() {
        let copies = volume.in_write_order().map(|copy| {
            let buf =
                block_on(&ep, ep.read(copy.at(0), ep.buffer(volume.len as usize))).expect("it is there");
            buf.words().iter().map(|word| word.load(std::sync::atomic::Ordering::Relaxed)).collect::<Vec<_>>()
        });
        let copies: Vec<_> = copies.collect();
        assert!(copies.windows(2).all(|pair| pair[0] == pair[1]), "copies of volume {number} differ");
    }
}

#[test]
fn volumes_are_memory_servers() {
    for copies in [1, 2, 3] {
        let volumes = Volumes::new(copies);
        let all = Suite::new(&volumes, &drive, Options { rounds: 2_000, ..Options::default() });
        suite::regions_are_described(&all);
        suite::pages_round_trip(&all);
        suite::words_round_trip(&all);
        suite::windows_limit_what_moves(&all);
        suite::buffers_come_back(&all);
        suite::atomics(&all);
        suite::masked_swaps(&all);
        suite::chains_keep_order(&all);
        suite::endpoints_see_each_other(&all);
        suite::ranges_are_reserved(&all);
        suite::ranges_are_made_to_last(&all);
        suite::yields_set_the_slot_bit(&all);
        suite::misaligned_addresses(&all);
        suite::addresses_beyond_the_region(&all);
        suite::unknown_servers(&all);
        suite::a_chain_with_a_bad_verb_does_nothing(&all);
        suite::concurrent_atomics_lose_nothing(&all);
        suite::racing_reads_tear_no_word(&all);
        suite::later_writes_imply_earlier_ones(&all);
        assert_equal(&volumes);
    }
}

#[test]
fn verbs_are_counted_for_each_copy_and_reads_once() {
    let at = GlobalAddr::new(MemoryServerId(2), 512);
    for copies in [1, 2, 3] {
        let ep = Volumes::new(copies).endpoint(1).expect("it is local");
        let copies = copies as u64;
        let counted =
            |what: &str, expected: VerbCounts, future: &mut dyn FnMut(&Replicated<LocalEndpoint>)| {
                let before = ep.counters().snapshot();
                future(&ep);
                assert_eq!(ep.counters().snapshot() - before, expected, "{what}, {copies} copies");
            };
        let write = VerbCounts { writes: copies, bytes_written: 64 * copies, ..VerbCounts::default() };
        counted("a WRITE", write, &mut |ep| {
            drop(block_on(ep, ep.write(at, ep.buffer(64))).expect("it fits"))
        });
        let read = VerbCounts { reads: 1, bytes_read: 64, ..VerbCounts::default() };
        counted("a READ", read, &mut |ep| drop(block_on(ep, ep.read(at, ep.buffer(64))).expect("it fits")));
        let more = copies - 1;
        let swap = VerbCounts { atomics: copies, reads: more, bytes_read: 8 * more, ..VerbCounts::default() };
        counted("an atomic", swap, &mut |ep| {
            let _ = block_on(ep, ep.fetch_add(at, 1)).expect("it fits");
        });
        let fails = VerbCounts { atomics: 1, ..VerbCounts::default() };
        counted("a swap that fails", fails, &mut |ep| {
            let _ = block_on(ep, ep.compare_swap(at, 77, 1)).expect("it fits");
        });
    }
}
