//! The reader's half: searches of an image by READs or by a call, whichever is expected to take less time.
//!
//! What is wanted, a number, ids or rows, has a function each. All of them begin with what is cached, offer the rest to
//! the memory server that has the image, and go on by READs if there is none, or if it refuses.

use pando_elf::{Count, Filter, Ids, Kernel, Sink};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, FabricError, MemoryServerId, Nanos, Request, join_all};

use super::wire::Call;
use super::{Found, Want};
use crate::costs::{Estimate, Way};
use crate::defect::Defect;
use crate::error::{Attempt, RemoteError, Retry};
use crate::fetch::confirm;
use crate::follow::Reads;
use crate::image::{Begun, Image};
use crate::receiver::{FoundRows, Receiver, Rows};

/// A search that may be offloaded, and what is expected of it.
struct Offer {
    server: MemoryServerId,
    estimate: Estimate,
    began: Nanos,
    /// How it was tried.
    way: Way,
}

/// Results of what is awaited together.
enum Joined {
    Called(Option<Found>),
    Confirmed,
}

impl Image {
    /// Number of rows that match.
    pub async fn count<E: Endpoint>(&self, reads: &mut Reads<'_, E>, filter: &Filter) -> Attempt<u64> {
        let Some(begun) = self.begin(filter, false)? else { return Ok(0) };
        let mut offer = self.offer(reads, filter, &begun, Want::Count);
        if let Some(found) = self.call(reads, filter, Want::Count, &mut offer).await? {
            return Ok(found.count);
        }
        let mut out = Receiver::<Count>::new(None);
        self.finish(&mut reads.fetch(self), filter, begun, &mut out).await?;
        note(reads, offer.as_ref(), out.found);
        Ok(out.found)
    }

    /// Gives `sink` the ids of the rows that match.
    pub async fn fill<S: Sink, E: Endpoint>(
        &self,
        reads: &mut Reads<'_, E>,
        filter: &Filter,
        sink: &mut S,
    ) -> Attempt<()> {
        let Some(begun) = self.begin(filter, false)? else { return Ok(()) };
        let mut offer = self.offer(reads, filter, &begun, Want::Ids);
        if let Some(found) = self.call(reads, filter, Want::Ids, &mut offer).await? {
            found.ids.into_iter().for_each(|id| sink.tid(id));
            return Ok(());
        }
        let mut out = Receiver::new(Some(sink));
        self.finish(&mut reads.fetch(self), filter, begun, &mut out).await?;
        note(reads, offer.as_ref(), out.found);
        Ok(())
    }

    /// Ids of the rows that match.
    pub async fn ids<E: Endpoint>(&self, reads: &mut Reads<'_, E>, filter: &Filter) -> Attempt<Vec<u64>> {
        let mut found = Vec::new();
        let mut ids = Ids::checked(&mut found, self.manifest.id_bound, Kernel::detect())?;
        self.fill(reads, filter, &mut ids).await?;
        Ok(found)
    }

    /// The rows that match, in the order of their ids, with the codes of `levels`.
    pub async fn rows<E: Endpoint>(
        &self,
        reads: &mut Reads<'_, E>,
        filter: &Filter,
        levels: &[usize],
    ) -> Attempt<FoundRows> {
        let mut rows = Rows::of_levels(levels.to_vec());
        let Some(begun) = self.begin(filter, true)? else { return Ok(rows.in_order()) };
        let mut offer = self.offer(reads, filter, &begun, Want::Rows(levels));
        if let Some(Found { ids, codes, .. }) =
            self.call(reads, filter, Want::Rows(levels), &mut offer).await?
        {
            return Ok(FoundRows { ids, codes });
        }
        let mut fetch = reads.fetch(self);
        self.finish(&mut fetch, filter, begun, &mut Receiver::<Count>::of_rows(&mut rows)).await?;
        let found = self.codes(&mut fetch, rows).await?;
        note(reads, offer.as_ref(), found.ids.len() as u64);
        Ok(found)
    }

    /// What could be offloaded; nothing if the image is on several memory servers.
    fn offer<E: Endpoint>(
        &self,
        reads: &Reads<'_, E>,
        filter: &Filter,
        begun: &Begun,
        want: Want<'_>,
    ) -> Option<Offer> {
        let server = self.home.filter(|_| !reads.offloads.never())?;
        let mut estimate = self.estimate(filter, begun, want != Want::Count, reads.options);
        if let Want::Rows(levels) = want {
            // Strips of further columns come after the rows are known.
            estimate.trips += levels.len() as f64;
        }
        Some(Offer { server, estimate, began: reads.ep.now(), way: Way::Reads })
    }

    /// Lets the memory server search, if that is expected to take less time; `None` if the reader has to. The
    /// version of the catalog is confirmed at the same time.
    async fn call<E: Endpoint>(
        &self,
        reads: &mut Reads<'_, E>,
        filter: &Filter,
        want: Want<'_>,
        offer: &mut Option<Offer>,
    ) -> Attempt<Option<Found>> {
        let (ep, pool) = (reads.ep, reads.pool);
        let Some(offer) = offer else { return Ok(None) };
        let server = offer.server;
        offer.way = reads.offloads.choose(ep, server, &offer.estimate);
        if offer.way == Way::Reads {
            return Ok(None);
        }
        let call = Call { manifest: &self.manifest, filter, want };
        let mut body = Vec::new();
        call.encode(&mut body);
        let check = reads.check.take().filter(|_| !defect(Defect::UnconfirmedCall));
        reads.cost.calls += 1;
        reads.cost.round_trips += 1;
        reads.cost.checks += u64::from(check.is_some());
        let both = [None].into_iter().chain(check.map(Some));
        let joined = join_all(both.map(async |check| match check {
            None => match ep.call(server, &call).await {
                Ok(found) => Ok(Joined::Called(found)),
                // A memory server of another version, or without a handler.
                Err(FabricError::Refused { .. }) => Ok(Joined::Called(None)),
                Err(error) => Err(Retry::from(RemoteError::from(error))),
            },
            Some(version) => confirm(ep, pool, version).await.map(|()| Joined::Confirmed),
        }));
        let mut found = None;
        for joined in joined.await {
            if let Joined::Called(answer) = joined? {
                found = answer;
            }
        }
        let Some(answer) = &found else { return Ok(None) };
        let codes: u64 = answer.codes.iter().map(|codes| codes.len() as u64).sum();
        reads.cost.call_bytes += body.len() as u64 + answer.ids.len() as u64 * 4 + codes;
        reads.cost.rows_compared += answer.rows_compared;
        reads.cost.rows_taken += answer.rows_taken;
        note(reads, Some(offer), answer.count);
        Ok(found)
    }
}

/// Learns from a search that found `found` rows. A call that was refused counts as one that took as long as it and
/// the READs instead.
fn note<E: Endpoint>(reads: &Reads<'_, E>, offer: Option<&Offer>, found: u64) {
    if let Some(offer) = offer.filter(|offer| offer.estimate.trips > 0.0) {
        let took = reads.ep.now().saturating_sub(offer.began);
        reads.offloads.note(offer.server, offer.way, &offer.estimate, found, took);
    }
}
