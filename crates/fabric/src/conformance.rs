//! One suite that every fabric passes (under construction).
