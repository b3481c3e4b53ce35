//! Elf on disaggregated memory: images in the memory servers of a pool, and queries by one-sided READs.
//!
//! A [`Publisher`] writes the image of an [`Elf`](pando_elf::Elf) to blocks of the pool and replaces the one that
//! the catalog leads to. A [`Reader`] caches the upper levels of the current image under a byte budget and READs
//! what else a query needs, level by level, with few verbs that are posted together, or lets the memory server that has
//! the image search it ([`MemorySide`]). A query sees one image, whatever is published meanwhile. The page is `docs/elf.md`.
//!
//! ```
//! # use std::sync::Arc;
//! use pando_elf::{BuildOptions, CodeTable, Elf, Interval, LayoutKind, Predicate};
//! use pando_elf_remote::{PublishOptions, Publisher, ReadOptions, Reader};
//! use pando_fabric::Fabric;
//! use pando_fabric_local::{LocalConfig, LocalFabric};
//! use pando_pool::{Pool, PoolOptions};
//! use pando_rt::block_on;
//!
//! let fabric = LocalFabric::new(LocalConfig { server_sizes: vec![4 << 20; 2], huge_pages: false })?;
//! let ep = &fabric.endpoint(1)?;
//! let pool = block_on(ep, Pool::create(ep, PoolOptions::embedded()))?;
//!
//! let table = CodeTable::new(vec![vec![3, 1, 2, 1], vec![7, 9, 8, 7]])?;
//! let elf = Elf::build(&table, &[0, 1], LayoutKind::Columnar, &BuildOptions::default())?;
//! let publisher = block_on(ep, Publisher::open(ep, pool.clone(), "orders", PublishOptions::default()))?;
//! block_on(ep, publisher.publish(ep, &elf))?;
//!
//! let reader = Reader::new(pool, "orders", ReadOptions::default());
//! let answer = block_on(ep, reader.count(ep, &Predicate::all().and(1, [Interval::new(7, 8)])))?;
//! assert_eq!(answer.value, 3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod columnar;
mod costs;
pub mod defect;
mod descriptor;
mod error;
#[cfg(fuzzing)]
pub mod exercise;
mod fetch;
mod follow;
mod image;
mod limbo;
mod linear;
mod lists;
mod manifest;
mod offload;
mod options;
mod publish;
mod reader;
mod receiver;
mod switch;
mod table;
mod table_reader;
mod table_writer;
mod write;

pub use costs::Offloading;
pub use descriptor::TableSpec;
pub use error::{RemoteError, Result};
pub use fetch::Cost;
pub use follow::Answer;
pub use image::Cached;
pub use lists::{ListCacheOptions, ListPolicy};
pub use manifest::SYSTEM;
pub use offload::MemorySide;
pub use options::{PublishOptions, ReadOptions, TableOptions};
pub use publish::{Published, Publisher};
pub use reader::Reader;
pub use table_reader::{Condition, Explained, PartExplained, PartInfo, PartRows, TableInfo, TableReader};
pub use table_writer::{
    MergedParts, NewPart, NewTree, TableAudit, TableWriter, audit_table, is_elf, table_blocks,
};
pub use write::Source;
