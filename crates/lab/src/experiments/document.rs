//! JSON file of an experiment, and file of the finished cells of an unfinished run.
//!
//! A file is written under a temporary name and renamed, so that no reader sees an incomplete one. An
//! unfinished run keeps the reports of its finished cells, each under a key that covers everything that
//! determines it: the bytes of the program and the configuration. A later run reuses the reports whose keys
//! match.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::Claim;
use super::cell::Work;
use super::results::Results;
use crate::process::commit;

/// Writes a file that appears completely or not at all.
pub(super) fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(content)?;
    readable_by_all(file.as_file())?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Makes the file readable by all, like other files; temporary files are readable by their owner only.
#[cfg(unix)]
fn readable_by_all(file: &fs::File) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn readable_by_all(_: &fs::File) -> io::Result<()> {
    Ok(())
}

/// All results as text.
pub(super) fn render(results: &Results<'_>, claims: &[Claim]) -> String {
    let experiment = results.experiment;
    let cells = results.outcomes.iter().map(|outcome| {
        let cell = &outcome.cell;
        let mut fields = Map::new();
        let paper: Map<String, Value> =
            cell.paper.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        for (name, value) in [
            ("panel", json!(cell.panel)),
            ("series", json!(cell.series)),
            ("x", json!(cell.x)),
            ("x_name", json!(cell.x_name)),
            ("config", cell.work.config()),
            ("paper", Value::Object(paper)),
            ("wall_seconds", json!(outcome.wall_seconds)),
        ] {
            fields.insert(name.to_owned(), value);
        }
        match &outcome.report {
            Ok(report) => fields.insert("report".to_owned(), report.clone()),
            Err(error) => fields.insert("error".to_owned(), json!(error)),
        };
        Value::Object(fields)
    });
    let head = json!({
        "experiment": experiment.name,
        "title": experiment.title,
        "source": experiment.source,
        "scale": results.setting.scale.to_string(),
        "seed": results.setting.seed,
        "commit": commit(),
        "claims": claims,
    });
    // A line for each cell, so that two runs can be compared line by line.
    let head = head.to_string();
    let cells: Vec<String> = cells.map(|cell| cell.to_string()).collect();
    format!("{},\n\"cells\":[\n{}\n]}}\n", &head[..head.len() - 1], cells.join(",\n"))
}

/// Reports of the finished cells of an unfinished run.
pub(super) struct Unfinished {
    path: PathBuf,
    /// Hash of the measuring program.
    program: u64,
    /// Report and seconds, by key.
    finished: BTreeMap<String, (Value, f64)>,
}

impl Unfinished {
    /// Reads the file that an earlier run of the experiment left in `folder`. An unreadable file counts as
    /// missing.
    pub fn open(folder: &Path, name: &str) -> Unfinished {
        let path = folder.join(format!("{name}.unfinished.json"));
        let finished =
            fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let program = std::env::current_exe().and_then(fs::read).unwrap_or_default();
        Unfinished { path, program: xxhash_rust::xxh3::xxh3_64(&program), finished }
    }

    fn key(&self, work: &Work) -> String {
        let text = format!("{:016x} {}", self.program, work.config());
        format!("{:032x}", xxhash_rust::xxh3::xxh3_128(text.as_bytes()))
    }

    pub fn report_of(&self, work: &Work) -> Option<(Value, f64)> {
        self.finished.get(&self.key(work)).cloned()
    }

    /// Stores a report for a later run.
    pub fn keep(&mut self, work: &Work, report: &Value, wall_seconds: f64) -> io::Result<()> {
        self.finished.insert(self.key(work), (report.clone(), wall_seconds));
        let text = serde_json::to_vec(&self.finished).expect("reports are JSON already");
        write(&self.path, &text)
    }

    /// Removes the file, since the run is complete.
    pub fn remove(self) -> io::Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
