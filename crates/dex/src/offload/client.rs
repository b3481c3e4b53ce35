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
use crate::layout::Layout;
use crate::node::Target;
use crate::tree::{Ctx, Tree};
use crate::unfinished::Unfinished;

/// A missing node whose memory server may do what is to be done below it.
pub(crate) struct Below<'t> {
    pub from: From,
    pub ticket: CommonTicket<'t>,
    /// Of its parent.
    pub _pin: Pin<'t>,
}

/// Where a memory server goes down from.
#[derive(Clone, Copy)]
pub(crate) struct From {
    pub node: GlobalAddr,
    pub level: u8,
    /// Inner nodes that the operation went through.
    pub inner: u64,
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
        let answer = self.call(ctx, below.from, key, Action::Get).await?;
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
        let Below { from, ticket, _pin } = below;
        let node = ticket.keep();
        let remainder = self.under_way(|| {
            // Nobody asks the memory server for what it may be about to change.
            self.cache.table().close(node);
            Unfinished::Called { node, key: self.layout.key_bytes(key).into() }
        });
        let answer = match self.call(ctx, from, key, Action::Change(*change)).await {
            Ok(answer) => answer,
            // The memory server may have changed it. Others have to forget their copies first.
            Err(error) => {
                remainder.failed();
                return Err(error);
            }
        };
        if let Answer::Changed { leaf, outcome } = &answer
            && outcome.changed
            && self.forget_copy(ctx, node, *leaf).await.is_err()
        {
            // The change is made. Nobody comes to the copy before somebody has forgotten it.
            remainder.failed();
        } else {
            remainder.done();
            drop(self.cache.table().kept_share(node));
        }
        Ok(match answer {
            Answer::Changed { outcome, .. } => Some(Ok(outcome)),
            Answer::NoRoom => Some(Err(Blocked::NoRoom)),
            Answer::Compare(value) => Some(Err(Blocked::Compare(value))),
            Answer::Got(_) | Answer::Elsewhere => None,
        })
    }

    async fn call<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        From { node, level, inner }: From,
        key: L::Key<'_>,
        action: Action<'_>,
    ) -> Attempt<Answer> {
        let server = node.server();
        let call = Call {
            layout: self.layout.id(),
            index_id: self.config.index_id,
            node,
            level,
            key: self.layout.key_bytes(key),
            action,
        };
        let started = self.costs.start(ctx.ep);
        let answer = ctx.ep.call(server, &call).await?;
        self.costs.note_offload(ctx.ep, server, started);
        let counters = ctx.worker.counters();
        counters.count_offload(matches!(answer, Answer::Elsewhere | Answer::NoRoom));
        if !matches!(answer, Answer::Elsewhere) {
            counters.count_descent(inner);
            counters.count_miss(true);
        }
        Ok(answer)
    }

    /// Forgets a cooling copy of the leaf of `key` below a node, whichever that is: the call failed, and may have changed it.
    pub(crate) async fn forget_copies<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: GlobalAddr,
        key: L::Key<'_>,
    ) -> Result<(), DexError> {
        for id in 0..self.cache.frames() as u32 {
            let frame = self.cache.frame(FrameId(id));
            let page = self.node(frame.words());
            // Nobody comes to a leaf below the missing node meanwhile, so that what is there stays as it is.
            let is_copy = frame.optimistic().is_ok_and(|version| version.state() == FrameState::Cooling)
                && page.level() == 0
                && page.covers(Target::of(key));
            if let Some(leaf) = GlobalAddr::from_raw(frame.addr()).filter(|_| is_copy) {
                self.forget_copy(ctx, node, leaf).await?;
            }
        }
        Ok(())
    }

    /// Forgets a cooling copy of the leaf that the memory server changed, before anybody can come to it again.
    async fn forget_copy<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        node: GlobalAddr,
        leaf: GlobalAddr,
    ) -> Result<(), DexError> {
        // The ticket of the leaf itself is the caller's, so there is no copy.
        if leaf == node {
            return Ok(());
        }
        let patience = Patience::new(self.config.patience_ns);
        while self.cache.invalidate(ctx.worker, leaf).is_err() {
            patience.wait(ctx.ep, "the copy of a leaf").await?;
        }
        Ok(())
    }
}
