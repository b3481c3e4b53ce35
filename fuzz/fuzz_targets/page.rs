//! Arbitrary bytes as a node of either layout: no query may panic, and a node that passes `verify` can be
//! changed.
//!
//! The first byte selects the layout, the node size and the level. The second selects the source of the
//! words: all from the input, or some of them written over a well-formed page made from the input.

#![no_main]

use libfuzzer_sys::fuzz_target;
use pando_cache::sync::Word;
use pando_dex::layout::exercise::{
    CHILD, Subject, blank, change_everything, copy_of, long_value, read_everything,
};
use pando_dex::layout::fixed::FixedLayout;
use pando_dex::layout::slotted::SlottedLayout;
use pando_dex::layout::{NodeInit, Stored, header};

/// Takes up to `n` bytes from the front.
fn take<'d>(data: &mut &'d [u8], n: usize) -> &'d [u8] {
    let (front, rest) = data.split_at(n.min(data.len()));
    *data = rest;
    front
}

fn take_word(data: &mut &[u8]) -> u64 {
    let mut word = [0; 8];
    let bytes = take(data, 8);
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn take_byte(data: &mut &[u8]) -> u8 {
    take(data, 1).first().copied().unwrap_or_default()
}

/// A key: some bytes of the input after a run of one byte.
fn take_key<L: Subject>(layout: &L, data: &mut &[u8]) -> Vec<u8> {
    let [len, run, filler] = [(); 3].map(|()| take_byte(data));
    let mut key = vec![filler; usize::from(run % 64)];
    key.extend_from_slice(take(data, usize::from(len % 32)));
    layout.legal_key(&key)
}

fn formatted<L: Subject>(layout: &L, level: u8) -> Vec<Word> {
    let page = blank(layout);
    layout.init(&page, &NodeInit { addr: CHILD, index_id: 7, level, low: None, high: None });
    if level > 0 {
        header::set(&page, layout.child_word(&page, 0), CHILD);
    }
    page
}

/// A well-formed page with up to 32 entries.
fn built<L: Subject>(layout: &L, level: u8, data: &mut &[u8]) -> Vec<Word> {
    let page = formatted(layout, level);
    for n in 0..take_byte(data) % 32 {
        let key = take_key(layout, data);
        let prepared = layout.key(&key).expect("a legal key");
        let Err(i) = layout.find(&page, prepared) else {
            continue;
        };
        let len = take_byte(data);
        let value = layout.legal_value(usize::from(len));
        if level > 0 {
            if key.iter().any(|&byte| byte > 0) {
                layout.inner_insert(&page, i, &key, CHILD + 64 * u64::from(n));
            }
        } else if len > 250 && layout.has_long_values() {
            layout.leaf_insert(&page, i, prepared, Stored::Long(long_value(u64::from(n))));
        } else {
            layout.leaf_insert(&page, i, prepared, Stored::Inline(&value));
        }
    }
    let fences = [take_key(layout, data), take_key(layout, data)];
    let inside = |key: &[u8]| *fences[0] < *key && *key < *fences[1];
    let keys = pando_dex::layout::exercise::keys_of(layout, &page);
    if fences[0] < fences[1] && keys.iter().all(|key| inside(key)) {
        layout.set_fences(&page, Some(&fences[0]), Some(&fences[1]));
    }
    assert_eq!(layout.verify(&page), Ok(()));
    page
}

fn try_layout<L: Subject>(layout: L, level: u8, mut data: &[u8]) {
    let probes: Vec<Vec<u8>> = (0..2).map(|_| take_key(&layout, &mut data)).collect();
    let page = match take_byte(&mut data) % 2 {
        0 => {
            let page = formatted(&layout, level);
            let kind = header::get(&page, header::KIND);
            for word in &page {
                word.store(take_word(&mut data), std::sync::atomic::Ordering::Relaxed);
            }
            // Keep count and flags of the input.
            let came = header::get(&page, header::KIND) & (0xffff_ffff << 16);
            header::set(&page, header::KIND, kind & !(0xffff_ffff << 16) | came);
            page
        }
        _ => {
            let page = built(&layout, level, &mut data);
            while !data.is_empty() {
                let word = usize::from(take_byte(&mut data)) % page.len();
                header::set(&page, word, header::get(&page, word) ^ take_word(&mut data));
            }
            page
        }
    };
    read_everything(&layout, &page, &probes);
    for probe in &probes {
        change_everything(&layout, &copy_of(&page), probe, probe.len());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, data)) = data.split_first() else {
        return;
    };
    let level = kind >> 7;
    let node_size = 512 << (kind >> 4 & 1);
    if kind & 1 == 0 {
        let layout = SlottedLayout::new(node_size).expect("a legal size");
        let limit = usize::from(kind >> 1 & 7);
        try_layout(if limit < 3 { layout } else { layout.with_fanout_limit(limit) }, level, data);
    } else {
        let (key, value) = [(8, 8), (16, 8), (24, 3), (8, 0)][usize::from(kind >> 1 & 3)];
        try_layout(FixedLayout::new(node_size, key, value).expect("a legal size"), level, data);
    }
});
