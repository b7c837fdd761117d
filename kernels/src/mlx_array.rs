//! Between this crate's tensors and MLX's arrays.
//!
//! Owns the few conversions that the graph and reference forms share. Sizes were checked to fit MLX's `i32` before.

use std::ops::Range;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, Stream, ops};

use crate::KernelError;
use crate::tensor::{DType, HostTensor};

/// A size for MLX, saturated: what does not fit fails in MLX as a shape error.
pub(crate) fn size(size: usize) -> i32 {
    i32::try_from(size).unwrap_or(i32::MAX)
}

/// MLX's name for an element type.
pub(crate) fn mlx_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::F32 => Dtype::Float32,
        DType::F16 => Dtype::Float16,
        DType::Bf16 => Dtype::Bfloat16,
        DType::U32 => Dtype::Uint32,
        DType::I32 => Dtype::Int32,
        DType::U8 => Dtype::Uint8,
    }
}

/// A copy of a tensor as an MLX array of the same type.
pub(crate) fn array_of(tensor: &HostTensor) -> Result<Array, KernelError> {
    let shape: Vec<i32> =
        tensor.shape().iter().map(|&dim| i32::try_from(dim)).collect::<Result<_, _>>().map_err(
            |_| {
                KernelError::shape(
                    "a tensor",
                    "dimensions below 2^31",
                    format_args!("{:?}", tensor.shape()),
                )
            },
        )?;
    // SAFETY: a HostTensor holds exactly the bytes of its shape and type, and MLX copies them before this returns.
    Ok(unsafe {
        Array::from_raw_data(tensor.bytes().as_ptr().cast(), &shape, mlx_dtype(tensor.dtype()))
    })
}

/// A copy of a float tensor as an f32 array.
pub(crate) fn array_of_f32(tensor: &HostTensor) -> Result<Array, KernelError> {
    let array = array_of(tensor)?;
    if array.dtype() == Dtype::Float32 {
        return Ok(array);
    }
    let wide = array.as_dtype(Dtype::Float32)?;
    wide.eval()?;
    Ok(wide)
}

/// An array of plain numbers; `shape` must hold exactly `values`.
pub(crate) fn f32_array(values: &[f32], shape: &[usize]) -> Array {
    let shape: Vec<i32> = shape.iter().map(|&dim| size(dim)).collect();
    Array::from_slice(values, &shape)
}

/// Token ids or row numbers as an index array.
pub(crate) fn indices(values: &[u32]) -> Array {
    Array::from_slice(values, &[size(values.len())])
}

/// The rows `rows` of a matrix.
pub(crate) fn rows_of(
    x: &Array,
    rows: Range<usize>,
    stream: &Stream,
) -> Result<Array, KernelError> {
    Ok(x.try_index_device(size(rows.start)..size(rows.end), stream)?)
}

/// Joins arrays along an axis; one alone is itself.
pub(crate) fn concatenate(mut parts: Vec<Array>, axis: i32) -> Result<Array, KernelError> {
    match parts.pop() {
        Some(only) if parts.is_empty() => Ok(only),
        Some(last) => {
            parts.push(last);
            Ok(ops::concatenate(&parts, axis)?)
        }
        None => Err(KernelError::shape("a concatenation", "at least one part", 0)),
    }
}
