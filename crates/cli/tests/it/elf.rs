//! `pando elf` over separate runs: TPC-H's lineitem from CSV and Parquet, changes by several processes, pools in files
//! and on memory servers.

use std::fmt::Write;

use crate::common::Place;
use crate::common::running::Daemon;
use crate::common::up::Up;
use serde_json::Value;
use tpchgen::csv::LineItemCsv;
use tpchgen::generators::LineItemGenerator;

const SCALE: f64 = 0.002;
/// The condition of TPC-H's Q6; `·` stands for a blank.
const Q6: &str = "l_shipdate·>=·date·'1994-01-01'·and·l_shipdate·<·date·'1994-01-01'·+·interval·'1'·year·and·\
                  l_discount·between·0.05·and·0.07·and·l_quantity·<·24";

/// Lineitem as CSV, and the numbers of the rows that meet [`Q6`].
fn lineitem() -> (String, Vec<usize>) {
    let mut csv = format!("{}\n", LineItemCsv::header());
    let mut found = Vec::new();
    for (number, row) in LineItemGenerator::new(SCALE, 1, 1).iter().enumerate() {
        let line = LineItemCsv::new(row).to_string();
        let fields: Vec<&str> = line.split(',').collect();
        let number_of = |field: &str| field.parse::<f64>().expect("a number");
        let (quantity, discount, shipped) = (number_of(fields[4]), number_of(fields[6]), fields[10]);
        if shipped.starts_with("1994-") && (0.049..0.071).contains(&discount) && quantity < 24.0 {
            found.push(number);
        }
        writeln!(csv, "{line}").expect("writing to a string does not fail");
    }
    (csv, found)
}

fn lines(numbers: &[usize]) -> String {
    numbers.iter().map(|number| format!("{number}\n")).collect()
}

fn elf_stats(place: &Place, arguments: &str) -> Value {
    serde_json::from_str(&place.ok(&format!("elf stats {arguments} --json"))).expect("valid JSON")
}

#[test]
fn a_condition_finds_the_same_rows_however_the_table_is_built() {
    let place = Place::new();
    let (csv, expected) = lineitem();
    assert!(expected.len() > 50);
    place.write("lineitem.csv", &csv);
    place.write("conditions.txt", format!("{}\nl_orderkey = 7\n", Q6.replace('·', " ")));
    for (name, options) in [
        ("plain", ""),
        ("linear", "--layout linear --threads 2"),
        ("small", "--bucket-rows 1 --order l_shipdate,l_discount"),
        ("bounded", "--memory 4MiB --threads 1"),
        ("for-conditions", "--workload conditions.txt --memory 4MiB --threads 1"),
        ("few", "--columns l_shipdate,l_discount:decimal(2),l_quantity,1 --workload conditions.txt"),
    ] {
        let pool = "--pool tpch.pando";
        let built = place.run(&format!("elf build lineitem.csv {pool} --index {name} {options}"));
        assert_eq!(built.status, 0, "{name}: {built:?}");
        assert!(built.stderr.starts_with("inferred from all rows: "), "{built:?}");
        let query = format!("elf query {pool} --index {name} --where {Q6}");
        assert_eq!(place.ok(&query), format!("{}\n", expected.len()), "{name}");
        assert_eq!(place.ok(&format!("{query} --output ids")), lines(&expected), "{name}");
        let explained = place.run(&format!("{query} --explain"));
        for word in ["order", "l_shipdate*", "region", "gate", "cache", "verbs", "READs"] {
            assert!(explained.stderr.contains(word), "{name}, {word}: {}", explained.stderr);
        }
    }
    let stats = elf_stats(&place, "--pool tpch.pando --index plain");
    assert_eq!(stats["columns"].as_array().map(Vec::len), Some(16));
    assert_eq!(stats["columns"][10], serde_json::json!({ "name": "l_shipdate", "type": "date" }));
    assert_eq!(stats["columns"][5], serde_json::json!({ "name": "l_extendedprice", "type": "decimal(2)" }));
    let printed = place.ok("elf query --pool tpch.pando --index plain --output csv");
    let numbers = |text: &str| text.lines().map(|line| line.replace(".00", "")).collect::<Vec<_>>();
    // A decimal has all digits of its column.
    assert_eq!(numbers(&printed).len(), numbers(&csv).len());
    let trees = place.ok("check --pool tpch.pando");
    assert!(trees.ends_with("no violations\n") && trees.contains("elf few: "), "{trees}");
}

#[test]
fn parquet_and_csv_of_a_table_give_the_same_answers() {
    let place = Place::new();
    place.write("keys.csv", "n,text\n3,x\n-1,\n20,\"y, z\"\n");
    place.ok("load keys.csv --pool p.pando --index keys --key n:int");
    place.ok("dump keys.parquet --pool p.pando --index keys --format parquet");
    place.ok("dump out.csv --pool p.pando --index keys --format csv");
    for file in ["keys.parquet", "out.csv"] {
        place.ok(&format!("elf build {file} --pool p.pando --index table --replace"));
        let all = place.ok("elf query --pool p.pando --index table --output csv");
        let null = if file == "out.csv" { "-1,\n" } else { "-1,\"\"\n" };
        assert_eq!(all, format!("key,value\n{null}3,x\n20,\"y, z\"\n"), "{file}");
        assert_eq!(place.ok("elf query --pool p.pando --where value·like·'y%'"), "1\n");
    }
    let said = place.refused("elf build keys.csv --format parquet --pool p.pando --index new", 2);
    assert!(said.contains("is not a valid Parquet file"), "{said}");
    let elsewhere = place.ok("scan --pool p.pando --keys-only");
    assert_eq!(elsewhere, "-1\n3\n20\n", "the other index is the one that has keys");
}

#[test]
fn rows_come_and_go_in_separate_runs() {
    let place = Place::new();
    place.write("sold.csv", "id,kind,price,day\n1,pear,2.50,1994-01-31\n2,plum,3.1,1994-02-01\n3,pear,,\n");
    place.ok("elf build sold.csv --pool p.pando --index sold");
    place.write("more.csv", "day,id,price,kind,remark\n1999-01-01,4,4,fig,new\n,5,0.05,plum,\n");
    let inserted = place.ok("elf insert more.csv --pool p.pando");
    assert_eq!(inserted, "2 rows inserted, ids 3 to 4\n");
    place.write("bare.csv", "6,date,7.25,2001-02-03\n");
    place.ok("elf insert bare.csv --pool p.pando --no-header");
    assert_eq!(place.feed("elf insert - --format csv --pool p.pando", "kind,id,day,price\n").status, 0);
    let query = |condition: &str, output: &str| {
        place.ok(&format!("elf query --pool p.pando --where {condition} --output {output}"))
    };
    assert_eq!(query("price·<·3·or·price·is·null", "ids"), "0\n2\n4\n");
    assert_eq!(query("-3·<·id·and·id·<·2", "ids"), "0\n", "a condition may begin with a sign");
    assert_eq!(
        query("day·>·date·'1995-01-01'", "csv --select kind,id,day"),
        "kind,id,day\nfig,4,1999-01-01\ndate,6,2001-02-03\n"
    );
    assert_eq!(place.ok("elf delete --pool p.pando --where kind·in·('pear','fig')"), "3 rows deleted\n");
    assert_eq!(place.ok("elf delete --pool p.pando --where kind·in·('pear','fig')"), "0 rows deleted\n");
    let left = "id,kind,price,day\n2,plum,3.10,1994-02-01\n5,plum,0.05,\n6,date,7.25,2001-02-03\n";
    assert_eq!(place.ok("elf query --pool p.pando --output csv"), left);
    place.ok("elf merge --pool p.pando --all");
    let stats = elf_stats(&place, "--pool p.pando");
    assert_eq!((stats["parts"].as_array().map(Vec::len), &stats["rows"]), (Some(1), &Value::from(3)));
    assert_eq!(place.ok("elf query --pool p.pando --output csv"), left);
    assert!(place.ok("elf check --pool p.pando").ends_with("no violations\n"));
    assert_eq!(place.ok("elf delete --pool p.pando --all"), "3 rows deleted\n");
    assert_eq!(place.ok("elf query --pool p.pando"), "0\n");
    place.ok("elf insert bare.csv --pool p.pando --no-header");
    assert_eq!(place.ok("elf query --pool p.pando --output ids"), "6\n", "ids are not given twice");
    place.ok("elf drop --pool p.pando --index sold");
    assert!(place.ok("check --pool p.pando").ends_with("no violations\n"));
    assert!(place.ok("stats --pool p.pando").contains("no indexes"));
}

#[test]
fn a_table_on_memory_servers_is_changed_by_several_processes_at_once() {
    const PROCESSES: usize = 3;
    const ROUNDS: usize = 4;
    let place = Place::new();
    let servers = [Daemon::memory_server(&place, ""), Daemon::memory_server(&place, "")];
    let pool = format!("--pool tcp://{},{}", servers[0].address, servers[1].address);
    let (csv, expected) = lineitem();
    place.write("lineitem.csv", &csv);
    place.ok(&format!("elf build lineitem.csv {pool} --index items --trees 4 --memory 4MiB"));
    let csv = place.ok(&format!("elf query {pool} --index items --where {Q6} --output csv"));
    for offload in ["never", "always", "cost-aware"] {
        let query = format!("elf query {pool} --index items --where {Q6} --offload {offload}");
        let found = place.run(&format!("{query} --output ids --explain"));
        assert_eq!(found.stdout, lines(&expected), "{offload}: {found:?}");
        let calls = if offload == "always" { ", 4 calls of " } else { ", 0 calls of " };
        assert!(offload == "cost-aware" || found.stderr.contains(calls), "{offload}: {found:?}");
        assert_eq!(place.ok(&format!("{query} --output csv")), csv, "{offload}");
    }
    place.write("first.csv", "process,round\n");
    place.ok(&format!("elf build first.csv {pool} --index table --columns process:int,round:int"));
    std::thread::scope(|scope| {
        for process in 0..PROCESSES {
            let (place, pool) = (&place, &pool);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let name = format!("{process}-{round}.csv");
                    place.write(&name, format!("process,round\n{process},{round}\n{process},1000\n"));
                    place.ok(&format!("elf insert {name} {pool} --index table"));
                    let gone = format!("process·=·{process}·and·round·=·1000");
                    let deleted = place.ok(&format!("elf delete {pool} --index table --where {gone}"));
                    assert_eq!(deleted, "1 rows deleted\n");
                }
            });
        }
    });
    let count = place.ok(&format!("elf query {pool} --index table"));
    assert_eq!(count, format!("{}\n", PROCESSES * ROUNDS));
    let rows =
        place.ok(&format!("elf query {pool} --index table --where process·=·1 --output csv --select round"));
    let mut rounds: Vec<&str> = rows.lines().skip(1).collect();
    rounds.sort_unstable();
    assert_eq!(rounds, ["0", "1", "2", "3"]);
    let checked = place.ok(&format!("check {pool}"));
    assert!(checked.contains("elf items: ") && checked.contains("elf table: 12 rows"), "{checked}");
    let stats: Value = serde_json::from_str(&place.ok(&format!("stats {pool} --json"))).expect("valid JSON");
    assert_eq!(stats["elfs"].as_array().map(Vec::len), Some(2));
    place.ok(&format!("pool drain-server 1 {pool}"));
    assert_eq!(
        place.ok(&format!("elf query {pool} --index items --where {Q6} --output ids")),
        lines(&expected)
    );
    place.ok(&format!("elf drop {pool} --index items"));
    place.ok(&format!("elf drop {pool} --index table"));
    assert!(place.ok(&format!("check {pool}")).ends_with("no violations\n"));
}

#[test]
fn a_table_is_there_beside_an_index_that_compute_servers_serve() {
    let place = Place::new();
    let up = Up::start(&place, "--memory 256MiB --cache 2MiB --memory-servers 2 --compute-servers 1");
    let pool = format!("--pool {}", up.pool());
    place.write("sold.csv", "id,kind\n1,pear\n2,plum\n");
    place.ok(&format!("elf build sold.csv {pool} --index sold"));
    place.ok(&format!("elf insert sold.csv {pool}"));
    assert_eq!(place.ok(&format!("elf query {pool} --where kind·=·'plum' --output ids")), "1\n3\n");
    let beside = place.ok(&format!("check {pool}"));
    assert!(beside.contains("elf sold: 4 rows in 1 parts, as described in the catalog"), "{beside}");
    assert!(place.ok(&format!("elf check {pool}")).ends_with("no violations\n"));
    let stats: Value = serde_json::from_str(&place.ok(&format!("stats {pool} --json"))).expect("valid JSON");
    assert_eq!(stats["elfs"][0]["rows"], 4);
    // The index that is served is the one that commands for keys mean.
    place.ok(&format!("put {pool} a b"));
    assert_eq!(place.ok(&format!("get {pool} a")), "a\tb\n");
    place.ok(&format!("elf drop {pool} --index sold"));
    up.signal("-TERM");
    let (status, errors) = up.end();
    assert_eq!(status, 0, "{errors}");
}
