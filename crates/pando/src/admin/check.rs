//! The auditor of a whole pool: every index, and every block of memory.
//!
//! The audit needs everything at rest: it holds the fabric's lock, and refuses while sessions are open or
//! other processes are attached. Violations are in the report, not errors. An index that this process owns
//! entirely can be audited alone, beside other processes. For indexes in use there is `shape.rs`.

use pando_dex::Tree;
use pando_dex::audit::{Report, audit, compare_blocks, tell_leaks};
use pando_elf_remote::is_elf;
use pando_pool::IndexRecord;
use pando_rt::block_on;

use crate::cluster::Cluster;
use crate::elf::{self, Blocks, ElfReport};
use crate::error::{Error, Result};
use crate::layout::with_layout;
use crate::local::servers::audit_whole;
use crate::local::{Servers, logs};
use crate::options::Descriptor;
use crate::place::AnyEndpoint;
use crate::shared::{Shared, lock};

const WHAT: &str = "a check";

/// Result of [`Cluster::check`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The first violations of each index and of the pool, one sentence each; empty if there are none.
    pub violations: Vec<String>,
    /// Number of all violations, including those not listed.
    pub violation_count: u64,
    /// The indexes, in the order of their names.
    pub indexes: Vec<IndexReport>,
    /// The Elf tables, in the order of their names.
    pub elfs: Vec<ElfReport>,
    /// Blocks that nothing leads to, left by processes with logs that died while others went on, and their bytes. If the pool is
    /// open for writing, they are free from now on.
    pub left_blocks: u64,
    pub left_bytes: u64,
}

/// The shape of an index.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct IndexReport {
    pub name: String,
    pub entries: u64,
    pub leaves: u64,
    pub inner_nodes: u64,
    /// Levels; 1 if the root is a leaf.
    pub height: u32,
    /// Mean share of a leaf's space that is used, 0 to 1.
    pub leaf_fullness: f64,
    /// Bytes of all keys and of all values, including long values.
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Bytes of nodes and of long values.
    pub bytes: u64,
    /// Nodes that are not on the memory server of their subtree.
    pub strays: u64,
    /// Number of nodes on each memory server.
    pub nodes_per_server: Vec<u64>,
    /// Entries of each partition of the catalog, from [`Cluster::shapes`]; empty from a check.
    pub partition_entries: Vec<u64>,
    /// Nodes that [`Cluster::shapes`] left out because they changed too fast; 0 from a check.
    pub unreadable: u64,
}

impl CheckReport {
    /// Whether there are no violations.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
    }

    fn add_elf(&mut self, elf: ElfReport) {
        self.violation_count += elf.violations.len() as u64;
        let name = &elf.name;
        self.violations.extend(elf.violations.iter().map(|text| format!("index {name:?}: {text}")));
        self.elfs.push(elf);
    }

    fn add(&mut self, name: &str, report: &Report) {
        self.violation_count += report.violation_count;
        self.violations.extend(report.violations.iter().map(|text| format!("index {name:?}: {text}")));
        self.indexes.push(IndexReport {
            name: name.to_owned(),
            entries: report.entries,
            leaves: report.leaves,
            inner_nodes: report.inner_nodes,
            height: report.height,
            leaf_fullness: report.leaf_fullness(),
            key_bytes: report.key_bytes,
            value_bytes: report.value_bytes,
            bytes: report.blocks.bytes(),
            strays: report.strays,
            nodes_per_server: report.nodes_per_server.clone(),
            partition_entries: Vec::new(),
            unreadable: 0,
        });
    }
}

impl Cluster {
    /// Checks all invariants of all indexes of the pool, and that each allocated block belongs to an index or
    /// to the pool itself.
    ///
    /// Everything must be at rest: no open session, and no other process attached. In a pool opened for
    /// inspection only ([`crate::Config::read_only_unclean`]), other processes are disregarded, and the
    /// allocation, which may be incomplete, is not checked.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`]; [`Error::NotAlone`] with the process; errors of the fabric. Violations are in
    /// the report, not errors.
    pub fn check(&self) -> Result<CheckReport> {
        let shared = &self.shared;
        shared.check_open()?;
        let registry = lock(&self.registry.open);
        let _guards = registry.values().map(|data| data.exclusive(WHAT)).collect::<Result<Vec<_>>>()?;
        let looking = shared.looking();
        let _alone = if looking { None } else { shared.fabric.lock_exclusive(shared.config.patience())? };
        shared.with_endpoint(|ep| {
            if !looking {
                shared.check_alone(ep, WHAT)?;
            }
            let mut report = CheckReport::default();
            let mut audits = Vec::new();
            let mut of_tables = Vec::new();
            // What was replaced and is not free yet is no leak.
            self.registry.tables.settle(ep, shared.config.patience_ns());
            for name in shared.names(ep)? {
                if is_elf(&shared.record(ep, &name)?) {
                    let (elf, blocks) = elf::check(shared, ep, &name)?;
                    report.add_elf(elf);
                    of_tables.extend(blocks);
                    continue;
                }
                let audited = match registry.get(&name) {
                    Some(data) => audit_open(shared, ep, &*data.servers()?)?,
                    None => audit_record(shared, ep, shared.record(ep, &name)?)?,
                };
                report.add(&name, &audited);
                audits.push(audited);
            }
            if !looking {
                check_allocation(shared, ep, &mut report, &mut audits, of_tables)?;
            }
            Ok(report)
        })
    }

    /// Checks all invariants of one index, of which this process owns all keys; other processes may use other
    /// indexes. Only [`Cluster::check`] can check the allocation of blocks.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`]; [`Error::NotAllOwned`]; [`Error::UnknownIndex`] for an index that is not open
    /// in this process; errors of the fabric. Violations are in the report, not errors.
    pub fn check_index(&self, name: &str) -> Result<CheckReport> {
        let shared = &self.shared;
        shared.check_open()?;
        let registry = lock(&self.registry.open);
        let Some(data) = registry.get(name) else {
            let existing = registry.keys().cloned().collect();
            return Err(Error::UnknownIndex { name: name.to_owned(), existing });
        };
        let _guard = data.exclusive(WHAT)?;
        shared.with_endpoint(|ep| {
            let servers = data.servers()?;
            servers.check_runs_all(WHAT)?;
            let mut report = CheckReport::default();
            report.add(name, &audit_open(shared, ep, &servers)?);
            Ok(report)
        })
    }
}

fn audit_open(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<Report> {
    if !servers.runs_all() {
        // This process is alone, so no process owns the other partitions, and remote memory is up to date
        // there.
        servers.flush(ep)?;
        return audit_record(shared, ep, servers.record.clone());
    }
    with_layout!(&servers.trees, |trees| {
        let table = servers.routes.table();
        let trees: Vec<&Tree<_>> =
            table.owners().iter().filter_map(|&number| trees[number].as_deref()).collect();
        Ok(block_on(ep, audit(ep, &trees))?)
    })
}

/// Audits an index that no process has open. An unreadable record is a violation.
fn audit_record(shared: &Shared, ep: &AnyEndpoint, record: IndexRecord) -> Result<Report> {
    if record.root.is_null() {
        let mut report = Report::default();
        report.violation("it was never finished and holds nothing; drop it, or create it again".to_owned());
        return Ok(report);
    }
    let audited = Descriptor::of_record(&record).and_then(|descriptor| {
        let layout = descriptor.node_layout(record.node_size as usize)?;
        with_layout!(layout, |layout| audit_whole(shared, ep, layout, &record))
    });
    match audited {
        Ok(report) => Ok(report),
        Err(error @ Error::Fabric(_)) => Err(error),
        Err(error) => {
            let mut report = Report::default();
            report.violation(error.to_string());
            Ok(report)
        }
    }
}

/// Checks that each allocated block belongs to an index, to an Elf table (`others`) or to the pool itself.
fn check_allocation(
    shared: &Shared,
    ep: &AnyEndpoint,
    report: &mut CheckReport,
    audits: &mut [Report],
    others: Blocks,
) -> Result<()> {
    let mut catalog = others;
    catalog.extend(logs::blocks(shared, ep)?);
    catalog.extend(block_on(ep, shared.pool.logs_block(ep))?);
    block_on(ep, shared.pool.visit_catalog_blocks(ep, |addr, bytes| catalog.push((addr, bytes))))?;
    block_on(ep, shared.pool.visit_notice_blocks(ep, |addr, bytes| catalog.push((addr, bytes))))?;
    let (pool, mut left) = (&shared.pool, Vec::new());
    let mut wrong = block_on(ep, compare_blocks(ep, pool, audits, &catalog, &mut left))?;
    if block_on(ep, pool.has_reclaimed(ep))? {
        report.left_blocks = left.len() as u64;
        report.left_bytes = left.iter().map(|(_, bytes)| bytes).sum();
        // Where something is damaged, blocks may belong to what does not lead there any more.
        if report.is_clean() && wrong.is_empty() && !shared.read_only() {
            block_on(ep, pool.free_left(ep, &left))?;
        }
    } else {
        wrong.extend(tell_leaks(&left));
    }
    report.violation_count += wrong.len() as u64;
    report.violations.extend(wrong);
    Ok(())
}
