//! Measures the cells of an experiment and writes its files.
//!
//! If the time of all cells is virtual, they run side by side, one on each core as far as memory allows;
//! otherwise one after the other. Outcomes are in the order of the cells, whatever order they finish in. A
//! cell that fails does not affect the others.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::document::{self, Unfinished};
use super::progress::{Progress, Quiet};
use super::results::{Outcome, Results};
use super::{Cell, Experiment, Setting, markdown};
use crate::bench::BenchError;
use crate::figure;
use crate::units;

/// Time between two checks for an interrupt.
const TICK: Duration = Duration::from_millis(100);
/// Memory that is left to other programs.
const SPARE_BYTES: u64 = 512 << 20;

/// Reason why an experiment was not run, or its results could not be stored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    #[error("{name} at this scale needs {} of memory, and {} are available", units::size(*needed), units::size(*available))]
    Memory { name: &'static str, needed: u64, available: u64 },
    #[error("{name}, {cell}: {error}")]
    Cell { name: &'static str, cell: String, error: Box<BenchError> },
    #[error("{name} has no cell with {only:?} in its name; its first is {first:?}")]
    NoCell { name: &'static str, only: String, first: String },
    #[error("nothing can be written to {}: {error}", folder.display())]
    Folder { folder: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{} has no results of an experiment that a paper has", folder.display())]
    NoResults { folder: PathBuf },
    #[error("the plot cannot be rendered: {0}")]
    Picture(#[from] figure::RasterError),
    #[error("interrupted; the same command goes on where it was")]
    Interrupted,
}

impl LabError {
    /// Whether the request was impossible, as opposed to a failure during the run.
    pub fn is_bad_input(&self) -> bool {
        match self {
            LabError::Memory { .. }
            | LabError::NoCell { .. }
            | LabError::Folder { .. }
            | LabError::Read { .. }
            | LabError::NoResults { .. }
            | LabError::Cell { .. } => true,
            LabError::Write { .. } | LabError::Picture(_) | LabError::Interrupted => false,
        }
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Written {
    pub files: Vec<PathBuf>,
    pub markdown: String,
    pub cells: usize,
    /// Cells without a report, or with failures in it.
    pub troubled: usize,
}

/// What to run, and how.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions<'t> {
    /// Only the cells with this text in their names (panel, series, label of the x axis); if it is empty, all
    /// cells.
    pub only: &'t str,
    /// Number of cells that run side by side, if their time is virtual and memory allows it. `None`: one on
    /// each core. Results do not depend on it.
    pub jobs: Option<usize>,
}

/// Runs an experiment and writes its files into `folder`, which is created if missing. A later run of the
/// whole experiment reuses the reports of a part.
///
/// # Errors
/// [`LabError`]. Unless writing a result fails, no file of results has been written then. The reports of
/// finished cells are in a file of their own, with which the next run continues.
pub fn run(
    experiment: &'static Experiment,
    setting: Setting,
    options: RunOptions<'_>,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Written, LabError> {
    let RunOptions { only, jobs } = options;
    let (hundredths, records) = (experiment.hundredths, experiment.records);
    let cluster = experiment.cluster.unwrap_or(setting.cluster);
    let setting = Setting { hundredths, records, cluster, ..setting };
    let all = (experiment.cells)(&setting);
    let cells: Vec<Cell> = all.iter().filter(|cell| cell.name().contains(only)).cloned().collect();
    let left_out = all.len() - cells.len();
    if cells.is_empty() {
        let (only, first) = (only.to_owned(), all.first().map(Cell::name).unwrap_or_default());
        return Err(LabError::NoCell { name: experiment.name, only, first });
    }
    check_cells(experiment, &cells)?;
    let jobs = jobs_at_once(experiment, &cells, jobs)?;
    make_folder(folder)?;
    let mut unfinished = Unfinished::open(folder, experiment.name);
    let outcomes = perform(&cells, jobs, &mut unfinished, progress)?;
    let results = Results { experiment, setting, outcomes, left_out };
    let written = write_files(&results, folder)?;
    // After a partial run the file of reports stays: with its cells, and with others of an interrupted run.
    if left_out == 0 {
        let path = folder.join(format!("{}.unfinished.json", experiment.name));
        unfinished.remove().map_err(|error| LabError::Write { path, error })?;
    }
    Ok(written)
}

fn check_cells(experiment: &Experiment, cells: &[Cell]) -> Result<(), LabError> {
    for cell in cells {
        cell.work.validate().map_err(|error| LabError::Cell {
            name: experiment.name,
            cell: cell.name(),
            error: Box::new(error),
        })?;
    }
    Ok(())
}

/// Number of cells that run side by side, of those that were `wanted`.
fn jobs_at_once(experiment: &Experiment, cells: &[Cell], wanted: Option<usize>) -> Result<usize, LabError> {
    let needed = cells.iter().map(|cell| cell.work.memory_bytes()).max().unwrap_or(0);
    let cores = match cells.iter().all(|cell| cell.work.is_timeless()) {
        true => wanted.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from)),
        false => 1,
    };
    let Some(available) = crate::process::available_memory_bytes() else { return Ok(cores) };
    let usable = available.saturating_sub(SPARE_BYTES);
    if needed > usable {
        let needed = needed + SPARE_BYTES;
        return Err(LabError::Memory { name: experiment.name, needed, available });
    }
    Ok(cores.min((usable / needed.max(1)) as usize).clamp(1, cells.len().max(1)))
}

/// Creates the folder, and checks that files can be created in it before anything is measured.
fn make_folder(folder: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::tempfile_in(folder))
        .map(drop)
        .map_err(|error| LabError::Folder { folder: folder.to_owned(), error })
}

/// Number and outcome of a finished cell.
type Finished = (usize, Outcome);

fn perform(
    cells: &[Cell],
    jobs: usize,
    unfinished: &mut Unfinished,
    progress: &dyn Progress,
) -> Result<Vec<Outcome>, LabError> {
    let mut outcomes: Vec<Option<Outcome>> = cells
        .iter()
        .map(|cell| {
            let (report, wall_seconds) = unfinished.report_of(&cell.work)?;
            Some(Outcome { cell: cell.clone(), report: Ok(report), wall_seconds })
        })
        .collect();
    let open: Vec<usize> = (0..cells.len()).filter(|&i| outcomes[i].is_none()).collect();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut kept = Ok(());
    let (sender, receiver) = channel::<Finished>();
    let sender = Mutex::new(Some(sender));
    thread::scope(|scope| {
        for _ in 0..jobs.min(open.len()) {
            let finished = sender.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let (open, next, stop) = (&open, &next, &stop);
            scope.spawn(move || finished.map(|finished| work(cells, open, next, stop, &finished)));
        }
        drop(sender.lock().unwrap_or_else(PoisonError::into_inner).take());
        progress.cells(cells.len() - open.len(), cells.len());
        loop {
            match receiver.recv_timeout(TICK) {
                Ok((number, outcome)) => {
                    if let (Ok(report), Ok(())) = (&outcome.report, &kept) {
                        kept = unfinished.keep(&outcome.cell.work, report, outcome.wall_seconds);
                    }
                    outcomes[number] = Some(outcome);
                    progress.cells(outcomes.iter().flatten().count(), cells.len());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if progress.interrupted() {
                stop.store(true, Relaxed);
            }
        }
    });
    if stop.load(Relaxed) {
        return Err(LabError::Interrupted);
    }
    Ok(outcomes.into_iter().map(|outcome| outcome.expect("nobody stopped before all were done")).collect())
}

/// One thread's work: runs the next cell until none is left.
fn work(cells: &[Cell], open: &[usize], next: &AtomicUsize, stop: &AtomicBool, finished: &Sender<Finished>) {
    while !stop.load(Relaxed) {
        let Some(&number) = open.get(next.fetch_add(1, Relaxed)) else { return };
        let (cell, start) = (&cells[number], Instant::now());
        let report = match cell.work.run(&Quiet(stop)) {
            // An interrupted cell has no result.
            Err(BenchError::Interrupted) => return,
            report => report.map_err(|error| error.to_string()),
        };
        let wall_seconds = start.elapsed().as_secs_f64();
        // Sending fails only if the receiver is gone; then the result is not needed.
        let _ = finished.send((number, Outcome { cell: cell.clone(), report, wall_seconds }));
    }
}

fn write_files(results: &Results<'_>, folder: &Path) -> Result<Written, LabError> {
    let experiment = results.experiment;
    let mut claims = (experiment.claims)(results);
    if results.left_out > 0 {
        // A claim without a value needs a cell that was left out.
        claims.retain(|claim| claim.ours.is_some());
    }
    let figure = (experiment.figure)(results);
    let (svg, png) = (figure.svg(), figure.png()?);
    let markdown = markdown::render(results, &claims);
    let json = document::render(results, &claims);
    let mut files = Vec::new();
    for (extension, content) in
        [("json", json.as_bytes()), ("md", markdown.as_bytes()), ("svg", svg.as_bytes()), ("png", &png)]
    {
        let path = folder.join(format!("{}.{extension}", experiment.name));
        document::write(&path, content).map_err(|error| LabError::Write { path: path.clone(), error })?;
        files.push(path);
    }
    Ok(Written { files, markdown, cells: results.outcomes.len(), troubled: results.trouble_count() })
}
