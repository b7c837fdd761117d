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
