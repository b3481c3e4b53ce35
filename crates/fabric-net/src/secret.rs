//! The secret shared by clients and servers, and the files that hold it.
//!
//! A secret must be long enough to make guesses hopeless, and its file must be readable only by its owner.
//! Both are checked before the secret is used.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Minimum length of a secret in bytes.
pub const SECRET_MIN: usize = 16;
/// Length of the derived key in bytes.
const KEY: usize = 32;
/// Steps of the key derivation: some ten milliseconds, once per process and for each guess.
const STEPS: u32 = 100_000;
/// Maximum length of a file with a secret in bytes.
const FILE_MAX: u64 = 64 << 10;
/// Permission bits of other users to read or write a file.
const OTHERS: u32 = 0o066;

/// The secret shared by clients and servers of one cluster. Without a secret it is empty, and every client is
/// admitted.
#[derive(Clone, Default)]
pub struct Secret(Arc<Kept>);

#[derive(Default)]
struct Kept {
    bytes: Box<[u8]>,
    /// The derived key, once it was needed.
    key: OnceLock<[u8; KEY]>,
}

/// Reason why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{}: there is no secret in it", path.display())]
    Empty { path: PathBuf },
    #[error("{}: it is longer than a secret may be", path.display())]
    TooLong { path: PathBuf },
    #[error(
        "{}: others than its owner may read or write it (mode {mode:04o}); `chmod 600` makes a secret of it",
        path.display()
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("a secret has {SECRET_MIN} bytes at least, and this one has {0}")]
    TooShort(usize),
    #[error("{}: a secret has {SECRET_MIN} bytes at least, and this one has {len}", path.display())]
    ShortFile { path: PathBuf, len: usize },
}

impl Secret {
    /// Makes a secret of `bytes`, whatever their number; [`Secret::check`] tests it.
    pub fn new(bytes: impl AsRef<[u8]>) -> Self {
        Self(Arc::new(Kept { bytes: bytes.as_ref().into(), key: OnceLock::new() }))
    }

    /// Reads a secret from a file that only its owner may read and write; white space at its end is ignored.
    ///
    /// # Errors
    /// [`SecretError`] if the file cannot be read, others may read it, or it has fewer than [`SECRET_MIN`]
    /// bytes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, SecretError> {
        let path = path.as_ref().to_owned();
        let failed = |source| SecretError::Io { path: path.clone(), source };
        let file = File::open(&path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(SecretError::Open { path, mode });
        }
        let mut bytes = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_MAX {
            return Err(SecretError::TooLong { path });
        }
        let bytes = bytes.trim_ascii_end();
        match bytes.len() {
            0 => Err(SecretError::Empty { path }),
            SECRET_MIN.. => Ok(Self::new(bytes)),
            len => Err(SecretError::ShortFile { path, len }),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.bytes.is_empty()
    }

    /// Whether both are the same nonempty secret.
    pub fn is_shared_with(&self, other: &Self) -> bool {
        !self.is_empty() && self.0.bytes == other.0.bytes
    }

    /// Checks the length; an empty secret is allowed.
    ///
    /// # Errors
    /// [`SecretError::TooShort`] for a secret that can be guessed.
    pub fn check(&self) -> Result<(), SecretError> {
        match self.0.bytes.len() {
            0 | SECRET_MIN.. => Ok(()),
            short => Err(SecretError::TooShort(short)),
        }
    }

    /// The key that is proved in a handshake: PBKDF2 (RFC 8018, HMAC of SHA-256) of the secret. The first
    /// call takes a while, and so does each guess: a server sends its proof to every client. The key of an
    /// empty secret is empty.
    pub(crate) fn key(&self) -> &[u8] {
        if self.is_empty() { &[] } else { self.0.key.get_or_init(|| derive(&self.0.bytes, STEPS)) }
    }
}

/// First block of PBKDF2.
fn derive(secret: &[u8], steps: u32) -> [u8; KEY] {
    let keyed = Hmac::<Sha256>::new_from_slice(secret).expect("a key of HMAC may have any length");
    let step = |said: &[&[u8]]| -> [u8; KEY] {
        let mut mac = keyed.clone();
        said.iter().for_each(|part| mac.update(part));
        mac.finalize().into_bytes().into()
    };
    let mut last = step(&[b"secret of pando", &1u32.to_be_bytes()]);
    let mut key = last;
    for _ in 1..steps {
        last = step(&[&last]);
        key.iter_mut().zip(last).for_each(|(byte, more)| *byte ^= more);
    }
    key
}

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Secret {
    fn from(bytes: &T) -> Self {
        Self::new(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Secret(none)" } else { "Secret(..)" })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LONG_ENOUGH: &str = "sixteen bytes are";

    /// A file with these bytes and permissions, removed on drop.
    struct Written(PathBuf);

    impl Written {
        fn new(name: &str, bytes: &[u8], mode: u32) -> Self {
            let path = std::env::temp_dir().join(format!("pando-secret-{}-{name}", std::process::id()));
            fs::write(&path, bytes).expect("it can be written");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            Self(path)
        }
    }

    impl Drop for Written {
        fn drop(&mut self) {
            // It may have been removed.
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_secret_is_not_printed() {
        assert_eq!(format!("{:?}", Secret::new("hush")), "Secret(..)");
    }

    /// Computed by Python's `hashlib.pbkdf2_hmac("sha256", b"sixteen bytes are", b"secret of pando", 1000)`.
    #[test]
    fn the_key_is_that_of_pbkdf2() {
        let hex: String =
            derive(LONG_ENOUGH.as_bytes(), 1000).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "05328fab2297783e68bc5d92538dd5451b40c5dbfd2657c4505732301bbc6201");
        assert!(Secret::default().key().is_empty());
    }

    #[test]
    fn a_file_of_its_owner_is_read_without_the_end_of_its_line() {
        let file = Written::new("good", format!("{LONG_ENOUGH} \r\n").as_bytes(), 0o600);
        let secret = Secret::from_file(&file.0).expect("it is one");
        assert!(secret.is_shared_with(&Secret::new(LONG_ENOUGH)));
    }

    #[test]
    fn what_others_may_read_or_guess_is_no_secret() {
        for (name, bytes, mode, says) in [
            ("group", LONG_ENOUGH, 0o640, "others than its owner may read or write it (mode 0640)"),
            ("world", LONG_ENOUGH, 0o604, "others than its owner"),
            ("written", LONG_ENOUGH, 0o622, "others than its owner"),
            ("short", "fifteen bytes..\n", 0o600, "16 bytes at least, and this one has 15"),
            ("empty", "\n", 0o600, "there is no secret in it"),
        ] {
            let file = Written::new(name, bytes.as_bytes(), mode);
            let error = Secret::from_file(&file.0).expect_err(name).to_string();
            assert!(error.contains(says) && !error.contains('\n'), "{name}: {error}");
        }
        let gone = Secret::from_file("/nowhere/at/all").expect_err("it is not there").to_string();
        assert!(gone.starts_with("/nowhere/at/all: "), "{gone}");
        assert!(Secret::default().check().is_ok() && Secret::new("a").check().is_err());
    }
}
