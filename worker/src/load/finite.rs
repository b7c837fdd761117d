//! Looks for weights that are not numbers: one such weight makes every reply nonsense.

use half::{bf16, f16};
use sanctum_kernels::tensor::{DType, Element, HostTensor};

/// The first element of a float tensor that is NaN or infinite, and its value.
pub(super) fn first_not_finite(tensor: &HostTensor) -> Option<(usize, f32)> {
    match tensor.dtype() {
        DType::F32 => scan(tensor, |x: f32| (x.is_finite(), x)),
        DType::F16 => scan(tensor, |x: f16| (x.is_finite(), x.to_f32())),
        DType::Bf16 => scan(tensor, |x: bf16| (x.is_finite(), x.to_f32())),
        DType::U32 | DType::I32 | DType::U8 => None,
    }
}

fn scan<T: Element>(tensor: &HostTensor, look: impl Fn(T) -> (bool, f32)) -> Option<(usize, f32)> {
    /// Elements judged together, without a branch between them.
    const BLOCK: usize = 1024;
    let values = tensor.values::<T>().ok()?;
    let bad = |block: &[T]| block.iter().fold(false, |bad, &x| bad | !look(x).0);
    let block = values.chunks(BLOCK).position(bad)? * BLOCK;
    let index = block + values[block..].iter().position(|&x| !look(x).0)?;
    Some((index, look(values[index]).1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_first_in_every_float_type() {
        let mut values = vec![1.5f32; 5000];
        values[4097] = f32::NEG_INFINITY;
        values[4998] = f32::NAN;
        let halves: Vec<f16> = values.iter().map(|&x| f16::from_f32(x)).collect();
        let brains: Vec<bf16> = values.iter().map(|&x| bf16::from_f32(x)).collect();
        let shape = || vec![5000];
        let found = Some((4097, f32::NEG_INFINITY));
        let tensor = HostTensor::from_values(shape(), &values).expect("fits");
        assert_eq!(first_not_finite(&tensor), found);
        let tensor = HostTensor::from_values(shape(), &halves).expect("fits");
        assert_eq!(first_not_finite(&tensor), found);
        let tensor = HostTensor::from_values(shape(), &brains).expect("fits");
        assert_eq!(first_not_finite(&tensor), found);
        let sound = HostTensor::from_values(vec![2], &[f32::MAX, -0.0]).expect("fits");
        assert_eq!(first_not_finite(&sound), None);
    }
}
