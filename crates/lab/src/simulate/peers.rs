//! A peer as the index of a run: a view for each compute server, used by the threads of that server only.
//!
//! If keys are divided among compute servers, an operation goes to the view that owns its key. Sometimes it
//! goes to another view first, which must refuse changes. Scans and audits cover all keys from any view.
//! [`SimulatedPeer`] has the parts that differ: the configuration of a case, and the way to rest.

use pando_dex::{KeyRange, ScanRange, partition_of};
use pando_fabric::Nanos;
use pando_pool::Pool;
use pando_rt::block_on;
use pando_sherman::{Config, Shape, Sherman, ShermanError};
use pando_smart::{CreateOptions, Smart, SmartConfig, SmartError};

use super::case_peers::{ShermanCase, SmartCase};
use super::client::{Client, Gathered};
use super::cluster::{Cluster, ClusterError, INDEX, boundaries, draw_entries};
use super::history::{Answer, Book, Key, Op};
use super::index::Index;
use super::setup::{PATIENCE_NS, Setup};
use crate::bench::BenchSpec;
use crate::copies::SimEndpoint;
use crate::under_test::peers::{BlockFault, Blocks, PeerTree, allocated, check_blocks};
use crate::under_test::{Audited, sherman, smart};

/// Longest time that an operation waits for others. Remote locks are not fair, so an operation may wait long
/// if many want one lock and the network is slow; the more copies have to be changed, the longer.
fn patience_ns(setup: &Setup) -> Nanos {
    3 * setup.waits_for_copies() * PATIENCE_NS
}

/// Requirements of a run on a peer besides operations.
#[allow(async_fn_in_trait, reason = "everything runs on one thread")]
pub trait SimulatedPeer: PeerTree<Error: Into<ClusterError>> {
    type Case;

    /// Configuration for [`PeerTree::open_all`] with the sizes of a case.
    fn config(setup: &Setup, case: &Self::Case) -> Result<Self::Config, Self::Error>;

    /// Announces that this view is not used, so that no other view waits for it.
    async fn park(&self, ep: &SimEndpoint) -> Result<(), Self::Error>;

    /// Whether a change that failed with `error` may have taken effect, according to the error.
    fn may_have_taken_effect(error: &Self::Error) -> bool;

    /// Whether a change was refused because another compute server owns the key.
    fn is_refusal(error: &Self::Error) -> bool;

    /// Finishes the pending work of the views. Returns the result of an audit, and all blocks of the index.
    async fn audit_at_rest(
        views: &[Self],
        ep: &SimEndpoint,
        failed: bool,
    ) -> Result<(Audited, Blocks), Self::Error>;
}

/// A peer with all its compute servers.
pub struct Peer<T> {
    pool: Pool,
    /// By compute server.
    views: Vec<T>,
    /// First keys of the second and further compute servers; `None` if all keys are shared.
    boundaries: Option<Vec<Vec<u8>>>,
    /// Blocks of the pool that were allocated before the index was made.
    blocks_before: u64,
    threads: usize,
    /// Whether a verb may take effect although it fails.
    loses_answers: bool,
}

impl<T: SimulatedPeer> Peer<T> {
    /// Makes and loads the index of `setup`; records its entries in `book`.
    pub fn new(
        setup: &Setup,
        case: &T::Case,
        cluster: &Cluster,
        ep: &SimEndpoint,
        book: &mut Book,
    ) -> Result<Self, ClusterError> {
        let pool = cluster.pool.clone();
        let blocks_before = block_on(ep, allocated(ep, &pool))?;
        let boundaries = setup.system.is_partitioned().then(|| boundaries(setup, &book.keys));
        let ranges = boundaries.as_deref().map(KeyRange::from_boundaries);
        let config = T::config(setup, case).map_err(Into::into)?;
        let opened = T::open_all(&config, ep, &pool, setup.compute_servers, ranges.as_deref());
        let views = block_on(ep, opened).map_err(Into::into)?;
        if boundaries.is_none() {
            for unused in views.iter().skip(setup.threads) {
                block_on(ep, T::park(unused, ep)).map_err(Into::into)?;
            }
        }
        let entries = draw_entries(setup, book);
        if !entries.is_empty() {
            let spec = BenchSpec { fill: setup.fill(), ..BenchSpec::default() };
            block_on(ep, views[0].load(&spec, ep, entries.into_iter())).map_err(Into::into)?;
        }
        let loses_answers = setup.copies > 1 || setup.faults.lose_answers();
        Ok(Self { pool, views, boundaries, blocks_before, threads: setup.threads, loses_answers })
    }

    /// The compute server that performs a thread's operations on `key`.
    fn server(&self, thread: u32, key: &[u8]) -> usize {
        match &self.boundaries {
            Some(boundaries) => partition_of(boundaries, key),
            None => thread as usize % self.views.len(),
        }
    }

    /// Whether a leak is no violation. A failed operation leaks blocks, and so does one that succeeded
    /// without knowing whether they are still linked; a rebuild of the allocation reclaims them.
    fn is_excused(&self, fault: &BlockFault, failed: bool) -> bool {
        matches!(fault, BlockFault::Leaked { .. }) && (failed || self.loses_answers)
    }
}

impl<T: SimulatedPeer> Index for Peer<T> {
    type Error = T::Error;
    type Thread = ();

    const SWAPS: bool = false;
    const DESCENDS: bool = false;

    fn begin_thread(&self, _: &SimEndpoint) {}

    fn may_have_taken_effect(error: &T::Error) -> bool {
        T::may_have_taken_effect(error)
    }

    async fn answer(client: &Client<Self>, op: &Op) -> Result<Answer, T::Error> {
        let Some(key) = op.key() else { return Ok(Answer::Done) };
        let bytes = client.book.keys[key as usize].as_slice();
        let (server, servers) = (client.index.server(client.thread, bytes), client.index.views.len());
        if client.index.boundaries.is_some() && servers > 1 && client.below(32) == 0 {
            let other = (server + 1 + client.below(servers - 1)) % servers;
            match client.answer_by(other, op).await {
                Err(error) if T::is_refusal(&error) => {}
                done => return done,
            }
        }
        client.answer_by(server, op).await
    }

    async fn scan(
        client: &Client<Self>,
        range: &ScanRange<'_>,
        found: &Gathered<'_>,
    ) -> Result<(), T::Error> {
        let view = &client.index.views[client.thread as usize % client.index.views.len()];
        view.scan(&client.ep, range, |key, value| found.visit(key, value)).await?;
        Ok(())
    }

    fn is_at_home(client: &Client<Self>, key: Key) -> bool {
        let home = client.thread as usize % client.index.views.len();
        client.index.server(client.thread, &client.book.keys[key as usize]) == home
    }

    fn go_together(_: &Client<Self>, _: Key, _: Key) -> bool {
        true
    }

    fn views(&self) -> usize {
        self.views.len().min(self.threads)
    }

    fn audit(&self, ep: &SimEndpoint, failed: bool) -> Result<Vec<String>, ClusterError> {
        let (audited, blocks) =
            block_on(ep, T::audit_at_rest(&self.views, ep, failed)).map_err(Into::into)?;
        let faults = block_on(ep, check_blocks(ep, &self.pool, self.blocks_before, blocks))?;
        let told = faults.iter().filter(|fault| !self.is_excused(fault, failed)).map(BlockFault::to_string);
        Ok(audited.violations.into_iter().chain(told).collect())
    }
}

impl<T: SimulatedPeer> Client<Peer<T>> {
    async fn answer_by(&self, server: usize, op: &Op) -> Result<Answer, T::Error> {
        let (view, ep) = (&self.index.views[server], &self.ep);
        let key = |key: &Key| self.book.keys[*key as usize].as_slice();
        let bytes = |value| self.book.bytes(value);
        Ok(match op {
            Op::Get(k) => Answer::Found(self.look_up(view, *k).await?),
            Op::Put(k, value) => Answer::Flag(view.put(ep, key(k), &bytes(*value)).await?),
            Op::Insert(k, value) => Answer::Flag(view.insert(ep, key(k), &bytes(*value)).await?),
            Op::Update(k, value) => Answer::Flag(view.update(ep, key(k), &bytes(*value)).await?),
            Op::Remove(k) => Answer::Flag(view.remove(ep, key(k)).await?),
            Op::MultiGet(keys) => {
                let mut values = Vec::new();
                for &k in keys {
                    let owner = self.index.server(self.thread, key(&k));
                    values.push(self.look_up(&self.index.views[owner], k).await?);
                }
                Answer::Values(values)
            }
            Op::Swap { .. } | Op::Scan(_) | Op::Flush | Op::Move => {
                unreachable!("no operation of a peer on a key")
            }
        })
    }

    async fn look_up(&self, view: &T, key: Key) -> Result<Option<super::linear::Value>, T::Error> {
        let mut out = Vec::new();
        let found = view.get(&self.ep, &self.book.keys[key as usize], &mut out).await?;
        Ok(found.then(|| self.book.value(key, &out)))
    }
}

impl SimulatedPeer for Sherman {
    type Case = ShermanCase;

    fn config(setup: &Setup, case: &ShermanCase) -> Result<sherman::Parameters, ShermanError> {
        let shape = Shape::new(setup.sizes.key, setup.sizes.value, case.node_bytes, &case.options)?;
        let config = Config {
            patience_ns: patience_ns(setup),
            read_ahead: setup.read_ahead,
            ..Config::new(INDEX, case.options)
        };
        Ok(sherman::Parameters { shape, config })
    }

    /// Does nothing: no view waits for an idle one.
    async fn park(&self, _: &SimEndpoint) -> Result<(), ShermanError> {
        Ok(())
    }

    fn may_have_taken_effect(error: &ShermanError) -> bool {
        error.may_have_taken_effect()
    }

    fn is_refusal(error: &ShermanError) -> bool {
        matches!(error, ShermanError::NotOwned)
    }

    /// Uses a view that is opened after the others were closed and takes over their leftovers.
    async fn audit_at_rest(
        views: &[Self],
        ep: &SimEndpoint,
        _: bool,
    ) -> Result<(Audited, Blocks), ShermanError> {
        for view in views {
            view.close(ep).await?;
        }
        let first = &views[0];
        let config = Config { own: None, ..first.config().clone() };
        let last = Self::open(ep, first.pool().clone(), first.anchor(), *first.shape(), config).await?;
        Self::audit_all(&[last], ep).await
    }
}

impl SimulatedPeer for Smart {
    type Case = SmartCase;

    fn config(setup: &Setup, case: &SmartCase) -> Result<smart::Parameters, SmartError> {
        let smart::Parameters { options, config } = smart::configured(case.techniques, INDEX);
        let options = CreateOptions { table_locks: case.table_locks, ..options };
        let config = SmartConfig {
            cache_bytes: case.cache_bytes,
            patience_ns: patience_ns(setup),
            scan_width: case.scan_width,
            limbo_bytes: case.limbo_bytes,
            look_every: case.look_every,
            ..config
        };
        Ok(smart::Parameters { options, config })
    }

    async fn park(&self, ep: &SimEndpoint) -> Result<(), SmartError> {
        Smart::park(self, ep).await
    }

    fn may_have_taken_effect(error: &SmartError) -> bool {
        error.may_have_taken_effect()
    }

    fn is_refusal(error: &SmartError) -> bool {
        matches!(error, SmartError::NotOwned)
    }

    /// A node whose replacement failed stays frozen until the next change of it, so that is no violation.
    async fn audit_at_rest(
        views: &[Self],
        ep: &SimEndpoint,
        failed: bool,
    ) -> Result<(Audited, Blocks), SmartError> {
        for view in views {
            view.reclaim(ep).await?;
        }
        let (mut audited, blocks) = Self::audit_all(views, ep).await?;
        audited.violations.retain(|what| !(failed && what.ends_with("a slot is frozen")));
        Ok((audited, blocks))
    }
}
