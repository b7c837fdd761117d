//! Writes safetensors files whose size and layout are known before the first tensor is converted.
//!
//! The layout is the reference implementation's: widest type first, then by name, no holes, header padded to eight
//! bytes, so every tensor is aligned to its element. Tensors are written at their offsets in any order, one in memory
//! at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::ImportError;

/// Element types an import writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dtype {
    U32,
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub(super) fn bytes(self) -> usize {
        if matches!(self, Self::U32 | Self::F32) { 4 } else { 2 }
    }

    fn name(self) -> &'static str {
        match self {
            Self::U32 => "U32",
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
        }
    }
}

/// One tensor to be written.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

impl Entry {
    pub(super) fn nbytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bytes() as u64
    }
}

/// A file being filled.
#[derive(Debug)]
pub(super) struct Shard {
    path: PathBuf,
    file: File,
    /// From the start of the file, and the length, in bytes.
    places: HashMap<String, (u64, u64)>,
}

impl Shard {
    /// Creates the file and writes its header.
    pub(super) fn create(path: PathBuf, mut entries: Vec<Entry>) -> Result<Self, ImportError> {
        entries.sort_by(|a, b| {
            b.dtype.bytes().cmp(&a.dtype.bytes()).then_with(|| a.name.cmp(&b.name))
        });
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
        let mut places = HashMap::new();
        let mut at = 0;
        for entry in &entries {
            let end = at + entry.nbytes();
            let value = json!({
                "dtype": entry.dtype.name(), "shape": entry.shape, "data_offsets": [at, end],
            });
            header.insert(entry.name.clone(), value);
            places.insert(entry.name.clone(), (at, end - at));
            at = end;
        }
        let mut text = Value::Object(header).to_string().into_bytes();
        text.resize(text.len().next_multiple_of(8), b' ');
        let data = 8 + text.len() as u64;
        places.values_mut().for_each(|place| place.0 += data);

        let write = |file: &mut File| {
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(&text)
        };
        let mut file = File::create(&path).map_err(ImportError::io("create", &path))?;
        write(&mut file).map_err(ImportError::io("write", &path))?;
        Ok(Self { path, file, places })
    }

    /// Writes one tensor of the entries given to [`Self::create`].
    ///
    /// # Panics
    /// If the tensor is none of them or has another length: the plan and the conversion would disagree.
    pub(super) fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), ImportError> {
        let (at, length) = self.places[name];
        assert_eq!(bytes.len() as u64, length, "bytes of {name}");
        let put = |file: &mut File| {
            file.seek(SeekFrom::Start(at))?;
            file.write_all(bytes)
        };
        put(&mut self.file).map_err(ImportError::io("write", &self.path))
    }

    /// Makes the file durable.
    pub(super) fn finish(self) -> Result<(), ImportError> {
        self.file.sync_all().map_err(ImportError::io("write", &self.path))
    }
}

/// The file name of shard `index` of `count`.
pub(super) fn shard_name(index: usize, count: usize) -> String {
    if count == 1 {
        "model.safetensors".to_owned()
    } else {
        format!("model-{:05}-of-{count:05}.safetensors", index + 1)
    }
}

/// Writes `model.safetensors.index.json` for the shards' entries.
pub(super) fn write_index(dir: &Path, shards: &[Vec<Entry>]) -> Result<(), ImportError> {
    let mut map = Map::new();
    let mut total = 0;
    for (index, entries) in shards.iter().enumerate() {
        for entry in entries {
            total += entry.nbytes();
            map.insert(entry.name.clone(), shard_name(index, shards.len()).into());
        }
    }
    map.sort_keys();
    let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
    super::checkpoint::write_json(&dir.join("model.safetensors.index.json"), &index)
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::*;

    #[test]
    fn the_reference_implementation_reads_what_was_written() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("model.safetensors");
        let entry = |name: &str, dtype, shape: &[usize]| Entry {
            name: name.to_owned(),
            dtype,
            shape: shape.to_vec(),
        };
        let entries = vec![
            entry("b", Dtype::F16, &[3]),
            entry("a", Dtype::U32, &[2, 1]),
            entry("c", Dtype::F32, &[1]),
        ];
        let mut shard = Shard::create(path.clone(), entries).expect("created");
        shard.write("b", &[1, 2, 3, 4, 5, 6]).expect("written");
        shard.write("c", &[9; 4]).expect("written");
        shard.write("a", &[7, 0, 0, 0, 8, 0, 0, 0]).expect("written");
        shard.finish().expect("durable");

        let bytes = std::fs::read(&path).expect("readable");
        let read = SafeTensors::deserialize(&bytes).expect("valid");
        assert_eq!(read.tensor("a").expect("there").data(), &[7, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(read.tensor("a").expect("there").shape(), &[2, 1]);
        assert_eq!(read.tensor("b").expect("there").data(), &[1, 2, 3, 4, 5, 6]);
        assert_eq!(read.tensor("b").expect("there").dtype(), safetensors::Dtype::F16);
        assert_eq!(read.tensor("c").expect("there").data(), &[9; 4]);
    }
}
