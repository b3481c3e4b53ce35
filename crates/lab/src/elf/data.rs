//! Tables and their images, made once for all cells of an experiment, and queries made from their rows.
//!
//! The published layout is used with wide pointers, as the paper's array of about 4 GB for 10^8 rows of 10 columns
//! has them: an entry takes 12 bytes. A table's columns are in ascending order of cardinality.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pando_elf::{
    BuildOptions, CodeTable, Elf, ElfLayout, Filter, Header, Interval, Linear, ListId, Predicate, Weights,
    Width, build_linear, by_cardinality, linear,
};
use pando_workload::columns::{self, Condition};
use pando_workload::{Rng, Zipf};

use super::failed;
use super::spec::{Data, Kind};
use crate::bench::BenchError;

/// Skew of the rows that queries are made from (DAPD 2022 §5.2).
const THETA: f64 = 0.5;
const SEED: u64 = 1;

/// Bytes that several stores share.
#[derive(Clone, Debug)]
pub struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A table and its image in the published layout.
#[derive(Debug)]
pub struct Dataset {
    pub data: Data,
    pub table: CodeTable,
    pub order: Vec<usize>,
    pub image: Linear<Shared>,
    /// Greatest code by column.
    greatest: Vec<u32>,
    weights: OnceLock<Arc<Weights>>,
}

static KEPT: Mutex<Vec<Arc<Dataset>>> = Mutex::new(Vec::new());

/// The table's codes.
pub fn table(data: Data) -> Result<CodeTable, BenchError> {
    CodeTable::new(match data {
        Data::Uniform { rows, columns, cardinality } => columns::uniform(rows, columns, cardinality, SEED),
        Data::Lineitem { rows } => columns::lineitem(rows),
    })
    .map_err(failed)
}

/// Options of all builds: wide pointers, and the threads of this machine.
pub fn build_options(threads: usize) -> BuildOptions {
    BuildOptions { width: Width::Wide, threads, ..BuildOptions::default() }
}

fn make(data: Data) -> Result<Dataset, BenchError> {
    let table = table(data)?;
    let order = by_cardinality(&table);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let built = build_linear(&table, &order, &build_options(threads)).map_err(failed)?;
    let image = Linear::open(Shared(Arc::new(built.into_access()))).map_err(failed)?;
    let greatest = (0..table.width()).map(|column| table.maximum(column)).collect();
    Ok(Dataset { data, table, order, image, greatest, weights: OnceLock::new() })
}

/// The dataset, which is made if no earlier cell has left it. Others that no cell uses are dropped.
pub fn dataset(data: Data) -> Result<Arc<Dataset>, BenchError> {
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = kept.iter().find(|dataset| dataset.data == data) {
        return Ok(found.clone());
    }
    kept.retain(|dataset| Arc::strong_count(dataset) > 1);
    let made = Arc::new(make(data)?);
    kept.push(made.clone());
    Ok(made)
}

/// A query made from a row.
pub enum Query {
    /// Codes by level.
    Exact(Vec<u32>),
    Walk(Filter),
}

/// A stream of queries on a dataset.
pub struct Queries<'d> {
    dataset: &'d Dataset,
    zipf: Zipf,
    random: Rng,
    kind: Kind,
    range_percent: u32,
}

impl<'d> Queries<'d> {
    pub fn new(dataset: &'d Dataset, kind: Kind, range_percent: u32, seed: u64) -> Result<Self, BenchError> {
        let zipf = Zipf::new(dataset.table.rows() as u64, THETA)?;
        Ok(Self { dataset, zipf, random: Rng::new(seed), kind, range_percent })
    }

    /// Conditions of the next query.
    pub fn conditions(&mut self) -> Vec<Condition> {
        // The popular rows are anywhere in the tree: rows are in no order.
        let row = self.zipf.draw(&mut self.random) as usize;
        let table = &self.dataset.table;
        let codes: Vec<u32> = (0..table.width()).map(|column| table.code(column, row)).collect();
        self.kind.of_workload().conditions(&codes, &self.dataset.greatest, self.range_percent)
    }

    pub fn next(&mut self) -> Query {
        let conditions = self.conditions();
        match self.kind {
            Kind::Exact => {
                Query::Exact(self.dataset.order.iter().map(|&column| conditions[column].1).collect())
            }
            _ => Query::Walk(self.dataset.filter(&conditions)),
        }
    }
}

impl Dataset {
    /// Rows below the lists of the image, counted once.
    pub fn weights(&self) -> Arc<Weights> {
        self.weights.get_or_init(|| Arc::new(self.image.weights())).clone()
    }

    /// Number of words of a list of the image.
    pub fn list_words(&self, list: ListId) -> u64 {
        let header = self.image.header();
        let pointer_words = header.pointer_bytes as u64 / 4;
        if list.0 == 0 {
            return header.first_list * pointer_words;
        }
        let array = &self.image.bytes()[Header::BYTES + 4 * header.columns..];
        let value = |at: u64| {
            let from = at as usize * 4;
            u32::from_le_bytes(array[from..from + 4].try_into().expect("a word has four bytes"))
        };
        let entry_words = 1 + pointer_words;
        let mut at = list.0;
        while value(at) & linear::END == 0 {
            at += entry_words;
        }
        at + entry_words - list.0
    }

    /// The image as an Elf without its table, which walks for every predicate.
    pub fn elf(&self) -> Result<Elf<Shared>, BenchError> {
        Elf::open(self.image.access().clone()).map_err(failed)
    }

    pub fn filter(&self, conditions: &[Condition]) -> Filter {
        Filter::new(&predicate(conditions), &self.order).expect("the columns are the table's")
    }
}

pub fn predicate(conditions: &[Condition]) -> Predicate {
    let and = |all: Predicate, &(column, low, high): &Condition| all.and(column, [Interval::new(low, high)]);
    conditions.iter().fold(Predicate::all(), and)
}
