//! Lookups of many keys at once: all of them go down the tree side by side, one level a round, so that the memory
//! accesses of a round overlap. What is not cached, or changes meanwhile, is looked up by itself afterwards.

use std::ops::Range;

use pando_cache::{FrameId, Swip};
use pando_fabric::Endpoint;

use crate::error::{Attempt, Result, Retry};
use crate::layout::{Layout, header};
use crate::tree::{Ctx, Hop, Tree};

/// Keys that go down side by side.
const GROUP: usize = 32;

/// Answers of [`Tree::multi_get`], kept for reuse.
#[derive(Debug, Default)]
pub struct Answers {
    bytes: Vec<u8>,
    values: Vec<Option<Range<usize>>>,
}

impl Answers {
    /// The value of the `i`-th key; `None` if it is absent.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        self.values[i].clone().map(|range| &self.bytes[range])
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The values, in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.values.iter().map(|range| range.clone().map(|range| &self.bytes[range]))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.values.clear();
    }

    fn push(&mut self, found: bool, start: usize) {
        self.values.push(found.then_some(start..self.bytes.len()));
    }
}

/// One key on its way down.
#[derive(Clone, Copy)]
enum Lane<'t> {
    /// About to look at a node that was prefetched, as the child of this one.
    Arriving {
        parent: Hop<'t>,
        child: FrameId,
    },
    At(Hop<'t>),
    /// Left to a lookup by itself.
    Alone,
}

impl<L: Layout> Tree<L> {
    /// Looks up all of `keys`; the answers are in their order.
    ///
    /// # Errors
    /// As for [`Tree::get`].
    pub async fn multi_get<E: Endpoint, K: AsRef<[u8]>>(
        &self,
        ctx: Ctx<'_, E>,
        keys: &[K],
        answers: &mut Answers,
    ) -> Result<()> {
        answers.clear();
        for group in keys.chunks(GROUP) {
            let mut lanes = [Lane::Alone; GROUP];
            self.descend_together(group, &mut lanes);
            for (key, lane) in group.iter().zip(&lanes) {
                let key = key.as_ref();
                let start = answers.bytes.len();
                let quick = match *lane {
                    Lane::At(leaf) => self.answer(ctx, leaf, key, &mut answers.bytes),
                    _ => Err(Retry::Restart),
                };
                let found = match quick {
                    Ok(found) => found,
                    Err(_) => {
                        answers.bytes.truncate(start);
                        self.get(ctx, key, &mut answers.bytes).await?
                    }
                };
                answers.push(found, start);
            }
        }
        Ok(())
    }

    fn descend_together<'t, K: AsRef<[u8]>>(&'t self, keys: &[K], lanes: &mut [Lane<'t>; GROUP]) {
        let Ok(root) = self.root_hop() else { return };
        lanes[..keys.len()].fill(Lane::At(root));
        let levels = header::level(root.frame.words());
        // One round more than levels, since the root may have grown meanwhile; whoever is late goes alone.
        for _ in 0..=levels {
            let mut moved = false;
            for (key, lane) in keys.iter().zip(lanes.iter_mut()) {
                let hop = match *lane {
                    Lane::At(hop) => hop,
                    Lane::Arriving { parent, child } => match self.arrive(parent, child) {
                        Ok(hop) => hop,
                        Err(_) => {
                            *lane = Lane::Alone;
                            continue;
                        }
                    },
                    Lane::Alone => continue,
                };
                *lane = self.advance(hop, key.as_ref());
                moved |= matches!(lane, Lane::Arriving { .. });
            }
            if !moved {
                return;
            }
        }
    }

    #[inline]
    fn arrive<'t>(&'t self, parent: Hop<'t>, child: FrameId) -> Attempt<Hop<'t>> {
        let frame = self.cache.try_frame(child).ok_or(Retry::Restart)?;
        let version = frame.optimistic()?;
        parent.validate()?;
        Ok(Hop { frame, version })
    }

    #[inline]
    fn advance<'t>(&'t self, hop: Hop<'t>, key: &[u8]) -> Lane<'t> {
        let words = hop.frame.words();
        if header::level(words) == 0 {
            return Lane::At(hop);
        }
        let Ok(prepared) = self.layout.key(key) else { return Lane::Alone };
        let index = self.layout.child_index(words, prepared);
        let swip = Swip::from_raw(header::get(words, self.layout.child_word(words, index)));
        match swip.frame() {
            Some(child) => {
                self.cache.prefetch(child, self.layout.prefetch_bytes());
                Lane::Arriving { parent: hop, child }
            }
            None => Lane::Alone,
        }
    }

    #[inline]
    fn answer<E: Endpoint>(
        &self,
        ctx: Ctx<'_, E>,
        leaf: Hop<'_>,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Attempt<bool> {
        let words = leaf.frame.words();
        if header::level(words) != 0 {
            return Err(Retry::Restart);
        }
        let found = match self.layout.find(words, self.layout.key(key)?) {
            Ok(i) => match self.layout.append_value(words, i, out) {
                None => true,
                Some(_long) => return Err(Retry::Restart),
            },
            Err(_) => false,
        };
        leaf.validate()?;
        ctx.worker.counters().count_descent(0);
        Ok(found)
    }
}
