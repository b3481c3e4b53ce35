//! Byte-string keys and values of any length (under construction).
