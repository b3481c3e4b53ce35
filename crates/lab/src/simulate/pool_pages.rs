//! The page of a simulated process of the pool, which the process locks and writes.
//!
//! A write is cut off at any poll. After a clean detach of the process the page is unlocked and has its last
//! content, and no detached process holds the catalog lock.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use pando_fabric::{Endpoint, GlobalAddr};
use pando_pool::{Placement, Pool};
use pando_rt::block_on;

use super::pool_case::PAGE;
use super::pool_process::Process;

/// A write that is cut off is dropped after at most this many polls: two for the lock, and one for the write.
const POLLS: usize = 3;

impl Process<'_> {
    async fn make_page(&self, pool: &Pool) {
        let Ok(at) = pool.alloc(&self.ep, Placement::LeastLoaded, PAGE).await else { return };
        self.take(at, PAGE);
        let page = self.ep.buffer(PAGE as usize);
        (0..PAGE as usize / 8).for_each(|word| page.set(word, 0));
        if self.ep.write(at, page).await.is_ok() {
            self.page.set(Some((at, 0)));
        }
    }

    /// Locks and writes the page; the write is sometimes cut off.
    pub(super) async fn write_page(&self, pool: &Pool) {
        let Some((at, _)) = self.page.get() else { return self.make_page(pool).await };
        if pool.has_left_locks() {
            return;
        }
        let polls = if self.below(2) == 0 { 1 + self.below(POLLS) } else { usize::MAX };
        let deadline = self.ep.now() + self.world.wait_ns;
        let written = async {
            let lock = pool.lock(&self.ep, at, deadline).await?;
            let (content, page) = (self.random.next() >> 1, self.ep.buffer(PAGE as usize));
            (0..PAGE as usize / 8).for_each(|word| page.set(word, content));
            self.page.set(Some((at, content)));
            lock.write_unlock(&self.ep, &page, deadline).await
        };
        let became = match cut_off(written, polls).await {
            None => "was cut off as it wrote",
            Some(Err(_)) => "may have written",
            Some(Ok(())) => "wrote",
        };
        self.world.note(format!("{} process {} {became} its page", self.ep.now(), self.number));
    }

    /// Checks that after a clean detach the catalog lock does not name the process's former attach slot.
    pub(super) fn expect_no_lock(&self, pool: &Pool) {
        let ep = self.world.fabric.direct(0);
        let (Ok(Some(holder)), Ok(attached)) =
            (block_on(&ep, pool.catalog_holder(&ep)), block_on(&ep, pool.attached(&ep)))
        else {
            return;
        };
        if pool.slot() == Some(holder) && attached.iter().all(|&(slot, _)| slot != holder) {
            self.world.wrong(format!("process {} closed cleanly, and has the catalog locked", self.number));
        }
    }

    /// Checks that after a clean detach the page is unlocked and has `content`.
    pub(super) async fn expect_page(&self, at: GlobalAddr, content: u64) {
        loop {
            let well = self.now_well();
            let read =
                async { Ok((self.ep.read_word(at).await?, self.ep.read_word(at.add(PAGE - 8)).await?)) };
            let read: Result<_, pando_fabric::FabricError> = read.await;
            match read {
                Ok((word, found)) => {
                    if word >> 63 != 0 || found != content {
                        self.world.wrong(format!(
                            "process {} closed cleanly, but its page at {at} has {found} and not {content}, and the lock {word:#x}",
                            self.number
                        ));
                    }
                    return;
                }
                Err(_) if !well => self.pause().await,
                Err(error) => return self.world.wrong(error.to_string()),
            }
        }
    }
}

/// Polls `future` at most `polls` times, and drops it if it is still pending.
async fn cut_off<F: Future>(future: F, mut polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|context| {
        let Some(left) = polls.checked_sub(1) else { return Poll::Ready(None) };
        polls = left;
        match future.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
