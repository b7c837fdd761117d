//! One process, one model, one device.
#![forbid(unsafe_code)]

pub mod engine;
