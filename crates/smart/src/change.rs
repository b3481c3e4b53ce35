//! Lookups and changes of single keys (SMART §4.3, §5).
//!
//! All changes of a key on one compute server go through its groups. A change of an existing entry updates
//! its leaf. A removal marks the leaf dead, at which it takes effect, and then clears the slot. New entries
//! are in `insert.rs`.

use std::sync::Arc;

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, Resource, Work};

use crate::defect::Defect;
use crate::descend::{Goal, Spot};
use crate::error::{Attempt, Result, Retry, SmartError};
use crate::groups::{Entered, Turn, hash_of};
use crate::layout::leaf::{Leaf, Rear};
use crate::layout::slot::Slot;
use crate::leaves::{Place, Writer};
use crate::tree::{Kind, Op, Outcome, Smart, Wanted};

/// Charges entering or leaving the groups of a key, which one thread of a compute server can do at a time.
fn charge_local_lock<E: Endpoint>(ep: &E, key: &[u8]) {
    ep.charge(Work::Hold(Resource::Frame(hash_of(key) as u32)));
}

type ChangeTurn<'t> = Turn<'t, Wanted, Outcome>;

impl Smart {
    /// Appends the value of `key` to `out`; `false` if the key is absent.
    ///
    /// # Errors
    /// Keys of other partitions; corruption; too long a wait; errors of the fabric.
    pub async fn get<E: Endpoint>(&self, ep: &E, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        self.check_own(key)?;
        let what = "a key to be found";
        if !self.config.techniques.read_delegation {
            return self.run(ep, what, async |op| self.try_get(op, key, out).await).await;
        }
        let patience = self.patience();
        let before_wait = || {
            patience.deadline(ep);
        };
        let late = self.config.late_followers_unsound;
        charge_local_lock(ep, key);
        let found = match self.lookups.enter(key, (), |(), ()| true, late, before_wait).await {
            Entered::Shares(found, _) => found,
            Entered::Fails => return Err(SmartError::Combined),
            Entered::Executes(turn) => {
                turn.close();
                let mut value = Vec::new();
                let attempt = async |op: &Op<'_, E>| self.try_get(op, key, &mut value).await;
                let is_there = self.run_within(ep, &patience, what, attempt).await?;
                let found = is_there.then(|| Arc::from(value));
                turn.finish(found.clone());
                found
            }
        };
        charge_local_lock(ep, key);
        if let Some(value) = &found {
            ep.charge(Work::Copy { bytes: value.len() });
            out.extend_from_slice(value);
        }
        Ok(found.is_some())
    }

    async fn try_get<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], out: &mut Vec<u8>) -> Attempt<bool> {
        let spot = self.find(op, key, Goal::GET).await?;
        if let Spot::Leaf(_, leaf) = spot {
            leaf.append_value(out);
            op.ep.recycle(leaf.into_page());
            return Ok(true);
        }
        Ok(false)
    }

    /// Stores a value; returns whether the key was present.
    ///
    /// # Errors
    /// Entries too long for a block; keys of other partitions; a full pool; corruption; too long a wait;
    /// errors of the fabric.
    pub async fn put<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, Kind::Put, value).await?.existed)
    }

    /// Stores a value under an absent key. Returns `false` and changes nothing if the key is present.
    ///
    /// # Errors
    /// As for [`Smart::put`].
    pub async fn insert<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, Kind::Insert, value).await?.changed)
    }

    /// Stores a value under a present key. Returns `false` and changes nothing if the key is absent.
    ///
    /// # Errors
    /// As for [`Smart::put`].
    pub async fn update<E: Endpoint>(&self, ep: &E, key: &[u8], value: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, Kind::Update, value).await?.changed)
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// As for [`Smart::get`].
    pub async fn remove<E: Endpoint>(&self, ep: &E, key: &[u8]) -> Result<bool> {
        Ok(self.change(ep, key, Kind::Remove, &[]).await?.changed)
    }

    async fn change<E: Endpoint>(&self, ep: &E, key: &[u8], kind: Kind, value: &[u8]) -> Result<Outcome> {
        self.check_own(key)?;
        self.check_entry(key, value)?;
        let combines = self.config.techniques.write_combining;
        let joins = |last: &Wanted, more: &Wanted| {
            combines && last.kind == more.kind && matches!(more.kind, Kind::Put | Kind::Update)
        };
        // Operations of a group count as consecutive: every put but the first finds the value of the one
        // before.
        let in_turn = |outcome: Outcome, is_first: bool| Outcome {
            existed: outcome.existed || (kind == Kind::Put && !is_first),
            ..outcome
        };
        let wanted = Wanted { kind, value: value.into() };
        let patience = self.patience();
        let before_wait = || {
            patience.deadline(ep);
        };
        let late = defect(Defect::LateCombining);
        charge_local_lock(ep, key);
        let outcome = match self.changes.enter(key, wanted, joins, late, before_wait).await {
            Entered::Shares(outcome, is_first) => Ok(in_turn(outcome, is_first)),
            Entered::Fails => Err(SmartError::Combined),
            Entered::Executes(turn) => {
                let attempt = async |op: &Op<'_, E>| self.try_change(op, key, kind, &turn).await;
                let done = self.run_within(ep, &patience, "a key to be changed", attempt).await;
                match done {
                    Ok(outcome) => Ok(in_turn(outcome, turn.finish(outcome))),
                    Err(error) => {
                        match error.may_have_taken_effect() {
                            true => drop(turn),
                            false => turn.give_up(),
                        }
                        Err(error)
                    }
                }
            }
        };
        charge_local_lock(ep, key);
        outcome
    }

    async fn try_change<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        kind: Kind,
        turn: &ChangeTurn<'_>,
    ) -> Attempt<Outcome> {
        let puts = matches!(kind, Kind::Put | Kind::Insert);
        if kind == Kind::Update && !op.trusts_cache {
            // Only members that came before the absence is found may share it.
            turn.close();
        }
        let goal = if puts { Goal::PUT } else { Goal::CHANGE };
        match (self.find(op, key, goal).await?, kind) {
            (Spot::Leaf(..), Kind::Insert) => Ok(Outcome { existed: true, changed: false }),
            (Spot::Leaf(place, leaf), Kind::Remove) => {
                self.take_out(op, key, place, leaf).await?;
                Ok(Outcome { existed: true, changed: true })
            }
            (Spot::Leaf(place, leaf), _) => {
                self.overwrite(op, key, place, leaf, turn).await?;
                Ok(Outcome { existed: true, changed: true })
            }
            (spot, _) if puts => {
                self.add(op, key, &turn.close().value, spot).await?;
                Ok(Outcome { existed: false, changed: true })
            }
            (_, Kind::Update) if op.trusts_cache => {
                turn.close();
                Err(Retry::Restart)
            }
            _ => Ok(Outcome { existed: false, changed: false }),
        }
    }

    async fn overwrite<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: Place,
        leaf: Leaf,
        turn: &ChangeTurn<'_>,
    ) -> Attempt<()> {
        if self.anchor.techniques.in_place_leaves {
            let (hold, leaf) = self.hold(op, &place, leaf, key).await?;
            let value = turn.close().value;
            if self.write_value(op, hold, &leaf, &value).await? {
                op.ep.recycle(leaf.into_page());
                return Ok(());
            }
            op.ep.recycle(leaf.into_page());
            // The value needs a larger leaf.
            let leaf = self.read_leaf(op, place.slot.addr(), place.slot.leaf_size()).await?;
            return self.move_leaf(op, key, place, leaf, &value).await;
        }
        self.move_leaf(op, key, place, leaf, &turn.close().value).await
    }

    /// Replaces the key's leaf by a new one.
    async fn move_leaf<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: Place,
        leaf: Leaf,
        value: &[u8],
    ) -> Attempt<()> {
        if matches!(leaf.rear(), Rear::Dead | Rear::Moved(_)) {
            return Err(Retry::Restart);
        }
        let (new, block) = self.new_leaf(op, key, value, place.slot.byte()).await?;
        let gone = if defect(Defect::NoForwarding) { Rear::dead(op.ep.random()) } else { Rear::moved(new) };
        if let Err(retry) = self.set_gone(op, &place, leaf, key, gone).await {
            return Err(self.undo(op.ep, &[block], retry).await);
        }
        // The update has taken effect; readers of the old leaf are forwarded.
        match self.swap(op, key, &place, new, Writer::Shared).await {
            Ok(Ok(())) => self.retire_leaf(op, place.slot),
            Ok(Err(_)) => {}
            Err(retry) => self.doubt_leaf(&retry, place.slot),
        }
        Ok(())
    }

    async fn take_out<E: Endpoint>(
        &self,
        op: &Op<'_, E>,
        key: &[u8],
        place: Place,
        leaf: Leaf,
    ) -> Attempt<()> {
        self.set_gone(op, &place, leaf, key, Rear::dead(op.ep.random())).await?;
        // The removal has taken effect; the rest may be left to others.
        let _ = self.clear_slot(op, key, place).await;
        Ok(())
    }

    /// Clears the slot of a dead leaf, and replaces its node if that is nearly empty.
    async fn clear_slot<E: Endpoint>(&self, op: &Op<'_, E>, key: &[u8], place: Place) -> Attempt<()> {
        let mut place = place;
        let dead: Slot = place.slot;
        loop {
            let swapped = self.swap(op, key, &place, place.vacated(), Writer::Shared).await;
            match swapped.inspect_err(|retry| self.doubt_leaf(retry, dead))? {
                Ok(()) => break,
                Err(found) if found.target() == dead.target() && !found.is_frozen() => place.slot = found,
                Err(_) => {
                    // A node was put above the leaf, or its own node is being replaced.
                    let again = Op { trusts_cache: false, ..*op };
                    match self.find(&again, key, Goal::PUT).await? {
                        Spot::Vacant(there)
                            if there.slot.is_leaf() && there.slot.target() == dead.target() =>
                        {
                            place = there;
                        }
                        _ => return Ok(()),
                    }
                }
            }
        }
        self.retire_leaf(op, dead);
        self.shrink(op, key, &place).await
    }
}
