//! Memory that the jobs of one call write in parallel.
//!
//! Owns the one place where a `&mut` slice is handed to several threads. Every use says why its parts do not overlap.

use std::marker::PhantomData;

/// A mutable slice of which each job takes a part of its own.
#[derive(Debug)]
pub(super) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: `part` hands out disjoint parts only (its contract), each like a `&mut [T]` sent to another thread.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(super) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), borrowed: PhantomData }
    }

    /// The elements `from..from + len`.
    ///
    /// # Safety
    ///
    /// No two parts in use at the same time overlap.
    ///
    /// # Panics
    ///
    /// If the part does not lie within the slice.
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub(super) unsafe fn part(&self, from: usize, len: usize) -> &mut [T] {
        assert!(from <= self.len && len <= self.len - from, "a part outside the slice");
        // SAFETY: within the slice, and disjoint from other parts by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(from), len) }
    }
}
