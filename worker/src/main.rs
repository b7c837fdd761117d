//! The worker binary: assembles nothing itself, see the library.
fn main() {}
