//! `pando elf` with input that is wrong, pools that are full, and processes that end: one sentence, nothing lost.

use std::process::Stdio;

use crate::common::Place;

const POOL: &str = "--pool p.pando";

/// A pool with a table and an index.
fn place() -> Place {
    let place = Place::new();
    fill(&place);
    place
}

fn fill(place: &Place) {
    place.write("sold.csv", "id,kind,price\n1,pear,2.50\n2,plum,3.1\n3,pear,\n");
    place.ok(&format!("elf build sold.csv {POOL} --index sold"));
    place.ok(&format!("load sold.csv {POOL} --index keys"));
}

fn check(place: &Place) {
    assert!(place.ok(&format!("check {POOL}")).ends_with("no violations\n"));
    assert_eq!(place.ok(&format!("elf query {POOL} --where kind·=·'pear'")), "2\n");
}

/// Arguments, exit status, and a part of the sentence.
const WRONG: &[(&str, i32, &str)] = &[
    ("elf query --where prize·>·5", 2, "there is no column `prize`; the nearest is `price`, at byte 0"),
    ("elf query --where price·>·'x'", 2, "at byte 8: price > >>'x'<<"),
    ("elf query --where price·>>·5", 2, "at byte 6"),
    ("elf query --where (price·>·5", 2, "at byte"),
    ("elf query --where price·>·id", 2, "at byte"),
    ("elf query --output csv --select prize", 2, "the columns are id, kind, price"),
    ("elf query --select id", 2, "--select chooses columns of --output csv or arrow"),
    ("elf query --index none", 2, "there is no index \"none\"; the pool has \"keys\", \"sold\""),
    ("elf query --index keys", 2, "is no Elf"),
    ("elf drop --index keys", 2, "is no Elf"),
    ("elf delete", 2, "--where"),
    ("elf delete --where kind", 2, "at byte"),
    ("elf insert other.csv", 2, "there is no column `price`; the columns are id, kind"),
    ("elf insert other.csv --columns id,kind", 2, "2 columns are to be inserted into \"sold\", which has 3"),
    (
        "elf insert typed.csv",
        1,
        "line 2: `cheap` in column `price` is no decimal(2); line 3: 2 fields instead of 3",
    ),
    ("elf insert empty.csv", 2, "has no rows and no columns"),
    ("elf build sold.csv --index sold", 2, "there is an index \"sold\" already"),
    ("elf build sold.csv --index keys --replace", 2, "is no Elf"),
    ("elf build empty.csv --index new", 2, "has no rows and no columns"),
    ("elf build same.csv --index new", 2, "two columns named `a`"),
    ("elf build sold.csv --index=", 2, "1 to 255 bytes, not 0"),
    ("elf build none.csv --index new", 2, "cannot open none.csv"),
    ("elf build sold.csv --index new --columns id,size", 2, "there is no column `size`"),
    ("elf build sold.csv --index new --columns kind:int", 1, "line 2: `pear` in column `kind` is no int"),
    ("elf build sold.csv --index new --order kind,size", 2, "there is no column `size`"),
    ("elf build sold.csv --index new --order kind,kind", 2, "two columns named `kind`"),
    ("elf build sold.csv --index new --workload conditions.txt", 2, "at byte 7: kind = >>7<<"),
    ("elf build sold.csv --index new --workload none.txt", 2, "cannot read none.txt"),
    ("elf build sold.csv --index new --workload conditions.txt --order id", 2, "--order auto"),
    ("elf build sold.csv --index new --bucket-rows 0", 2, "a bucket holds at least one row"),
    ("elf build sold.csv --index new --memory 1KiB", 2, "is not possible: it needs"),
    ("get --index sold 1", 2, "is an Elf"),
    ("scan --index sold", 2, "is an Elf"),
    ("put --index sold 1 2", 2, "is an Elf"),
    ("del --index sold 1", 2, "is an Elf"),
    ("drop --index sold", 2, "is an Elf"),
    ("create --index sold", 2, "there is an index \"sold\" already"),
    ("pool partitions --index sold", 2, "is an Elf"),
];

#[test]
fn a_wrong_request_is_one_sentence_and_changes_nothing() {
    let place = place();
    place.write("empty.csv", "");
    place.write("other.csv", "id,kind\n4,fig\n");
    place.write("typed.csv", "id,kind,price\n4,fig,cheap\n5,date\n");
    place.write("same.csv", "a,a\n1,2\n");
    place.write("conditions.txt", "kind = 7\n");
    for &(arguments, status, says) in WRONG {
        let said = place.refused(&format!("{arguments} {POOL}"), status);
        assert!(said.contains(says), "{arguments}: {said}");
    }
    for (arguments, says) in [
        ("load sold.csv --index sold --pool p.pando", "is an Elf"),
        ("dump x --index sold --pool p.pando", "is an Elf"),
        ("elf query --pool none.pando", "there is no pool"),
        ("elf build sold.csv --index x --pool ops://h:1", "this needs the pool itself"),
    ] {
        let said = place.refused(arguments, 2);
        assert!(said.contains(says), "{arguments}: {said}");
    }
    check(&place);
    // Nothing is made for a table that cannot be.
    place.refused("elf build sold.csv --index new --columns kind:int --pool new.pando", 1);
    assert!(!place.path("new.pando").exists());
}

#[test]
fn rejected_rows_are_told_and_the_others_are_there() {
    let place = place();
    place.write("some.csv", "id,kind,price\n4,fig,cheap\n5,date,7\n6\n");
    let ran = place.run(&format!("elf insert some.csv {POOL} --max-rejects 2"));
    assert_eq!((ran.status, &*ran.stdout), (0, "1 rows inserted, ids 3 to 3\n"));
    assert!(ran.stderr.starts_with("2 rows were rejected:\n  line 2: `cheap`"), "{ran:?}");
    check(&place);
}

#[test]
fn a_full_pool_keeps_what_it_has() {
    let place = Place::new();
    place.write("sold.csv", "id,kind,price\n1,pear,2.50\n2,plum,3.1\n3,pear,\n");
    place.ok(&format!("elf build sold.csv {POOL} --index sold --pool-size 4MiB"));
    let rows: String =
        (0..200_000_u64).map(|i| format!("{i},k{},{}\n", i * 7919 % 100_003, i * 31 % 99_991)).collect();
    place.write("many.csv", format!("id,kind,price\n{rows}"));
    for command in [
        "elf insert many.csv",
        "elf build many.csv --index other",
        "elf build many.csv --index sold --replace",
    ] {
        let said = place.refused(&format!("{command} {POOL}"), 1);
        assert!(said.contains("no room"), "{command}: {said}");
        check(&place);
    }
    assert_eq!(place.ok(&format!("elf delete {POOL} --where id·=·2")), "1 rows deleted\n");
    check(&place);
}

#[test]
fn a_build_that_is_killed_leaves_the_pool_as_it_was() {
    let place = place();
    let mut command =
        place.command(["elf", "build", "-", "--format", "csv", "--pool", "p.pando", "--index", "new"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let mut input = child.stdin.take().expect("it is piped");
    std::io::Write::write_all(&mut input, b"a,b\n1,2\n").expect("it reads");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    check(&place);
    assert_eq!(place.ok(&format!("elf build sold.csv {POOL} --index new")).lines().count(), 1);
}

#[test]
fn a_damaged_table_is_said_to_be_and_can_be_dropped() {
    let place = Place::new();
    place.ok("create --pool p.pando --pool-size 16MiB --index keys");
    fill(&place);
    let path = place.path("p.pando");
    let mut bytes = std::fs::read(&path).expect("it is there");
    let magic = bytes.windows(8).position(|bytes| bytes == b"PANDOELF").expect("the image of the table");
    bytes[magic + 100] ^= 0x40;
    std::fs::write(&path, &bytes).expect("room");
    let said = place.refused(&format!("elf query {POOL} --where kind·=·'pear'"), 1);
    assert!(said.contains("the image of index \"sold\" is damaged"), "{said}");
    for command in ["check", "elf check"] {
        let ran = place.run(&format!("{command} {POOL}"));
        assert_eq!(ran.status, 1, "{ran:?}");
        assert!(ran.stdout.contains("violation: ") && ran.stdout.contains("damaged"), "{ran:?}");
    }
    assert!(place.ok(&format!("stats {POOL}")).contains("elf        sold"));
    assert_eq!(place.ok(&format!("scan {POOL} --keys-only")), "1\n2\n3\n");
    place.ok(&format!("elf drop {POOL} --index sold"));
    assert!(place.ok(&format!("check {POOL}")).ends_with("no violations\n"));
}
