//! How weights lie in memory, and how a vector of them becomes floats.
//!
//! Owns the formats. A *unit* is what is read at once: for 32 output rows the same few inputs, lane beside lane. Bits are
//! not shifted down to the integer they mean: an element at bit `s` of its word becomes `q * 2^s`, and the inputs are
//! scaled by `2^-s` beforehand ([`input_scale`]), which gives the same products and saves an instruction for each.

use half::{bf16, f16};

use crate::host::lanes::{LANES, Lanes};
use crate::tensor::DType;

/// Output rows whose weights lie together: two vectors.
pub(super) const TILE: usize = 2 * LANES;

/// Formats of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// Eight 4-bit integers in a word.
    Nibbles,
    /// Four 8-bit integers in a word.
    Bytes,
    /// Floats, two inputs to a unit.
    Floats(FloatType),
}

/// Formats of floats, of weights and of scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FloatType {
    F32,
    F16,
    Bf16,
}

impl Format {
    /// Inputs of a unit.
    pub(super) fn unit(self) -> usize {
        match self {
            Self::Nibbles => 8,
            Self::Bytes => 4,
            Self::Floats(_) => 2,
        }
    }

    /// Bytes of a unit, for all rows of a tile.
    pub(super) fn unit_bytes(self) -> usize {
        match self {
            Self::Nibbles | Self::Bytes => 4 * TILE,
            Self::Floats(float) => 2 * float.size() * TILE,
        }
    }

    /// Element `i` of row `lane` of a unit: the integer, or the float.
    pub(super) fn read(self, unit: &[u8], lane: usize, i: usize) -> f32 {
        match self {
            Self::Nibbles => f32::from(unit[4 * lane + i / 2] >> (i % 2 * 4) & 0xf),
            Self::Bytes => f32::from(unit[4 * lane + i]),
            Self::Floats(float) => float.read(&unit[(i * TILE + lane) * float.size()..]),
        }
    }
}

impl FloatType {
    /// The type's format. `None` for integers, which no checked matrix holds.
    pub(super) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::Bf16 => Some(Self::Bf16),
            DType::U32 | DType::I32 | DType::U8 => None,
        }
    }

    pub(super) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// One float, widened.
    pub(super) fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F32, &[a, b, c, d, ..]) => f32::from_ne_bytes([a, b, c, d]),
            (Self::F16, &[a, b, ..]) => f16::from_ne_bytes([a, b]).to_f32(),
            (Self::Bf16, &[a, b, ..]) => bf16::from_ne_bytes([a, b]).to_f32(),
            _ => unreachable!("a float has two or four bytes"),
        }
    }
}

/// The factor on the input at place `i` of a unit that undoes the element's bit position.
pub(super) fn input_scale(format: Format, i: usize) -> f32 {
    let two_to_minus = |bit: usize| f32::from_bits((127 - bit as u32) << 23);
    match format {
        Format::Nibbles if i < 7 => two_to_minus(4 * i),
        Format::Bytes if i < 3 => two_to_minus(8 * i),
        // The topmost element is shifted down after all: its bit position could make the word negative.
        Format::Nibbles | Format::Bytes | Format::Floats(_) => 1.0,
    }
}

/// Reading one format of weights.
pub(super) trait Codec {
    /// The format.
    const FORMAT: Format;
    /// Inputs of a unit, at most 8.
    const UNIT: usize;
    /// Sixteen rows' part of a unit, as read.
    type Raw<L: Lanes>: Copy;

    /// Reads the part of a unit for the rows of strip 0 or 1.
    ///
    /// # Safety
    ///
    /// As for all of [`Lanes`]; `unit` is good for a unit's bytes.
    unsafe fn load<L: Lanes>(unit: *const u8, strip: usize) -> Self::Raw<L>;

    /// The weights of input `i` of the unit, times `1 / input_scale`.
    ///
    /// # Safety
    ///
    /// As for all of [`Lanes`].
    unsafe fn element<L: Lanes>(raw: Self::Raw<L>, i: usize) -> L::F;

    /// Adds the products of input `i` of the unit, which is `x`, to the sums of both strips.
    ///
    /// # Safety
    ///
    /// As for all of [`Lanes`].
    #[inline(always)]
    unsafe fn add_products<L: Lanes>(raw: [Self::Raw<L>; 2], i: usize, x: L::F, d: &mut [L::F; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            for (d, &raw) in d.iter_mut().zip(&raw) {
                *d = L::fma(Self::element::<L>(raw, i), x, *d);
            }
        }
    }
}

/// Marks [`Format::Nibbles`].
pub(super) struct Nibbles;
/// Marks [`Format::Bytes`].
pub(super) struct Bytes;
/// Marks [`Format::Floats`] of the float `T`.
pub(super) struct Floats<T>(std::marker::PhantomData<T>);

impl Codec for Nibbles {
    const FORMAT: Format = Format::Nibbles;
    const UNIT: usize = 8;
    type Raw<L: Lanes> = L::U;

    #[inline(always)]
    unsafe fn load<L: Lanes>(unit: *const u8, strip: usize) -> L::U {
        // SAFETY: the caller's promise; a strip is sixteen words.
        unsafe { L::load_u(unit.cast::<u32>().add(strip * LANES)) }
    }

    #[inline(always)]
    unsafe fn element<L: Lanes>(word: L::U, i: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe {
            L::to_float(match i {
                7 => L::shr::<28>(word),
                _ => L::and(word, L::splat_u(0xf << (4 * i))),
            })
        }
    }

    #[inline(always)]
    unsafe fn add_products<L: Lanes>(words: [L::U; 2], i: usize, x: L::F, d: &mut [L::F; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            if i < 7 {
                L::masked_fma(words, 0xf << (4 * i), x, d);
            } else {
                for (d, &words) in d.iter_mut().zip(&words) {
                    *d = L::fma(Self::element::<L>(words, i), x, *d);
                }
            }
        }
    }
}

impl Codec for Bytes {
    const FORMAT: Format = Format::Bytes;
    const UNIT: usize = 4;
    type Raw<L: Lanes> = L::U;

    #[inline(always)]
    unsafe fn load<L: Lanes>(unit: *const u8, strip: usize) -> L::U {
        // SAFETY: the caller's promise; a strip is sixteen words.
        unsafe { L::load_u(unit.cast::<u32>().add(strip * LANES)) }
    }

    #[inline(always)]
    unsafe fn element<L: Lanes>(word: L::U, i: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe {
            L::to_float(match i {
                3 => L::shr::<24>(word),
                _ => L::and(word, L::splat_u(0xff << (8 * i))),
            })
        }
    }

    #[inline(always)]
    unsafe fn add_products<L: Lanes>(words: [L::U; 2], i: usize, x: L::F, d: &mut [L::F; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            if i < 3 {
                L::masked_fma(words, 0xff << (8 * i), x, d);
            } else {
                for (d, &words) in d.iter_mut().zip(&words) {
                    *d = L::fma(Self::element::<L>(words, i), x, *d);
                }
            }
        }
    }
}

/// A float type that can be read lane by lane.
pub(super) trait Float {
    /// The type's format.
    const TYPE: FloatType;

    /// Reads sixteen, from float number `index` on.
    ///
    /// # Safety
    ///
    /// As for all of [`Lanes`]; the floats are readable.
    unsafe fn read<L: Lanes>(from: *const u8, index: usize) -> L::F;
}

impl Float for f32 {
    const TYPE: FloatType = FloatType::F32;

    #[inline(always)]
    unsafe fn read<L: Lanes>(from: *const u8, index: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load(from.cast::<f32>().add(index)) }
    }
}

impl Float for f16 {
    const TYPE: FloatType = FloatType::F16;

    #[inline(always)]
    unsafe fn read<L: Lanes>(from: *const u8, index: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_f16(from.cast::<u16>().add(index)) }
    }
}

impl Float for bf16 {
    const TYPE: FloatType = FloatType::Bf16;

    #[inline(always)]
    unsafe fn read<L: Lanes>(from: *const u8, index: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::load_bf16(from.cast::<u16>().add(index)) }
    }
}

impl<T: Float> Codec for Floats<T> {
    const FORMAT: Format = Format::Floats(T::TYPE);
    const UNIT: usize = 2;
    type Raw<L: Lanes> = [L::F; 2];

    #[inline(always)]
    unsafe fn load<L: Lanes>(unit: *const u8, strip: usize) -> [L::F; 2] {
        // SAFETY: the caller's promise; a unit is two runs of a tile's rows.
        unsafe { [T::read::<L>(unit, strip * LANES), T::read::<L>(unit, TILE + strip * LANES)] }
    }

    #[inline(always)]
    unsafe fn element<L: Lanes>(raw: [L::F; 2], i: usize) -> L::F {
        raw[i]
    }
}
