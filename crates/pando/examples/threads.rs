//! Many threads, each with its own session, count words by compare-and-swap without losing a count.
//!
//! `cargo run -p pando --example threads`

use std::thread;

use pando::{Cluster, Config, Index, IndexOptions, Swapped};

const THREADS: usize = 4;
const TEXT: &str = "the owl and the wren and the tit and the owl again";

fn main() -> pando::Result<()> {
    // Two compute servers: the keys below and above the middle are cached separately.
    let cluster = Cluster::open(Config::embedded().memory(64 << 20).compute_servers(2))?;
    let index = cluster.create_index("words", &IndexOptions::bytes())?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(|| count(&index))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    let session = index.session()?;
    for entry in session.iter() {
        let (word, count) = entry?;
        println!("{:>4} {}", number(&count), String::from_utf8_lossy(&word));
    }
    Ok(())
}

/// Counts the words of the text a hundred times.
fn count(index: &Index) -> pando::Result<()> {
    // A session cannot be sent to another thread; an index can.
    let session = index.session()?;
    for word in (0..100).flat_map(|_| TEXT.split(' ')) {
        let mut before = session.get(word.as_bytes())?;
        loop {
            let after = before.as_deref().map_or(0, number) + 1;
            match session.compare_and_swap(word.as_bytes(), before.as_deref(), Some(&after.to_le_bytes()))? {
                Swapped::Done => break,
                Swapped::Found(found) => before = found,
            }
        }
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("only such values are stored"))
}
