//! Backups as directories of a file system.
//!
//! The manifest is written last, under another name, persisted and renamed, so a directory without one is an incomplete
//! backup. Files are persisted when they end, and the directory with their names before the manifest is written.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::files::{MANIFEST, Sink, Source, Store};

/// Name of the manifest until it is whole.
const MANIFEST_PART: &str = "manifest.part";

fn persist(path: &Path) -> io::Result<()> {
    File::open(path).and_then(|directory| directory.sync_all())
}

/// A directory whose sub-directories are backups.
#[derive(Debug)]
pub(super) struct Directory(pub PathBuf);

impl Store for Directory {
    fn place(&self) -> &Path {
        &self.0
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.0)? {
            let entry = entry?;
            if entry.path().is_dir()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn create(&self, id: &str) -> io::Result<()> {
        match fs::create_dir(&self.0) {
            Ok(()) => match self.0.parent() {
                Some(parent) if parent.as_os_str().is_empty() => persist(Path::new("."))?,
                parent => parent.map_or(Ok(()), persist)?,
            },
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        fs::create_dir(self.0.join(id))?;
        persist(&self.0)
    }

    fn begin(&self, id: &str, name: &str) -> io::Result<Box<dyn Sink>> {
        let file = OpenOptions::new().write(true).create_new(true).open(self.0.join(id).join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, id: &str, name: &str) -> io::Result<Box<dyn Source>> {
        Ok(Box::new(File::open(self.0.join(id).join(name))?))
    }

    fn rename(&self, id: &str, from: &str, to: &str) -> io::Result<()> {
        let directory = self.0.join(id);
        fs::rename(directory.join(from), directory.join(to))
    }

    fn remove(&self, id: &str, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(id).join(name))
    }

    fn complete(&self, id: &str, manifest: &[u8]) -> io::Result<()> {
        let directory = self.0.join(id);
        persist(&directory)?;
        let mut out = self.begin(id, MANIFEST_PART)?;
        out.write(manifest)?;
        out.end()?;
        self.rename(id, MANIFEST_PART, MANIFEST)?;
        persist(&directory)
    }

    fn manifest(&self, id: &str) -> io::Result<Vec<u8>> {
        fs::read(self.0.join(id).join(MANIFEST))
    }

    fn discard(&self, id: &str) {
        let _ = fs::remove_dir_all(self.0.join(id));
    }
}

impl Sink for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn end(self: Box<Self>) -> io::Result<()> {
        self.sync_all()
    }
}

impl Source for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }
}
