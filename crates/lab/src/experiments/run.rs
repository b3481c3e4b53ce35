//! Performs the cells of an experiment and writes its files.
//!
//! Cells whose time is virtual run side by side, one on each core as far as memory allows; all others one after the
//! other. The outcomes are in the order of the cells, whoever finished first. A cell that fails, fails alone.

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

/// Between two looks at whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// Memory that is left to everybody else.
const SPARE_BYTES: u64 = 512 << 20;

/// Why an experiment was not performed, or its results could not be kept.
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
    #[error("the plot cannot be rendered: {0}")]
    Picture(#[from] figure::RasterError),
    #[error("interrupted; the same command goes on where it was")]
    Interrupted,
}

impl LabError {
    /// Whether it was asked for what cannot be, rather than that something went wrong.
    pub fn is_bad_input(&self) -> bool {
        match self {
            LabError::Memory { .. }
            | LabError::NoCell { .. }
            | LabError::Folder { .. }
            | LabError::Cell { .. } => true,
            LabError::Write { .. } | LabError::Picture(_) | LabError::Interrupted => false,
        }
    }
}

/// What a run left.
#[derive(Clone, Debug)]
pub struct Written {
    pub files: Vec<PathBuf>,
    pub markdown: String,
    pub cells: usize,
    /// Cells without a report, or with failures in it.
    pub troubled: usize,
}

/// Performs an experiment and writes its files into `folder`, which is made if there is none. Only the cells with `only` in
/// their names (panel, series, place on the x axis) are performed; with an empty text all of them. What a part measured the whole
/// goes on with later.
///
/// # Errors
/// [`LabError`]; then no file is there that was not before, but for one with the reports of finished cells, with which
/// the next run goes on.
pub fn run(
    experiment: &'static Experiment,
    setting: Setting,
    only: &str,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<Written, LabError> {
    let (hundredths, records) = (experiment.hundredths, experiment.records);
    let setting = Setting { hundredths, records, ..setting };
    let all = (experiment.cells)(&setting);
    let cells: Vec<Cell> = all.iter().filter(|cell| cell.name().contains(only)).cloned().collect();
    let left_out = all.len() - cells.len();
    if cells.is_empty() {
        let (only, first) = (only.to_owned(), all.first().map(Cell::name).unwrap_or_default());
        return Err(LabError::NoCell { name: experiment.name, only, first });
    }
    check_cells(experiment, &cells)?;
    let jobs = jobs(experiment, &cells)?;
    make_folder(folder)?;
    let mut unfinished = Unfinished::open(folder, experiment.name);
    let outcomes = perform(&cells, jobs, &mut unfinished, progress)?;
    let results = Results { experiment, setting, outcomes, left_out };
    let written = write_files(&results, folder)?;
    // After a part the reports stay: of its cells, and of others that an interrupted run left.
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

/// How many cells can run side by side.
fn jobs(experiment: &Experiment, cells: &[Cell]) -> Result<usize, LabError> {
    let needed = cells.iter().map(|cell| cell.work.memory_bytes()).max().unwrap_or(0);
    let cores = match cells.iter().all(|cell| cell.work.is_timeless()) {
        true => thread::available_parallelism().map_or(1, usize::from),
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

/// Makes the folder, and sees whether files can be made in it before anything is measured.
fn make_folder(folder: &Path) -> Result<(), LabError> {
    std::fs::create_dir_all(folder)
        .and_then(|()| tempfile::tempfile_in(folder))
        .map(drop)
        .map_err(|error| LabError::Folder { folder: folder.to_owned(), error })
}

/// The outcome of one cell, by its number.
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

/// What one thread does: takes the next cell until there is none.
fn work(cells: &[Cell], open: &[usize], next: &AtomicUsize, stop: &AtomicBool, finished: &Sender<Finished>) {
    while !stop.load(Relaxed) {
        let Some(&number) = open.get(next.fetch_add(1, Relaxed)) else { return };
        let (cell, start) = (&cells[number], Instant::now());
        let report = match cell.work.run(&Quiet(stop)) {
            // A cell that was stopped is not done.
            Err(BenchError::Interrupted) => return,
            report => report.map_err(|error| error.to_string()),
        };
        let wall_seconds = start.elapsed().as_secs_f64();
        // Whoever listened has gone: then nobody wants it.
        let _ = finished.send((number, Outcome { cell: cell.clone(), report, wall_seconds }));
    }
}

fn write_files(results: &Results<'_>, folder: &Path) -> Result<Written, LabError> {
    let experiment = results.experiment;
    let mut claims = (experiment.claims)(results);
    if results.left_out > 0 {
        // Some need what was left out.
        claims.retain(|claim| claim.ours.is_some());
    }
    let svg = (experiment.figure)(results).svg();
    let png = figure::png(&svg)?;
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
