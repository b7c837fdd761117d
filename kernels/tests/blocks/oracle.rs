//! The blocks once more, in f64 and plain loops, sharing no code with the crate: what the reference form is held to.

use sanctum_kernels::matrix::{Linear, Matrix};
use sanctum_kernels::rope::Rope;
use sanctum_kernels::tensor::HostTensor;
use sanctum_kernels::{AttentionShape, AttentionWeights, MlpWeights};

/// Rows of numbers.
pub(crate) type Rows = Vec<Vec<f64>>;

fn floats(tensor: &HostTensor) -> Vec<f64> {
    tensor.to_f32().expect("floats").into_iter().map(f64::from).collect()
}

pub(crate) fn product(matrix: &Matrix, x: &[f64]) -> Vec<f64> {
    (0..matrix.rows())
        .map(|row| {
            let weights = matrix.row(row).expect("a row");
            weights.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()
        })
        .collect()
}

fn linear(linear: &Linear, x: &[f64]) -> Vec<f64> {
    let mut y = product(&linear.matrix, x);
    if let Some(bias) = &linear.bias {
        y.iter_mut().zip(floats(bias)).for_each(|(y, b)| *y += b);
    }
    y
}

pub(crate) fn rms_norm(x: &[f64], weight: &HostTensor, eps: f32) -> Vec<f64> {
    let mean_square = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean_square + f64::from(eps)).sqrt();
    x.iter().zip(floats(weight)).map(|(v, w)| v * scale * w).collect()
}

fn rotate(head: &mut [f64], rope: &Rope, position: usize) {
    for (pair, &period) in rope.periods.iter().enumerate() {
        let (i, j) =
            if rope.traditional { (2 * pair, 2 * pair + 1) } else { (pair, pair + rope.dims / 2) };
        let (sin, cos) = (position as f64 / f64::from(period)).sin_cos();
        let mscale = f64::from(rope.mscale);
        let (a, b) = (head[i] * mscale, head[j] * mscale);
        (head[i], head[j]) = (a * cos - b * sin, a * sin + b * cos);
    }
}

/// The attention block over one sequence from position 0.
pub(crate) fn attention(shape: &AttentionShape, weights: &AttentionWeights, x: &Rows) -> Rows {
    let dim = shape.head_dim;
    let (mut keys, mut values): (Rows, Rows) = (vec![], vec![]);
    let mut out = vec![];
    for (position, row) in x.iter().enumerate() {
        let n = rms_norm(row, &weights.norm, shape.norm_eps);
        let mut q = linear(&weights.q, &n);
        let mut k = linear(&weights.k, &n);
        q.chunks_mut(dim).chain(k.chunks_mut(dim)).for_each(|h| rotate(h, &shape.rope, position));
        keys.push(k);
        values.push(linear(&weights.v, &n));
        let mut mixed = vec![0.0; shape.heads * dim];
        for head in 0..shape.heads {
            let kv = head / (shape.heads / shape.kv_heads);
            let part = |row: &Vec<f64>| row[kv * dim..(kv + 1) * dim].to_vec();
            let q = &q[head * dim..(head + 1) * dim];
            let scores: Vec<f64> = keys
                .iter()
                .map(|k| {
                    part(k).iter().zip(q).map(|(k, q)| k * q).sum::<f64>() / (dim as f64).sqrt()
                })
                .collect();
            let highest = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - highest).exp()).collect();
            let total: f64 = weights.iter().sum();
            for (weight, value) in weights.iter().zip(&values) {
                let to = &mut mixed[head * dim..(head + 1) * dim];
                to.iter_mut().zip(part(value)).for_each(|(m, v)| *m += weight / total * v);
            }
        }
        let y = linear(&weights.o, &mixed);
        out.push(row.iter().zip(y).map(|(x, y)| x + y).collect());
    }
    out
}

/// The MLP block.
pub(crate) fn mlp(eps: f32, weights: &MlpWeights, x: &Rows) -> Rows {
    x.iter()
        .map(|row| {
            let n = rms_norm(row, &weights.norm, eps);
            let (gate, up) = (linear(&weights.gate, &n), linear(&weights.up, &n));
            let inner: Vec<f64> =
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            row.iter().zip(linear(&weights.down, &inner)).map(|(x, y)| x + y).collect()
        })
        .collect()
}
