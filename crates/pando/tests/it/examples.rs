//! Each example runs and prints what its comments promise. `cargo test` builds the examples beside the tests.

use std::path::PathBuf;
use std::process::Command;

/// Output of an example.
fn printed(name: &str, arguments: &[&str]) -> String {
    let exe = std::env::current_exe().expect("own path");
    let profile = exe.parent().and_then(|deps| deps.parent()).expect("tests are in a folder of their own");
    let example: PathBuf = profile.join("examples").join(name);
    let output = Command::new(&example).args(arguments).output().unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo build -p pando --examples` makes it", example.display())
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn embedded() {
    let said = "\
        ash is as it was: Some(\"40 m\")\n\
        from ash up to beech: ash 40 m; aspen 30 m;\n\
        the last two: birch 30 m; beech 45 m;\n\
        beginning with b: beech 45 m; birch 30 m;\n";
    assert_eq!(printed("embedded", &[]), said);
}

#[test]
fn pool_in_a_file() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("counter.pando");
    let path = path.to_str().expect("text");
    assert_eq!(printed("pool_in_a_file", &[path]), "run 1\nrun 2\nrun 3\n");
    assert_eq!(printed("pool_in_a_file", &[path]), "run 4\nrun 5\nrun 6\n");
}

#[test]
fn threads() {
    let said = " 400 again\n1200 and\n 800 owl\n1600 the\n 400 tit\n 400 wren\n";
    assert_eq!(printed("threads", &[]), said);
}

#[test]
fn bulk_load() {
    let sum = (0..3000_u128).map(|n| n * n).sum::<u128>();
    let said = format!(
        "[Some(9), Some(2250000), None]\nat a third: Some((1000, 1000000))\n3000 squares, together {sum}\n"
    );
    assert_eq!(printed("bulk_load", &["3000"]), said);
}

#[test]
fn in_flight() {
    let said = "\
        Value(Some(107))\nWas(true)\nValue(None)\nSwapped(Ok(()))\nWas(true)\n\
        9 of 10 accounts, 3999 in all\n";
    assert_eq!(printed("in_flight", &[]), said);
}

#[test]
fn remote_client() {
    assert_eq!(printed("remote_client", &[]), "ash is a tree\naspen is a tree\noak: None\n");
}

#[test]
fn secondary_index() {
    let said = "\
        Oslo:\n  3 Aud of Oslo\n  1 Ida of Oslo\n  5 Ida of Oslo\nOs:\n  4 Liv of Os\n";
    assert_eq!(printed("secondary_index", &[]), said);
}
