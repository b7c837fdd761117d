//! What the promises in `tests/tests/` stand on: harnesses that start real binaries, ask them, and clean up.

pub mod live;
