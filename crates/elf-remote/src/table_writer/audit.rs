//! What a record leads to: whole parts, all blocks, and whether everything fits together.
//!
//! An audit READs every byte of a table. Images are verified as when they are opened, and compared with what the
//! description says of them; codes have to be in the dictionaries, and deleted rows in the image.

use std::sync::Arc;

use pando_elf::{Elf, Portion, decode_forest};
use pando_fabric::Endpoint;
use pando_pool::{IndexRecord, Pool};

use crate::descriptor::{Descriptor, PartRef, TableSpec, TreeRef};
use crate::error::{Attempt, RemoteError, Result, Retry};
use crate::fetch::{Cost, Fetch, Remote};
use crate::image::Image;
use crate::limbo::{Batch, Block};
use crate::manifest::{Kind, Root, SYSTEM};
use crate::options::ReadOptions;
use crate::table::{read_deleted, read_descriptor, read_dictionary};
use crate::table_reader::TableInfo;

/// Whether an index of the catalog is an Elf.
pub fn is_elf(record: &IndexRecord) -> bool {
    record.system == SYSTEM
}

/// READs the image of a tree.
pub(super) async fn image_bytes<E: Endpoint>(ep: &E, pool: &Pool, tree: &TreeRef) -> Attempt<Vec<u8>> {
    let manifest = Image::read_manifest(ep, pool, &tree.image).await?;
    let (options, mut cost) = (ReadOptions::default(), Cost::default());
    let access = Remote { ep, pool, check: &mut None };
    Fetch::new(access, &manifest, &options, &mut cost).read_all().await
}

/// READs all of a part.
pub(super) async fn whole_part<E: Endpoint>(
    ep: &E,
    pool: &Pool,
    spec: &TableSpec,
    part: &PartRef,
) -> Attempt<Portion> {
    let mut trees = Vec::with_capacity(part.trees.len());
    for tree in &part.trees {
        let elf = Elf::open(image_bytes(ep, pool, tree).await?)?;
        if elf.order() != spec.order || elf.header().layout != spec.layout || elf.header().rows != tree.rows {
            let reason = "its image has another layout, column order or number of rows than the table says";
            return Err(RemoteError::BadTable { addr: tree.image.value.addr, reason }.into());
        }
        trees.push(elf);
    }
    let table = Arc::new(decode_forest(&trees)?);
    // The rows of several trees are sorted again.
    let elf = match trees.pop() {
        Some(elf) if trees.is_empty() => Some(elf.with_table(table.clone())?),
        _ => None,
    };
    let mut dictionaries = Vec::with_capacity(part.dictionaries.len());
    for (column, pieces) in spec.schema.columns().iter().zip(&part.dictionaries) {
        dictionaries.push(read_dictionary(ep, pool, column, pieces).await?);
    }
    let deleted = read_deleted(ep, pool, part).await?;
    Ok(Portion { table, dictionaries, elf, deleted })
}

/// Blocks of the image and the dictionaries of a part.
pub(super) async fn run_blocks<E: Endpoint>(ep: &E, pool: &Pool, part: &PartRef) -> Attempt<Batch> {
    let mut batch = Batch::default();
    for tree in &part.trees {
        batch.values.push(tree.image.value);
        batch.blocks.extend(Image::read_manifest(ep, pool, &tree.image).await?.blocks());
    }
    batch.values.extend(part.dictionaries.iter().flatten());
    Ok(batch)
}

/// All blocks that a record of an Elf leads to.
pub(super) async fn blocks_of<E: Endpoint>(ep: &E, pool: &Pool, record: &IndexRecord) -> Attempt<Batch> {
    let not_an_elf = || RemoteError::NotAnElf { name: record.name.clone() };
    let Root { kind, target } = Root::decode(&record.layout).ok_or_else(not_an_elf)?;
    let Some(target) = target else { return Ok(Batch::default()) };
    let mut all = Batch { values: vec![target.value], blocks: Vec::new() };
    match kind {
        Kind::Image => all.blocks.extend(Image::read_manifest(ep, pool, &target).await?.blocks()),
        Kind::Table => {
            for part in &read_descriptor(ep, pool, &target).await?.parts {
                all.add(run_blocks(ep, pool, part).await?);
                all.values.extend(&part.deleted);
            }
        }
    }
    Ok(all)
}

impl Batch {
    /// The blocks, with those of the values.
    pub(super) async fn all_blocks<E: Endpoint>(self, ep: &E, pool: &Pool) -> Attempt<Vec<Block>> {
        let Self { values, mut blocks } = self;
        for value in values {
            pool.visit_value_blocks(ep, value, |addr, size| blocks.push((addr, size))).await?;
        }
        Ok(blocks)
    }
}

/// All blocks that a record of an Elf leads to, with their sizes, for audits and for a rebuild of the allocation.
/// Nothing else may change the index meanwhile.
///
/// # Errors
/// [`RemoteError::NotAnElf`]; damage; errors of verbs.
pub async fn table_blocks<E: Endpoint>(ep: &E, pool: &Pool, record: &IndexRecord) -> Result<Vec<Block>> {
    let blocks = match blocks_of(ep, pool, record).await {
        Ok(batch) => batch.all_blocks(ep, pool).await,
        Err(retry) => Err(retry),
    };
    blocks.map_err(|retry| at_rest(record, retry))
}

/// The error of work on an index that nothing changes.
fn at_rest(record: &IndexRecord, retry: Retry) -> RemoteError {
    match retry {
        Retry::Failed(error) => error,
        Retry::Changed(addr) => RemoteError::BadPiece { name: record.name.clone(), addr },
        Retry::Moved => RemoteError::KeptChanging { name: record.name.clone(), times: 1 },
    }
}

/// Result of an audit.
#[derive(Clone, Debug, Default)]
pub struct TableAudit {
    /// `None` if the description is damaged, or if the index has a single image.
    pub info: Option<TableInfo>,
    /// Violations, one sentence each.
    pub violations: Vec<String>,
    /// Blocks of the index with their sizes, as far as they can be found.
    pub blocks: Vec<Block>,
}

/// Audits an Elf that nothing changes meanwhile.
///
/// # Errors
/// Errors of verbs. Damage is in the result.
pub async fn audit_table<E: Endpoint>(ep: &E, pool: &Pool, record: &IndexRecord) -> Result<TableAudit> {
    let mut audit = TableAudit::default();
    match table_blocks(ep, pool, record).await {
        Ok(blocks) => audit.blocks = blocks,
        Err(error) => audit.add(error)?,
    }
    let Some(Root { kind: Kind::Table, target: Some(target) }) = Root::decode(&record.layout) else {
        return Ok(audit);
    };
    let Descriptor { spec, parts, .. } = match read_descriptor(ep, pool, &target).await {
        Ok(descriptor) => {
            audit.info = Some(TableInfo::of(&descriptor));
            descriptor
        }
        // That was a violation of the blocks, too.
        Err(_) => return Ok(audit),
    };
    for (number, part) in parts.iter().enumerate() {
        match whole_part(ep, pool, &spec, part).await {
            Ok(portion) => audit.violations.extend(violation(number, &spec, part, &portion)),
            Err(retry) => audit.add(at_rest(record, retry))?,
        }
    }
    audit.violations.dedup();
    Ok(audit)
}

impl TableAudit {
    fn add(&mut self, error: RemoteError) -> Result<()> {
        if error.is_unreachable() {
            return Err(error);
        }
        self.violations.push(error.to_string());
        Ok(())
    }
}

/// The first thing that does not fit in a part.
fn violation(number: usize, spec: &TableSpec, at: &PartRef, part: &Portion) -> Option<String> {
    let Portion { table, dictionaries, deleted, .. } = part;
    let says = |what: &str| Some(format!("part {number}: {what}"));
    let found = (table.rows() as u64, table.id_of_first(), table.id_bound());
    if found != (at.rows, Some(at.first_id), at.id_bound) {
        return says("its image has other rows than the description says");
    }
    if let Some(id) = deleted.ids().find(|&id| table.row_of(id).is_none()) {
        return says(&format!("row {id} is deleted, but was never there"));
    }
    let beyond = |&column: &usize| table.maximum(column) as usize > dictionaries[column].len();
    let column = (0..table.width()).find(beyond)?;
    says(&format!("column {:?} has codes without values", spec.schema.columns()[column].name))
}
