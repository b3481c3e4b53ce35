//! Checks of a pool while other processes work on it.
//!
//! - Each partition has a live owner, or none.
//! - The compute servers of an index answer, and together own all keys, each exactly once.
//! - A scan of the whole index through them returns its keys in order.
//! - Nodes of all indexes are read on the memory servers. The number of unreadable nodes is reported, but
//!   proves nothing.
//!
//! Only the auditor, with the pool alone, can check the content of caches, the places of nodes in their
//! trees, and the owner of each allocated block.

use std::io::{Write, stdout};

use pando::remote::RemoteIndex;
use pando::{Cluster, Config, IndexReport, KeyRange, PartitionOwner, ScanRange};
use pando_lab::units;

use crate::elf;
use crate::failure::Failure;
use crate::target;
use crate::text;

/// Results of the checks.
#[derive(Debug, Default)]
pub struct Seen {
    /// One line per index.
    indexes: Vec<String>,
    violations: Vec<String>,
}

/// Checks all indexes. `config` is used to find their compute servers.
pub fn look(config: &Config, cluster: &Cluster) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    let shapes = cluster.shapes()?;
    let elfs = cluster.elf_names()?;
    for name in &elfs {
        match cluster.open_elf(name).and_then(|elf| elf.info()) {
            Ok(info) => seen.indexes.push(format!("{}, as described in the catalog", elf::line(name, &info))),
            // It was dropped meanwhile.
            Err(pando::Error::UnknownIndex { .. }) => {}
            Err(error) => seen.violations.push(format!("index {name:?}: {error}")),
        }
    }
    for name in cluster.index_names()?.into_iter().filter(|name| !elfs.contains(name)) {
        let shape = shapes.iter().find(|shape| shape.name == name);
        // The index may have been dropped meanwhile.
        let Ok(partitions) = cluster.partitions(&name) else { continue };
        let mut is_owned = false;
        for (number, partition) in partitions.iter().enumerate() {
            is_owned |= partition.owner.process().is_some();
            if let PartitionOwner::Lost(process) = &partition.owner {
                let process = process.identity;
                seen.violations.push(format!(
                    "index {name:?}: partition {number} is lost, since {process} ended without closing the pool"
                ));
            }
        }
        let served = if is_owned { target::served(config, &name) } else { Ok(None) };
        let asked = match served {
            Ok(Some(index)) => seen.ask(&index),
            Ok(None) if is_owned => "no process that owns it has an operation port".to_owned(),
            Ok(None) => "nobody owns it".to_owned(),
            // The index was dropped meanwhile.
            Err(_) if !cluster.index_names()?.contains(&name) => continue,
            Err(failure) => {
                seen.violations.push(format!("index {name:?}: {}", failure.sentence()));
                "its compute servers cannot be asked".to_owned()
            }
        };
        seen.indexes.push(format!("index {name}: {asked}; {}", on_memory_servers(shape)));
    }
    Ok(seen)
}

fn on_memory_servers(shape: Option<&IndexReport>) -> String {
    let Some(shape) = shape else { return "its nodes were not to be made out".to_owned() };
    let changing = match shape.unreadable {
        0 => String::new(),
        nodes => format!(", {} nodes not yet or just being so", units::count(nodes)),
    };
    format!(
        "{} entries in {} leaves were written back{changing}",
        units::count(shape.entries),
        units::count(shape.leaves)
    )
}

impl Seen {
    /// Asks the compute servers of an index; returns the line about it.
    fn ask(&mut self, index: &RemoteIndex) -> String {
        let name = index.name();
        let session = index.session();
        let mut servers = 0;
        for (_, answer) in session.ping() {
            match answer {
                Ok(_) => servers += 1,
                Err(error) => self.violations.push(format!("index {name:?}: {error}")),
            }
        }
        if let Some(gap) = gap(index.owners().into_iter().map(|(range, _)| range).collect()) {
            self.violations.push(format!("index {name:?}: {gap}"));
        }
        let (mut entries, mut last) = (0u64, None::<Vec<u8>>);
        let mut wrong = None;
        let scanned = session.scan(&ScanRange::all(), |key, _| {
            if last.as_deref().is_some_and(|last| last >= key) {
                wrong = Some(format!("the key `{}` is out of order", text::escape(key)));
                return false;
            }
            entries += 1;
            let last = last.get_or_insert_default();
            last.clear();
            last.extend_from_slice(key);
            true
        });
        let wrong = wrong.or(scanned.err().map(|error| error.to_string()));
        self.violations.extend(wrong.map(|wrong| format!("index {name:?}: {wrong}")));
        format!("{} entries in order, at {servers} compute servers", units::count(entries))
    }

    pub fn tell(&self) -> Result<(), Failure> {
        let mut output = stdout().lock();
        for line in &self.indexes {
            writeln!(output, "{line}")?;
        }
        for violation in &self.violations {
            writeln!(output, "violation: {violation}")?;
        }
        let what = if self.violations.is_empty() { "no violations as far as" } else { "this is all that" };
        writeln!(
            output,
            "{what} can be seen while other processes are attached; not checked: what is in their caches, the trees' inner \
             order, and whether each allocated block belongs to an index"
        )?;
        output.flush()?;
        match self.violations.len() {
            0 => Ok(()),
            violations => Err(Failure::violations(violations as u64)),
        }
    }
}

/// Describes the first gap or overlap of ranges that must cover all keys exactly once.
fn gap(mut ranges: Vec<KeyRange>) -> Option<String> {
    ranges.sort_by(|a, b| a.low.cmp(&b.low));
    let mut reached: Option<Vec<u8>> = None;
    for (number, range) in ranges.iter().enumerate() {
        let is_next =
            if number == 0 { range.low.is_none() } else { reached.is_some() && range.low == reached };
        if !is_next {
            let at = range.low.as_deref().or(reached.as_deref()).unwrap_or_default();
            return Some(format!("at `{}` nobody or two own the keys", text::escape(at)));
        }
        reached.clone_from(&range.high);
    }
    match (ranges.is_empty(), reached) {
        (true, _) => Some("nobody owns any key".to_owned()),
        (false, Some(high)) => Some(format!("nobody owns the keys from `{}` on", text::escape(&high))),
        (false, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_all_keys_once_or_it_is_said_where_not() {
        let end = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        let found = |ranges: &[(&str, &str)]| {
            gap(ranges.iter().map(|&(low, high)| KeyRange { low: end(low), high: end(high) }).collect())
        };
        assert_eq!(found(&[("m", ""), ("", "c"), ("c", "m")]), None);
        assert_eq!(found(&[("", "")]), None);
        for (ranges, at) in [
            (&[][..], "any key"),
            (&[("", "c"), ("d", "")], "`d`"),
            (&[("", "c"), ("b", "")], "`b`"),
            (&[("c", "")], "`c`"),
            (&[("", "c")], "`c`"),
            (&[("", ""), ("c", "")], "`c`"),
        ] {
            assert!(found(ranges).is_some_and(|text| text.contains(at)), "{ranges:?}");
        }
    }
}
