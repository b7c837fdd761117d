//! One process, one model, one device.
#![forbid(unsafe_code)]
