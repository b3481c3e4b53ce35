//! Sessions of the facade as clients: the index as users have it, on the fabrics of this machine.
//!
//! Time is the host's. Threads are the host's too and run side by side by themselves, so there is nothing to pace. Every
//! method is the session's own, and inlined to it.

use std::sync::LazyLock;
use std::time::Instant;

use pando::{Answers, AsyncSession, ScanRange, VerbCounts};
use pando_fabric::Nanos;

use super::IndexClient;

/// What the clocks of all threads start from.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time of the host, in ns since the first call.
#[inline]
pub(crate) fn host_now() -> Nanos {
    EPOCH.elapsed().as_nanos() as Nanos
}

impl IndexClient for AsyncSession<'_> {
    type Error = pando::Error;
    type Answers = Answers;

    const CLOCK_IS_FREE: bool = false;

    #[inline]
    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> pando::Result<bool> {
        AsyncSession::get_into(self, key, out).await
    }

    #[inline]
    async fn put(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        AsyncSession::put(self, key, value).await
    }

    #[inline]
    async fn update(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        AsyncSession::update(self, key, value).await
    }

    #[inline]
    async fn insert(&self, key: &[u8], value: &[u8]) -> pando::Result<bool> {
        AsyncSession::insert(self, key, value).await
    }

    #[inline]
    async fn remove(&self, key: &[u8]) -> pando::Result<bool> {
        AsyncSession::remove(self, key).await
    }

    #[inline]
    async fn scan(
        &self,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> pando::Result<usize> {
        AsyncSession::scan(self, range, visit).await
    }

    #[inline]
    async fn multi_get(&self, keys: &[&[u8]], answers: &mut Answers) -> pando::Result<()> {
        AsyncSession::multi_get(self, keys, answers).await
    }

    #[inline]
    fn answer(answers: &Answers, i: usize) -> Option<&[u8]> {
        answers.get(i)
    }

    #[inline]
    async fn pace(&self) {}

    #[inline]
    fn now(&self) -> Nanos {
        host_now()
    }

    fn verbs(&self) -> VerbCounts {
        AsyncSession::verbs(self)
    }
}
