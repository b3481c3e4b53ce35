//! Loads many sorted integers at once instead of one by one, on all cores, and then looks some of them up.
//!
//! `cargo run --release -p pando --example bulk_load [COUNT]`

use std::ops::Range;
use std::time::Instant;

use pando::{BulkOptions, Cluster, Config, IndexError, IndexOptions, SortedSource};

/// Numbers and their squares. A source yields any part of its entries, so that threads can load parts
/// concurrently; it need not hold all entries in memory. A slice of pairs is a source too.
struct Squares(u64);

impl SortedSource for Squares {
    fn len(&self) -> u64 {
        self.0
    }

    fn visit(
        &self,
        range: Range<u64>,
        each: &mut dyn FnMut(&[u8], &[u8]) -> Result<(), IndexError>,
    ) -> Result<(), IndexError> {
        for n in range {
            each(&n.to_be_bytes(), &(n * n).to_be_bytes())?;
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count = std::env::args().nth(1).map_or(Ok(200_000), |count| count.parse())?;
    let cluster = Cluster::open(Config::embedded().compute_servers(2))?;
    let index = cluster.create_index("squares", &IndexOptions::integers())?;
    let begun = Instant::now();
    let loaded = index.bulk_load(&Squares(count), &BulkOptions::default())?;
    eprintln!("{loaded} entries in {:.0?}", begun.elapsed());

    let session = index.integers()?;
    let mut values = Vec::new();
    session.multi_get(&[3, count / 2, count], &mut values)?;
    println!("{values:?}");
    let near = session.range(count / 3..).next().transpose()?;
    println!("at a third: {near:?}");
    let mut sum = 0_u128;
    let visited = session.scan(.., |_, square| {
        sum += u128::from(square);
        true
    })?;
    println!("{visited} squares, together {sum}");
    Ok(())
}
