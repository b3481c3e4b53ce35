//! `pando pool partitions`: boundaries, entries and owners as they are, while a process has them too.

mod common;

use common::{Place, word_list};
use pando::{Cluster, Config, OpenOptions, Ownership};
use serde_json::{Value, json};

fn partitions(place: &Place) -> Vec<Value> {
    let table = place.ok("pool partitions --pool pool --index words --json -");
    let table: Value = serde_json::from_str(&table).expect("one object");
    table["indexes"][0]["partitions"].as_array().expect("a list").clone()
}

#[test]
fn boundaries_entries_and_owners_are_shown_also_while_they_change() {
    let place = Place::new();
    place.write("words.txt", word_list(3_000));
    let sorted = place.sorted("words.txt");
    let sorted: Vec<&str> = sorted.lines().collect();
    let [third, half] = [3, 2].map(|part| sorted[sorted.len() / part]);
    place.ok(&format!("create --pool pool --index words --boundaries={third},{half}"));
    place.ok("load words.txt --pool pool --index words");
    let found = partitions(&place);
    let part = |number: usize| &found[number];
    assert_eq!(found.len(), 3);
    assert_eq!([&part(0)["from"], &part(0)["to"]], [&Value::Null, &json!(third)]);
    assert_eq!([&part(2)["from"], &part(2)["to"]], [&json!(half), &Value::Null]);
    let entries: Vec<u64> = found.iter().map(|of| of["entries"].as_u64().expect("counted")).collect();
    let expected = [sorted.len() / 3, sorted.len() / 2 - sorted.len() / 3, sorted.len() - sorted.len() / 2];
    assert_eq!(entries, expected.map(|count| count as u64));
    assert!(found.iter().all(|of| of["owner"].is_null()));

    let cluster = Cluster::open(Config::at(place.path("pool"))).expect("attaches");
    let own = OpenOptions::default().own(Ownership::Partitions(vec![0, 1]));
    let index = cluster.open_index_with("words", &own).expect("nobody's");
    let quarter = sorted[sorted.len() / 4];
    index.add_compute_server(quarter.as_bytes()).expect("its own");
    let found = partitions(&place);
    assert_eq!((found.len(), &found[1]["from"]), (4, &json!(quarter)));
    let owners: Vec<_> = found.iter().map(|of| of["owner"].as_u64()).collect();
    let here = Some(u64::from(std::process::id()));
    assert_eq!(owners, [here, here, here, None]);
    let table = place.ok("pool partitions --pool pool");
    let process = format!("process {}", std::process::id());
    assert!(table.starts_with("index words\n") && table.contains("nobody"), "{table}");
    assert_eq!((table.lines().count(), table.matches(&process).count()), (6, 3), "{table}");
    cluster.close().expect("closes");
}
