//! GGUF's metadata: typed entries, and getters that say which key is missing or of another type.
//!
//! Arrays of text, 32-bit integers and 32-bit floats are kept; other arrays are skipped over, since nothing that is
//! imported reads them and a byte array would grow eightfold in memory.

use std::collections::BTreeMap;
use std::io::{Read, Seek};

use super::cursor::Cursor;
use super::{GgufError, MAX_ARRAY_ITEMS, MAX_NAME_BYTES, MAX_TEXT_BYTES};

/// One entry's value.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f32),
    Double(f64),
    Bool(bool),
    Text(String),
    Texts(Vec<String>),
    Integers(Vec<i64>),
    Floats(Vec<f32>),
    SkippedArray,
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) => "an unsigned integer",
            Self::Signed(_) => "a signed integer",
            Self::Float(_) | Self::Double(_) => "a float",
            Self::Bool(_) => "a boolean",
            Self::Text(_) => "a string",
            Self::Texts(_) => "an array of strings",
            Self::Integers(_) => "an array of integers",
            Self::Floats(_) => "an array of floats",
            Self::SkippedArray => "an array of another type",
        }
    }
}

/// All entries of a file.
#[derive(Debug, Default)]
pub(crate) struct Metadata(BTreeMap<String, Value>);

impl Metadata {
    pub(super) fn read(
        cursor: &mut Cursor<impl Read + Seek>,
        entries: u64,
    ) -> Result<Self, GgufError> {
        let mut map = BTreeMap::new();
        for _ in 0..entries {
            let key = cursor.text("a metadata key", MAX_NAME_BYTES)?;
            let kind = cursor.u32("a metadata value's type")?;
            let value =
                if kind == ARRAY { array(cursor, &key)? } else { scalar(cursor, &key, kind)? };
            if map.contains_key(&key) {
                return Err(GgufError::Duplicate(key));
            }
            map.insert(key, value);
        }
        Ok(Self(map))
    }

    fn get<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.0.get(key) else { return Ok(None) };
        pick(value).map(Some).ok_or_else(|| GgufError::KeyType {
            key: key.to_owned(),
            expected,
            found: value.kind(),
        })
    }

    pub(crate) fn unsigned_opt(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.get(key, "an unsigned integer", |value| match value {
            Value::Unsigned(n) => Some(*n),
            Value::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        })
    }

    pub(crate) fn unsigned_or(&self, key: &str, default: u64) -> Result<u64, GgufError> {
        Ok(self.unsigned_opt(key)?.unwrap_or(default))
    }

    pub(crate) fn unsigned(&self, key: &str) -> Result<u64, GgufError> {
        required(key, self.unsigned_opt(key)?)
    }

    pub(crate) fn float_opt(&self, key: &str) -> Result<Option<f32>, GgufError> {
        self.get(key, "a finite float", |value| match value {
            Value::Float(x) if x.is_finite() => Some(*x),
            _ => None,
        })
    }

    pub(crate) fn flag_opt(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key, "a boolean", |value| match value {
            Value::Bool(b) => Some(*b),
            _ => None,
        })
    }

    pub(crate) fn text_opt(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.get(key, "a string", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(crate) fn text(&self, key: &str) -> Result<&str, GgufError> {
        required(key, self.text_opt(key)?)
    }

    pub(crate) fn texts(&self, key: &str) -> Result<&[String], GgufError> {
        let found = self.get(key, "an array of strings", |value| match value {
            Value::Texts(texts) => Some(texts.as_slice()),
            _ => None,
        })?;
        required(key, found)
    }

    pub(crate) fn integers(&self, key: &str) -> Result<&[i64], GgufError> {
        let found = self.get(key, "an array of integers", |value| match value {
            Value::Integers(integers) => Some(integers.as_slice()),
            _ => None,
        })?;
        required(key, found)
    }
}

fn required<T>(key: &str, found: Option<T>) -> Result<T, GgufError> {
    found.ok_or_else(|| GgufError::MissingKey(key.to_owned()))
}

// GGUF's value type numbers.
const U8: u32 = 0;
const I8: u32 = 1;
const U16: u32 = 2;
const I16: u32 = 3;
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;
const F64: u32 = 12;

fn scalar(cursor: &mut Cursor<impl Read + Seek>, key: &str, kind: u32) -> Result<Value, GgufError> {
    let what = "a metadata value";
    Ok(match kind {
        U8 => Value::Unsigned(u8::from_le_bytes(cursor.bytes(what)?).into()),
        I8 => Value::Signed(i8::from_le_bytes(cursor.bytes(what)?).into()),
        U16 => Value::Unsigned(u16::from_le_bytes(cursor.bytes(what)?).into()),
        I16 => Value::Signed(i16::from_le_bytes(cursor.bytes(what)?).into()),
        U32 => Value::Unsigned(cursor.u32(what)?.into()),
        I32 => Value::Signed(i32::from_le_bytes(cursor.bytes(what)?).into()),
        F32 => Value::Float(f32::from_le_bytes(cursor.bytes(what)?)),
        BOOL => Value::Bool(cursor.bytes::<1>(what)? != [0]),
        TEXT => Value::Text(cursor.text(what, MAX_TEXT_BYTES)?),
        U64 => Value::Unsigned(cursor.u64(what)?),
        I64 => Value::Signed(i64::from_le_bytes(cursor.bytes(what)?)),
        F64 => Value::Double(f64::from_le_bytes(cursor.bytes(what)?)),
        _ => return Err(GgufError::ValueType { key: key.to_owned(), kind }),
    })
}

/// The vectors grow as items are read, so a lying count costs no memory.
fn array(cursor: &mut Cursor<impl Read + Seek>, key: &str) -> Result<Value, GgufError> {
    let kind = cursor.u32("an array's type")?;
    let count = cursor.count("an array's length", MAX_ARRAY_ITEMS)?;
    let what = "an array";
    let item_bytes = match kind {
        TEXT => {
            let texts = (0..count).map(|_| cursor.text(what, MAX_TEXT_BYTES));
            return Ok(Value::Texts(texts.collect::<Result<_, _>>()?));
        }
        U32 => {
            let items = (0..count).map(|_| cursor.u32(what).map(i64::from));
            return Ok(Value::Integers(items.collect::<Result<_, _>>()?));
        }
        I32 => {
            let items = (0..count).map(|_| Ok(i32::from_le_bytes(cursor.bytes(what)?).into()));
            return Ok(Value::Integers(items.collect::<Result<_, GgufError>>()?));
        }
        F32 => {
            let items = (0..count).map(|_| Ok(f32::from_le_bytes(cursor.bytes(what)?)));
            return Ok(Value::Floats(items.collect::<Result<_, GgufError>>()?));
        }
        U8 | I8 | BOOL => 1,
        U16 | I16 => 2,
        U64 | I64 | F64 => 8,
        _ => return Err(GgufError::ValueType { key: key.to_owned(), kind }),
    };
    cursor.skip(count * item_bytes, what)?;
    Ok(Value::SkippedArray)
}
