//! From MLX's graph to plain numbers.

use mlx_rs::error::AsSliceError;
use mlx_rs::{Array, Dtype};

use crate::KernelError;

/// Evaluates `array` and copies its elements out in row-major order, converting from another type if need be.
///
/// This is where errors of the whole pending graph come to light, those of host ops among them.
pub fn read_f32(array: &Array) -> Result<Vec<f32>, KernelError> {
    if array.dtype() != Dtype::Float32 {
        return read_f32(&array.as_dtype(Dtype::Float32)?);
    }
    array.eval()?;
    match array.try_as_slice::<f32>() {
        Ok(values) => Ok(values.to_vec()),
        Err(_) if array.size() == 0 => Ok(Vec::new()),
        Err(AsSliceError::NotContiguous) => {
            let packed = array.contiguous()?;
            packed.eval()?;
            match packed.try_as_slice::<f32>() {
                Ok(values) => Ok(values.to_vec()),
                Err(found) => Err(KernelError::shape("an array", "readable f32 values", found)),
            }
        }
        Err(found) => Err(KernelError::shape("an array", "readable f32 values", found)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_and_other_types_are_read_in_order() {
        let a = Array::from_slice(&[1f32, 2., 3., 4., 5., 6.], &[2, 3]);
        assert_eq!(read_f32(&a.transpose().unwrap()).unwrap(), [1., 4., 2., 5., 3., 6.]);
        let narrow = a.transpose().unwrap().as_dtype(Dtype::Bfloat16).unwrap();
        assert_eq!(read_f32(&narrow).unwrap(), [1., 4., 2., 5., 3., 6.]);
        assert_eq!(read_f32(&Array::from_slice(&[7i32, -7], &[2])).unwrap(), [7., -7.]);
        assert_eq!(read_f32(&Array::from_slice::<f32>(&[], &[0, 4])).unwrap(), []);
        assert_eq!(read_f32(&Array::from_f32(2.5)).unwrap(), [2.5]);
    }
}
