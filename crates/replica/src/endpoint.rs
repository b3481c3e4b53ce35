//! The endpoint that writes all copies.
//!
//! READs go to the primary. A WRITE reaches the backups, then the primary, and is answered after that; one of bytes that
//! nobody reads meanwhile reaches all at once. An atomic changes the primary; its caller then makes the backups equal.
//!
//! If a server does not answer, a verb that can be repeated without harm waits for another view, or for the server, and is
//! sent again. A READ can, and a WRITE of what nobody else may write before it is answered. An atomic cannot, nor a WRITE
//! that may give a lock back, once the primary may have executed it: others change what the lock protects from then on. The
//! caller learns that its outcome is unknown. But if that primary is lost, the outcome is what the next one answered.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pando_fabric::defect::defect;
use pando_fabric::{
    Chain, ChainVerb, Endpoint, EndpointState, FabricError, GlobalAddr, Growing, MemoryServerId, Nanos,
    PageBuf, RegionInfo, Result, TimeLimit, VerbResult, WORD, Work, join_all, outlined,
};

use crate::again::{Kept, Step, buffer_of};
use crate::defect::Defect;
use crate::placement::{Placement, Replica, Volume};
use crate::views::Views;

/// A verb that waits for another view is sent again after at most this part of its patience.
const TRIES: Nanos = 256;
/// Steps in which it looks for another view until then.
const LOOKS: Nanos = 8;

/// An endpoint of volumes, each of which has copies on several memory servers; or, without copies, the endpoint below,
/// whose verbs it then passes on as they are.
pub struct Replicated<E> {
    below: E,
    group: Option<Group>,
}

/// The volumes.
struct Group {
    views: Arc<dyn Views>,
    /// Placement in the view that the endpoint below has entered.
    entered: RefCell<Arc<Placement>>,
    /// The volumes as regions, after each addition; the last list is current.
    regions: Growing<Vec<RegionInfo>>,
}

/// How long a verb has waited.
#[derive(Default)]
struct Waited {
    until: Option<Nanos>,
}

/// What became of a verb at the copies to which it was sent; each copy is named by where it begins.
#[derive(Default)]
struct Outcomes {
    executed: Vec<GlobalAddr>,
    unknown: Vec<GlobalAddr>,
    /// View in which it was sent last.
    epoch: u64,
}

/// Whether a copy may have executed a WRITE that was sent to several, perhaps repeatedly.
#[derive(Default)]
struct Begun(Cell<bool>);

/// What became of a verb that all others see at one copy.
enum Outcome {
    NotExecuted,
    Executed,
    /// This server did not answer.
    Unknown(MemoryServerId),
}

/// An atomic, and what it makes of a word.
#[derive(Clone, Copy)]
enum Atomic {
    CompareSwap { expected: u64, new: u64 },
    MaskedCompareSwap { expected: u64, compare_mask: u64, new: u64, swap_mask: u64 },
    FetchAdd { add: u64 },
}

impl Atomic {
    fn result(self, before: u64) -> u64 {
        match self {
            Self::CompareSwap { expected, new } if before == expected => new,
            Self::MaskedCompareSwap { expected, compare_mask, new, swap_mask }
                if before & compare_mask == expected & compare_mask =>
            {
                before & !swap_mask | new & swap_mask
            }
            Self::CompareSwap { .. } | Self::MaskedCompareSwap { .. } => before,
            Self::FetchAdd { add } => before.wrapping_add(add),
        }
    }

    async fn execute<E: Endpoint>(self, ep: &E, at: GlobalAddr) -> Result<u64> {
        match self {
            Self::CompareSwap { expected, new } => ep.compare_swap(at, expected, new).await,
            Self::MaskedCompareSwap { expected, compare_mask, new, swap_mask } => {
                ep.masked_compare_swap(at, expected, compare_mask, new, swap_mask).await
            }
            Self::FetchAdd { add } => ep.fetch_add(at, add).await,
        }
    }
}

impl<E> Replicated<E> {
    /// Passes verbs on to `below` as they are.
    pub fn single(below: E) -> Self {
        Self { below, group: None }
    }

    /// The endpoint that carries the verbs.
    pub fn below(&self) -> &E {
        &self.below
    }
}

impl<E: Endpoint> Replicated<E> {
    /// Uses the copies that `views` names.
    pub fn new(below: E, views: Arc<dyn Views>) -> Self {
        let placement = views.placement();
        below.enter_view(placement.epoch);
        let regions = Growing::new(vec![placement.regions()]);
        Self { below, group: Some(Group { views, entered: RefCell::new(placement), regions }) }
    }

    /// The placement for the next verb.
    fn placement(&self, group: &Group) -> Arc<Placement> {
        if group.views.epoch(self.below.now()) != group.entered.borrow().epoch {
            let newest = group.views.placement();
            self.below.enter_view(newest.epoch);
            if newest.volumes.len() > group.regions().len() {
                // If there is no room for so many additions, the volume is found when the pool is opened anew.
                let _ = group.regions.push(newest.regions());
            }
            *group.entered.borrow_mut() = newest;
        }
        Arc::clone(&group.entered.borrow())
    }

    /// Checks that there are `len` bytes at `at`. If there is no such volume, it may be new: this looks for one for a while.
    async fn check(&self, group: &Group, at: GlobalAddr, len: usize) -> Result<()> {
        match group.check(at, len) {
            Err(FabricError::UnknownServer(_)) => {}
            checked => return checked,
        }
        let patience = group.views.patience() / LOOKS;
        let (pause, until) = ((patience / TRIES).max(1), self.below.now().saturating_add(patience));
        loop {
            let _ = self.placement(group);
            let checked = group.check(at, len);
            if !matches!(checked, Err(FabricError::UnknownServer(_))) || self.below.now() >= until {
                return checked;
            }
            group.views.look();
            self.below.sleep_until(self.below.now() + pause).await;
        }
    }

    /// Whether the view of a placement is still the newest one.
    fn is_current(&self, group: &Group, placement: &Placement) -> bool {
        group.views.epoch(self.below.now()) == placement.epoch || defect(Defect::ViewNotCompared)
    }

    /// After a verb in view `epoch` failed, waits until it makes sense to send it again.
    ///
    /// # Errors
    /// The error of the verb, if the server did answer, or the patience has ended.
    async fn wait(&self, group: &Group, epoch: u64, error: FabricError, waited: &mut Waited) -> Result<()> {
        let Some(server) = error.unreached() else { return Err(error) };
        let (now, patience) = (self.below.now(), group.views.patience());
        let until = *waited.until.get_or_insert_with(|| self.below.wait_until(now, patience));
        if now >= until {
            return Err(error);
        }
        group.views.suspect(epoch, server, now);
        let pause = (patience / TRIES).max(1);
        let again = until.min(now + pause);
        while self.below.now() < again && group.views.epoch(self.below.now()) == epoch {
            self.below.sleep_until(again.min(self.below.now() + (pause / LOOKS).max(1))).await;
        }
        Ok(())
    }

    /// Sends a WRITE to one copy after the other. It must not be repeated once a primary may have executed it, as all others
    /// see what the primary has. `attempt` sends it to a copy with `bufs`, and `fresh` makes such.
    ///
    /// In another view no copy lacks it: a new primary was asked before the old one, and copies that are filled get it from the
    /// primary.
    ///
    /// # Errors
    /// Those of the verb. If a copy may have executed it, the error says so.
    async fn once<T>(
        &self,
        group: &Group,
        at: GlobalAddr,
        first: T,
        fresh: impl Fn() -> T,
        mut attempt: impl AsyncFnMut(Replica, T) -> Result<T>,
    ) -> Result<T> {
        let (mut waited, mut outcomes, mut first) = (Waited::default(), Outcomes::default(), Some(first));
        loop {
            let placement = self.placement(group);
            let volume = &placement.volumes[usize::from(at.server().0)];
            match outcomes.of_primary(&placement, volume) {
                _ if defect(Defect::ReleaseRepeated) => {}
                Outcome::Executed => return Ok(fresh()),
                Outcome::Unknown(server) => return Err(FabricError::ServerUnreachable(server)),
                Outcome::NotExecuted => {}
            }
            outcomes.enter(placement.epoch, volume);
            let mut bufs = first.take().unwrap_or_else(&fresh);
            let done = async || {
                for copy in in_order(volume) {
                    let sent = attempt(copy, bufs).await;
                    outcomes.note(copy, &sent);
                    bufs = sent?;
                }
                Ok(bufs)
            };
            match done().await {
                Ok(bufs) => return Ok(bufs),
                Err(_) if outcomes.unknown.contains(&volume.primary.at(0)) => {
                    // An answer tells that this primary lives, another view that it is lost.
                    let _ = self.read_word_of_copy(group, at).await;
                }
                Err(error) => {
                    let wait = self.wait(group, placement.epoch, error, &mut waited).await;
                    wait.map_err(|error| if outcomes.is_none() { error } else { error.as_unknown() })?;
                }
            }
        }
    }

    /// Repeats a verb to one or several copies of the volume at `at` until it succeeds.
    async fn repeat<T>(
        &self,
        group: &Group,
        at: GlobalAddr,
        mut attempt: impl AsyncFnMut(&Volume) -> Result<T>,
    ) -> Result<T> {
        let mut waited = Waited::default();
        loop {
            let placement = self.placement(group);
            match attempt(&placement.volumes[usize::from(at.server().0)]).await {
                // In another view it may have to reach other copies.
                Ok(done) if self.is_current(group, &placement) => return Ok(done),
                Ok(_) => {}
                Err(error) => self.wait(group, placement.epoch, error, &mut waited).await?,
            }
        }
    }

    async fn read_copy(&self, group: &Group, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        self.check(group, at, into.window_len()).await?;
        let (kept, mut first) = (Kept::of_read(&self.below, &into), Some(into));
        let read = self
            .repeat(group, at, async |volume| {
                let into = first.take().unwrap_or_else(|| kept.again(&self.below));
                self.below.read(volume.primary.at(at.offset()), into).await
            })
            .await?;
        kept.recycle(&self.below);
        Ok(read)
    }

    /// Sends a WRITE to one copy after the other, [repeatedly](Self::repeat) or [once](Self::once).
    async fn write_each<T>(
        &self,
        group: &Group,
        at: GlobalAddr,
        may_repeat: bool,
        first: T,
        fresh: impl Fn() -> T,
        mut attempt: impl AsyncFnMut(Replica, T) -> Result<T>,
    ) -> Result<T> {
        if !may_repeat {
            return self.once(group, at, first, fresh, attempt).await;
        }
        let (mut first, begun) = (Some(first), Begun::default());
        let written = self.repeat(group, at, async |volume| {
            let mut bufs = first.take().unwrap_or_else(&fresh);
            for copy in in_order(volume) {
                bufs = begun.note(attempt(copy, bufs).await)?;
            }
            Ok(bufs)
        });
        written.await.map_err(|error| begun.error(error))
    }

    async fn write_copies(
        &self,
        group: &Group,
        at: GlobalAddr,
        from: PageBuf,
        may_repeat: bool,
    ) -> Result<PageBuf> {
        self.check(group, at, from.window_len()).await?;
        let kept = Kept::of_write(&self.below, &from);
        let again = || kept.again(&self.below);
        let write = async |copy: Replica, from| self.below.write(copy.at(at.offset()), from).await;
        let written = self.write_each(group, at, may_repeat, from, again, write).await?;
        kept.recycle(&self.below);
        Ok(written)
    }

    /// WRITEs to all copies at once: nobody reads what only some of them have.
    async fn write_copies_at_once(&self, group: &Group, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        self.check(group, at, from.window_len()).await?;
        let (kept, mut first) = (Kept::of_write(&self.below, &from), Some(from));
        let begun = Begun::default();
        let written = self
            .repeat(group, at, async |volume| {
                let writes = in_order(volume).map(|copy| {
                    let buf = first.take().unwrap_or_else(|| kept.again(&self.below));
                    self.below.write(copy.at(at.offset()), buf)
                });
                let written = join_all(writes).await.into_iter().map(|written| begun.note(written));
                let written = written.collect::<Vec<_>>().into_iter().collect::<Result<Vec<_>>>()?;
                let mut written = written.into_iter();
                let one = written.next().expect("a volume has a copy");
                written.for_each(|buf| self.below.recycle(buf));
                Ok(one)
            })
            .await
            .map_err(|error| begun.error(error))?;
        kept.recycle(&self.below);
        Ok(written)
    }

    async fn read_word_of_copy(&self, group: &Group, at: GlobalAddr) -> Result<u64> {
        self.check(group, at, WORD).await?;
        self.repeat(group, at, async |volume| self.below.read_word(volume.primary.at(at.offset())).await)
            .await
    }

    async fn write_word_of_copies(&self, group: &Group, at: GlobalAddr, value: u64) -> Result<()> {
        self.check(group, at, WORD).await?;
        let write = async |copy: Replica, ()| self.below.write_word(copy.at(at.offset()), value).await;
        self.once(group, at, (), || (), write).await
    }

    /// Executes an atomic at the primary, and makes the backups equal if it changed the word.
    async fn atomic(&self, group: &Group, at: GlobalAddr, atomic: Atomic) -> Result<u64> {
        outlined(Box::pin(self.atomic_copies(group, at, atomic))).await
    }

    async fn atomic_copies(&self, group: &Group, at: GlobalAddr, atomic: Atomic) -> Result<u64> {
        self.check(group, at, WORD).await?;
        let mut waited = Waited::default();
        let (before, primary) = loop {
            let placement = self.placement(group);
            let primary = placement.volumes[usize::from(at.server().0)].primary;
            match atomic.execute(&self.below, primary.at(at.offset())).await {
                Ok(before) => break (before, primary),
                Err(error @ FabricError::NotConnected { .. }) => {
                    self.wait(group, placement.epoch, error, &mut waited).await?;
                }
                Err(error) => {
                    // Whoever reads the word finds out what became of it, and must not lose that with the primary.
                    if error.may_have_taken_effect() && !defect(Defect::UnknownUncopied) {
                        let _ = self.level(group, at).await;
                    }
                    return Err(error);
                }
            }
        };
        let after = atomic.result(before);
        if after != before && !defect(Defect::AtomicsUncopied) {
            let copied = self.make_equal(group, at, primary, before, after).await;
            copied
                .map_err(|error| if defect(Defect::LastAnswerCounts) { error } else { error.as_unknown() })?;
        }
        Ok(before)
    }

    /// Makes the backups of a word equal to the primary, which this endpoint has changed from `before` to `after`.
    ///
    /// Several endpoints may do so at once. Each compares with the primary *after* it has changed a backup, so the last
    /// one that changes a backup leaves it equal.
    ///
    /// If the primary is lost meanwhile, the change is done if the next one was a backup that has made it: all changes before it
    /// are in the word there, and the others become equal to that.
    ///
    /// # Errors
    /// If the primary was lost, and it is not known whether the next one had the change.
    async fn make_equal(
        &self,
        group: &Group,
        at: GlobalAddr,
        primary: Replica,
        before: u64,
        after: u64,
    ) -> Result<()> {
        let (offset, below) = (at.offset(), &self.below);
        // The backups that made the change in the last view of this primary, and that view.
        let (mut made, mut in_view) = (Vec::new(), 0);
        let lost = self.repeat(group, at, async |volume| {
            let epoch = group.entered.borrow().epoch;
            if volume.primary != primary {
                let has_it = epoch == in_view + 1 && made.contains(&volume.primary.at(0));
                return Ok(Some(has_it || defect(Defect::AtomicForgotten)));
            }
            if std::mem::replace(&mut in_view, epoch) != epoch {
                made.clear();
            }
            for backup in &volume.backups {
                let (mut old, mut new) = (before, after);
                loop {
                    let found = below.compare_swap(backup.at(offset), old, new).await?;
                    if found == old && (old, new) == (before, after) {
                        made.push(backup.at(0));
                    }
                    if found == old && defect(Defect::WordNotCompared) {
                        break;
                    }
                    let current = below.read_word(primary.at(offset)).await?;
                    let copy = if found == old { new } else { found };
                    if copy == current {
                        break;
                    }
                    (old, new) = (copy, current);
                }
            }
            Ok(None)
        });
        match lost.await? {
            None => Ok(()),
            Some(true) => outlined(Box::pin(self.level(group, at))).await,
            Some(false) => Err(FabricError::ServerUnreachable(primary.server)),
        }
    }

    /// Makes the backups of a word equal to the primary.
    async fn level(&self, group: &Group, at: GlobalAddr) -> Result<()> {
        let current = self.read_word_of_copy(group, at).await?;
        let primary = self.placement(group).volumes[usize::from(at.server().0)].primary;
        self.make_equal(group, at, primary, current, current).await
    }

    /// A chain of READs alone goes to the primary, one of WRITEs alone to all copies. Of any other chain, verbs are
    /// executed one after the other, each in a round trip of its own.
    async fn submit_copies(&self, group: &Group, chain: Chain) -> Result<Vec<VerbResult>> {
        for verb in chain.verbs() {
            self.check(group, verb.at(), verb.len()).await?;
        }
        let all = |kind: fn(&ChainVerb) -> bool| chain.verbs().iter().all(kind);
        let is_read = all(|verb| matches!(verb, ChainVerb::Read { .. }));
        let is_write = all(|verb| matches!(verb, ChainVerb::Write { .. } | ChainVerb::WriteWord { .. }));
        if chain.verbs().is_empty() {
            return Ok(Vec::new());
        }
        if is_read {
            self.submit_read(group, chain).await
        } else if is_write {
            self.submit_write(group, chain).await
        } else {
            self.submit_in_turn(chain).await
        }
    }

    async fn submit_read(&self, group: &Group, chain: Chain) -> Result<Vec<VerbResult>> {
        let at = chain.verbs()[0].at();
        let (steps, bufs) = self.taken_apart(chain);
        let mut first = Some(bufs);
        let read = self
            .repeat(group, at, async |volume| {
                let bufs = first.take().unwrap_or_else(|| steps.iter().map(|_| None).collect());
                self.below.submit(self.put_together(&steps, bufs, volume.primary)).await
            })
            .await?;
        steps.into_iter().for_each(|step| step.recycle(&self.below));
        Ok(read)
    }

    async fn submit_write(&self, group: &Group, chain: Chain) -> Result<Vec<VerbResult>> {
        let at = chain.verbs()[0].at();
        let may_repeat = chain.verbs().iter().all(|verb| matches!(verb, ChainVerb::Write { .. }));
        let (steps, bufs) = self.taken_apart(chain);
        let fresh = || steps.iter().map(|_| None).collect();
        let attempt = async |copy, bufs| {
            let results = self.below.submit(self.put_together(&steps, bufs, copy)).await?;
            Ok(results.into_iter().map(buffer_of).collect())
        };
        let bufs: Vec<_> = self.write_each(group, at, may_repeat, bufs, fresh, attempt).await?;
        steps.into_iter().for_each(|step| step.recycle(&self.below));
        let result = |buf: Option<PageBuf>| buf.map_or(VerbResult::Done, VerbResult::Buf);
        Ok(bufs.into_iter().map(result).collect())
    }

    /// What is needed to send a chain several times, and its buffers.
    fn taken_apart(&self, chain: Chain) -> (Vec<Step>, Vec<Option<PageBuf>>) {
        chain.into_verbs().into_iter().map(|verb| Step::of(&self.below, verb)).unzip()
    }

    /// A chain for one copy.
    fn put_together(&self, steps: &[Step], bufs: Vec<Option<PageBuf>>, copy: Replica) -> Chain {
        let parts = steps.iter().zip(bufs);
        parts.fold(Chain::new(), |chain, (step, buf)| step.push(chain, &self.below, &copy, buf))
    }

    /// The verbs of a chain of several kinds, one after the other.
    async fn submit_in_turn(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        let mut results = Vec::new();
        for verb in chain.into_verbs() {
            results.push(match verb {
                ChainVerb::Read { at, into } => VerbResult::Buf(self.read(at, into).await?),
                ChainVerb::Write { at, from } => VerbResult::Buf(self.write(at, from).await?),
                ChainVerb::WriteWord { at, value } => {
                    self.write_word(at, value).await?;
                    VerbResult::Done
                }
                ChainVerb::CompareSwap { at, expected, new } => {
                    VerbResult::Word(self.compare_swap(at, expected, new).await?)
                }
                ChainVerb::FetchAdd { at, add } => VerbResult::Word(self.fetch_add(at, add).await?),
            });
        }
        Ok(results)
    }
}

impl Begun {
    fn note<T>(&self, sent: Result<T>) -> Result<T> {
        let may_be = sent.as_ref().err().is_none_or(FabricError::may_have_taken_effect);
        self.0.set(self.0.get() || may_be);
        sent
    }

    /// The error of the WRITE, of which the last answer was `error`.
    fn error(&self, error: FabricError) -> FabricError {
        if self.0.get() && !defect(Defect::LastAnswerCounts) { error.as_unknown() } else { error }
    }
}

impl Outcomes {
    /// What became of it at the primary of a view.
    fn of_primary(&self, placement: &Placement, volume: &Volume) -> Outcome {
        let primary = volume.primary.at(0);
        // In views between, the copy may have been another one, in the same place.
        let is_late = !self.is_none() && placement.epoch > self.epoch + 1;
        if is_late || self.unknown.contains(&primary) {
            Outcome::Unknown(primary.server())
        } else if self.executed.contains(&primary) {
            Outcome::Executed
        } else {
            Outcome::NotExecuted
        }
    }

    /// It is about to be sent in a view.
    fn enter(&mut self, epoch: u64, volume: &Volume) {
        self.epoch = epoch;
        let is_used = |at: &GlobalAddr| volume.in_write_order().any(|copy| copy.at(0) == *at);
        self.executed.retain(is_used);
        self.unknown.retain(is_used);
    }

    fn note<T>(&mut self, copy: Replica, sent: &Result<T>) {
        match sent {
            Ok(_) => self.executed.push(copy.at(0)),
            Err(error) if error.may_have_taken_effect() => self.unknown.push(copy.at(0)),
            Err(_) => {}
        }
    }

    /// Whether no copy has executed it.
    fn is_none(&self) -> bool {
        self.executed.is_empty() && self.unknown.is_empty()
    }
}

impl Group {
    fn regions(&self) -> &[RegionInfo] {
        &self.regions[self.regions.len() - 1]
    }

    fn check(&self, at: GlobalAddr, len: usize) -> Result<()> {
        let server = at.server();
        let entered = self.entered.borrow();
        let volume = entered.volumes.get(usize::from(server.0)).ok_or(FabricError::UnknownServer(server))?;
        RegionInfo { server, len: volume.len }.check(at, len)
    }
}

/// The copies in the order of a WRITE.
fn in_order(volume: &Volume) -> impl Iterator<Item = Replica> {
    let mut order: Vec<Replica> = volume.in_write_order().collect();
    if defect(Defect::PrimaryFirst) {
        order.reverse();
    }
    if defect(Defect::OneCopySuffices) {
        order = vec![volume.primary];
    }
    order.into_iter()
}

impl<E: Endpoint> Endpoint for Replicated<E> {
    #[inline]
    fn state(&self) -> &EndpointState {
        self.below.state()
    }

    #[inline]
    fn buffer(&self, len: usize) -> PageBuf {
        self.below.buffer(len)
    }

    #[inline]
    fn recycle(&self, buf: PageBuf) {
        self.below.recycle(buf);
    }

    #[inline]
    async fn read(&self, at: GlobalAddr, into: PageBuf) -> Result<PageBuf> {
        match &self.group {
            None => self.below.read(at, into).await,
            Some(group) => outlined(Box::pin(self.read_copy(group, at, into))).await,
        }
    }

    #[inline]
    async fn write(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        match &self.group {
            None => self.below.write(at, from).await,
            Some(group) => outlined(Box::pin(self.write_copies(group, at, from, true))).await,
        }
    }

    #[inline]
    async fn write_unread(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        match &self.group {
            None => self.below.write_unread(at, from).await,
            Some(group) => outlined(Box::pin(self.write_copies_at_once(group, at, from))).await,
        }
    }

    #[inline]
    async fn write_unlocking(&self, at: GlobalAddr, from: PageBuf) -> Result<PageBuf> {
        match &self.group {
            None => self.below.write_unlocking(at, from).await,
            Some(group) => outlined(Box::pin(self.write_copies(group, at, from, false))).await,
        }
    }

    #[inline]
    async fn read_word(&self, at: GlobalAddr) -> Result<u64> {
        match &self.group {
            None => self.below.read_word(at).await,
            Some(group) => outlined(Box::pin(self.read_word_of_copy(group, at))).await,
        }
    }

    #[inline]
    async fn write_word(&self, at: GlobalAddr, value: u64) -> Result<()> {
        match &self.group {
            None => self.below.write_word(at, value).await,
            Some(group) => outlined(Box::pin(self.write_word_of_copies(group, at, value))).await,
        }
    }

    #[inline]
    async fn compare_swap(&self, at: GlobalAddr, expected: u64, new: u64) -> Result<u64> {
        match &self.group {
            None => self.below.compare_swap(at, expected, new).await,
            Some(group) => self.atomic(group, at, Atomic::CompareSwap { expected, new }).await,
        }
    }

    async fn masked_compare_swap(
        &self,
        at: GlobalAddr,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64> {
        match &self.group {
            None => self.below.masked_compare_swap(at, expected, compare_mask, new, swap_mask).await,
            Some(group) => {
                let atomic = Atomic::MaskedCompareSwap { expected, compare_mask, new, swap_mask };
                self.atomic(group, at, atomic).await
            }
        }
    }

    async fn fetch_add(&self, at: GlobalAddr, add: u64) -> Result<u64> {
        match &self.group {
            None => self.below.fetch_add(at, add).await,
            Some(group) => self.atomic(group, at, Atomic::FetchAdd { add }).await,
        }
    }

    async fn submit(&self, chain: Chain) -> Result<Vec<VerbResult>> {
        match &self.group {
            None => self.below.submit(chain).await,
            Some(group) => outlined(Box::pin(self.submit_copies(group, chain))).await,
        }
    }

    /// Calls are refused where there are copies: what a memory server changes by itself reaches no other copy.
    async fn call_bytes(&self, server: MemoryServerId, op: u16, body: Vec<u8>) -> Result<Vec<u8>> {
        let Some(group) = &self.group else { return self.below.call_bytes(server, op, body).await };
        group.check(GlobalAddr::new(server, 0), 0)?;
        let reason = "memory servers with copies execute no calls".to_owned();
        Err(FabricError::Refused { server, op, reason })
    }

    async fn reserve(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let Some(group) = &self.group else { return self.below.reserve(at, len).await };
        self.check(group, at, WORD).await?;
        self.repeat(group, at, async |volume| {
            for copy in volume.in_write_order() {
                self.below.reserve(copy.at(at.offset()), len).await?;
            }
            Ok(())
        })
        .await
    }

    async fn persist(&self, at: GlobalAddr, len: u64) -> Result<()> {
        let Some(group) = &self.group else { return self.below.persist(at, len).await };
        self.check(group, at, WORD).await?;
        self.repeat(group, at, async |volume| {
            for copy in volume.in_write_order() {
                self.below.persist(copy.at(at.offset()), len).await?;
            }
            Ok(())
        })
        .await
    }

    /// Of servers with copies, all stay in use.
    fn set_in_use(&self, server: MemoryServerId, is_in_use: bool) {
        if self.group.is_none() {
            self.below.set_in_use(server, is_in_use);
        }
    }

    #[inline]
    async fn yield_now(&self) {
        self.below.yield_now().await;
    }

    async fn sleep_until(&self, at: Nanos) {
        self.below.sleep_until(at).await;
    }

    #[inline]
    async fn pace(&self) {
        self.below.pace().await;
    }

    fn regions(&self) -> &[RegionInfo] {
        self.group.as_ref().map_or_else(|| self.below.regions(), Group::regions)
    }

    #[inline]
    fn charge(&self, work: Work) {
        self.below.charge(work);
    }

    #[inline]
    fn now(&self) -> Nanos {
        self.below.now()
    }

    #[inline]
    fn time_limit(&self) -> Option<&TimeLimit> {
        self.below.time_limit()
    }

    fn set_slots(&self, slots: u32) {
        self.below.set_slots(slots);
    }

    #[inline]
    fn enter_slot(&self, slot: u32) {
        self.below.enter_slot(slot);
    }

    #[inline]
    fn poll_ready(&self) -> u64 {
        self.below.poll_ready()
    }

    fn idle(&self) -> bool {
        self.below.idle()
    }
}
