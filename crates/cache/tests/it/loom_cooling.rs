//! Buckets of the cooling map under loom: nothing is lost and nothing comes out twice.

use loom::sync::Arc;
use loom::thread;
use pando_cache::{CoolingMap, FrameId};

const ADDR: u64 = 64;

fn drain(map: &CoolingMap) -> Vec<u32> {
    std::iter::from_fn(|| map.pop(0, map.buckets())).map(|frame| frame.0).collect()
}

#[test]
fn pushes_and_pops_account_for_every_frame() {
    loom::model(|| {
        let map = Arc::new(CoolingMap::new(1));
        assert_eq!(map.push(ADDR, FrameId(0)), None);
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || {
                assert_eq!(map.push(ADDR, FrameId(1)), None);
                map.pop(0, 1)
            })
        };
        assert_eq!(map.push(ADDR, FrameId(2)), None);
        let mut seen: Vec<_> =
            [map.pop(0, 1), other.join().unwrap()].into_iter().flatten().map(|f| f.0).collect();
        assert_eq!(seen.len(), 2, "each pop followed a push");
        seen.extend(drain(&map));
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    });
}

#[test]
fn a_full_bucket_spills_exactly_one_per_push() {
    loom::model(|| {
        let map = Arc::new(CoolingMap::new(1));
        (0..6).for_each(|i| assert_eq!(map.push(ADDR, FrameId(i)), None));
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.push(ADDR, FrameId(6)).map(|frame| frame.0))
        };
        let mine = map.push(ADDR, FrameId(7)).map(|frame| frame.0);
        let mut spilled = [mine, other.join().unwrap()];
        spilled.sort_unstable();
        assert_eq!(spilled, [Some(0), Some(1)]);
        let rest = drain(&map);
        assert!(rest == [2, 3, 4, 5, 6, 7] || rest == [2, 3, 4, 5, 7, 6], "{rest:?}");
    });
}

#[test]
fn a_frame_is_removed_or_popped_never_both() {
    loom::model(|| {
        let map = Arc::new(CoolingMap::new(1));
        (0..2).for_each(|i| assert_eq!(map.push(ADDR, FrameId(i)), None));
        let other = {
            let map = Arc::clone(&map);
            thread::spawn(move || map.pop(0, 1).map(|frame| frame.0))
        };
        map.remove(ADDR, FrameId(0));
        let popped = other.join().unwrap();
        let rest = drain(&map);
        match popped {
            Some(0) => assert_eq!(rest, [1]),
            Some(1) => assert!(rest.is_empty()),
            _ => panic!("the bucket was not empty: {popped:?}"),
        }
    });
}
