//! The help: its examples are run verbatim.

use std::path::Path;
use std::process::Command;

use crate::common::Place;

#[test]
fn the_examples_of_the_help_run_as_written() {
    let place = Place::new();
    let help = place.ok("help");
    let examples: Vec<&str> = help
        .lines()
        .skip_while(|line| *line != "Examples:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .collect();
    assert!(examples.len() > 10, "{help}");
    let program = Path::new(env!("CARGO_BIN_EXE_pando"));
    let mut path = program.parent().expect("it is in a directory").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    for example in examples {
        let ran = Command::new("sh")
            .args(["-ec", example])
            .current_dir(place.path(""))
            .env("PATH", &path)
            .output()
            .expect("there is a shell");
        assert!(ran.status.success(), "{example}: {}", String::from_utf8_lossy(&ran.stderr));
    }
}

#[test]
fn every_command_has_help_and_the_version_is_known() {
    let place = Place::new();
    for command in [
        "bench",
        "load",
        "create",
        "drop",
        "get",
        "put",
        "del",
        "scan",
        "backup",
        "backup create",
        "elf",
        "elf build",
        "elf query",
        "stats",
        "check",
        "calibrate",
        "simulate",
    ] {
        assert!(place.ok(&format!("help {command}")).contains("Usage: pando"), "{command}");
    }
    assert!(place.ok("--version").starts_with("pando "));
}
