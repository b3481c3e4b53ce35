//! `pando scan`: prints a range of an index in the byte order of its keys, streaming.
//!
//! A bound may consist of the first columns of a composite key, since their encoding is a prefix of the key
//! ([`pando_workload::KeyLayout`]).

use std::io;
use std::ops::Bound;

use pando::ScanRange;

use crate::args::{RangeArgs, ScanArgs};
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::output::RowPrinter;
use crate::signals::Interrupt;
use crate::target;

pub fn run(args: &ScanArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    target::look_at(&args.target, &args.look, |target| {
        let schema = &target.schema;
        let range = Range::of_args(&args.range, schema)?;
        let mut printer = RowPrinter::new(&args.output, schema);
        let mut printed: io::Result<()> = Ok(());
        let limit = args.limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let scanned = ScanRange { limit, reverse: args.reverse, ..range.scan_range() };
        target.session()?.scan(&scanned, |key, value| {
            printed = printer.print(key, value);
            printed.is_ok() && !interrupt.wanted()
        })?;
        printed?;
        printer.finish()?;
        interrupt.check()
    })
}

/// A range of keys, including the first bound and excluding the last.
#[derive(Debug, Default)]
pub struct Range {
    low: Option<Vec<u8>>,
    high: Option<Vec<u8>>,
}

impl Range {
    pub fn of_args(args: &RangeArgs, schema: &KeySchema) -> Result<Range, Failure> {
        let prefix =
            |text: &Option<String>| text.as_ref().map(|text| schema.prefix(text.as_bytes())).transpose();
        Ok(match prefix(&args.prefix)? {
            Some(low) => Range { high: after_prefix(&low), low: Some(low) },
            None => Range { low: prefix(&args.from)?, high: prefix(&args.to)? },
        })
    }

    /// The whole range, ascending.
    pub fn scan_range(&self) -> ScanRange<'_> {
        ScanRange {
            low: self.low.as_deref().map_or(Bound::Unbounded, Bound::Included),
            high: self.high.as_deref().map_or(Bound::Unbounded, Bound::Excluded),
            ..ScanRange::all()
        }
    }
}

/// Lowest byte string above all that begin with `prefix`; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut after = prefix[..=last].to_vec();
    after[last] += 1;
    Some(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(after_prefix(b"ab").as_deref(), Some(&b"ac"[..]));
        assert_eq!(after_prefix(b"a\xff\xff").as_deref(), Some(&b"b"[..]));
        assert_eq!(after_prefix(b"\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
