//! The oracle of `--verify` against a correct register, a wrong one, and a brute-force definition.

use pando_workload::{Rng, *};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn table(records: u64) -> Expectation {
    Expectation::new(records, &ValueCodec::new(8)).expect("memory")
}

#[test]
fn a_lone_writer_is_followed_exactly() {
    let expected = table(10);
    let key = loaded_key(3);
    assert_eq!(expected.check_read(key, expected.before_read(key), Some(0)), Ok(()));
    let first = expected.issue(key);
    for found in [0, first] {
        assert_eq!(expected.check_read(key, expected.before_read(key), Some(found)), Ok(()));
    }
    let before_ack = expected.before_read(key);
    expected.ack(key, first);
    assert_eq!(expected.check_read(key, before_ack, Some(0)), Ok(()), "the read began before");
    let stale = expected.check_read(key, expected.before_read(key), Some(0));
    assert_eq!(stale, Err(Violation::WrongWrite { key_number: key, found: 0, oldest: 1, newest: 1 }));
    assert!(expected.check_read(key, expected.before_read(key), Some(2)).is_err(), "never written");
    assert_eq!(expected.contended_count(), 0);
}

#[test]
fn lost_updates_are_noticed_after_any_number_of_writes() {
    let expected = table(1);
    let mut sequence = 0;
    for _ in 0..70_000 {
        let previous = sequence;
        sequence = expected.issue(0);
        expected.ack(0, sequence);
        let now = expected.before_read(0);
        assert_eq!(expected.check_read(0, now, Some(sequence)), Ok(()));
        assert!(expected.check_read(0, now, Some(previous)).is_err());
    }
}

#[test]
fn overlapping_writers_may_win_in_any_order_and_a_later_one_ends_that() {
    let expected = table(1);
    let (a, b) = (expected.issue(0), expected.issue(0));
    expected.ack(0, b);
    expected.ack(0, a);
    let now = expected.before_read(0);
    for found in [a, b] {
        assert_eq!(expected.check_read(0, now, Some(found)), Ok(()));
    }
    assert!(expected.check_read(0, now, Some(0)).is_err());
    let c = expected.issue(0);
    expected.ack(0, c);
    assert!(expected.check_read(0, expected.before_read(0), Some(b)).is_err());
    assert_eq!(expected.contended_count(), 1);
}

#[test]
fn failed_writes_may_or_may_not_have_happened() {
    let expected = table(1);
    let failed = expected.issue(0);
    expected.fail(0, failed);
    for found in [0, failed] {
        assert_eq!(expected.check_read(0, expected.before_read(0), Some(found)), Ok(()));
    }
    let next = expected.issue(0);
    expected.ack(0, next);
    for found in [0, failed] {
        assert!(expected.check_read(0, expected.before_read(0), Some(found)).is_err());
    }
}

#[test]
fn new_keys_appear_when_inserted() {
    let expected = table(100);
    let key = new_key(70);
    let absent = expected.before_read(key);
    assert_eq!(expected.check_read(key, absent, None), Ok(()));
    assert_eq!(expected.check_read(key, absent, Some(1)), Err(Violation::NeverInserted { key_number: key }));
    let sequence = expected.issue(key);
    for found in [None, Some(sequence)] {
        assert_eq!(expected.check_read(key, expected.before_read(key), found), Ok(()));
    }
    expected.ack(key, sequence);
    assert_eq!(expected.check_read(key, absent, None), Ok(()), "the read began before");
    let missing = expected.check_read(key, expected.before_read(key), None);
    assert_eq!(missing, Err(Violation::Missing { key_number: key }));
    assert_eq!(expected.present_count(), 101);
    let lost = expected.check_read(loaded_key(5), expected.before_read(loaded_key(5)), None);
    assert_eq!(lost, Err(Violation::Missing { key_number: loaded_key(5) }));
}

#[test]
fn short_values_are_checked_as_far_as_they_go() {
    let values = ValueCodec::new(1);
    let expected = Expectation::new(1, &values).expect("memory");
    for _ in 0..1000 {
        let previous = expected.before_read(0);
        let sequence = expected.issue(0);
        let found = values.check(0, &values.write_vec(0, sequence)).expect("its own");
        assert_eq!(expected.check_read(0, previous, Some(found)), Ok(()));
        expected.ack(0, sequence);
        assert!(expected.check_read(0, expected.before_read(0), Some((found + 3) % 4)).is_err());
    }
}

/// Threads write and read a few atomic registers: correct answers must never be reported as wrong.
#[test]
fn threads_on_true_registers_raise_no_alarm() {
    const KEYS: u64 = 5;
    let values = ValueCodec::new(8);
    let expected = table(KEYS);
    let registers: Vec<AtomicU64> = (0..KEYS).map(|i| AtomicU64::new(values.head(2 * i, 0))).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (expected, registers) = (&expected, &registers);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..100_000 {
                    let i = rng.below(KEYS);
                    let (key, register) = (loaded_key(i), &registers[i as usize]);
                    if rng.below(2) == 0 {
                        let sequence = expected.issue(key);
                        register.store(values.head(key, sequence), Ordering::Release);
                        expected.ack(key, sequence);
                    } else {
                        let before = expected.before_read(key);
                        let value = register.load(Ordering::Acquire).to_le_bytes();
                        let found = values.check(key, &value).expect("its own value");
                        expected.check_read(key, before, Some(found)).expect("a true register");
                    }
                }
            });
        }
    });
}

/// One step of a history of one key: `Begin` starts a write, `End(i)` ends the i-th oldest write in flight.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    End { pick: usize, happened: bool },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end =
        (0usize..4, prop::bool::weighted(0.9)).prop_map(|(pick, happened)| Step::End { pick, happened });
    prop::collection::vec(prop_oneof![Just(Step::Begin), end], 0..40)
}

proptest! {
    /// After any history, the legal answers are exactly the range from the oldest legal write to the newest.
    #[test]
    fn legal_answers_are_those_of_the_definition(steps in steps()) {
        let expected = table(1);
        // (begin, end, happened) of every write; the loaded value is write 0.
        let mut writes: Vec<(usize, Option<usize>, bool)> = vec![(0, Some(0), true)];
        for (time, step) in steps.iter().enumerate().map(|(i, step)| (i + 1, step)) {
            let open: Vec<usize> = (0..writes.len()).filter(|&w| writes[w].1.is_none()).collect();
            match step {
                Step::Begin if open.len() < 4 => {
                    prop_assert_eq!(expected.issue(0) as usize, writes.len());
                    writes.push((time, None, true));
                }
                Step::End { pick, happened } if !open.is_empty() => {
                    let write = open[pick % open.len()];
                    writes[write] = (writes[write].0, Some(time), *happened);
                    if *happened { expected.ack(0, write as u32) } else { expected.fail(0, write as u32) }
                }
                _ => {}
            }
            let is_overwritten = |w: usize| writes.iter().any(|&(begin, end, happened)| {
                happened && end.is_some() && writes[w].1.is_some_and(|ended| ended < begin)
            });
            let oldest = (0..writes.len()).find(|&w| !is_overwritten(w)).expect("the last one");
            for found in 0..writes.len() + 2 {
                let verdict = expected.check_read(0, expected.before_read(0), Some(found as u32));
                prop_assert_eq!(verdict.is_ok(), (oldest..writes.len()).contains(&found), "{:?}", verdict);
            }
        }
    }
}

#[test]
fn scans_must_be_complete_ordered_and_current() {
    let keys = KeyCodec::new(KeySpace::Dense, 8, 10).expect("fits");
    let expected = table(10);
    let insert = expected.issue(new_key(4));
    expected.ack(new_key(4), insert);
    let scan = |answer: &[(u64, u32)], len| {
        let mut check = ScanCheck::new(keys);
        check.begin(&expected, loaded_key(4), len);
        answer.iter().try_for_each(|&(key, found)| check.record(&expected, key, found))?;
        check.end()
    };
    assert_eq!(scan(&[(8, 0), (9, 1), (10, 0)], 3), Ok(()));
    assert_eq!(scan(&[(8, 0), (10, 0)], 2), Err(Violation::Missing { key_number: 9 }));
    assert_eq!(scan(&[(8, 0), (9, 1), (9, 1)], 3), Err(Violation::OutOfOrder { key_number: 9 }));
    assert_eq!(scan(&[(6, 0)], 3), Err(Violation::OutOfOrder { key_number: 6 }));
    assert_eq!(scan(&[(8, 0), (9, 1)], 3), Err(Violation::Missing { key_number: 10 }));
    assert_eq!(scan(&[(8, 0), (9, 1), (10, 0)], 2), Err(Violation::OutOfOrder { key_number: 10 }));
    assert_eq!(
        scan(&[(8, 0), (9, 1), (10, 0), (11, 1)], 4),
        Err(Violation::NeverInserted { key_number: 11 })
    );
    assert!(scan(&[(8, 0), (9, 0)], 2).is_err(), "sequence 0 of a new key is no write");
    let to_the_end = [(8, 0), (9, 1), (10, 0), (12, 0), (14, 0), (16, 0), (18, 0)];
    assert_eq!(scan(&to_the_end, 100), Ok(()));
    assert_eq!(scan(&to_the_end[..6], 100), Err(Violation::Missing { key_number: 18 }));
}

#[test]
fn scans_over_random_keys_must_be_ordered() {
    let keys = KeyCodec::new(KeySpace::Random64, 8, 1000).expect("fits");
    let expected = table(1000);
    let mut numbers: Vec<u64> = (0..1000).map(loaded_key).collect();
    numbers.sort_by_key(|&number| keys.integer(number));
    let mut check = ScanCheck::new(keys);
    check.begin(&expected, numbers[3], 10);
    for &number in &numbers[3..12] {
        check.record(&expected, number, 0).expect("in order");
    }
    assert!(check.record(&expected, numbers[11], 0).is_err());
    check.begin(&expected, numbers[3], 10);
    assert!(check.record(&expected, numbers[2], 0).is_err());
    assert!(check.record(&expected, new_key(5), 0).is_err(), "never inserted");
}
