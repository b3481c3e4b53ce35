//! Queries of one image in a pool: counts, ids and bitmaps of the rows that meet a predicate over codes.
//!
//! Each query is an attempt on the current image ([`crate::follow`]): the upper levels are in DRAM, the rest is
//! READ by the search of the layout.

use pando_elf::{Bitmap, Filter, Ids, Kernel, Predicate, RowId, Sink};
use pando_fabric::Endpoint;
use pando_pool::Pool;

use crate::error::{Attempt, Result};
use crate::follow::{Answer, Follower, Reads, Version};
use crate::image::{Cached, Image};
use crate::manifest::{Kind, Stamped};
use crate::options::ReadOptions;

impl Version for Image {
    const KIND: Kind = Kind::Image;

    fn stamp(&self) -> u64 {
        self.manifest.stamp
    }

    async fn load<E: Endpoint>(
        reads: &mut Reads<'_, E>,
        root: &Stamped,
        _known: Option<&Self>,
    ) -> Attempt<Self> {
        Image::load(reads.ep, reads.pool, root, reads.options, &mut reads.cost).await
    }
}

/// An Elf in a pool, for queries. Several threads may share it, each with its own endpoint.
pub struct Reader {
    follower: Follower<Image>,
}

impl Reader {
    /// Opens the Elf that the catalog knows as `name`. Its image is loaded by the first query.
    pub fn new(pool: Pool, name: impl Into<String>, options: ReadOptions) -> Self {
        Self { follower: Follower::new(pool, name.into(), options) }
    }

    /// Number of rows that match.
    ///
    /// # Errors
    /// As for [`Reader::select`].
    pub async fn count<E: Endpoint>(&self, ep: &E, predicate: &Predicate) -> Result<Answer<u64>> {
        self.answer(ep, predicate, async |image, reads, filter| image.count(reads, filter).await).await
    }

    /// Ids of the rows that match, in no particular order.
    ///
    /// # Errors
    /// As for [`Reader::select`]; [`pando_elf::Error::IdsTooNarrow`] if `T` cannot hold them.
    pub async fn ids<T: RowId, E: Endpoint>(&self, ep: &E, predicate: &Predicate) -> Result<Answer<Vec<T>>> {
        self.answer(ep, predicate, async |image, reads, filter| {
            let mut ids = Vec::new();
            let mut sink = Ids::checked(&mut ids, image.manifest.id_bound, Kernel::detect())?;
            image.fill(reads, filter, &mut sink).await?;
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
    /// [`NotAnElf`](crate::RemoteError::NotAnElf), [`NoImage`](crate::RemoteError::NoImage),
    /// [`KeptChanging`](crate::RemoteError::KeptChanging); errors of the predicate, of damaged bytes, of the pool
    /// and of verbs.
    pub async fn select<S: Sink, E: Endpoint>(
        &self,
        ep: &E,
        predicate: &Predicate,
        make: impl Fn(u64) -> pando_elf::Result<S>,
    ) -> Result<Answer<S>> {
        self.answer(ep, predicate, async |image, reads, filter| {
            let mut sink = make(image.manifest.id_bound)?;
            image.fill(reads, filter, &mut sink).await?;
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
        search: impl AsyncFn(&Image, &mut Reads<'_, E>, &Filter) -> Attempt<T>,
    ) -> Result<Answer<T>> {
        let attempt = async |image: &Image, reads: &mut Reads<'_, E>| {
            let filter = Filter::new(predicate, &image.order)?;
            search(image, reads, &filter).await
        };
        self.follower.answer(ep, attempt).await
    }
}
