//! Temporary files without names.
//!
//! A file loses its name as soon as it is open, so nothing remains of it however the process ends.
//! Errors say what it is for instead.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// The file that an operation is on, as messages call it.
#[derive(Clone, Debug)]
pub(super) enum Target {
    Temporary(PathBuf),
    Output,
}

impl Target {
    /// Error of an operation on the file.
    pub(super) fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let file = match self {
            Self::Temporary(directory) => format!("a temporary file in {}", directory.display()),
            Self::Output => "the image".to_owned(),
        };
        move |error| {
            let reason = match error.kind() {
                ErrorKind::UnexpectedEof => "it is shorter than what was written to it".to_owned(),
                _ => error.to_string(),
            };
            Error::FailedFile { action, file, reason }
        }
    }
}

/// Creates a file in `directory` and removes its name.
pub(super) fn create(directory: &Path) -> Result<(File, Target)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let target = Target::Temporary(directory.to_owned());
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!(".pando-elf-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path).map_err(target.failed("remove the name of"))?;
                return Ok((file, target));
            }
            // An earlier process of this number was killed between the two calls.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(target.failed("create")(error)),
        }
    }
}

/// A temporary file that is written from front to back and read anywhere.
pub(super) struct Scratch {
    file: File,
    target: Target,
    len: u64,
}

impl Scratch {
    pub(super) fn create(directory: &Path) -> Result<Self> {
        let (file, target) = create(directory)?;
        Ok(Self { file, target, len: 0 })
    }

    /// Number of bytes written.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.len).map_err(self.target.failed("write"))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Reads the bytes from `at` on.
    pub(super) fn read(&self, at: u64, bytes: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(bytes, at).map_err(self.target.failed("read"))
    }

    /// Error of bytes that cannot be what was written.
    pub(super) fn damaged(&self) -> Error {
        self.target.failed("read")(std::io::Error::other("it was changed by another program"))
    }
}

#[cfg(test)]
impl Scratch {
    /// A scratch on a file that the test prepared.
    pub(super) fn on(file: File) -> Self {
        Self { file, target: Target::Temporary("/test".into()), len: 0 }
    }

    pub(super) fn cut(&self, len: u64) {
        self.file.set_len(len).expect("the file can be cut");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_and_a_missing_directory_are_errors() {
        let full = OpenOptions::new().write(true).open("/dev/full").expect("Linux has this device");
        let message = Scratch::on(full).append(&[1]).map_err(|error| error.to_string());
        let reason = "cannot write a temporary file in /test: No space left on device (os error 28)";
        assert_eq!(message, Err(reason.into()));
        let message = Scratch::create(Path::new("/nowhere")).map(|_| ()).map_err(|error| error.to_string());
        let reason = "cannot create a temporary file in /nowhere: No such file or directory (os error 2)";
        assert_eq!(message, Err(reason.into()));
    }
}
