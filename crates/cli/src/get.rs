//! `pando get`: looks up keys.
//!
//! Found keys are printed in the order of the arguments, missing ones on standard error; a missing key makes
//! the exit status 1.

use std::io::{BufRead, Write, stderr, stdin};

use crate::args::GetArgs;
use crate::failure::Failure;
use crate::keys::KeySchema;
use crate::output::RowPrinter;
use crate::target::{self, Session};

pub fn run(args: &GetArgs) -> Result<(), Failure> {
    target::look_at(&args.target, &args.look, |target| {
        let mut lookup = Lookup {
            schema: &target.schema,
            session: target.session()?,
            printer: RowPrinter::new(&args.output, &target.schema),
            value: Vec::new(),
            missing: 0,
        };
        if args.stdin {
            each_line(|line| lookup.key(line))?;
        } else {
            args.keys.iter().try_for_each(|key| lookup.key(key.as_bytes()))?;
        }
        lookup.printer.finish()?;
        if lookup.missing > 0 { Err(Failure::Told) } else { Ok(()) }
    })
}

struct Lookup<'a> {
    schema: &'a KeySchema,
    session: Session,
    printer: RowPrinter<'a>,
    value: Vec<u8>,
    missing: u64,
}

impl Lookup<'_> {
    fn key(&mut self, text: &[u8]) -> Result<(), Failure> {
        let key = self.schema.key(text)?;
        self.value.clear();
        if self.session.get_into(&key, &mut self.value)? {
            return Ok(self.printer.print(&key, &self.value)?);
        }
        self.missing += 1;
        // The reader may be gone; the exit status tells it too.
        let _ = writeln!(stderr(), "pando: there is no key `{}`", self.schema.display(&key));
        Ok(())
    }
}

/// Passes each line of standard input to `each`, without its end.
pub fn each_line(mut each: impl FnMut(&[u8]) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut input = stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input
            .read_until(b'\n', &mut line)
            .map_err(|error| Failure::failed(format_args!("cannot read standard input: {error}")))?;
        if read == 0 {
            return Ok(());
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        each(text.strip_suffix(b"\r").unwrap_or(text))?;
    }
}
