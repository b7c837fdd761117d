//! Rows of inputs as the kernels want them.
//!
//! Owns [`Inputs`]: the rows filled up to whole units, scaled to match the weights' bit positions, and, for affine
//! weights, the sum of each group. Matrices that share inputs and a format share one.

use super::codec::{Format, input_scale};
use super::panels::Layout;
use crate::host::isa::{Isa, Kernel};
use crate::host::lanes::{LANES, Lanes, sum};
use crate::host::pool::Pool;
use crate::host::shared_mut::SharedMut;

/// Rows that one job prepares.
const ROWS_PER_JOB: usize = 8;

/// What prepared inputs depend on besides the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InputForm {
    format: Format,
    cols: usize,
    width: usize,
    /// Inputs of a block whose sums are wanted.
    group: Option<usize>,
}

/// Prepared rows. Its memory is used again by the next call.
#[derive(Debug, Default)]
pub(super) struct Inputs {
    form: Option<InputForm>,
    rows: Vec<f32>,
    sums: Vec<f32>,
}

impl InputForm {
    pub(super) fn of(layout: &Layout) -> Self {
        // All float formats take the inputs alike.
        let format = match layout.format {
            Format::Floats(_) => Format::Floats(super::codec::FloatType::F32),
            integers => integers,
        };
        let group = layout.scales.map(|_| layout.block());
        Self { format, cols: layout.cols, width: layout.width(), group }
    }

    /// Blocks with a sum; one unused if there are none.
    fn sums(&self) -> usize {
        self.group.map_or(0, |group| self.width / group)
    }

    /// Floats between rows: a line more than they fill, so that long rows do not meet in the same cache sets.
    fn stride(&self) -> usize {
        self.width.next_multiple_of(LANES) + LANES
    }

    /// Factors for sixteen inputs that start with a unit.
    fn scales(&self) -> [f32; LANES] {
        std::array::from_fn(|i| input_scale(self.format, i % self.format.unit()))
    }
}

impl Inputs {
    /// Prepares `m` rows of `x`.
    pub(super) fn prepare(&mut self, pool: &Pool, isa: Isa, form: InputForm, x: &[f32], m: usize) {
        self.form = Some(form);
        // No memory is given back: a step's calls alternate between a few sizes.
        self.rows.resize(self.rows.len().max(m * form.stride()), 0.0);
        self.sums.resize(self.sums.len().max(m * form.sums()), 0.0);
        let rows = SharedMut::new(&mut self.rows);
        let sums = SharedMut::new(&mut self.sums);
        pool.run(m.div_ceil(ROWS_PER_JOB), &|job| {
            for row in job * ROWS_PER_JOB..m.min((job + 1) * ROWS_PER_JOB) {
                // SAFETY: each row is prepared by one job.
                let (out, sums) = unsafe {
                    (
                        rows.part(row * form.stride(), form.width),
                        sums.part(row * form.sums(), form.sums()),
                    )
                };
                isa.run(Prepare { form, x: &x[row * form.cols..][..form.cols], out, sums });
            }
        });
    }

    /// Floats between prepared rows.
    pub(super) fn stride(&self) -> usize {
        self.form.map_or(0, |form| form.stride())
    }

    /// Prepared row `row` and those after it.
    pub(super) fn rows_from(&self, row: usize) -> (&[f32], &[f32]) {
        let (stride, sums) = self.form.map_or((0, 0), |form| (form.stride(), form.sums()));
        (&self.rows[row * stride..], &self.sums[row * sums..])
    }
}

struct Prepare<'a> {
    form: InputForm,
    x: &'a [f32],
    out: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Kernel for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let Self { form, x, out, sums } = self;
        let scales = form.scales();
        let whole = x.len() / LANES * LANES;
        // SAFETY: `whole <= x.len() <= out.len()`; groups end within the row, as `sums` counts whole ones.
        unsafe {
            let factors = L::load(scales.as_ptr());
            let mut k = 0;
            while k < whole {
                L::store(out.as_mut_ptr().add(k), L::mul(L::load(x.as_ptr().add(k)), factors));
                k += LANES;
            }
            if let Some(group) = form.group {
                for (block, to) in sums.iter_mut().enumerate() {
                    *to = sum::<L>(x.as_ptr().add(block * group), group);
                }
            }
        }
        // Only dense rows can have a rest, and their factors are 1. What lies beyond is a filler of zeros.
        out[whole..x.len()].copy_from_slice(&x[whole..]);
        out[x.len()..].fill(0.0);
    }
}
