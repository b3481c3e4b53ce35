//! What recovery does to each page.

use pando_fabric::{Endpoint, Fabric, GlobalAddr};
use pando_log::{
    Blocks, Change, Contents, Entry, Image, Log, LogError, Options, PagePlan, Record, Space, Span, plan,
};
use pando_rt::block_on;

use crate::faulty::{block, blocks, fabric};

/// Runs `check` on the plan of a log with these records, in two lanes in turns. The first byte of a page is its only key.
fn planned(records: &[Record<'_>], check: impl FnOnce(Result<Vec<(GlobalAddr, PagePlan<'_>)>, LogError>)) {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let blocks = blocks(ep, 2, 2, 4096);
    block_on(ep, async {
        let space = Log::create(ep, 7, blocks).await?;
        let log = Log::resume(ep, Contents::read(ep, space).await?, Options::default()).await?;
        for (i, record) in records.iter().enumerate() {
            log.append(log.try_reserve(i % 2, record.stored_len()).expect("room"), record);
        }
        log.durable(ep, 0, log.clock()).await?;
        let contents = Contents::read(ep, Space::read(ep, block(1)).await?).await?;
        assert_eq!(contents.report().records, records.len() as u64);
        let is_left = |image: &[u8], left: Span<'_>| left.contains(&image[..1]);
        check(plan(&contents, is_left).map(|pages| pages.into_iter().collect()));
        Ok::<_, LogError>(())
    })
    .expect("the log works");
}

fn put(page: usize, value: &[u8]) -> Entry<'_> {
    Entry { page: block(page), key: b"key", change: Change::Put(value) }
}

fn image(page: usize, bytes: &[u8]) -> Image<'_> {
    Image { page: block(page), bytes }
}

#[test]
fn a_page_begins_with_its_last_image() {
    let split = Record::Pages { images: vec![image(10, &[1; 16]), image(11, &[2; 16])], freed: vec![] };
    let again = Record::Pages { images: vec![image(11, &[3; 16])], freed: vec![] };
    let (a, b, c) = (put(10, b"a"), put(11, b"b"), put(12, b"c"));
    let (d, e) = (put(11, b"d"), put(12, b"e"));
    let records = [
        Record::Entry(a),
        split,
        Record::Entry(b),
        again,
        Record::Entry(c),
        Record::Entry(d),
        Record::Entry(e),
    ];
    planned(&records, |plan| {
        let wanted = [
            (block(10), PagePlan { image: Some(&[1; 16]), entries: vec![], gsn: 2 }),
            (block(11), PagePlan { image: Some(&[3; 16]), entries: vec![d], gsn: 6 }),
            (block(12), PagePlan { image: None, entries: vec![c, e], gsn: 7 }),
        ];
        assert_eq!(plan.expect("no damage"), wanted);
    });
}

#[test]
fn a_freed_page_is_left_alone_until_it_is_used_again() {
    let merge = Record::Pages { images: vec![image(10, &[1; 16])], freed: vec![block(11), block(12)] };
    let reuse = Record::Pages { images: vec![image(12, &[2; 16])], freed: vec![] };
    let records = [Record::Entry(put(11, b"a")), Record::Entry(put(12, b"b")), merge, reuse];
    planned(&records, |plan| {
        let pages: Vec<_> =
            plan.expect("no damage").into_iter().map(|(page, plan)| (page, plan.image)).collect();
        assert_eq!(pages, [(block(10), Some(&[1; 16][..])), (block(12), Some(&[2; 16][..]))]);
    });
}

#[test]
fn keys_that_left_are_left_alone_until_they_are_back() {
    let images = |third| Record::Pages {
        images: vec![image(10, b"a"), image(11, b"m"), image(12, third)],
        freed: vec![],
    };
    let entry = |page, key| Record::Entry(Entry { page: block(page), key, change: Change::Put(b"v") });
    let left = Record::Left(Span { low: Some(b"m"), high: None });
    let freed = Record::Pages { images: vec![], freed: vec![block(13)] };
    let records = [
        images(b"z"),
        entry(11, b"m"),
        entry(13, b"n"),
        entry(13, b"b"),
        freed,
        left,
        entry(12, b"z"),
        entry(13, b"n"),
    ];
    planned(&records, |plan| {
        let plan: Vec<_> = plan
            .expect("no damage")
            .into_iter()
            .map(|(page, plan)| (page, plan.image, plan.entries.len()))
            .collect();
        // The last two came back: their pages begin with the remote copies.
        assert_eq!(plan, [(block(10), Some(&b"a"[..]), 0), (block(12), None, 1), (block(13), None, 1)]);
    });
    let left = Record::Left(Span { low: None, high: Some(b"b") });
    planned(&[entry(11, b"a"), entry(11, b"b"), entry(12, b"a"), left], |plan| {
        let plan = plan.expect("no damage");
        assert_eq!((plan.len(), plan[0].1.entries[0].key), (1, &b"b"[..]));
    });
}

#[test]
fn a_log_that_is_damaged_or_of_an_impossible_shape_is_refused() {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let create = |lanes, segments, bytes| {
        block_on(ep, Log::create(ep, 7, blocks(ep, lanes, segments, bytes))).map(drop)
    };
    let error = create(1, 1, 4096).expect_err("one segment").to_string();
    assert_eq!(error, "a log of 1 lanes of 1 segments of 4096 bytes cannot be: a lane needs two segments");
    assert!(create(0, 2, 4096).is_err() && create(1, 2, 128).is_err());
    let too_few = Blocks { lists: vec![], ..blocks(ep, 1, 2, 4096) };
    assert!(block_on(ep, Log::create(ep, 7, too_few)).is_err());
    create(1, 2, 4096).expect("a log");
    let (list, words_of_root) = (block(4), (0..9).map(|word| block(1).add(word * 8)));
    for at in words_of_root.chain([list, list.add(8)]) {
        let before = block_on(ep, ep.read_word(at)).expect("a word");
        block_on(ep, ep.write_word(at, before ^ 1 << 9)).expect("a word");
        assert!(
            matches!(block_on(ep, Space::read(ep, block(1))), Err(LogError::Damaged { .. })),
            "word at {at}"
        );
        block_on(ep, ep.write_word(at, before)).expect("a word");
    }
    let space = block_on(ep, Space::read(ep, block(1))).expect("whole again");
    assert_eq!((space.index_id, space.blocks().count()), (7, 5));
    block_on(ep, ep.write_word(block(2), 77)).expect("a word");
    block_on(ep, ep.write_word(block(2).add(64), 77)).expect("a word");
    assert!(matches!(block_on(ep, Contents::read(ep, space)), Err(LogError::Damaged { .. })));
}

#[test]
fn a_log_of_many_segments_has_several_lists() {
    let fabric = fabric();
    let ep = &fabric.endpoint(1).expect("an endpoint");
    let space = block_on(ep, Log::create(ep, 7, blocks(ep, 2, 50, 256))).expect("a log");
    assert_eq!(space.blocks().count(), 1 + 4 + 100 + 1, "root, lists, segments, scratch");
    assert_eq!(block_on(ep, Space::read(ep, space.root())).expect("it can be read"), space);
}
