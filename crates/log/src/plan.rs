//! What recovery must do to each page.
//!
//! A page is written in part if its writer dies in the middle. So a page whose entries moved is logged as a
//! whole before it is written, and recovery begins with its last image. The remote copy of a page without an
//! image in the log has been written only after changes that each replaced one value in place. Whichever of
//! these a torn or older copy has, doing all of them again, in order, leads to the last one. So entries are
//! applied behind the image or, without one, all of them.
//!
//! Keys that left had all their changes in the pages by then. So what the log says about them before that is dropped, as
//! are the images of all pages that have such keys: the pages belong to others since, or several compute servers share
//! them.

use std::collections::BTreeMap;

use pando_fabric::GlobalAddr;

use crate::error::Result;
use crate::reader::Contents;
use crate::record::{Entry, Record, Span};

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

/// The pages to be redone. Pages that were freed and are not in use again are not among them. `is_left` tells of an image
/// whether its page has keys of a span that left, and is no longer this compute server's alone.
///
/// # Errors
/// [`crate::LogError::Damaged`].
pub fn plan(
    contents: &Contents,
    is_left: impl Fn(&[u8], Span<'_>) -> bool,
) -> Result<BTreeMap<GlobalAddr, PagePlan<'_>>> {
    let mut pages: BTreeMap<GlobalAddr, PagePlan<'_>> = BTreeMap::new();
    for record in contents.records() {
        let (gsn, record) = record?;
        match record {
            Record::Entry(entry) => {
                let page = pages.entry(entry.page).or_default();
                page.entries.push(entry);
                page.gsn = gsn;
            }
            Record::Pages { images, freed } => {
                for image in images {
                    let plan = PagePlan { image: Some(image.bytes), entries: Vec::new(), gsn };
                    pages.insert(image.page, plan);
                }
                freed.into_iter().for_each(|page| drop(pages.remove(&page)));
            }
            Record::Left(span) => pages.retain(|_, plan| match plan.image {
                Some(image) => !is_left(image, span),
                None => {
                    plan.entries.retain(|entry| !span.contains(entry.key));
                    !plan.entries.is_empty()
                }
            }),
        }
    }
    Ok(pages)
}
