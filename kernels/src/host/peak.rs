//! What the arithmetic units can do at most, for benchmarks to compare with.

use std::hint::black_box;

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};

/// Independent chains: enough to hide the latency on every set, few enough for the registers.
const CHAINS: usize = 6;
/// Floating-point operations in a step of [`fma_loop`].
pub const FMA_LOOP_FLOPS: usize = 2 * LANES * CHAINS;

/// Does nothing but fused multiply-adds in registers, `steps` times [`FMA_LOOP_FLOPS`] operations.
pub fn fma_loop(isa: Isa, steps: usize) {
    isa.run(FmaLoop(steps));
}

struct FmaLoop(usize);

impl Kernel for FmaLoop {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: `Isa::run` chose `L`; stores go to a local array.
        unsafe {
            let (a, b) = (L::splat(black_box(0.999)), L::splat(black_box(0.001)));
            let mut chains = [L::zero(); CHAINS];
            for _ in 0..self.0 {
                for chain in &mut chains {
                    *chain = L::fma(*chain, a, b);
                }
            }
            let mut out = [0.0; LANES];
            for chain in chains {
                L::store(out.as_mut_ptr(), chain);
                black_box(&out);
            }
        }
    }
}
