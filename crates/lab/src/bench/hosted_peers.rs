//! Benchmarks of the designs to compare with on this machine: its threads, its clock, memory that the facade offers.
//!
//! What [`super::hosted`] does with the facade's index and its sessions this does with an index of the laboratory's own and plain
//! endpoints. Everything else is the same: where the pool is, and what a thread does.

use pando::{Cluster, SmoCounts};
use pando_fabric::Endpoint;
use pando_rt::{Worker, block_on};
use pando_workload::OpStream;

use super::bed::{Bed, Counts, PhaseOutcome, Stage};
use super::hosted::{Place, on_threads, open_cluster};
use super::lane::Lane;
use super::load::{Generated, Interruptible, boundaries};
use super::verify::{self, FinalScan};
use super::{BenchError, Length};
use crate::under_test::hosted::OnHost;
use crate::under_test::peers::{PeerTree, Peers};
use crate::under_test::{Audited, PlacedIndex, host_now};

/// An index of the laboratory in memory of the facade.
pub(crate) struct HostedPeers<T: PeerTree> {
    cluster: Cluster,
    /// There until it is closed.
    peers: Option<Peers<T>>,
    /// The pool is others' too: what was put there is taken out again.
    is_guest: bool,
    _place: Place,
}

impl<T: PeerTree + Send> HostedPeers<T> {
    /// A new cluster with a loaded index.
    pub fn open(stage: &Stage<'_>, config: &T::Config) -> Result<Self, BenchError> {
        let spec = stage.spec;
        let (cluster, place) = open_cluster(spec)?;
        let is_guest = !spec.addresses.is_empty();
        let mut hosted = Self { cluster, peers: None, is_guest, _place: place };
        let source =
            Interruptible::new(Generated::new(stage.shared.keys, stage.shared.values, 1), stage.shared);
        let cluster = &hosted.cluster;
        let peers = stage.watched(|| {
            let ep = &cluster.endpoint()?;
            let boundaries = boundaries(&stage.shared.keys, spec.compute_servers);
            let pool = cluster.pool().clone();
            block_on(ep, Peers::load(config, spec, ep, pool, boundaries, &source))
        })?;
        hosted.peers = Some(peers);
        Ok(hosted)
    }

    fn peers(&self) -> &Peers<T> {
        self.peers.as_ref().expect("it is closed last")
    }
}

impl<T: PeerTree> HostedPeers<T> {
    fn close_peers(&mut self) -> Result<(), BenchError> {
        let Some(peers) = self.peers.take() else { return Ok(()) };
        let ep = &self.cluster.endpoint()?;
        block_on(ep, peers.close(ep, self.is_guest))
    }
}

impl<T: PeerTree + Send> Bed for HostedPeers<T> {
    fn operations(
        &self,
        stage: &Stage<'_>,
        streams: Vec<OpStream>,
        length: Length,
    ) -> Result<PhaseOutcome, BenchError> {
        let peers = self.peers();
        let before = peers.cache_counts();
        let tasks: Vec<_> = stage.tasks(streams, length, host_now()).collect();
        let lanes = on_threads(stage, tasks, |thread, task| {
            let lane = Lane::new(stage.shared, task);
            let ep = &self.cluster.endpoint()?;
            let own = peers.begin_thread(thread / stage.spec.threads);
            let client =
                OnHost { client: peers.client(ep, &own), ep, operation_ns: self.cluster.operation_ns() };
            Worker::new(ep, stage.spec.slots).run(|_| lane.slot(client));
            peers.end_thread(own);
            Ok(lane.finish(ep.counters().snapshot()))
        })?;
        let cache = peers.cache_counts() - before;
        Ok(stage.outcome(lanes, Counts { cache, ..Counts::default() }))
    }

    fn final_scans<'s>(
        &self,
        stage: &Stage<'_>,
        scans: Vec<FinalScan<'s>>,
    ) -> Result<Vec<FinalScan<'s>>, BenchError> {
        let peers = self.peers();
        on_threads(stage, scans, |thread, mut scan| {
            let ep = &self.cluster.endpoint()?;
            let own = peers.begin_thread(thread / stage.spec.threads);
            let client =
                OnHost { client: peers.client(ep, &own), ep, operation_ns: self.cluster.operation_ns() };
            block_on(ep, verify::perform(client, stage.shared, &mut scan))?;
            peers.end_thread(own);
            Ok(scan)
        })
    }

    fn smo_counts(&self) -> Result<SmoCounts, BenchError> {
        Ok(self.peers().smo_counts())
    }

    fn audit(&self) -> Result<Audited, BenchError> {
        let ep = &self.cluster.endpoint()?;
        block_on(ep, self.peers().audit(ep))
    }

    fn close(mut self) -> Result<(), BenchError> {
        self.close_peers()?;
        Ok(self.cluster.close()?)
    }
}

/// Best effort, for runs that end early.
impl<T: PeerTree> Drop for HostedPeers<T> {
    fn drop(&mut self) {
        let _ = self.close_peers();
        let _ = self.cluster.close();
    }
}
