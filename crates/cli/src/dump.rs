//! `pando dump`: writes all entries of an index to a file, in key order.
//!
//! The own format ([`pando_workload::dump`]) preserves the options of the index and is verified by a restore;
//! tables are for other programs. Other processes may work on the index meanwhile: an entry that is present
//! throughout is in the dump. A file gets its name when it is complete. On standard output the end of a
//! complete dump is written last.

use std::fs::File;
use std::io::{self, BufWriter, stdout};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use pando::{IndexLayout, ScanRange};
use pando_lab::units;
use pando_workload::dump::{Header, Writer};
use pando_workload::table::{TableError, TableFormat, TableWriter};

use crate::args::{LookArgs, TargetArgs};
use crate::failure::{self, Failure};
use crate::progress;
use crate::signals::Interrupt;
use crate::target::{self, Shape, Target};

const BUFFER: usize = 1 << 18;
/// Entries between two updates of the progress bar.
const STRIDE: u64 = 1024;

#[derive(Args, Debug)]
pub struct DumpArgs {
    /// The file; - is standard output
    file: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
    /// What to write [default: by the file's extension, .csv or .parquet, else pando]
    #[arg(long, value_name = "FORMAT", value_enum)]
    format: Option<DumpFormat>,
    #[command(flatten)]
    look: LookArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DumpFormat {
    /// With all that `restore` needs, and checksums
    Pando,
    /// Columns of the key, and the value; read back by `load`
    Csv,
    /// The same
    Parquet,
}

pub fn run(args: &DumpArgs) -> Result<(), Failure> {
    let format =
        args.format.unwrap_or_else(|| match args.file.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => DumpFormat::Csv,
            Some("parquet" | "pq") => DumpFormat::Parquet,
            _ => DumpFormat::Pando,
        });
    let interrupt = Interrupt::listen()?;
    let entries = target::look_at(&args.target, &args.look, |target| {
        with_file(&args.file, |file| dump(target, format, BufWriter::with_capacity(BUFFER, file), &interrupt))
    })?;
    failure::tell(format_args!("{} entries", units::count(entries)));
    Ok(())
}

/// Writes the file; it gets its name when it is complete.
fn with_file(path: &Path, write: impl FnOnce(File) -> Result<u64, WriteFailure>) -> Result<u64, Failure> {
    let failed = |failure: WriteFailure, path: &Path| match failure {
        WriteFailure::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        WriteFailure::Output(error) => {
            Failure::failed(format_args!("cannot write {}: {error}", path.display()))
        }
        WriteFailure::Other(failure) => failure,
    };
    if path.as_os_str() == "-" {
        let output = stdout().as_fd().try_clone_to_owned()?;
        return write(File::from(output)).map_err(|failure| failed(failure, Path::new("standard output")));
    }
    let is_special = std::fs::metadata(path).is_ok_and(|there| !there.is_file());
    let part = match is_special {
        true => path.to_owned(),
        false => {
            let mut name = path.as_os_str().to_owned();
            name.push(".part");
            PathBuf::from(name)
        }
    };
    let file = File::create(&part)
        .map_err(|error| Failure::bad_input(format_args!("cannot write {}: {error}", path.display())))?;
    let written = file
        .try_clone()
        .map_err(WriteFailure::Output)
        .and_then(write)
        .and_then(|entries| {
            if !is_special {
                file.sync_all()?;
                std::fs::rename(&part, path)?;
            }
            Ok(entries)
        })
        .map_err(|failure| failed(failure, path));
    if written.is_err() && !is_special {
        // The error of writing is the one to report.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// Reason why a dump was not written.
enum WriteFailure {
    Output(io::Error),
    Other(Failure),
}

impl From<io::Error> for WriteFailure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<TableError> for WriteFailure {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Io(error) => Self::Output(error),
            error => Self::Other(Failure::failed(error)),
        }
    }
}

enum Sink {
    Pando(Writer<BufWriter<File>>),
    Table(Box<TableWriter<BufWriter<File>>>),
}

impl Sink {
    fn push(&mut self, key: &[u8], value: &[u8]) -> Result<(), WriteFailure> {
        match self {
            Sink::Pando(writer) => Ok(writer.push(key, value)?),
            Sink::Table(table) => Ok(table.push(key, value)?),
        }
    }

    fn finish(self) -> Result<u64, WriteFailure> {
        Ok(match self {
            Sink::Pando(writer) => writer.finish()?.1,
            Sink::Table(table) => table.finish()?.1,
        })
    }
}

fn dump(
    target: &Target<'_>,
    format: DumpFormat,
    out: BufWriter<File>,
    interrupt: &Interrupt,
) -> Result<u64, WriteFailure> {
    let table = |out, format| TableWriter::begin(out, format, target.schema.layout());
    let mut sink = match format {
        DumpFormat::Pando => Sink::Pando(Writer::begin(out, &header(&target.shape))?),
        DumpFormat::Csv => Sink::Table(Box::new(table(out, TableFormat::Csv)?)),
        DumpFormat::Parquet => Sink::Table(Box::new(table(out, TableFormat::Parquet)?)),
    };
    let bar = progress::bar("dumping", 0);
    let (mut pushed, mut entries) = (Ok(()), 0u64);
    let session = target.session().map_err(WriteFailure::Other)?;
    session
        .scan(&ScanRange::all(), |key, value| {
            pushed = sink.push(key, value);
            entries += 1;
            if entries.is_multiple_of(STRIDE) {
                bar.set_position(entries);
            }
            pushed.is_ok() && !interrupt.wanted()
        })
        .map_err(|error| WriteFailure::Other(error.into()))?;
    bar.finish_and_clear();
    pushed?;
    interrupt.check().map_err(WriteFailure::Other)?;
    sink.finish()
}

fn header(shape: &Shape) -> Header {
    let sizes = match shape.layout {
        IndexLayout::Bytes => None,
        IndexLayout::Fixed { key_size, value_size } => Some((key_size as u32, value_size as u32)),
    };
    Header {
        name: shape.name.clone(),
        sizes,
        node_size: shape.node_size as u32,
        subtree_level: shape.subtree_level,
        boundaries: shape.boundaries.clone(),
        description: shape.description.clone(),
    }
}
