//! An image as a reader knows it: its place, its header, and the upper levels in DRAM.
//!
//! Loading takes the manifest, the head of the image and the levels that fit the budget. All of it is verified
//! by checksums, so that an image that is replaced meanwhile is noticed; the caller then begins anew.

use pando_elf::{Filter, Header, Kernel, LayoutKind, Sections, Sink, linear};
use pando_fabric::{Endpoint, MemoryServerId};
use pando_pool::{Pool, PoolError};

use crate::columnar::{Trie, Walk};
use crate::costs::Estimate;
use crate::error::{Attempt, RemoteError, Retry, damaged};
use crate::fetch::{Access, Cost, Fetch, Parts, Remote};
use crate::linear::{Search, Spans};
use crate::lists::ListCache;
use crate::manifest::{Manifest, Stamped};
use crate::options::ReadOptions;
use crate::receiver::{FoundRows, Receiver, Rows};

/// What a reader has in DRAM of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// Number of levels that need no READ.
    pub levels: usize,
    /// Memory that they take.
    pub bytes: u64,
}

#[derive(Debug)]
enum Levels {
    Columnar(Trie),
    Linear(Spans),
}

/// An image in remote memory, of which the upper levels are cached.
#[derive(Debug)]
pub(crate) struct Image {
    pub manifest: Manifest,
    pub order: Vec<usize>,
    levels: Levels,
    /// The memory server that has all of it.
    pub home: Option<MemoryServerId>,
    /// Lists below the cached levels.
    pub lists: Option<ListCache>,
}

/// A search that was begun with what is cached.
#[derive(Debug)]
pub(crate) enum Begun {
    Columnar(Walk),
    Linear(Search),
}

impl Image {
    /// READs the manifest of an image.
    pub async fn read_manifest<E: Endpoint>(ep: &E, pool: &Pool, image: &Stamped) -> Attempt<Manifest> {
        let (addr, mut bytes) = (image.value.addr, Vec::new());
        match pool.get_value(ep, image.value, &mut bytes).await {
            Err(PoolError::ValueChanged { addr }) => return Err(Retry::Changed(addr)),
            read => read?,
        }
        let manifest =
            Manifest::decode(&bytes).map_err(|reason| RemoteError::BadManifest { addr, reason })?;
        match manifest.stamp == image.stamp {
            true => Ok(manifest),
            false => Err(RemoteError::BadManifest { addr, reason: "it belongs to another image" }.into()),
        }
    }

    /// READs the manifest, the head and the upper levels of an image.
    pub async fn load<E: Endpoint>(
        ep: &E,
        pool: &Pool,
        image: &Stamped,
        options: &ReadOptions,
        cost: &mut Cost,
    ) -> Attempt<Self> {
        let manifest = Self::read_manifest(ep, pool, image).await?;
        let access = Remote { ep, pool, check: &mut None };
        Self::open(access, manifest, options, cost).await
    }

    /// READs the head and the upper levels of an image.
    pub async fn open<A: Access>(
        access: A,
        manifest: Manifest,
        options: &ReadOptions,
        cost: &mut Cost,
    ) -> Attempt<Self> {
        let mut fetch = Fetch::new(access, &manifest, options, cost);
        let (order, levels) = Self::load_levels(&mut fetch, &manifest).await?;
        let home = manifest.home();
        let lists = options.list_cache.map(ListCache::new);
        Ok(Self { manifest, order, levels, home, lists })
    }

    async fn load_levels<A: Access>(
        fetch: &mut Fetch<'_, A>,
        manifest: &Manifest,
    ) -> Attempt<(Vec<usize>, Levels)> {
        let image_bytes = manifest.image_bytes;
        let first = 0..image_bytes.min(fetch.options.round_trip_bytes.max(Header::BYTES as u64));
        let mut parts = fetch.read(vec![first]).await?;
        let header = Header::of_head(parts.from(0))?;
        if header.image_bytes() != Some(image_bytes) {
            return Err(damaged(0, "it has another size than its manifest says"));
        }
        let head = 0..header.head_bytes() as u64;
        if parts.get(&head).is_none() {
            parts = fetch.read(vec![head]).await?;
        }
        let head = parts.from(0);
        match header.layout {
            LayoutKind::Columnar => {
                let (sections, order) = Sections::of_head(head, &header)?;
                Ok((order, Levels::Columnar(load_trie(fetch, &header, sections, manifest.id_bound).await?)))
            }
            LayoutKind::Linear => {
                let order = linear::order(head, &header)?;
                Ok((order, Levels::Linear(load_spans(fetch, &header, manifest).await?)))
            }
        }
    }

    /// Begins a search with what is cached; `None` if no row can match.
    pub fn begin(&self, filter: &Filter, wants_rows: bool) -> Attempt<Option<Begun>> {
        let rows = match &self.levels {
            Levels::Columnar(trie) => trie.rows,
            Levels::Linear(spans) => spans.rows,
        };
        if filter.is_empty() || rows == 0 {
            return Ok(None);
        }
        Ok(Some(match &self.levels {
            Levels::Columnar(trie) => Begun::Columnar(trie.begin(filter)?),
            Levels::Linear(spans) => Begun::Linear(spans.begin(filter, wants_rows)?),
        }))
    }

    /// What the rest of a search is expected to need.
    pub fn estimate(
        &self,
        filter: &Filter,
        begun: &Begun,
        wants_ids: bool,
        options: &ReadOptions,
    ) -> Estimate {
        match (&self.levels, begun) {
            (Levels::Columnar(trie), Begun::Columnar(walk)) => trie.estimate(filter, walk, wants_ids),
            (Levels::Linear(spans), Begun::Linear(search)) => {
                spans.estimate(filter, search, options.round_trip_bytes)
            }
            _ => Estimate::default(),
        }
    }

    /// Gives `out` the rows that match `filter`.
    pub async fn finish<A: Access, S: Sink>(
        &self,
        fetch: &mut Fetch<'_, A>,
        filter: &Filter,
        begun: Begun,
        out: &mut Receiver<'_, S>,
    ) -> Attempt<()> {
        match (&self.levels, begun) {
            (Levels::Columnar(trie), Begun::Columnar(walk)) => trie.finish(fetch, filter, walk, out).await,
            (Levels::Linear(spans), Begun::Linear(search)) => spans.finish(fetch, filter, search, out).await,
            _ => Ok(()),
        }
    }

    /// Codes of the selected columns for the rows that a search collected, in the order of their ids.
    pub async fn codes<A: Access>(&self, fetch: &mut Fetch<'_, A>, found: Rows) -> Attempt<FoundRows> {
        match &self.levels {
            Levels::Columnar(trie) => trie.codes(fetch, found).await,
            Levels::Linear(_) => Ok(found.in_order()),
        }
    }

    /// Bytes that a walk for `filter` READs at most: the levels down to its last condition. `None` if any
    /// part of the image may be READ.
    pub fn reads_at_most(&self, filter: &Filter) -> Option<u64> {
        match &self.levels {
            Levels::Columnar(trie) => Some(trie.bytes_of_levels(filter)),
            Levels::Linear(_) => None,
        }
    }

    /// What is cached of it.
    pub fn cached(&self) -> Cached {
        let (levels, bytes) = match &self.levels {
            Levels::Columnar(trie) => (trie.is_cached.iter().filter(|is| **is).count(), trie.cached.bytes()),
            Levels::Linear(spans) => (spans.cached_levels, spans.cached.bytes()),
        };
        let lists = self.lists.as_ref().map_or(0, ListCache::bytes);
        Cached { levels, bytes: bytes + lists }
    }
}

/// Caches the levels that fit the budget, from the top; a level that does not fit is left out.
async fn load_trie<A: Access>(
    fetch: &mut Fetch<'_, A>,
    header: &Header,
    sections: Sections,
    id_bound: u64,
) -> Attempt<Trie> {
    let mut left = fetch.options.cache_bytes;
    let mut is_cached = vec![false; sections.levels.len()];
    let mut places = Vec::new();
    for (level, is_cached) in sections.levels.iter().zip(&mut is_cached).take(fetch.options.cache_levels) {
        // The sections of the entries are neighbours.
        let place = level.values.start as u64..level.codes.start as u64;
        if let Some(rest) = left.checked_sub(place.end - place.start) {
            (left, *is_cached) = (rest, true);
            places.push(place);
        }
    }
    let fetched = fetch.read(places.clone()).await?;
    let mut cached = Parts::default();
    for place in places.into_iter().filter(|place| !place.is_empty()) {
        let missing = || damaged(place.start, "a level is missing");
        cached.push(place.start, fetched.get(&place).ok_or_else(missing)?.to_vec());
    }
    let (rows, number_bytes, kernel) = (header.rows, header.pointer_bytes, Kernel::detect());
    Ok(Trie { sections, rows, id_bound, number_bytes, is_cached, cached, kernel })
}

async fn load_spans<A: Access>(
    fetch: &mut Fetch<'_, A>,
    header: &Header,
    manifest: &Manifest,
) -> Attempt<Spans> {
    let array_at = header.head_bytes() as u64;
    let behind = || damaged(array_at, "the body ends within the column order");
    let array_bytes = manifest.image_bytes.checked_sub(array_at).ok_or_else(behind)?;
    let pointer_words = header.pointer_bytes / 4;
    let array_words = array_bytes / 4;
    if header.first_list > array_words / pointer_words as u64 {
        return Err(damaged(array_at, "the first list is too short"));
    }
    let mut spans = Spans {
        array_at,
        array_words,
        first_list: header.first_list,
        pointer_words,
        columns: header.columns,
        rows: header.rows,
        id_bound: manifest.id_bound,
        cached_levels: 0,
        cached: Parts::default(),
    };
    spans.fill(fetch).await?;
    Ok(spans)
}
