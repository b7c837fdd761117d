//! The header of a safetensors file, checked before a byte of tensor data is allocated or read.
//!
//! Layout: `u64` little-endian length, that many bytes of JSON `{name: {dtype, shape, data_offsets}}`, then the
//! data. Refused: a header longer than the file or than the limit, names that occur twice, unknown types, shapes
//! whose size overflows or disagrees with the offsets, and data that overlaps, leaves a gap or does not end with
//! the file. Everything that passes can be read by plain arithmetic.

use std::fmt;

use sanctum_kernels::tensor::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// Longest header accepted, in bytes. The largest released checkpoints have a few megabytes.
pub(super) const MAX_HEADER_BYTES: u64 = 64 << 20;
/// Most tensors in one file.
pub(super) const MAX_TENSORS: usize = 65_536;
/// Most dimensions of one tensor.
pub(super) const MAX_DIMENSIONS: usize = 8;
/// Bytes before the header: its length.
pub(super) const PREFIX_BYTES: u64 = 8;

/// What is wrong with a header.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not even a length.
    #[error("the file has {0} bytes, too few for a header")]
    TooShort(u64),
    /// The header would end behind the file or the limit.
    #[error("the header claims {claimed} bytes, at most {available} are possible")]
    TooLong {
        /// What the file says.
        claimed: u64,
        /// What there may be.
        available: u64,
    },
    /// Not the JSON of a header; duplicate names, too many tensors and negative numbers are found here too.
    #[error("the header is not valid: {0}")]
    Json(String),
    /// One tensor's entry contradicts itself or the file.
    #[error("tensor `{tensor}`: {why}")]
    Entry {
        /// The tensor.
        tensor: String,
        /// The contradiction.
        why: String,
    },
    /// Data that no tensor owns.
    #[error("{unowned} bytes of data before offset {offset} belong to no tensor")]
    Gap {
        /// How many bytes.
        unowned: u64,
        /// Where the next tensor or the file's end is, counted from the end of the header.
        offset: u64,
    },
}

/// One tensor of a file. Its bytes lie within the file and belong to it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// Type of its elements.
    pub dtype: StoredType,
    /// Its dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Where its data begins in the file.
    pub offset: u64,
    /// How long its data is.
    pub nbytes: usize,
}

/// The element types a file may hold. Those without a `DType` can be skipped, not loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[expect(missing_docs, reason = "the names are the format's own")]
#[expect(non_camel_case_types, reason = "the names are the format's own")]
pub enum StoredType {
    Bool,
    U8,
    I8,
    F8_E4M3,
    F8_E5M2,
    F8_E8M0,
    U16,
    I16,
    F16,
    Bf16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
}

impl StoredType {
    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::F8_E4M3 | Self::F8_E5M2 | Self::F8_E8M0 => 1,
            Self::U16 | Self::I16 | Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The type as the kernels know it.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        match self {
            Self::F32 => Some(DType::F32),
            Self::F16 => Some(DType::F16),
            Self::Bf16 => Some(DType::Bf16),
            Self::U32 => Some(DType::U32),
            Self::I32 => Some(DType::I32),
            Self::U8 => Some(DType::U8),
            _ => None,
        }
    }
}

impl fmt::Display for StoredType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{self:?}").to_uppercase())
    }
}

/// How long the header is, from the file's first eight bytes and its length.
///
/// # Errors
/// `TooShort`, `TooLong`.
pub(super) fn header_length(prefix: [u8; 8], file_bytes: u64) -> Result<usize, HeaderError> {
    let claimed = u64::from_le_bytes(prefix);
    let available = file_bytes.saturating_sub(PREFIX_BYTES).min(MAX_HEADER_BYTES);
    if claimed > available {
        return Err(HeaderError::TooLong { claimed, available });
    }
    usize::try_from(claimed).map_err(|_| HeaderError::TooLong { claimed, available })
}

/// The tensors of a header, in the order of their data.
///
/// # Errors
/// Whatever is wrong with it, see the module's head.
pub(super) fn parse_header(json: &[u8], file_bytes: u64) -> Result<Vec<TensorEntry>, HeaderError> {
    let RawHeader(raw) =
        serde_json::from_slice(json).map_err(|e| HeaderError::Json(e.to_string()))?;
    let data_start = PREFIX_BYTES + json.len() as u64;
    let data_bytes = file_bytes.saturating_sub(data_start);
    let mut entries = raw
        .into_iter()
        .map(|(name, entry)| check_entry(name, entry, data_start, data_bytes))
        .collect::<Result<Vec<_>, _>>()?;
    // Empty tensors may share an offset with their neighbour: they come first.
    entries.sort_by_key(|entry| (entry.offset, entry.nbytes));
    check_tiling(&entries, data_start, data_bytes)?;
    Ok(entries)
}

fn check_entry(
    name: String,
    raw: RawEntry,
    data_start: u64,
    data_bytes: u64,
) -> Result<TensorEntry, HeaderError> {
    let why = |why: String| HeaderError::Entry { tensor: name.clone(), why };
    let RawEntry { dtype, shape, data_offsets: (begin, end) } = raw;
    if shape.len() > MAX_DIMENSIONS {
        return Err(why(format!("{} dimensions, at most {MAX_DIMENSIONS}", shape.len())));
    }
    if begin > end || end > data_bytes {
        return Err(why(format!("data at {begin}..{end} of {data_bytes} bytes")));
    }
    let size = shape.iter().try_fold(dtype.size() as u64, |size, &dim| size.checked_mul(dim));
    if size != Some(end - begin) {
        return Err(why(format!("{dtype} {shape:?} does not have {} bytes", end - begin)));
    }
    let to_usize = |n: u64| usize::try_from(n).map_err(|_| why(format!("{n} is too large")));
    Ok(TensorEntry {
        dtype,
        shape: shape.into_iter().map(to_usize).collect::<Result<_, _>>()?,
        offset: data_start + begin,
        nbytes: to_usize(end - begin)?,
        name,
    })
}

fn check_tiling(entries: &[TensorEntry], start: u64, data_bytes: u64) -> Result<(), HeaderError> {
    let mut at = start;
    for entry in entries {
        if entry.offset < at {
            return Err(HeaderError::Entry {
                tensor: entry.name.clone(),
                why: "its data overlaps another tensor's".to_owned(),
            });
        }
        if entry.offset > at {
            return Err(HeaderError::Gap {
                unowned: entry.offset - at,
                offset: entry.offset - start,
            });
        }
        at += entry.nbytes as u64;
    }
    let unowned = start + data_bytes - at;
    if unowned > 0 {
        return Err(HeaderError::Gap { unowned, offset: data_bytes });
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: StoredType,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Keeps every entry, unlike a map, so that none can hide behind another of the same name.
struct RawHeader(Vec<(String, RawEntry)>);

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawHeader, A::Error> {
                let mut entries = Vec::new();
                let mut names = std::collections::HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    if entries.len() == MAX_TENSORS {
                        return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(RawHeader(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests;
