//! Linear layers: `y = x . Wᵀ + bias` for dense and affine-quantised matrices.
//!
//! Owns [`multiply`], which computes several layers of one input in one go of the pool, and [`Panels`], the matrices
//! laid out for it. Refuses sizes that do not match, by panic: the blocks have checked them.

mod codec;
mod input;
mod panels;
mod rows;
mod single;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use half::{bf16, f16};

use self::codec::{Bytes, Codec, FloatType, Floats, Format, Nibbles, TILE};
use self::input::{InputForm, Inputs};
pub use self::panels::Panels;
use self::rows::{Lines, ROWS_PER_JOB, TileOfRows};
use self::single::{Scale, Unscaled, tile_sums};
use super::isa::Kernel;
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared_mut::SharedMut;

/// Rows up to which each meets the weights as if alone: turning them into floats for all pays from then on.
const ONE_BY_ONE: usize = 3;
/// Jobs per thread that a call with few rows is cut into, so that a thread that is held up delays the others little.
const JOBS_PER_THREAD: usize = 16;

/// One linear layer of a call.
#[derive(Debug)]
pub struct Product<'a> {
    /// The matrix `[n, k]`.
    pub panels: &'a Panels,
    /// What is added to every row, `[n]`.
    pub bias: Option<&'a [f32]>,
    /// Where the result goes, `[m, n]`.
    pub out: &'a mut [f32],
}

thread_local! {
    /// The caller's prepared inputs, one for each form in use at once.
    static INPUTS: RefCell<Vec<Inputs>> = const { RefCell::new(Vec::new()) };
}

/// Computes all products with `m` rows of inputs `x` `[m, k]`.
///
/// A row of a result depends only on that row of `x`, down to the bits.
///
/// # Panics
///
/// If a size does not match: `x` with `m * k`, a bias with `n`, an output with `m * n`.
pub fn multiply(pool: &Pool, products: &mut [Product<'_>], x: &[f32], m: usize) {
    for product in &*products {
        let (n, k) = (product.panels.rows(), product.panels.cols());
        assert_eq!(x.len(), m * k, "inputs of a linear layer");
        assert_eq!(product.out.len(), m * n, "outputs of a linear layer");
        assert!(product.bias.is_none_or(|bias| bias.len() == n), "bias of a linear layer");
    }
    if m == 0 {
        return;
    }
    // Taken, not borrowed: a job may multiply in turn.
    let mut inputs = INPUTS.take();
    let mut forms: Vec<InputForm> = Vec::with_capacity(1);
    for product in &*products {
        let form = InputForm::of(&product.panels.layout);
        if forms.contains(&form) {
            continue;
        }
        if inputs.len() == forms.len() {
            inputs.push(Inputs::default());
        }
        inputs[forms.len()].prepare(pool, product.panels.isa, form, x, m);
        forms.push(form);
    }
    let mut tiles = 0;
    let layers: Vec<Layer<'_>> = products
        .iter_mut()
        .map(|product| {
            let form = InputForm::of(&product.panels.layout);
            let index = forms.iter().position(|&known| known == form).unwrap_or_default();
            let first_tile = tiles;
            tiles += product.panels.layout.tiles();
            Layer {
                panels: product.panels,
                bias: product.bias,
                inputs: &inputs[index],
                out: SharedMut::new(product.out),
                first_tile,
            }
        })
        .collect();
    if m <= ONE_BY_ONE {
        let per_job = tiles.div_ceil(pool.threads() * JOBS_PER_THREAD);
        pool.run(tiles.div_ceil(per_job), &|job| {
            for tile in job * per_job..tiles.min((job + 1) * per_job) {
                let layer = Layer::holding(&layers, tile);
                for row in 0..m {
                    layer.single(tile, row);
                }
            }
        });
    } else {
        let bands = m.div_ceil(ROWS_PER_JOB);
        pool.run(tiles * bands, &|job| {
            let (tile, band) = (job / bands, job % bands);
            let from = m * band / bands;
            let to = m * (band + 1) / bands;
            Layer::holding(&layers, tile).rows(tile, from, to - from);
        });
    }
    drop(layers);
    INPUTS.set(inputs);
}

/// A product as the jobs see it.
struct Layer<'a> {
    panels: &'a Panels,
    bias: Option<&'a [f32]>,
    inputs: &'a Inputs,
    out: SharedMut<'a, f32>,
    /// Its first tile among the tiles of the call.
    first_tile: usize,
}

impl<'a> Layer<'a> {
    /// The layer that a tile of the call belongs to.
    fn holding<'l>(layers: &'l [Layer<'a>], tile: usize) -> &'l Layer<'a> {
        let after = layers.partition_point(|layer| layer.first_tile <= tile);
        &layers[after - 1]
    }

    /// A tile of one row.
    fn single(&self, tile: usize, row: usize) {
        let tile = tile - self.first_tile;
        let mut sums = [0.0; TILE];
        self.panels.isa.run(Single { layer: self, tile, row, out: &mut sums });
        self.write(tile, row, &sums);
    }

    /// A tile of some rows.
    fn rows(&self, tile: usize, from: usize, m: usize) {
        let tile = tile - self.first_tile;
        let mut sums = Lines([0.0; ROWS_PER_JOB * TILE]);
        self.panels.isa.run(Rows { layer: self, tile, from, m, out: &mut sums.0 });
        for (row, sums) in sums.0.chunks_exact(TILE).take(m).enumerate() {
            self.write(tile, from + row, sums);
        }
    }

    /// Adds the bias to a row's sums over a tile and puts them where they belong.
    fn write(&self, tile: usize, row: usize, sums: &[f32]) {
        let n = self.panels.rows();
        let first = tile * TILE;
        let count = TILE.min(n - first);
        // SAFETY: no two jobs share both tile and rows.
        let out = unsafe { self.out.part(row * n + first, count) };
        match self.bias {
            Some(bias) => {
                for ((out, sum), bias) in out.iter_mut().zip(sums).zip(&bias[first..]) {
                    *out = sum + bias;
                }
            }
            None => out.copy_from_slice(&sums[..count]),
        }
    }
}

/// A tile against one row.
struct Single<'a> {
    layer: &'a Layer<'a>,
    tile: usize,
    row: usize,
    out: &'a mut [f32; TILE],
}

impl Kernel for Single<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        use FloatType::{Bf16, F16, F32};
        let layout = &self.layer.panels.layout;
        // SAFETY: types as the layout says.
        unsafe {
            match (layout.format, layout.scales) {
                (Format::Nibbles, Some(F32)) => self.sum::<L, Nibbles, f32>(),
                (Format::Nibbles, Some(F16)) => self.sum::<L, Nibbles, f16>(),
                (Format::Nibbles, Some(Bf16)) => self.sum::<L, Nibbles, bf16>(),
                (Format::Bytes, Some(F32)) => self.sum::<L, Bytes, f32>(),
                (Format::Bytes, Some(F16)) => self.sum::<L, Bytes, f16>(),
                (Format::Bytes, Some(Bf16)) => self.sum::<L, Bytes, bf16>(),
                (Format::Floats(F32), _) => self.sum::<L, Floats<f32>, Unscaled>(),
                (Format::Floats(F16), _) => self.sum::<L, Floats<f16>, Unscaled>(),
                (Format::Floats(Bf16), _) => self.sum::<L, Floats<bf16>, Unscaled>(),
                (Format::Nibbles | Format::Bytes, None) => unreachable!("integers have scales"),
            }
        }
    }
}

impl Single<'_> {
    #[inline(always)]
    unsafe fn sum<L: Lanes, C: Codec, S: Scale>(self) {
        let (x, sums) = self.layer.inputs.rows_from(self.row);
        let tile = self.layer.panels.tile(self.tile);
        let layout = &self.layer.panels.layout;
        // SAFETY: the inputs were prepared for this layout, and the tile is one of it.
        unsafe {
            let t = tile_sums::<L, C, S>(layout, tile.as_ptr(), x.as_ptr(), sums.as_ptr());
            L::store(self.out.as_mut_ptr(), t[0]);
            L::store(self.out.as_mut_ptr().add(LANES), t[1]);
        }
    }
}

/// A tile against some rows.
struct Rows<'a> {
    layer: &'a Layer<'a>,
    tile: usize,
    from: usize,
    m: usize,
    out: &'a mut [f32; ROWS_PER_JOB * TILE],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let (x, sums) = self.layer.inputs.rows_from(self.from);
        let rows = TileOfRows {
            layout: &self.layer.panels.layout,
            tile: self.layer.panels.tile(self.tile).as_ptr(),
            x: x.as_ptr(),
            x_stride: self.layer.inputs.stride(),
            sums: sums.as_ptr(),
            m: self.m,
            out: self.out.as_mut_ptr(),
        };
        // SAFETY: the inputs were prepared for this layout, m rows of them; `out` has room for ROWS_PER_JOB.
        unsafe { rows.run::<L>() }
    }
}
