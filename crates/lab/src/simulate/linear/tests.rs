//! Tests of the search: with histories made by hand, against a search that tries every order, and with
//! stretched sequential runs. In a stretched run each operation still contains the time at which it happened,
//! so an order exists, however much operations overlap.

use proptest::prelude::*;

use super::*;

fn event(found: Found, left: Left, invoked: Step, returned: Step) -> Event {
    Event { found, left, invoked, returned: Some(returned), record: invoked as usize }
}

fn failed(found: Found, left: Left, invoked: Step) -> Event {
    Event { found, left, invoked, returned: None, record: invoked as usize }
}

fn saw(value: Value, invoked: Step, returned: Step) -> Event {
    event(Found::Exactly(value), Left::AsItWas, invoked, returned)
}

fn missed(invoked: Step, returned: Step) -> Event {
    event(Found::Absent, Left::AsItWas, invoked, returned)
}

/// A put into an absent register.
fn first(value: Value, invoked: Step, returned: Step) -> Event {
    event(Found::Absent, Left::Value(value), invoked, returned)
}

/// A put over another value.
fn over(value: Value, invoked: Step, returned: Step) -> Event {
    event(Found::Present, Left::Value(value), invoked, returned)
}

fn removed(invoked: Step, returned: Step) -> Event {
    event(Found::Present, Left::Absent, invoked, returned)
}

fn accepted(events: &[Event]) -> bool {
    check(events, None).is_ok()
}

#[test]
fn what_happened_one_after_the_other_is_accepted_in_that_order_only() {
    assert!(accepted(&[]));
    assert!(accepted(&[missed(1, 2), first(7, 3, 4), saw(7, 5, 6), removed(7, 8), missed(9, 10)]));
    // A value before it was stored, a value that was never stored, a value that was replaced, a removal of
    // nothing.
    assert!(!accepted(&[saw(7, 1, 2), first(7, 3, 4)]));
    assert!(!accepted(&[first(7, 1, 2), saw(8, 3, 4)]));
    assert!(!accepted(&[first(7, 1, 2), over(8, 3, 4), saw(7, 5, 6)]));
    assert!(!accepted(&[first(7, 1, 2), removed(3, 4), removed(5, 6)]));
    assert!(!accepted(&[first(7, 1, 2), missed(3, 4)]));
    assert!(check(&[saw(7, 1, 2), over(8, 3, 4), saw(8, 5, 6)], Some(7)).is_ok());
    assert!(check(&[missed(1, 2)], Some(7)).is_err());
}

#[test]
fn what_overlaps_may_have_happened_in_any_order() {
    assert!(accepted(&[first(7, 1, 10), saw(7, 2, 3), saw(7, 4, 5)]));
    assert!(accepted(&[first(7, 1, 10), missed(2, 3), saw(7, 4, 5)]));
    // The second reader follows the first and must not see the earlier state.
    assert!(!accepted(&[first(7, 1, 10), saw(7, 2, 3), missed(4, 5)]));
    // The readers of two concurrent writers must agree on their order.
    let writers = [first(7, 1, 20), over(8, 2, 21)];
    assert!(accepted(&[&writers[..], &[saw(7, 3, 4), saw(8, 5, 6)]].concat()));
    assert!(!accepted(&[&writers[..], &[saw(8, 3, 4), saw(7, 5, 6), saw(8, 7, 8)]].concat()));
    // Two removals of the same entry.
    assert!(!accepted(&[first(7, 1, 2), removed(3, 10), removed(4, 11)]));
    assert!(accepted(&[first(7, 1, 2), removed(3, 10), removed(4, 11), first(8, 5, 12)]));
}

#[test]
fn of_two_swaps_from_one_value_only_one_succeeds() {
    let swap = |from, to, invoked, returned| event(Found::Exactly(from), Left::Value(to), invoked, returned);
    let both = [first(7, 1, 2), swap(7, 8, 3, 10), swap(7, 9, 4, 11)];
    assert!(!accepted(&both));
    let lost = event(Found::Exactly(8), Left::AsItWas, 4, 11);
    assert!(accepted(&[both[0], both[1], lost]));
    // Unless another operation stores the same value again.
    assert!(accepted(&[both[0], both[1], both[2], over(7, 5, 9)]));
}

#[test]
fn what_failed_may_take_effect_late_once_or_never() {
    let lost = failed(Found::Anything, Left::Value(8), 3);
    let stored = first(7, 1, 2);
    assert!(accepted(&[stored, lost, saw(7, 4, 5)]));
    assert!(accepted(&[stored, lost, saw(8, 4, 5)]));
    assert!(accepted(&[stored, lost, saw(7, 4, 5), saw(8, 6, 7)]));
    assert!(!accepted(&[stored, lost, saw(8, 4, 5), saw(7, 6, 7)]));
    assert!(!accepted(&[stored, saw(8, 4, 5), failed(Found::Anything, Left::Value(8), 6)]));
    // Its value is never seen, only that the key is present.
    assert!(accepted(&[lost, removed(4, 5)]));
    assert!(!accepted(&[lost, removed(4, 5), removed(6, 7)]));
    assert!(accepted(&[lost, lost, removed(4, 5), removed(6, 7)]));
    // It takes effect only if it finds what it expects.
    assert!(!accepted(&[stored, failed(Found::Absent, Left::Value(8), 3), saw(8, 4, 5)]));
}

#[test]
fn a_rejection_names_the_operation_that_has_no_place() {
    let events = [first(7, 1, 2), over(8, 3, 4), saw(8, 5, 6), saw(7, 7, 8), saw(8, 9, 10)];
    let Err(Rejection::Impossible { held, record }) = check(&events, None) else { panic!("7 was replaced") };
    // A value that is still to be seen has not been replaced.
    assert_eq!((held, record), (Held::Value(7), 3));
}

/// Tries every order, as in the definition.
fn by_definition(events: &[Event], held: Option<Value>) -> bool {
    fn go(events: &[Event], done: u32, held: Option<Value>) -> bool {
        let open = |i: usize| done & (1 << i) == 0;
        let first = (0..events.len()).filter(|&i| open(i)).filter_map(|i| events[i].returned).min();
        let Some(first) = first else { return true };
        (0..events.len()).filter(|&i| open(i) && events[i].invoked < first).any(|i| {
            let fits = match events[i].found {
                Found::Anything => true,
                Found::Absent => held.is_none(),
                Found::Present => held.is_some(),
                Found::Exactly(value) => held == Some(value),
            };
            let after = match events[i].left {
                Left::AsItWas => held,
                Left::Absent => None,
                Left::Value(value) => Some(value),
            };
            fits && go(events, done | 1 << i, after)
        })
    }
    go(events, 0, held)
}

fn founds() -> impl Strategy<Value = Found> {
    prop_oneof![Just(Found::Absent), Just(Found::Present), (0..4u32).prop_map(Found::Exactly)]
}

fn lefts() -> impl Strategy<Value = Left> {
    prop_oneof![2 => Just(Left::AsItWas), 1 => Just(Left::Absent), 3 => (0..4u32).prop_map(Left::Value)]
}

/// Arbitrary operations, most of which contradict each other; one in eight failed.
fn anything() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec((founds(), lefts(), 0..30u64, 1..12u64, 0..8u8), 0..8).prop_map(|drawn| {
        let events = drawn.into_iter().enumerate().map(|(i, (found, left, at, long, fate))| {
            // Steps are unique.
            let (invoked, returned) = (at * 16 + i as u64, (at + long) * 16 + 8 + i as u64);
            match fate {
                0 => failed(found, left, invoked),
                _ => event(found, left, invoked, returned),
            }
        });
        events.collect()
    })
}

/// A sequential run in which each operation happens at a time of its own and is then stretched around it.
/// Each stored value is new if `unique`.
fn stretched(kinds: &[(u8, u16, u16)], unique: bool) -> Vec<Event> {
    let mut held: Option<Value> = None;
    let mut events = Vec::new();
    for (i, &(kind, before, after)) in kinds.iter().enumerate() {
        let value = if unique { i as Value } else { i as Value % 3 };
        let now = held.map_or(Found::Absent, Found::Exactly);
        let known = if held.is_some() { Found::Present } else { Found::Absent };
        let (found, left) = match kind {
            0..3 => (now, Left::AsItWas),
            3..6 => (known, Left::Value(value)),
            6 => (known, Left::Absent),
            _ => (now, Left::Value(value)),
        };
        match left {
            Left::AsItWas => {}
            Left::Absent => held = None,
            Left::Value(value) => held = Some(value),
        }
        let at = 1_000 * i as u64 + 1_000_000;
        let (invoked, returned) = (at - u64::from(before) * 10, at + 1 + u64::from(after) * 10);
        events.push(Event {
            record: i,
            ..event(found, left, invoked * 4_096 + i as u64, returned * 4_096 + i as u64)
        });
    }
    events
}

fn kinds(most: usize) -> impl Strategy<Value = Vec<(u8, u16, u16)>> {
    prop::collection::vec((0..8u8, 0..600u16, 0..600u16), 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    #[test]
    fn it_decides_as_the_definition_does(events in anything(), held in prop::option::of(0..4u32)) {
        prop_assert_eq!(check(&events, held).is_ok(), by_definition(&events, held));
    }

    #[test]
    fn it_decides_as_the_definition_does_near_the_truth(
        kinds in kinds(9), unique: bool, at: prop::sample::Index, found in founds(), lost: Option<prop::sample::Index>,
    ) {
        let mut events = stretched(&kinds, unique);
        let at = at.index(events.len());
        events[at].found = found;
        if let Some(lost) = lost {
            let lost = lost.index(events.len());
            events[lost].returned = None;
        }
        prop_assert_eq!(check(&events, None).is_ok(), by_definition(&events, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_sequential_run_is_accepted_however_it_is_stretched(kinds in kinds(2_000), unique: bool) {
        prop_assert_eq!(check(&stretched(&kinds, unique), None), Ok(()));
    }

    #[test]
    fn nor_do_failures_make_it_wrong(kinds in kinds(500), lost in prop::collection::vec(any::<prop::sample::Index>(), 0..20)) {
        let mut events = stretched(&kinds, true);
        for lost in lost {
            let lost = lost.index(kinds.len());
            events[lost].returned = None;
        }
        prop_assert_eq!(check(&events, None), Ok(()));
    }
}

#[test]
fn most_wrong_answers_are_found() {
    let random = Random::new(3);
    let mut rejected = 0;
    for _ in 0..100 {
        let drawn = (0..1_000).map(|_| {
            ((random.next() >> 40) as u8 % 8, (random.next() % 200) as u16, (random.next() % 200) as u16)
        });
        let mut events = stretched(&drawn.collect::<Vec<_>>(), true);
        let looks: Vec<_> = (0..events.len()).filter(|&i| events[i].left == Left::AsItWas).collect();
        let at = looks[(random.next() >> 32) as usize % looks.len()];
        // The state a hundred operations earlier.
        events[at].found = events[at.saturating_sub(100)].found;
        rejected += usize::from(check(&events, None).is_err());
    }
    assert!(rejected > 50, "{rejected} of 100");
}
