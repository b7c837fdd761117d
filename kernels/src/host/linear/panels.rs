//! A weight matrix laid out for the kernels.
//!
//! Owns [`Panels`] and its layout, which is the same for every instruction set. Rows are taken 32 at a time (a *tile*,
//! the last one filled up with zeros); a tile is one run of memory, read from front to back: per block of inputs the
//! block's units, then, for affine matrices, the 32 scales and the 32 biases. A block is a quantisation group, or 64
//! inputs of a dense matrix (the last one shorter, filled up to an even count with zeros).

use super::codec::{FloatType, Format, TILE};
use crate::host::isa::Isa;
use crate::host::memory::Region;
use crate::matrix::Matrix;
use crate::tensor::HostTensor;

/// Inputs of a dense matrix whose products are summed before they are added to the rest.
pub(super) const DENSE_BLOCK: usize = 64;

/// A matrix `[rows, cols]` repacked at load. Immutable; share it behind an `Arc`.
#[derive(Debug)]
pub struct Panels {
    pub(super) isa: Isa,
    pub(super) layout: Layout,
    data: Region,
}

/// Where what lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) format: Format,
    /// Type of scales and biases; `None` if dense.
    pub(super) scales: Option<FloatType>,
    /// Units of a block; the last block may have fewer.
    pub(super) block_units: usize,
    /// Units of a tile.
    pub(super) units: usize,
}

impl Layout {
    fn of(matrix: &Matrix) -> Self {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let (format, scales, block) = match matrix {
            Matrix::Dense(tensor) => (Format::Floats(float_of(tensor)), None, DENSE_BLOCK),
            Matrix::Affine(affine) => {
                let format = if affine.bits == 4 { Format::Nibbles } else { Format::Bytes };
                (format, Some(float_of(&affine.scales)), affine.group)
            }
        };
        let unit = format.unit();
        Self { rows, cols, format, scales, block_units: block / unit, units: cols.div_ceil(unit) }
    }

    /// Inputs, rounded up to whole units.
    pub(super) fn width(&self) -> usize {
        self.units * self.format.unit()
    }

    /// Inputs of a block.
    pub(super) fn block(&self) -> usize {
        self.block_units * self.format.unit()
    }

    /// Blocks of a tile.
    pub(super) fn blocks(&self) -> usize {
        self.units.div_ceil(self.block_units)
    }

    /// Bytes of a whole block.
    pub(super) fn block_bytes(&self) -> usize {
        self.block_units * self.format.unit_bytes() + self.scale_bytes()
    }

    /// Bytes of a block's scales and biases.
    fn scale_bytes(&self) -> usize {
        self.scales.map_or(0, |float| 2 * TILE * float.size())
    }

    pub(super) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    pub(super) fn tile_bytes(&self) -> usize {
        self.units * self.format.unit_bytes() + self.blocks() * self.scale_bytes()
    }
}

impl Panels {
    /// Lays a matrix out, for products computed with `isa`.
    pub fn pack(matrix: &Matrix, isa: Isa) -> Self {
        let layout = Layout::of(matrix);
        let mut panels =
            Self { isa, layout, data: Region::zeroed(layout.tiles() * layout.tile_bytes()) };
        let unit_offset = |unit: usize| {
            let (block, within) = (unit / layout.block_units, unit % layout.block_units);
            block * layout.block_bytes() + within * layout.format.unit_bytes()
        };
        match matrix {
            Matrix::Dense(tensor) => {
                let size = tensor.dtype().size();
                panels.scatter(tensor, size, |k| unit_offset(k / 2) + k % 2 * TILE * size);
            }
            Matrix::Affine(affine) => {
                panels.scatter(&affine.packed, 4, unit_offset);
                let size = affine.scales.dtype().size();
                let units_bytes = layout.block_units * layout.format.unit_bytes();
                let scales = |block: usize| block * layout.block_bytes() + units_bytes;
                panels.scatter(&affine.scales, size, scales);
                panels.scatter(&affine.biases, size, |block| scales(block) + TILE * size);
            }
        }
        panels
    }

    /// Writes element `i` of each row, `size` bytes, to its lane of the run at `offset(i)` of the tile.
    fn scatter(&mut self, tensor: &HostTensor, size: usize, offset: impl Fn(usize) -> usize) {
        let (rows, tile_bytes) = (self.layout.rows, self.layout.tile_bytes());
        let row_bytes = tensor.bytes().len() / rows;
        for (row, elements) in tensor.bytes().chunks_exact(row_bytes).enumerate() {
            let tile = &mut self.data[row / TILE * tile_bytes..][..tile_bytes];
            let lane = row % TILE * size;
            for (i, element) in elements.chunks_exact(size).enumerate() {
                tile[offset(i) + lane..][..size].copy_from_slice(element);
            }
        }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.layout.cols
    }

    /// Bytes of memory it takes.
    pub fn nbytes(&self) -> usize {
        self.data.len()
    }

    /// The instruction set of its products.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Writes row `row`'s weights in f32, `fma(q, scale, bias)` if affine: an embedding's lookup.
    ///
    /// # Panics
    ///
    /// If there is no such row, or `out` is not `cols` long.
    pub fn row_into(&self, row: usize, out: &mut [f32]) {
        let layout = self.layout;
        assert!(row < layout.rows, "row {row} of {}", layout.rows);
        assert_eq!(out.len(), layout.cols, "the length of a row");
        let (unit, unit_bytes) = (layout.format.unit(), layout.format.unit_bytes());
        let lane = row % TILE;
        let blocks = self.tile(row / TILE).chunks(layout.block_bytes());
        for (block, out) in blocks.zip(out.chunks_mut(layout.block())) {
            let (units, scales) = block.split_at(out.len().div_ceil(unit) * unit_bytes);
            let scale = |run: usize| {
                layout.scales.map(|float| float.read(&scales[(run * TILE + lane) * float.size()..]))
            };
            let affine = scale(0).zip(scale(1));
            for (units, out) in units.chunks_exact(unit_bytes).zip(out.chunks_mut(unit)) {
                for (i, out) in out.iter_mut().enumerate() {
                    let weight = layout.format.read(units, lane, i);
                    *out = affine.map_or(weight, |(scale, bias)| weight.mul_add(scale, bias));
                }
            }
        }
    }

    /// The memory of a tile.
    pub(super) fn tile(&self, tile: usize) -> &[u8] {
        let bytes = self.layout.tile_bytes();
        &self.data[tile * bytes..][..bytes]
    }
}

fn float_of(tensor: &HostTensor) -> FloatType {
    FloatType::of(tensor.dtype()).expect("a matrix holds floats: its constructors check")
}
