//! Provisional codes of a build on disk, until all values are known.
//!
//! A build that must not take more memory than it is given writes the codes of its rows to a temporary file, chunk by
//! chunk, each column by column. The file has no name, so it goes away with the build, however that ends.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use crate::error::{Error, Result};

const BUFFER: usize = 16 << 10;

/// Error of a temporary file.
pub(super) fn failed(error: io::Error) -> Error {
    Error::Elf(Box::new(pando_elf::Error::FailedFile {
        action: "use",
        file: format!("a temporary file in {}", std::env::temp_dir().display()),
        reason: error.to_string(),
    }))
}

/// A file without a name in the system's directory for temporary files.
pub(super) fn temporary_file() -> Result<File> {
    let create = |path: &Path| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
        std::fs::remove_file(path).map(|()| file)
    };
    let mut number = 0_u64;
    loop {
        let name = format!("pando-elf-{}-{number}", std::process::id());
        match create(&std::env::temp_dir().join(name)) {
            // Left by an earlier process with the same number.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < 1_000_000 => number += 1,
            created => return created.map_err(failed),
        }
    }
}

/// Rows that were written.
#[derive(Debug)]
pub(super) struct Spill {
    file: BufWriter<File>,
    /// Rows of each chunk.
    chunks: Vec<usize>,
}

impl Spill {
    pub fn create() -> Result<Self> {
        Ok(Self { file: BufWriter::with_capacity(BUFFER, temporary_file()?), chunks: Vec::new() })
    }

    /// Appends rows, column by column.
    pub fn push(&mut self, columns: &[Vec<u32>]) -> Result<()> {
        for codes in columns {
            for part in codes.chunks(1 << 14) {
                let bytes: Vec<u8> = part.iter().flat_map(|code| code.to_le_bytes()).collect();
                self.file.write_all(&bytes).map_err(failed)?;
            }
        }
        self.chunks.push(columns.first().map_or(0, Vec::len));
        Ok(())
    }

    /// Calls `take` with each chunk, in the order in which they were written.
    pub fn read(&mut self, columns: usize, mut take: impl FnMut(Vec<Vec<u32>>) -> Result<()>) -> Result<()> {
        self.file.flush().map_err(failed)?;
        let mut file = self.file.get_ref();
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let mut input = BufReader::with_capacity(BUFFER, file);
        for &rows in &self.chunks {
            let mut chunk = Vec::with_capacity(columns);
            for _ in 0..columns {
                let mut bytes = vec![0; rows * 4];
                input.read_exact(&mut bytes).map_err(failed)?;
                let (codes, _) = bytes.as_chunks::<4>();
                chunk.push(codes.iter().map(|&code| u32::from_le_bytes(code)).collect());
            }
            take(chunk)?;
        }
        Ok(())
    }
}
