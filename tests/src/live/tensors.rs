//! Safetensors files, read and written whole: for checkpoints that a test makes up or damages.
//!
//! It trusts what it reads (our own fixtures) and checks nothing that it writes: lies are what some tests want.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

/// One tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Such as `F32`.
    pub dtype: String,
    /// Rows first.
    pub shape: Vec<usize>,
    /// Little-endian.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of `f32`.
    pub fn floats(shape: &[usize], values: impl IntoIterator<Item = f32>) -> Self {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        Self { dtype: "F32".into(), shape: shape.to_vec(), bytes }
    }

    /// A tensor of `f32` that are all `value`.
    pub fn filled(shape: &[usize], value: f32) -> Self {
        Self::floats(shape, std::iter::repeat_n(value, shape.iter().product()))
    }
}

/// The tensors of one file, by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// Length of the field that says how long the header is.
const LENGTH_BYTES: usize = 8;

/// Reads a file.
///
/// # Panics
/// If it is not a safetensors file.
pub fn read(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (length, rest) = bytes.split_first_chunk::<LENGTH_BYTES>().expect("a length");
    let length = usize::try_from(u64::from_le_bytes(*length)).expect("it fits");
    let header: Map<String, Value> = serde_json::from_slice(&rest[..length]).expect("a header");
    let data = &rest[length..];
    let number =
        |value: &Value| usize::try_from(value.as_u64().expect("a number")).expect("it fits");
    header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__")
        .map(|(name, entry)| {
            let offsets = &entry["data_offsets"];
            let shape = entry["shape"].as_array().expect("a shape").iter().map(number).collect();
            let bytes = data[number(&offsets[0])..number(&offsets[1])].to_vec();
            (name, Tensor { dtype: entry["dtype"].as_str().expect("a type").into(), shape, bytes })
        })
        .collect()
}

/// Writes a file.
///
/// # Panics
/// If it cannot be written.
pub fn write(path: &Path, tensors: &Tensors) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, tensor) in tensors {
        let begin = data.len();
        data.extend_from_slice(&tensor.bytes);
        let entry = json!({
            "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let mut header = Value::Object(header).to_string();
    // The data is to be aligned; blanks are allowed at the header's end.
    header.extend(std::iter::repeat_n(
        ' ',
        header.len().next_multiple_of(LENGTH_BYTES) - header.len(),
    ));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&data);
    fs::write(path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
