//! Weights in host memory: an element type, a shape and the bytes.
//!
//! Owns [`HostTensor`], the form in which every weight arrives from a checkpoint, and the 64-byte-aligned memory under it.
//! Refuses bytes that do not fill the shape, so that no kernel has to look again. Knows nothing of MLX.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, slice};

use half::{bf16, f16};

/// Type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// Unsigned, also the carrier of packed weights.
    U32,
    /// Signed.
    I32,
    /// Bytes.
    U8,
}

/// Why bytes are not the tensor they were said to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The shape asks for another number of bytes.
    #[error("{dtype:?} {shape:?} takes {expected} bytes, found {found}")]
    Size {
        /// Element type.
        dtype: DType,
        /// Sizes of the axes.
        shape: Vec<usize>,
        /// Bytes that type and shape ask for.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// The element count does not fit an address.
    #[error("{shape:?} has more elements than memory has addresses")]
    TooLarge {
        /// Sizes of the axes.
        shape: Vec<usize>,
    },
    /// The elements have another type.
    #[error("expected {expected}, found {found:?}")]
    Type {
        /// Types that would do.
        expected: &'static str,
        /// The tensor's type.
        found: DType,
    },
    /// Rows outside the first axis.
    #[error("rows {rows:?} of a tensor {shape:?}")]
    Rows {
        /// Rows asked for.
        rows: Range<usize>,
        /// Sizes of the axes.
        shape: Vec<usize>,
    },
}

/// A type that tensors hold. Every bit pattern is a value.
pub trait Element: Copy + sealed::Sealed {
    /// Its name at run time.
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($rust:ty = $dtype:ident),*) => {$(
        impl sealed::Sealed for $rust {}
        impl Element for $rust {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
elements!(f32 = F32, f16 = F16, bf16 = Bf16, u32 = U32, i32 = I32, u8 = U8);

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Whether it is one of the three float types.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    fn bytes_of(self, shape: &[usize]) -> Result<usize, TensorError> {
        shape
            .iter()
            .try_fold(self.size(), |bytes, &dim| bytes.checked_mul(dim))
            .filter(|&bytes| isize::try_from(bytes).is_ok())
            .ok_or_else(|| TensorError::TooLarge { shape: shape.to_vec() })
    }
}

/// Bytes that start on a cache line. Zero until written.
pub struct AlignedBytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: plain owned memory without interior mutability.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above.
unsafe impl Sync for AlignedBytes {}

impl AlignedBytes {
    /// Alignment of the first byte: a cache line, and an AVX-512 register.
    pub const ALIGNMENT: usize = 64;

    /// `len` zero bytes. Aborts as any allocation does if there is no memory.
    ///
    /// # Panics
    ///
    /// If `len` is beyond what can be allocated at all (`isize::MAX`).
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        if len == 0 {
            return Self { start: layout.dangling_ptr(), len };
        }
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, len }
    }

    /// The bytes as whole elements; what is left over at the end is not among them.
    pub fn as_values<T: Element>(&self) -> &[T] {
        // SAFETY: aligned to more than an element, every bit pattern is one.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.len / size_of::<T>()) }
    }

    /// The bytes as whole elements, to write.
    pub fn as_values_mut<T: Element>(&mut self) -> &mut [T] {
        // SAFETY: as in `as_values`, and `&mut self` keeps this slice the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.len / size_of::<T>()) }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len, Self::ALIGNMENT).expect("no slice is longer than isize::MAX")
    }
}

impl From<&[u8]> for AlignedBytes {
    fn from(bytes: &[u8]) -> Self {
        let mut copy = Self::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Deref for AlignedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes that are ours.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` keeps this slice the only one.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if self.len != 0 {
            // SAFETY: allocated in `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

impl fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBytes({} bytes)", self.len)
    }
}

/// A row-major tensor in host memory. Clones and row views share the bytes.
#[derive(Clone)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    data: Arc<AlignedBytes>,
    /// Where the tensor starts in `data`; not zero for a view of rows.
    offset: usize,
    len: usize,
}

impl HostTensor {
    /// A tensor over bytes in native byte order.
    pub fn new(dtype: DType, shape: Vec<usize>, data: AlignedBytes) -> Result<Self, TensorError> {
        let expected = dtype.bytes_of(&shape)?;
        if expected != data.len() {
            return Err(TensorError::Size { dtype, shape, expected, found: data.len() });
        }
        Ok(Self { dtype, shape, data: Arc::new(data), offset: 0, len: expected })
    }

    /// A tensor holding a copy of `values`.
    pub fn from_values<T: Element>(shape: Vec<usize>, values: &[T]) -> Result<Self, TensorError> {
        // SAFETY: elements have no padding, and any byte may be read as `u8`.
        let bytes =
            unsafe { slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
        Self::new(T::DTYPE, shape, bytes.into())
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements' bytes, aligned to the element; to 64 unless it is a view of rows.
    pub fn bytes(&self) -> &[u8] {
        &self.data[self.offset..][..self.len]
    }

    /// The elements, which must be of type `T`.
    pub fn values<T: Element>(&self) -> Result<&[T], TensorError> {
        if T::DTYPE != self.dtype {
            let expected = std::any::type_name::<T>();
            return Err(TensorError::Type { expected, found: self.dtype });
        }
        let bytes = self.bytes();
        // SAFETY: `data` is aligned to 64 and `offset` a multiple of the element; every bit pattern is an element.
        Ok(unsafe { slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) })
    }

    /// The elements widened to f32, which is exact. Fails unless they are floats.
    pub fn to_f32(&self) -> Result<Vec<f32>, TensorError> {
        match self.dtype {
            DType::F32 => Ok(self.values::<f32>()?.to_vec()),
            DType::F16 => Ok(self.values::<f16>()?.iter().map(|v| v.to_f32()).collect()),
            DType::Bf16 => Ok(self.values::<bf16>()?.iter().map(|v| v.to_f32()).collect()),
            found => Err(TensorError::Type { expected: "f32, f16 or bf16", found }),
        }
    }

    /// A view of some rows, that is indices of the first axis.
    pub fn rows(&self, rows: Range<usize>) -> Result<Self, TensorError> {
        match self.shape.first() {
            Some(&count) if rows.start <= rows.end && rows.end <= count => {
                let row = self.len.checked_div(count).unwrap_or_default();
                let mut view = self.clone();
                view.shape[0] = rows.len();
                view.offset += rows.start * row;
                view.len = rows.len() * row;
                Ok(view)
            }
            _ => Err(TensorError::Rows { rows, shape: self.shape.clone() }),
        }
    }
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostTensor({:?} {:?})", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_fill_the_shape() {
        let error = HostTensor::new(DType::F16, vec![2, 3], AlignedBytes::zeroed(10)).unwrap_err();
        assert_eq!(error.to_string(), "F16 [2, 3] takes 12 bytes, found 10");
        let error = HostTensor::new(DType::F32, vec![usize::MAX, 2], AlignedBytes::zeroed(0));
        assert!(matches!(error, Err(TensorError::TooLarge { .. })));
        assert!(HostTensor::new(DType::F32, vec![0, 5], AlignedBytes::zeroed(0)).is_ok());
    }

    #[test]
    fn memory_is_aligned_and_zero() {
        for len in [0, 1, 63, 64, 4097] {
            let bytes = AlignedBytes::zeroed(len);
            assert_eq!(bytes.as_ptr() as usize % AlignedBytes::ALIGNMENT, 0);
            assert!(bytes.iter().all(|&byte| byte == 0) && bytes.len() == len);
        }
    }

    #[test]
    fn rows_are_a_view_of_the_same_bytes() {
        let tensor = HostTensor::from_values(vec![3, 2], &[0f32, 1., 2., 3., 4., 5.]).unwrap();
        let view = tensor.rows(1..3).unwrap();
        assert_eq!(view.values::<f32>().unwrap(), [2., 3., 4., 5.]);
        assert_eq!(view.rows(1..2).unwrap().to_f32().unwrap(), [4., 5.]);
        assert_eq!(view.bytes().as_ptr(), tensor.bytes()[8..].as_ptr());
        assert!(view.rows(1..3).is_err());
        let error = tensor.values::<u32>().unwrap_err();
        assert_eq!(error, TensorError::Type { expected: "u32", found: DType::F32 });
    }

    #[test]
    fn halves_widen_exactly() {
        let halves = [f16::from_f32(0.333), f16::MIN_POSITIVE_SUBNORMAL, f16::NEG_INFINITY];
        let tensor = HostTensor::from_values(vec![3], &halves).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), halves.map(f16::to_f32));
        let tensor = HostTensor::from_values(vec![1], &[bf16::from_f32(-2.5)]).unwrap();
        assert_eq!(tensor.to_f32().unwrap(), [-2.5]);
    }
}
