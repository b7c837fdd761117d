//! The smart router: routes, defends, supervises.
#![forbid(unsafe_code)]

pub mod fleet;
