//! How fast the linear kernels are, next to what this machine can do at all.
//!
//! `cargo run --release -p sanctum-kernels --example kernel_bench -- [threads]`. Prints for one row of inputs the weights
//! read per second, and for 64 rows the arithmetic, each from the fastest of many calls and as a share of a plain read of
//! memory and of a loop of nothing but fused multiply-adds. The weights of a shape are many matrices in turn, more than
//! the last cache holds, as in a model.
//! Then the time of one decoded token of SmolLM2-135M, kernel by kernel.
#![expect(clippy::print_stdout, reason = "a report is what it is for")]

mod decode;

use std::hint::black_box;
use std::time::Instant;

use half::f16;
use sanctum_kernels::host::isa::Isa;
use sanctum_kernels::host::linear::{Panels, Product, multiply};
use sanctum_kernels::host::pool::Pool;
use sanctum_kernels::matrix::{AffineMatrix, Matrix};
use sanctum_kernels::tensor::HostTensor;

/// Weights read by one measurement, in bytes: several times the last cache.
const WORKING_SET: usize = 192 << 20;
const RUNS: usize = 12;
/// Bytes of one measurement of the plain read: short, so that some are not disturbed.
const READ_AT_ONCE: usize = 4 << 20;

fn main() {
    let threads = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(2);
    let pool = Pool::new(threads);
    let isa = Isa::detect();
    let read = memory_read(&pool);
    let peak = fma_peak(&pool, isa);
    println!(
        "{threads} threads, {}: memory read {read:.1} GB/s, fma {peak:.0} GFLOP/s",
        isa.name()
    );
    let shapes = [
        (576, 576, 4, 32),
        (960, 576, 4, 32),
        (1536, 576, 4, 32),
        (3072, 576, 4, 32),
        (576, 1536, 4, 32),
        (49152, 576, 8, 32),
        (512, 4096, 4, 64),
    ];
    for (n, k, bits, group) in shapes {
        let one = quantised(n, k, bits, group, isa);
        let copies = (WORKING_SET / one.nbytes()).max(1);
        let matrices: Vec<Panels> =
            (1..copies).map(|_| quantised(n, k, bits, group, isa)).chain([one]).collect();
        let single = seconds(&pool, &matrices, 1);
        let many = seconds(&pool, &matrices[..copies.min(8)], 64);
        let gigabytes = matrices[0].nbytes() as f64 / single / 1e9;
        let gigaflops = 2.0 * 64.0 * (n * k) as f64 / many / 1e9;
        println!(
            "{n:>6} x {k:<5} {bits} bits, groups of {group}: M=1 {:8.1} us {gigabytes:5.1} GB/s ({:3.0} %)   M=64 {:9.1} us {gigaflops:6.1} GFLOP/s ({:3.0} %)",
            single * 1e6,
            gigabytes / read * 100.0,
            many * 1e6,
            gigaflops / peak * 100.0,
        );
    }
    let (parts, head) = decode::token_times(&pool, isa).of_token();
    let total = head + parts.iter().sum::<f64>();
    print!("a token of SmolLM2-135M: {:.2} ms = head {:.2}", total * 1e3, head * 1e3);
    for (part, seconds) in decode::PARTS.iter().zip(parts) {
        print!(" + {part} {:.2}", seconds * 1e3);
    }
    println!();
}

/// The time of one product, the mean of the fastest tenth of all: what a call takes when nothing else runs.
fn seconds(pool: &Pool, matrices: &[Panels], m: usize) -> f64 {
    let x: Vec<f32> = (0..m * matrices[0].cols()).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect();
    let mut out = vec![0.0; m * matrices[0].rows()];
    let mut times = Vec::new();
    for _ in 0..RUNS {
        for panels in matrices {
            let started = Instant::now();
            multiply(pool, &mut [Product { panels, bias: None, out: &mut out }], &x, m);
            times.push(started.elapsed().as_secs_f64());
            black_box(&mut out);
        }
    }
    fastest_tenth(times)
}

/// The mean of the fastest tenth.
fn fastest_tenth(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let fastest = &times[..times.len().div_ceil(10)];
    fastest.iter().sum::<f64>() / fastest.len() as f64
}

fn quantised(n: usize, k: usize, bits: usize, group: usize, isa: Isa) -> Panels {
    let words =
        |count: usize| (0..count).map(|i| (i as u32).wrapping_mul(0x9e37_79b9)).collect::<Vec<_>>();
    let packed = HostTensor::from_values(vec![n, k * bits / 32], &words(n * k * bits / 32));
    let scales =
        HostTensor::from_values(vec![n, k / group], &vec![f16::from_f32(0.01); n * k / group]);
    let biases =
        HostTensor::from_values(vec![n, k / group], &vec![f16::from_f32(-0.08); n * k / group]);
    let (packed, scales, biases) =
        (packed.expect("fills"), scales.expect("fills"), biases.expect("fills"));
    let matrix = AffineMatrix::new(bits as u32, group, packed, scales, biases).expect("valid");
    Panels::pack(&Matrix::Affine(matrix), isa)
}

/// Bytes per second of summing a large array, in 10^9.
fn memory_read(pool: &Pool) -> f64 {
    let words = vec![1u64; WORKING_SET / 8];
    let part = 1 << 14;
    let pass = |from: usize| {
        let started = Instant::now();
        let words = &words[from..][..READ_AT_ONCE / 8];
        pool.run(words.len() / part, &|job| {
            let mut sums = [0u64; 16];
            for line in words[job * part..][..part].chunks_exact(16) {
                for (sum, word) in sums.iter_mut().zip(line) {
                    *sum = sum.wrapping_add(*word);
                }
            }
            black_box(sums);
        });
        READ_AT_ONCE as f64 / started.elapsed().as_secs_f64() / 1e9
    };
    let passes = (0..words.len()).step_by(READ_AT_ONCE / 8).cycle().take(400);
    passes.map(pass).fold(0.0, f64::max)
}

/// Operations per second of independent fused multiply-adds in registers, in 10^9.
fn fma_peak(pool: &Pool, isa: Isa) -> f64 {
    const STEPS: usize = 1 << 16;
    let pass = || {
        let started = Instant::now();
        pool.run(pool.threads(), &|_| sanctum_kernels::host::fma_loop(isa, STEPS));
        let flops = sanctum_kernels::host::FMA_LOOP_FLOPS * STEPS * pool.threads();
        flops as f64 / started.elapsed().as_secs_f64() / 1e9
    };
    (0..200).map(|_| pass()).fold(0.0, f64::max)
}
