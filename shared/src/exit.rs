//! Exit codes of all binaries, after `sysexits.h`.
//!
//! A supervisor decides by them: [`CONFIG`] is never restarted, everything else may be. Code 2 (wrong usage) belongs
//! to the argument parser and is not used otherwise.

/// Done.
pub const OK: u8 = 0;
/// Failed in a way that has no number of its own.
pub const FAILURE: u8 = 1;
/// Wrong arguments.
pub const USAGE: u8 = 2;
/// A port is taken or a service is not there (`EX_UNAVAILABLE`).
pub const UNAVAILABLE: u8 = 69;
/// A mistake of ours (`EX_SOFTWARE`).
pub const INTERNAL: u8 = 70;
/// Try again later (`EX_TEMPFAIL`).
pub const TEMPORARY: u8 = 75;
/// The configuration is wrong, or a gate refused to start (`EX_CONFIG`): starting again cannot help.
pub const CONFIG: u8 = 78;
