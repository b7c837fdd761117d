//! Checks of sizes that all blocks share.
//!
//! Each returns a [`KernelError`] naming what was expected; none looks at values.

use std::fmt;

use mlx_rs::{Array, Dtype};

use crate::KernelError;
use crate::matrix::Linear;
use crate::tensor::HostTensor;

/// A list of sizes as the messages show it, `[out, in]`.
pub(crate) struct Sizes<'a>(pub(crate) &'a [usize]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

/// The norm weight `[hidden]`.
pub(crate) fn norm(
    what: &'static str,
    tensor: &HostTensor,
    hidden: usize,
) -> Result<(), KernelError> {
    if tensor.shape() == [hidden] {
        return Ok(());
    }
    Err(KernelError::shape(what, Sizes(&[hidden]), Sizes(tensor.shape())))
}

/// A linear layer `[out, in]` with its bias, if any, `[out]`.
pub(crate) fn linear(
    what: &'static str,
    linear: &Linear,
    out: usize,
    input: usize,
) -> Result<(), KernelError> {
    let found = [linear.matrix.rows(), linear.matrix.cols()];
    if found != [out, input] {
        return Err(KernelError::shape(what, Sizes(&[out, input]), Sizes(&found)));
    }
    match &linear.bias {
        Some(bias) if bias.shape() != [out] => {
            Err(KernelError::shape(what, format_args!("a bias {:?}", [out]), Sizes(bias.shape())))
        }
        _ => Ok(()),
    }
}

/// Hidden states `[N, hidden]` of a float type; returns `N`.
pub(crate) fn hidden_states(x: &Array, hidden: usize) -> Result<usize, KernelError> {
    let shape = x.shape();
    let float = matches!(x.dtype(), Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
    match shape {
        [rows, width] if float && usize::try_from(*width) == Ok(hidden) => {
            Ok(usize::try_from(*rows).unwrap_or_default())
        }
        _ => Err(KernelError::shape(
            "hidden states",
            format_args!("floats [N, {hidden}]"),
            format_args!("{:?} {shape:?}", x.dtype()),
        )),
    }
}

/// Indices below `limit`.
pub(crate) fn indices(
    what: &'static str,
    indices: &[u32],
    limit: usize,
) -> Result<(), KernelError> {
    match indices.iter().find(|&&index| index as usize >= limit) {
        Some(index) => Err(KernelError::shape(what, format_args!("indices below {limit}"), index)),
        None => Ok(()),
    }
}

/// A size that MLX can count, whose shapes are `i32`.
pub(crate) fn mlx_size(what: &'static str, size: usize) -> Result<i32, KernelError> {
    i32::try_from(size)
        .map_err(|_| KernelError::shape(what, format_args!("at most {}", i32::MAX), size))
}
