//! Answers to many lookups, which may come from several compute servers.
//!
//! Each compute server appends its answers to a buffer of its own. A table of positions in those buffers
//! gives the answers in the order of the keys without copying values. All buffers are kept for reuse, so that
//! a loop over batches allocates little.

/// Answers of [`crate::Session::multi_get`], in the order of its keys. Reusing them saves allocations.
///
/// ```
/// use pando::{Answers, Cluster, Config, IndexOptions};
///
/// let cluster = Cluster::open(Config::embedded().compute_servers(2))?;
/// let session = cluster.create_index("n", &IndexOptions::bytes())?.session()?;
/// session.put(b"\x01", b"one")?;
/// session.put(b"\xf0", b"many")?;
/// let mut answers = Answers::default();
/// session.multi_get(&["\u{1}".as_bytes(), b"\x02", b"\xf0"], &mut answers)?;
/// assert_eq!(answers.iter().collect::<Vec<_>>(), [Some(&b"one"[..]), None, Some(b"many")]);
/// # Ok::<(), pando::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Answers {
    /// Buffers by number of compute server.
    parts: Vec<pando_dex::Answers>,
    /// Compute server of each answer, and position in its buffer; unused with one compute server.
    places: Vec<(u32, u32)>,
    of_many: bool,
}

impl Answers {
    /// Value of the `i`-th key; `None` if it is absent.
    ///
    /// # Panics
    /// If there were fewer keys.
    #[inline]
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        if self.of_many {
            let (part, at) = self.places[i];
            return self.parts[part as usize].get(at as usize);
        }
        assert!(i < self.len(), "there are {} answers, not {i}", self.len());
        self.parts[0].get(i)
    }

    /// Number of keys that were looked up.
    pub fn len(&self) -> usize {
        if self.of_many { self.places.len() } else { self.parts.first().map_or(0, pando_dex::Answers::len) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values in the order of the keys.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        (0..self.len()).map(|i| self.get(i))
    }

    pub(crate) fn of_one(&mut self) -> &mut pando_dex::Answers {
        self.of_many = false;
        if self.parts.is_empty() {
            self.parts.push(pando_dex::Answers::default());
        }
        &mut self.parts[0]
    }

    /// Buffers for the answers of `servers` compute servers; `partitions` has the compute server of each key.
    pub(super) fn of_many(
        &mut self,
        servers: usize,
        partitions: impl Iterator<Item = usize>,
    ) -> &mut [pando_dex::Answers] {
        self.of_many = true;
        self.parts.resize_with(servers.max(self.parts.len()), Default::default);
        self.places.clear();
        let mut counts = vec![0; servers];
        for partition in partitions {
            self.places.push((partition as u32, counts[partition]));
            counts[partition] += 1;
        }
        &mut self.parts[..servers]
    }
}
