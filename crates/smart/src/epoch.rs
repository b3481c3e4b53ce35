//! Reuse of unlinked blocks: epoch-based reclamation over one-sided verbs.
//!
//! The address of an unlinked block may still be held by an operation in progress, or by a cached node that
//! was READ before. So a block is freed only when these are gone.
//!
//! - The anchor holds the *epoch* of the index. Each compute server has a *place* there with the epoch that
//!   it has reached.
//! - An operation *pins* the epoch that its compute server knows. A compute server moves its place to the
//!   next epoch once no operation of an earlier one is in progress. The epoch advances when all places have
//!   reached it. So while an operation that pinned `p` runs, the epoch is `p` or `p + 1`.
//! - A cached node is valid for operations that pinned the epoch in which it was READ, or the next one
//!   ([`is_recent`]).
//! - A block unlinked by an operation that pinned `p` is freed at epoch `p + 4`. Pointers to it were READ
//!   while the epoch was at most `p + 1`; a cached node with such a pointer is used only by operations that
//!   pinned at most `p + 2`, and the epoch is at most `p + 3` while they run.
//!
//! Without unlinked blocks this costs only an occasional READ of the epoch. A waiter clears the place of a
//! dead process. While an idle compute server has not [parked](crate::Smart::park), the others free nothing.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, FabricError, GlobalAddr, Nanos};
use pando_pool::{AttachSlot, LOOKS_AT_HOLDER, Leftovers, Pool, PoolError};

use crate::anchor::Anchor;
use crate::defect::Defect;
use crate::error::{Result, SmartError};

/// Threads find their counters by the address of their endpoint.
const STRIPES: usize = 64;
/// Epochs from the pinned one to that at which a block is freed.
const GRACE: u64 = 4;
/// Operations between two checks of the epoch while there is much to free.
const LOOK_OFTEN: u64 = 16;

/// A taken place: `[taken:1][attach slot:15][epoch:48]`; 0 if it is free.
const TAKEN: u64 = 1 << 63;
const EPOCH_MASK: u64 = (1 << 48) - 1;

fn place_word(slot: AttachSlot, epoch: u64) -> u64 {
    TAKEN | u64::from(slot.0 & 0x7fff) << 48 | epoch & EPOCH_MASK
}

/// Whether data READ by an operation that pinned `read_at` is valid for one that pinned `now`.
pub(crate) fn is_recent(read_at: u64, now: u64) -> bool {
    read_at + 1 >= now
}

#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    /// Operations in progress, by the last bit of the epoch that they pinned.
    running: [AtomicU64; 2],
}

/// An unlinked block.
struct Unlinked {
    addr: GlobalAddr,
    bytes: u64,
    pinned: u64,
}

/// A WRITE to a node or leaf that only this compute server changes.
#[derive(Clone, Debug)]
pub(crate) struct OwnWrite {
    /// The node or leaf.
    pub of: GlobalAddr,
    pub at: GlobalAddr,
    pub words: Arc<[u64]>,
}

impl OwnWrite {
    pub async fn submit<E: Endpoint>(&self, ep: &E) -> std::result::Result<(), FabricError> {
        let page = ep.buffer(self.words.len() * 8);
        self.words.iter().enumerate().for_each(|(word, &value)| page.set(word, value));
        ep.recycle(ep.write(self.at, page).await?);
        Ok(())
    }
}

/// This compute server's view of the epoch, and its unlinked blocks.
pub(crate) struct Epochs {
    anchor: Anchor,
    slot: AttachSlot,
    place: usize,
    patience_ns: Nanos,
    limbo_max: u64,
    look_every: u64,
    stripes: Box<[Stripe]>,
    /// Epoch that operations pin.
    known: AtomicU64,
    /// Epoch in the place, or possibly there already: `known`, or one less.
    announced: AtomicU64,
    /// Whether `announced` may not be in the place yet.
    is_unsaid: AtomicBool,
    is_parked: AtomicBool,
    /// Set while an operation checks the epoch.
    is_busy: AtomicBool,
    limbo: Mutex<VecDeque<Unlinked>>,
    limbo_bytes: AtomicU64,
    /// WRITEs that may still be done: the blocks that they change are not freed before.
    pub own_writes: Leftovers<OwnWrite>,
    /// Blocks that may be linked, or may be free already.
    doubtful: Mutex<Vec<(GlobalAddr, u64)>>,
    /// Operations whose futures were dropped, with a verb that may be in flight; and the time when it must
    /// have ended, once known.
    cut_off: Mutex<Vec<(usize, usize, Option<Nanos>)>>,
    /// Start of the wait for another compute server's place.
    waits_since: AtomicU64,
}

/// An operation in progress.
#[must_use = "blocks are freed under an operation that pins no epoch"]
pub(crate) struct Pin<'e> {
    epochs: &'e Epochs,
    stripe: usize,
    pub epoch: u64,
    is_done: bool,
}

impl Pin<'_> {
    /// Ends an operation that has no verb in flight.
    pub fn end(mut self) {
        self.is_done = true;
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        let parity = (self.epoch & 1) as usize;
        match self.is_done {
            true => drop(self.epochs.stripes[self.stripe].running[parity].fetch_sub(1, SeqCst)),
            false => lock(&self.epochs.cut_off).push((self.stripe, parity, None)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The right to check the epoch.
struct Busy<'e>(&'e AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl Epochs {
    /// Takes a place.
    pub async fn join<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        anchor: &Anchor,
        patience_ns: Nanos,
        limbo_max: u64,
        look_every: u64,
    ) -> Result<Self> {
        let slot = pool.slot().ok_or(PoolError::ReadOnly)?;
        let mut free = None;
        for number in 0..anchor.users_max {
            let word = place_word(slot, ep.read_word(anchor.epoch()).await?);
            if ep.compare_swap(anchor.place(number), 0, word).await? == 0 {
                free = Some(number);
                break;
            }
        }
        let place = free.ok_or(SmartError::TooManyUsers { max: anchor.users_max })?;
        let epochs = Self {
            anchor: anchor.clone(),
            slot,
            place,
            patience_ns,
            limbo_max,
            look_every,
            stripes: (0..STRIPES).map(|_| Stripe::default()).collect(),
            known: AtomicU64::new(0),
            announced: AtomicU64::new(0),
            is_unsaid: AtomicBool::new(false),
            is_parked: AtomicBool::new(false),
            is_busy: AtomicBool::new(false),
            limbo: Mutex::default(),
            limbo_bytes: AtomicU64::new(0),
            own_writes: Leftovers::default(),
            doubtful: Mutex::default(),
            cut_off: Mutex::default(),
            waits_since: AtomicU64::new(0),
        };
        epochs.catch_up(ep).await?;
        Ok(epochs)
    }

    /// Moves the place to the current epoch, while no operation is in progress. Once the place has it, the
    /// epoch advances by at most one.
    async fn catch_up<E: Endpoint>(&self, ep: &E) -> Result<()> {
        loop {
            let epoch = ep.read_word(self.anchor.epoch()).await?;
            ep.write_word(self.anchor.place(self.place), place_word(self.slot, epoch)).await?;
            if ep.read_word(self.anchor.epoch()).await? == epoch {
                self.known.store(epoch, SeqCst);
                self.announced.store(epoch, SeqCst);
                self.is_unsaid.store(false, SeqCst);
                return Ok(());
            }
        }
    }

    /// Starts an operation.
    pub async fn pin<E: Endpoint>(&self, ep: &E, pool: &Pool) -> Result<Pin<'_>> {
        let stripe = std::ptr::from_ref(ep).addr() / 64 % STRIPES;
        let is_full = self.limbo_bytes.load(Relaxed) > self.limbo_max;
        let every = if is_full { LOOK_OFTEN.min(self.look_every) } else { self.look_every };
        if ep.random().is_multiple_of(every) {
            // Anything missed now is caught up later.
            let _ = self.look(ep, pool, is_full).await;
        }
        loop {
            let epoch = self.known.load(SeqCst);
            let running = &self.stripes[stripe].running[(epoch & 1) as usize];
            running.fetch_add(1, SeqCst);
            if self.known.load(SeqCst) == epoch && !self.is_parked.load(SeqCst) {
                return Ok(Pin { epochs: self, stripe, epoch, is_done: false });
            }
            running.fetch_sub(1, SeqCst);
            if self.is_parked.load(SeqCst) {
                self.unpark(ep).await?;
            }
        }
    }

    fn begin_looking(&self) -> Option<Busy<'_>> {
        (!self.is_busy.swap(true, SeqCst)).then(|| Busy(&self.is_busy))
    }

    /// Marks this compute server as idle, so that the others need not wait for it.
    pub async fn park<E: Endpoint>(&self, ep: &E) -> Result<()> {
        let Some(_busy) = self.begin_looking() else { return Ok(()) };
        self.is_parked.store(true, SeqCst);
        if self.runs(0) || self.runs(1) {
            self.is_parked.store(false, SeqCst);
            return Ok(());
        }
        // An epoch that is never reached.
        ep.write_word(self.anchor.place(self.place), place_word(self.slot, EPOCH_MASK)).await?;
        Ok(())
    }

    async fn unpark<E: Endpoint>(&self, ep: &E) -> Result<()> {
        match self.begin_looking() {
            Some(_busy) if self.is_parked.load(SeqCst) => {
                self.catch_up(ep).await?;
                self.is_parked.store(false, SeqCst);
            }
            Some(_) => {}
            None => ep.yield_now().await,
        }
        Ok(())
    }

    /// Records a block that was unlinked by an operation that pinned `epoch`.
    pub fn retire(&self, addr: GlobalAddr, bytes: u64, epoch: u64) {
        lock(&self.limbo).push_back(Unlinked { addr, bytes, pinned: epoch });
        self.limbo_bytes.fetch_add(bytes, Relaxed);
    }

    /// Blocks that wait to be freed.
    pub fn limbo(&self) -> Vec<(GlobalAddr, u64)> {
        lock(&self.limbo).iter().map(|block| (block.addr, block.bytes)).collect()
    }

    pub fn limbo_bytes(&self) -> u64 {
        self.limbo_bytes.load(Relaxed)
    }

    fn runs(&self, parity: u64) -> bool {
        self.stripes.iter().any(|stripe| stripe.running[(parity & 1) as usize].load(SeqCst) > 0)
    }

    /// Reads the epoch, announces this compute server's, frees blocks, and advances the epoch if `advance` is
    /// set. Does nothing while another call runs.
    pub async fn look<E: Endpoint>(&self, ep: &E, pool: &Pool, advance: bool) -> Result<()> {
        let Some(_busy) = self.begin_looking() else { return Ok(()) };
        self.end_cut_off(ep.now());
        if self.is_parked.load(SeqCst) {
            return Ok(());
        }
        let mut epoch = ep.read_word(self.anchor.epoch()).await?;
        self.follow(ep, epoch).await?;
        if advance && self.announced.load(SeqCst) == epoch && self.all_are_at(ep, pool, epoch).await? {
            let before = ep.compare_swap(self.anchor.epoch(), epoch, epoch + 1).await?;
            if before == epoch {
                epoch += 1;
                self.follow(ep, epoch).await?;
            }
        }
        self.free_before(ep, pool, epoch).await
    }

    /// Moves to `epoch`, unless an operation of an earlier one is in progress.
    async fn follow<E: Endpoint>(&self, ep: &E, epoch: u64) -> Result<()> {
        let announced = self.announced.load(SeqCst);
        debug_assert!(epoch == announced || epoch == announced + 1, "{epoch} after {announced}");
        if epoch != announced {
            self.known.store(epoch, SeqCst);
            if self.runs(announced) {
                return Ok(());
            }
            // From now on the place may have it, even if the WRITE gets no answer.
            self.is_unsaid.store(true, SeqCst);
            self.announced.store(epoch, SeqCst);
        }
        if self.is_unsaid.load(SeqCst) {
            ep.write_word(self.anchor.place(self.place), place_word(self.slot, epoch)).await?;
            self.is_unsaid.store(false, SeqCst);
        }
        Ok(())
    }

    async fn all_are_at<E: Endpoint>(&self, ep: &E, pool: &Pool, epoch: u64) -> Result<bool> {
        let page = ep.read(self.anchor.place(0), ep.buffer(self.anchor.users_max * 8)).await?;
        let words: Vec<u64> = (0..self.anchor.users_max).map(|place| page.get(place)).collect();
        ep.recycle(page);
        let lags = |word: u64| word != 0 && ![epoch, EPOCH_MASK].contains(&(word & EPOCH_MASK));
        let Some(number) = words.iter().position(|&word| lags(word)) else {
            self.waits_since.store(0, Relaxed);
            return Ok(true);
        };
        let (now, since) = (ep.now(), self.waits_since.load(Relaxed));
        if since == 0 {
            self.waits_since.store(now.max(1), Relaxed);
        } else if now.saturating_sub(since) > self.patience_ns / LOOKS_AT_HOLDER {
            self.waits_since.store(0, Relaxed);
            let slot = AttachSlot((words[number] >> 48 & 0x7fff) as u16);
            if pool.is_abandoned(ep, slot).await? {
                ep.compare_swap(self.anchor.place(number), words[number], 0).await?;
            }
        }
        Ok(false)
    }

    async fn free_before<E: Endpoint>(&self, ep: &E, pool: &Pool, epoch: u64) -> Result<()> {
        loop {
            let block = {
                let mut limbo = lock(&self.limbo);
                match limbo.front() {
                    Some(block) if self.own_writes.has(|write| write.of == block.addr) => None,
                    Some(block) if block.pinned + GRACE <= epoch || defect(Defect::FreeAtOnce) => {
                        limbo.pop_front()
                    }
                    _ => None,
                }
            };
            let Some(block) = block else { return Ok(()) };
            self.limbo_bytes.fetch_sub(block.bytes, Relaxed);
            self.free(ep, pool, &block).await?;
        }
    }

    async fn free<E: Endpoint>(&self, ep: &E, pool: &Pool, block: &Unlinked) -> Result<()> {
        let freed = pool.free(ep, block.addr, block.bytes).await.map_err(SmartError::from);
        match &freed {
            Err(error) if error.may_have_taken_effect() => self.doubt(block.addr, block.bytes),
            Err(error) if error.is_unreachable() => self.retire(block.addr, block.bytes, block.pinned),
            _ => {}
        }
        freed
    }

    /// Frees a block that was never linked, now or later.
    pub async fn discard<E: Endpoint>(
        &self,
        ep: &E,
        pool: &Pool,
        addr: GlobalAddr,
        bytes: u64,
    ) -> Result<()> {
        match self.free(ep, pool, &Unlinked { addr, bytes, pinned: 0 }).await {
            Err(error) if !error.is_unreachable() => Err(error),
            _ => Ok(()),
        }
    }

    /// Gives up a block that may be in use or free.
    pub fn doubt(&self, addr: GlobalAddr, bytes: u64) {
        lock(&self.doubtful).push((addr, bytes));
    }

    pub fn doubtful(&self) -> Vec<(GlobalAddr, u64)> {
        lock(&self.doubtful).clone()
    }

    /// Ends operations whose futures were dropped so long ago that none of their verbs is in flight.
    fn end_cut_off(&self, now: Nanos) {
        let mut cut_off = lock(&self.cut_off);
        for (_, _, due) in cut_off.iter_mut() {
            due.get_or_insert(now.saturating_add(self.patience_ns));
        }
        for (stripe, parity, _) in cut_off.extract_if(.., |(_, _, due)| due.is_some_and(|due| due <= now)) {
            self.stripes[stripe].running[parity].fetch_sub(1, SeqCst);
        }
    }

    /// Tries for a while to free waiting blocks; returns whether any was freed. The caller must not hold a
    /// pin.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E, pool: &Pool) -> Result<bool> {
        let before = self.limbo_bytes();
        let deadline = ep.now().saturating_add(self.patience_ns / LOOKS_AT_HOLDER * 2);
        while self.limbo_bytes() > 0 && self.limbo_bytes() >= before && ep.now() < deadline {
            self.look(ep, pool, true).await?;
            ep.yield_now().await;
        }
        Ok(self.limbo_bytes() < before)
    }

    /// Gives the place up. First frees the waiting blocks, unless other compute servers do not advance for
    /// too long; returns the bytes left behind.
    pub async fn leave<E: Endpoint>(&self, ep: &E, pool: &Pool) -> Result<u64> {
        let deadline = ep.now().saturating_add(self.patience_ns);
        while self.limbo_bytes() > 0 && ep.now() < deadline {
            self.look(ep, pool, true).await?;
            ep.yield_now().await;
        }
        ep.write_word(self.anchor.place(self.place), 0).await?;
        Ok(self.limbo_bytes())
    }
}
