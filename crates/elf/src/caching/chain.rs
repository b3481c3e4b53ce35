//! Doubly linked lists of small numbers: the queues of the policies.
//!
//! The links of all numbers are two vectors, which several chains may share. A number is in one chain at a
//! time. Every operation takes constant time; the caller names the chain that a number is in.

const NONE: u32 = u32::MAX;

/// Neighbours of each number.
#[derive(Clone, Debug, Default)]
pub(super) struct Links {
    next: Vec<u32>,
    previous: Vec<u32>,
}

/// Ends of one chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    first: u32,
    last: u32,
}

impl Default for Chain {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

fn some(node: u32) -> Option<u32> {
    (node != NONE).then_some(node)
}

impl Chain {
    pub(super) fn first(&self) -> Option<u32> {
        some(self.first)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }
}

impl Links {
    pub(super) fn next(&self, node: u32) -> Option<u32> {
        some(self.next[node as usize])
    }

    /// Appends `node`, which is in no chain.
    pub(super) fn push_back(&mut self, chain: &mut Chain, node: u32) {
        self.insert_after(chain, some(chain.last), node);
    }

    /// Inserts `node`, which is in no chain, behind `before`, or as the first one.
    pub(super) fn insert_after(&mut self, chain: &mut Chain, before: Option<u32>, node: u32) {
        let at = node as usize;
        if self.next.len() <= at {
            self.next.resize(at + 1, NONE);
            self.previous.resize(at + 1, NONE);
        }
        self.previous[at] = before.unwrap_or(NONE);
        self.next[at] = before.map_or(chain.first, |before| self.next[before as usize]);
        self.link(chain, at, node, node);
    }

    /// Removes `node`, which is in `chain`.
    pub(super) fn remove(&mut self, chain: &mut Chain, node: u32) {
        let at = node as usize;
        self.link(chain, at, self.next[at], self.previous[at]);
    }

    /// Removes the first number.
    pub(super) fn pop_front(&mut self, chain: &mut Chain) -> Option<u32> {
        let first = chain.first()?;
        self.remove(chain, first);
        Some(first)
    }

    /// Makes `next` follow the predecessor of `at`, and `previous` precede its successor.
    fn link(&mut self, chain: &mut Chain, at: usize, next: u32, previous: u32) {
        match some(self.previous[at]) {
            Some(before) => self.next[before as usize] = next,
            None => chain.first = next,
        }
        match some(self.next[at]) {
            Some(after) => self.previous[after as usize] = previous,
            None => chain.last = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_order() {
        let (mut links, mut chain) = (Links::default(), Chain::default());
        let all = |links: &Links, chain: &Chain| {
            std::iter::successors(chain.first(), |&node| links.next(node)).collect::<Vec<_>>()
        };
        [3, 0, 7].into_iter().for_each(|node| links.push_back(&mut chain, node));
        links.insert_after(&mut chain, Some(3), 5);
        links.insert_after(&mut chain, None, 1);
        links.insert_after(&mut chain, Some(7), 2);
        assert_eq!(all(&links, &chain), [1, 3, 5, 0, 7, 2]);
        [1, 0, 2].into_iter().for_each(|node| links.remove(&mut chain, node));
        assert_eq!(all(&links, &chain), [3, 5, 7]);
        links.push_back(&mut chain, 0);
        assert_eq!((0..4).map(|_| links.pop_front(&mut chain)).collect::<Vec<_>>(), [3, 5, 7, 0].map(Some));
        assert!(chain.is_empty() && links.pop_front(&mut chain).is_none());
    }
}
