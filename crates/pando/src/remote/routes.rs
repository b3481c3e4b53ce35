//! The owners of keys, according to the compute servers.
//!
//! Each compute server says which ranges it owns when an index is opened and whenever it is asked. If two
//! claims contradict, the latest wins, because a process that ended cannot withdraw its claim. Only a refusal
//! ("not owned") is reliable; claims tell which server to ask first.

use pando_dex::{KeyRange, ScanRange};

use super::wire::Opened;

/// Claims of all compute servers. Immutable; new claims make a new value.
#[derive(Clone, Debug, Default)]
pub(super) struct Claims {
    /// Ranges and the servers that claim them, the latest first.
    ranges: Vec<(KeyRange, usize)>,
}

impl Claims {
    /// The claims after server `number` said what it owns.
    pub fn with(&self, number: usize, opened: &Opened) -> Self {
        let said = opened.ranges.iter().map(|range| (range.clone(), number));
        let others = self.ranges.iter().filter(|(_, other)| *other != number).cloned();
        Self { ranges: said.chain(others).collect() }
    }

    pub fn owner_of(&self, key: &[u8]) -> Option<usize> {
        self.ranges.iter().find(|(range, _)| range.contains(key)).map(|(_, number)| *number)
    }

    /// The server at which a scan begins.
    pub fn owner_of_start(&self, range: &ScanRange<'_>) -> Option<usize> {
        self.ranges.iter().find(|(own, _)| range.starts_in(own)).map(|(_, number)| *number)
    }

    /// Ranges and the servers that claim them, the latest first.
    pub fn ranges(&self) -> &[(KeyRange, usize)] {
        &self.ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::IndexLayout;
    use std::ops::Bound;

    fn opened(ranges: &[(&str, &str)]) -> Opened {
        let end = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
        let ranges = ranges.iter().map(|&(low, high)| KeyRange { low: end(low), high: end(high) }).collect();
        Opened { epoch: 0, layout: IndexLayout::Bytes, ranges }
    }

    #[test]
    fn who_spoke_last_is_believed() {
        let claims = Claims::default().with(0, &opened(&[("", "m")])).with(1, &opened(&[("m", "")]));
        assert_eq!((claims.owner_of(b"a"), claims.owner_of(b"m")), (Some(0), Some(1)));
        let taken = claims.with(2, &opened(&[("k", "p")]));
        assert_eq!(
            (taken.owner_of(b"a"), taken.owner_of(b"l"), taken.owner_of(b"z")),
            (Some(0), Some(2), Some(1))
        );
        let fewer = taken.with(1, &opened(&[])).with(2, &opened(&[]));
        assert_eq!((fewer.owner_of(b"l"), fewer.owner_of(b"z")), (Some(0), None));
    }

    #[test]
    fn a_scan_begins_where_its_first_key_is() {
        let claims = Claims::default().with(0, &opened(&[("", "m")])).with(1, &opened(&[("m", "")]));
        let all = ScanRange::all();
        assert_eq!(claims.owner_of_start(&all), Some(0));
        assert_eq!(claims.owner_of_start(&ScanRange { reverse: true, ..all }), Some(1));
        let below = ScanRange { high: Bound::Excluded(b"m"), reverse: true, ..all };
        assert_eq!(claims.owner_of_start(&below), Some(0));
        let from = ScanRange { low: Bound::Included(b"m"), ..all };
        assert_eq!(claims.owner_of_start(&from), Some(1));
    }
}
