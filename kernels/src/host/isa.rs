//! Which vector instructions the kernels use.
//!
//! Owns detection and the one door ([`Isa::run`]) through which code compiled for an instruction set is entered, so
//! that it never runs where it cannot. All paths give the same bits: the choice is about speed only.

use super::lanes::{Lanes, Scalar};

/// An instruction set that the kernels are compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Plain Rust. Runs everywhere.
    Scalar,
    /// x86 with AVX2, FMA and F16C.
    Avx2,
    /// x86 with AVX-512F.
    Avx512,
    /// 64-bit Arm.
    Neon,
}

/// Arithmetic that is generic over [`Lanes`], with its arguments.
pub(super) trait Kernel {
    /// What it computes.
    type Output;

    /// Computes. Must be `#[inline(always)]`, and so must everything it calls with `L`.
    ///
    /// # Safety
    ///
    /// The processor has `L`'s instructions. [`Isa::run`] sees to it.
    unsafe fn run<L: Lanes>(self) -> Self::Output;
}

impl Isa {
    /// Environment variable that overrides [`Isa::detect`]: `scalar`, `avx2`, `avx512` or `neon`.
    pub const VARIABLE: &str = "SANCTUM_ISA";

    const ALL: [Self; 4] = [Self::Scalar, Self::Avx2, Self::Avx512, Self::Neon];

    /// The set to use here: the one named by `SANCTUM_ISA` if this machine has it, else the widest.
    pub fn detect() -> Self {
        let widest = Self::available().last().copied().unwrap_or(Self::Scalar);
        let Some(wanted) = std::env::var_os(Self::VARIABLE) else { return widest };
        match Self::available().into_iter().find(|isa| wanted.eq_ignore_ascii_case(isa.name())) {
            Some(isa) => isa,
            None => {
                tracing::warn!(?wanted, using = widest.name(), "SANCTUM_ISA is not available here");
                widest
            }
        }
    }

    /// All sets that run on this machine, narrowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has the set.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(not(all(target_arch = "x86_64", target_arch = "aarch64")))]
            _ => false,
        }
    }

    /// Its name, as `SANCTUM_ISA` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// Runs a kernel with this set.
    ///
    /// # Panics
    ///
    /// If this machine does not have it.
    pub(super) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "this machine has no {}", self.name());
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: availability was just checked.
            Self::Avx2 => unsafe { super::lanes::avx2::run(kernel) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: availability was just checked.
            Self::Avx512 => unsafe { super::lanes::avx512::run(kernel) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: availability was just checked.
            Self::Neon => unsafe { super::lanes::neon::run(kernel) },
            // SAFETY: scalar code runs everywhere.
            _ => unsafe { kernel.run::<Scalar>() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Isa;

    #[test]
    fn the_scalar_path_is_always_there_and_comes_first() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::Scalar));
        assert!(available.is_sorted() && available.contains(&Isa::detect()));
        assert!(!(Isa::Neon.is_available() && Isa::Avx2.is_available()));
    }
}
