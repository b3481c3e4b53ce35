//! The compute server's half: offloads an operation at a miss, and handles the answer (DEX §6.2).
//!
//! During the call the missing node carries the I/O mark and its parent is pinned. A refusal by the memory
//! server is no error: the operation restarts without offloading.

use pando_fabric::Endpoint;
use pando_pool::ValueRef;

use crate::change::{Blocked, Change, Outcome};
use crate::descent::forget;
use crate::descent::miss::{From, Offloadable};
use crate::error::Attempt;
use crate::layout::Layout;
use crate::offload::wire::{Action, Answer, Call, Found};
use crate::tree::leftovers::{Remainder, Unfinished};
use crate::tree::{Ctx, Tree};

/// Looks `key` up below a node. Returns whether it is present, and appends its value to `out` or returns a
/// reference to it. `None` if the memory server refused.
pub(crate) async fn get_below<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    below: Offloadable<'_>,
    key: L::Key<'_>,
    out: &mut Vec<u8>,
) -> Attempt<Option<(bool, Option<ValueRef>)>> {
    let answer = call(tree, ctx, below.from, key, Action::Get).await?;
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

/// Makes a change below a node; `None` if the memory server refused.
pub(crate) async fn change_below<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    below: Offloadable<'_>,
    key: L::Key<'_>,
    change: &Change<'_>,
) -> Attempt<Option<std::result::Result<Outcome, Blocked>>> {
    let Offloadable { from, ticket, _pin } = below;
    let node = ticket.keep();
    let remainder = Remainder::under_way(tree, || {
        // Close the mark: nothing more may be offloaded below a node that the memory server may still change.
        tree.cache.table().close(node);
        Unfinished::Called { node, key: tree.layout.key_bytes(key).into() }
    });
    let answer = match call(tree, ctx, from, key, Action::Change(*change)).await {
        Ok(answer) => answer,
        // The memory server may have changed the leaf. Copies of it must be forgotten before the ticket is
        // dropped.
        Err(error) => {
            remainder.failed();
            return Err(error);
        }
    };
    if let Answer::Changed { leaf, outcome } = &answer
        && outcome.changed
        && forget::forget_copy(tree, ctx, node, *leaf).await.is_err()
    {
        // The change was made. The leftover keeps operations away from the copy until it is forgotten.
        remainder.failed();
    } else {
        remainder.done();
        drop(tree.cache.table().kept_share(node));
    }
    Ok(match answer {
        Answer::Changed { outcome, .. } => Some(Ok(outcome)),
        Answer::NoRoom => Some(Err(Blocked::NoRoom)),
        Answer::Compare(value) => Some(Err(Blocked::Compare(value))),
        Answer::Got(_) | Answer::Elsewhere => None,
    })
}

async fn call<L: Layout, E: Endpoint>(
    tree: &Tree<L>,
    ctx: Ctx<'_, E>,
    From { node, level, inner }: From,
    key: L::Key<'_>,
    action: Action<'_>,
) -> Attempt<Answer> {
    let server = node.server();
    let call = Call {
        layout: tree.layout.id(),
        index_id: tree.config.index_id,
        node,
        level,
        key: tree.layout.key_bytes(key),
        action,
    };
    let started = tree.costs.start(ctx.ep);
    let answer = ctx.ep.call(server, &call).await?;
    tree.costs.note_offload(ctx.ep, server, started);
    let counters = ctx.worker.counters();
    counters.count_offload(matches!(answer, Answer::Elsewhere | Answer::NoRoom));
    if !matches!(answer, Answer::Elsewhere) {
        counters.count_descent(inner);
        counters.count_miss(true);
    }
    Ok(answer)
}
