//! One process, one model, one device.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod doctor;
pub mod engine;
pub mod http;
pub mod import;
pub mod load;
pub mod metrics;
pub mod model;
pub mod parity;
pub mod sample;
pub mod schedule;
pub mod serve;
pub mod stream;
pub mod template;
pub mod tokenize;
