//! Queries of a table by conditions in SQL notation.
//!
//! A condition is encoded for each part with the part's dictionaries, and searched for in all of its trees at the same
//! time; deleted rows are left out. All parts of an answer are of one version of the table ([`crate::follow`]).

use pando_elf::{
    Bitmap, Dictionary, Filter, LayoutKind, Predicate, Schema, Sink, SqlOptions, Value, parse_condition,
};
use pando_fabric::defect::defect;
use pando_fabric::{Endpoint, join_all};
use pando_pool::Pool;
use std::sync::Arc;

use crate::defect::Defect;
use crate::descriptor::{Descriptor, TableSpec};
use crate::error::{Attempt, RemoteError, Result, Retry};
use crate::fetch::Cost;
use crate::follow::{Answer, Follower, Reads};
use crate::image::{Cached, Image};
use crate::manifest::{Kind, Root};
use crate::options::ReadOptions;
use crate::receiver::FoundRows;
use crate::table::{Dictionaries, Part, Table, read_descriptor};

/// Times that a description is READ that others have replaced meanwhile.
const DESCRIPTIONS_MAX: u32 = 64;

/// Which rows of a table are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    /// In SQL notation; `None` for all rows.
    pub text: Option<String>,
    pub options: SqlOptions,
}

impl Condition {
    /// All rows.
    pub fn all() -> Self {
        Self::default()
    }

    /// The rows that meet a condition in SQL notation.
    pub fn sql(text: impl Into<String>) -> Self {
        Self { text: Some(text.into()), options: SqlOptions::default() }
    }

    /// Columns that the condition may name.
    fn columns(&self, schema: &Schema) -> Vec<bool> {
        let text = self.text.as_deref().unwrap_or_default().to_lowercase();
        let is_named = |name: &str| {
            let name = name.to_lowercase();
            text.contains(&name) || text.contains(&name.replace('"', "\"\""))
        };
        schema.columns().iter().map(|column| is_named(&column.name)).collect()
    }

    fn encode(&self, dictionaries: &[Dictionary]) -> pando_elf::Result<Vec<Predicate>> {
        match &self.text {
            Some(text) => parse_condition(text, dictionaries, &self.options),
            None => Ok(vec![Predicate::all()]),
        }
    }

    /// Checks the condition for the columns of a table.
    ///
    /// # Errors
    /// [`pando_elf::Error::BadCondition`] with the byte at which it is wrong.
    pub fn check(&self, schema: &Schema) -> pando_elf::Result<()> {
        let empty = schema.columns().iter().map(|column| Dictionary::new(column, std::iter::empty()));
        self.encode(&empty.collect::<pando_elf::Result<Vec<_>>>()?).map(drop)
    }
}

/// Size of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartInfo {
    /// Rows of all trees, with deleted ones.
    pub rows: u64,
    pub deleted_rows: u64,
    pub first_id: u64,
    pub id_bound: u64,
    /// Trees of its forest.
    pub trees: usize,
    /// Bytes of their images.
    pub image_bytes: u64,
    pub dictionary_bytes: u64,
}

/// A version of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub spec: TableSpec,
    /// The id of the next row.
    pub id_bound: u64,
    /// Rows that are not deleted.
    pub rows: u64,
    pub parts: Vec<PartInfo>,
}

impl TableInfo {
    pub(crate) fn of(descriptor: &Descriptor) -> Self {
        let part = |part: &crate::descriptor::PartRef| PartInfo {
            rows: part.rows,
            deleted_rows: part.deleted_rows,
            first_id: part.first_id,
            id_bound: part.id_bound,
            trees: part.trees.len(),
            image_bytes: part.image_bytes(),
            dictionary_bytes: part.dictionary_bytes(),
        };
        Self {
            spec: descriptor.spec.clone(),
            id_bound: descriptor.id_bound,
            rows: descriptor.living(),
            parts: descriptor.parts.iter().map(part).collect(),
        }
    }
}

/// How a condition was answered in one part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartExplained {
    pub info: PartInfo,
    /// Predicates that no row meets two of.
    pub predicates: usize,
    /// Rows that were found, deleted ones included.
    pub found: u64,
    /// Bytes that its walk may READ at most, besides row ids: the levels down to the last condition that are not
    /// cached. `None` if any part of the image may be READ.
    pub reads_at_most: Option<u64>,
    pub cached: Cached,
    pub cost: Cost,
}

/// How a condition is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    pub info: TableInfo,
    /// Whether the condition names each column of the table.
    pub is_constrained: Vec<bool>,
    pub parts: Vec<PartExplained>,
}

impl Explained {
    pub fn layout(&self) -> LayoutKind {
        self.info.spec.layout
    }
}

/// Rows of one part, ascending by id, with some of their columns.
#[derive(Clone, Debug)]
pub struct PartRows {
    pub ids: Vec<u64>,
    columns: Vec<usize>,
    codes: Vec<Vec<u32>>,
    dictionaries: Arc<Dictionaries>,
}

impl PartRows {
    /// The value of a row, counted from 0, in a selected column, counted from 0.
    ///
    /// # Errors
    /// [`pando_elf::Error::UnknownCode`] if the table is damaged.
    pub fn value(&self, column: usize, row: usize) -> pando_elf::Result<Value> {
        self.dictionary(column).value(self.codes[column][row])
    }

    /// Codes of a selected column.
    pub fn codes(&self, column: usize) -> &[u32] {
        &self.codes[column]
    }

    /// Dictionary of a selected column.
    pub fn dictionary(&self, column: usize) -> &Dictionary {
        &self.dictionaries.all[self.columns[column]]
    }
}

/// A table in a pool, for queries. Several threads may share it, each with its own endpoint.
pub struct TableReader {
    follower: Follower<Table>,
}

impl TableReader {
    /// Opens the table that the catalog knows as `name`. It is loaded by the first query.
    pub fn new(pool: Pool, name: impl Into<String>, options: ReadOptions) -> Self {
        Self { follower: Follower::new(pool, name.into(), options) }
    }

    pub fn name(&self) -> &str {
        &self.follower.name
    }

    /// The table as it is now. Loads it if no query did.
    ///
    /// # Errors
    /// As for [`TableReader::ids`].
    pub async fn info<E: Endpoint>(&self, ep: &E) -> Result<Answer<TableInfo>> {
        self.follower.answer(ep, async |table, _| Ok(TableInfo::of(&table.descriptor))).await
    }

    /// The table as it is now, of which only the description is READ.
    ///
    /// # Errors
    /// As for [`TableReader::ids`].
    pub async fn description<E: Endpoint>(&self, ep: &E) -> Result<TableInfo> {
        let Follower { pool, name, .. } = &self.follower;
        let mut times = 0;
        loop {
            let record = pool.open_index(ep, name).await?;
            let root = Root::of_kind(Kind::Table, &record.layout);
            let root = root.ok_or_else(|| RemoteError::NotAnElf { name: name.clone() })?;
            let root = root.ok_or_else(|| RemoteError::NoImage { name: name.clone() })?;
            match read_descriptor(ep, pool, &root).await {
                Ok(descriptor) => return Ok(TableInfo::of(&descriptor)),
                Err(Retry::Failed(error)) => return Err(error),
                Err(Retry::Changed(addr)) if times >= DESCRIPTIONS_MAX => {
                    return Err(RemoteError::BadPiece { name: name.clone(), addr });
                }
                // Another process has replaced it.
                Err(Retry::Changed(_) | Retry::Moved) => times += 1,
            }
        }
    }

    /// Number of rows that meet the condition.
    ///
    /// # Errors
    /// As for [`TableReader::ids`].
    pub async fn count<E: Endpoint>(&self, ep: &E, condition: &Condition) -> Result<Answer<u64>> {
        self.answer(ep, condition, &[], async |part, reads, predicates, _| match part.at.deleted_rows {
            0 => count(part, reads, predicates).await,
            _ => Ok(ids(part, reads, predicates).await?.len() as u64),
        })
        .await
        .map(|answer| answer.map(|counts| counts.into_iter().map(|(_, count)| count).sum()))
    }

    /// Ids of the rows that meet the condition: part by part, within each in the order in which they are found.
    ///
    /// # Errors
    /// Errors of the condition; [`NotAnElf`](crate::RemoteError::NotAnElf) and
    /// [`KeptChanging`](crate::RemoteError::KeptChanging); errors of damaged bytes, of the pool and of verbs.
    pub async fn ids<E: Endpoint>(&self, ep: &E, condition: &Condition) -> Result<Answer<Vec<u64>>> {
        let parts = self.ids_of_parts(ep, condition).await?;
        Ok(parts.map(|parts| parts.into_iter().flat_map(|(_, ids)| ids).collect()))
    }

    /// The rows that meet the condition as a bitmap of row ids.
    ///
    /// # Errors
    /// As for [`TableReader::ids`].
    pub async fn bitmap<E: Endpoint>(&self, ep: &E, condition: &Condition) -> Result<Answer<Bitmap>> {
        let found = self.ids_of_parts(ep, condition).await?;
        let bound = found.value.iter().map(|(bound, _)| *bound).max().unwrap_or(0);
        let mut bitmap = Bitmap::of_bound(bound)?;
        found.value.iter().flat_map(|(_, ids)| ids).for_each(|&id| bitmap.tid(id));
        Ok(found.map(|_| bitmap))
    }

    /// Ids of each part, with a bound that is above all ids of the table.
    pub(crate) async fn ids_of_parts<E: Endpoint>(
        &self,
        ep: &E,
        condition: &Condition,
    ) -> Result<Answer<Vec<(u64, Vec<u64>)>>> {
        self.answer(ep, condition, &[], async |part, reads, predicates, _| ids(part, reads, predicates).await)
            .await
    }

    /// The rows that meet the condition with the given columns, ascending by id; parts without such rows are left
    /// out. They are collected in memory: 8 bytes per row, and 4 per column of it.
    ///
    /// # Errors
    /// As for [`TableReader::ids`]; [`pando_elf::Error::ColumnOutOfRange`].
    pub async fn rows<E: Endpoint>(
        &self,
        ep: &E,
        condition: &Condition,
        columns: &[usize],
    ) -> Result<Answer<Vec<PartRows>>> {
        let found = self
            .answer(ep, condition, columns, async |part, reads, predicates, dictionaries| {
                rows(part, reads, predicates, columns, dictionaries).await
            })
            .await?;
        Ok(found.map(|parts| {
            parts.into_iter().map(|(_, rows)| rows).filter(|rows| !rows.ids.is_empty()).collect()
        }))
    }

    /// Counts the rows that meet the condition, and tells how.
    ///
    /// # Errors
    /// As for [`TableReader::ids`].
    pub async fn explain<E: Endpoint>(&self, ep: &E, condition: &Condition) -> Result<Answer<Explained>> {
        let explain = async |table: &Table, reads: &mut Reads<'_, E>| {
            let schema = &table.descriptor.spec.schema;
            let mut explained = Explained {
                info: TableInfo::of(&table.descriptor),
                is_constrained: vec![false; schema.columns().len()],
                parts: Vec::new(),
            };
            condition.check(schema)?;
            let needed = condition.columns(schema);
            for (part, info) in table.parts.iter().zip(explained.info.parts.clone()) {
                let before = std::mem::take(&mut reads.cost);
                let dictionaries = part.dictionaries(reads, &needed).await?;
                let predicates = condition.encode(&dictionaries.all)?;
                let mut at_most = Some(0);
                for predicate in &predicates {
                    predicate.conditions().for_each(|(column, _)| explained.is_constrained[column] = true);
                    for tree in &part.run.trees {
                        let bytes = tree.reads_at_most(&Filter::new(predicate, &tree.order)?);
                        at_most = at_most.zip(bytes).map(|(sum, bytes)| sum + bytes);
                    }
                }
                let found = match part.at.deleted_rows {
                    0 => count(part, reads, &predicates).await?,
                    _ => ids(part, reads, &predicates).await?.len() as u64,
                };
                let cost = std::mem::replace(&mut reads.cost, before);
                reads.cost += cost;
                explained.parts.push(PartExplained {
                    info,
                    predicates: predicates.len(),
                    found,
                    reads_at_most: at_most,
                    cached: part.run.cached(),
                    cost,
                });
            }
            Ok(explained)
        };
        self.follower.answer(ep, explain).await
    }

    /// Searches each part of the current version; returns the results with a bound above all ids of the table.
    async fn answer<T, E: Endpoint>(
        &self,
        ep: &E,
        condition: &Condition,
        columns: &[usize],
        search: impl AsyncFn(&Part, &mut Reads<'_, E>, &[Predicate], Arc<Dictionaries>) -> Attempt<T>,
    ) -> Result<Answer<Vec<(u64, T)>>> {
        let attempt = async |table: &Table, reads: &mut Reads<'_, E>| {
            let schema = &table.descriptor.spec.schema;
            condition.check(schema)?;
            let mut needed = condition.columns(schema);
            for &column in columns {
                let count = needed.len();
                let out = pando_elf::Error::ColumnOutOfRange { column, columns: count };
                *needed.get_mut(column).ok_or(out)? = true;
            }
            let mut found = Vec::with_capacity(table.parts.len());
            for part in &table.parts {
                let dictionaries = part.dictionaries(reads, &needed).await?;
                let predicates = condition.encode(&dictionaries.all)?;
                let result = search(part, reads, &predicates, dictionaries).await?;
                found.push((table.descriptor.id_bound, result));
            }
            Ok(found)
        };
        self.follower.answer(ep, attempt).await
    }
}

/// Searches a tree for one filter after the other; returns the results, and what it did.
async fn search_tree<'q, T, E: Endpoint>(
    tree: &Image,
    mut reads: Reads<'q, E>,
    filters: &[Filter],
    search: &impl AsyncFn(&Image, &mut Reads<'_, E>, &Filter) -> Attempt<T>,
) -> (Attempt<Vec<T>>, Reads<'q, E>) {
    let mut found = Vec::with_capacity(filters.len());
    for filter in filters {
        match search(tree, &mut reads, filter).await {
            Ok(result) => found.push(result),
            Err(retry) => return (Err(retry), reads),
        }
    }
    (Ok(found), reads)
}

/// Searches the trees of a part at the same time, each for all predicates, one after the other.
async fn search_trees<T, E: Endpoint>(
    part: &Part,
    reads: &mut Reads<'_, E>,
    predicates: &[Predicate],
    search: impl AsyncFn(&Image, &mut Reads<'_, E>, &Filter) -> Attempt<T>,
) -> Attempt<Vec<T>> {
    let trees = &part.run.trees;
    let filters = predicates.iter().map(|predicate| Filter::new(predicate, &trees[0].order));
    let filters: Vec<Filter> = filters.collect::<pando_elf::Result<_>>()?;
    let lost = usize::from(trees.len() > 1 && defect(Defect::LostTree));
    let divided = reads.divide(trees.len() - lost);
    let each = trees.iter().zip(divided).map(|(tree, reads)| search_tree(tree, reads, &filters, &search));
    let searched = join_all(each).await;
    let (found, divided): (Vec<_>, Vec<_>) = searched.into_iter().unzip();
    reads.join(divided);
    Ok(found.into_iter().collect::<Attempt<Vec<_>>>()?.into_iter().flatten().collect())
}

async fn count<E: Endpoint>(part: &Part, reads: &mut Reads<'_, E>, predicates: &[Predicate]) -> Attempt<u64> {
    let count =
        async |tree: &Image, reads: &mut Reads<'_, E>, filter: &Filter| tree.count(reads, filter).await;
    Ok(search_trees(part, reads, predicates, count).await?.into_iter().sum())
}

async fn ids<E: Endpoint>(
    part: &Part,
    reads: &mut Reads<'_, E>,
    predicates: &[Predicate],
) -> Attempt<Vec<u64>> {
    let ids = async |tree: &Image, reads: &mut Reads<'_, E>, filter: &Filter| tree.ids(reads, filter).await;
    let mut found = search_trees(part, reads, predicates, ids).await?.concat();
    if !part.deleted.is_empty() {
        found.retain(|&id| !part.deleted.contains(id));
    }
    Ok(found)
}

async fn rows<E: Endpoint>(
    part: &Part,
    reads: &mut Reads<'_, E>,
    predicates: &[Predicate],
    columns: &[usize],
    dictionaries: Arc<Dictionaries>,
) -> Attempt<PartRows> {
    let order = &part.run.trees[0].order;
    let level = |column: &usize| order.iter().position(|other| other == column).unwrap_or_default();
    let levels: Vec<usize> = columns.iter().map(level).collect();
    let rows = async |tree: &Image, reads: &mut Reads<'_, E>, filter: &Filter| {
        tree.rows(reads, filter, &levels).await
    };
    let found = search_trees(part, reads, predicates, rows).await?;
    let mut found = FoundRows::in_order(found, levels.len());
    if !part.deleted.is_empty() {
        found.retain(|id| !part.deleted.contains(id));
    }
    for (codes, &column) in found.codes.iter().zip(columns) {
        let dictionary = &dictionaries.all[column];
        // Values are looked up later, when there is nothing left to try again.
        if let Some(&code) = codes.iter().find(|&&code| code as usize > dictionary.len()) {
            let (column, values) = (dictionary.column().name.clone(), dictionary.len());
            return Err(pando_elf::Error::UnknownCode { column, code, values }.into());
        }
    }
    let FoundRows { ids, codes } = found;
    Ok(PartRows { ids, columns: columns.to_vec(), codes, dictionaries })
}
