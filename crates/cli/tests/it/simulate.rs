//! `pando simulate`: output, refusals, and interruption.

use std::time::Duration;

use crate::common::Place;
use serde_json::Value;

#[test]
fn a_run_says_what_it_did_and_repeats_itself() {
    let place = Place::new();
    let text = place.ok("simulate --seeds 0..3 --faults torn,slow");
    assert!(text.starts_with("3 seeds, ") && text.contains(" 0 violations"), "{text}");
    let report = |arguments: &str| -> Value {
        serde_json::from_str(&place.ok(arguments)).expect("nothing but one object is printed")
    };
    let [one, two] = [0, 1].map(|_| report("simulate --seeds 3..6 --faults torn --json -"));
    assert_eq!(one["history_hash"], two["history_hash"]);
    assert_eq!(one["faults"], serde_json::json!(["torn"]));
    for (field, least) in [("seeds", 3), ("operations", 2_400), ("key_histories", 18), ("virtual_ns", 1)] {
        assert!(one[field].as_u64().is_some_and(|figure| figure >= least), "{field}: {one}");
    }
    assert_eq!((&one["violations"], &one["failed_seeds"]), (&0.into(), &serde_json::json!([])));
}

#[test]
fn what_cannot_be_has_status_2() {
    let place = Place::new();
    for (arguments, part) in [
        ("simulate --seeds 7", "0..100"),
        ("simulate --seeds 7..7", "0..100"),
        ("simulate --seeds 7..x", "0..100"),
        ("simulate --minutes 0", "--minutes must be above 0"),
        ("simulate --minutes nan", "--minutes must be above 0"),
        ("simulate --minutes soon", "soon"),
        ("simulate --faults tornado", "`tornado` is no fault"),
        ("simulate --faults torn,none", "`none` is no fault"),
    ] {
        let sentence = place.refused(arguments, 2);
        assert!(sentence.contains(part), "{arguments}: {sentence}");
    }
}

#[test]
fn minutes_go_beyond_the_seeds_and_an_interrupt_ends_them_with_a_summary() {
    let place = Place::new();
    let child = place.start("simulate --seeds 0..1 --minutes 30");
    std::thread::sleep(Duration::from_secs(3));
    child.signal("-INT");
    let ran = child.end();
    assert!(ran.status == 0 && ran.stdout.starts_with("interrupted after "), "{ran:?}");
    assert!(!ran.stdout.starts_with("interrupted after 1 seeds"), "{ran:?}");
}
