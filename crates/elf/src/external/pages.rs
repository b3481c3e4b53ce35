//! A file that is written out of order: at many places, each of which moves forward.
//!
//! Pages in memory collect what is written near each other. A page that must give way is written to the file,
//! and read again if a place is not yet past it. With more pages than places that hardly happens; with fewer
//! it is slow, not wrong. The file is empty in the beginning, and bytes that are never written are zero.

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom, Write};

use super::budget::PageBudget;
use super::scratch::Target;
use crate::error::Result;
use crate::layout::Header;

/// Where the next bytes go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor {
    pub(super) at: u64,
    /// Frame that held the page of the last write.
    frame: usize,
}

impl Cursor {
    pub(super) fn new(at: u64) -> Self {
        Self { at, frame: 0 }
    }
}

/// A page in memory.
struct Frame {
    page: u64,
    bytes: Box<[u8]>,
    /// Whether the page was used since the last search for a victim passed it.
    is_used: bool,
}

pub(super) struct Pages<F> {
    file: F,
    target: Target,
    /// Size of the file in the end.
    len: u64,
    page_bits: u32,
    frames_max: usize,
    frames: Vec<Frame>,
    frame_of: HashMap<u64, usize>,
    /// Frame at which the next search for a victim starts.
    hand: usize,
    /// Pages from this one on were never written to the file.
    end: u64,
}

impl<F: Read + Write + Seek> Pages<F> {
    /// Pages of `file`, which is empty and will have at most `len` bytes.
    pub(super) fn new(file: F, target: Target, len: u64, budget: PageBudget) -> Self {
        let PageBudget { page_bits, pages } = budget;
        let (frames, frame_of) = (Vec::new(), HashMap::new());
        Self { file, target, len, page_bits, frames_max: pages, frames, frame_of, hand: 0, end: 0 }
    }

    /// Writes `bytes` at the cursor, which moves behind them.
    #[inline]
    pub(super) fn put(&mut self, cursor: &mut Cursor, mut bytes: &[u8]) -> Result<()> {
        let page_bytes = 1_usize << self.page_bits;
        while !bytes.is_empty() {
            let page = cursor.at >> self.page_bits;
            if self.frames.get(cursor.frame).is_none_or(|frame| frame.page != page) {
                cursor.frame = self.fetch(page)?;
            }
            let frame = &mut self.frames[cursor.frame];
            frame.is_used = true;
            let within = cursor.at as usize & (page_bytes - 1);
            let (now, later) = bytes.split_at(bytes.len().min(page_bytes - within));
            frame.bytes[within..within + now.len()].copy_from_slice(now);
            cursor.at += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Frame that holds `page`.
    fn fetch(&mut self, page: u64) -> Result<usize> {
        if let Some(&frame) = self.frame_of.get(&page) {
            return Ok(frame);
        }
        let frame = if self.frames.len() < self.frames_max {
            let bytes = vec![0; 1 << self.page_bits].into_boxed_slice();
            self.frames.push(Frame { page, bytes, is_used: true });
            self.frames.len() - 1
        } else {
            let victim = self.victim();
            self.write_back(victim)?;
            self.frame_of.remove(&self.frames[victim].page);
            victim
        };
        self.frames[frame].page = page;
        self.frames[frame].bytes.fill(0);
        if page < self.end {
            self.read(frame)?;
        }
        self.frame_of.insert(page, frame);
        Ok(frame)
    }

    /// The next frame that was not used since the last search.
    fn victim(&mut self) -> usize {
        loop {
            self.hand = (self.hand + 1) % self.frames.len();
            if !std::mem::replace(&mut self.frames[self.hand].is_used, false) {
                return self.hand;
            }
        }
    }

    fn write_back(&mut self, frame: usize) -> Result<()> {
        let Frame { page, bytes, .. } = &self.frames[frame];
        let start = page << self.page_bits;
        let bytes = &bytes[..within(start, self.len, bytes.len())];
        let written = self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.write_all(bytes));
        self.end = self.end.max(page + 1);
        written.map_err(self.target.failed("write"))
    }

    /// Reads a page that was written, or lies before one that was.
    fn read(&mut self, frame: usize) -> Result<()> {
        let Frame { page, bytes, .. } = &mut self.frames[frame];
        let start = *page << self.page_bits;
        let len = within(start, self.len, bytes.len());
        let read =
            self.file.seek(SeekFrom::Start(start)).and_then(|_| self.file.read_exact(&mut bytes[..len]));
        read.map_err(self.target.failed("read"))
    }

    /// Writes all pages to the file and returns it.
    pub(super) fn flush(mut self) -> Result<F> {
        let mut frames: Vec<usize> = (0..self.frames.len()).collect();
        frames.sort_unstable_by_key(|&frame| self.frames[frame].page);
        frames.into_iter().try_for_each(|frame| self.write_back(frame))?;
        self.file.flush().map_err(self.target.failed("write"))?;
        Ok(self.file)
    }

    /// Completes an image: all of its bytes but the header are written.
    pub(super) fn seal(mut self, header: &Header) -> Result<()> {
        // Zeros at the end may be all that a page has.
        self.fetch((self.len - 1) >> self.page_bits)?;
        let (target, len) = (self.target.clone(), self.len);
        let page_bits = self.page_bits;
        let mut file = self.flush()?;
        let mut buffer = vec![0; 1 << page_bits];
        let mut hash = header.hasher();
        let mut at = Header::BYTES as u64;
        file.seek(SeekFrom::Start(at)).map_err(target.failed("read"))?;
        while at < len {
            let bytes = within(at, len, buffer.len());
            file.read_exact(&mut buffer[..bytes]).map_err(target.failed("read"))?;
            hash.update(&buffer[..bytes]);
            at += bytes as u64;
        }
        let written = file.rewind().and_then(|()| file.write_all(&header.sealed(hash.digest())));
        written.and_then(|()| file.flush()).map_err(target.failed("write"))
    }
}

/// How many of the `bytes` bytes from `start` on are before `len`.
fn within(start: u64, len: u64, bytes: usize) -> usize {
    usize::try_from(len - start).map_or(bytes, |rest| rest.min(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor as File;

    use super::*;

    #[test]
    fn places_in_turns_give_the_same_bytes_with_few_pages() {
        for pages in [1, 2, 7] {
            let mut image = vec![0_u8; 100_000];
            let mut places: Vec<Cursor> = (0..5).map(|i| Cursor::new(i * 20_000)).collect();
            let mut file = Pages::new(
                File::new(Vec::new()),
                Target::Output,
                100_000,
                PageBudget { page_bits: 12, pages },
            );
            for step in 0..4_900_usize {
                let place = &mut places[step * 7 % 5];
                let bytes = &(step as u32).to_le_bytes()[..1 + step % 4];
                image[place.at as usize..][..bytes.len()].copy_from_slice(bytes);
                file.put(place, bytes).expect("memory is a file");
            }
            let written = file.flush().expect("memory is a file").into_inner();
            assert!(
                written == image[..written.len()] && image[written.len()..].iter().all(|&byte| byte == 0)
            );
            assert!(written.len() <= image.len());
        }
    }
}
