//! The operations of a session as futures, and those that involve several compute servers.
//!
//! A key is routed to the compute server that owns its partition; scans and lookups of many keys visit each
//! of them in turn. The blocking session drives the same futures, so every operation has one implementation.
//! A future must be polled on the thread of its session. It may be dropped, but to bound its time use the
//! deadline.

use pando_dex::{Detour, DexError, ScanRange, Scanned, Swapped, partition_of};
use pando_fabric::{Endpoint, VerbCounts, limited};

use super::{Answers, Session, on_tree, reading};
use crate::error::{Error, Result};
use crate::layout::with_layout;

/// The operations of a [`Session`] as futures. See [`Session::futures`] and [`Session::in_flight`]; the
/// blocking operations have the descriptions.
#[derive(Clone, Copy, Debug)]
pub struct AsyncSession<'s> {
    pub(super) session: &'s Session,
}

impl<'s> AsyncSession<'s> {
    /// See [`Session::verbs`].
    pub fn verbs(&self) -> VerbCounts {
        self.session.verbs()
    }

    /// Sleeps until a verb of this session completes, at most 1 ms. For an executor of slots all of which
    /// wait for memory servers. Returns whether it slept; where that is not possible, it returns at once.
    pub fn sleep_until_answered(&self) -> bool {
        self.session.ep.idle()
    }

    /// See [`Session::get`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value).await?.then_some(value))
    }

    /// See [`Session::get_into`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    #[inline]
    pub async fn get_into(&self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        if self.session.reading {
            return Box::pin(reading::get_into(self.session, key, out)).await;
        }
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.get(ctx, key, out))
    }

    /// See [`Session::contains`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    pub async fn contains(&self, key: &[u8]) -> Result<bool> {
        self.get_into(key, &mut Vec::new()).await
    }

    /// See [`Session::put`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.session.check_writable()?;
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.put(ctx, key, value))
    }

    /// See [`Session::insert`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    pub async fn insert(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.session.check_writable()?;
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.insert(ctx, key, value))
    }

    /// See [`Session::update`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    pub async fn update(&self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.session.check_writable()?;
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.update(ctx, key, value))
    }

    /// See [`Session::remove`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    pub async fn remove(&self, key: &[u8]) -> Result<bool> {
        self.session.check_writable()?;
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.remove(ctx, key))
    }

    /// See [`Session::compare_and_swap`].
    ///
    /// # Errors
    /// Errors of [`Session::put`].
    pub async fn compare_and_swap(
        &self,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<Swapped> {
        self.session.check_writable()?;
        on_tree!(awaiting, self.session, key, |tree, ctx| tree.compare_and_swap(ctx, key, expected, new))
    }

    /// See [`Session::multi_get`].
    ///
    /// # Errors
    /// Errors of [`Session::get`].
    pub async fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K], answers: &mut Answers) -> Result<()> {
        if self.session.reading {
            return Box::pin(reading::multi_get(self.session, keys, answers)).await;
        }
        self.multi_get_routed(keys, answers).await
    }

    /// [`AsyncSession::multi_get`] without the checks of a reader.
    pub(super) async fn multi_get_routed<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        answers: &mut Answers,
    ) -> Result<()> {
        let session = self.session;
        let looked_up = async {
            let mut detour = Detour::new(session.patience_ns);
            loop {
                match self.multi_get_now(keys, answers).await {
                    Err(Error::Index(DexError::NotOwned)) => {
                        detour.next(&session.ep, &session.router).await?
                    }
                    done => return done,
                }
            }
        };
        limited(&session.ep, &session.limit(), looked_up).await
    }

    /// One attempt with the routes that the session knows.
    async fn multi_get_now<K: AsRef<[u8]>>(&self, keys: &[K], answers: &mut Answers) -> Result<()> {
        let router = &self.session.router;
        if let [only] = router.table().owners() {
            return self.multi_get_of(*only, keys, answers.of_one()).await;
        }
        let owners: Vec<usize> = keys.iter().map(|key| router.route(key.as_ref())).collect();
        let servers = owners.iter().max().map_or(0, |last| last + 1);
        let parts = answers.of_many(servers, owners.iter().copied());
        let mut grouped: Vec<Vec<&[u8]>> = vec![Vec::new(); servers];
        for (key, owner) in keys.iter().zip(owners) {
            grouped[owner].push(key.as_ref());
        }
        for (number, (keys, part)) in grouped.iter().zip(parts).enumerate() {
            if !keys.is_empty() {
                self.multi_get_of(number, keys, part).await?;
            }
        }
        Ok(())
    }

    async fn multi_get_of<K: AsRef<[u8]>>(
        &self,
        number: usize,
        keys: &[K],
        answers: &mut pando_dex::Answers,
    ) -> Result<()> {
        let session = self.session;
        let done = match session.find(number) {
            Some(found) => with_layout!(found, |member| {
                let done = member.tree.multi_get(member.ctx(&session.ep), keys, answers).await;
                member.count(keys.len() as u64, &done);
                done.map_err(Error::from)
            }),
            None if session.is_gone(number) => Err(DexError::NotOwned.into()),
            None => {
                let first = keys.first().map_or(&[][..], AsRef::as_ref);
                Err(session.not_here(number, |boundaries| partition_of(boundaries, first)).await)
            }
        };
        session.count_operation();
        done
    }

    /// See [`Session::scan`].
    ///
    /// # Errors
    /// Errors of [`Session::scan`].
    pub async fn scan(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        if self.session.reading {
            return Box::pin(reading::scan(self.session, range, &mut visit)).await;
        }
        self.scan_routed(range, visit).await
    }

    /// [`AsyncSession::scan`] without the checks of a reader.
    pub(super) async fn scan_routed(
        &self,
        range: &ScanRange<'_>,
        mut visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<usize> {
        let session = self.session;
        // An error that stops the scan and is not an answer of a compute server.
        let mut elsewhere = None;
        let scan_of = async |number: usize, part: &ScanRange<'_>| match self
            .scan_of(number, part, |key, value| visit(key, value))
            .await
        {
            Err(Error::Index(error)) => Err(error),
            Err(error) => {
                elsewhere = Some(error);
                Err(DexError::Routes("the scan stops at this compute server"))
            }
            Ok(scanned) => Ok(scanned),
        };
        let scanned = session.router.scanned(&session.ep, range, session.patience_ns, scan_of);
        let scanned = limited(&session.ep, &session.limit(), scanned).await;
        match elsewhere {
            Some(error) => Err(error),
            None => Ok(scanned?),
        }
    }

    async fn scan_of(
        &self,
        number: usize,
        range: &ScanRange<'_>,
        visit: impl FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<Scanned> {
        let session = self.session;
        let scanned = match session.find(number) {
            Some(found) => with_layout!(found, |member| {
                let done = member.tree.scan_owned(member.ctx(&session.ep), range, visit).await;
                member.count(1, &done);
                done.map_err(Error::from)
            }),
            None if session.is_gone(number) => Err(DexError::NotOwned.into()),
            None => Err(session.not_here(number, |boundaries| range.first_partition(boundaries)).await),
        };
        session.count_operation();
        scanned
    }
}
