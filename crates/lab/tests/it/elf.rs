//! Small measurements of every kind.
//!
//! Stores must agree on what they find, modelled runs must repeat exactly, and impossible settings are refused. Figures
//! of such small tables mean nothing.

use serde_json::Value;

use pando_fabric::OffloadPolicy;
use pando_lab::elf::*;

const DATA: Data = Data::Uniform { rows: 20_000, columns: 6, cardinality: 12 };

fn spec(data: Data, work: ElfWork) -> ElfSpec {
    ElfSpec::new(data, work, pando_sim::memory::MemoryModel::default().scaled(1e-3), 3)
}

fn queries(kind: Kind, store: Store) -> QuerySpec {
    QuerySpec { kind, range_percent: 20, store, warm_up: 200, queries: 200, intervals: 0 }
}

fn modelled(kind: Kind, store: Store) -> Value {
    run(&spec(DATA, ElfWork::Queries(queries(kind, store))), &()).expect("it runs")
}

fn number(report: &Value, field: &str) -> f64 {
    report[field].as_f64().unwrap_or_else(|| panic!("{field} of {report}"))
}

fn stores() -> Vec<Store> {
    let mut stores = vec![Store::new(Base::Dram), Store::new(Base::DualAccess)];
    stores.extend((0..=6).map(Store::levels));
    stores.extend(PolicyKind::ALL.map(|policy| Store::levels(0).with_cache(policy, 100)));
    stores.extend(PolicyKind::ALL.map(|policy| Store::levels(2).with_cache(policy, 100)));
    stores
}

#[test]
fn all_stores_find_the_same_rows_and_take_time() {
    for kind in [Kind::Exact, Kind::Range, Kind::Partial] {
        let found: Vec<f64> = stores()
            .into_iter()
            .map(|store| {
                let report = modelled(kind, store);
                assert!(number(&report, "qps") > 1.0 && number(&report, "seconds") > 0.0, "{report}");
                number(&report, "found")
            })
            .collect();
        assert!(found.iter().all(|&rows| rows == found[0] && rows >= 200.0), "{kind:?}: {found:?}");
    }
}

#[test]
fn a_modelled_run_repeats_exactly() {
    for store in [Store::levels(1), Store::levels(0).with_cache(PolicyKind::Lru, 50)] {
        assert_eq!(modelled(Kind::Range, store.clone()), modelled(Kind::Range, store));
    }
}

#[test]
fn persistent_memory_is_slower_than_dram_and_full_copies_lie_between() {
    let qps = |store| number(&modelled(Kind::Exact, store), "qps");
    let (dram, dual, persistent) =
        (qps(Store::new(Base::Dram)), qps(Store::new(Base::DualAccess)), qps(Store::levels(0)));
    assert!(dram > dual && dual > persistent, "{dram} {dual} {persistent}");
    let none = modelled(Kind::Exact, Store::new(Base::Dram));
    assert_eq!(number(&none, "from_persistent"), 0.0);
}

#[test]
fn looking_lists_up_costs_time_and_changes_no_answer() {
    for kind in [Kind::Exact, Kind::Range, Kind::Partial] {
        let (pointers, hashed) = (modelled(kind, Store::levels(3)), modelled(kind, Store::hashed(3)));
        assert_eq!(pointers["found"], hashed["found"]);
        assert!(number(&hashed, "seconds") > number(&pointers, "seconds"), "{kind:?}");
    }
}

#[test]
fn intervals_cover_all_queries() {
    let mut queries = queries(Kind::Exact, Store::levels(0).with_cache(PolicyKind::Lla, 100));
    (queries.warm_up, queries.intervals) = (0, 7);
    let report = run(&spec(DATA, ElfWork::Queries(queries)), &()).expect("it runs");
    let series = report["series"].as_array().expect("a list");
    assert_eq!((series.len(), series[6]["queries"].as_u64()), (7, Some(200)));
}

#[test]
fn several_threads_find_what_one_finds_modelled_and_measured() {
    let run_with = |threads, base| {
        let queries = QuerySpec { warm_up: 1, queries: 5, ..queries(Kind::Range, Store::new(base)) };
        run(&spec(DATA, ElfWork::Parallel { queries, threads }), &()).expect("it runs")
    };
    let one = run_with(Threads::Modelled(1), Base::Persistent);
    for (threads, base) in [
        (Threads::Modelled(20), Base::Persistent),
        (Threads::Modelled(20), Base::DualAccess),
        (Threads::Modelled(2), Base::Dram),
        (Threads::Measured(1), Base::Dram),
        (Threads::Measured(3), Base::Dram),
    ] {
        assert_eq!(number(&run_with(threads, base), "found"), number(&one, "found"), "{threads:?}");
    }
}

#[test]
fn measurements_of_this_machine_have_their_figures() {
    let lineitem = Data::Lineitem { rows: 5_000 };
    let built = run(&spec(DATA, ElfWork::Build), &()).expect("it runs");
    assert!(number(&built, "overhead") > 1.0);
    let hybrid = run(&spec(DATA, ElfWork::Hybrid), &()).expect("it runs");
    assert!(number(&hybrid, "copy_seconds") > 0.0);
    let measured = queries(Kind::Partial, Store::new(Base::Dram));
    let measured = run(&spec(DATA, ElfWork::Measured(measured)), &()).expect("it runs");
    assert!(number(&measured, "found") >= 200.0);
    let factors =
        run(&spec(lineitem, ElfWork::Selectivity { predicates: 20, rounds: 1 }), &()).expect("it runs");
    assert!(number(&factors["ids"], "worst") >= number(&factors["ids"], "median"));
    for rule in [OrderRule::Descending, OrderRule::Table, OrderRule::ConditionsFirst] {
        let ordered = run(&spec(lineitem, ElfWork::Order { rule, rounds: 1 }), &()).expect("it runs");
        assert_eq!(number(&ordered["linear"], "q6_rows"), number(&ordered["columnar"], "q6_rows"));
    }
}

#[test]
fn a_larger_cache_saves_reads_of_a_remote_elf() {
    for (data, exact) in [(DATA, true), (Data::Lineitem { rows: 20_000 }, false)] {
        let reads = |cache_bytes| {
            let work = ElfWork::Remote { cache_bytes, queries: 5, exact };
            number(&run(&spec(data, work), &()).expect("it runs"), "round_trips")
        };
        let (none, all) = (reads(0), reads(1 << 20));
        assert!(all < none && all >= 0.0, "{none} {all}");
    }
}

fn offload(policy: OffloadPolicy, rule: OrderRule, is_cached: bool) -> OffloadSpec {
    let shares = vec![0.001, 0.1];
    OffloadSpec { policy, rule, is_cached, cores: 1, threads: 3, shares, warm_up: 2, queries: 8 }
}

fn an_offload() -> OffloadSpec {
    offload(OffloadPolicy::Always, OrderRule::Ascending, true)
}

#[test]
fn memory_servers_find_what_readers_find() {
    for rule in [OrderRule::ConditionsFirst, OrderRule::Ascending] {
        for is_cached in [true, false] {
            let [never, always, by_cost] =
                [OffloadPolicy::Never, OffloadPolicy::Always, OffloadPolicy::CostAware].map(|policy| {
                    let work = ElfWork::Offload(offload(policy, rule, is_cached));
                    run(&spec(Data::Lineitem { rows: 20_000 }, work), &()).expect("it runs")
                });
            assert_eq!((number(&never, "calls"), number(&always, "reads")), (0.0, 0.0));
            assert!(number(&never, "reads") > 0.0 && number(&always, "calls") > 0.0);
            for other in [always, by_cost] {
                assert_eq!(number(&other, "result_rows"), number(&never, "result_rows"));
            }
        }
    }
}

#[test]
fn every_method_answers_every_query_of_tpch() {
    for query in 0..pando_workload::columns::TPCH.len() {
        let rows = PeerMethod::ALL.map(|method| {
            let work = ElfWork::Peer { query, method, rounds: 1 };
            let report = run(&spec(Data::Lineitem { rows: 20_000 }, work), &()).expect("it runs");
            assert!(number(&report["ids"], "us") > 0.0);
            number(&report, "result_rows")
        });
        assert!(rows[0] > 0.0 && rows.iter().all(|&found| found == rows[0]), "{rows:?}");
    }
}

#[test]
fn impossible_settings_are_refused_in_a_sentence() {
    let none = QuerySpec { queries: 0, ..queries(Kind::Exact, Store::levels(0)) };
    let copied = queries(Kind::Exact, Store { levels: 2, ..Store::new(Base::Dram) });
    let dynamic = queries(Kind::Range, Store::levels(0).with_cache(PolicyKind::Lru, 5));
    for (data, work) in [
        (DATA, ElfWork::Queries(none)),
        (DATA, ElfWork::Queries(copied)),
        (DATA, ElfWork::Parallel { queries: dynamic, threads: Threads::Modelled(2) }),
        (
            DATA,
            ElfWork::Parallel {
                queries: queries(Kind::Range, Store::levels(0)),
                threads: Threads::Measured(0),
            },
        ),
        (Data::Lineitem { rows: 0 }, ElfWork::Build),
        (Data::Uniform { rows: 10, columns: 0, cardinality: 1 }, ElfWork::Build),
        (DATA, ElfWork::Selectivity { predicates: 0, rounds: 1 }),
        (DATA, ElfWork::Order { rule: OrderRule::Table, rounds: 0 }),
        (DATA, ElfWork::Peer { query: 0, method: PeerMethod::Scan, rounds: 1 }),
        (Data::Lineitem { rows: 9 }, ElfWork::Peer { query: 6, method: PeerMethod::Scan, rounds: 1 }),
        (Data::Lineitem { rows: 9 }, ElfWork::Offload(OffloadSpec { cores: 0, ..an_offload() })),
        (Data::Lineitem { rows: 9 }, ElfWork::Offload(OffloadSpec { shares: vec![1.5], ..an_offload() })),
        (DATA, ElfWork::Offload(an_offload())),
    ] {
        let error = run(&spec(data, work), &()).expect_err("impossible");
        assert!(error.is_bad_input() && !error.to_string().contains('\n'), "{error}");
    }
}
