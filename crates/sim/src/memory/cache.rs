//! A set-associative cache of numbers: lines, pages or blocks.
//!
//! Each set is an array in the order of use, most recent first; the last one leaves. Sets are chosen by a
//! multiplicative hash, as last-level caches do, so that strides of a table do not fall into one set.

/// Numbers that are cached.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    sets: u64,
    ways: usize,
    /// `sets` x `ways`; `NONE` where a place is free.
    numbers: Vec<u64>,
}

const NONE: u64 = u64::MAX;

impl Cache {
    /// An empty cache of about `entries` entries, at least one set.
    pub(super) fn new(entries: u64, ways: usize) -> Self {
        let ways = ways.max(1);
        let sets = (entries / ways as u64).max(1);
        Self { sets, ways, numbers: vec![NONE; sets as usize * ways] }
    }

    fn set(&mut self, number: u64) -> &mut [u64] {
        let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let set = (u128::from(hash) * u128::from(self.sets)) >> 44;
        let from = set as usize * self.ways;
        &mut self.numbers[from..from + self.ways]
    }

    /// Whether `number` is cached; it becomes the most recent one of its set.
    pub(super) fn touch(&mut self, number: u64) -> bool {
        let set = self.set(number);
        let Some(at) = set.iter().position(|&other| other == number) else { return false };
        set[..=at].rotate_right(1);
        true
    }

    /// Caches `number`, which is not cached, and returns what leaves for it.
    pub(super) fn insert(&mut self, number: u64) -> Option<u64> {
        let set = self.set(number);
        set.rotate_right(1);
        let left = std::mem::replace(&mut set[0], number);
        (left != NONE).then_some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_number_of_a_set_leaves() {
        let mut cache = Cache::new(4, 4);
        assert!((0..4).all(|number| !cache.touch(number) && cache.insert(number).is_none()));
        assert!(cache.touch(0));
        assert_eq!((cache.insert(9), cache.touch(1), cache.touch(0)), (Some(1), false, true));
    }

    #[test]
    fn a_cache_holds_about_as_many_numbers_as_it_has_places() {
        let mut cache = Cache::new(16_384, 16);
        let left = (0..8_192).filter_map(|number| cache.insert(number * 4_096)).count();
        let held = (0..8_192).filter(|number| cache.touch(number * 4_096)).count();
        assert!(held > 8_000 && held + left >= 8_192, "{held} {left}");
    }
}
