//! A bounded little-endian reader for the header: it knows where it is and where it must stop.

use std::io::{BufReader, Read, Seek, SeekFrom};

use super::{GgufError, MAX_HEADER_BYTES};

/// Reads forward from the start of a file and never past `end`.
pub(super) struct Cursor<R> {
    inner: BufReader<R>,
    at: u64,
    end: u64,
}

impl<R: Read + Seek> Cursor<R> {
    /// Starts at byte 0 of a file of `length` bytes.
    pub(super) fn new(mut inner: R, length: u64) -> Result<Self, GgufError> {
        inner.seek(SeekFrom::Start(0)).map_err(GgufError::Io)?;
        Ok(Self { inner: BufReader::new(inner), at: 0, end: length.min(MAX_HEADER_BYTES) })
    }

    /// Offset of the next byte.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    fn claim(&mut self, length: u64, what: &'static str) -> Result<(), GgufError> {
        if length > self.end - self.at {
            return Err(GgufError::Truncated { at: self.end, what });
        }
        self.at += length;
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], GgufError> {
        self.claim(N as u64, what)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes).map_err(GgufError::Io)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A count or length of at most `limit`.
    pub(super) fn count(&mut self, what: &'static str, limit: u64) -> Result<u64, GgufError> {
        let at = self.at;
        let found = self.u64(what)?;
        if found > limit {
            return Err(GgufError::Limit { what, at, found, limit });
        }
        Ok(found)
    }

    /// A length followed by that many bytes of UTF-8.
    pub(super) fn text(&mut self, what: &'static str, limit: u64) -> Result<String, GgufError> {
        let length = self.count(what, limit)?;
        let at = self.at;
        self.claim(length, what)?;
        let mut bytes = vec![0; length as usize];
        self.inner.read_exact(&mut bytes).map_err(GgufError::Io)?;
        String::from_utf8(bytes).map_err(|_| GgufError::Text { what, at })
    }

    pub(super) fn skip(&mut self, length: u64, what: &'static str) -> Result<(), GgufError> {
        self.claim(length, what)?;
        // At most MAX_HEADER_BYTES, which an i64 holds.
        self.inner.seek_relative(length as i64).map_err(GgufError::Io)
    }
}
