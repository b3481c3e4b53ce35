//! The register in a real etcd, which is killed, stopped and cut off while threads propose.
//!
//! Each thread keeps the views that it was told to be decided. In the order of their epochs, all of them together must be
//! one history.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use pando_member::View;

use super::super::{Etcd, RegisterAddress, RegisterError};
use super::real_etcd::{Cable, RealEtcd};
use super::{Proposed, first};

/// Proposing threads, and changes of each.
const THREADS: usize = 4;
const CHANGES: usize = 60;

fn address(endpoint: &str) -> RegisterAddress {
    format!("etcd://{endpoint}/tests/trees").parse().expect("an address")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn create(etcd: &mut Etcd, made: &View) -> Option<View> {
    etcd.change(soon(), |old| Ok(old.is_none().then(|| made.clone()))).expect("it answers")
}

#[test]
fn one_of_several_creators_is_the_first() {
    let Some(real) = RealEtcd::start() else { return };
    let address = address(&real.endpoint());
    assert_eq!(Etcd::new(&address).view(soon()).expect("it answers"), None);
    let views: Vec<View> = thread::scope(|scope| {
        let create = |pool| {
            let (address, servers) = (&address, first(&address).servers().to_vec());
            scope.spawn(move || {
                let made = View::new(pool, 2, servers).expect("a view").in_register(address.to_string());
                create(&mut Etcd::new(address), &made).expect("one is there")
            })
        };
        let creating: Vec<_> = (1..=8).map(create).collect();
        creating.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(views.iter().all(|view| *view == views[0]), "{views:?}");
    assert_eq!(Etcd::new(&address).view(soon()).expect("it answers").as_ref(), Some(&views[0]));
}

/// Has threads change the view while `disturb` runs; checks that all views derive from one another, and that each
/// thread saw them in order.
fn change_while(address: &RegisterAddress, disturb: impl FnOnce()) {
    create(&mut Etcd::new(address), &first(address)).expect("it is made");
    let (proposed, decided) = (Proposed::default(), Mutex::new(vec![first(address).encode()]));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let (mut etcd, mut newest) = (Etcd::new(address), 1);
                for _ in 0..CHANGES {
                    let changed = etcd.change(soon(), |old| Ok(old.map(|old| proposed.advance(&old))));
                    let view = changed.expect("it answers in the end").expect("it is there");
                    assert!(view.epoch() > newest, "{} after {newest}", view.epoch());
                    newest = view.epoch();
                    decided.lock().expect("no panic").push(view.encode());
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
        disturb();
    });
    let mut decided = decided.into_inner().expect("no panic");
    decided.sort_by_key(|value| View::epoch_of(value).expect("a view"));
    decided.dedup();
    let epochs: Vec<u64> = decided.iter().map(|value| View::epoch_of(value).expect("a view")).collect();
    assert!(epochs.windows(2).all(|pair| pair[0] < pair[1]), "two views of one epoch: {epochs:?}");
    // A change that was made without an answer, and followed by another thread's, is made twice.
    assert!(
        epochs.len() > THREADS * CHANGES && *epochs.last().expect("some") >= epochs.len() as u64,
        "{epochs:?}"
    );
    let neighbours =
        decided.chunk_by(|a, b| View::epoch_of(b).ok() == View::epoch_of(a).ok().map(|epoch| epoch + 1));
    neighbours.for_each(|chain| proposed.check(chain));
    println!(
        "{} changes, {} of them known to their threads",
        epochs.last().expect("some") - 1,
        epochs.len() - 1
    );
}

#[test]
fn each_view_derives_from_the_one_before() {
    let Some(real) = RealEtcd::start() else { return };
    change_while(&address(&real.endpoint()), || ());
}

#[test]
fn an_etcd_that_is_killed_or_stopped_goes_on_where_it_was() {
    let Some(mut real) = RealEtcd::start() else { return };
    change_while(&address(&real.endpoint()), || {
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(200));
            real.kill();
            thread::sleep(Duration::from_millis(200));
            real.restart();
            thread::sleep(Duration::from_millis(200));
            real.signal("STOP");
            thread::sleep(Duration::from_millis(1500));
            real.signal("CONT");
        }
    });
}

#[test]
fn an_etcd_that_is_cut_off_goes_on_where_it_was() {
    let Some(real) = RealEtcd::start() else { return };
    let cable = Cable::to(&real.endpoint());
    let address = address(&cable.endpoint());
    change_while(&address, || {
        for _ in 0..4 {
            thread::sleep(Duration::from_millis(300));
            cable.cut();
            thread::sleep(Duration::from_millis(1200));
            cable.mend();
        }
    });
    cable.cut();
    let error =
        Etcd::new(&address).view(Instant::now() + Duration::from_millis(300)).expect_err("it is cut off");
    assert!(matches!(error, RegisterError::Silent { .. }), "{error}");
}
