//! Moves of keys between compute servers while operations run: of boundaries, to added servers, from removed
//! servers.
//!
//! A move transfers one end of a compute server's keys, or all of them, to a neighbour or to a server without
//! keys, in the same process. The cut is a key of the run or near one. A move that is impossible, because
//! keys of the process are moving already or the draw makes no sense, is not a failure.

use std::sync::Arc;

use pando_dex::layout::Layout;
use pando_dex::{DexError, KeyRange, Leaving, Party, RoutingTable, flush_side_by_side, move_keys};

use super::client::Client;
use super::dex::Dex;
use super::history::Answer;

/// Range of keys, old owner and new owner.
pub type KeyMove = (KeyRange, usize, usize);

impl<L: Layout> Dex<L> {
    /// A move that must be repeated and then continues where it stopped: it failed or was cut off while the
    /// new owner took over.
    pub(super) fn unmade_move(&self) -> Option<(usize, KeyMove)> {
        self.moves.iter().enumerate().find_map(|(process, latest)| {
            let latest = latest.borrow();
            let (_, _, to) = latest.as_ref()?;
            pando_dex::is_taking_over(&self.life(*to).tree)
                .then(|| latest.clone().map(|latest| (process, latest)))?
        })
    }
}

impl<L: Layout> Client<Dex<L>> {
    /// Moves some keys; before any others, those of an interrupted move whose new owner has begun to take
    /// over.
    pub(super) async fn move_some(&self) -> Result<Answer, DexError> {
        if let Some((process, unmade)) = self.index.unmade_move() {
            return self.make_move(process, unmade).await;
        }
        let Some(at) = self.draw_cut() else { return Ok(Answer::Done) };
        let process = self.index.process_of(&at);
        match self.draw_move(&self.index.routes[process].table(), at, process) {
            Some(drawn) => self.make_move(process, drawn).await,
            None => Ok(Answer::Done),
        }
    }

    async fn make_move(&self, process: usize, (range, from, to): KeyMove) -> Result<Answer, DexError> {
        let using = [from, to].map(|server| (server, self.using(server)));
        let [leaves, comes] = using.each_ref().map(|(server, using)| {
            let (tree, ctx) = using.server(&self.ep);
            Party { server: *server, tree, ctx }
        });
        let ctx = leaves.ctx;
        let workers = self.index.case.moves.flush_workers;
        let flush = async |leaving: Arc<Leaving<'_, L>>| flush_side_by_side(&leaving, ctx, workers).await;
        // The new owner begins only after this.
        let record = async |_: &RoutingTable| {
            *self.index.moves[process].borrow_mut() = Some((range.clone(), from, to));
            Ok(())
        };
        let routes = &self.index.routes[process];
        match move_keys(routes, leaves, comes, range.clone(), flush, record).await {
            Ok(_) | Err(DexError::Moving | DexError::Routes(_)) => Ok(Answer::Done),
            Err(error) => Err(error),
        }
    }

    /// Draws a range of keys of a process, with their owner and the new owner.
    fn draw_move(&self, table: &RoutingTable, at: Vec<u8>, process: usize) -> Option<KeyMove> {
        let is_ours = |server: &usize| self.index.process_of_server(*server) == process;
        let partitions = table.owners().len();
        let partition = if self.below(4) == 0 { self.below(partitions) } else { table.partition_of(&at) };
        let from = table.owners()[partition];
        if !is_ours(&from) {
            return None;
        }
        let own = table.range(partition);
        let mut spare =
            (0..self.index.servers()).filter(|&server| table.partition_owned_by(server).is_none());
        let spare = spare.find(is_ours);
        let (below, above) = (
            partition.checked_sub(1).map(|below| table.owners()[below]).filter(is_ours),
            table.owners().get(partition + 1).copied().filter(is_ours),
        );
        let is_inside = own.contains(&at) && own.low.as_ref() != Some(&at);
        let (range, neighbour) = match self.below(8) {
            0 => (own, if self.below(2) == 0 { below } else { above }),
            1..4 if is_inside => (KeyRange { high: Some(at), ..own }, below),
            _ if is_inside => (KeyRange { low: Some(at), ..own }, above),
            _ => return None,
        };
        let to = if self.below(3) == 0 { spare.or(neighbour) } else { neighbour.or(spare) };
        Some((range, from, to?))
    }

    /// A key of the run, or one close to it of the same size.
    fn draw_cut(&self) -> Option<Vec<u8>> {
        let mut key = self.book.keys[self.below(self.book.keys.len())].clone();
        if self.below(3) == 0 {
            let last = key.last_mut()?;
            *last = last.wrapping_add(1 + self.below(2) as u8);
        }
        // No key is below the empty one.
        (!key.is_empty()).then_some(key)
    }
}
