//! What an attempt of a change has written, to which nothing leads yet.
//!
//! Every block belongs to the draft from the moment it is allocated: it is published with the next version, or
//! freed.

use pando_elf::{Dictionary, Merged, Tombstones};
use pando_fabric::{Endpoint, MemoryServerId};
use pando_pool::{Due, MAX_VALUE, Placement, ValueRef};

use super::{NewPart, NewTree};
use crate::descriptor::{Descriptor, PartRef, Pieces, TableSpec, TreeRef};
use crate::error::{RemoteError, Result};
use crate::limbo::{Batch, Unpublished};
use crate::manifest::Stamped;
use crate::options::PublishOptions;
use crate::switch::Switcher;
use crate::write::{NewImage, write_image};

pub(super) struct Draft<'w, E> {
    ep: &'w E,
    switcher: &'w Switcher,
    options: &'w PublishOptions,
    unpublished: Unpublished<'w>,
}

impl<'w, E: Endpoint> Draft<'w, E> {
    pub fn begin(ep: &'w E, switcher: &'w Switcher, options: &'w PublishOptions) -> Self {
        Self { ep, switcher, options, unpublished: switcher.limbo.begin() }
    }

    /// Takes all blocks over, to publish them.
    pub fn take(&mut self) -> Batch {
        std::mem::take(&mut self.unpublished.batch)
    }

    /// Frees blocks that another writer's change has made useless. None of their verbs is in flight.
    pub fn reject(&self, batch: Batch) {
        self.switcher.limbo.rest(batch, Due::Now);
    }

    /// Frees all blocks after `error`.
    pub async fn discard<T>(mut self, error: RemoteError) -> Result<T> {
        let batch = self.take();
        self.switcher.discard(self.ep, batch, error).await
    }

    async fn value(&mut self, placement: Placement, bytes: &[u8]) -> Result<ValueRef> {
        let value = self.switcher.pool.put_value(self.ep, placement, bytes).await?;
        self.unpublished.batch.values.push(value);
        Ok(value)
    }

    async fn pieces(&mut self, bytes: &[u8]) -> Result<Pieces> {
        let mut pieces = Vec::new();
        for bytes in bytes.chunks(MAX_VALUE as usize) {
            pieces.push(self.value(Placement::LeastLoaded, bytes).await?);
        }
        Ok(pieces)
    }

    async fn dictionary(&mut self, dictionary: &Dictionary) -> Result<Pieces> {
        self.pieces(&dictionary.to_bytes()).await
    }

    /// Homes of the trees of a part: the active memory servers in turn. A tree that is alone has none.
    fn homes(&self, trees: usize) -> Vec<Option<MemoryServerId>> {
        let mut servers = self.switcher.pool.active_servers();
        if trees <= 1 || servers.is_empty() {
            return vec![None; trees];
        }
        let first = servers.iter().position(|&server| server == self.switcher.pool.least_loaded());
        servers.rotate_left(first.unwrap_or(0));
        servers.into_iter().map(Some).cycle().take(trees).collect()
    }

    /// Writes a part without deleted rows.
    pub async fn part(&mut self, part: NewPart<'_>) -> Result<PartRef> {
        let NewPart { trees: new, dictionaries, rows, first_id, id_bound } = part;
        let pool = &self.switcher.pool;
        let homes = self.homes(new.len());
        let mut trees = Vec::with_capacity(new.len());
        for (&NewTree { image: source, rows }, home) in new.iter().zip(homes) {
            let image = NewImage { source, id_bound, home };
            let (image, _) = write_image(self.ep, pool, image, self.options, &mut self.unpublished).await?;
            trees.push(TreeRef { rows, image_bytes: source.len()?, image });
        }
        let mut columns = Vec::with_capacity(dictionaries.len());
        for dictionary in dictionaries {
            columns.push(self.dictionary(dictionary).await?);
        }
        Ok(PartRef {
            rows,
            deleted_rows: 0,
            first_id,
            id_bound,
            trees,
            dictionaries: columns,
            deleted: Vec::new(),
        })
    }

    /// Writes the result of a merge, if rows are left.
    pub async fn merged(&mut self, merged: Option<&Merged>) -> Result<Option<PartRef>> {
        let Some(Merged { trees, table, dictionaries }) = merged else { return Ok(None) };
        let trees = trees.iter().map(NewTree::of);
        let part = NewPart {
            trees: &trees.collect::<Vec<_>>(),
            dictionaries,
            rows: table.rows() as u64,
            first_id: table.id_of_first().unwrap_or_default(),
            id_bound: table.id_bound(),
        };
        self.part(part).await.map(Some)
    }

    /// The same part with these deleted rows.
    pub async fn with_deleted(&mut self, part: &PartRef, deleted: &Tombstones) -> Result<PartRef> {
        let deleted_rows = deleted.count();
        let deleted = self.pieces(&deleted.to_bytes()).await?;
        Ok(PartRef { deleted_rows, deleted, ..part.clone() })
    }

    /// Writes the description of a version.
    pub async fn describe(&mut self, descriptor: &Descriptor) -> Result<Stamped> {
        let placement = Placement::Prefer(MemoryServerId(0));
        let value = self.value(placement, &descriptor.encode()).await?;
        Ok(Stamped { value, stamp: descriptor.stamp })
    }

    /// Writes the first version of a table.
    pub async fn first(
        &mut self,
        spec: &TableSpec,
        part: Option<NewPart<'_>>,
    ) -> Result<(Descriptor, Stamped)> {
        let mut parts = Vec::new();
        if let Some(part) = part.filter(|part| part.rows > 0) {
            parts.push(self.part(part).await?);
        }
        let id_bound = parts.last().map_or(0, |part| part.id_bound);
        let descriptor = Descriptor { stamp: self.ep.random(), id_bound, spec: spec.clone(), parts };
        let target = self.describe(&descriptor).await?;
        Ok((descriptor, target))
    }
}
