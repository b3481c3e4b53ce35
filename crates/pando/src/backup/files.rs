//! The files of backups, wherever they are.
//!
//! A [`Store`] is a kind of place for backups: a [`Directory`], or with the feature `object-store` a bucket. It knows files by the id of
//! their backup and a name, and its errors are those of the system; here they become [`BackupError`]s that name the file. A backup
//! is complete once it has a manifest, which is written last.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use super::directory::Directory;
#[cfg(feature = "object-store")]
use super::objects::Bucket;
use crate::error::BackupError;

pub(super) type Result<T, E = BackupError> = std::result::Result<T, E>;

/// Name of the manifest.
pub(super) const MANIFEST: &str = "manifest";

/// A place for backups.
pub(super) trait Store: fmt::Debug + Send + Sync {
    /// What errors call it.
    fn place(&self) -> &Path;

    /// Names of what may be backups; an error of kind `NotFound` if the place is not there.
    fn names(&self) -> io::Result<Vec<String>>;

    /// Prepares the place for a new backup.
    fn create(&self, id: &str) -> io::Result<()>;

    /// Begins a new file.
    fn begin(&self, id: &str, name: &str) -> io::Result<Box<dyn Sink>>;

    fn open(&self, id: &str, name: &str) -> io::Result<Box<dyn Source>>;

    fn rename(&self, id: &str, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, id: &str, name: &str) -> io::Result<()>;

    /// Writes the manifest, whole or not at all. All other files have been ended.
    fn complete(&self, id: &str, manifest: &[u8]) -> io::Result<()>;

    /// Bytes of the manifest; an error of kind `NotFound` if there is none.
    fn manifest(&self, id: &str) -> io::Result<Vec<u8>>;

    /// Removes a backup that failed. What cannot be removed stays as an incomplete backup.
    fn discard(&self, id: &str);
}

/// A file that is being written.
pub(super) trait Sink: Send {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Ends the file, and waits until it outlasts a crash. Without it the file may be missing, or a part of it.
    fn end(self: Box<Self>) -> io::Result<()>;
}

/// A file that is being read, by any number of threads.
pub(super) trait Source: Send + Sync {
    fn len(&self) -> io::Result<u64>;

    /// Fills `bytes` from `offset` on; an error of kind `UnexpectedEof` if the file ends before.
    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
}

/// Where backups are: a directory or, with the feature `object-store`, a place in an object store that speaks the protocol of S3.
///
/// A text is a directory's path or `s3://BUCKET/PREFIX`. The environment names the object store and its user, in the variables
/// that Amazon's tools have: `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`; `AWS_ENDPOINT_URL` for another store, and
/// `AWS_ALLOW_HTTP=true` if that is reached without TLS.
#[derive(Clone, Debug)]
pub struct Destination(Arc<dyn Store>);

impl From<PathBuf> for Destination {
    fn from(directory: PathBuf) -> Self {
        Self(Arc::new(Directory(directory)))
    }
}

// Not for texts, which may be URLs.
impl From<&Path> for Destination {
    fn from(directory: &Path) -> Self {
        directory.to_owned().into()
    }
}

impl From<&PathBuf> for Destination {
    fn from(directory: &PathBuf) -> Self {
        directory.clone().into()
    }
}

impl From<&Destination> for Destination {
    fn from(destination: &Destination) -> Self {
        destination.clone()
    }
}

impl FromStr for Destination {
    type Err = BackupError;

    fn from_str(text: &str) -> Result<Self> {
        match text.split_once("://") {
            None => Ok(Path::new(text).into()),
            #[cfg(feature = "object-store")]
            Some(("s3", _)) => Self::in_object_store(text, &[]),
            Some((scheme, _)) => Err(BackupError::Scheme { url: text.to_owned(), scheme: scheme.to_owned() }),
        }
    }
}

impl Destination {
    /// A place in an object store, by a URL `s3://BUCKET/PREFIX`. `options` come before the environment; their names are its
    /// variables' in small letters, like `aws_endpoint_url`. Nothing is sent yet.
    ///
    /// # Errors
    /// A URL without a bucket; an unknown option; options that make no sense together.
    #[cfg(feature = "object-store")]
    pub fn in_object_store(url: &str, options: &[(&str, &str)]) -> Result<Self> {
        Ok(Self(Arc::new(Bucket::open(url, options)?)))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.place()
    }

    /// Names of what may be backups.
    ///
    /// # Errors
    /// [`BackupError::NoBackup`] if the place is not there; one that cannot be read.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let mut names = self.0.names().map_err(|error| match error.kind() {
            ErrorKind::NotFound => BackupError::NoBackup { path: self.path().to_owned() },
            _ => cannot("read", self.path())(error),
        })?;
        names.sort();
        Ok(names)
    }
}

/// Error of an `action` on `path`.
pub(super) fn cannot(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    move |error| BackupError::File { action, path: path.to_owned(), error }
}

/// The files of one backup.
#[derive(Debug)]
pub(super) struct Files {
    store: Arc<dyn Store>,
    id: String,
    path: PathBuf,
}

impl Files {
    /// Those of an existing backup.
    pub fn of(destination: &Destination, id: &str) -> Self {
        let path = destination.path().join(id);
        Self { store: Arc::clone(&destination.0), id: id.to_owned(), path }
    }

    /// Those of a new one.
    pub fn create(destination: &Destination, id: &str) -> Result<Self> {
        let files = Self::of(destination, id);
        files.store.create(id).map_err(cannot("create", &files.path))?;
        Ok(files)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn path_of(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn begin(&self, name: &str) -> Result<Output> {
        let path = self.path_of(name);
        let sink = self.store.begin(&self.id, name).map_err(cannot("create", &path))?;
        Ok(Output { sink, path })
    }

    pub fn open(&self, name: &str) -> Result<Input> {
        let path = self.path_of(name);
        let opened = self.store.open(&self.id, name).and_then(|source| Ok((source.len()?, source)));
        let (len, source) = opened.map_err(cannot("read", &path))?;
        Ok(Input { path, source, len })
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.store.rename(&self.id, from, to).map_err(cannot("rename", &self.path_of(from)))
    }

    pub fn remove(&self, name: &str) -> Result<()> {
        self.store.remove(&self.id, name).map_err(cannot("remove", &self.path_of(name)))
    }

    /// Writes the manifest, which completes the backup. All other files have been persisted.
    pub fn complete(&self, manifest: &[u8]) -> Result<()> {
        self.store.complete(&self.id, manifest).map_err(cannot("write", &self.path_of(MANIFEST)))
    }

    /// Bytes of the manifest; `None` if there is none.
    pub fn manifest(&self) -> Result<Option<Vec<u8>>> {
        match self.store.manifest(&self.id) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cannot("read", &self.path_of(MANIFEST))(error)),
        }
    }

    /// Removes a backup that failed.
    pub fn discard(self) {
        self.store.discard(&self.id);
    }
}

/// A file that is being written.
pub(super) struct Output {
    sink: Box<dyn Sink>,
    path: PathBuf,
}

impl Output {
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sink.write(bytes).map_err(cannot("write", &self.path))
    }

    /// Ends the file, and waits until it outlasts a crash.
    pub fn persist(self) -> Result<()> {
        self.sink.end().map_err(cannot("write", &self.path))
    }
}

/// A file that is being read, by any number of threads.
pub(super) struct Input {
    path: PathBuf,
    source: Box<dyn Source>,
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
        self.source.read(offset, bytes).map_err(|error| match error.kind() {
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
