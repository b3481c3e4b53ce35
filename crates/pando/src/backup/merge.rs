//! Merges sorted entries and changes.
//!
//! Of several with one key, that of the last source counts. So the sources are in the order of time: what a scan found,
//! then runs of changes, then the changes that are in memory.

use std::collections::btree_map;
use std::iter::Peekable;

use super::changes::{Changes, Value};
use super::data::DataReader;
use super::files::Result;

/// Sorted entries or changes.
pub(super) enum Source<'c> {
    File(Box<DataReader>),
    Memory(Peekable<btree_map::Iter<'c, Box<[u8]>, Value>>),
}

impl<'c> Source<'c> {
    pub fn file(reader: DataReader) -> Self {
        Self::File(Box::new(reader))
    }

    pub fn memory(changes: &'c Changes) -> Self {
        Self::Memory(changes.iter().peekable())
    }

    fn current(&mut self) -> Option<(&[u8], Option<&[u8]>)> {
        match self {
            Self::File(reader) => reader.current(),
            Self::Memory(entries) => entries.peek().map(|(key, value)| (&***key, value.as_deref())),
        }
    }

    fn advance(&mut self) -> Result<()> {
        match self {
            Self::File(reader) => reader.advance(),
            Self::Memory(entries) => {
                entries.next();
                Ok(())
            }
        }
    }
}

/// Calls `each` for all keys of the sources, in order, each with its value in the last source that has it; `None` if
/// it was removed there.
pub(super) fn merge(
    sources: &mut [Source<'_>],
    mut each: impl FnMut(&[u8], Option<&[u8]>) -> Result<()>,
) -> Result<()> {
    let mut key = Vec::new();
    loop {
        let mut newest = None;
        for (number, source) in sources.iter_mut().enumerate() {
            if let Some((found, _)) = source.current()
                && (newest.is_none() || found <= &key[..])
            {
                key.clear();
                key.extend_from_slice(found);
                newest = Some(number);
            }
        }
        let Some(newest) = newest else { return Ok(()) };
        let value = sources[newest].current().and_then(|(_, value)| value);
        each(&key, value)?;
        for source in sources.iter_mut() {
            if source.current().is_some_and(|(found, _)| found == &key[..]) {
                source.advance()?;
            }
        }
    }
}
