//! Messages that carry calls between two queue pairs, and replies longer than one message.
//!
//! A call fits into one message; a longer one goes over the connection. A reply has the same bytes as over a
//! connection ([`pando_fabric_net::wire::decode_reply`]), split into parts. The first part is sent at once,
//! each further one on request, so that a buffer is ready for it. Decoding refuses every message that is not
//! complete and well formed.
//!
//! ```text
//! [id of the call 4][what 1][0 1][kind of the request 2][len 4][0 4]  body: len bytes, and zeros up to a whole word
//! ```

use pando_fabric::codec::{BadField, Put, Reader};

/// Maximum length of a message, and length of the buffers for messages.
pub(crate) const MESSAGE_MAX: usize = 4096;
/// Maximum length of the body of one message.
pub(crate) const BODY_MAX: usize = MESSAGE_MAX - HEADER;
const HEADER: usize = 16;
/// Messages are padded to whole words.
const WORD: usize = pando_fabric::WORD;

const _: () = assert!(MESSAGE_MAX.is_multiple_of(WORD));

const CALL: u8 = 1;
const NEXT: u8 = 2;
const LAST_PART: u8 = 3;
const PART: u8 = 4;

/// A message between the ends of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message<'b> {
    /// Executes a call.
    Call { id: u32, kind: u16, body: &'b [u8] },
    /// Asks for the next part of the reply.
    Next { id: u32 },
    /// A part of the reply; more follow unless it is the last.
    Part { id: u32, bytes: &'b [u8], is_last: bool },
}

impl<'b> Message<'b> {
    /// Encodes the message, padded to whole words, in place of the content of `out`.
    ///
    /// # Panics
    /// If it carries more than [`BODY_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (id, what, kind, body) = match *self {
            Self::Call { id, kind, body } => (id, CALL, kind, body),
            Self::Next { id } => (id, NEXT, 0, &[][..]),
            Self::Part { id, bytes, is_last: true } => (id, LAST_PART, 0, bytes),
            Self::Part { id, bytes, is_last: false } => (id, PART, 0, bytes),
        };
        assert!(body.len() <= BODY_MAX, "{} bytes in one message", body.len());
        out.clear();
        out.put_u32(id);
        out.extend_from_slice(&[what, 0]);
        out.put_u16(kind);
        out.put_u32(body.len() as u32);
        out.put_u32(0);
        out.extend_from_slice(body);
        out.resize(out.len().next_multiple_of(WORD), 0);
    }

    /// Decodes a message that consists of exactly `bytes`.
    pub fn decode(bytes: &'b [u8]) -> Option<Self> {
        Self::read(Reader::new(bytes)).ok()
    }

    fn read(mut left: Reader<'b>) -> Result<Self, BadField> {
        let (id, [what, zero], kind) = (left.u32()?, left.array()?, left.u16()?);
        let (len, zero_too) = (left.u32()? as usize, left.u32()?);
        let body = left.bytes(len)?;
        if zero != 0
            || zero_too != 0
            || len > BODY_MAX
            || left.rest().len() != len.next_multiple_of(WORD) - len
        {
            return Err(left.bad("no header of a message"));
        }
        match what {
            CALL => Ok(Self::Call { id, kind, body }),
            NEXT if kind == 0 && body.is_empty() => Ok(Self::Next { id }),
            PART | LAST_PART if kind == 0 => Ok(Self::Part { id, bytes: body, is_last: what == LAST_PART }),
            _ => Err(left.bad("no message")),
        }
    }
}

/// The part of a reply that is not sent yet.
#[derive(Debug)]
pub(crate) struct Rest {
    reply: Vec<u8>,
    sent: usize,
}

impl Rest {
    pub fn new(reply: Vec<u8>) -> Self {
        Self { reply, sent: 0 }
    }

    /// Encodes the next part as a message into `out`. Returns whether it is the last.
    pub fn next_part(&mut self, id: u32, out: &mut Vec<u8>) -> bool {
        let left = &self.reply[self.sent..];
        let bytes = &left[..left.len().min(BODY_MAX)];
        let is_last = bytes.len() == left.len();
        Message::Part { id, bytes, is_last }.encode(out);
        self.sent += bytes.len();
        is_last
    }
}

/// The parts of a reply received so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub reply: Vec<u8>,
}

impl Parts {
    /// Adds the next part of a reply of at most `max` bytes. Returns whether another part must be requested,
    /// or `None` if the part is not valid.
    pub fn add(&mut self, bytes: &[u8], is_last: bool, max: usize) -> Option<bool> {
        // Only the last part may be short, so the number of parts is bounded.
        let is_well = self.reply.len() + bytes.len() <= max && (is_last || bytes.len() == BODY_MAX);
        if is_well {
            self.reply.extend_from_slice(bytes);
        }
        is_well.then_some(!is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let body: Vec<u8> = (0..BODY_MAX).map(|byte| byte as u8).collect();
        let mut bytes = vec![7; 9];
        for len in [0, 1, 7, 8, 9, BODY_MAX - 1, BODY_MAX] {
            let body = &body[..len];
            for message in [
                Message::Call { id: 1, kind: 0xffff, body },
                Message::Next { id: u32::MAX },
                Message::Part { id: 0, bytes: body, is_last: true },
                Message::Part { id: 0, bytes: body, is_last: false },
            ] {
                message.encode(&mut bytes);
                assert!(bytes.len().is_multiple_of(WORD) && bytes.len() <= MESSAGE_MAX);
                assert_eq!(Message::decode(&bytes), Some(message));
            }
        }
    }

    /// A change of these bytes needs a new protocol version.
    #[test]
    fn messages_have_these_bytes() {
        // Id, kind of message, zero, kind of request, length, zero, padded body.
        for (message, golden) in [
            (
                Message::Call { id: 0x0102_0304, kind: 0x4458, body: b"abc" },
                "04030201 01 00 5844 03000000 00000000 6162630000000000",
            ),
            (Message::Next { id: 5 }, "05000000 02 00 0000 00000000 00000000"),
            (
                Message::Part { id: 6, bytes: b"8 bytes.", is_last: true },
                "06000000 03 00 0000 08000000 00000000 382062797465732e",
            ),
            (Message::Part { id: 7, bytes: &[], is_last: false }, "07000000 04 00 0000 00000000 00000000"),
        ] {
            let mut bytes = vec![1; 3];
            message.encode(&mut bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(hex, golden.replace(' ', ""), "{message:?}");
            assert_eq!(Message::decode(&bytes), Some(message));
        }
    }

    #[test]
    fn what_is_not_whole_is_no_message() {
        let mut good = Vec::new();
        Message::Call { id: 1, kind: 2, body: &[3; 20] }.encode(&mut good);
        for len in 0..good.len() {
            assert_eq!(Message::decode(&good[..len]), None, "{len} bytes of it");
        }
        assert_eq!(Message::decode(&[&good[..], &[0; 8]].concat()), None, "more than it says");
        assert_eq!(Message::decode(&[0xff; 64]), None);
        for (place, byte) in [(4, 0), (4, NEXT), (4, PART), (4, 9), (5, 1), (8, 25), (11, 0xff), (12, 1)] {
            let mut bad = good.clone();
            bad[place] = byte;
            assert_eq!(Message::decode(&bad), None, "byte {place} is {byte}");
        }
        let mut long = vec![0; MESSAGE_MAX + WORD];
        long[4] = CALL;
        long[8..12].copy_from_slice(&((BODY_MAX + WORD) as u32).to_le_bytes());
        assert_eq!(Message::decode(&long), None, "longer than a message may be");
    }

    #[test]
    fn a_reply_goes_in_parts_and_comes_together_again() {
        for len in [0, 1, BODY_MAX - 1, BODY_MAX, BODY_MAX + 1, 2 * BODY_MAX, 100_000] {
            let reply: Vec<u8> = (0..len).map(|byte| (byte % 251) as u8).collect();
            let (mut rest, mut parts) = (Rest::new(reply.clone()), Parts::default());
            let (mut message, mut count) = (Vec::new(), 0);
            loop {
                let is_last = rest.next_part(5, &mut message);
                count += 1;
                let Some(Message::Part { id: 5, bytes, is_last: told }) = Message::decode(&message) else {
                    panic!("it is a part")
                };
                assert_eq!(told, is_last);
                assert_eq!(parts.add(bytes, is_last, len), Some(!is_last));
                if is_last {
                    break;
                }
            }
            assert_eq!((parts.reply, count), (reply, len.div_ceil(BODY_MAX).max(1)));
        }
    }

    #[test]
    fn a_reply_has_an_end() {
        let part = [0; BODY_MAX];
        let mut parts = Parts::default();
        assert_eq!(parts.add(&part, false, 2 * BODY_MAX), Some(true));
        assert_eq!(parts.add(&[], false, 2 * BODY_MAX), None, "an empty part brings it no closer to its end");
        assert_eq!(parts.add(&part, false, 2 * BODY_MAX), Some(true));
        assert_eq!(parts.add(&[0], true, 2 * BODY_MAX), None, "longer than a reply may be");
        assert_eq!(parts.add(&[], true, 2 * BODY_MAX), Some(false));
    }
}
