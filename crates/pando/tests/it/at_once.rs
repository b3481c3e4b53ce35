//! Two processes, and two threads, create the same pool and the same index at the same time: one of them
//! does, the other one finds it. The test starts this binary twice more and gives both the same orders
//! through pipes.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use pando::{Cluster, Config, Create, Error, IndexOptions, OpenOptions, Ownership};

const ROUNDS: usize = 60;
const NUMBER: &str = "PANDO_TEST_NUMBER";

/// A further process, which receives one order per line.
struct Other {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(number: usize) -> Other {
        let exe = std::env::current_exe().expect("own path");
        let mut process = Command::new(exe)
            .args(["--exact", "at_once::a_further_process", "--nocapture"])
            .env(NUMBER, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut other = Other { process, orders, answers };
        assert_eq!(other.answer(), "ready");
        other
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").expect("it listens");
    }

    /// The next answer among the output of the test harness.
    fn answer(&mut self) -> String {
        let mut lines = self.answers.by_ref().map(|line| line.expect("text"));
        let answer = lines.find_map(|line| line.split_once("answer: ").map(|(_, answer)| answer.to_owned()));
        answer.expect("the process ended")
    }

    fn end(self) {
        let Other { mut process, orders, answers } = self;
        drop(orders);
        answers.for_each(drop);
        assert!(process.wait().expect("runs").success());
    }
}

#[test]
fn a_further_process() {
    let Ok(number) = std::env::var(NUMBER) else { return };
    let number = number.parse().expect("a number");
    println!("answer: ready");
    for order in std::io::stdin().lines() {
        let order = order.expect("text");
        let (what, path) = order.split_once(' ').expect("what and where");
        println!("answer: {}", carry_out(what, Path::new(path), number));
    }
}

/// Outcome of an order: `made`, `found`, or an error.
fn carry_out(what: &str, path: &Path, number: usize) -> String {
    let done = match what {
        "new" => {
            Cluster::open(config(path, Create::New)).and_then(|cluster| cluster.close()).map(|()| "made")
        }
        "replace" => {
            Cluster::open(config(path, Create::Replace)).and_then(|cluster| cluster.close()).map(|()| "made")
        }
        "index" => use_index(path, Create::IfMissing, number),
        "look" => look_until_there(path, number),
        _ => panic!("what is {what}?"),
    };
    done.map_or_else(|error| format!("failed: {error}"), str::to_owned)
}

fn config(path: &Path, create: Create) -> Config {
    let servers = if path.extension().is_some() { 1 } else { 2 };
    Config::at(path).memory(4 << 20).memory_servers(servers).cache(64 << 10).create(create)
}

/// Tries to open the pool until it exists. An incomplete pool is never seen.
fn look_until_there(path: &Path, number: usize) -> Result<&'static str, Error> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        match use_index(path, Create::Never, number) {
            Err(error) if error.to_string().contains("there is no pool") && Instant::now() < until => {}
            done => return done,
        }
    }
}

/// Opens or creates the pool and the index, and puts one key of its half.
fn use_index(path: &Path, create: Create, number: usize) -> Result<&'static str, Error> {
    let cluster = Cluster::open(config(path, create))?;
    let own = Ownership::Partitions(vec![number]);
    let options = IndexOptions::bytes().boundaries(vec![b"1".to_vec()]).own(own.clone());
    let (what, index) = match cluster.create_index("x", &options) {
        Ok(index) => ("made", index),
        Err(Error::IndexExists { .. }) => {
            ("found", cluster.open_index_with("x", &OpenOptions::default().own(own))?)
        }
        Err(error) => return Err(error),
    };
    index.session()?.put(format!("{number}").as_bytes(), b"here")?;
    drop(index);
    cluster.close()?;
    Ok(what)
}

/// Gives both the order at once; returns their answers, sorted.
fn both(others: &mut [Other; 2], order: &str) -> [String; 2] {
    others.iter_mut().for_each(|other| other.order(order));
    let mut answers = others.each_mut().map(Other::answer);
    answers.sort();
    answers
}

fn both_keys_are_there(path: &Path) {
    let cluster = Cluster::open(config(path, Create::Never)).expect("closed by both");
    let session = cluster.open_index("x").expect("there").session().expect("a session");
    let keys: Vec<_> = session.iter().map(|entry| entry.expect("sound").0).collect();
    assert_eq!(keys, [b"0", b"1"]);
    drop(session);
    let report = cluster.check().expect("alone");
    assert!(report.is_clean(), "{:?}", report.violations);
    cluster.close().expect("closes");
}

#[test]
fn one_process_makes_what_both_want() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut others = [Other::start(0), Other::start(1)];
    for round in 0..ROUNDS {
        // Alternates between a file and a directory.
        let name = if round % 2 == 0 { format!("{round}.pando") } else { format!("{round}") };
        let path = directory.path().join(name);
        let order = |what: &str| format!("{what} {}", path.display());
        assert_eq!(both(&mut others, &order("index")), ["found", "made"], "round {round}");
        both_keys_are_there(&path);
        let [refused, made] = both(&mut others, &order("new"));
        assert!(refused.contains("already") && made.contains("already"), "{refused}, {made}");
        // Both may succeed, one after the other, or one finds the other one attached.
        let replaced = both(&mut others, &order("replace"));
        assert!(replaced.contains(&"made".to_owned()), "{replaced:?}");
        let free = path.with_extension("free");
        let order = format!("new {}", free.display());
        let [refused, made] = both(&mut others, &order);
        assert!(refused.contains("already") && made == "made", "round {round}: {refused}, {made}");
    }
    others.into_iter().for_each(Other::end);
}

#[test]
fn who_only_opens_waits_for_who_makes() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut others = [Other::start(0), Other::start(1)];
    for round in 0..ROUNDS {
        let path = directory.path().join(format!("{round}"));
        others[1].order(&format!("look {}", path.display()));
        others[0].order(&format!("index {}", path.display()));
        let mut answers = others.each_mut().map(Other::answer);
        answers.sort();
        assert_eq!(answers, ["found", "made"], "round {round}");
        both_keys_are_there(&path);
    }
    others.into_iter().for_each(Other::end);
}

#[test]
fn one_thread_makes_what_several_want() {
    let directory = tempfile::tempdir().expect("temporary directory");
    for round in 0..ROUNDS {
        let path = directory.path().join(format!("{round}.pando"));
        let start = std::sync::Barrier::new(2);
        let mut done = std::thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let (path, start) = (&path, &start);
                scope.spawn(move || {
                    start.wait();
                    carry_out("index", path, number)
                })
            });
            threads.map(|thread| thread.join().expect("no panic"))
        });
        done.sort();
        assert_eq!(done, ["found", "made"], "round {round}");
        both_keys_are_there(&path);
    }
}
