//! One level of a tree without parents: adjacent pages whose fences cover all keys.
//!
//! It applies the edits of a layout (insert, replace, remove, split, merge) as a tree would, compares the
//! result with a `BTreeMap`, and verifies every page after every step. It tests both layouts.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use pando_cache::sync::Word;
use pando_pool::ValueRef;

use crate::layout::exercise::{
    CHILD, Subject, blank, check_order, copy_of, fence_of, key_at, split, split_at,
};
use crate::layout::{NodeInit, Side, Stored, header};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Inline(Vec<u8>),
    Long(ValueRef),
    Child(u64),
}

impl Value {
    fn stored(&self) -> Stored<'_> {
        match self {
            Self::Inline(bytes) => Stored::Inline(bytes),
            Self::Long(reference) => Stored::Long(*reference),
            Self::Child(_) => panic!("a leaf holds no children"),
        }
    }

    fn len(&self) -> usize {
        if let Self::Child(_) = self { 0 } else { self.stored().stored_len() }
    }
}

pub struct Forest<L> {
    layout: L,
    level: u8,
    pub pages: Vec<Vec<Word>>,
    model: BTreeMap<Vec<u8>, Value>,
    /// Largest number of splits that one entry needed.
    pub most_splits: usize,
}

impl<L: Subject> Forest<L> {
    pub fn new(layout: L, level: u8) -> Self {
        let page = blank(&layout);
        layout.init(&page, &NodeInit { addr: CHILD, index_id: 7, level, low: None, high: None });
        if level > 0 {
            header::set(&page, layout.child_word(&page, 0), CHILD);
        }
        assert_eq!(layout.verify(&page), Ok(()));
        Self { layout, level, pages: vec![page], model: BTreeMap::new(), most_splits: 0 }
    }

    /// The only page that covers `key`.
    fn locate(&self, key: &[u8]) -> usize {
        let key = self.layout.key(key).expect("a legal key");
        let mut covering = (0..self.pages.len()).filter(|&p| self.layout.covers(&self.pages[p], key));
        let found = covering.next().expect("the fences leave no gap");
        assert_eq!(covering.next(), None, "fences overlap");
        found
    }

    fn is_fence(&self, key: &[u8]) -> bool {
        self.pages.iter().any(|page| fence_of(&self.layout, page, Side::Low).is_some_and(|low| low == key))
    }

    /// Stores an entry or separator, splitting as often as needed.
    pub fn put(&mut self, key: &[u8], value: Value) {
        // A separator has some key below it.
        if self.level > 0 && (self.model.contains_key(key) || key.iter().all(|&byte| byte == 0)) {
            return;
        }
        let mut splits = 0;
        while !self.try_put(self.locate(key), key, &value) {
            let p = self.locate(key);
            let (separator, right) = split(&self.layout, &self.pages[p], key, value.len());
            if self.level > 0 {
                assert!(self.model.contains_key(&separator));
            }
            self.pages.insert(p + 1, right);
            splits += 1;
            assert!(splits <= 3, "three splits make room for anything");
        }
        self.most_splits = self.most_splits.max(splits);
        self.model.insert(key.to_vec(), value);
    }

    /// Makes `key` a fence, splitting for room as often as needed, as a new boundary does to leaves.
    pub fn cut(&mut self, key: &[u8]) {
        if self.level > 0 || key.iter().all(|&byte| byte == 0) || self.is_fence(key) {
            return;
        }
        loop {
            let p = self.locate(key);
            if self.is_fence(key) {
                return;
            }
            let page = &self.pages[p];
            let at = self.layout.position(page, key).expect("a leaf");
            let right = match self.layout.fits_cut(page, at, key) {
                true => split_at(&self.layout, page, at, key),
                false => split(&self.layout, page, key, 0).1,
            };
            self.pages.insert(p + 1, right);
        }
    }

    fn try_put(&self, p: usize, key: &[u8], value: &Value) -> bool {
        let page = &self.pages[p];
        let before = copy_of(page);
        let room = self.layout.has_room(page, key, value.len());
        let prepared = self.layout.key(key).expect("a legal key");
        let done = match (self.layout.find(page, prepared), value) {
            (Err(i), Value::Child(child)) => self.layout.inner_insert(page, i, key, *child),
            (Ok(_), Value::Child(_)) => panic!("a separator that is there already"),
            (Ok(i), _) => self.layout.leaf_replace(page, i, value.stored()),
            (Err(i), _) => self.layout.leaf_insert(page, i, prepared, value.stored()),
        };
        // The fixed layout always has room for a new value of an existing key.
        assert!(done || !room, "there was room");
        assert!(!done || room || self.model.contains_key(key), "there was no room");
        if !done {
            let same = before.iter().zip(page).all(|(a, b)| a.load(Relaxed) == b.load(Relaxed));
            assert!(same, "a refusal changed the page");
        }
        assert_eq!(self.layout.verify(page), Ok(()));
        done
    }

    /// Removes the `n`-th key, and merges its page if possible.
    pub fn remove_nth(&mut self, n: usize) {
        let Some(key) = self.model.keys().nth(n % self.model.len().max(1)).cloned() else {
            return;
        };
        // Separators that are fences belong to the parent.
        if self.level > 0 && self.is_fence(&key) {
            return;
        }
        let p = self.locate(&key);
        let page = &self.pages[p];
        let i =
            self.layout.find(page, self.layout.key(&key).expect("a legal key")).expect("the key is there");
        if self.level == 0 {
            self.layout.leaf_remove(page, i)
        } else {
            self.layout.inner_remove(page, i)
        }
        assert_eq!(self.layout.verify(page), Ok(()));
        self.model.remove(&key);
        if self.layout.is_underfull(page) && !self.merge_at(p) && p > 0 {
            self.merge_at(p - 1);
        }
    }

    /// Merges page `p` with the next one if they fit.
    fn merge_at(&mut self, p: usize) -> bool {
        let [left, right, ..] = &self.pages[p..] else {
            return false;
        };
        let separator = fence_of(&self.layout, left, Side::High).expect("there is a right neighbour");
        assert_eq!(fence_of(&self.layout, right, Side::Low).as_ref(), Some(&separator));
        if !self.layout.can_merge(left, right, &separator) {
            return false;
        }
        self.layout.merge(left, right, &separator);
        assert_eq!(self.layout.verify(left), Ok(()));
        self.pages.remove(p + 1);
        true
    }

    /// Merges all pages that can be merged.
    pub fn merge_all(&mut self) {
        let mut p = 0;
        while p < self.pages.len() {
            if !self.merge_at(p) {
                p += 1;
            }
        }
    }

    /// Widens the fences of a copy of page `n`, checks, sets them back, and uses the copy as the page.
    pub fn refence_nth(&mut self, n: usize) {
        let p = n % self.pages.len();
        let page = blank(&self.layout);
        self.layout.copy_content(&self.pages[p], &page);
        header::set(&page, header::ADDR, CHILD);
        let (low, high) =
            (fence_of(&self.layout, &page, Side::Low), fence_of(&self.layout, &page, Side::High));
        let before = self.content(&page);
        for (new_low, new_high) in [(None, high.as_deref()), (None, None), (low.as_deref(), None)] {
            self.layout.set_fences(&page, new_low, new_high);
            assert_eq!(self.layout.verify(&page), Ok(()));
            assert_eq!(self.content(&page), before);
        }
        assert!(self.layout.set_fences(&page, low.as_deref(), high.as_deref()), "it fitted before");
        assert_eq!(self.layout.verify(&page), Ok(()));
        assert_eq!(fence_of(&self.layout, &page, Side::Low), low);
        assert_eq!(fence_of(&self.layout, &page, Side::High), high);
        self.pages[p] = page;
    }

    fn content(&self, page: &[Word]) -> Vec<(Vec<u8>, Value)> {
        let entry = |i| (key_at(&self.layout, page, i), self.value_at(page, i));
        (0..self.layout.count(page)).map(entry).collect()
    }

    fn value_at(&self, page: &[Word], i: usize) -> Value {
        if self.level > 0 {
            return Value::Child(header::get(page, self.layout.child_word(page, i + 1)));
        }
        let mut bytes = Vec::new();
        let long = self.layout.append_value(page, i, &mut bytes);
        assert_eq!(self.layout.long_value(page, i), long);
        long.map_or(Value::Inline(bytes), Value::Long)
    }

    /// Compares all pages with the model.
    pub fn check(&self) {
        let mut all = Vec::new();
        for page in &self.pages {
            assert_eq!(self.layout.verify(page), Ok(()));
            check_order(&self.layout, page);
            if let (true, Some(low)) = (self.level > 0, fence_of(&self.layout, page, Side::Low)) {
                all.push((low, Value::Child(header::get(page, self.layout.child_word(page, 0)))));
            }
            all.extend(self.content(page));
        }
        assert_eq!(all, self.model.clone().into_iter().collect::<Vec<_>>());
    }

    /// Looks `key` up in its page and compares with the model.
    pub fn probe(&self, key: &[u8]) {
        let page = &self.pages[self.locate(key)];
        let keys: Vec<Vec<u8>> =
            (0..self.layout.count(page)).map(|i| key_at(&self.layout, page, i)).collect();
        let prepared = self.layout.key(key).expect("a legal key");
        let below = keys.partition_point(|k| k.as_slice() < key);
        let up_to = keys.partition_point(|k| k.as_slice() <= key);
        assert_eq!(self.layout.child_index(page, prepared), up_to);
        assert_eq!(self.layout.child_index_below(page, prepared), below);
        let expected = if below < up_to { Ok(below) } else { Err(below) };
        assert_eq!(self.layout.find(page, prepared), expected);
        // A key that a page does not cover sorts before or behind all of its keys.
        for page in &self.pages {
            let keys: Vec<Vec<u8>> =
                (0..self.layout.count(page)).map(|i| key_at(&self.layout, page, i)).collect();
            assert_eq!(
                self.layout.child_index(page, prepared),
                keys.partition_point(|k| k.as_slice() <= key)
            );
        }
    }
}
