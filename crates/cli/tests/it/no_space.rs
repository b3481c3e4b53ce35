//! Full file systems, read-only ones, and limits on file sizes: one sentence, exit status 1, never a signal,
//! and stored data stays.
//!
//! Most tests use a tmpfs of a few megabytes in its own mount namespace: a test starts this program again
//! inside of one. Without such a namespace the tests are skipped, except for root in CI.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Place, ran, word_list};

const INSIDE: &str = "PANDO_TEST_INSIDE";
/// Exit status of the shell if it could not mount.
const NO_MOUNT: i32 = 77;

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("/proc").uid() == 0
}

/// Reports why a test is skipped; fails where it must run.
fn skip(why: &str) {
    let must_run = is_root() && std::env::var_os("CI").is_some_and(|ci| ci == "true");
    assert!(!must_run, "this test must run as root in CI: {why}");
    eprintln!("skipped: {why}");
}

/// Runs the test `name` of this program again with its temporary files on a tmpfs of 16 MiB.
fn on_a_small_file_system(name: &str) {
    let mount = tempfile::tempdir().expect("a directory");
    // The kernel unmounts it when the last process inside has ended.
    let script =
        format!("mount -t tmpfs -o size=16m none \"$TMPDIR\" || exit {NO_MOUNT}; exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    if !is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    command.arg(std::env::current_exe().expect("own path")).args([
        "--exact",
        &format!("no_space::{name}"),
        "--nocapture",
    ]);
    let output = command.env("TMPDIR", mount.path()).env(INSIDE, name).output();
    let Ok(output) = output else { return skip("there is no unshare") };
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(NO_MOUNT) || text.starts_with("unshare: ") {
        return skip(text.trim());
    }
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stdout));
}

/// Whether this is the run inside the namespace; otherwise starts that run.
fn inside(name: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    on_a_small_file_system(name);
    false
}

/// Writes until no page is left.
fn fill(place: &Place) {
    let mut file = File::create(place.path("filling")).expect("a file");
    let page = [1; 4096];
    while file.write_all(&page).is_ok() {}
}

fn empty(place: &Place) {
    std::fs::remove_file(place.path("filling")).expect("it is there");
}

/// Expects one sentence that contains `part`, and status 1.
#[track_caller]
fn fails(place: &Place, arguments: &str, part: &str) {
    let sentence = place.refused(arguments, 1);
    assert!(sentence.contains(part), "pando {arguments}: `{part}` is not in `{sentence}`");
}

#[test]
fn a_full_file_system_is_an_error_and_room_can_be_made() {
    if !inside("a_full_file_system_is_an_error_and_room_can_be_made") {
        return;
    }
    let place = Place::new();
    place.write("words.txt", word_list(20_000));
    place.write("more.csv", (0..5_000).map(|n| format!("key{n:05},{n:01000}\n")).collect::<String>());
    let words = place.sorted("words.txt");
    for pool in ["file.pando", "directory/"] {
        let more = format!("load more.csv --no-header --key 1:str --pool {pool} --index more");
        place.ok(&format!("load words.txt --pool {pool} --index words --pool-size 256MiB"));
        fill(&place);
        let full = place.run(&more);
        assert_eq!(full.status, 1, "{full:?}");
        assert!(full.stderr.contains("is full") && full.stderr.lines().count() == 1, "{full:?}");
        // Nothing is lost, and operations without new memory work.
        place.ok(&format!("check --pool {pool}"));
        assert_eq!(place.ok(&format!("scan --pool {pool} --index words --keys-only")), words);
        place.ok(&format!("put --pool {pool} --index words pando 1"));
        place.ok(&format!("del --pool {pool} --index words --all"));
        place.ok(&format!("check --pool {pool}"));
        // The deletions made room within the chunks of the pool.
        place.ok(&format!("load words.txt --pool {pool} --index words"));
        assert_eq!(place.ok(&format!("scan --pool {pool} --index words --keys-only")), words);
        empty(&place);
        place.ok(&format!("{more} --replace"));
        place.ok(&format!("check --pool {pool}"));
        std::fs::remove_file(place.path(pool))
            .or_else(|_| std::fs::remove_dir_all(place.path(pool)))
            .expect("gone");
    }
}

#[test]
fn puts_run_into_a_full_file_system_in_the_middle() {
    if !inside("puts_run_into_a_full_file_system_in_the_middle") {
        return;
    }
    let place = Place::new();
    let line = |n: usize| format!("{:07}\t{n:0300}\n", n * 7_654_321 % 9_999_991);
    place.write("first.tsv", (0..1_000).map(line).collect::<String>());
    place.write("rest.tsv", (1_000..24_000).map(line).collect::<String>());
    let load = "--no-header --key 1:str --pool p.pando --index x --sort-memory 1MiB";
    place.ok(&format!("load first.tsv {load} --pool-size 1GiB --memory-servers 2"));
    let full = place.run(&format!("load rest.tsv {load}"));
    assert_eq!(full.status, 1, "{full:?}");
    assert!(full.stderr.contains("is full") && full.stderr.contains("rows were loaded before"), "{full:?}");
    place.ok("check --pool p.pando");
    let first = place.ok("scan --pool p.pando --index x --from 0000000 --keys-only");
    assert!((0..1_000).all(|n| first.contains(line(n).split('\t').next().expect("a key"))), "rows got lost");
    place.ok("del --pool p.pando --index x --all");
    place.ok(&format!("load first.tsv {load}"));
    place.ok("check --pool p.pando");
}

#[test]
fn a_backup_without_room_leaves_nothing_behind() {
    if !inside("a_backup_without_room_leaves_nothing_behind") {
        return;
    }
    let place = Place::new();
    place.write("words.txt", word_list(20_000));
    place.ok("load words.txt --pool p.pando --index words --pool-size 64MiB");
    place.ok("backup create backups --pool p.pando");
    fill(&place);
    fails(&place, "backup create backups --pool p.pando", "No space left");
    assert_eq!(std::fs::read_dir(place.path("backups")).expect("it is there").count(), 1);
    fails(&place, "backup restore backups --pool p.pando --index words --as more", "is full");
    assert_eq!(place.stats("p.pando")["indexes"].as_array().map(Vec::len), Some(1));
    empty(&place);
    place.ok("backup restore backups --pool p.pando --index words --as more");
    place.ok("check --pool p.pando");
}

#[test]
fn a_pool_that_cannot_be_made_leaves_nothing_behind() {
    if !inside("a_pool_that_cannot_be_made_leaves_nothing_behind") {
        return;
    }
    let place = Place::new();
    place.write("words.txt", "pando\n");
    // A file of one hole: reading it must not allocate memory.
    File::create(place.path("hole.pando")).and_then(|file| file.set_len(1 << 20)).expect("a hole");
    fill(&place);
    let listing = || {
        let entries = std::fs::read_dir(place.path(".")).expect("a directory");
        let mut names: Vec<_> = entries.map(|entry| entry.expect("an entry").file_name()).collect();
        names.sort();
        names
    };
    let before = listing();
    for pool in ["file.pando", "directory/", "two --memory-servers 2"] {
        fails(&place, &format!("create --index x --pool {pool}"), "No space left");
        fails(&place, &format!("load words.txt --index x --pool {pool}"), "No space left");
        assert_eq!(listing(), before);
    }
    assert!(place.refused("scan --pool hole.pando --index x", 2).contains("holds no pool"));
    assert!(place.refused("put --pool hole.pando --index x a b", 2).contains("holds no pool"));
    // One page is left: enough for the superblock, but not for the tables.
    let filled = place.path("filling");
    let len = std::fs::metadata(&filled).expect("it is there").len();
    File::options().write(true).open(&filled).and_then(|file| file.set_len(len - 4096)).expect("shorter");
    fails(&place, "create --index x --pool file.pando", "is full");
    assert_eq!(listing(), before);
    empty(&place);
    place.ok("create --index x --pool file.pando");
}

#[test]
fn a_read_only_file_system_can_be_looked_at_only() {
    if !inside("a_read_only_file_system_can_be_looked_at_only") {
        return;
    }
    let place = Place::new();
    place.write("words.txt", "pando\naspen\n");
    place.ok("load words.txt --pool p.pando --index words --pool-size 16MiB");
    let mount = std::env::temp_dir();
    let remount =
        Command::new("mount").args(["-o", "remount,ro"]).arg(&mount).status().expect("there is mount");
    assert!(remount.success());
    fails(&place, "put --pool p.pando --index words a b", "Read-only");
    fails(&place, "create --pool new.pando --index words", "Read-only");
    assert_eq!(place.ok("scan --pool p.pando --index words --unclean --keys-only"), "aspen\npando\n");
    // Remount for writing, so that the files can be removed.
    assert!(Command::new("mount").args(["-o", "remount,rw"]).arg(&mount).status().expect("mount").success());
    place.ok("check --pool p.pando");
}

#[test]
fn a_directory_without_permission_is_an_error() {
    let place = Place::new();
    place.write("words.txt", "pando\n");
    place.ok("load words.txt --pool p.pando --index words --pool-size 16MiB");
    let permit = |name: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(mode))
            .expect("it is ours");
    };
    permit("p.pando", 0o444);
    permit(".", 0o555);
    for (arguments, part) in [
        ("create --pool new.pando --index x", "Permission denied"),
        ("create --pool new/ --index x", "Permission denied"),
        ("put --pool p.pando --index words a b", "Permission denied"),
    ] {
        let mut command = place.command(arguments.split(' '));
        if is_root() {
            // Root may do everything, so run as `nobody`.
            command.uid(65_534).gid(65_534);
        }
        let Ok(output) = command.output() else {
            permit(".", 0o755);
            return skip("nobody may not run the program here");
        };
        let ran = ran(output);
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stderr.contains(part) && ran.stderr.lines().count() == 1, "{ran:?}");
    }
    permit(".", 0o755);
    permit("p.pando", 0o644);
    place.ok("check --pool p.pando");
}

/// Runs the program with a limit on file sizes of `blocks` times 512 bytes.
fn limited(place: &Place, blocks: u64, arguments: &str, stdout: Stdio) -> std::process::Output {
    let script = format!("ulimit -f {blocks} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(Path::new(env!("CARGO_BIN_EXE_pando"))).args(arguments.split(' '));
    command.current_dir(place.path(".")).stdin(Stdio::null()).stdout(stdout).stderr(Stdio::piped());
    command.spawn().and_then(std::process::Child::wait_with_output).expect("there is a shell")
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let place = Place::new();
    place.write("words.txt", word_list(5_000));
    let refused = limited(&place, 2048, "load words.txt --pool p.pando --index words", Stdio::piped());
    assert_eq!(refused.status.signal(), None, "{refused:?}");
    let refused = ran(refused);
    assert_eq!((refused.status, refused.stderr.lines().count()), (1, 1), "{refused:?}");
    assert!(refused.stderr.contains("may have at most 1048576 bytes"), "{refused:?}");
    assert!(!place.path("p.pando").exists());

    // The pool fits within the limit, but the output does not: the command fails, and still closes the pool.
    place.ok("load words.txt --pool p.pando --index words");
    let output = File::create(place.path("scanned")).expect("a file");
    let cut = limited(&place, 8, "scan --pool p.pando --index words", output.into());
    assert_eq!(cut.status.signal(), None, "{cut:?}");
    let cut = ran(cut);
    assert!(cut.status == 1 && cut.stderr.contains("cannot write the output"), "{cut:?}");
    place.ok("check --pool p.pando");
}
