//! A client of a placed index on the threads of this machine.
//!
//! The operations are the same, by the host's clock and with a limit each. Threads run side by side by themselves, so there is
//! nothing to pace. A scan has its time from one entry to the next.

use std::future::Future;

use pando::{ScanRange, VerbCounts};
use pando_fabric::{Endpoint, Limit, Nanos, limited};

use super::{IndexClient, host_now};

/// One thread's access by an endpoint of this machine.
pub(crate) struct OnHost<'c, C, E> {
    pub client: C,
    pub ep: &'c E,
    /// How long an operation may take.
    pub operation_ns: Nanos,
}

impl<C: Copy, E> Clone for OnHost<'_, C, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C: Copy, E> Copy for OnHost<'_, C, E> {}

impl<C: IndexClient, E: Endpoint> OnHost<'_, C, E> {
    async fn within<T>(&self, operation: impl Future<Output = T>) -> T {
        limited(self.ep, &Limit::new(self.operation_ns), operation).await
    }
}

impl<C: IndexClient, E: Endpoint> IndexClient for OnHost<'_, C, E> {
    type Error = C::Error;
    type Answers = C::Answers;

    const CLOCK_IS_FREE: bool = false;

    async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, C::Error> {
        self.within(self.client.get_into(key, out)).await
    }

    async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool, C::Error> {
        self.within(self.client.put(key, value)).await
    }

    async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool, C::Error> {
        self.within(self.client.update(key, value)).await
    }

    async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool, C::Error> {
        self.within(self.client.insert(key, value)).await
    }

    async fn remove(&self, key: &[u8]) -> Result<bool, C::Error> {
        self.within(self.client.remove(key)).await
    }

    async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize, C::Error> {
        let scan = self.client.scan(range, |key, value| {
            // What it has handed out is a step further.
            self.ep.renew_time_limit();
            visit(key, value)
        });
        self.within(scan).await
    }

    async fn multi_get(&self, keys: &[&[u8]], answers: &mut C::Answers) -> Result<(), C::Error> {
        self.within(self.client.multi_get(keys, answers)).await
    }

    fn answer(answers: &C::Answers, i: usize) -> Option<&[u8]> {
        C::answer(answers, i)
    }

    async fn pace(&self) {}

    fn now(&self) -> Nanos {
        host_now()
    }

    fn verbs(&self) -> VerbCounts {
        self.ep.counters().snapshot()
    }
}
