//! The operations of an integer session as futures.
//!
//! As in `integers.rs`, each operation only converts between numbers and their bytes, which live in the
//! future that needs them. The futures have the guarantees of [`AsyncSession`].

use std::ops::RangeBounds;

use pando_fabric::VerbCounts;

use super::AsyncSession;
use super::integers::{IntegerSession, IntegerSwapped, bounds, integer, scan_range, slice, swapped};
use crate::error::Result;

/// The operations of an [`IntegerSession`] as futures. See [`IntegerSession::futures`] and
/// [`IntegerSession::in_flight`]; the blocking operations have the descriptions.
#[derive(Clone, Copy, Debug)]
pub struct AsyncIntegerSession<'s> {
    pub(super) session: &'s IntegerSession,
}

impl<'s> AsyncIntegerSession<'s> {
    /// The operations for byte strings.
    pub fn bytes(&self) -> AsyncSession<'s> {
        self.session.bytes().futures()
    }

    /// See [`IntegerSession::verbs`].
    pub fn verbs(&self) -> VerbCounts {
        self.session.verbs()
    }

    /// See [`IntegerSession::get`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::get`].
    pub async fn get(&self, key: u64) -> Result<Option<u64>> {
        let mut value = Vec::with_capacity(8);
        let found = self.bytes().get_into(&key.to_be_bytes(), &mut value).await?;
        Ok(found.then(|| integer(&value)))
    }

    /// See [`IntegerSession::contains`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::get`].
    pub async fn contains(&self, key: u64) -> Result<bool> {
        self.bytes().contains(&key.to_be_bytes()).await
    }

    /// See [`IntegerSession::put`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::put`].
    pub async fn put(&self, key: u64, value: u64) -> Result<bool> {
        self.bytes().put(&key.to_be_bytes(), &value.to_be_bytes()).await
    }

    /// See [`IntegerSession::insert`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::put`].
    pub async fn insert(&self, key: u64, value: u64) -> Result<bool> {
        self.bytes().insert(&key.to_be_bytes(), &value.to_be_bytes()).await
    }

    /// See [`IntegerSession::update`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::put`].
    pub async fn update(&self, key: u64, value: u64) -> Result<bool> {
        self.bytes().update(&key.to_be_bytes(), &value.to_be_bytes()).await
    }

    /// See [`IntegerSession::remove`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::get`].
    pub async fn remove(&self, key: u64) -> Result<bool> {
        self.bytes().remove(&key.to_be_bytes()).await
    }

    /// See [`IntegerSession::compare_and_swap`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::put`].
    pub async fn compare_and_swap(
        &self,
        key: u64,
        expected: Option<u64>,
        new: Option<u64>,
    ) -> Result<IntegerSwapped> {
        let (key, expected, new) =
            (key.to_be_bytes(), expected.map(u64::to_be_bytes), new.map(u64::to_be_bytes));
        Ok(swapped(self.bytes().compare_and_swap(&key, slice(&expected), slice(&new)).await?))
    }

    /// See [`IntegerSession::multi_get`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::get`].
    pub async fn multi_get(&self, keys: &[u64], values: &mut Vec<Option<u64>>) -> Result<()> {
        let mut many = self.session.many.take();
        many.ask(keys);
        let done = self.bytes().multi_get(&many.keys, &mut many.answers).await;
        many.answer(done.is_ok(), values);
        self.session.many.set(many);
        done
    }

    /// See [`IntegerSession::scan`].
    ///
    /// # Errors
    /// Errors of [`IntegerSession::scan`].
    pub async fn scan(
        &self,
        range: impl RangeBounds<u64>,
        mut visit: impl FnMut(u64, u64) -> bool,
    ) -> Result<usize> {
        let bounds = bounds(&range);
        let visit = |key: &[u8], value: &[u8]| visit(integer(key), integer(value));
        self.bytes().scan(&scan_range(&bounds), visit).await
    }
}
