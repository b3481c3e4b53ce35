//! Which changes survive which end of a process: the table of README.md, row by row. A child process is this
//! program again with a real `main`, so that it can return from it or panic in it. Loss of power cannot be
//! tested here: `flush` and `close` wait until the system reports that the disk has the data.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use pando::{Cluster, Config, Create, Error, Index, IndexOptions};

const PLAN: &str = "PANDO_TEST_PLAN";
const PATH: &str = "PANDO_TEST_PATH";
/// Entries before the flush, and as many after it.
const HALF: u64 = 20_000;

/// The last step of a process before it ended.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    Nothing,
    /// It flushed after half of the entries.
    Flush,
    Close,
}

const BEFORE: [Before; 3] = [Before::Nothing, Before::Flush, Before::Close];

/// The ends of a process, and whether the pool is closed by them.
const ENDS: [(&str, bool); 7] = [
    ("return", true),
    ("panic in a thread", true),
    ("return while a thread has a session", false),
    ("exit", false),
    ("panic", false),
    ("abort", false),
    ("kill", false),
];

/// State in which the pool is found.
#[derive(Debug, PartialEq)]
enum Found {
    /// It can be opened, and has all entries.
    All,
    /// It is refused. Opened for inspection, it has the entries of the first half, or none can be relied on.
    Refused { has_first_half: bool },
}

fn main() -> ExitCode {
    if let (Ok(plan), Ok(path)) = (std::env::var(PLAN), std::env::var(PATH)) {
        return child(&plan, Path::new(&path));
    }
    // The relevant arguments of a test program: a filter, and `--list`.
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<_> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let is_wanted = filters.is_empty() || filters.iter().any(|filter| "survival".contains(filter.as_str()));
    if arguments.iter().any(|argument| argument == "--list") || !is_wanted {
        return ExitCode::SUCCESS;
    }
    let begun = Instant::now();
    for before in BEFORE {
        for (end, closes) in ENDS {
            let found = after(before, end);
            let expected = match before {
                Before::Close => Found::All,
                _ if closes => Found::All,
                before => Found::Refused { has_first_half: before == Before::Flush },
            };
            println!("{before:?}, {end}: {found:?}");
            assert_eq!(found, expected, "{before:?}, {end}");
        }
    }
    nothing_of_an_embedded_pool();
    println!("test result: ok, in {:.1?}", begun.elapsed());
    ExitCode::SUCCESS
}

/// Runs a child that ends as `end` says, and examines the pool it left.
fn after(before: Before, end: &str) -> Found {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("pool");
    let plan = format!("{before:?}/{end}");
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.env(PLAN, plan).env(PATH, &path).env("RUST_BACKTRACE", "0");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
    assert_eq!(lines.next().expect("it says something").expect("text"), "ready", "{before:?}, {end}");
    if end == "kill" {
        child.kill().expect("it runs");
    }
    let status = child.wait().expect("it ends");
    let is_well =
        matches!(end, "return" | "panic in a thread" | "return while a thread has a session" | "exit");
    assert_eq!(status.success(), is_well, "{before:?}, {end}: {status}");

    match Cluster::open(Config::at(&path)) {
        Ok(cluster) => {
            let index = cluster.open_index("n").expect("it is there");
            assert!(entries(&index).eq(0..2 * HALF), "{before:?}, {end}");
            assert!(cluster.check().expect("at rest").is_clean());
            Found::All
        }
        Err(Error::NotClosedCleanly { .. }) => {
            let looking =
                Cluster::open(Config::at(&path).read_only_unclean(true)).expect("it can be looked at");
            let index = looking.open_index("n").expect("it is there");
            let seen: Vec<u64> = entries(&index).collect();
            Found::Refused {
                has_first_half: seen.len() as u64 >= HALF
                    && seen.iter().copied().take(HALF as usize).eq(0..HALF),
            }
        }
        Err(error) => panic!("{before:?}, {end}: {error}"),
    }
}

fn entries(index: &Index) -> impl Iterator<Item = u64> {
    let session = index.integers().expect("session");
    let entries: Vec<_> = session.iter().collect();
    entries.into_iter().map(|entry| {
        let (key, value) = entry.expect("it can be read");
        assert_eq!(value, key * key);
        key
    })
}

fn fill(index: &Index, keys: std::ops::Range<u64>) {
    let session = index.integers().expect("session");
    for n in keys {
        assert!(session.insert(n, n * n).expect("there is room"));
    }
}

/// The memory of an embedded pool belongs to the process, so nothing remains of it; closing makes no
/// difference.
fn nothing_of_an_embedded_pool() {
    let cluster = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    fill(&cluster.create_index("n", &IndexOptions::integers()).expect("new"), 0..10);
    cluster.close().expect("closes");
    let another = Cluster::open(Config::embedded().memory(64 << 20)).expect("opens");
    assert!(another.index_names().expect("open").is_empty());
}

/// Fills a new pool and ends as the plan says.
fn child(plan: &str, path: &Path) -> ExitCode {
    let (before, end) = plan.split_once('/').expect("a plan");
    let config = Config::at(path).memory(64 << 20).create(Create::New);
    let cluster = Cluster::open(config).expect("opens");
    let index = cluster.create_index("n", &IndexOptions::integers()).expect("new");
    fill(&index, 0..HALF);
    if before == "Flush" {
        cluster.flush().expect("it can be written");
    }
    fill(&index, HALF..2 * HALF);
    if before == "Close" {
        cluster.close().expect("nothing is open");
    }
    // No session can be open after a close.
    let has_session = thread_with_session(&index, end == "return while a thread has a session");
    assert_eq!(has_session, end == "return while a thread has a session" && before != "Close");
    println!("ready");
    match end {
        "exit" => std::process::exit(0),
        "abort" => std::process::abort(),
        "panic" => panic!("in main"),
        "panic in a thread" => {
            let index = index.clone();
            let thread = thread::spawn(move || {
                let _session = index.session();
                panic!("in a thread");
            });
            assert!(thread.join().is_err());
        }
        "kill" => loop {
            thread::park();
        },
        _ => {}
    }
    ExitCode::SUCCESS
}

/// Starts a thread that keeps a session until the process ends; returns whether it has one.
fn thread_with_session(index: &Index, is_wanted: bool) -> bool {
    if !is_wanted {
        return false;
    }
    let (sender, receiver) = mpsc::channel();
    let index = index.clone();
    thread::spawn(move || {
        let session = index.session();
        sender.send(session.is_ok()).expect("main waits");
        loop {
            thread::park();
        }
    });
    receiver.recv().expect("it says")
}
