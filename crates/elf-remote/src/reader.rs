//! Queries of an Elf in a pool.
//!
//! A query runs on one image from start to end: the one that was current when its first READs were answered. It
//! begins anew if the catalog says that the image is another one, or if a checksum does. A piece that is wrong
//! though the image is still current is damaged. Several threads share a [`Reader`], each with its own endpoint.

use std::sync::atomic::{AtomicBool, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};

use pando_elf::{Bitmap, Count, Filter, Ids, Kernel, Predicate, RowId, Sink};
use pando_fabric::{Endpoint, Nanos};
use pando_pool::Pool;

use crate::error::{Attempt, RemoteError, Result, Retry};
use crate::fetch::{Cost, Fetch};
use crate::image::{Cached, Image};
use crate::manifest::ImageRef;
use crate::options::ReadOptions;
use crate::receiver::Receiver;

/// Times that a piece may be wrong before the image counts as damaged.
const BAD_PIECES_MAX: u32 = 2;

/// Result of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T> {
    pub value: T,
    /// Version of the index that gave it: the number of changes of its record in the catalog.
    pub version: u64,
    /// Verbs of the query, with those of attempts that were begun anew.
    pub cost: Cost,
}

/// The image of the last query.
#[derive(Clone)]
struct Current {
    image: Arc<Image>,
    version: u64,
    /// Version of the catalog in which it is current; `None` if the catalog was being changed.
    catalog: Option<u64>,
    /// Time at which it was seen to be current.
    seen_at: Nanos,
}

/// An Elf in a pool, for queries.
pub struct Reader {
    pool: Pool,
    name: String,
    options: ReadOptions,
    current: Mutex<Option<Current>>,
    is_loading: AtomicBool,
}

/// What the attempts of a query did so far.
#[derive(Default)]
struct Progress {
    cost: Cost,
    /// Version of the index that the last attempt used.
    version: Option<u64>,
    /// Wrong pieces of that version.
    bad_pieces: u32,
}

impl Progress {
    fn uses(&mut self, version: u64) {
        if self.version.replace(version).is_some_and(|before| before != version) {
            self.bad_pieces = 0;
            self.cost.restarts += 1;
        }
    }
}

/// The right to load an image.
struct Loading<'r>(&'r AtomicBool);

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}

impl Reader {
    /// Opens the Elf that the catalog knows as `name`. Its image is loaded by the first query.
    pub fn new(pool: Pool, name: impl Into<String>, options: ReadOptions) -> Self {
        let (current, is_loading) = (Mutex::default(), AtomicBool::new(false));
        Self { pool, name: name.into(), options, current, is_loading }
    }

    /// Number of rows that match.
    ///
    /// # Errors
    /// As for [`Reader::select`].
    pub async fn count<E: Endpoint>(&self, ep: &E, predicate: &Predicate) -> Result<Answer<u64>> {
        self.answer(ep, predicate, async |image, fetch, filter| {
            let mut out = Receiver::<Count>::new(None);
            image.search(fetch, filter, &mut out).await?;
            Ok(out.found)
        })
        .await
    }

    /// Ids of the rows that match, in no particular order.
    ///
    /// # Errors
    /// As for [`Reader::select`]; [`pando_elf::Error::IdsTooNarrow`] if `T` cannot hold them.
    pub async fn ids<T: RowId, E: Endpoint>(&self, ep: &E, predicate: &Predicate) -> Result<Answer<Vec<T>>> {
        self.answer(ep, predicate, async |image, fetch, filter| {
            let mut ids = Vec::new();
            let mut sink = Ids::checked(&mut ids, image.manifest.id_bound, Kernel::detect())?;
            image.search(fetch, filter, &mut Receiver::new(Some(&mut sink))).await?;
            Ok(ids)
        })
        .await
    }

    /// The rows that match as a bitmap in row order.
    ///
    /// # Errors
    /// As for [`Reader::select`].
    pub async fn bitmap<E: Endpoint>(&self, ep: &E, predicate: &Predicate) -> Result<Answer<Bitmap>> {
        self.select(ep, predicate, Bitmap::of_bound).await
    }

    /// Gives the rows that match, in no particular order, to a sink that is made for row ids below a bound.
    ///
    /// # Errors
    /// [`RemoteError::NotAnElf`], [`RemoteError::NoImage`], [`RemoteError::KeptChanging`]; errors of the
    /// predicate, of damaged bytes, of the pool and of verbs.
    pub async fn select<S: Sink, E: Endpoint>(
        &self,
        ep: &E,
        predicate: &Predicate,
        make: impl Fn(u64) -> pando_elf::Result<S>,
    ) -> Result<Answer<S>> {
        self.answer(ep, predicate, async |image, fetch, filter| {
            let mut sink = make(image.manifest.id_bound)?;
            image.search(fetch, filter, &mut Receiver::new(Some(&mut sink))).await?;
            Ok(sink)
        })
        .await
    }

    /// What is cached of the current image. Loads the image if no query did.
    ///
    /// # Errors
    /// As for [`Reader::select`].
    pub async fn cached<E: Endpoint>(&self, ep: &E) -> Result<Answer<Cached>> {
        self.answer(ep, &Predicate::all(), async |image, _, _| Ok(image.cached())).await
    }

    /// Runs `search` on the current image, again if it turns out to be replaced.
    async fn answer<T, E: Endpoint>(
        &self,
        ep: &E,
        predicate: &Predicate,
        search: impl AsyncFn(&Image, &mut Fetch<'_, E>, &Filter) -> Attempt<T>,
    ) -> Result<Answer<T>> {
        let mut progress = Progress::default();
        let mut is_stale = false;
        loop {
            match self.attempt(ep, predicate, &search, &mut progress, is_stale).await {
                Ok((value, version)) => return Ok(Answer { value, version, cost: progress.cost }),
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Moved) => {}
                Err(Retry::Changed(addr)) => {
                    progress.bad_pieces += 1;
                    if progress.bad_pieces > BAD_PIECES_MAX {
                        return Err(RemoteError::BadPiece { name: self.name.clone(), addr });
                    }
                }
            }
            let times = progress.cost.restarts;
            if times > self.options.restarts_max {
                return Err(RemoteError::KeptChanging { name: self.name.clone(), times });
            }
            is_stale = true;
        }
    }

    async fn attempt<T, E: Endpoint>(
        &self,
        ep: &E,
        predicate: &Predicate,
        search: &impl AsyncFn(&Image, &mut Fetch<'_, E>, &Filter) -> Attempt<T>,
        progress: &mut Progress,
        is_stale: bool,
    ) -> Attempt<(T, u64)> {
        let is_fresh =
            |current: &Current| ep.now() < current.seen_at.saturating_add(self.options.check_age_ns);
        let can_be_used = |current: &Current| is_fresh(current) || current.catalog.is_some();
        let (current, check) = match self.known().filter(|known| !is_stale && can_be_used(known)) {
            Some(known) if is_fresh(&known) => (known, None),
            Some(known) => (known.clone(), known.catalog),
            // What is loaded now is current during this query.
            None => (self.load(ep, progress).await?, None),
        };
        progress.uses(current.version);
        let filter = Filter::new(predicate, &current.image.order)?;
        let image = &current.image;
        let mut fetch = Fetch::new((ep, &self.pool), &image.manifest, &self.options, check);
        let value = match search(image, &mut fetch, &filter).await {
            Ok(value) => fetch.finish().await.map(|()| value),
            failed => failed,
        };
        progress.cost += fetch.cost;
        Ok((value?, current.version))
    }

    fn known(&self) -> Option<Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until no other query of this reader loads an image, at most until `deadline`: then both load it.
    async fn begin_loading<E: Endpoint>(&self, ep: &E, deadline: Nanos) -> Option<Loading<'_>> {
        while self.is_loading.swap(true, Acquire) {
            if ep.now() >= deadline {
                return None;
            }
            ep.yield_now().await;
        }
        Some(Loading(&self.is_loading))
    }

    /// Finds the current image in the catalog, and loads it unless it is known.
    async fn load<E: Endpoint>(&self, ep: &E, progress: &mut Progress) -> Attempt<Current> {
        let since = ep.now();
        let _loading = self.begin_loading(ep, ep.wait_until(since, self.pool.verbs_take())).await;
        let known = self.known();
        // Another query has loaded it while this one waited.
        if let Some(current) = known.clone().filter(|current| current.seen_at > since) {
            return Ok(current);
        }
        // 1. The version first: if it stays the same, so has the record.
        let seen_at = ep.now();
        let catalog = self.pool.catalog_version(ep).await?;
        let record = self.pool.open_index(ep, &self.name).await?;
        let not_an_elf = || RemoteError::NotAnElf { name: self.name.clone() };
        let image = ImageRef::decode(&record.layout).ok_or_else(not_an_elf)?;
        let image = image.ok_or_else(|| RemoteError::NoImage { name: self.name.clone() })?;
        progress.uses(record.version);
        // 2. The image, if it is another one.
        let known = known.filter(|known| known.image.manifest.stamp == image.stamp);
        let image = match known {
            Some(known) => known.image,
            None => Arc::new(Image::load(ep, &self.pool, &image, &self.options, &mut progress.cost).await?),
        };
        let current = Current { image, version: record.version, catalog, seen_at };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current.clone());
        Ok(current)
    }
}
