//! The table of an image or of several: the codes of all rows, in the order of their ids.
//!
//! An image has everything of the table that it was built from. Rows are decoded in preorder, column by column,
//! and then put into the order of their ids. This takes 4 bytes per row and column of memory at a time, besides
//! the table.

use crate::elf::{Elf, Image};
use crate::error::{Error, Result};
use crate::layout::{Columnar, END, ElfLayout, Linear};
use crate::sort::check_rows;
use crate::table::CodeTable;

impl<B: AsRef<[u8]>> Elf<B> {
    /// The table that the Elf was built from. Fails if it has more
    /// rows than a table in memory, and if an id occurs twice, as only a broken program writes it.
    pub fn decode(&self) -> Result<CodeTable> {
        decode_forest(std::slice::from_ref(self))
    }

    /// Appends the rows in preorder.
    fn append_rows(&self, rows: &mut Preorder) {
        let (tids, levels) = match self.image() {
            Image::Columnar(columnar) => columnar_rows(columnar),
            Image::Linear(linear) => linear_rows(linear),
        };
        if rows.0.is_empty() {
            *rows = (tids, levels);
            return;
        }
        rows.0.extend(tids);
        rows.1.iter_mut().zip(levels).for_each(|(all, codes)| all.extend(codes));
    }
}

/// The table that a [forest](Elf::build_forest) was built from. Fails like [`Elf::decode`], without trees, and if
/// their column orders differ.
pub fn decode_forest<B: AsRef<[u8]>>(trees: &[Elf<B>]) -> Result<CodeTable> {
    let order = trees.first().ok_or(Error::NoColumns)?.order();
    if let Some(other) = trees.iter().find(|tree| tree.order() != order) {
        return Err(Error::BadOrder { order: other.order().to_vec(), columns: order.len() });
    }
    check_rows(trees.iter().map(|tree| tree.header().rows).fold(0, u64::saturating_add))?;
    let mut rows = Preorder::default();
    trees.iter().for_each(|tree| tree.append_rows(&mut rows));
    let (tids, levels) = rows;
    let mut rows: Vec<u32> = (0..tids.len() as u32).collect();
    rows.sort_unstable_by_key(|&row| tids[row as usize]);
    let ids: Vec<u64> = rows.iter().map(|&row| tids[row as usize]).collect();
    if !ids.is_sorted_by(|a, b| a < b) {
        return Err(Error::Damaged { at: 0, what: "a row id occurs twice" });
    }
    let mut columns: Vec<Option<Vec<u32>>> = vec![None; levels.len()];
    for (level, codes) in levels.into_iter().enumerate() {
        let ordered = rows.iter().map(|&row| codes[row as usize]).collect();
        columns[order[level]] = Some(ordered);
    }
    let columns = columns.into_iter().flatten();
    CodeTable::of_columns(columns, rows.len()).with_ids(&ids)
}

/// Row ids in preorder, and the codes of each level.
type Preorder = (Vec<u64>, Vec<Vec<u32>>);

fn columnar_rows<B: AsRef<[u8]>>(columnar: &Columnar<B>) -> Preorder {
    let tids: Vec<u64> = columnar.tids().iter().collect();
    let level = |number: usize| {
        let level = columnar.level(number);
        let mut codes = Vec::with_capacity(tids.len());
        for entry in 0..level.entries() {
            // Rows before the entry that no other one covers have strip codes.
            let strips = level.start(entry) - codes.len();
            let strip = level.strip(entry) - strips;
            codes.extend(level.codes.slice(strip..strip + strips).iter());
            codes.resize(level.end(entry), level.values.get(entry));
        }
        let strip = level.codes.len() - (tids.len() - codes.len());
        codes.extend(level.codes.slice(strip..level.codes.len()).iter());
        codes
    };
    let levels = (0..columnar.order().len()).map(level).collect();
    (tids, levels)
}

fn linear_rows<B: AsRef<[u8]>>(linear: &Linear<B>) -> Preorder {
    let (array, columns) = (linear.array(), linear.order().len());
    let mut tids = Vec::new();
    let mut levels: Vec<Vec<u32>> = vec![Vec::new(); columns];
    // Values of the entries that lead to the list in work.
    let mut path: Vec<u32> = Vec::new();
    let mut open = vec![array.entries(0, 0)];
    while let Some(entries) = open.last_mut() {
        let level = path.len();
        let Some((at, pointer)) = entries.next() else {
            open.pop();
            path.pop();
            continue;
        };
        let value = match level {
            0 => (at / array.pointer_words) as u32,
            _ => array.words[at - 1].get() & !END,
        };
        path.push(value);
        if !pointer.is_mono {
            open.push(array.entries(path.len(), pointer.at));
            continue;
        }
        let rest = &array.words[pointer.at..];
        let values = columns - path.len();
        for word in &rest[values..] {
            tids.push(u64::from(word.get() & !END));
            if word.get() & END != 0 {
                break;
            }
        }
        let codes = path.iter().copied().chain(rest[..values].iter().map(|word| word.get()));
        levels.iter_mut().zip(codes).for_each(|(level, code)| level.resize(tids.len(), code));
        path.pop();
    }
    (tids, levels)
}

#[cfg(test)]
mod tests {
    use super::decode_forest;
    use crate::{BuildOptions, CodeTable, Elf, LayoutKind, Predicate};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_image_has_its_table(
            rows in prop::collection::vec((0..3_u32, 0..4_u32, 0..300_u32, 0..2_u32), 0..80),
            gaps in prop::collection::vec(1..5_u64, 80),
            keys in prop::collection::vec(any::<u32>(), 4),
            bucket_rows in 1..20_u32,
            trees in 1..9_usize,
        ) {
            let columns = [
                rows.iter().map(|row| row.0).collect(), rows.iter().map(|row| row.1).collect(),
                rows.iter().map(|row| row.2).collect(), rows.iter().map(|row| row.3).collect(),
            ];
            let ids: Vec<u64> = gaps.iter().scan(0, |id, gap| { *id += gap; Some(*id) }).take(rows.len()).collect();
            let table = CodeTable::new(columns.to_vec()).expect("even").with_ids(&ids).expect("they ascend");
            let mut order: Vec<usize> = (0..4).collect();
            order.sort_by_key(|&column| keys[column]);
            for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
                let options = BuildOptions { bucket_rows, ..BuildOptions::default() };
                let elf = Elf::build(&table, &order, layout, &options).expect("a small table");
                prop_assert_eq!(elf.decode().expect("ids that ascend"), table.clone());
                let forest = Elf::build_forest(&table, &order, layout, &options, trees).expect("a small table");
                prop_assert_eq!(forest.len(), trees.clamp(1, rows.len().max(1)));
                prop_assert_eq!(decode_forest(&forest).expect("ids that ascend"), table.clone());
                let preorder = |elf: &Elf| elf.select(&Predicate::all()).expect("no column").tree_ids::<u64>().expect("u64");
                prop_assert_eq!(forest.iter().flat_map(preorder).collect::<Vec<_>>(), preorder(&elf));
            }
        }
    }
}
