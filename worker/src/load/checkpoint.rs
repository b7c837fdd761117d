//! All tensors of a model directory, by name, wherever they lie; and which of them were never asked for.
//!
//! The files are `model*.safetensors`; the index file says nothing that their headers do not. Refused: no such file,
//! a set of shards that is not complete, a tensor in two files.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use sanctum_kernels::tensor::HostTensor;

use super::LoadError;
use super::header::TensorEntry;
use super::shard::Shard;

/// Most files of one checkpoint.
const MAX_SHARDS: usize = 1024;

/// An open checkpoint.
#[derive(Debug)]
pub struct Checkpoint {
    dir: PathBuf,
    shards: Vec<Shard>,
    places: HashMap<String, Place>,
    total_bytes: u64,
    read_bytes: u64,
}

#[derive(Debug)]
struct Place {
    shard: usize,
    entry: usize,
    used: bool,
}

impl Checkpoint {
    /// Opens every file of a directory and checks the headers.
    ///
    /// # Errors
    /// As the module's head says.
    pub fn open(dir: &Path) -> Result<Self, LoadError> {
        let names = shard_names(dir)?;
        check_complete(dir, &names)?;
        let shards =
            names.iter().map(|name| Shard::open(&dir.join(name))).collect::<Result<Vec<_>, _>>()?;
        let mut places: HashMap<String, Place> = HashMap::new();
        let mut total_bytes = 0;
        for (shard, file) in shards.iter().enumerate() {
            for (entry, tensor) in file.entries().iter().enumerate() {
                let place = Place { shard, entry, used: false };
                if let Some(other) = places.insert(tensor.name.clone(), place) {
                    let other = shards[other.shard].path().display().to_string();
                    return Err(LoadError::File {
                        path: file.path().to_owned(),
                        why: format!("tensor `{}` is in {other} too", tensor.name),
                    });
                }
                total_bytes += tensor.nbytes as u64;
            }
        }
        Ok(Self { dir: dir.to_owned(), shards, places, total_bytes, read_bytes: 0 })
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether a tensor is there.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// A tensor's entry and the file that holds it.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<(&Path, &TensorEntry)> {
        let place = self.places.get(name)?;
        let shard = &self.shards[place.shard];
        Some((shard.path(), &shard.entries()[place.entry]))
    }

    /// Reads a tensor; `None` if there is none of that name.
    ///
    /// # Errors
    /// If it cannot be read or holds what is not a number.
    pub fn read(&mut self, name: &str) -> Result<Option<HostTensor>, LoadError> {
        let Some(place) = self.places.get_mut(name) else { return Ok(None) };
        place.used = true;
        let shard = &self.shards[place.shard];
        let entry = &shard.entries()[place.entry];
        self.read_bytes += entry.nbytes as u64;
        shard.read(entry).map(Some)
    }

    /// How much of the data has been read, from 0 to 1.
    #[must_use]
    pub fn fraction_read(&self) -> f32 {
        if self.total_bytes == 0 {
            return 1.0;
        }
        (self.read_bytes as f64 / self.total_bytes as f64).min(1.0) as f32
    }

    /// How much of the data has been read, in bytes.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.read_bytes
    }

    /// Names of the tensors that nobody has read, sorted.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        let unused = self.places.iter().filter(|(_, place)| !place.used);
        let mut names: Vec<String> = unused.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }
}

/// The names `model*.safetensors` in a directory, sorted.
fn shard_names(dir: &Path) -> Result<Vec<String>, LoadError> {
    let read_error = |source| LoadError::Read { path: dir.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(read_error)? {
        let name = entry.map_err(read_error)?.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            names.push(name.into_owned());
        }
    }
    let wrong = |why: String| LoadError::File { path: dir.to_owned(), why };
    if names.is_empty() {
        return Err(wrong("no model*.safetensors here".to_owned()));
    }
    if names.len() > MAX_SHARDS {
        return Err(wrong(format!("{} model files, at most {MAX_SHARDS}", names.len())));
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether `model-00002-of-00003.safetensors` has all its fellows.
fn check_complete(dir: &Path, names: &[String]) -> Result<(), LoadError> {
    for name in names {
        let Some((before, count)) = name
            .strip_suffix(".safetensors")
            .and_then(|stem| stem.rsplit_once("-of-"))
            .and_then(|(before, digits)| Some((before, digits.parse::<usize>().ok()?)))
            .filter(|&(_, count)| count <= MAX_SHARDS)
        else {
            continue;
        };
        let Some((stem, digits)) = before.rsplit_once('-') else { continue };
        let end = &name[before.len()..];
        let missing = (1..=count)
            .map(|n| format!("{stem}-{n:0width$}{end}", width = digits.len()))
            .find(|fellow| !names.contains(fellow));
        if let Some(missing) = missing {
            let why = format!("missing, but {name} is here");
            return Err(LoadError::File { path: dir.join(missing), why });
        }
    }
    Ok(())
}
