//! Frames of the operation port: requests of a client to a compute server, and the replies.
//!
//! A connection carries requests one way and replies the other way, both in order, so neither is numbered. A
//! request is a header of 16 bytes and a body, a reply a header of 8 bytes and a body; all numbers are
//! little-endian. `docs/operations.md` has drawings. Decoding never panics and never reads beyond the bytes
//! received. It returns a frame, or `None` if it needs more bytes, or [`Malformed`], after which the
//! connection is closed.

mod reply;
mod request;

pub use crate::error::ErrorCode;
pub use pando_fabric::codec::REPLY_HEADER;
pub use reply::{
    ANSWER_BYTES, Described, Entries, Opened, Page, REPLY_MAX, Reply, ReplyEncoder, Values, decode_reply,
    put_entry, put_value,
};
pub use request::{
    BODY_MAX, KEY_MAX, Keys, Malformed, Op, REQUEST_HEADER, Request, UNLIMITED, decode_request, put_keys,
    request_len,
};
