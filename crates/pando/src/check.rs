//! The auditor over a whole pool: every index, and every block of memory.
//!
//! It needs everything at rest: it holds the fabric's lock and refuses while sessions are open or other processes
//! are attached. What is wrong is in the report and no error. One index that is all this process's can be checked by
//! itself, whatever others do beside it. For a look at indexes in use there is `shape.rs`.

use crate::endpoint::AnyEndpoint;
use pando_dex::Tree;
use pando_dex::audit::{Report, audit, check_blocks};
use pando_dex::layout::Layout;
use pando_pool::IndexRecord;
use pando_rt::block_on;

use crate::cluster::{Cluster, Shared, lock};
use crate::error::{Error, Result};
use crate::options::Descriptor;
use crate::servers::{Servers, open_passing, with_layout, with_trees};

const WHAT: &str = "a check";

/// What [`Cluster::check`] found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CheckReport {
    /// The first violations of each index and of the pool, a sentence each. Empty if all is well.
    pub violations: Vec<String>,
    /// All of them, also those that are not listed.
    pub violation_count: u64,
    /// The indexes, in the order of their names.
    pub indexes: Vec<IndexReport>,
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
    /// Mean share of a leaf's room that is used, 0 to 1.
    pub leaf_fullness: f64,
    /// Bytes of keys and of values, long ones included.
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Bytes of nodes and of long values out of line.
    pub bytes: u64,
    /// Nodes on another memory server than the subtree that they belong to.
    pub strays: u64,
    /// Nodes on each memory server.
    pub nodes_per_server: Vec<u64>,
    /// Entries of each partition that the catalog has, from [`Cluster::shapes`]; none from a check.
    pub partition_entries: Vec<u64>,
    /// Nodes that [`Cluster::shapes`] left out because they kept changing; 0 from a check.
    pub unreadable: u64,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
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
    /// Checks every invariant of every index of the pool, and that each allocated block belongs to one of them.
    ///
    /// Everything must be at rest: no session is open and no other process is attached. A pool that is opened for
    /// looking only is checked without regard to others, and its allocation is not, since that may be incomplete.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`]; [`Error::NotAlone`] with the process; errors of the fabric. What is wrong with an index
    /// is no error but in the report.
    pub fn check(&self) -> Result<CheckReport> {
        let shared = &self.shared;
        shared.check_open()?;
        let registry = lock(&shared.registry);
        let guards = registry.values().map(|data| data.exclusive(WHAT)).collect::<Result<Vec<_>>>()?;
        let looking = shared.looking();
        let alone = if looking { None } else { shared.fabric.lock_exclusive(shared.config.patience())? };
        let report = shared.with_endpoint(|ep| {
            if !looking {
                shared.check_alone(ep, WHAT)?;
            }
            let mut report = CheckReport::default();
            let mut audits = Vec::new();
            for name in shared.names(ep)? {
                let audited = match registry.get(&name) {
                    Some(data) => audit_open(shared, ep, &*data.servers()?)?,
                    None => audit_record(shared, ep, shared.record(ep, &name)?)?,
                };
                report.add(&name, &audited);
                audits.push(audited);
            }
            if !looking {
                let leaks = check_allocation(shared, ep, &mut audits)?;
                report.violation_count += leaks.len() as u64;
                report.violations.extend(leaks);
            }
            Ok(report)
        });
        drop((alone, guards));
        report
    }
}

impl Cluster {
    /// Checks every invariant of one index, all of whose keys this process owns; others may work on other indexes. That each
    /// allocated block belongs to something only [`Cluster::check`] can tell.
    ///
    /// # Errors
    /// [`Error::SessionsOpen`]; [`Error::NotAllOwned`]; [`Error::UnknownIndex`] for one that is not open here; errors of the
    /// fabric. What is wrong with the index is no error but in the report.
    pub fn check_index(&self, name: &str) -> Result<CheckReport> {
        let shared = &self.shared;
        shared.check_open()?;
        let registry = lock(&shared.registry);
        let Some(data) = registry.get(name) else {
            let existing = registry.keys().cloned().collect();
            return Err(Error::UnknownIndex { name: name.to_owned(), existing });
        };
        let guard = data.exclusive(WHAT)?;
        let report = shared.with_endpoint(|ep| {
            let servers = data.servers()?;
            servers.check_runs_all(WHAT)?;
            let mut report = CheckReport::default();
            report.add(name, &audit_open(shared, ep, &servers)?);
            Ok(report)
        });
        drop(guard);
        report
    }
}

fn audit_open(shared: &Shared, ep: &AnyEndpoint, servers: &Servers) -> Result<Report> {
    if !servers.runs_all() {
        // Nobody owns the other partitions, since this process is alone: remote memory is up to date there.
        servers.flush(ep)?;
        return audit_record(shared, ep, servers.record.clone());
    }
    with_trees!(servers, |trees| {
        let table = servers.routes.table();
        let trees: Vec<&Tree<_>> =
            table.owners().iter().filter_map(|&number| trees[number].as_deref()).collect();
        Ok(block_on(ep, audit(ep, &trees))?)
    })
}

/// Audits an index that nobody has open. A record that cannot be read is a violation.
fn audit_record(shared: &Shared, ep: &AnyEndpoint, record: IndexRecord) -> Result<Report> {
    fn whole<L: Layout>(
        shared: &Shared,
        ep: &AnyEndpoint,
        layout: L,
        record: &IndexRecord,
    ) -> Result<Report> {
        let tree = open_passing(shared, ep, layout, record)?;
        Ok(block_on(ep, audit(ep, &[&tree]))?)
    }
    if record.root.is_null() {
        let mut report = Report::default();
        report.violation("it was never finished and holds nothing; drop it, or create it again".to_owned());
        return Ok(report);
    }
    let descriptor = Descriptor::decode(&record.layout)
        .map_err(|reason| Error::BadIndex { name: record.name.clone(), reason });
    let audited = descriptor.and_then(|descriptor| {
        let layout = descriptor.node_layout(record.node_size as usize)?;
        with_layout!(layout, |layout| whole(shared, ep, layout, &record))
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

fn check_allocation(shared: &Shared, ep: &AnyEndpoint, audits: &mut [Report]) -> Result<Vec<String>> {
    let mut catalog = Vec::new();
    block_on(ep, shared.pool.visit_catalog_blocks(ep, |addr, bytes| catalog.push((addr, bytes))))?;
    block_on(ep, shared.pool.visit_notice_blocks(ep, |addr, bytes| catalog.push((addr, bytes))))?;
    Ok(block_on(ep, check_blocks(ep, &shared.pool, audits, &catalog))?)
}
