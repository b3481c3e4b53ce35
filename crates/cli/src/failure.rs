//! How a command fails: one sentence and an exit status.
//!
//! Errors of the libraries say themselves whether the input is at fault ([`pando::Error::is_bad_input`]); their texts are
//! sentences already. A broken pipe of standard output is no failure.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use pando::printable;
use pando_lab::bench::BenchError;
use pando_lab::experiments::LabError;
use pando_workload::dataset::DatasetError;

/// Why a command ended early.
#[derive(Debug)]
pub enum Failure {
    /// Usage or input is at fault: exit status 2.
    BadInput(String),
    /// Something went wrong: exit status 1.
    Failed(String),
    /// What there was to say has been said: exit status 1.
    Told,
    /// Whoever read the output has gone: nobody is interested any more.
    ReaderGone,
}

impl Failure {
    pub fn bad_input(sentence: impl Display) -> Failure {
        Failure::BadInput(sentence.to_string())
    }

    pub fn failed(sentence: impl Display) -> Failure {
        Failure::Failed(sentence.to_string())
    }

    /// What there is to say.
    pub fn sentence(&self) -> &str {
        match self {
            Failure::BadInput(sentence) | Failure::Failed(sentence) => sentence,
            Failure::Told | Failure::ReaderGone => "",
        }
    }

    /// Says the sentence and gives the exit status.
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

    /// The same with something to add.
    pub fn with(self, addition: impl Display) -> Failure {
        let add = |sentence| format!("{sentence}; {addition}");
        match self {
            Failure::BadInput(sentence) => Failure::BadInput(add(sentence)),
            Failure::Failed(sentence) => Failure::Failed(add(sentence)),
            other => other,
        }
    }
}

/// A line on standard error. The terminal may be gone, which is no reason to end before the pool is closed.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn one_line(sentence: &str) -> String {
    sentence.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<pando::Error> for Failure {
    fn from(error: pando::Error) -> Failure {
        match error.is_bad_input() {
            true => Failure::bad_input(error),
            false => Failure::failed(error),
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
