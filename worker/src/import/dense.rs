//! Floats that are not quantised: the narrowest 16-bit type that holds a tensor exactly, or f32.

use half::{bf16, f16};

use super::gguf::Encoding;
use super::safetensors::Dtype;

/// The narrowest type that keeps every value of the tensor; `None` if a value is not finite.
pub(super) fn exact_dtype(encoding: Encoding, bytes: &[u8]) -> Option<Dtype> {
    let (mut half, mut brain) = (true, true);
    for x in values(encoding, bytes) {
        if !x.is_finite() {
            return None;
        }
        half &= f16::from_f32(x).to_f32() == x;
        brain &= bf16::from_f32(x).to_f32() == x;
    }
    Some(match encoding {
        Encoding::F16 => Dtype::F16,
        Encoding::Bf16 => Dtype::Bf16,
        _ if half => Dtype::F16,
        _ if brain => Dtype::Bf16,
        _ => Dtype::F32,
    })
}

/// The tensor's bytes in `dtype`, which must hold them exactly (see [`exact_dtype`]).
pub(super) fn encode(encoding: Encoding, bytes: Vec<u8>, dtype: Dtype) -> Vec<u8> {
    match (encoding, dtype) {
        (Encoding::F32, Dtype::F32)
        | (Encoding::F16, Dtype::F16)
        | (Encoding::Bf16, Dtype::Bf16) => bytes,
        _ => floats(values(encoding, &bytes), dtype),
    }
}

/// Floats as little-endian bytes of `dtype`.
pub(super) fn floats(values: impl Iterator<Item = f32>, dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::F16 => values.flat_map(|x| f16::from_f32(x).to_le_bytes()).collect(),
        Dtype::Bf16 => values.flat_map(|x| bf16::from_f32(x).to_le_bytes()).collect(),
        Dtype::F32 | Dtype::U32 => values.flat_map(f32::to_le_bytes).collect(),
    }
}

fn values(encoding: Encoding, bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(encoding.block_bytes()).map(move |raw| match (encoding, raw) {
        (Encoding::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        (Encoding::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (_, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        // Quantised tensors never come here: `Planned` keeps the two kinds apart.
        _ => f32::NAN,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    #[test]
    fn the_narrowest_exact_type_is_chosen() {
        let choose = |values: &[f32]| exact_dtype(Encoding::F32, &bytes(values));
        assert_eq!(choose(&[1.0, -0.5, 65504.0]), Some(Dtype::F16));
        assert_eq!(choose(&[1.0, f32::from_bits(0x7149_0000)]), Some(Dtype::Bf16));
        assert_eq!(choose(&[1.0, 0.1]), Some(Dtype::F32));
        assert_eq!(choose(&[1.0, f32::INFINITY]), None);
        assert_eq!(exact_dtype(Encoding::Bf16, &[0, 0x3f]), Some(Dtype::Bf16));
    }

    proptest! {
        #[test]
        fn encoding_loses_nothing(raw in prop::collection::vec(any::<f32>(), 1..40)) {
            let raw: Vec<f32> = raw.into_iter().filter(|x| x.is_finite()).collect();
            let dtype = exact_dtype(Encoding::F32, &bytes(&raw)).expect("finite");
            let stored = encode(Encoding::F32, bytes(&raw), dtype);
            let back: Vec<f32> = match dtype {
                Dtype::F16 => values(Encoding::F16, &stored).collect(),
                Dtype::Bf16 => values(Encoding::Bf16, &stored).collect(),
                _ => values(Encoding::F32, &stored).collect(),
            };
            prop_assert_eq!(back, raw);
        }
    }
}
