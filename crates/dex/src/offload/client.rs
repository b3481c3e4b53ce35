//! The compute server's half: hands an operation over at a miss, and takes the answer (DEX §6.2).
//!
//! While the call is under way the missing node carries the I/O mark and its parent is pinned. What the memory server refuses
//! is no error: the operation descends anew and does it here.

use pando_cache::{CommonTicket, FrameId, FrameState, Pin};
use pando_fabric::{Endpoint, GlobalAddr, Patience};
use pando_pool::ValueRef;

use super::wire::{Action, Answer, Call, Found};
use crate::change::{Blocked, Change, Outcome};
use crate::error::{Attempt, DexError, Result};
use crate::layout::{Layout, header};
use crate::tree::{Ctx, Tree};

/// A missing node whose memory server may do what is to be done below it.
pub(crate) struct Below<'t> {
    pub level: u8,
    /// Inner nodes that the operation went through.
    pub inner: u64,
    pub ticket: CommonTicket<'t>,
    /// Of its parent.
    pub _pin: Pin<'t>,
}

impl Below<'_> {
    fn node(&self) -> GlobalAddr {
        self.ticket.addr()
    }
}

impl<L: Layout> Tree<L> {
    /// Looks `key` up below a node: whether it is present, its value appended to `out`, or where that is. `None` if the
    /// memory server cannot.
    pub(crate) async fn get_below<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        below: Below<'_>,
        key: L::Key<'_>,
        out: &mut Vec<u8>,
    ) -> Attempt<Option<(bool, Option<ValueRef>)>> {
        let answer = self.call(ctx, &below, key, Action::Get).await?;
        drop(below);
        Ok(Some(match answer {
            Answer::Got(None) => (false, None),
            Answer::Got(Some(Found::Inline(value))) => {
                out.extend_from_slice(&value);
                (true, None)
            }
            Answer::Got(Some(Found::Long(value))) => (true, Some(value)),
            _ => return Ok(None),
        }))
    }

    /// Makes a change below a node. `None` if the memory server cannot.
    pub(crate) async fn change_below<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        below: Below<'_>,
        key: L::Key<'_>,
        change: &Change<'_>,
    ) -> Attempt<Option<std::result::Result<Outcome, Blocked>>> {
        let answer = match self.call(ctx, &below, key, Action::Change(*change)).await {
            Ok(answer) => answer,
            Err(error) => {
                // Perhaps it was changed.
                self.forget_copies(ctx, &below, key).await?;
                return Err(error);
            }
        };
        Ok(Some(match answer {
            Answer::Changed { leaf, outcome } => {
                if outcome.changed {
                    self.forget_copy(ctx, &below, leaf).await?;
                }
                Ok(outcome)
            }
            Answer::NoRoom => Err(Blocked::NoRoom),
            Answer::Compare(value) => Err(Blocked::Compare(value)),
            Answer::Got(_) | Answer::Elsewhere => return Ok(None),
        }))
    }

    async fn call<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        below: &Below<'_>,
        key: L::Key<'_>,
        action: Action<'_>,
    ) -> Attempt<Answer> {
        let server = below.node().server();
        let call = Call {
            layout: self.layout.id(),
            index_id: self.config.index_id,
            node: below.node(),
            level: below.level,
            key: self.layout.key_bytes(key),
            action,
        };
        let started = self.costs.start(ctx.ep);
        let answer = ctx.ep.call(server, &call).await?;
        self.costs.note_offload(ctx.ep, server, started);
        let counters = ctx.worker.counters();
        counters.count_offload(matches!(answer, Answer::Elsewhere | Answer::NoRoom));
        if !matches!(answer, Answer::Elsewhere) {
            counters.count_descent(below.inner);
            counters.count_miss(true);
        }
        Ok(answer)
    }

    /// Forgets a cooling copy of the leaf of `key`, whichever that is: the call failed, and may have changed it.
    async fn forget_copies<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        below: &Below<'_>,
        key: L::Key<'_>,
    ) -> Result<(), DexError> {
        for id in 0..self.cache.frames() as u32 {
            let frame = self.cache.frame(FrameId(id));
            let words = frame.words();
            // Nobody comes to a leaf below the missing node meanwhile, so that what is there stays as it is.
            let is_copy = frame.optimistic().is_ok_and(|version| version.state() == FrameState::Cooling)
                && header::level(words) == 0
                && self.layout.covers(words, key);
            if let Some(leaf) = GlobalAddr::from_raw(frame.addr()).filter(|_| is_copy) {
                self.forget_copy(ctx, below, leaf).await?;
            }
        }
        Ok(())
    }

    /// Forgets a cooling copy of the leaf that the memory server changed, before anybody can come to it again.
    async fn forget_copy<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        below: &Below<'_>,
        leaf: GlobalAddr,
    ) -> Result<(), DexError> {
        // The ticket of the leaf itself is the caller's, so there is no copy.
        if leaf == below.node() {
            return Ok(());
        }
        let patience = Patience::new(self.config.patience_ns);
        while self.cache.invalidate(ctx.worker, leaf).is_err() {
            patience.wait(ctx.ep, "the copy of a leaf").await?;
        }
        Ok(())
    }
}
