//! An ordered map in the memory of this process: single keys, ranges in both directions, prefixes.
//!
//! `cargo run -p pando --example embedded`

use pando::{Cluster, Config, IndexOptions, Swapped};

fn main() -> pando::Result<()> {
    // 64 MiB of memory, which ends with the process, and a cache of 4 MiB for the index.
    let cluster = Cluster::open(Config::embedded().memory(64 << 20).cache(4 << 20))?;
    let trees = cluster.create_index("trees", &IndexOptions::bytes())?;
    // Each thread opens a session of its own.
    let session = trees.session()?;
    for (tree, height) in [("alder", "25 m"), ("ash", "40 m"), ("aspen", "30 m"), ("beech", "45 m")] {
        session.put(tree.as_bytes(), height.as_bytes())?;
    }
    session.insert(b"birch", b"30 m")?;
    if let Swapped::Found(found) = session.compare_and_swap(b"ash", Some(b"35 m"), Some(b"41 m"))? {
        println!("ash is as it was: {:?}", found.as_deref().map(String::from_utf8_lossy));
    }

    let print = |title: &str, range: pando::Range<'_>| -> pando::Result<()> {
        print!("{title}:");
        for entry in range {
            let (tree, height) = entry?;
            print!(" {} {};", String::from_utf8_lossy(&tree), String::from_utf8_lossy(&height));
        }
        println!();
        Ok(())
    };
    print("from ash up to beech", session.range("ash".."beech"))?;
    print("the last two", session.iter().reverse().limit(2))?;
    print("beginning with b", session.prefix("b"))
}
