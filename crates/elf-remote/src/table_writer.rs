//! Changes of a table: build, inserts, deletes, merges, removal.
//!
//! A change reads the description of the table, writes the parts that are to be new, and replaces the record by one
//! that leads to the next description ([`crate::switch`]). If another writer was faster, its change is taken into
//! account: the second writer frees what it wrote, reads the description again and does its work on that. What the
//! next version does not use any more is freed after the grace.
//!
//! Inserted rows are joined with the newest parts as long as these have less than twice as many rows, up to a
//! bound. So many small inserts make few parts. Larger parts are merged on demand, by the size-tiered policy of
//! tables in memory.

mod audit;
mod draft;

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use pando_elf::{
    BuildOptions, Dictionary, Elf, EncodedTable, MergeOptions, Merged, Portion, RunSize, Tombstones, Trees,
    merge_portions, next_merge,
};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, GlobalAddr, MemoryServerId};
use pando_pool::{IndexRecord, Pool, PoolError};

use crate::defect::Defect;
use crate::descriptor::{Descriptor, PartRef, TableSpec};
use crate::error::{Attempt, RemoteError, Result, Retry};
use crate::limbo::{Batch, Block};
use crate::manifest::{Kind, Root, Stamped};
use crate::options::{PublishOptions, TableOptions};
use crate::publish::check_options;
use crate::switch::{Switched, Switcher};
use crate::table::{read_deleted, read_descriptor, read_dictionary};
use crate::table_reader::{Condition, TableReader};
use crate::write::Source;
pub use audit::{TableAudit, audit_table, is_elf, table_blocks};
use audit::{blocks_of, whole_part};
use draft::Draft;

/// Times that bytes of one version may be wrong before it counts as damaged.
const BAD_PIECES_MAX: u32 = 2;

/// A tree of a new part.
#[derive(Clone, Copy, Debug)]
pub struct NewTree<'a> {
    pub image: Source<'a>,
    pub rows: u64,
}

impl<'a> NewTree<'a> {
    pub fn of(elf: &'a Elf) -> Self {
        Self { image: Source::Bytes(elf.bytes()), rows: elf.header().rows }
    }
}

/// Rows that become a part: a forest, and the dictionaries of its codes.
#[derive(Clone, Copy)]
pub struct NewPart<'a> {
    /// At least one, in the order of their rows.
    pub trees: &'a [NewTree<'a>],
    /// One per column.
    pub dictionaries: &'a [Dictionary],
    pub rows: u64,
    pub first_id: u64,
    pub id_bound: u64,
}

/// The right of a process to change a table. Others may change it too. Before it is dropped,
/// [`TableWriter::settle`] frees what it replaced.
pub struct TableWriter {
    switcher: Switcher,
    publish: PublishOptions,
    options: TableOptions,
}

/// The version that a change starts from.
struct Found {
    record: IndexRecord,
    root: Stamped,
    descriptor: Descriptor,
}

/// The version that a change makes.
struct Next<T> {
    id_bound: u64,
    parts: Vec<PartRef>,
    result: T,
}

/// A merge that was done, and what it was done on.
struct DoneMerge {
    inputs: Vec<Stamped>,
    /// Rows that were deleted then.
    deleted: Vec<Tombstones>,
    merged: Option<Merged>,
}

/// Number of parts that a merge put together, and that are left of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergedParts {
    pub inputs: usize,
    /// Parts of the table afterwards.
    pub parts: usize,
}

impl TableWriter {
    /// Changes of the table that the catalog knows as `name`, or that is to be made.
    ///
    /// # Errors
    /// [`RemoteError::Options`].
    pub fn new(pool: Pool, name: &str, publish: PublishOptions, options: TableOptions) -> Result<Self> {
        check_options(&pool, &publish)?;
        Ok(Self { switcher: Switcher::new(pool, name.to_owned(), publish.grace_ns), publish, options })
    }

    pub fn name(&self) -> &str {
        &self.switcher.name
    }

    /// Makes the table with the rows of `part`, if there are any; returns its version. With `replace`, takes the
    /// place of an Elf of that name.
    ///
    /// # Errors
    /// [`PoolError::IndexExists`]; [`RemoteError::NotAnElf`] if another kind of index is to be replaced;
    /// [`PoolError::PoolFull`] and other errors of the pool. Nothing is changed then, and no block is lost.
    pub async fn create<E: Endpoint>(
        &self,
        ep: &E,
        spec: &TableSpec,
        part: Option<NewPart<'_>>,
        replace: bool,
    ) -> Result<u64> {
        let _ = self.reclaim(ep).await;
        let exists = || RemoteError::Pool(PoolError::IndexExists { name: self.name().to_owned() });
        for _ in 0..self.publish.attempts_max.max(1) {
            let record = self.record(ep).await?;
            if record.is_some() && !replace {
                return Err(exists());
            }
            let old = match &record {
                Some(record) => match blocks_of(ep, &self.switcher.pool, record).await {
                    Ok(old) => old,
                    Err(Retry::Failed(error)) => return Err(error),
                    // Another writer has replaced it.
                    Err(Retry::Moved | Retry::Changed(_)) => continue,
                },
                None => Batch::default(),
            };
            let mut draft = Draft::begin(ep, &self.switcher, &self.publish);
            let target = match draft.first(spec, part).await {
                Ok((_, target)) => target,
                Err(error) => return draft.discard(error).await,
            };
            let (switcher, kind) = (&self.switcher, Kind::Table);
            match record {
                Some(record) => match switcher.switch(ep, record, kind, target, draft.take(), old).await? {
                    Switched::To(version) => return Ok(version),
                    Switched::Stale(new) => draft.reject(new),
                },
                None => {
                    match switcher.enter(ep, kind, target, self.publish.piece_bytes, draft.take()).await {
                        // Another process was faster.
                        Err(RemoteError::Pool(PoolError::IndexExists { .. })) if replace => {}
                        entered => return entered,
                    }
                }
            }
        }
        Err(self.kept_losing())
    }

    /// Inserts rows, all at once; returns their ids.
    ///
    /// # Errors
    /// [`pando_elf::Error::WrongArity`] and other errors of rows that do not fit the table; a full pool. Nothing is
    /// changed then.
    pub async fn insert<E: Endpoint>(&self, ep: &E, rows: &EncodedTable) -> Result<Range<u64>> {
        let count = rows.codes.rows() as u64;
        let inserted = self.change(ep, async |draft, found| {
            let Descriptor { id_bound, spec, parts, .. } = &found.descriptor;
            if rows.schema != spec.schema {
                return Err(RemoteError::OtherColumns { name: self.name().to_owned() }.into());
            }
            let too_large =
                pando_elf::Error::IdTooLarge { id: u64::MAX, layout: "a table", limit: u64::MAX - 1 };
            let end = id_bound.checked_add(count).filter(|end| *end < u64::MAX).ok_or(too_large)?;
            if count == 0 {
                return Ok(None);
            }
            let (mut kept, mut joined) = (parts.len(), count);
            while let Some(last) = kept.checked_sub(1).map(|last| &parts[last])
                && last.rows < 2 * joined
                && last.rows + joined <= self.options.join_rows
            {
                (kept, joined) = (kept - 1, joined + last.rows);
            }
            let mut portions = Vec::new();
            for part in &parts[kept..] {
                portions.push(whole_part(ep, &self.switcher.pool, spec, part).await?);
            }
            let ids: Vec<u64> = (*id_bound..end).collect();
            let table = Arc::new(rows.codes.clone().with_ids(&ids)?);
            let dictionaries = rows.dictionaries.clone();
            portions.push(Portion { table, dictionaries, elf: None, deleted: Tombstones::default() });
            let merged = merge_portions(portions, &self.merge_options(spec))?;
            let mut parts = parts[..kept].to_vec();
            parts.extend(draft.merged(merged.as_ref()).await?);
            Ok(Some(Next { id_bound: end, parts, result: *id_bound..end }))
        });
        match inserted.await? {
            Some(ids) => Ok(ids),
            None => Ok(0..0),
        }
    }

    /// Deletes the rows that meet the condition, all at once; returns their number. `reader` reads the same table.
    ///
    /// # Errors
    /// Errors of the condition, and of queries and changes. Nothing is changed then.
    pub async fn delete<E: Endpoint>(
        &self,
        ep: &E,
        reader: &TableReader,
        condition: &Condition,
    ) -> Result<u64> {
        let deleted = self.change(ep, async |draft, found| {
            let answer = reader.ids_of_parts(ep, condition).await?;
            if answer.version != found.record.version || answer.value.len() != found.descriptor.parts.len() {
                return Err(Retry::Moved);
            }
            let mut next = Next { id_bound: found.descriptor.id_bound, parts: Vec::new(), result: 0 };
            for (part, (_, ids)) in found.descriptor.parts.iter().zip(answer.value) {
                if ids.is_empty() {
                    next.parts.push(part.clone());
                    continue;
                }
                let mut deleted = read_deleted(ep, &self.switcher.pool, part).await?;
                next.result += ids.into_iter().filter(|&id| deleted.insert(id)).count() as u64;
                // A part without rows is not kept.
                if deleted.count() < part.rows {
                    next.parts.push(draft.with_deleted(part, &deleted).await?);
                }
            }
            Ok((next.result > 0).then_some(next))
        });
        Ok(deleted.await?.unwrap_or(0))
    }

    /// Merges the parts that are due by the size-tiered policy, or all of them; `None` if there is nothing to do.
    /// Inserts and deletes of others go on meanwhile.
    ///
    /// # Errors
    /// [`RemoteError::MergedByOthers`]; errors of merges; a full pool. Nothing is changed then.
    pub async fn merge<E: Endpoint>(&self, ep: &E, all: bool) -> Result<Option<MergedParts>> {
        let done: RefCell<Option<DoneMerge>> = RefCell::default();
        self.change(ep, async |draft, found| {
            let Descriptor { id_bound, spec, parts, .. } = &found.descriptor;
            // The work of an earlier attempt is still good if its inputs are there.
            let earlier = done.take();
            let due = match &earlier {
                Some(earlier) => match place_of(&earlier.inputs, parts) {
                    Some(due) => due,
                    None => return Err(RemoteError::MergedByOthers.into()),
                },
                None => match self.due(parts, all) {
                    Some(due) => due,
                    None => return Ok(None),
                },
            };
            let merge = match earlier {
                Some(merge) => merge,
                None => self.merge_parts(ep, spec, &parts[due.clone()]).await?,
            };
            let mut deleted = Tombstones::default();
            let forgets = defect(Defect::ForgottenDeletes);
            for (part, before) in parts[due.clone()].iter().zip(&merge.deleted).filter(|_| !forgets) {
                let now = read_deleted(ep, &self.switcher.pool, part).await?;
                now.since(before).for_each(|id| {
                    deleted.insert(id);
                });
            }
            let mut next = parts[..due.start].to_vec();
            // Others may have deleted all of its rows meanwhile.
            let merged = merge.merged.as_ref().filter(|merged| deleted.count() < merged.table.rows() as u64);
            if let Some(part) = draft.merged(merged).await? {
                next.push(draft.with_deleted(&part, &deleted).await?);
            }
            next.extend_from_slice(&parts[due.end..]);
            done.replace(Some(merge));
            let result = MergedParts { inputs: due.len(), parts: next.len() };
            Ok(Some(Next { id_bound: *id_bound, parts: next, result }))
        })
        .await
    }

    /// Parts to merge.
    fn due(&self, parts: &[PartRef], all: bool) -> Option<Range<usize>> {
        if all {
            let is_merged = parts.len() <= 1 && parts.iter().all(|part| part.deleted_rows == 0);
            return (!is_merged).then_some(0..parts.len());
        }
        let sizes: Vec<RunSize> = parts.iter().map(PartRef::size).collect();
        next_merge(&sizes, self.options.join_rows, self.options.fan_in)
    }

    async fn merge_parts<E: Endpoint>(
        &self,
        ep: &E,
        spec: &TableSpec,
        parts: &[PartRef],
    ) -> Attempt<DoneMerge> {
        let mut portions = Vec::with_capacity(parts.len());
        for part in parts {
            portions.push(whole_part(ep, &self.switcher.pool, spec, part).await?);
        }
        let deleted = portions.iter().map(|portion| portion.deleted.clone()).collect();
        let merged = merge_portions(portions, &self.merge_options(spec))?;
        Ok(DoneMerge { inputs: parts.iter().map(PartRef::first_image).collect(), deleted, merged })
    }

    fn merge_options(&self, spec: &TableSpec) -> MergeOptions {
        let build = BuildOptions {
            bucket_rows: spec.bucket_rows,
            threads: self.options.threads,
            ..BuildOptions::default()
        };
        let trees = match self.options.trees {
            0 => self.switcher.pool.active_servers().len(),
            trees => trees,
        };
        MergeOptions {
            schema: spec.schema.clone(),
            order: spec.order.clone(),
            layout: spec.layout,
            build,
            trees: Trees { most: trees, rows: self.options.tree_rows },
        }
    }

    /// Writes the parts of the table again that have blocks on a memory server, which is draining. Returns whether
    /// there were any.
    ///
    /// # Errors
    /// Errors of queries and changes; nothing is changed then.
    pub async fn leave<E: Endpoint>(&self, ep: &E, server: MemoryServerId) -> Result<bool> {
        let pool = &self.switcher.pool;
        let moved = self.change(ep, async |draft, found| {
            let Descriptor { id_bound, spec, parts, .. } = &found.descriptor;
            let is_there = |addr: GlobalAddr| addr.server() == server;
            let all = blocks_of(ep, pool, &found.record).await?;
            let is_on_it = all.all_blocks(ep, pool).await?.iter().any(|&(addr, _)| is_there(addr));
            if !is_on_it {
                return Ok(None);
            }
            let mut next = Vec::with_capacity(parts.len());
            for part in parts {
                let mut images = Vec::with_capacity(part.trees.len());
                for tree in &part.trees {
                    images.push((audit::image_bytes(ep, pool, tree).await?, tree.rows));
                }
                let trees =
                    images.iter().map(|(bytes, rows)| NewTree { image: Source::Bytes(bytes), rows: *rows });
                let mut dictionaries = Vec::new();
                for (column, pieces) in spec.schema.columns().iter().zip(&part.dictionaries) {
                    dictionaries.push(read_dictionary(ep, pool, column, pieces).await?);
                }
                let deleted = read_deleted(ep, pool, part).await?;
                let new = NewPart {
                    trees: &trees.collect::<Vec<_>>(),
                    dictionaries: &dictionaries,
                    rows: part.rows,
                    first_id: part.first_id,
                    id_bound: part.id_bound,
                };
                let written = draft.part(new).await?;
                next.push(draft.with_deleted(&written, &deleted).await?);
            }
            Ok(Some(Next { id_bound: *id_bound, parts: next, result: () }))
        });
        Ok(moved.await?.is_some())
    }

    /// Removes the table; returns whether all of its blocks will be free. Those of a damaged one stay allocated as
    /// far as they cannot be found.
    ///
    /// # Errors
    /// [`PoolError::UnknownIndex`]; [`RemoteError::NotAnElf`]; errors of the catalog.
    pub async fn drop_table<E: Endpoint>(&self, ep: &E) -> Result<bool> {
        let pool = &self.switcher.pool;
        let record = pool.open_index(ep, self.name()).await?;
        if !is_elf(&record) {
            return Err(RemoteError::NotAnElf { name: self.name().to_owned() });
        }
        let known = match blocks_of(ep, pool, &record).await {
            Err(Retry::Failed(error)) if error.is_unreachable() => return Err(error),
            known => known,
        };
        let dropped = match pool.drop_index(ep, self.name()).await {
            Ok(dropped) => dropped,
            Err(error @ PoolError::CatalogUnknown { .. }) => {
                // If it is gone, another process may have dropped it and free its blocks.
                if let (Ok(batch), Ok(None) | Err(_)) = (known, self.record(ep).await) {
                    self.switcher.limbo.doubt(batch);
                }
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        // Nothing leads to the blocks any more, and no other writer replaces what the record led to.
        let batch = match known {
            Ok(batch) if dropped.version == record.version => Some(batch),
            _ => blocks_of(ep, pool, &dropped).await.ok(),
        };
        let is_known = batch.is_some();
        self.switcher.retire(ep, batch.unwrap_or_default());
        Ok(is_known)
    }

    async fn record<E: Endpoint>(&self, ep: &E) -> Result<Option<IndexRecord>> {
        match self.switcher.pool.open_index(ep, self.name()).await {
            Err(PoolError::UnknownIndex { .. }) => Ok(None),
            Ok(record) if !is_elf(&record) => Err(RemoteError::NotAnElf { name: self.name().to_owned() }),
            record => Ok(Some(record?)),
        }
    }

    async fn found<E: Endpoint>(&self, ep: &E, record: IndexRecord) -> Attempt<Found> {
        let not_an_elf = || RemoteError::NotAnElf { name: self.name().to_owned() };
        let root = Root::of_kind(Kind::Table, &record.layout).ok_or_else(not_an_elf)?;
        let root = root.ok_or_else(|| RemoteError::NoImage { name: self.name().to_owned() })?;
        let descriptor = read_descriptor(ep, &self.switcher.pool, &root).await?;
        Ok(Found { record, root, descriptor })
    }

    /// Replaces the table by what `make` makes of it; `None` if that is nothing. Does so again if another writer
    /// was faster.
    async fn change<T, E: Endpoint>(
        &self,
        ep: &E,
        make: impl AsyncFn(&mut Draft<'_, E>, &Found) -> Attempt<Option<Next<T>>>,
    ) -> Result<Option<T>> {
        // What cannot be freed now is freed later.
        let _ = self.reclaim(ep).await;
        let mut wrong = (None, 0);
        for _ in 0..self.publish.attempts_max.max(1) {
            let record = self.switcher.pool.open_index(ep, self.name()).await?;
            let version = record.version;
            let mut draft = Draft::begin(ep, &self.switcher, &self.publish);
            match self.attempt(ep, &mut draft, record, &make).await {
                Ok(result) => return Ok(result),
                Err(Retry::Failed(error)) => return draft.discard(error).await,
                Err(Retry::Moved) => {}
                Err(Retry::Changed(addr)) => {
                    wrong = (Some(version), if wrong.0 == Some(version) { wrong.1 + 1 } else { 1 });
                    if wrong.1 > BAD_PIECES_MAX {
                        let name = self.name().to_owned();
                        return draft.discard(RemoteError::BadPiece { name, addr }).await;
                    }
                }
            }
            let new = draft.take();
            draft.reject(new);
        }
        Err(self.kept_losing())
    }

    async fn attempt<T, E: Endpoint>(
        &self,
        ep: &E,
        draft: &mut Draft<'_, E>,
        record: IndexRecord,
        make: &impl AsyncFn(&mut Draft<'_, E>, &Found) -> Attempt<Option<Next<T>>>,
    ) -> Attempt<Option<T>> {
        let found = self.found(ep, record).await?;
        let Some(Next { id_bound, parts, result }) = make(draft, &found).await? else { return Ok(None) };
        let Found { record, root, descriptor } = found;
        let next = Descriptor { stamp: ep.random(), id_bound, spec: descriptor.spec.clone(), parts };
        let target = draft.describe(&next).await?;
        let old = self.replaced(ep, root, &descriptor, &next).await?;
        match self.switcher.switch(ep, record, Kind::Table, target, draft.take(), old).await? {
            Switched::To(_) => Ok(Some(result)),
            Switched::Stale(new) => {
                draft.reject(new);
                Err(Retry::Moved)
            }
        }
    }

    /// Blocks of a version that the next one does not use.
    async fn replaced<E: Endpoint>(
        &self,
        ep: &E,
        root: Stamped,
        before: &Descriptor,
        next: &Descriptor,
    ) -> Attempt<Batch> {
        let mut old = Batch { values: vec![root.value], blocks: Vec::new() };
        for part in &before.parts {
            let kept = next.parts.iter().find(|other| other.is_same_run(part));
            if kept.is_none() {
                old.add(audit::run_blocks(ep, &self.switcher.pool, part).await?);
            }
            if kept.is_none_or(|kept| kept.deleted != part.deleted) {
                old.values.extend(&part.deleted);
            }
        }
        Ok(old)
    }

    fn kept_losing(&self) -> RemoteError {
        RemoteError::KeptLosing { name: self.name().to_owned(), times: self.publish.attempts_max }
    }

    /// Frees what is due, and finds out which changes took effect, where that was not known.
    ///
    /// # Errors
    /// Errors of the pool and of verbs; what is not free yet is kept.
    pub async fn reclaim<E: Endpoint>(&self, ep: &E) -> Result<()> {
        self.switcher.reclaim(ep).await
    }

    /// Waits until everything that was replaced is free, as long as `patience_ns`; returns how much is not.
    ///
    /// # Errors
    /// As for [`TableWriter::reclaim`].
    pub async fn settle<E: Endpoint>(&self, ep: &E, patience_ns: u64) -> Result<usize> {
        self.switcher.settle(ep, patience_ns).await
    }

    /// Blocks, with their sizes, that this writer gave up, because they may be in use or free already.
    pub fn doubtful(&self) -> Vec<Block> {
        self.switcher.doubtful()
    }
}

/// Where the parts with these images are, one after the other.
fn place_of(inputs: &[Stamped], parts: &[PartRef]) -> Option<Range<usize>> {
    let is_there = |parts: &[PartRef]| parts.iter().map(PartRef::first_image).eq(inputs.iter().copied());
    let at = parts.windows(inputs.len()).position(is_there)?;
    Some(at..at + inputs.len())
}
