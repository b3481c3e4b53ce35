//! Searches by memory servers: the same answers as by READs, with a call for each tree; what is refused is READ.

use std::sync::Arc;

use crate::common::{build, check};
use crate::costs::{lineitem, q6};
use crate::model::brute_force;
use crate::tables::{encoded, spec};
use pando_elf::{BuildOptions, Interval, LayoutKind, Predicate};
use pando_elf_remote::{
    Condition, MemorySide, Offloading, PublishOptions, Publisher, ReadOptions, Reader, TableOptions,
    TableReader, TableWriter,
};
use pando_fabric::{DynEndpoint, Fabric, MemoryServerId, OffloadPolicy};
use pando_fabric_local::{LocalConfig, LocalFabric};
use pando_pool::{Pool, PoolOptions};
use pando_rt::block_on;

/// A pool on two memory servers, which search as `side` says, if there is one.
fn pool(side: Option<MemorySide>) -> (DynEndpoint, Pool) {
    let config = LocalConfig { server_sizes: vec![32 << 20; 2], huge_pages: false };
    let fabric = LocalFabric::new(config).expect("memory");
    if let Some(side) = side {
        fabric.set_handler(Arc::new(side), 1).expect("a thread");
    }
    let ep = DynEndpoint::new(fabric.endpoint(1).expect("an endpoint"));
    let pool = block_on(&ep, Pool::create(&ep, PoolOptions::embedded())).expect("a pool");
    (ep, pool)
}

fn options(policy: OffloadPolicy) -> ReadOptions {
    let offloading = Offloading { contrary: 0.0, ..Offloading::with_policy(policy) };
    ReadOptions { cache_bytes: 4 << 10, offloading, ..ReadOptions::default() }
}

fn publish(ep: &DynEndpoint, pool: &Pool, layout: LayoutKind) {
    let elf = build(&lineitem(), &[4, 3, 0, 1, 2, 5, 6], layout, &BuildOptions::default());
    let home = PublishOptions { home: Some(MemoryServerId(1)), ..PublishOptions::default() };
    let publisher = block_on(ep, Publisher::open(ep, pool.clone(), "elf", home)).expect("opened");
    block_on(ep, publisher.publish(ep, &elf)).expect("room");
}

#[test]
fn a_call_answers_a_whole_query() {
    let expected = brute_force(&lineitem(), &q6());
    for layout in [LayoutKind::Linear, LayoutKind::Columnar] {
        let (ep, pool) = pool(Some(MemorySide::default()));
        publish(&ep, &pool, layout);
        let reader = Reader::new(pool.clone(), "elf", options(OffloadPolicy::Always));
        check(&ep, &reader, &q6(), &expected);
        let ids = block_on(&ep, reader.ids::<u32, _>(&ep, &q6())).expect("no error");
        eprintln!("{layout:?}: {} rows by {:?}", ids.value.len(), ids.cost);
        let cost = ids.cost;
        assert_eq!((cost.calls, cost.reads, cost.round_trips, cost.checks), (1, 0, 1, 1));
        // What no row can match needs neither.
        let none = q6().and(0, [Interval::new(90, 99)]);
        let cost = block_on(&ep, reader.count(&ep, &none)).expect("no error").cost;
        assert_eq!((cost.calls, cost.reads), (0, 0));
    }
}

#[test]
fn what_is_refused_is_read() {
    let expected = brute_force(&lineitem(), &q6());
    let small = |bytes_max, answer_max| Some(MemorySide { bytes_max, answer_max });
    for side in [None, small(10_000, 1 << 20), small(1 << 20, 100)] {
        let (ep, pool) = pool(side);
        publish(&ep, &pool, LayoutKind::Columnar);
        let reader = Reader::new(pool.clone(), "elf", options(OffloadPolicy::Always));
        check(&ep, &reader, &q6(), &expected);
        let cost = block_on(&ep, reader.ids::<u32, _>(&ep, &q6())).expect("no error").cost;
        assert!(cost.calls == 1 && cost.reads > 0 && cost.checks == 1, "{side:?}: {cost:?}");
    }
}

#[test]
fn the_way_that_is_expected_to_be_quicker_is_taken() {
    let (ep, pool) = pool(Some(MemorySide::default()));
    publish(&ep, &pool, LayoutKind::Columnar);
    // Before anything is learnt, the figures of the model decide.
    let few = |cache_bytes| ReadOptions { cache_bytes, ..options(OffloadPolicy::CostAware) };
    for (cache_bytes, calls) in [(0, 1), (1 << 20, 0)] {
        let reader = Reader::new(pool.clone(), "elf", few(cache_bytes));
        block_on(&ep, reader.cached(&ep)).expect("no error");
        let exact: Vec<u32> = (0..7).map(|column| lineitem().code(column, 11)).collect();
        let cost =
            block_on(&ep, reader.ids::<u32, _>(&ep, &Predicate::exact(&exact))).expect("no error").cost;
        assert_eq!(cost.calls, calls, "{cost:?}");
    }
}

#[test]
fn each_tree_is_searched_by_its_server() {
    let (ep, pool) = pool(Some(MemorySide::default()));
    let writing = TableOptions { tree_rows: 100, ..TableOptions::default() };
    let writer =
        TableWriter::new(pool.clone(), "t", PublishOptions::default(), writing).expect("valid options");
    block_on(&ep, writer.create(&ep, &spec(LayoutKind::Columnar, 8), None, false)).expect("room");
    let rows: Vec<_> = (0..5_000).map(|i| (i % 37, Some((i % 11) as u8), (i % 400) as i32)).collect();
    block_on(&ep, writer.insert(&ep, &encoded(&rows))).expect("room");
    let [by_reads, by_calls] = [OffloadPolicy::Never, OffloadPolicy::Always]
        .map(|policy| TableReader::new(pool.clone(), "t", ReadOptions { cache_bytes: 0, ..options(policy) }));
    // The second condition concerns one tree, whose part of the first column is below the other's.
    for (sql, trees) in [("n between 3 and 20 and day < date '1970-06-01'", 2), ("word = 'w01' and n < 9", 1)]
    {
        let condition = Condition::sql(sql);
        // The first queries load the table and its dictionaries.
        for reader in [&by_reads, &by_calls] {
            block_on(&ep, reader.rows(&ep, &condition, &[0, 2])).expect("no error");
        }
        let read = block_on(&ep, by_reads.rows(&ep, &condition, &[0, 2])).expect("no error");
        let called = block_on(&ep, by_calls.rows(&ep, &condition, &[0, 2])).expect("no error");
        assert_eq!((called.cost.calls, called.cost.reads, called.cost.round_trips), (2, 0, 1), "{sql}");
        assert!(read.cost.calls == 0 && read.cost.reads > 0);
        let columns = |rows: &[pando_elf_remote::PartRows]| {
            let of_part = |part: &pando_elf_remote::PartRows| {
                (part.ids.clone(), part.codes(0).to_vec(), part.codes(1).to_vec())
            };
            rows.iter().map(of_part).collect::<Vec<_>>()
        };
        assert_eq!(columns(&read.value), columns(&called.value));
        assert!(!read.value[0].ids.is_empty());
        // A reader that caches the first level asks the trees that it concerns.
        let cached = TableReader::new(
            pool.clone(),
            "t",
            ReadOptions { cache_bytes: 1 << 10, ..options(OffloadPolicy::Always) },
        );
        block_on(&ep, cached.count(&ep, &condition)).expect("no error");
        let count = block_on(&ep, cached.count(&ep, &condition)).expect("no error");
        assert!(count.cost.calls <= trees, "{sql}: {:?}", count.cost);
    }
}
