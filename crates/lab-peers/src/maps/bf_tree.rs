//! Bf-Tree with its pages in memory. Keys and values are byte strings.
//!
//! Keys are stored in big-endian, so that they sort as numbers. The buffer in front of the pages has room for
//! every record: all maps of this comparison are measured with all data in memory.

use crate::{OrderedMap, Session};
use anyhow::{anyhow, ensure};
use bf_tree::{BfTree, Config, LeafInsertResult, LeafReadResult, ScanReturnField};

pub struct BfTreeMap(BfTree);

impl OrderedMap for BfTreeMap {
    type Session<'a> = &'a BfTree;

    fn load(pairs: &[(u64, u64)], _sorted: bool) -> anyhow::Result<Self> {
        let tree = BfTree::with_config(config(pairs.len()), None).map_err(|error| anyhow!("{error:?}"))?;
        for &(key, value) in pairs {
            let inserted = tree.insert(&key.to_be_bytes(), &value.to_ne_bytes());
            ensure!(inserted == LeafInsertResult::Success, "inserting key {key} failed: {inserted:?}");
        }
        Ok(BfTreeMap(tree))
    }

    fn session(&self, _threads: usize) -> &BfTree {
        &self.0
    }
}

/// Pages in memory, and a buffer in front of them with room for every record.
fn config(records: usize) -> Config {
    let mut config = Config::default();
    config.cb_min_record_size(16).cb_max_record_size(64);
    config.cb_size_byte((64 * records).next_power_of_two().max(32 << 20));
    config
}

impl Session for &BfTree {
    fn get(&mut self, key: u64) -> Option<u64> {
        let mut value = [0; 8];
        let found = self.read(&key.to_be_bytes(), &mut value);
        (found == LeafReadResult::Found(8)).then(|| u64::from_ne_bytes(value))
    }

    fn update(&mut self, key: u64, value: u64) -> bool {
        self.insert(&key.to_be_bytes(), &value.to_ne_bytes()) == LeafInsertResult::Success
    }

    fn scan(&mut self, start: u64, len: usize) -> (usize, u64) {
        let Ok(mut records) = self.scan_with_count(&start.to_be_bytes(), len, ScanReturnField::Value) else {
            return (0, 0);
        };
        let mut value = [0; 8];
        let (mut count, mut sum) = (0, 0u64);
        while records.next(&mut value).is_some() {
            count += 1;
            sum = sum.wrapping_add(u64::from_ne_bytes(value));
        }
        (count, sum)
    }
}
