//! Answers of many lookups, which may come from several compute servers.
//!
//! Each compute server answers its share of the keys into a buffer of its own; an index over those gives the
//! answers in the order of the keys without copying a value. Kept for reuse, so that a loop over batches allocates
//! little.

/// Answers of [`crate::Session::multi_get`], in the order of its keys. Kept for reuse: it then allocates little.
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
    /// By compute server.
    parts: Vec<pando_dex::Answers>,
    /// Compute server and place there of each answer; unused with one compute server.
    places: Vec<(u32, u32)>,
    of_many: bool,
}

impl Answers {
    /// The value of the `i`-th key; `None` if it is absent.
    ///
    /// # Panics
    /// If there were not so many keys.
    pub fn get(&self, i: usize) -> Option<&[u8]> {
        if self.of_many {
            let (part, at) = self.places[i];
            return self.parts[part as usize].get(at as usize);
        }
        assert!(i < self.len(), "there are {} answers, not {i}", self.len());
        self.parts[0].get(i)
    }

    pub fn len(&self) -> usize {
        if self.of_many { self.places.len() } else { self.parts.first().map_or(0, pando_dex::Answers::len) }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, in the order of the keys.
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

    /// Where the answers of each compute server go; `partitions` are those of the keys.
    pub(crate) fn of_many(
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
