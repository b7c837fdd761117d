//! Fields of `config.json` by name, so that every complaint names the file and the field.
//!
//! It checks types, not meaning; what a field means is the model family's business.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::LoadError;

/// Longest JSON file read from a checkpoint, in bytes. Per-module quantisation makes for a few hundred kilobytes.
const MAX_JSON_BYTES: u64 = 16 << 20;

/// One JSON object of a checkpoint, and where it stands.
#[derive(Clone, Debug)]
pub struct Fields {
    path: PathBuf,
    /// The parents' names with a trailing dot, or nothing.
    prefix: String,
    map: Map<String, Value>,
}

impl Fields {
    /// Reads a JSON file that must hold an object.
    ///
    /// # Errors
    /// If it cannot be read, is too long or is not an object.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let read_error = |source| LoadError::Read { path: path.to_owned(), source };
        let file_error = |why| LoadError::File { path: path.to_owned(), why };
        let file = fs::File::open(path).map_err(read_error)?;
        let mut text = Vec::new();
        file.take(MAX_JSON_BYTES + 1).read_to_end(&mut text).map_err(read_error)?;
        if text.len() as u64 > MAX_JSON_BYTES {
            return Err(file_error(format!("longer than {MAX_JSON_BYTES} bytes")));
        }
        let map = serde_json::from_slice(&text)
            .map_err(|e| file_error(format!("not a JSON object: {e}")))?;
        Ok(Self { path: path.to_owned(), prefix: String::new(), map })
    }

    /// The same as a value that is at hand already.
    #[must_use]
    pub fn new(path: &Path, map: Map<String, Value>) -> Self {
        Self { path: path.to_owned(), prefix: String::new(), map }
    }

    /// A field that must be there.
    ///
    /// # Errors
    /// If it is absent, null or of another type.
    pub fn required<T: DeserializeOwned>(&self, name: &str) -> Result<T, LoadError> {
        self.optional(name)?
            .ok_or_else(|| self.wrong(name, format!("missing, expected {}", type_name::<T>())))
    }

    /// A field that may be absent or null.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn optional<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, LoadError> {
        match self.map.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                T::deserialize(value).map(Some).map_err(|e| self.wrong(name, e.to_string()))
            }
        }
    }

    /// A field with a default.
    ///
    /// # Errors
    /// If it is of another type.
    pub fn or<T: DeserializeOwned>(&self, name: &str, default: T) -> Result<T, LoadError> {
        Ok(self.optional(name)?.unwrap_or(default))
    }

    /// A dimension: a whole number from one to a billion.
    ///
    /// # Errors
    /// If it is absent or out of range.
    pub fn size(&self, name: &str) -> Result<usize, LoadError> {
        let size = self.required::<u64>(name)?;
        self.in_range(name, size)
    }

    /// A dimension with a default.
    ///
    /// # Errors
    /// If it is out of range.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize, LoadError> {
        match self.optional::<u64>(name)? {
            Some(size) => self.in_range(name, size),
            None => Ok(default),
        }
    }

    fn in_range(&self, name: &str, size: u64) -> Result<usize, LoadError> {
        usize::try_from(size)
            .ok()
            .filter(|size| (1..=1_000_000_000).contains(size))
            .ok_or_else(|| self.wrong(name, format!("{size} is not between 1 and 1000000000")))
    }

    /// A number that must be finite and above zero.
    ///
    /// # Errors
    /// If it is not.
    pub fn positive(&self, name: &str) -> Result<Option<f32>, LoadError> {
        match self.optional::<f32>(name)? {
            Some(x) if !(x.is_finite() && x > 0.0) => {
                Err(self.wrong(name, format!("expected a number above zero, found {x}")))
            }
            x => Ok(x),
        }
    }

    /// An object within this one.
    ///
    /// # Errors
    /// If it is something else.
    pub fn object(&self, name: &str) -> Result<Option<Self>, LoadError> {
        let map = self.optional::<Map<String, Value>>(name)?;
        Ok(map.map(|map| Self {
            path: self.path.clone(),
            prefix: format!("{}{name}.", self.prefix),
            map,
        }))
    }

    /// Names and values, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.map.iter()
    }

    /// An error about one field.
    #[must_use]
    pub fn wrong(&self, name: &str, why: impl Into<String>) -> LoadError {
        LoadError::Config {
            path: self.path.clone(),
            field: format!("{}{name}", self.prefix),
            why: why.into(),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// What a reader of JSON calls a Rust type.
fn type_name<T>() -> &'static str {
    match std::any::type_name::<T>() {
        "u64" | "u32" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        "bool" => "true or false",
        "alloc::string::String" => "a string",
        other => other,
    }
}
