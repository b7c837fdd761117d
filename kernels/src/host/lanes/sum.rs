//! Sums of one row of numbers, in one order.
//!
//! Owns that order: partial sum `j` takes the elements `j, j + 32, j + 64, ...` in ascending order from `+0`, what is
//! missing at the end counting as `+0`; then the 32 partial sums are folded in halves, `j` with `j + 16`, `j + 8` ...

use super::{LANES, Lanes};

/// Partial sums of a row.
pub(in crate::host) const PARTIALS: usize = 2 * LANES;

/// Folds partial sums in halves. Destroys them.
#[inline(always)]
fn fold(partial: &mut [f32; PARTIALS]) -> f32 {
    let mut half = PARTIALS / 2;
    while half > 0 {
        for j in 0..half {
            partial[j] += partial[j + half];
        }
        half /= 2;
    }
    partial[0]
}

/// The sum of `len` floats.
///
/// # Safety
///
/// As for all of [`Lanes`]; `x` is good for `len` floats.
#[inline(always)]
pub(in crate::host) unsafe fn sum<L: Lanes>(x: *const f32, len: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { strided::<L, false>(x, len) }
}

/// The sum of the squares of `len` floats, each added by `fma(x, x, partial)`.
///
/// # Safety
///
/// As for [`sum`].
#[inline(always)]
pub(in crate::host) unsafe fn sum_squares<L: Lanes>(x: *const f32, len: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { strided::<L, true>(x, len) }
}

#[inline(always)]
unsafe fn strided<L: Lanes, const SQUARE: bool>(x: *const f32, len: usize) -> f32 {
    // SAFETY: whole strides end within `len`; the rest is read from a padded copy.
    unsafe {
        let mut partial = [L::zero(); 2];
        let whole = len / PARTIALS * PARTIALS;
        let mut k = 0;
        while k < whole {
            stride::<L, SQUARE>(&mut partial, x.add(k));
            k += PARTIALS;
        }
        if whole < len {
            let mut rest = [0.0; PARTIALS];
            std::ptr::copy_nonoverlapping(x.add(whole), rest.as_mut_ptr(), len - whole);
            stride::<L, SQUARE>(&mut partial, rest.as_ptr());
        }
        let mut folded = [0.0; PARTIALS];
        L::store(folded.as_mut_ptr(), partial[0]);
        L::store(folded.as_mut_ptr().add(LANES), partial[1]);
        fold(&mut folded)
    }
}

#[inline(always)]
unsafe fn stride<L: Lanes, const SQUARE: bool>(partial: &mut [L::F; 2], x: *const f32) {
    // SAFETY: the caller's 32 floats.
    unsafe {
        for (half, partial) in partial.iter_mut().enumerate() {
            let x = L::load(x.add(half * LANES));
            *partial = if SQUARE { L::fma(x, x, *partial) } else { L::add(*partial, x) };
        }
    }
}
