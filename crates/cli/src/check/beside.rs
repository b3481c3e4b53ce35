//! What can be checked of a pool while other processes work on it.
//!
//! - Each partition has an owner that lives, or none.
//! - The compute servers of an index answer, and say that they own all keys, each of them once.
//! - A scan of the whole index through them finds its keys in order.
//! - Nodes of all indexes are read on the memory servers; how many kept changing is said, and proves nothing.
//!
//! What is in caches, the nodes' places in their trees, and whether each allocated block belongs to something, only the
//! auditor can tell, with the pool alone.

use std::io::{Write, stdout};

use pando::remote::RemoteIndex;
use pando::{Cluster, Config, IndexReport, KeyRange, PartitionOwner, ScanRange};
use pando_lab::units;

use crate::failure::Failure;
use crate::target;
use crate::text;

/// What was found.
#[derive(Debug, Default)]
pub struct Seen {
    /// A line for each index.
    indexes: Vec<String>,
    violations: Vec<String>,
}

/// Looks at all indexes. `config` is how to find their compute servers.
pub fn look(config: &Config, cluster: &Cluster) -> Result<Seen, Failure> {
    let mut seen = Seen::default();
    let shapes = cluster.shapes()?;
    for name in cluster.index_names()? {
        let shape = shapes.iter().find(|shape| shape.name == name);
        // It may have been dropped meanwhile.
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
            // Dropped meanwhile.
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
    /// Asks the compute servers of an index; what to say of it.
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
            violations => {
                Err(Failure::failed(format_args!("{} violations", units::count(violations as u64))))
            }
        }
    }
}

/// What is wrong with ranges that are to have all keys, each of them once.
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
