//! sanctum-tests.
