//! Writes small GGUF files for tests.

/// A file under construction; entries and tensors are written in the order they are added.
#[derive(Clone, Default)]
pub(crate) struct Writer {
    entries: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

fn typed(kind: u32, value: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], value].concat()
}

impl Writer {
    /// Adds or replaces a raw entry: the type number and the value's bytes.
    pub(crate) fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.entries.retain(|(known, _)| known != key);
        self.entries.push((key.to_owned(), typed(kind, value)));
        self
    }

    pub(crate) fn without(mut self, key: &str) -> Self {
        self.entries.retain(|(known, _)| known != key);
        self.tensors.retain(|(known, ..)| known != key);
        self
    }

    pub(crate) fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, &value.to_le_bytes())
    }

    pub(crate) fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, &value.to_le_bytes())
    }

    pub(crate) fn text(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, &text(value))
    }

    pub(crate) fn texts(self, key: &str, values: &[&str]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| text(value)).collect();
        self.array(key, 8, values.len(), &items)
    }

    pub(crate) fn i32s(self, key: &str, values: &[i32]) -> Self {
        let items: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.array(key, 5, values.len(), &items)
    }

    pub(crate) fn array(self, key: &str, kind: u32, length: usize, items: &[u8]) -> Self {
        let value = [&kind.to_le_bytes()[..], &(length as u64).to_le_bytes(), items].concat();
        self.raw(key, 9, &value)
    }

    /// `shape` as GGUF has it: the contiguous dimension first.
    pub(crate) fn tensor(mut self, name: &str, shape: &[u64], kind: u32, bytes: &[u8]) -> Self {
        self.tensors.retain(|(known, ..)| known != name);
        self.tensors.push((name.to_owned(), shape.to_vec(), kind, bytes.to_vec()));
        self
    }

    /// The file's bytes, version 3, aligned to 32.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.entries.len() as u64).to_le_bytes());
        for (key, value) in &self.entries {
            out.extend(text(key));
            out.extend(value);
        }
        let mut data = Vec::new();
        for (name, shape, kind, bytes) in &self.tensors {
            out.extend(text(name));
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend(n.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend((data.len() as u64).to_le_bytes());
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}
