//! `pando put`: inserts a key or replaces its value.
//!
//! Standard input has lines in the format of `scan`. They are put one by one; when one is refused, the
//! previous ones are stored, and the message gives their number.

use crate::args::PutArgs;
use crate::failure::Failure;
use crate::get::each_line;
use crate::keys::KeySchema;
use crate::signals::Interrupt;
use crate::target::{self, Session};
use crate::text;

pub fn run(args: &PutArgs) -> Result<(), Failure> {
    let interrupt = Interrupt::listen()?;
    target::work_on(&args.target, |target| {
        let (session, schema) = (target.session()?, &target.schema);
        if let (Some(key), Some(value)) = (&args.key, &args.value) {
            return put(args, schema, &session, key.as_bytes(), value.as_bytes());
        }
        let mut line_number = 0u64;
        each_line(|line| {
            interrupt.check()?;
            line_number += 1;
            let tab = line.iter().position(|&byte| byte == b'\t').ok_or_else(|| {
                Failure::bad_input(format_args!("line {line_number} of the input has no TAB after its key"))
            })?;
            put(args, schema, &session, &line[..tab], &line[tab + 1..])
        })
        .map_err(|failure| match line_number {
            0 | 1 => failure,
            _ => failure.with(format_args!("{} lines before it were put", line_number - 1)),
        })
    })
}

fn put(
    args: &PutArgs,
    schema: &KeySchema,
    session: &Session,
    key: &[u8],
    value: &[u8],
) -> Result<(), Failure> {
    let (key, value) = (schema.key(key)?, text::unescape(value));
    let refused =
        |what: &str| Err(Failure::failed(format_args!("the key `{}` {what}", schema.display(&key))));
    if args.only_absent {
        return if session.insert(&key, &value)? { Ok(()) } else { refused("is there already") };
    }
    if args.only_present {
        return if session.update(&key, &value)? { Ok(()) } else { refused("is not there") };
    }
    session.put(&key, &value)?;
    Ok(())
}
