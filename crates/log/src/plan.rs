//! What recovery must do to each page.
//!
//! A page is written in part if its writer dies in the middle. So a page whose entries moved is logged as a
//! whole before it is written, and recovery begins with its last image. The remote copy of a page without an
//! image in the log has been written only after changes that each replaced one value in place. Whichever of
//! these a torn or older copy has, doing all of them again, in order, leads to the last one. So entries are
//! applied behind the image or, without one, all of them.

use std::collections::BTreeMap;

use pando_fabric::GlobalAddr;

use crate::error::{LogError, Result};
use crate::reader::Contents;
use crate::record::{Entry, Record};

/// Redo of one page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagePlan<'b> {
    /// Bytes to begin with; those of the remote copy if there are none.
    pub image: Option<&'b [u8]>,
    /// Changes to apply to them, in order.
    pub entries: Vec<Entry<'b>>,
    /// Number of the last change.
    pub gsn: u64,
}

/// The pages to be redone. Pages that were freed and are not in use again are not among them.
///
/// # Errors
/// [`LogError::Damaged`], also for an entry of a page that was freed.
pub fn plan(contents: &Contents) -> Result<BTreeMap<GlobalAddr, PagePlan<'_>>> {
    // `None` for a page that was freed.
    let mut pages: BTreeMap<GlobalAddr, Option<PagePlan<'_>>> = BTreeMap::new();
    for record in contents.records() {
        let (gsn, record) = record?;
        match record {
            Record::Entry(entry) => {
                let page = pages.entry(entry.page).or_insert_with(|| Some(PagePlan::default()));
                let reason = "an entry belongs to a page that was freed";
                let page = page.as_mut().ok_or(LogError::Damaged { addr: entry.page, reason })?;
                page.entries.push(entry);
                page.gsn = gsn;
            }
            Record::Pages { images, freed } => {
                for image in images {
                    let plan = PagePlan { image: Some(image.bytes), entries: Vec::new(), gsn };
                    pages.insert(image.page, Some(plan));
                }
                freed.into_iter().for_each(|page| drop(pages.insert(page, None)));
            }
        }
    }
    Ok(pages.into_iter().filter_map(|(page, plan)| Some((page, plan?))).collect())
}
