//! Rows and documents on standard output.
//!
//! Rows are buffered; the caller of [`RowPrinter`] must call [`RowPrinter::finish`], which reports the last
//! errors. An error means that the reader is gone or the disk is full.

use std::io::{self, BufWriter, StdoutLock, Write, stdout};
use std::path::Path;

use serde_json::{Value, json};

use crate::args::{Form, OutputArgs};
use crate::failure::Failure;
use crate::keys::{KeySchema, bytes_json};
use crate::text;

const BUFFER: usize = 1 << 18;

/// Prints rows through a buffer, which [`RowPrinter::finish`] empties.
pub struct RowPrinter<'s> {
    schema: &'s KeySchema,
    form: Form,
    keys_only: bool,
    line: String,
    output: BufWriter<StdoutLock<'static>>,
}

impl<'s> RowPrinter<'s> {
    pub fn new(args: &OutputArgs, schema: &'s KeySchema) -> RowPrinter<'s> {
        let output = BufWriter::with_capacity(BUFFER, stdout().lock());
        RowPrinter { schema, form: args.output, keys_only: args.keys_only, line: String::new(), output }
    }

    pub fn print(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.line.clear();
        match self.form {
            Form::Text => {
                self.schema.display_to(key, &mut self.line);
                if !self.keys_only {
                    self.line.push('\t');
                    text::escape_to(value, &mut self.line);
                }
            }
            Form::Json if self.keys_only => self.line = json!({ "key": self.schema.json(key) }).to_string(),
            Form::Json => {
                self.line = json!({ "key": self.schema.json(key), "value": bytes_json(value) }).to_string();
            }
            Form::Raw => {
                self.output.write_all(key)?;
                if !self.keys_only {
                    self.output.write_all(b"\t")?;
                    self.output.write_all(value)?;
                }
            }
        }
        self.line.push('\n');
        self.output.write_all(self.line.as_bytes())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// Writes a document to a file, or to standard output for `-`.
pub fn write_document(path: &Path, document: &str) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return print(document);
    }
    std::fs::write(path, document)
        .map_err(|error| Failure::failed(format_args!("cannot write {}: {error}", path.display())))
}

/// Writes a text to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut output = stdout().lock();
    output.write_all(text.as_bytes())?;
    Ok(output.flush()?)
}

/// Writes the JSON if a file is named for it, else the text.
pub fn tell(
    json: Option<&Path>,
    document: impl FnOnce() -> Value,
    text: impl FnOnce() -> String,
) -> Result<(), Failure> {
    match json {
        Some(path) => write_document(path, &format!("{}\n", document())),
        None => print(&text()),
    }
}
