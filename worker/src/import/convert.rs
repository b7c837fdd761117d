//! Turns the planned tensors into safetensors, in two passes over the source.
//!
//! The first looks at every value and settles the types, since a safetensors header comes before its data; the second
//! converts one tensor at a time, so memory holds one tensor whatever the size of the model.

use std::fs::File;
use std::path::Path;

use super::architecture::Planned;
use super::gguf::{self, BLOCK};
use super::safetensors::{Dtype, Entry, Shard, shard_name, write_index};
use super::{ImportError, Progress, Step, Width, blocks, dense};

/// A planned tensor and the type of its floats.
#[derive(Debug)]
pub(super) struct Output {
    planned: Planned,
    floats: Dtype,
}

impl Output {
    fn name(&self, parameter: &str) -> String {
        format!("{}.{parameter}", self.planned.module)
    }

    /// The safetensors entries it becomes: one, or three when it is quantised.
    fn entries(&self) -> Vec<Entry> {
        let Planned { info, parameter, .. } = &self.planned;
        if !info.encoding.is_quantised() {
            let (name, shape) = (self.name(parameter), info.shape.clone());
            return vec![Entry { name, dtype: self.floats, shape }];
        }
        let with_columns = |columns| {
            let mut shape = info.shape.clone();
            if let Some(last) = shape.last_mut() {
                *last = columns;
            }
            shape
        };
        let columns = info.shape.last().copied().unwrap_or_default();
        let words = with_columns(columns * blocks::bits(info.encoding) / 32);
        let groups = with_columns(columns / BLOCK);
        vec![
            Entry { name: self.name("weight"), dtype: Dtype::U32, shape: words },
            Entry { name: self.name("scales"), dtype: self.floats, shape: groups.clone() },
            Entry { name: self.name("biases"), dtype: self.floats, shape: groups },
        ]
    }

    fn nbytes(&self) -> u64 {
        self.entries().iter().map(Entry::nbytes).sum()
    }

    fn describe(&self) -> String {
        let encoding = self.planned.info.encoding;
        let floats = match self.floats {
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 | Dtype::U32 => "f32",
        };
        if encoding.is_quantised() {
            let bits = blocks::bits(encoding);
            format!("{} as {bits}-bit groups of 32, {floats} scales", encoding.name())
        } else {
            format!("{} as {floats}", encoding.name())
        }
    }

    fn write(&self, bytes: Vec<u8>, shard: &mut Shard) -> Result<(), ImportError> {
        let Planned { info, parameter, interleaved_heads, .. } = &self.planned;
        let bytes = match interleaved_heads {
            Some(heads) => blocks::half_split_rows(&bytes, info.row_bytes(), *heads),
            None => bytes,
        };
        if !info.encoding.is_quantised() {
            return shard
                .write(&self.name(parameter), &dense::encode(info.encoding, bytes, self.floats));
        }
        let affine = blocks::affine(info.encoding, &bytes);
        let scales = affine.scales.iter().map(|scale| scale.to_f32());
        shard.write(&self.name("weight"), &affine.packed)?;
        shard.write(&self.name("scales"), &dense::floats(scales, self.floats))?;
        shard
            .write(&self.name("biases"), &dense::floats(affine.biases.iter().copied(), self.floats))
    }
}

/// Chooses the type of every output.
pub(super) fn survey(
    file: &File,
    plan: Vec<Planned>,
    width: Width,
    progress: Progress<'_>,
) -> Result<Vec<Output>, ImportError> {
    let total = plan.iter().map(|planned| planned.info.nbytes).sum();
    let mut done = 0;
    let mut outputs = Vec::with_capacity(plan.len());
    for planned in plan {
        let info = &planned.info;
        let bytes = gguf::read_tensor(file, info)?;
        let exact = if info.encoding.is_quantised() {
            let wide = blocks::needs_f32(info.encoding, &bytes);
            wide.map(|wide| if wide { Dtype::F32 } else { Dtype::F16 })
        } else {
            dense::exact_dtype(info.encoding, &bytes)
        };
        let exact = exact.ok_or_else(|| ImportError::NotFinite(info.name.clone()))?;
        let floats = if width == Width::F32 { Dtype::F32 } else { exact };
        done += info.nbytes;
        progress(Step::Surveying, done, total);
        outputs.push(Output { planned, floats });
    }
    Ok(outputs)
}

/// Writes the weights into `dir` and returns their size in bytes.
pub(super) fn write(
    file: &File,
    outputs: &[Output],
    dir: &Path,
    shard_bytes: u64,
    progress: Progress<'_>,
) -> Result<u64, ImportError> {
    let shards = partition(outputs, shard_bytes);
    let total: u64 = outputs.iter().map(Output::nbytes).sum();
    let mut done = 0;
    for (index, shard_outputs) in shards.iter().enumerate() {
        let path = dir.join(shard_name(index, shards.len()));
        let mut shard = Shard::create(path, entries(shard_outputs))?;
        for output in *shard_outputs {
            output.write(gguf::read_tensor(file, &output.planned.info)?, &mut shard)?;
            done += output.nbytes();
            progress(Step::Converting, done, total);
        }
        shard.finish()?;
    }
    if shards.len() > 1 {
        let entries: Vec<_> = shards.iter().map(|outputs| entries(outputs)).collect();
        write_index(dir, &entries)?;
    }
    Ok(total)
}

fn entries(outputs: &[Output]) -> Vec<Entry> {
    outputs.iter().flat_map(Output::entries).collect()
}

/// Cuts the outputs into runs of at most `shard_bytes`; one that is larger alone gets a shard of its own.
fn partition(outputs: &[Output], shard_bytes: u64) -> Vec<&[Output]> {
    let mut shards = Vec::new();
    let (mut start, mut size) = (0, 0);
    for (index, output) in outputs.iter().enumerate() {
        if size > 0 && size + output.nbytes() > shard_bytes {
            shards.push(&outputs[start..index]);
            (start, size) = (index, 0);
        }
        size += output.nbytes();
    }
    shards.push(&outputs[start..]);
    shards
}

/// The quantised modules and their bits.
pub(super) fn module_bits(outputs: &[Output]) -> Vec<(&str, usize)> {
    let quantised = outputs.iter().filter(|output| output.planned.info.encoding.is_quantised());
    quantised
        .map(|output| (output.planned.module.as_str(), blocks::bits(output.planned.info.encoding)))
        .collect()
}

/// What config.json calls the type of the floats; f32 holds a mixture.
pub(super) fn dtype_name(outputs: &[Output]) -> &'static str {
    let all = |dtype| outputs.iter().all(|output| output.floats == dtype);
    if all(Dtype::F16) {
        "float16"
    } else if all(Dtype::Bf16) {
        "bfloat16"
    } else {
        "float32"
    }
}

/// How many tensors became what.
pub(super) fn summary(outputs: &[Output]) -> Vec<(String, usize)> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for what in outputs.iter().map(Output::describe) {
        match counts.iter_mut().find(|(known, _)| *known == what) {
            Some((_, count)) => *count += 1,
            None => counts.push((what, 1)),
        }
    }
    counts
}
