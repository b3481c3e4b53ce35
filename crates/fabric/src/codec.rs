//! Encoding and decoding of messages, for all protocols.
//!
//! Numbers are little-endian. A [`Reader`] never looks beyond the bytes at hand, copies nothing and allocates
//! nothing. It returns slices of the message, and each count that it returns is bounded by the bytes that
//! follow. Requests differ between protocols. Replies have the same header everywhere, which [`ReplyFrame`]
//! writes and [`split_reply`] reads:
//!
//! ```text
//! [status 1][op 1][answer 1][0 1][len 4]  body: len bytes
//! ```

/// Reason why bytes are not a message of a protocol whose operations are `Op`. The bytes that follow are
/// unusable too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed<Op> {
    #[error("there is no operation {0}")]
    UnknownOp(u8),
    #[error("a field that must be 0 is not")]
    NotZero,
    #[error("{len} bytes are more than the {max} that a message may be about")]
    TooLong { len: u32, max: u32 },
    #[error("the lengths in a request {0:?} do not go together")]
    WrongLength(Op),
    #[error("a request {0:?} has flags that mean nothing")]
    UnknownFlags(Op),
    #[error("operation {0:?} cannot be chained")]
    NotChained(Op),
    #[error("a reply has status {0}")]
    UnknownStatus(u8),
    #[error("a reply does not belong to its request")]
    WrongReply,
    #[error(transparent)]
    Body(#[from] BadField),
}

/// Fault in the body of a message, and its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of a body: {what}")]
pub struct BadField {
    pub at: usize,
    pub what: &'static str,
}

/// The unread part of a message.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'b> {
    rest: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes, at: 0 }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// All remaining bytes.
    #[inline]
    pub fn rest(&self) -> &'b [u8] {
        self.rest
    }

    /// Error `what` at the next byte.
    #[cold]
    pub fn bad(&self, what: &'static str) -> BadField {
        BadField { at: self.at, what }
    }

    /// Reads `len` bytes.
    ///
    /// # Errors
    /// If fewer than `len` bytes are left.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Result<&'b [u8], BadField> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else { return Err(self.bad("cut short")) };
        self.rest = rest;
        self.at += len;
        Ok(bytes)
    }

    /// Reads `N` bytes.
    ///
    /// # Errors
    /// If fewer than `N` bytes are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], BadField> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as were asked for"))
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// If no byte is left.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, BadField> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads a number of 16 bits.
    ///
    /// # Errors
    /// If fewer than 2 bytes are left.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, BadField> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads a number of 32 bits.
    ///
    /// # Errors
    /// If fewer than 4 bytes are left.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, BadField> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number of 64 bits.
    ///
    /// # Errors
    /// If fewer than 8 bytes are left.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, BadField> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a length of 32 bits and that many bytes.
    ///
    /// # Errors
    /// If fewer bytes are left.
    #[inline]
    pub fn counted(&mut self) -> Result<&'b [u8], BadField> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    /// Reads the number of items that follow, each of at least `item_min` bytes.
    ///
    /// # Errors
    /// If that many items do not fit into the remaining bytes.
    pub fn count(&mut self, item_min: usize) -> Result<usize, BadField> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / item_min {
            return Err(self.bad("more items than bytes"));
        }
        Ok(count)
    }

    /// Checks that the whole message was read.
    ///
    /// # Errors
    /// If bytes are left.
    #[inline]
    pub fn end(&self) -> Result<(), BadField> {
        if self.is_empty() { Ok(()) } else { Err(self.bad("more than belongs there")) }
    }
}

/// Interprets bytes as UTF-8 text.
///
/// # Errors
/// If they are not UTF-8; the error gives the offset of the first invalid byte.
pub fn text(bytes: &[u8]) -> Result<&str, BadField> {
    std::str::from_utf8(bytes).map_err(|error| BadField { at: error.valid_up_to(), what: "no text" })
}

/// Appends the fields of a message to a vector.
pub trait Put: AsMut<Vec<u8>> {
    #[inline]
    fn put_u16(&mut self, number: u16) {
        self.as_mut().extend_from_slice(&number.to_le_bytes());
    }

    #[inline]
    fn put_u32(&mut self, number: u32) {
        self.as_mut().extend_from_slice(&number.to_le_bytes());
    }

    #[inline]
    fn put_u64(&mut self, number: u64) {
        self.as_mut().extend_from_slice(&number.to_le_bytes());
    }

    /// Appends a length of 32 bits and the bytes.
    #[inline]
    fn put_counted(&mut self, bytes: &[u8]) {
        self.put_u32(bytes.len() as u32);
        self.as_mut().extend_from_slice(bytes);
    }

    /// Overwrites the 4 bytes at `at`, for a length that becomes known later.
    #[inline]
    fn set_u32(&mut self, at: usize, number: u32) {
        self.as_mut()[at..][..4].copy_from_slice(&number.to_le_bytes());
    }
}

impl Put for Vec<u8> {}

/// Length of a reply's header in bytes.
pub const REPLY_HEADER: usize = 8;

/// A reply under construction: its header, then the body that the caller appends.
#[derive(Debug)]
pub struct ReplyFrame {
    start: usize,
    op: u8,
}

impl ReplyFrame {
    /// Reserves the header of a reply to operation `op`.
    pub fn begin(out: &mut Vec<u8>, op: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; REPLY_HEADER]);
        Self { start, op }
    }

    /// Offset of the body in the output.
    pub fn body(&self) -> usize {
        self.start + REPLY_HEADER
    }

    /// Fills in the header of a reply whose body is complete.
    pub fn finish(self, out: &mut [u8], status: u8, answer: u8) {
        let len = (out.len() - self.body()) as u32;
        let header = &mut out[self.start..][..REPLY_HEADER];
        header[..4].copy_from_slice(&[status, self.op, answer, 0]);
        header[4..].copy_from_slice(&len.to_le_bytes());
    }
}

/// A reply within received bytes.
#[derive(Clone, Copy, Debug)]
pub struct RawReply<'b> {
    pub status: u8,
    pub answer: u8,
    pub body: &'b [u8],
    /// Length of header and body in bytes.
    pub used: usize,
}

/// Splits off the reply to a request `op` at the front of `bytes`; `None` if more bytes are needed.
///
/// # Errors
/// If the bytes cannot become a valid reply, whatever follows.
pub fn split_reply<Op>(
    bytes: &[u8],
    op: u8,
    status_max: u8,
    body_max: u32,
) -> Result<Option<RawReply<'_>>, Malformed<Op>> {
    let Some((&[status, answered, answer, zero, len @ ..], rest)) = bytes.split_first_chunk::<REPLY_HEADER>()
    else {
        return Ok(None);
    };
    if answered != op || zero != 0 {
        return Err(Malformed::WrongReply);
    }
    let len = u32::from_le_bytes(len);
    if len > body_max {
        return Err(Malformed::TooLong { len, max: body_max });
    }
    if status > status_max {
        return Err(Malformed::UnknownStatus(status));
    }
    let Some(body) = rest.get(..len as usize) else { return Ok(None) };
    Ok(Some(RawReply { status, answer, body, used: REPLY_HEADER + body.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back() {
        let mut bytes = Vec::new();
        bytes.put_u16(0x0102);
        bytes.put_u32(7);
        bytes.put_u64(u64::MAX);
        bytes.put_counted(b"key");
        bytes.push(9);
        bytes.set_u32(2, 8);
        let mut reader = Reader::new(&bytes);
        assert_eq!((reader.u16(), reader.u32(), reader.u64()), (Ok(0x0102), Ok(8), Ok(u64::MAX)));
        assert_eq!(reader.counted(), Ok(&b"key"[..]));
        assert_eq!(reader.end(), Err(BadField { at: 21, what: "more than belongs there" }));
        assert_eq!((reader.u8(), reader.end()), (Ok(9), Ok(())));
        assert_eq!(reader.u8(), Err(BadField { at: 22, what: "cut short" }));
    }

    #[test]
    fn lengths_and_counts_beyond_the_bytes_at_hand_are_refused() {
        let bytes = [4, 0, 0, 0, 1, 2, 3];
        let error = Reader::new(&bytes).counted().expect_err("one byte is missing");
        assert_eq!(error.to_string(), "byte 4 of a body: cut short");
        assert_eq!(Reader::new(&[0xff; 12]).counted(), Err(BadField { at: 4, what: "cut short" }));
        assert_eq!(Reader::new(&bytes).count(1), Err(BadField { at: 4, what: "more items than bytes" }));
        assert!(Reader::new(&[0xff; 12]).count(1).is_err());
        assert_eq!(Reader::new(&[3, 0, 0, 0, 1, 2, 3]).count(1), Ok(3));
        assert!(Reader::new(&[3, 0, 0, 0, 1, 2, 3]).count(2).is_err());
        assert_eq!(text(b"ab\xff"), Err(BadField { at: 2, what: "no text" }));
    }

    #[test]
    fn replies_come_back_and_others_are_refused() {
        let mut bytes = b"before".to_vec();
        let reply = ReplyFrame::begin(&mut bytes, 5);
        assert_eq!(reply.body(), bytes.len());
        bytes.extend_from_slice(b"body");
        reply.finish(&mut bytes, 1, 2);
        let mut bytes = bytes.split_off(6);
        bytes.push(0);
        let split = |bytes: &[u8], op, status_max, body_max| {
            let reply = split_reply::<u8>(bytes, op, status_max, body_max)?;
            Ok(reply.map(|reply| (reply.status, reply.answer, reply.body.to_vec(), reply.used)))
        };
        assert_eq!(split(&bytes, 5, 1, 4), Ok(Some((1, 2, b"body".to_vec(), 12))));
        for short in 0..12 {
            assert_eq!(split(&bytes[..short], 5, 1, 4), Ok(None));
        }
        assert_eq!(split(&bytes, 6, 1, 4), Err(Malformed::WrongReply));
        assert_eq!(split(&bytes, 5, 0, 4), Err(Malformed::UnknownStatus(1)));
        assert_eq!(split(&bytes, 5, 1, 3), Err(Malformed::TooLong { len: 4, max: 3 }));
        bytes[3] = 1;
        assert_eq!(split(&bytes, 5, 1, 4), Err(Malformed::WrongReply));
    }
}
