//! Records: what a compute server changed, under the latches of the pages that it changed.
//!
//! Records are physiological and redo only: a record names pages, and what to do inside them. Its number, the
//! *GSN*, says its place among all records of the log. Records are padded to whole words.
//!
//! ```text
//! word 0  [length:32][length of the key:16][kind:16]        length: header and body, without padding
//!      1  GSN
//!
//! Put, PutLong, Remove   [page] [key] [value]               a put of 8 B + 8 B: 40 B
//! Pages                  [images:32][freed:32] [length of an image] [page, image]... [freed page]...
//! Left                   [length of the low key + 1:32][length of the high key + 1:32] [low key] [high key]      0 for no bound
//! ```

use pando_fabric::GlobalAddr;
use pando_fabric::codec::{Put, Reader};

/// Bytes of a record before its body.
const HEADER: usize = 16;

const PUT: u16 = 1;
const PUT_LONG: u16 = 2;
const REMOVE: u16 = 3;
const PAGES: u16 = 4;
const LEFT: u16 = 5;

/// A change of one entry of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'b> {
    pub page: GlobalAddr,
    pub key: &'b [u8],
    pub change: Change<'b>,
}

/// New state of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'b> {
    /// It has this value.
    Put(&'b [u8]),
    /// It refers to a long value, by a reference of these bytes.
    PutLong(&'b [u8]),
    Remove,
}

/// All bytes of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Image<'b> {
    pub page: GlobalAddr,
    pub bytes: &'b [u8],
}

/// Keys from `low` up to, but not including, `high`; `None` is no bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'b> {
    pub low: Option<&'b [u8]>,
    pub high: Option<&'b [u8]>,
}

impl Span<'_> {
    pub fn contains(&self, key: &[u8]) -> bool {
        self.low.is_none_or(|low| low <= key) && self.high.is_none_or(|high| key < high)
    }
}

/// What one record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'b> {
    /// One entry of one page changed.
    Entry(Entry<'b>),
    /// Pages have these bytes, and others are no longer in use, all together: a change of the structure, or
    /// the image of a page that is about to be written. All images are of one length.
    Pages { images: Vec<Image<'b>>, freed: Vec<GlobalAddr> },
    /// These keys went to another compute server. What the log has of them before this is in the pages, and the pages
    /// may have changed since.
    Left(Span<'b>),
}

/// Appends bytes; words, the most frequent ones, without a call.
#[inline]
fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.as_array::<8>() {
        Some(word) => out.extend_from_slice(word),
        None => out.extend_from_slice(bytes),
    }
}

/// Length of a record of `bytes` bytes with its padding.
fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(8)
}

impl Entry<'_> {
    /// Bytes that a record of a change with such a key and value takes.
    pub fn stored_len(key: usize, value: usize) -> usize {
        padded(HEADER + 8 + key + value)
    }
}

impl<'b> Record<'b> {
    /// Bytes that a record of `images` pages of `bytes` bytes and `freed` freed pages takes.
    pub fn pages_len(images: usize, bytes: usize, freed: usize) -> usize {
        padded(HEADER + 16 + images * (8 + bytes) + freed * 8)
    }

    /// Bytes that this record takes.
    pub fn stored_len(&self) -> usize {
        match self {
            Self::Entry(Entry { key, change, .. }) => Entry::stored_len(key.len(), change.bytes().len()),
            Self::Pages { images, freed } => {
                let bytes = images.first().map_or(0, |image| image.bytes.len());
                Self::pages_len(images.len(), bytes, freed.len())
            }
            Self::Left(Span { low, high }) => {
                padded(HEADER + 8 + low.map_or(0, <[u8]>::len) + high.map_or(0, <[u8]>::len))
            }
        }
    }

    /// Appends the record with its number.
    ///
    /// # Panics
    /// If a key has 64 KiB or more, or images differ in length.
    pub(crate) fn encode(&self, gsn: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        match self {
            Self::Entry(Entry { page, key, change }) => {
                out.put_u16(u16::try_from(key.len()).expect("a key is shorter than a page"));
                out.put_u16(change.kind());
                out.put_u64(gsn);
                out.put_u64(page.raw());
                put_bytes(out, key);
                put_bytes(out, change.bytes());
            }
            Self::Pages { images, freed } => {
                let bytes = images.first().map_or(0, |image| image.bytes.len());
                out.put_u16(0);
                out.put_u16(PAGES);
                out.put_u64(gsn);
                out.put_u32(images.len() as u32);
                out.put_u32(freed.len() as u32);
                out.put_u64(bytes as u64);
                for image in images {
                    assert_eq!(image.bytes.len(), bytes, "the pages of an index have one size");
                    out.put_u64(image.page.raw());
                    out.extend_from_slice(image.bytes);
                }
                freed.iter().for_each(|page| out.put_u64(page.raw()));
            }
            Self::Left(Span { low, high }) => {
                out.put_u16(0);
                out.put_u16(LEFT);
                out.put_u64(gsn);
                let bounds = [low, high];
                bounds.iter().for_each(|bound| out.put_u32(bound.map_or(0, |key| key.len() as u32 + 1)));
                bounds.into_iter().flatten().for_each(|key| out.extend_from_slice(key));
            }
        }
        let len = out.len() - start;
        out.set_u32(start, len as u32);
        out.resize(start + padded(len), 0);
    }

    /// Decodes the body of a record.
    pub(crate) fn decode(raw: &RawRecord<'b>) -> Option<Self> {
        let mut reader = Reader::new(raw.body);
        let page = |reader: &mut Reader<'b>| GlobalAddr::from_raw(reader.u64().ok()?);
        if raw.kind == PAGES {
            let (images, freed) = (reader.u32().ok()? as usize, reader.u32().ok()? as usize);
            let bytes = usize::try_from(reader.u64().ok()?).ok()?;
            let image = |reader: &mut Reader<'b>| {
                Some(Image { page: page(reader)?, bytes: reader.bytes(bytes).ok()? })
            };
            let images = (0..images).map(|_| image(&mut reader)).collect::<Option<_>>()?;
            let freed = (0..freed).map(|_| page(&mut reader)).collect::<Option<_>>()?;
            reader.end().ok()?;
            return Some(Self::Pages { images, freed });
        }
        if raw.kind == LEFT {
            let lens = [reader.u32().ok()?, reader.u32().ok()?];
            let mut bound = |len: u32| match len.checked_sub(1) {
                Some(len) => reader.bytes(len as usize).ok().map(Some),
                None => Some(None),
            };
            let (low, high) = (bound(lens[0])?, bound(lens[1])?);
            reader.end().ok()?;
            return Some(Self::Left(Span { low, high }));
        }
        let page = page(&mut reader)?;
        let key = reader.bytes(raw.key_len).ok()?;
        let change = match raw.kind {
            PUT => Change::Put(reader.rest()),
            PUT_LONG => Change::PutLong(reader.rest()),
            REMOVE if reader.is_empty() => Change::Remove,
            _ => return None,
        };
        Some(Self::Entry(Entry { page, key, change }))
    }
}

impl<'b> Change<'b> {
    fn kind(&self) -> u16 {
        match self {
            Self::Put(_) => PUT,
            Self::PutLong(_) => PUT_LONG,
            Self::Remove => REMOVE,
        }
    }

    fn bytes(&self) -> &'b [u8] {
        match *self {
            Self::Put(bytes) | Self::PutLong(bytes) => bytes,
            Self::Remove => &[],
        }
    }
}

/// A record whose body is not decoded yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawRecord<'b> {
    pub gsn: u64,
    kind: u16,
    key_len: usize,
    body: &'b [u8],
}

/// Splits off the record at the front of `bytes`; `None` if there is no whole one.
pub(crate) fn split_record<'b>(bytes: &mut &'b [u8]) -> Option<RawRecord<'b>> {
    let mut reader = Reader::new(bytes);
    let len = reader.u32().ok()? as usize;
    let (key_len, kind) = (reader.u16().ok()? as usize, reader.u16().ok()?);
    let gsn = reader.u64().ok()?;
    let body = bytes.get(HEADER..len)?;
    *bytes = bytes.get(padded(len)..)?;
    Some(RawRecord { gsn, kind, key_len, body })
}

#[cfg(test)]
mod tests {
    use pando_fabric::MemoryServerId;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn page(number: u64) -> GlobalAddr {
        GlobalAddr::new(MemoryServerId(1), number * 64)
    }

    #[test]
    fn a_put_of_two_words_takes_40_bytes() {
        let put = Entry { page: page(1), key: &[1; 8], change: Change::Put(&[2; 8]) };
        assert_eq!(Record::Entry(put).stored_len(), 40);
    }

    proptest! {
        #[test]
        fn records_come_back(
            gsn in 1..u64::MAX, key in vec(any::<u8>(), 0..40), value in vec(any::<u8>(), 0..40),
            kind in 0..6, images in vec(any::<[u8; 24]>(), 0..4), freed in vec(0..99u64, 0..3),
        ) {
            let change = match kind {
                0 => Change::Put(&value),
                1 => Change::PutLong(&value),
                _ => Change::Remove,
            };
            let record = match kind {
                3 => Record::Pages {
                    images: images.iter().enumerate().map(|(i, bytes)| Image { page: page(i as u64), bytes }).collect(),
                    freed: freed.into_iter().map(page).collect(),
                },
                4 => Record::Left(Span { low: Some(&key), high: Some(&value) }),
                5 => Record::Left(Span { low: None, high: Some(&value).filter(|high| !high.is_empty()).map(|high| &high[..]) }),
                _ => Record::Entry(Entry { page: page(7), key: &key, change }),
            };
            let mut bytes = vec![9];
            record.encode(gsn, &mut bytes);
            prop_assert_eq!(bytes.len(), 1 + record.stored_len());
            let mut rest = &bytes[1..];
            let raw = split_record(&mut rest).expect("a whole record");
            prop_assert!(rest.is_empty());
            prop_assert_eq!(raw.gsn, gsn);
            prop_assert_eq!(Record::decode(&raw), Some(record));
            // A record that is cut short is none.
            let mut short = &bytes[1..bytes.len() - 1];
            prop_assert!(split_record(&mut short).is_none());
        }

        #[test]
        fn any_bytes_are_a_record_or_none(bytes in vec(any::<u8>(), 0..200)) {
            let mut rest = &bytes[..];
            while let Some(raw) = split_record(&mut rest) {
                let _ = Record::decode(&raw);
            }
        }
    }
}
