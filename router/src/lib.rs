//! The smart router: routes, defends, supervises.
#![forbid(unsafe_code)]

pub mod admin;
mod admission;
mod backend;
pub mod cli;
pub mod fleet;
mod house;
mod http;
pub mod metrics;
mod route;
pub mod run;
mod stream;
pub mod supervise;
