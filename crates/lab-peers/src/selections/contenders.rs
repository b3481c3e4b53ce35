//! The contenders: scans, Elf in both layouts, and indexes of other crates.
//!
//! Each is used through the interface that its documentation recommends for this purpose. All return the ids of the
//! rows within a box of codes, in any order.

use std::sync::Arc;

use anyhow::Context;
use kiddo::{Chebyshev, ImmutableKdTree};
use pando_elf::{BuildOptions, CodeTable, Elf as AnElf, Ids, Interval, Kernel, LayoutKind, Predicate, scan};
use roaring::RoaringBitmap;
use rstar::{AABB, RTree, primitives::GeomWithData};

/// Codes of three columns.
pub type Points = [Vec<u32>; 3];
/// An interval of codes for each column, both ends included.
pub type Box3 = [(u32, u32); 3];

/// A way to find rows.
pub trait Contender {
    /// Appends the ids of the rows within a box, in any order.
    ///
    /// # Errors
    /// Those of the index.
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()>;
}

/// Builds a contender.
pub type Build = fn(&Points) -> anyhow::Result<Box<dyn Contender>>;

/// Names and builders of all contenders.
pub fn all() -> [(&'static str, Build); 6] {
    [
        ("scan of narrow columns, SIMD", |points| Ok(Box::new(Scan(table(points)?)))),
        ("Elf, linear", |points| Elf::build(points, LayoutKind::Linear)),
        ("Elf, columnar, with gate", |points| Elf::build(points, LayoutKind::Columnar)),
        ("roaring: a bitmap for each value", |points| Ok(Box::new(Bitmaps::build(points)))),
        ("rstar: R*-tree", |points| Ok(Box::new(RStar::build(points)))),
        ("kiddo: k-d tree, cube around the box", |points| Ok(Box::new(KdTree::build(points)?))),
    ]
}

fn table(points: &Points) -> anyhow::Result<Arc<CodeTable>> {
    Ok(Arc::new(CodeTable::new(points.to_vec())?))
}

/// Conditions on columns; one that all codes meet is none.
fn predicate(query: &Box3, table: &CodeTable) -> Predicate {
    let conditions = query.iter().enumerate();
    let real = conditions.filter(|(column, (low, high))| *low > 0 || *high < table.maximum(*column));
    real.fold(Predicate::all(), |all, (column, &(low, high))| all.and(column, [Interval::new(low, high)]))
}

struct Scan(Arc<CodeTable>);

impl Contender for Scan {
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()> {
        let kernel = Kernel::detect();
        Ok(scan(&self.0, &predicate(query, &self.0), kernel, &mut Ids::new(found, kernel))?)
    }
}

struct Elf {
    elf: AnElf,
    table: Arc<CodeTable>,
}

impl Elf {
    fn build(points: &Points, layout: LayoutKind) -> anyhow::Result<Box<dyn Contender>> {
        let table = table(points)?;
        let elf = AnElf::build(&table, &[0, 1, 2], layout, &BuildOptions::default())?;
        let elf = if layout == LayoutKind::Columnar { elf.with_table(table.clone())? } else { elf };
        Ok(Box::new(Self { elf, table }))
    }
}

impl Contender for Elf {
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()> {
        self.elf.select(&predicate(query, &self.table))?.ids_into(found)?;
        Ok(())
    }
}

/// For each column, the rows with each code.
struct Bitmaps([Vec<RoaringBitmap>; 3]);

impl Bitmaps {
    fn build(points: &Points) -> Self {
        Self([0, 1, 2].map(|column: usize| {
            let codes = &points[column];
            let greatest = codes.iter().copied().max().unwrap_or(0);
            let mut bitmaps = vec![RoaringBitmap::new(); greatest as usize + 1];
            for (row, &code) in codes.iter().enumerate() {
                bitmaps[code as usize].insert(row as u32);
            }
            for bitmap in &mut bitmaps {
                bitmap.optimize();
            }
            bitmaps
        }))
    }
}

impl Contender for Bitmaps {
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()> {
        use roaring::MultiOps;
        let mut result: Option<RoaringBitmap> = None;
        for (bitmaps, &(low, high)) in self.0.iter().zip(query) {
            let (low, high) = (low as usize, high as usize);
            if (low, high + 1) == (0, bitmaps.len()) {
                continue;
            }
            let rows = match bitmaps.get(low..=high) {
                Some(bitmaps) => bitmaps.union(),
                // Codes beyond the greatest of a small table.
                None => bitmaps.get(low..).map(|rest| rest.union()).unwrap_or_default(),
            };
            result = Some(match result {
                Some(before) => before & rows,
                None => rows,
            });
        }
        match result {
            Some(rows) => found.extend(rows),
            None => found.extend(0..self.0[0].iter().map(RoaringBitmap::len).sum::<u64>() as u32),
        }
        Ok(())
    }
}

struct RStar(RTree<GeomWithData<[i32; 3], u32>>);

impl RStar {
    fn build(points: &Points) -> Self {
        let point = |row: usize| {
            GeomWithData::new(std::array::from_fn(|column| points[column][row] as i32), row as u32)
        };
        Self(RTree::bulk_load((0..points[0].len()).map(point).collect()))
    }
}

impl Contender for RStar {
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()> {
        let corner = |high: bool| query.map(|(first, last)| if high { last } else { first } as i32);
        let within = AABB::from_corners(corner(false), corner(true));
        found.extend(self.0.locate_in_envelope(within).map(|point| point.data));
        Ok(())
    }
}

/// A k-d tree of codes, each column divided by its greatest code.
pub struct KdTree {
    tree: ImmutableKdTree<f64, 3>,
    greatest: [f64; 3],
    points: Points,
}

impl KdTree {
    fn build(points: &Points) -> anyhow::Result<Self> {
        let greatest = [0, 1, 2]
            .map(|column: usize| f64::from(points[column].iter().copied().max().unwrap_or(0).max(1)));
        let place = |row: usize| [0, 1, 2].map(|column| f64::from(points[column][row]) / greatest[column]);
        let places: Vec<[f64; 3]> = (0..points[0].len()).map(place).collect();
        let tree =
            ImmutableKdTree::new_from_slice(&places).ok().context("kiddo does not take these points")?;
        Ok(Self { tree, greatest, points: points.clone() })
    }
}

impl Contender for KdTree {
    fn ids(&self, query: &Box3, found: &mut Vec<u32>) -> anyhow::Result<()> {
        let scaled = [0, 1, 2].map(|column| {
            let (low, high) = query[column];
            let last = self.greatest[column];
            (f64::from(low) / last, f64::from(high.max(low)) / last)
        });
        let centre = scaled.map(|(low, high)| (low + high) / 2.0);
        let radius = scaled.iter().map(|(low, high)| (high - low) / 2.0).fold(0.0, f64::max) + 1e-9;
        let near = self.tree.query(&centre).within::<Chebyshev<f64>>(radius).unsorted().execute();
        let meets = |row: u32| {
            let mut columns = query.iter().zip(&self.points);
            columns.all(|(&(low, high), column)| (low..=high).contains(&column[row as usize]))
        };
        found.extend(near.iter().map(|point| point.item).filter(|&row| meets(row)));
        Ok(())
    }
}
