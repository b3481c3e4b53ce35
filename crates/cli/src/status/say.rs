//! The status of a cluster as text, and as JSON.
//!
//! Words in capitals are what an operator must look at. Each of them has a field in the JSON, where a figure is in
//! bytes or nanoseconds.

use std::fmt::Write;

use pando::{MemberCondition, MemoryServerFound, Partition, PartitionOwner, Process, VolumeId};
use pando_lab::units;
use serde_json::{Value, json};

use super::{Inside, OneIndex, Reached, Status};
use crate::{copies, pool};

/// Time since any memory server heard a process.
fn silent_ns(reached: &[Reached], process: &Process) -> Option<u64> {
    let found = reached.iter().filter_map(|server| server.found.as_ref().ok());
    let heard = found.flat_map(|found| &found.condition.processes);
    let of_process = heard.filter(|heard| heard.number == process.identity.start_time);
    of_process.map(|heard| heard.silent_ns).min()
}

fn process(reached: &[Reached], process: &Process) -> String {
    let state = match silent_ns(reached, process) {
        _ if !process.is_alive => " (DEAD: it ended without closing the pool)".to_owned(),
        Some(ns) => format!(" (heard {} ago)", units::nanos(ns)),
        None => String::new(),
    };
    format!("{}{state}", process.identity)
}

fn owner(owner: &PartitionOwner, has_log: bool) -> String {
    match owner {
        PartitionOwner::Lost(process) if has_log => {
            format!("{} (DEAD: whoever opens the index next takes it over)", process.identity)
        }
        PartitionOwner::Lost(process) => format!("LOST with {}", process.identity),
        owner => owner.process().map_or("nobody".to_owned(), |process| process.identity.to_string()),
    }
}

/// What a memory server does for those that have copies of each other's memory.
fn member(member: &MemberCondition) -> String {
    let list = |volumes: &[VolumeId]| {
        volumes.iter().map(|volume| volume.0.to_string()).collect::<Vec<_>>().join(", ")
    };
    let mut said = match member {
        MemberCondition { is_in: false, .. } => return "; OUT: the others go on without it".to_owned(),
        MemberCondition { lease_left_ns: 0, .. } => "; NO LEASE, so it serves nothing".to_owned(),
        member => format!("; its lease ends in {}", units::nanos(member.lease_left_ns)),
    };
    for (what, volumes) in [("serves", &member.serves), ("backs up", &member.backs_up)] {
        if !volumes.is_empty() {
            said += &format!("; {what} {}", list(volumes));
        }
    }
    for fill in &member.fills {
        let percent = fill.whole * 100 / fill.bytes.max(1);
        said += &format!("; fills {} ({percent}%)", fill.volume.0);
    }
    said
}

fn memory_server(number: &str, Reached { address, found }: &Reached) -> String {
    let said = match found {
        Ok(MemoryServerFound { bytes, condition, .. }) => {
            units::size(*bytes) + &condition.member.as_ref().map_or_else(String::new, member)
        }
        Err(reason) => format!("CANNOT BE REACHED: {reason}"),
    };
    format!("  memory server {number} at {address}: {said}")
}

/// All memory servers elsewhere; those that are not there are drained.
fn memory_servers(status: &Status) -> Vec<String> {
    let named: Vec<&str> = status.reached.iter().map(|server| &*server.address).collect();
    let (addresses, of_pool) = match &status.inside {
        // Of those with copies, all belong to the pool.
        Ok(Inside { addresses, copies: Some(_), .. }) => {
            (addresses.iter().map(|at| &**at).collect(), usize::MAX)
        }
        Ok(inside) => (inside.addresses.iter().map(|at| &**at).collect(), inside.servers.len()),
        Err(_) => (named, usize::MAX),
    };
    let line = |(place, address): (usize, &&str)| match status
        .reached
        .iter()
        .find(|server| server.address == **address)
    {
        None => format!("  memory server {place}: drained, and not there"),
        Some(server) if place < of_pool => memory_server(&place.to_string(), server),
        Some(server) => memory_server("of no pool", server),
    };
    addresses.iter().enumerate().map(line).collect()
}

fn index(OneIndex { info, partitions, log_used }: &OneIndex) -> String {
    let owner = |(number, partition): (usize, &Partition)| {
        format!("{number}: {}", owner(&partition.owner, info.log_bytes.is_some()))
    };
    let owners: Vec<String> = partitions.iter().enumerate().map(owner).collect();
    let used = log_used.map_or_else(String::new, |used| format!(" with {} in use", units::size(used)));
    let log =
        info.log_bytes.map_or_else(String::new, |bytes| format!(", log of {}{used}", units::size(bytes)));
    format!("index {}: {}{log}; owners of partitions {}", info.name, info.layout, owners.join(", "))
}

pub(super) fn text(status: &Status) -> String {
    let mut text = format!("pool {}\n", status.pool.display());
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a string does not fail");
    memory_servers(status).into_iter().for_each(&mut line);
    let inside = match &status.inside {
        Ok(inside) => inside,
        Err(reason) => {
            line(format!("  nothing is known of what is in it: {reason}"));
            return text;
        }
    };
    if let Some(copies) = &inside.copies {
        let lacking: Vec<String> = copies.lacking().iter().map(|part| part.0.to_string()).collect();
        let lacking = match lacking.is_empty() {
            true => "all are there".to_owned(),
            false => format!("there are FEWER of {}", lacking.join(", ")),
        };
        line(format!("  view {}, {} copies of all memory: {lacking}", copies.epoch, copies.replicas));
    }
    line(String::new());
    text.push_str(&pool::table(&inside.servers));
    let attached: Vec<String> =
        inside.attached.iter().map(|attached| process(&status.reached, attached)).collect();
    let attached = if attached.is_empty() { "nobody".to_owned() } else { attached.join(", ") };
    let mut line = |line: String| writeln!(text, "{line}").expect("writing to a string does not fail");
    line(format!("\nattached: {attached}"));
    inside.indexes.iter().for_each(|of_pool| line(index(of_pool)));
    if inside.indexes.is_empty() {
        line("no indexes".to_owned());
    }
    text
}

fn memory_server_document(Reached { address, found }: &Reached) -> Value {
    let found = match found {
        Ok(found) => found,
        Err(reason) => return json!({ "address": address, "reached": false, "reason": reason }),
    };
    let mut document = json!({ "address": address, "reached": true, "bytes": found.bytes });
    if let Some(member) = &found.condition.member {
        let numbers = |volumes: &[VolumeId]| volumes.iter().map(|volume| volume.0).collect::<Vec<_>>();
        let fills = member
            .fills
            .iter()
            .map(|fill| json!({ "part": fill.volume.0, "whole_bytes": fill.whole, "bytes": fill.bytes }));
        document["member"] = json!({
            "view": member.epoch,
            "in_view": member.is_in,
            "lease_left_ns": member.lease_left_ns,
            "serves": numbers(&member.serves),
            "backs_up": numbers(&member.backs_up),
            "fills": fills.collect::<Vec<_>>(),
        });
    }
    document
}

fn index_document(OneIndex { info, partitions, log_used }: &OneIndex) -> Value {
    let owners: Vec<Option<u32>> = partitions
        .iter()
        .map(|partition| partition.owner.process().map(|process| process.identity.pid))
        .collect();
    let is_lost = |(number, partition): (usize, &Partition)| {
        let is_lost = matches!(partition.owner, PartitionOwner::Lost(_));
        (is_lost && info.log_bytes.is_none()).then_some(number)
    };
    let lost: Vec<usize> = partitions.iter().enumerate().filter_map(is_lost).collect();
    json!({
        "name": info.name,
        "layout": info.layout.to_string(),
        "owners": owners,
        "lost": lost,
        "log_bytes": info.log_bytes,
        "log_used_bytes": log_used,
    })
}

pub(super) fn document(status: &Status) -> Value {
    let reached: Vec<Value> = status.reached.iter().map(memory_server_document).collect();
    let mut document = json!({ "pool": status.pool.to_string_lossy(), "memory_servers": reached });
    match &status.inside {
        Err(reason) => document["reason"] = json!(reason),
        Ok(Inside { servers, copies, attached, indexes, .. }) => {
            let pid = |process: &Process| process.identity.pid;
            let process = |process: &Process| {
                let silent_ns = silent_ns(&status.reached, process);
                json!({ "pid": pid(process), "is_alive": process.is_alive, "silent_ns": silent_ns })
            };
            document["servers"] = servers.iter().map(pool::server_document).collect();
            document["copies"] = copies.as_ref().map_or(Value::Null, copies::document);
            document["attached"] = attached.iter().map(pid).collect();
            document["processes"] = attached.iter().map(process).collect();
            document["dead"] = attached.iter().filter(|process| !process.is_alive).map(pid).collect();
            document["indexes"] = indexes.iter().map(index_document).collect();
        }
    }
    document
}
