//! A word list, end to end, over separate runs of the program on one pool in a file.

use std::path::Path;

use crate::common::{Place, word_list};

const POOL: &str = "--pool w.pando --index words";

#[test]
fn a_word_list_is_loaded_scanned_halved_and_loaded_again() {
    let place = Place::new();
    place.write("words.txt", word_list(20_000));
    whole_story(&place);
}

#[test]
fn so_is_the_dictionary_of_the_system() {
    let dictionary = Path::new("/usr/share/dict/american-english");
    if !dictionary.exists() {
        assert!(std::env::var_os("CI").is_none(), "{} must be there in CI", dictionary.display());
        println!("skipped: there is no {}", dictionary.display());
        return;
    }
    let place = Place::new();
    place.write("words.txt", std::fs::read(dictionary).expect("readable"));
    whole_story(&place);
}

fn whole_story(place: &Place) {
    let sorted = place.sorted("words.txt");
    let all: Vec<&str> = sorted.lines().collect();
    place.ok(&format!("load words.txt {POOL}"));
    assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), sorted, "a scan is what sort gives");
    reads_agree(place, &all);

    let middle = all.len() / 2;
    let lines = |words: &[&str]| words.iter().map(|word| format!("{word}\n")).collect::<String>();
    let second = |first: usize| all.iter().copied().skip(first).step_by(2).collect::<Vec<_>>();
    halved_and_loaded(place, &sorted, &lines(&second(0)), &lines(&second(1)));
    halved_and_loaded(place, &sorted, &lines(&all[..middle]), &lines(&all[middle..]));

    place.ok(&format!("del {POOL} --all"));
    assert_eq!(place.ok(&format!("scan {POOL}")), "");
    assert_eq!(place.index_stats("w.pando")["entries"], 0);
    place.ok("check --pool w.pando");
}

/// Deletes some of the words and loads all again, three times: the pool does not grow.
fn halved_and_loaded(place: &Place, sorted: &str, gone: &str, kept: &str) {
    let (full, chunks) = (place.allocated("w.pando"), place.in_chunks("w.pando"));
    for cycle in 1..=3 {
        let deleted = place.feed(&format!("del {POOL} --stdin"), gone);
        assert_eq!(deleted.status, 0, "{deleted:?}");
        place.ok("check --pool w.pando");
        assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), kept);
        assert!(place.allocated("w.pando") <= full);

        place.ok(&format!("load words.txt {POOL}"));
        place.ok("check --pool w.pando");
        assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), sorted);
        let again = place.allocated("w.pando");
        assert!(again <= full, "cycle {cycle}: the pool has grown from {full} to {again} bytes");
        let again = place.in_chunks("w.pando");
        assert!(again <= chunks, "cycle {cycle}: the chunks have grown from {chunks} to {again} bytes");
    }
}

/// Lookups, ranges, prefixes, limits and reverse order, each compared with the sorted list.
fn reads_agree(place: &Place, all: &[&str]) {
    let lines = |words: &[&str]| words.iter().map(|word| format!("{word}\n")).collect::<String>();
    let scan = |options: &str| place.ok(&format!("scan {POOL} --keys-only {options}"));

    let mut backwards = all.to_vec();
    backwards.reverse();
    assert_eq!(scan("--reverse"), lines(&backwards));
    assert_eq!(scan("--reverse --limit 7"), lines(&backwards[..7]));

    let (low, high) = (all[all.len() / 3], all[all.len() / 2]);
    let between: Vec<&str> = all.iter().copied().filter(|word| (low..high).contains(word)).collect();
    assert_eq!(scan(&format!("--from={low} --to={high}")), lines(&between));

    let prefix: String = all[all.len() / 2].chars().take(2).collect();
    let with_prefix: Vec<&str> = all.iter().copied().filter(|word| word.starts_with(&prefix)).collect();
    assert_eq!(scan(&format!("--prefix={prefix}")), lines(&with_prefix));

    let file = std::fs::read_to_string(place.path("words.txt")).expect("it was written");
    let line_of = |word: &str| {
        1 + file.lines().enumerate().filter(|(_, line)| *line == word).last().expect("it is there").0
    };
    let (first, last) = (all[0], all[all.len() - 1]);
    let both = place.ok(&format!("get {POOL} -- {first} {last}"));
    assert_eq!(both, format!("{first}\t{}\n{last}\t{}\n", line_of(first), line_of(last)));
}

#[test]
fn a_list_with_rejected_lines_says_which() {
    let place = Place::new();
    place.write("words.txt", format!("apple\n\npear\n{}\n\nplum\n", "x".repeat(2000)));
    let ran = place.run(&format!("load words.txt --max-rejects 3 {POOL}"));
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.starts_with("6 rows: 3 inserted, 0 replaced, 3 rejected;"), "{ran:?}");
    let rejected: Vec<&str> = ran.stderr.lines().collect();
    assert_eq!(rejected[0], "3 rows were rejected:");
    for (line, part) in [(1, "line 2: "), (2, "row 4: "), (3, "line 5: ")] {
        assert!(rejected[line].trim_start().starts_with(part), "{rejected:?}");
    }
    assert_eq!(place.ok(&format!("scan {POOL}")), "apple\t1\npear\t3\nplum\t6\n");
}

#[test]
fn single_keys_are_put_read_and_deleted() {
    let place = Place::new();
    place.ok(&format!("create {POOL}"));
    place.ok(&format!("put {POOL} tab\\x09bed \\xff\\x00"));
    place.ok(&format!("put {POOL} plain two·words"));
    assert_eq!(place.ok(&format!("scan {POOL}")), "plain\ttwo words\ntab\\x09bed\t\\xFF\\x00\n");
    assert_eq!(
        place.ok(&format!("scan {POOL} --output json")),
        "{\"key\":\"plain\",\"value\":\"two words\"}\n{\"key\":\"tab\\tbed\",\"value\":{\"hex\":\"ff00\"}}\n"
    );
    assert!(
        place.refused(&format!("put {POOL} plain x --only-absent"), 1).contains("`plain` is there already")
    );
    assert!(place.refused(&format!("put {POOL} other x --only-present"), 1).contains("`other` is not there"));
    assert!(place.refused(&format!("get {POOL} other"), 1).contains("there is no key `other`"));
    let fed = place.feed(&format!("put {POOL} --stdin"), "a\t1\nb\t2\nplain\t3\n");
    assert_eq!(fed.status, 0, "{fed:?}");
    assert_eq!(place.feed(&format!("get {POOL} --stdin"), "b\nplain\n").stdout, "b\t2\nplain\t3\n");
    let deleted = place.run(&format!("del {POOL} a b nothing"));
    assert_eq!((deleted.status, deleted.stderr.as_str()), (0, "2 deleted, 1 were not there\n"));
    let broken = place.feed(&format!("put {POOL} --stdin"), "c\t1\nno tab\n");
    assert_eq!(broken.status, 2, "{broken:?}");
    assert!(broken.stderr.contains("line 2 of the input has no TAB"), "{broken:?}");
    assert_eq!(place.ok(&format!("get {POOL} c")), "c\t1\n", "what came before was put");
    place.ok("drop --pool w.pando --index words");
    assert!(place.ok("stats --pool w.pando").contains("no indexes"));
}

#[test]
fn a_reader_that_goes_away_ends_a_scan_quietly() {
    let place = Place::new();
    place.write("words.txt", word_list(50_000));
    place.ok(&format!("load words.txt {POOL}"));
    let mut child = place.start(&format!("scan {POOL}"));
    drop(child.stdout.take());
    let ended = child.end();
    assert_eq!((ended.status, ended.stderr.as_str()), (0, ""));
    place.ok("check --pool w.pando");
}
