//! Rules of the project that a program can check: crate dependencies, sizes, headers, places and notes of
//! unsafe code, forbidden words. Each violation is one line.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use source::{Source, files, find_word};

/// Project crates that a crate may depend on: only lower ones. Only the facade names concrete fabrics, and
/// indexes never see an executor.
const ARROWS: &[(&str, &[&str])] = &[
    ("pando-workload", &[]),
    ("pando-fabric", &[]),
    ("pando-member", &["pando-fabric"]),
    ("pando-replica", &["pando-fabric"]),
    ("pando-rt", &["pando-fabric"]),
    ("pando-fabric-local", &["pando-fabric"]),
    // Its memory servers offer regions of their process.
    ("pando-fabric-net", &["pando-fabric", "pando-fabric-local", "pando-member", "pando-replica"]),
    // Pairing, fences, and everything except one-sided verbs and calls use connections.
    ("pando-fabric-verbs", &["pando-fabric", "pando-fabric-local", "pando-fabric-net"]),
    ("pando-sim", &["pando-fabric"]),
    ("pando-log", &["pando-fabric"]),
    ("pando-pool", &["pando-fabric"]),
    ("pando-cache", &["pando-fabric"]),
    ("pando-dex", &["pando-fabric", "pando-log", "pando-pool", "pando-cache"]),
    ("pando-sherman", &["pando-fabric", "pando-pool"]),
    ("pando-smart", &["pando-fabric", "pando-pool"]),
    ("pando-elf", &["pando-fabric"]),
    ("pando-elf-remote", &["pando-elf", "pando-fabric", "pando-pool"]),
    (
        "pando",
        &[
            "pando-fabric",
            "pando-rt",
            "pando-fabric-local",
            "pando-fabric-net",
            "pando-fabric-verbs",
            "pando-replica",
            "pando-log",
            "pando-pool",
            "pando-cache",
            "pando-dex",
            "pando-elf",
            "pando-elf-remote",
            "pando-workload",
        ],
    ),
    (
        "pando-lab",
        &[
            "pando",
            "pando-fabric",
            "pando-rt",
            "pando-fabric-local",
            "pando-sim",
            "pando-replica",
            "pando-pool",
            "pando-log",
            "pando-cache",
            "pando-dex",
            "pando-sherman",
            "pando-smart",
            "pando-elf",
            "pando-elf-remote",
            "pando-workload",
        ],
    ),
    // Its operation port is a server like a memory server's.
    ("pando-server", &["pando", "pando-fabric-net", "pando-fabric"]),
    ("pando-lab-peers", &["pando", "pando-rt", "pando-fabric", "pando-elf", "pando-workload"]),
    ("pando-cli", &["pando", "pando-lab", "pando-server", "pando-workload"]),
];

/// External crates that only some project crates may use.
const RESERVED: &[(&str, &[&str])] = &[
    // The facade has it for object stores only.
    ("tokio", &["pando-server", "pando"]),
    ("object_store", &["pando"]),
    ("rdma-mummy-sys", &["pando-fabric-verbs"]),
    ("anyhow", &["pando-cli", "pando-server", "pando-lab-peers"]),
    ("scc", &["pando-lab-peers"]),
    ("masstree", &["pando-lab-peers"]),
    ("congee", &["pando-lab-peers"]),
    ("bf-tree", &["pando-lab-peers"]),
    ("concurrent-map", &["pando-lab-peers"]),
    ("fjall", &["pando-lab-peers"]),
    ("kiddo", &["pando-lab-peers"]),
    ("redb", &["pando-lab-peers"]),
    ("roaring", &["pando-lab-peers"]),
    ("rstar", &["pando-lab-peers"]),
    ("sled", &["pando-lab-peers"]),
    ("crossbeam-skiplist", &["pando-lab-peers", "pando-sherman"]),
];

/// The only files with unsafe code, by crate; all other crates forbid it.
const UNSAFE_FILES: &[(&str, &[&str])] = &[
    ("crates/cache", &["src/arena.rs", "src/rank.rs", "tests/it/loom_latch.rs"]),
    ("crates/elf", &["src/kernel.rs", "src/memory.rs", "src/store/mapping.rs"]),
    ("crates/fabric-local", &["src/sys.rs"]),
    (
        "crates/fabric-verbs",
        &[
            "src/client/calls.rs",
            "src/client/link.rs",
            "src/completions.rs",
            "src/device.rs",
            "src/offer/caller.rs",
            "src/queue.rs",
            "src/receives.rs",
        ],
    ),
    ("crates/rt", &[]),
];

/// Crates that are programs, not libraries.
const PROGRAMS: &[&str] = &["crates/cli", "crates/lab-peers", "crates/server"];

const FILE_LINES_MAX: usize = 1_000;
const FUNCTION_LINES_MAX: usize = 70;
/// Number of lines of text in the header of a module.
const HEADER_LINES: std::ops::RangeInclusive<usize> = 3..=15;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the root of the repository")
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

fn sources() -> Vec<Source> {
    let read = |path: PathBuf| {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Source::new(relative(&path), text)
    };
    let all: Vec<_> = files(&root(), &["rs"]).into_iter().map(read).collect();
    assert!(all.len() > 50 && all.iter().any(|source| is_in_src(&source.path)), "the sources were not found");
    all
}

/// `crates/x` of a path inside it.
fn crate_of(path: &str) -> Option<&str> {
    let mut slashes = path.match_indices('/').map(|(at, _)| at);
    match path.split('/').next()? {
        "crates" => slashes.nth(1).map(|end| &path[..end]),
        "bindings" => slashes.nth(1).map(|end| &path[..end]),
        _ => None,
    }
}

fn is_in_src(path: &str) -> bool {
    crate_of(path).is_some_and(|home| path[home.len()..].starts_with("/src/"))
}

/// Path prefixes of source files that contain only tests, according to their `mod` declarations.
fn test_files(all: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for source in all.iter().filter(|source| is_in_src(&source.path)) {
        let folder = source.path.strip_suffix("/mod.rs").or(source.path.strip_suffix("/lib.rs"));
        let folder = folder.unwrap_or(source.path.trim_end_matches(".rs"));
        for name in source.test_modules() {
            found.extend([format!("{folder}/{name}.rs"), format!("{folder}/{name}/")]);
        }
    }
    found
}

fn assert_none(violations: Vec<String>) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

/// Name and normal dependencies of each package of the workspace.
fn packages() -> Vec<(String, Vec<String>)> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"])
        .arg(root().join("Cargo.toml"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let name = |value: &serde_json::Value| value["name"].as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    packages
        .iter()
        .map(|package| {
            let dependencies = package["dependencies"].as_array().expect("dependencies");
            let normal = dependencies.iter().filter(|dependency| dependency["kind"].is_null());
            (name(package), normal.map(name).collect())
        })
        .collect()
}

#[test]
fn crates_depend_downwards_only() {
    let mut wrong = Vec::new();
    for (package, dependencies) in packages() {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package) else {
            wrong.push(format!("{package}: which crates may it depend on? Say so in the table of this test"));
            continue;
        };
        for dependency in dependencies {
            let ours = dependency == "pando" || dependency.starts_with("pando-");
            if ours && !allowed.contains(&dependency.as_str()) {
                wrong.push(format!("{package} must not depend on {dependency}"));
            }
            let reserved = RESERVED.iter().find(|(name, _)| *name == dependency);
            if reserved.is_some_and(|(_, users)| !users.contains(&package.as_str())) {
                wrong.push(format!("{package} must not depend on {dependency}"));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn the_table_of_arrows_has_no_circles() {
    for (i, (name, below)) in ARROWS.iter().enumerate() {
        for dependency in *below {
            let at = ARROWS.iter().position(|(name, _)| name == dependency);
            assert!(
                at.is_some_and(|at| at < i),
                "{name} may depend on {dependency}, which does not stand above it"
            );
        }
    }
}

/// The rooms of a crate, which are the modules directly below `src`, and the rooms that each imports.
type Rooms = BTreeMap<String, BTreeSet<String>>;

fn rooms(home: &str, all: &[Source], tests: &[String]) -> Rooms {
    let inside = format!("{home}/src/");
    let room_of = |path: &str| {
        let room = path.strip_prefix(&inside)?.split('/').next()?.trim_end_matches(".rs").to_owned();
        (!matches!(room.as_str(), "lib" | "main")).then_some(room)
    };
    let exported = exported(all, &inside);
    let of_crate = all.iter().filter(|source| !tests.iter().any(|test| source.path.starts_with(test)));
    let mut rooms = Rooms::new();
    for (source, room) in of_crate.filter_map(|source| Some((source, room_of(&source.path)?))) {
        let imported = rooms.entry(room).or_default();
        let code: String = source.lines_before_tests().map(|(_, line)| line).collect();
        code.split("crate::").skip(1).for_each(|path| imported.extend(first_names(path)));
    }
    for imported in rooms.values_mut() {
        imported.extend(imported.iter().filter_map(|name| exported.get(name).cloned()).collect::<Vec<_>>());
    }
    let known: BTreeSet<_> = rooms.keys().cloned().collect();
    for (room, imported) in &mut rooms {
        imported.retain(|other| other != room && known.contains(other));
    }
    rooms
}

/// Names that the root of a crate exports, with the room of each.
fn exported(all: &[Source], inside: &str) -> BTreeMap<String, String> {
    let roots = all.iter().filter(|source| source.path == format!("{inside}lib.rs"));
    let mut exported = BTreeMap::new();
    for statement in roots.flat_map(|root| root.code.split("pub use ").skip(1)) {
        let path = statement.split(';').next().unwrap_or_default().trim_start_matches("crate::");
        let mut names =
            path.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty());
        let room = names.next().unwrap_or_default().to_owned();
        exported.extend(names.map(|name| (name.to_owned(), room.clone())));
    }
    exported
}

/// The first names of a path, or of the paths in braces, after `crate::`.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| path.chars().take_while(|&c| c.is_alphanumeric() || c == '_').collect::<String>();
    let Some(group) = path.strip_prefix('{') else { return vec![name(path)] };
    let mut depth = 0;
    let mut names = Vec::new();
    for part in group.split_inclusive(['{', '}', ',']) {
        if depth == 0 {
            names.push(name(part.trim_start()));
        }
        match part.chars().last() {
            Some('{') => depth += 1,
            Some('}') if depth == 0 => break,
            Some('}') => depth -= 1,
            _ => {}
        }
    }
    names
}

/// The rooms on a cycle, or between two cycles.
fn tangled(mut rooms: Rooms) -> Vec<String> {
    loop {
        let imported: BTreeSet<_> = rooms.values().flatten().cloned().collect();
        let count = rooms.len();
        rooms.retain(|room, below| !below.is_empty() && imported.contains(room));
        let left: BTreeSet<_> = rooms.keys().cloned().collect();
        rooms.values_mut().for_each(|below| below.retain(|room| left.contains(room)));
        if rooms.len() == count {
            return rooms.into_keys().collect();
        }
    }
}

#[test]
fn rooms_do_not_import_each_other_in_circles() {
    let all = sources();
    let tests = test_files(&all);
    let homes: BTreeSet<_> = all.iter().filter_map(|source| crate_of(&source.path)).collect();
    let mut wrong = Vec::new();
    for home in homes {
        let circle = tangled(rooms(home, &all, &tests));
        if !circle.is_empty() {
            wrong.push(format!("{home}: {} import each other in a circle", circle.join(", ")));
        }
    }
    assert_none(wrong);
}

#[test]
fn a_circle_of_rooms_is_found() {
    assert_eq!(first_names("smo::cut::{Cut, Pending};use x"), ["smo"]);
    assert_eq!(first_names("{smo::{cut, merge}, tree, node::Node};use x::y"), ["smo", "", "tree", "node"]);
    let rooms = |arrows: &[(&str, &str)]| {
        let mut rooms = Rooms::new();
        for (from, to) in arrows {
            rooms.entry((*to).to_owned()).or_default();
            rooms.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        rooms
    };
    let house = [("ops", "smo"), ("ops", "descent"), ("smo", "descent"), ("descent", "node")];
    assert!(tangled(rooms(&house)).is_empty());
    let circle = [house.as_slice(), &[("descent", "smo")]].concat();
    assert_eq!(tangled(rooms(&circle)), ["descent", "smo"]);
}

#[test]
fn every_crate_takes_lints_and_versions_from_the_workspace() {
    let manifests = files(&root().join("crates"), &["toml"]);
    let manifests: Vec<_> = manifests.iter().filter(|path| path.ends_with("Cargo.toml")).collect();
    assert!(!manifests.is_empty());
    let mut wrong = Vec::new();
    for path in manifests {
        let text = std::fs::read_to_string(path).expect("a readable manifest");
        for needed in
            ["[lints]\nworkspace = true", "edition.workspace", "rust-version.workspace", "license.workspace"]
        {
            if !text.contains(needed) {
                wrong.push(format!("{}: lacks `{}`", relative(path), needed.replace('\n', " ")));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn files_and_functions_are_short() {
    let mut wrong = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            wrong.push(format!("{}: {lines} lines; at most {FILE_LINES_MAX}", source.path));
        }
        for (line, name, length) in source.functions() {
            if length > FUNCTION_LINES_MAX {
                wrong.push(format!(
                    "{}:{line}: `{name}` has {length} lines; at most {FUNCTION_LINES_MAX}",
                    source.path
                ));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn no_parameter_is_a_tuple() {
    let mut wrong = Vec::new();
    for source in sources() {
        for (line, name) in source.tuple_parameters() {
            wrong.push(format!("{}:{line}: a parameter of `{name}` is a tuple", source.path));
        }
    }
    assert_none(wrong);
}

#[test]
fn a_parameter_that_is_a_tuple_is_found() {
    let tuples = "fn one((a, b): (u8, u8)) {}\nfn two<F: Fn(u8) -> u8>(f: F, x: &'a mut (u8, [u8; 2])) {}\n\
                  trait T {\n    fn three(\n        &self,\n        all @ S::A { .. }: (S,),\n    );\n}\n";
    let found = Source::new("x.rs".into(), tuples.into()).tuple_parameters();
    assert_eq!(found, [(1, "one".into()), (2, "two".into()), (4, "three".into())]);
    let others = "fn one(a: &[(u8, u8)], b: (), c: &(dyn Fn(u8, u8) + Sync)) -> (u8, u8) {}\n\
                  fn two(f: fn((u8, u8)), g: impl Fn(u8, u8) -> (u8, u8)) {}\n// fn three(a: (u8, u8)) {}\n";
    assert_eq!(Source::new("x.rs".into(), others.into()).tuple_parameters(), []);
}

#[test]
fn every_module_says_what_it_is() {
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| is_in_src(&source.path)) {
        let header = source.header_lines();
        if !HEADER_LINES.contains(&header) {
            wrong.push(format!("{}: a header of {header} lines, not {HEADER_LINES:?}", source.path));
        }
    }
    assert_none(wrong);
}

#[test]
fn unsafe_code_stands_in_few_files_and_gives_reasons() {
    let mut wrong = Vec::new();
    for source in sources() {
        let home = crate_of(&source.path);
        let allowed = UNSAFE_FILES.iter().find(|(name, _)| Some(*name) == home);
        let is_root = source.path.ends_with("src/lib.rs") || source.path.ends_with("src/main.rs");
        if is_root && allowed.is_none() && !source.code.contains("#![forbid(unsafe_code)]") {
            wrong.push(format!("{}: lacks #![forbid(unsafe_code)]", source.path));
        }
        let may = allowed
            .is_some_and(|(home, files)| files.iter().any(|file| source.path == format!("{home}/{file}")));
        let (text, code): (Vec<_>, Vec<_>) = (source.text.lines().collect(), source.code.lines().collect());
        for (i, line) in code.iter().enumerate() {
            if find_word(line, "unsafe").is_none() {
                continue;
            }
            if !may {
                wrong.push(format!(
                    "{}:{}: unsafe code in a file that the tidy test does not list",
                    source.path,
                    i + 1
                ));
            } else if !has_safety_note(&text, &code, i) {
                wrong.push(format!("{}:{}: unsafe code without a SAFETY note above it", source.path, i + 1));
            }
        }
    }
    assert_none(wrong);
}

/// Whether the statement around line `i` has a note above it.
fn has_safety_note(text: &[&str], code: &[&str], i: usize) -> bool {
    for at in (0..i).rev() {
        let note = text[at].to_uppercase().contains("SAFETY") && code[at].trim().is_empty();
        if note {
            return true;
        }
        let ends_statement = code[at].trim_end().ends_with([';', '{', '}']);
        if ends_statement || text[at].trim().is_empty() {
            return false;
        }
    }
    false
}

#[test]
fn libraries_do_not_unwrap() {
    let all = sources();
    let tests = test_files(&all);
    let mut wrong = Vec::new();
    for source in all.iter().filter(|source| is_in_src(&source.path)) {
        let program = crate_of(&source.path).is_some_and(|home| PROGRAMS.contains(&home));
        if program || tests.iter().any(|test| source.path.starts_with(test)) {
            continue;
        }
        for (line, code) in source.lines_before_tests() {
            if code.contains(".unwrap()") {
                wrong
                    .push(format!("{}:{line}: unwrap in a library; `expect` says why it holds", source.path));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn no_word_stands_here_that_does_not_belong_here() {
    // In two parts, since this file is checked as well.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat());
    let paths = [["/work", "/"], ["/root", "/"]].map(|parts| parts.concat());
    let mut wrong = Vec::new();
    let mut all = files(&root(), &["rs", "md", "toml", "sh", "py", "c", "h", "yml"]);
    all.extend([root().join(".ci/run")].into_iter().filter(|path| path.is_file()));
    for path in all {
        let text = String::from_utf8_lossy(&std::fs::read(&path).expect("a readable file")).into_owned();
        for (i, line) in text.lines().enumerate() {
            let mark = marks.iter().find(|mark| find_word(line, mark).is_some());
            let place = paths.iter().find(|place| line.contains(place.as_str()));
            if let Some(word) = mark.or(place) {
                wrong.push(format!("{}:{}: `{word}`", relative(&path), i + 1));
            }
        }
    }
    assert_none(wrong);
}

#[test]
fn the_scanner_sees_what_it_should() {
    let text = "//! Header.\n\nfn one(x: [u8; 2]) -> u8 {\n    // fn no {\n    let s = \"} fn {\";\n    let c = '}';\n\
                \n    s\n}\ntrait T {\n    fn none(&self);\n    fn two<'a>(&'a self) {}\n}\n#[cfg(test)]\nmod tests {\n    \
                fn three() { r#\"}\"#.unwrap() }\n}\n";
    let source = Source::new("x.rs".into(), text.into());
    let functions: Vec<_> = source.functions();
    assert_eq!(functions, [(3, "one".into(), 7), (12, "two".into(), 1), (16, "three".into(), 1)]);
    assert_eq!(source.header_lines(), 1);
    let drawn = "//! Header.\n//!\n//! ```text\n//! a drawing\n//! ```\n//! Its end.\n\n//! Not in it.\n";
    assert_eq!(Source::new("x.rs".into(), drawn.into()).header_lines(), 2);
    assert_eq!(source.lines_before_tests().count(), 13);
    let module = Source::new("x.rs".into(), "#[cfg(test)]\nmod tests;\n".into());
    assert_eq!(module.test_modules(), ["tests"]);
    let note = ["let a = 1;", "// SAFETY: it is.", "let b =", "    unsafe { f() };", "unsafe { g() };"];
    let code = ["let a = 1;", "", "let b =", "    unsafe { f() };", "unsafe { g() };"];
    assert!(has_safety_note(&note, &code, 3) && !has_safety_note(&note, &code, 4));
}
