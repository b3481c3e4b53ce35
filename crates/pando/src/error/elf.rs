//! Errors of Elf tables.
//!
//! The crates below do not know the name of the table whose values or images are wrong, nor which names exist. Damage
//! is an error of the index; what does not fit the table is an error of the request.

use pando_elf::Error as ElfError;
use pando_elf_remote::RemoteError;

use super::Error;

/// Whether values, conditions or options are at fault.
pub(super) fn is_bad_input(error: &ElfError) -> bool {
    !is_damage(error) && !matches!(error, ElfError::NoMemory { .. } | ElfError::FailedFile { .. })
}

/// Whether the request is at fault.
pub(super) fn is_bad_table_input(error: &RemoteError) -> bool {
    matches!(error, RemoteError::Options(_) | RemoteError::OtherColumns { .. })
}

/// Whether the bytes of a table are at fault.
fn is_damage(error: &ElfError) -> bool {
    matches!(
        error,
        ElfError::ShortHeader { .. }
            | ElfError::BadMagic
            | ElfError::UnknownFormat { .. }
            | ElfError::WrongLayout { .. }
            | ElfError::Incomplete { .. }
            | ElfError::WrongSize { .. }
            | ElfError::BadChecksum { .. }
            | ElfError::Damaged { .. }
            | ElfError::DamagedTable { .. }
            | ElfError::UnknownCode { .. }
    )
}

impl Error {
    /// The error of work on the table `name`.
    pub(crate) fn of_elf(name: &str, error: impl Into<RemoteError>) -> Self {
        match error.into() {
            RemoteError::NotAnElf { name } => Self::NotAnElf { name },
            RemoteError::Elf(error) if is_damage(&error) => {
                Self::BadIndex { name: name.to_owned(), reason: error.to_string() }
            }
            RemoteError::Elf(error) => Self::Elf(Box::new(error)),
            RemoteError::Pool(pando_pool::PoolError::UnknownIndex { name }) => {
                Self::UnknownIndex { name, existing: Vec::new() }
            }
            RemoteError::Pool(error) => error.into(),
            RemoteError::Fabric(error) => error.into(),
            error => Self::ElfTable(Box::new(error)),
        }
    }
}

impl From<ElfError> for Error {
    fn from(error: ElfError) -> Self {
        Self::Elf(Box::new(error))
    }
}
