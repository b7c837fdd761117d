//! Placeholder until its builder writes it.
fn main() {}
