//! All access to the files of backups: a sub-directory of a destination for each backup.
//!
//! The manifest is written last, under another name, persisted and renamed, so a directory without one is an
//! incomplete backup. Another kind of store would take the place of this module.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::BackupError;

pub(super) type Result<T, E = BackupError> = std::result::Result<T, E>;

/// Name of the manifest, and the one that it has until it is whole.
pub(super) const MANIFEST: &str = "manifest";
const MANIFEST_PART: &str = "manifest.part";

/// Error of an `action` on `path`.
fn cannot(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |error| BackupError::File { action, path: path.to_owned(), error }
}

fn persist_directory(path: &Path) -> Result<()> {
    File::open(path).and_then(|directory| directory.sync_all()).map_err(cannot("persist", path))
}

/// Names of the sub-directories of a destination.
///
/// # Errors
/// [`BackupError::NoBackup`] if it does not exist; a destination that cannot be read.
pub(super) fn sub_directories(destination: &Path) -> Result<Vec<String>> {
    let failed = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => BackupError::NoBackup { path: destination.to_owned() },
        _ => cannot("read", destination)(error),
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(destination).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The directory of one backup.
#[derive(Debug)]
pub(super) struct Files {
    directory: PathBuf,
}

impl Files {
    /// Those of an existing backup.
    pub fn of(destination: &Path, id: &str) -> Self {
        Self { directory: destination.join(id) }
    }

    /// Creates the directory, and the destination if it is not there.
    pub fn create(destination: &Path, id: &str) -> Result<Self> {
        match fs::create_dir(destination) {
            Ok(()) => match destination.parent() {
                Some(parent) if parent.as_os_str().is_empty() => persist_directory(Path::new("."))?,
                parent => parent.map_or(Ok(()), persist_directory)?,
            },
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(cannot("create", destination)(error)),
        }
        let files = Self::of(destination, id);
        fs::create_dir(&files.directory).map_err(cannot("create", &files.directory))?;
        persist_directory(destination)?;
        Ok(files)
    }

    pub fn path(&self) -> &Path {
        &self.directory
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Begins a new file.
    pub fn begin(&self, name: &str) -> Result<Output> {
        let path = self.path_of(name);
        let file = OpenOptions::new().write(true).create_new(true).open(&path);
        Ok(Output { file: file.map_err(cannot("create", &path))?, path })
    }

    pub fn open(&self, name: &str) -> Result<Input> {
        let path = self.path_of(name);
        let opened = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (len, file) = opened.map_err(cannot("read", &path))?;
        Ok(Input { path, file, len })
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let from = self.path_of(from);
        fs::rename(&from, self.path_of(to)).map_err(cannot("rename", &from))
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path_of(name);
        fs::remove_file(&path).map_err(cannot("remove", &path))
    }

    /// Writes the manifest, which completes the backup. All other files are persisted.
    pub fn complete(&self, manifest: &[u8]) -> Result<()> {
        persist_directory(&self.directory)?;
        let mut out = self.begin(MANIFEST_PART)?;
        out.write(manifest)?;
        out.persist()?;
        self.rename(MANIFEST_PART, MANIFEST)?;
        persist_directory(&self.directory)
    }

    /// Bytes of the manifest; `None` if there is none.
    pub fn manifest(&self) -> Result<Option<Vec<u8>>> {
        let path = self.path_of(MANIFEST);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot("read", &path)(error)),
        }
    }

    /// Removes a backup that failed. What cannot be removed stays as an incomplete backup.
    pub fn discard(self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A file that is being written.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    path: PathBuf,
}

impl Output {
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(cannot("write", &self.path))
    }

    /// Ends the file, and waits until it is on the disk.
    pub fn persist(self) -> Result<()> {
        self.file.sync_all().map_err(cannot("write", &self.path))
    }
}

/// A file that is being read, by any number of threads.
#[derive(Debug)]
pub(super) struct Input {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Input {
    /// Bytes of the file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// [`BackupError::Damaged`] if the file ends before.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, offset).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.damaged(self.len, "it is cut short"),
            _ => cannot("read", &self.path)(error),
        })
    }

    pub fn damaged(&self, offset: u64, what: &'static str) -> BackupError {
        BackupError::Damaged { path: self.path.clone(), offset, what }
    }

    pub fn other_version(&self, found: u32, known: u32) -> BackupError {
        BackupError::OtherVersion { path: self.path.clone(), found, known }
    }
}
