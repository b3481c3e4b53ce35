//! What was decided, and what changed into what.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pando_member::{View, VolumeId};

#[derive(Default)]
pub struct Chain {
    /// Decided views by epoch.
    pub decided: BTreeMap<u64, Vec<u8>>,
    /// From each value to those that a change made into it.
    before: HashMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    pub broken: Option<String>,
}

impl Chain {
    /// Epoch of the newest decided view; 0 if there is none.
    pub fn newest(&self) -> u64 {
        self.decided.last_key_value().map_or(0, |(epoch, _)| *epoch)
    }

    fn require(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds && self.broken.is_none() {
            self.broken = Some(otherwise());
        }
    }

    /// Notes that a change made `before` into `after`.
    pub fn changed(&mut self, before: &[u8], after: &[u8]) {
        if before == after {
            return;
        }
        if let (Ok(old), Ok(new)) = (View::decode(before), View::decode(after)) {
            for volume in (0..new.volumes()).map(|v| VolumeId(v as u16)) {
                let (in_use, number) = (new.volumes_in_use(), usize::from(volume.0));
                if number >= old.volumes() {
                    self.require(number >= in_use, || format!("{volume:?} was never planned"));
                    continue;
                }
                let is_whole = new.backups(volume).iter().filter(|copy| !copy.syncing).count() + 1
                    >= usize::from(new.replicas());
                let begins = number >= old.volumes_in_use() && number < in_use;
                self.require(!begins || is_whole, || format!("{volume:?} is in use, and not whole"));
                let Some(primary) = new.primary(volume) else {
                    let leaves = new.servers().get(number).is_some_and(|server| !server.stays());
                    self.require(leaves, || format!("{volume:?} is retired, and its server stays"));
                    continue;
                };
                let mut was = old.primary(volume).into_iter().chain(old.backups(volume).iter().copied());
                let whole = was.any(|copy| copy == primary)
                    && old.incarnation(primary.server) == new.incarnation(primary.server);
                self.require(whole, || format!("{primary:?} of {volume:?} was no whole copy"));
            }
        }
        self.before.entry(after.to_vec()).or_default().insert(before.to_vec());
    }

    /// Notes that a proposal decided `value`; when it began, the newest decided epoch was `newest`.
    pub fn decided(&mut self, value: &[u8], newest: u64) {
        let epoch = View::epoch_of(value).expect("a view");
        self.require(epoch >= newest, || format!("the view {epoch} was decided after {newest}"));
        let first = self.decided.entry(epoch).or_insert_with(|| value.to_vec());
        let same = first == value;
        self.require(same, || format!("two views {epoch} were decided"));
    }

    /// # Errors
    /// If a decided view does not come from that before it.
    pub fn check(&self) -> Result<(), String> {
        let mut decided = self.decided.iter().rev();
        let Some((_, newest)) = decided.next() else { return Ok(()) };
        let mut from = BTreeSet::from([newest.clone()]);
        for (epoch, value) in decided {
            while !from.is_empty() && !from.contains(value) {
                let newer = from.iter().filter(|bytes| View::epoch_of(bytes).is_ok_and(|it| it > *epoch));
                let before = newer.filter_map(|bytes| self.before.get(bytes));
                from = before.flatten().cloned().collect();
            }
            if from.is_empty() {
                return Err(format!("the decided view {epoch} has no part in the newest one"));
            }
            from = BTreeSet::from([value.clone()]);
        }
        Ok(())
    }
}
