//! From ggml's quantised blocks to MLX's affine groups of 32, value for value.
//!
//! | ggml | value | MLX, `q·scale + bias` |
//! |---|---|---|
//! | Q4_0 | `d·(q − 8)` | 4 bits, scale `d`, bias `−8d` |
//! | Q4_1 | `d·q + m` | 4 bits, scale `d`, bias `m` |
//! | Q8_0 | `d·q`, q signed | 8 bits, `q + 128`, scale `d`, bias `−128d` |
//!
//! Both products are exact in f32 (at most 8 by 11 significant bits) and −8 and −128 are powers of two, so the values
//! agree to the last bit. The one thing f16 may not hold is the bias of a very large `d`; [`needs_f32`] says so.

use half::f16;

use super::gguf::Encoding;

/// One matrix in MLX's affine form, groups of 32 along each row.
#[derive(Debug, PartialEq)]
pub(super) struct Affine {
    /// Little-endian u32 words, element 0 of a row in the low bits of its first word.
    pub(super) packed: Vec<u8>,
    /// One per group, row-major.
    pub(super) scales: Vec<f16>,
    /// One per group; exact in f16 unless [`needs_f32`].
    pub(super) biases: Vec<f32>,
}

/// Bits per element of the affine form.
pub(super) fn bits(encoding: Encoding) -> usize {
    if encoding == Encoding::Q8_0 { 8 } else { 4 }
}

/// Converts whole blocks. `encoding` must be quantised.
pub(super) fn affine(encoding: Encoding, blocks: &[u8]) -> Affine {
    let blocks = blocks.chunks_exact(encoding.block_bytes());
    let mut out = Affine {
        packed: Vec::with_capacity(blocks.len() * 4 * bits(encoding)),
        scales: Vec::with_capacity(blocks.len()),
        biases: Vec::with_capacity(blocks.len()),
    };
    for block in blocks {
        let (scale, bias) = scale_and_bias(encoding, block);
        out.scales.push(scale);
        out.biases.push(bias);
        match encoding {
            Encoding::Q8_0 => out.packed.extend(block[2..].iter().map(|byte| byte ^ 0x80)),
            Encoding::Q4_1 => pack_nibbles(&block[4..], &mut out.packed),
            _ => pack_nibbles(&block[2..], &mut out.packed),
        }
    }
    out
}

/// ggml keeps elements 0..16 in the low nibbles and 16..32 in the high ones; MLX keeps neighbours together.
fn pack_nibbles(nibbles: &[u8], packed: &mut Vec<u8>) {
    packed.extend(nibbles.chunks_exact(2).map(|pair| (pair[0] & 15) | (pair[1] << 4)));
    packed.extend(nibbles.chunks_exact(2).map(|pair| (pair[0] >> 4) | (pair[1] & 0xf0)));
}

fn scale_and_bias(encoding: Encoding, block: &[u8]) -> (f16, f32) {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]);
    let d = half(0);
    let bias = match encoding {
        Encoding::Q4_1 => half(2).to_f32(),
        Encoding::Q8_0 => -128.0 * d.to_f32(),
        _ => -8.0 * d.to_f32(),
    };
    (d, bias)
}

/// Whether some bias is beyond f16, so that scales and biases must be stored as f32; `None` if a value is not finite.
pub(super) fn needs_f32(encoding: Encoding, blocks: &[u8]) -> Option<bool> {
    let mut wide = false;
    for block in blocks.chunks_exact(encoding.block_bytes()) {
        let (scale, bias) = scale_and_bias(encoding, block);
        if !(scale.is_finite() && bias.is_finite()) {
            return None;
        }
        wide |= f16::from_f32(bias).to_f32() != bias;
    }
    Some(wide)
}

/// Puts rows that llama.cpp interleaved for its RoPE back into the half-split order of HF and MLX.
///
/// llama.cpp stores, per head, rows `0, d/2, 1, d/2+1, …`. A row is moved with its blocks, so this works on any encoding.
pub(super) fn half_split_rows(interleaved: &[u8], row_bytes: usize, heads: usize) -> Vec<u8> {
    let head_bytes = interleaved.len() / heads;
    let mut out = Vec::with_capacity(interleaved.len());
    for head in interleaved.chunks_exact(head_bytes) {
        for half in 0..2 {
            for row in head.chunks_exact(row_bytes).skip(half).step_by(2) {
                out.extend_from_slice(row);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::import::gguf::BLOCK;

    /// ggml's own formulas, element by element (`dequantize_row_q4_0` and its siblings).
    fn ggml(encoding: Encoding, block: &[u8]) -> Vec<f32> {
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        let nibble = |data: &[u8], i: usize| {
            if i < BLOCK / 2 { data[i] & 15 } else { data[i - BLOCK / 2] >> 4 }
        };
        (0..BLOCK)
            .map(|i| match encoding {
                Encoding::Q4_0 => (i32::from(nibble(&block[2..], i)) - 8) as f32 * d,
                Encoding::Q4_1 => {
                    let m = f16::from_le_bytes([block[2], block[3]]).to_f32();
                    f32::from(nibble(&block[4..], i)) * d + m
                }
                _ => f32::from(block[2 + i] as i8) * d,
            })
            .collect()
    }

    /// MLX's meaning of the packed words, read independently of how they were made.
    fn mlx(bits: usize, affine: &Affine) -> Vec<f32> {
        let words: Vec<u32> = affine
            .packed
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
            .collect();
        let per_word = 32 / bits;
        (0..words.len() * per_word)
            .map(|i| {
                let q = (words[i / per_word] >> (bits * (i % per_word))) & ((1 << bits) - 1);
                q as f32 * affine.scales[i / BLOCK].to_f32() + affine.biases[i / BLOCK]
            })
            .collect()
    }

    fn finite_half() -> impl Strategy<Value = [u8; 2]> {
        any::<u16>()
            .prop_map(f16::from_bits)
            .prop_filter("finite", |x| x.is_finite())
            .prop_map(f16::to_le_bytes)
    }

    fn blocks(encoding: Encoding) -> impl Strategy<Value = Vec<u8>> {
        let body = encoding.block_bytes() - 4;
        let second = if encoding == Encoding::Q4_1 {
            finite_half().boxed()
        } else {
            any::<[u8; 2]>().boxed()
        };
        let block = (finite_half(), second, prop::collection::vec(any::<u8>(), body))
            .prop_map(|(d, m, rest)| [d.to_vec(), m.to_vec(), rest].concat());
        prop::collection::vec(block, 1..5).prop_map(|blocks| blocks.concat())
    }

    fn agrees(encoding: Encoding, raw: &[u8]) {
        let expected: Vec<f32> =
            raw.chunks_exact(encoding.block_bytes()).flat_map(|b| ggml(encoding, b)).collect();
        let mut affine = affine(encoding, raw);
        assert_eq!(mlx(bits(encoding), &affine), expected, "biases as computed");
        if needs_f32(encoding, raw) == Some(false) {
            for bias in &mut affine.biases {
                *bias = f16::from_f32(*bias).to_f32();
            }
            assert_eq!(mlx(bits(encoding), &affine), expected, "biases stored as f16");
        }
    }

    proptest! {
        #[test]
        fn q4_0_keeps_every_value(raw in blocks(Encoding::Q4_0)) { agrees(Encoding::Q4_0, &raw); }
        #[test]
        fn q4_1_keeps_every_value(raw in blocks(Encoding::Q4_1)) { agrees(Encoding::Q4_1, &raw); }
        #[test]
        fn q8_0_keeps_every_value(raw in blocks(Encoding::Q8_0)) { agrees(Encoding::Q8_0, &raw); }
    }

    #[test]
    fn a_large_scale_asks_for_f32() {
        let block = |d: f32| [f16::from_f32(d).to_le_bytes().to_vec(), vec![0; BLOCK]].concat();
        assert_eq!(needs_f32(Encoding::Q8_0, &block(511.0)), Some(false));
        assert_eq!(needs_f32(Encoding::Q8_0, &block(600.0)), Some(true));
        assert_eq!(needs_f32(Encoding::Q8_0, &block(f32::NAN)), None);
    }

    #[test]
    fn rows_return_to_half_split_order() {
        // Two heads of six rows, numbered in HF's order; llama.cpp writes them interleaved.
        let interleaved = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11].map(|n: u8| [n, n]).concat();
        let expected = (0..12).flat_map(|n: u8| [n, n]).collect::<Vec<_>>();
        assert_eq!(half_split_rows(&interleaved, 2, 2), expected);
    }
}
