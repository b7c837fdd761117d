//! Reads a GGUF file's header: typed metadata, and where each tensor's bytes lie.
//!
//! The file is not trusted. Every count, length and offset is checked against a named limit and against what is left
//! of the file before anything is allocated or read, so a cut or hostile header gives an error and never a panic or a
//! large allocation. Refused: version 1 and big-endian files, nested arrays, duplicate names, tensors that overlap or
//! reach past the end, and every encoding that has no exact counterpart among MLX's formats.

mod cursor;
mod encoding;
mod metadata;
#[cfg(test)]
pub(crate) mod writer;

use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};

use cursor::Cursor;
pub(crate) use encoding::{BLOCK, Encoding};
pub(crate) use metadata::Metadata;

/// Longest header, in bytes: the largest vocabularies need about 20 MB.
pub(crate) const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Most metadata entries.
const MAX_ENTRIES: u64 = 65_536;
/// Most tensors.
const MAX_TENSORS: u64 = 65_536;
/// Most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// Longest metadata key or tensor name, in bytes.
const MAX_NAME_BYTES: u64 = 65_535;
/// Longest metadata string, in bytes: chat templates are the longest.
const MAX_TEXT_BYTES: u64 = 4 << 20;
/// Most elements of a metadata array.
const MAX_ARRAY_ITEMS: u64 = 4 << 20;
/// Largest data alignment, in bytes.
const MAX_ALIGNMENT: u64 = 1 << 20;

const MAGIC: [u8; 4] = *b"GGUF";
const DEFAULT_ALIGNMENT: u64 = 32;

/// Why a header was refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The first bytes are not GGUF's.
    #[error("not a GGUF file: it begins with {0:02x?}")]
    Magic([u8; 4]),
    /// A version that is not read.
    #[error("GGUF version {0} is not supported: versions 2 and 3 are")]
    Version(u32),
    /// The byte order of another kind of machine.
    #[error("a big-endian GGUF file: only little-endian ones are read")]
    BigEndian,
    /// The file ends inside the header, or its header is longer than [`MAX_HEADER_BYTES`].
    #[error("the header ends at byte {at}, inside {what}")]
    Truncated {
        /// Offset in bytes.
        at: u64,
        /// What was being read.
        what: &'static str,
    },
    /// A count or length over its limit.
    #[error("{what} at byte {at}: {found}, at most {limit}")]
    Limit {
        /// What was being read.
        what: &'static str,
        /// Offset in bytes.
        at: u64,
        /// The number in the file.
        found: u64,
        /// The largest accepted.
        limit: u64,
    },
    /// Text that is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Text {
        /// What was being read.
        what: &'static str,
        /// Offset in bytes.
        at: u64,
    },
    /// A metadata value whose type number is unknown or not allowed there.
    #[error("metadata `{key}` has the unknown value type {kind}")]
    ValueType {
        /// The entry.
        key: String,
        /// The type number.
        kind: u32,
    },
    /// The same key or tensor twice.
    #[error("`{0}` appears twice")]
    Duplicate(String),
    /// A required metadata entry is not there.
    #[error("metadata `{0}` is missing")]
    MissingKey(String),
    /// A metadata entry has another type than its meaning asks for.
    #[error("metadata `{key}` must be {expected}, it is {found}")]
    KeyType {
        /// The entry.
        key: String,
        /// What is needed.
        expected: &'static str,
        /// What the file has.
        found: &'static str,
    },
    /// A metadata entry is out of range.
    #[error("metadata `{key}` is {found}: {expected}")]
    KeyRange {
        /// The entry.
        key: String,
        /// What is needed.
        expected: &'static str,
        /// What the file has.
        found: u64,
    },
    /// An encoding without an exact counterpart.
    #[error(
        "tensor `{tensor}` is {encoding}, which no MLX format holds exactly: take a file of this model whose tensors \
         are all Q4_0, Q4_1, Q8_0, F16, BF16 or F32"
    )]
    Encoding {
        /// The tensor.
        tensor: String,
        /// The encoding's name in ggml, or its number.
        encoding: String,
    },
    /// A shape that cannot be.
    #[error("tensor `{tensor}` has the shape {shape:?}: {why}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Dimensions, the contiguous one first.
        shape: Vec<u64>,
        /// What is wrong.
        why: &'static str,
    },
    /// Bytes outside the file, or shared with another tensor.
    #[error("tensor `{tensor}` at byte {offset} of the data: {why}")]
    Placement {
        /// The tensor.
        tensor: String,
        /// Offset from the start of the data, in bytes.
        offset: u64,
        /// What is wrong.
        why: &'static str,
    },
    /// The operating system's error.
    #[error("cannot read the GGUF file")]
    Io(#[source] std::io::Error),
}

/// Where a tensor lies and how it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorInfo {
    pub(crate) name: String,
    /// As numpy and MLX write it: rows first, the contiguous dimension last.
    pub(crate) shape: Vec<usize>,
    pub(crate) encoding: Encoding,
    /// From the start of the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) nbytes: u64,
}

impl TensorInfo {
    /// Bytes of one row (of the whole tensor when it has one dimension).
    pub(crate) fn row_bytes(&self) -> usize {
        let columns = self.shape.last().copied().unwrap_or(1);
        self.encoding.nbytes(columns as u64).unwrap_or(0) as usize
    }
}

/// The parsed header.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) metadata: Metadata,
    /// In the file's order.
    pub(crate) tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads the header of a file of `length` bytes from its start.
    pub(crate) fn read(file: impl Read + Seek, length: u64) -> Result<Self, GgufError> {
        let mut cursor = Cursor::new(file, length)?;
        let magic = cursor.bytes("the magic number")?;
        if magic != MAGIC {
            return Err(GgufError::Magic(magic));
        }
        match cursor.u32("the version")? {
            2 | 3 => {}
            other if matches!(other.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
            other => return Err(GgufError::Version(other)),
        }
        let tensor_count = cursor.count("the number of tensors", MAX_TENSORS)?;
        let entry_count = cursor.count("the number of metadata entries", MAX_ENTRIES)?;
        let metadata = Metadata::read(&mut cursor, entry_count)?;
        let alignment = alignment(&metadata)?;

        let mut tensors = Vec::new();
        for _ in 0..tensor_count {
            tensors.push(tensor_info(&mut cursor, alignment)?);
        }
        let data_start = cursor.position().next_multiple_of(alignment);
        place(&mut tensors, data_start, length)?;
        Ok(Self { metadata, tensors })
    }
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufError> {
    let key = "general.alignment";
    let found = metadata.unsigned_or(key, DEFAULT_ALIGNMENT)?;
    if found.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(&found) {
        Ok(found)
    } else {
        let expected = "a power of two from 8 to 1048576 is needed";
        Err(GgufError::KeyRange { key: key.to_owned(), expected, found })
    }
}

/// Reads one tensor's entry; its offset still counts from the start of the data.
fn tensor_info(
    cursor: &mut Cursor<impl Read + Seek>,
    alignment: u64,
) -> Result<TensorInfo, GgufError> {
    let name = cursor.text("a tensor's name", MAX_NAME_BYTES)?;
    let dimensions = cursor.u32("a tensor's number of dimensions")?;
    if dimensions == 0 || dimensions > MAX_DIMENSIONS {
        let why = "it needs one to four dimensions";
        return Err(GgufError::Shape { tensor: name, shape: vec![], why });
    }
    let mut shape = Vec::with_capacity(dimensions as usize);
    for _ in 0..dimensions {
        shape.push(cursor.u64("a tensor's shape")?);
    }
    let kind = cursor.u32("a tensor's encoding")?;
    let offset = cursor.u64("a tensor's offset")?;

    let encoding = Encoding::from_ggml(kind)
        .map_err(|encoding| GgufError::Encoding { tensor: name.clone(), encoding })?;
    let elements = shape
        .iter()
        .try_fold(1_u64, |product, &n| product.checked_mul(n))
        .filter(|&n| n > 0 && usize::try_from(n).is_ok());
    let whole_blocks = shape[0].is_multiple_of(encoding.block_elements());
    let nbytes = elements.filter(|_| whole_blocks).and_then(|n| encoding.nbytes(n));
    let Some(nbytes) = nbytes else {
        let why = "it must be positive, fit in memory, and its first dimension hold whole blocks";
        return Err(GgufError::Shape { tensor: name, shape, why });
    };
    if !offset.is_multiple_of(alignment) {
        let why = "the offset breaks the file's alignment";
        return Err(GgufError::Placement { tensor: name, offset, why });
    }
    let shape = shape.iter().rev().map(|&n| n as usize).collect();
    Ok(TensorInfo { name, shape, encoding, offset, nbytes })
}

/// Makes offsets absolute, and refuses duplicate names, overlaps and bytes past the end.
fn place(tensors: &mut [TensorInfo], data_start: u64, length: u64) -> Result<(), GgufError> {
    let mut seen = HashMap::new();
    for tensor in tensors.iter_mut() {
        let offset = tensor.offset;
        let end = data_start.checked_add(offset).and_then(|at| at.checked_add(tensor.nbytes));
        if end.is_none_or(|end| end > length) {
            let why = "its bytes reach past the end of the file";
            return Err(GgufError::Placement { tensor: tensor.name.clone(), offset, why });
        }
        tensor.offset += data_start;
        if seen.insert(tensor.name.clone(), ()).is_some() {
            return Err(GgufError::Duplicate(tensor.name.clone()));
        }
    }
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|tensor| tensor.offset);
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].nbytes > pair[1].offset {
            let why = "its bytes overlap another tensor's";
            let (tensor, offset) = (pair[1].name.clone(), pair[1].offset - data_start);
            return Err(GgufError::Placement { tensor, offset, why });
        }
    }
    Ok(())
}

/// Reads the bytes of one tensor.
pub(crate) fn read_tensor(
    mut file: impl Read + Seek,
    tensor: &TensorInfo,
) -> Result<Vec<u8>, GgufError> {
    // `Header::read` checked that the file holds these bytes, so the allocation is no larger than the file.
    let mut bytes = vec![0; tensor.nbytes as usize];
    file.seek(SeekFrom::Start(tensor.offset)).map_err(GgufError::Io)?;
    file.read_exact(&mut bytes).map_err(GgufError::Io)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
