//! `pando del`: deletes keys, or ranges of them.
//!
//! Missing keys are counted and are not a failure. A range is deleted batch by batch, so an interrupted
//! command has deleted its beginning.

use pando::ScanRange;

use crate::args::DelArgs;
use crate::failure::{self, Failure};
use crate::get::each_line;
use crate::keys::KeySchema;
use crate::scan::Range;
use crate::signals::Interrupt;
use crate::target::{self, Session};
use pando_lab::units;

/// Number of keys read before they are deleted.
const BATCH: usize = 1024;

pub fn run(args: &DelArgs) -> Result<(), Failure> {
    check_arguments(args)?;
    let interrupt = Interrupt::listen()?;
    target::work_on(&args.target, |target| {
        let schema = &target.schema;
        let range = Range::of_args(&args.range, schema)?;
        let mut deletion = Deletion { schema, session: target.session()?, deleted: 0, missing: 0 };
        let done = if args.stdin {
            each_line(|line| interrupt.check().and_then(|()| deletion.key(line)))
        } else if args.keys.is_empty() {
            deletion.range(&range, &interrupt)
        } else {
            args.keys.iter().try_for_each(|key| deletion.key(key.as_bytes()))
        };
        deletion.tell();
        done
    })
}

/// Refuses contradictory arguments, and deletes everything only if that is explicit.
fn check_arguments(args: &DelArgs) -> Result<(), Failure> {
    let range = &args.range;
    let has_range = range.from.is_some() || range.to.is_some() || range.prefix.is_some();
    if has_range && !args.keys.is_empty() {
        return Err(Failure::bad_input("either keys or a range can be deleted, not both at once"));
    }
    if !has_range && args.keys.is_empty() && !args.all && !args.stdin {
        return Err(Failure::bad_input(
            "name keys, a range (--from, --to, --prefix), --stdin, or --all to delete everything",
        ));
    }
    Ok(())
}

struct Deletion<'a> {
    schema: &'a KeySchema,
    session: Session,
    deleted: u64,
    missing: u64,
}

impl Deletion<'_> {
    fn key(&mut self, text: &[u8]) -> Result<(), Failure> {
        match self.session.remove(&self.schema.key(text)?)? {
            true => self.deleted += 1,
            false => self.missing += 1,
        }
        Ok(())
    }

    /// Reads and deletes keys of the range, batch by batch, until it is empty.
    fn range(&mut self, range: &Range, interrupt: &Interrupt) -> Result<(), Failure> {
        let mut from: Option<Vec<u8>> = None;
        loop {
            interrupt.check()?;
            let mut keys: Vec<Vec<u8>> = Vec::with_capacity(BATCH);
            let mut scanned = ScanRange { limit: BATCH, ..range.scan_range() };
            if let Some(from) = &from {
                scanned.low = std::ops::Bound::Excluded(from);
            }
            self.session.scan(&scanned, |key, _| {
                keys.push(key.to_vec());
                true
            })?;
            for key in &keys {
                self.deleted += u64::from(self.session.remove(key)?);
            }
            match keys.pop() {
                Some(last) => from = Some(last),
                None => return Ok(()),
            }
        }
    }

    fn tell(&self) {
        let missing = match self.missing {
            0 => String::new(),
            missing => format!(", {} were not there", units::count(missing)),
        };
        failure::tell(format_args!("{} deleted{missing}", units::count(self.deleted)));
    }
}
