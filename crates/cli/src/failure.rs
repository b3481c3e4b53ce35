//! Failure of a command: one sentence and an exit status.
//!
//! Errors of the libraries know whether the input is at fault ([`pando::Error::is_bad_input`]), and their
//! messages are sentences. A broken pipe on standard output is not a failure.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use pando::printable;
use pando_lab::bench::BenchError;
use pando_lab::experiments::LabError;
use pando_lab::units;
use pando_workload::dataset::DatasetError;

/// Reason why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Wrong usage or input: exit status 2.
    BadInput(String),
    /// A failed operation: exit status 1.
    Failed(String),
    /// The failure was already reported: exit status 1.
    Told,
    /// The reader of the output is gone: exit status 0.
    ReaderGone,
}

impl Failure {
    pub fn bad_input(sentence: impl Display) -> Failure {
        Failure::BadInput(sentence.to_string())
    }

    pub fn failed(sentence: impl Display) -> Failure {
        Failure::Failed(sentence.to_string())
    }

    /// Of a check that found so many, at least one.
    pub fn violations(number: u64) -> Failure {
        match number {
            1 => Failure::failed("1 violation"),
            number => Failure::failed(format_args!("{} violations", units::count(number))),
        }
    }

    /// The sentence to report; may be empty.
    pub fn sentence(&self) -> &str {
        match self {
            Failure::BadInput(sentence) | Failure::Failed(sentence) => sentence,
            Failure::Told | Failure::ReaderGone => "",
        }
    }

    /// Reports the sentence and returns the exit status.
    pub fn report(self) -> ExitCode {
        let (sentence, status) = match self {
            Failure::BadInput(sentence) => (sentence, 2),
            Failure::Failed(sentence) => (sentence, 1),
            Failure::Told => return ExitCode::from(1),
            Failure::ReaderGone => return ExitCode::SUCCESS,
        };
        tell(format_args!("pando: {}", printable(&one_line(&sentence))));
        ExitCode::from(status)
    }

    /// The failure with an addition to its sentence.
    pub fn with(self, addition: impl Display) -> Failure {
        let add = |sentence| format!("{sentence}; {addition}");
        match self {
            Failure::BadInput(sentence) => Failure::BadInput(add(sentence)),
            Failure::Failed(sentence) => Failure::Failed(add(sentence)),
            other => other,
        }
    }
}

/// Writes a line to standard error. The terminal may be gone; the command must still close its pool.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn one_line(sentence: &str) -> String {
    sentence.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<pando::Error> for Failure {
    fn from(error: pando::Error) -> Failure {
        match error {
            pando::Error::IsElf { .. } => Failure::bad_input(format_args!("{error}; use `pando elf`")),
            pando::Error::Stopped { .. } => Failure::failed(format_args!("interrupted: {error}")),
            error if error.is_bad_input() => Failure::bad_input(error),
            error => Failure::failed(error),
        }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Failure {
        match error.is_bad_input() {
            true => Failure::bad_input(error),
            false => Failure::failed(error),
        }
    }
}

impl From<LabError> for Failure {
    fn from(error: LabError) -> Failure {
        match error.is_bad_input() {
            true => Failure::bad_input(error),
            false => Failure::failed(error),
        }
    }
}

impl From<DatasetError> for Failure {
    fn from(error: DatasetError) -> Failure {
        Failure::bad_input(error)
    }
}

/// Errors of standard output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::ReaderGone,
            _ => Failure::failed(format_args!("cannot write the output: {error}")),
        }
    }
}
