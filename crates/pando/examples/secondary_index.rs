//! A secondary index: people by number, and their numbers by town and name, in composite keys that sort
//! column by column.
//!
//! `cargo run -p pando --example secondary_index`

use pando::{Cluster, Config, IndexOptions, Session};

fn main() -> pando::Result<()> {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20))?;
    let people = cluster.create_index("people", &IndexOptions::bytes())?.session()?;
    let by_town = cluster.create_index("people by town", &IndexOptions::bytes())?.session()?;
    for (number, town, name) in
        [(1, "Oslo", "Ida"), (2, "Bergen", "Nils"), (3, "Oslo", "Aud"), (4, "Os", "Liv"), (5, "Oslo", "Ida")]
    {
        add(&people, &by_town, number, town, name)?;
    }
    // All people of one town, by name. The prefix includes the end of the column: `Os` does not match `Oslo`.
    for town in ["Oslo", "Os"] {
        println!("{town}:");
        for entry in by_town.prefix(column(town)) {
            let (key, _) = entry?;
            let number = key.last_chunk().expect("a key ends with the number");
            let person = people.get(number)?.unwrap_or_default();
            println!("  {} {}", u64::from_be_bytes(*number), String::from_utf8_lossy(&person));
        }
    }
    Ok(())
}

/// Changes of two indexes are two operations: there is no transaction over them. An entry found in the second
/// index may be missing in the first one, so the order matters: the entry that the other one refers to is
/// stored first.
fn add(people: &Session, by_town: &Session, number: u64, town: &str, name: &str) -> pando::Result<()> {
    people.put(&number.to_be_bytes(), format!("{name} of {town}").as_bytes())?;
    let key = [column(town), column(name), number.to_be_bytes().to_vec()].concat();
    by_town.put(&key, b"").map(drop)
}

/// Encodes a text as a column of a key. Two zero bytes end it, so that keys sort like their columns. A zero
/// byte within the text is followed by 0xff, so it sorts after the end.
fn column(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() + 2);
    for byte in text.bytes() {
        bytes.push(byte);
        if byte == 0 {
            bytes.push(0xff);
        }
    }
    bytes.extend([0, 0]);
    bytes
}
