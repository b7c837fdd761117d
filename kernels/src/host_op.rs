//! Lazy host ops: nodes of MLX's graph whose work is a Rust closure.
//!
//! The safe face of `cpp/host_op.cpp`. [`host_op`] only adds to the graph; the closure runs when something evaluates its
//! outputs, on the thread of MLX's CPU stream, at most once, and is dropped exactly once on whatever thread lets go
//! last: hence `Send + Sync + 'static`. Its error or panic becomes the error of that evaluation, message included.
//! Refuses types it cannot show as a slice; views (transposed, broadcast, sliced) are packed before the closure runs.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use mlx_rs::{Array, Dtype};

use crate::KernelError;
use crate::mlx_array::mlx_dtype;
use crate::tensor::Element;

/// What to build.
#[derive(Debug, Clone, Copy)]
pub struct HostOp<'a> {
    /// Name in error messages.
    pub name: &'static CStr,
    /// Arrays the closure reads.
    pub inputs: &'a [&'a Array],
    /// Shape and type of each array it writes; at least one.
    pub outputs: &'a [(&'a [i32], Dtype)],
    /// The input whose content output 0 holds when the closure starts. Its buffer is taken over if nothing else needs
    /// it. The closure reads it there: the input itself is not readable.
    pub in_place: Option<usize>,
}

/// An input array inside the closure: row-major, without gaps.
#[derive(Debug)]
#[repr(transparent)]
pub struct Input(RawTensor);

/// An output array inside the closure: row-major, uninitialised unless it is the in-place one.
#[derive(Debug)]
#[repr(transparent)]
pub struct Output(RawTensor);

/// `sanctum_tensor` of the header.
#[derive(Debug)]
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    shape: *const i32,
    ndim: i32,
    dtype: i32,
    nbytes: usize,
}

impl RawTensor {
    fn shape(&self) -> &[i32] {
        let axes = usize::try_from(self.ndim).unwrap_or_default();
        if axes == 0 {
            return &[];
        }
        // SAFETY: the shim points at `ndim` sizes that live as long as the call.
        unsafe { slice::from_raw_parts(self.shape, axes) }
    }

    /// The element count, if the elements are of type `T` and readable.
    fn elements<T: Element>(&self) -> Result<usize, KernelError> {
        let expected = mlx_dtype(T::DTYPE);
        if self.dtype == expected as i32 && !self.data.is_null() {
            return Ok(self.nbytes / size_of::<T>());
        }
        let found = u32::try_from(self.dtype).ok().and_then(|code| Dtype::try_from(code).ok());
        Err(KernelError::shape(
            "host op tensor",
            format_args!("{expected:?}"),
            format_args!("{}{found:?}", if self.data.is_null() { "in-place " } else { "" }),
        ))
    }
}

impl Input {
    /// Sizes of the axes.
    pub fn shape(&self) -> &[i32] {
        self.0.shape()
    }

    /// The elements. Fails for another type, and for the in-place input.
    pub fn values<T: Element>(&self) -> Result<&[T], KernelError> {
        let count = self.0.elements::<T>()?;
        // SAFETY: the shim hands over `count` elements, aligned to 8, that nothing writes during the call: an input
        // whose buffer became an output has null data and was refused above.
        Ok(unsafe { slice::from_raw_parts(self.0.data.cast::<T>(), count) })
    }
}

impl Output {
    /// Sizes of the axes.
    pub fn shape(&self) -> &[i32] {
        self.0.shape()
    }

    /// The elements to write. What is not written is arbitrary, except in the in-place output.
    pub fn values<T: Element>(&mut self) -> Result<&mut [T], KernelError> {
        let count = self.0.elements::<T>()?;
        // SAFETY: as for inputs; outputs are distinct buffers and `&mut self` keeps this slice the only one. Memory
        // fresh from the allocator is an arbitrary value of an `Element`, which is a valid one.
        Ok(unsafe { slice::from_raw_parts_mut(self.0.data.cast::<T>(), count) })
    }
}

/// Adds a host op to the graph of this thread and returns its outputs, none of them computed yet.
pub fn host_op<F>(op: HostOp<'_>, closure: F) -> Result<Vec<Array>, KernelError>
where
    F: Fn(&[Input], &mut [Output]) -> Result<(), KernelError> + Send + Sync + 'static,
{
    if op.outputs.is_empty() || op.in_place.is_some_and(|input| input >= op.inputs.len()) {
        return Err(KernelError::HostOp("no output, or no such in-place input".into()));
    }
    let inputs: Vec<mlx_sys::mlx_array> = op.inputs.iter().map(|array| array.as_ptr()).collect();
    let outputs: Vec<RawOutput> = op
        .outputs
        .iter()
        .map(|(shape, dtype)| RawOutput {
            shape: shape.as_ptr(),
            ndim: shape.len() as i32,
            dtype: *dtype as i32,
        })
        .collect();
    let raw = RawHostOp {
        name: op.name.as_ptr(),
        call: call::<F>,
        closure: Box::into_raw(Box::new(closure)).cast(),
        drop: drop_closure::<F>,
        in_place: op.in_place.map_or(-1, |input| input as i32),
    };
    let mut results = vec![mlx_sys::mlx_array { ctx: ptr::null_mut() }; outputs.len()];
    let mut error = [0u8; 512];
    // SAFETY: the declarations below repeat the header; all pointers are valid for the call, the closure is handed over.
    let status = unsafe {
        sanctum_host_op_apply(
            &raw const raw,
            inputs.as_ptr(),
            inputs.len(),
            outputs.as_ptr(),
            outputs.len(),
            results.as_mut_ptr(),
            error.as_mut_ptr().cast(),
            error.len(),
        )
    };
    if status != 0 {
        let message = CStr::from_bytes_until_nul(&error).unwrap_or_default();
        return Err(KernelError::HostOp(message.to_string_lossy().into_owned()));
    }
    // SAFETY: on success the shim filled every result with a new handle that is ours.
    Ok(results.into_iter().map(|handle| unsafe { Array::from_ptr(handle) }).collect())
}

/// `sanctum_output` of the header.
#[repr(C)]
struct RawOutput {
    shape: *const i32,
    ndim: i32,
    dtype: i32,
}

type RawCall = extern "C" fn(
    *mut c_void,
    *const RawTensor,
    usize,
    *mut RawTensor,
    usize,
    *mut c_void,
) -> c_int;

/// `sanctum_host_op` of the header.
#[repr(C)]
struct RawHostOp {
    name: *const c_char,
    call: RawCall,
    closure: *mut c_void,
    drop: extern "C" fn(*mut c_void),
    in_place: i32,
}

unsafe extern "C" {
    fn sanctum_host_op_fail(failure: *mut c_void, message: *const c_char, length: usize);

    fn sanctum_host_op_apply(
        op: *const RawHostOp,
        inputs: *const mlx_sys::mlx_array,
        input_count: usize,
        outputs: *const RawOutput,
        output_count: usize,
        results: *mut mlx_sys::mlx_array,
        error: *mut c_char,
        error_size: usize,
    ) -> c_int;
}

/// Calls the closure of type `F`; failure goes to the shim as a message, and no panic passes into C++.
extern "C" fn call<F>(
    closure: *mut c_void,
    inputs: *const RawTensor,
    input_count: usize,
    outputs: *mut RawTensor,
    output_count: usize,
    failure: *mut c_void,
) -> c_int
where
    F: Fn(&[Input], &mut [Output]) -> Result<(), KernelError>,
{
    let result = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `closure` is the `F` that host_op boxed. `Input` and `Output` are transparent over what the shim
        // laid out in two distinct vectors (of dangling, non-null base if empty) for the length of this call.
        unsafe {
            let closure = &*closure.cast::<F>();
            let inputs = match input_count {
                0 => &[],
                _ => slice::from_raw_parts(inputs.cast::<Input>(), input_count),
            };
            closure(inputs, slice::from_raw_parts_mut(outputs.cast::<Output>(), output_count))
        }
    }));
    let message = match result {
        Ok(Ok(())) => return 0,
        Ok(Err(error)) => with_sources(&error),
        Err(panic) => format!("panicked: {}", panic_message(panic.as_ref())),
    };
    // SAFETY: `failure` is the shim's, and the message is copied.
    unsafe { sanctum_host_op_fail(failure, message.as_ptr().cast(), message.len()) };
    1
}

extern "C" fn drop_closure<F>(closure: *mut c_void) {
    // SAFETY: the shim drops the box that host_op made exactly once.
    let closure = unsafe { Box::from_raw(closure.cast::<F>()) };
    // A panic here must not pass into a C++ destructor; there is nobody left to tell.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(closure)));
}

/// The error and its causes on one line: only text can pass through MLX.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match panic.downcast_ref::<&str>() {
        Some(text) => text,
        None => panic.downcast_ref::<String>().map_or("no message", String::as_str),
    }
}
