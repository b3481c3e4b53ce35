//! Size classes of blocks: four per doubling from 64 bytes to 64 KiB.
//!
//! Blocks lie at multiples of their class size from the start of a chunk. Chunks are aligned to 64 KiB, or to
//! their own size if that is smaller. So a class that is a power of two is aligned to itself, one that is a
//! multiple of 64 to 64, and all to 16.

/// Number of size classes; blocks of class `c` have [`size_of_class`]`(c)` bytes.
pub(crate) const CLASSES: usize = 41;
/// Size of the smallest class in bytes.
pub(crate) const MIN_BLOCK: u64 = 64;
/// Size of the largest class in bytes. A chunk that is smaller limits blocks to its own size.
pub const MAX_BLOCK: u64 = 64 << 10;

/// Size of the blocks of class `class` in bytes.
#[inline]
pub(crate) fn size_of_class(class: u8) -> u64 {
    let doubling = class / 4;
    (MIN_BLOCK << doubling) + ((MIN_BLOCK / 4) << doubling) * u64::from(class % 4)
}

/// Smallest class that holds `size` bytes; `None` beyond [`MAX_BLOCK`].
#[inline]
pub(crate) fn class_of(size: u64) -> Option<u8> {
    if size <= MIN_BLOCK {
        return Some(0);
    }
    if size > MAX_BLOCK {
        return None;
    }
    let last = size - 1;
    let doubling = last.ilog2();
    let quarter = (last - (1 << doubling)) >> (doubling - 2);
    Some(((doubling - 6) * 4 + quarter as u32 + 1) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_goes_to_the_smallest_class_that_holds_it() {
        assert_eq!((size_of_class(0), size_of_class(CLASSES as u8 - 1)), (MIN_BLOCK, MAX_BLOCK));
        for size in 0..=MAX_BLOCK {
            let class = class_of(size).expect("not beyond the largest");
            assert!(size_of_class(class) >= size);
            assert!(class == 0 || size_of_class(class - 1) < size, "{size} is in class {class}");
        }
        assert_eq!(class_of(MAX_BLOCK + 1), None);
    }

    #[test]
    fn node_sizes_are_classes() {
        for bits in 9..=16 {
            assert_eq!(size_of_class(class_of(1 << bits).expect("fits")), 1 << bits);
        }
        for class in 0..CLASSES as u8 {
            assert_eq!(size_of_class(class) % 16, 0);
        }
    }
}
