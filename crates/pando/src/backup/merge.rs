//! Merges sorted entries and changes: of several with one key, the newest counts.

use std::collections::btree_map;
use std::iter::Peekable;

use super::changes::Changes;
use super::data::DataReader;
use super::files::Result;

/// Sorted entries or changes.
pub(super) enum Source<'c> {
    File(DataReader),
    Memory(Peekable<btree_map::Iter<'c, Box<[u8]>, Option<Box<[u8]>>>>),
}

impl<'c> Source<'c> {
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
