//! The host op: lazy, several outputs, any view as input, in place where possible, failures that stay errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::{bf16, f16};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype, ops};
use sanctum_kernels::host_op::{HostOp, Input, Output, host_op};
use sanctum_kernels::tensor::Element;
use sanctum_kernels::{KernelError, read_f32};

/// A host op that copies its one f32 input and counts its calls.
fn copy_of(input: &Array, calls: &Arc<AtomicUsize>) -> Array {
    let calls = Arc::clone(calls);
    let shape = input.shape();
    let op = HostOp {
        name: c"copy",
        inputs: &[input],
        outputs: &[(shape, Dtype::Float32)],
        in_place: None,
    };
    one(host_op(op, move |inputs, outputs| {
        calls.fetch_add(1, Ordering::SeqCst);
        outputs[0].values::<f32>()?.copy_from_slice(inputs[0].values::<f32>()?);
        Ok(())
    }))
}

/// An op whose closure fails as `fail` does.
fn failing(
    input: &Array,
    fail: impl Fn() -> Result<(), KernelError> + Send + Sync + 'static,
) -> Array {
    let op = HostOp {
        name: c"failing",
        inputs: &[input],
        outputs: &[(&[1], Dtype::Float32)],
        in_place: None,
    };
    one(host_op(op, move |_: &[Input], _: &mut [Output]| fail()))
}

/// Adds 1 in place.
fn increment(input: &Array) -> Array {
    let op = HostOp {
        name: c"increment",
        inputs: &[input],
        outputs: &[(input.shape(), Dtype::Float32)],
        in_place: Some(0),
    };
    one(host_op(op, |_, outputs| {
        outputs[0].values::<f32>()?.iter_mut().for_each(|value| *value += 1.0);
        Ok(())
    }))
}

fn one(outputs: Result<Vec<Array>, KernelError>) -> Array {
    outputs.expect("a host op").remove(0)
}

fn counter() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

fn two_by_three() -> Array {
    Array::from_slice(&[1_f32, 2., 3., 4., 5., 6.], &[2, 3])
}

#[test]
fn runs_when_evaluated_and_only_once() {
    let calls = counter();
    let copy = copy_of(&two_by_three(), &calls);
    let twice = ops::add(&copy, &copy).unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 0, "building must not run the closure");
    assert_eq!(read_f32(&twice).unwrap(), [2., 4., 6., 8., 10., 12.]);
    assert_eq!(read_f32(&copy).unwrap(), [1., 2., 3., 4., 5., 6.]);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn several_outputs_of_different_shapes_and_types_come_from_one_call() {
    let calls = counter();
    let seen = Arc::clone(&calls);
    let input = two_by_three();
    let op = HostOp {
        name: c"split",
        inputs: &[&input],
        outputs: &[(&[2], Dtype::Float32), (&[], Dtype::Int32), (&[3, 1], Dtype::Bfloat16)],
        in_place: None,
    };
    let outputs = host_op(op, move |inputs, outputs| {
        seen.fetch_add(1, Ordering::SeqCst);
        assert_eq!(inputs[0].shape(), [2, 3]);
        assert_eq!((outputs[1].shape().len(), outputs[2].shape()), (0, &[3, 1][..]));
        let x = inputs[0].values::<f32>()?;
        outputs[0].values::<f32>()?.copy_from_slice(&[x[0] + x[1] + x[2], x[3] + x[4] + x[5]]);
        outputs[1].values::<i32>()?[0] = -7;
        for (to, from) in outputs[2].values::<bf16>()?.iter_mut().zip(x) {
            *to = bf16::from_f32(*from);
        }
        Ok(())
    })
    .unwrap();
    // The last first: siblings must have been filled too.
    assert_eq!(read_f32(&outputs[2]).unwrap(), [1., 2., 3.]);
    assert_eq!(read_f32(&outputs[0]).unwrap(), [6., 15.]);
    assert_eq!(outputs[1].item_exact::<i32>(), -7);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[test]
fn views_are_read_as_what_they_show() {
    let a = Array::from_slice(&(0..24).map(|v| v as f32).collect::<Vec<_>>(), &[4, 6]);
    let views = [
        ("transposed", a.transpose().unwrap()),
        ("broadcast row", ops::broadcast_to(a.try_index((1..2, ..)).unwrap(), &[3, 6]).unwrap()),
        ("broadcast column", ops::broadcast_to(a.try_index((.., 2..3)).unwrap(), &[4, 5]).unwrap()),
        ("rows at an offset", a.try_index((2..4, ..)).unwrap()),
        ("columns at an offset", a.try_index((1..3, 2..5)).unwrap()),
        ("three axes, two swapped", a.reshape(&[2, 2, 6]).unwrap().swap_axes(0, 1).unwrap()),
        ("scalar", a.try_index((3, 5)).unwrap()),
        ("empty", a.try_index((2..2, ..)).unwrap()),
    ];
    for (name, view) in views {
        let expected = read_f32(&ops::add(&view, Array::from_f32(0.)).unwrap()).unwrap();
        let found = read_f32(&copy_of(&view, &counter())).unwrap();
        assert_eq!(found, expected, "{name}");
        // The view not yet evaluated, and read in place: a copy of its own, for its buffer is shared.
        let incremented = read_f32(&increment(&view)).unwrap();
        assert_eq!(incremented, expected.iter().map(|v| v + 1.).collect::<Vec<_>>(), "{name}");
    }
    assert_eq!(read_f32(&a).unwrap()[23], 23., "no view may have been written through");
}

#[test]
fn every_element_type_is_what_mlx_says_it_is() {
    fn round_trip<T: Element + Sync>(dtype: Dtype) {
        let input = Array::from_slice(&[0_f32, 1., 2., 200.], &[4]).as_dtype(dtype).unwrap();
        let op =
            HostOp { name: c"typed", inputs: &[&input], outputs: &[(&[4], dtype)], in_place: None };
        let output = one(host_op(op, |inputs, outputs| {
            outputs[0].values::<T>()?.copy_from_slice(inputs[0].values::<T>()?);
            Ok(())
        }));
        assert_eq!(output.dtype(), dtype);
        assert_eq!(read_f32(&output).unwrap(), [0., 1., 2., 200.], "{dtype:?}");
    }
    round_trip::<f32>(Dtype::Float32);
    round_trip::<f16>(Dtype::Float16);
    round_trip::<bf16>(Dtype::Bfloat16);
    round_trip::<u32>(Dtype::Uint32);
    round_trip::<i32>(Dtype::Int32);
    round_trip::<u8>(Dtype::Uint8);
}

#[test]
fn sixteen_bit_views_keep_their_bits() {
    let wide = Array::from_slice(&[1.0_f32, -2.5, 3.25, 1e-20, f32::INFINITY, 6.0], &[2, 3]);
    let narrow = wide.as_dtype(Dtype::Bfloat16).unwrap().try_index((.., 1..3)).unwrap();
    let op = HostOp {
        name: c"bf16",
        inputs: &[&narrow],
        outputs: &[(&[4], Dtype::Float32)],
        in_place: None,
    };
    let widened = one(host_op(op, |inputs, outputs| {
        for (to, from) in outputs[0].values::<f32>()?.iter_mut().zip(inputs[0].values::<bf16>()?) {
            *to = from.to_f32();
        }
        Ok(())
    }));
    assert_eq!(read_f32(&widened).unwrap(), [-2.5, 3.25, f32::INFINITY, 6.0]);
}

#[test]
fn a_buffer_nobody_else_needs_is_written_in_place() {
    let address = |array: &Array| array.as_slice::<f32>().as_ptr() as usize;
    let input = ops::add(two_by_three(), Array::from_f32(0.)).unwrap();
    input.eval().unwrap();
    let before = address(&input);
    let output = increment(&input);
    drop(input);
    output.eval().unwrap();
    assert_eq!(address(&output), before);
    assert_eq!(read_f32(&output).unwrap(), [2., 3., 4., 5., 6., 7.]);

    // Held by someone else: left alone.
    let next = increment(&output);
    next.eval().unwrap();
    assert_ne!(address(&next), before);
    assert_eq!(read_f32(&output).unwrap(), [2., 3., 4., 5., 6., 7.]);
    assert_eq!(read_f32(&next).unwrap(), [3., 4., 5., 6., 7., 8.]);
}

#[test]
fn the_in_place_input_is_readable_through_the_output_only() {
    let input = two_by_three();
    let op = HostOp {
        name: c"nosy",
        inputs: &[&input],
        outputs: &[(&[2, 3], Dtype::Float32)],
        in_place: Some(0),
    };
    let output = one(host_op(op, |inputs, _| inputs[0].values::<f32>().map(|_| ())));
    let message = error_of(&output);
    assert!(message.contains("in-place"), "{message}");
}

fn error_of(array: &Array) -> String {
    let error = read_f32(array).expect_err("the evaluation must fail");
    std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[test]
fn errors_and_panics_become_errors_of_the_evaluation() {
    let input = two_by_three();
    let wrong_type = HostOp {
        name: c"wrong type",
        inputs: &[&input],
        outputs: &[(&[1], Dtype::Float32)],
        in_place: None,
    };
    let wrong_type = one(host_op(wrong_type, |inputs, _| inputs[0].values::<u32>().map(|_| ())));
    let message = error_of(&wrong_type);
    assert!(message.contains("wrong type") && message.contains("Uint32"), "{message}");

    let error = failing(&input, || Err(KernelError::HostOp("the disk is on fire".into())));
    let message = error_of(&error);
    assert!(message.contains("failing") && message.contains("the disk is on fire"), "{message}");

    let panic = failing(&input, || panic!("index {} out of range", 7));
    let message = error_of(&panic);
    assert!(message.contains("panicked: index 7 out of range"), "{message}");

    // Neither thread nor stream nor graph has suffered.
    let calls = counter();
    for _ in 0..30 {
        assert_eq!(read_f32(&copy_of(&input, &calls)).unwrap().len(), 6);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 30);
}

#[test]
fn what_depends_on_a_failed_op_fails_too() {
    let broken = failing(&two_by_three(), || Err(KernelError::HostOp("broken".into())));
    let later = ops::exp(copy_of(&broken, &counter())).unwrap();
    let message = error_of(&later);
    assert!(message.contains("broken"), "{message}");
}

#[test]
fn the_closure_is_dropped_exactly_once() {
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    /// How an op may end.
    #[derive(Debug, Clone, Copy)]
    enum End {
        NeverEvaluated,
        Evaluated,
        Failed,
        Refused,
    }
    for end in [End::NeverEvaluated, End::Evaluated, End::Failed, End::Refused] {
        let drops = counter();
        let guard = Guard(Arc::clone(&drops));
        let input = two_by_three();
        let output_shape: &[i32] = if matches!(end, End::Refused) { &[7] } else { &[2, 3] };
        let op = HostOp {
            name: c"guarded",
            inputs: &[&input],
            outputs: &[(output_shape, Dtype::Float32)],
            in_place: Some(0),
        };
        let built = host_op(op, move |_, _| {
            let _held = &guard;
            match end {
                End::Failed => Err(KernelError::HostOp("as asked".into())),
                _ => Ok(()),
            }
        });
        assert_eq!(built.is_err(), matches!(end, End::Refused), "{end:?}");
        if let Ok(outputs) = built {
            assert_eq!(drops.load(Ordering::SeqCst), 0, "{end:?}: still needed");
            if !matches!(end, End::NeverEvaluated) {
                assert_eq!(read_f32(&outputs[0]).is_err(), matches!(end, End::Failed));
            }
        }
        // The stream's thread may hold the last reference a moment longer: pass it once more.
        read_f32(&copy_of(&two_by_three(), &counter())).unwrap();
        assert_eq!(drops.load(Ordering::SeqCst), 1, "{end:?}");
    }
}

#[test]
fn what_cannot_be_built_is_refused_at_once() {
    let input = two_by_three();
    let refused = |inputs: &[&Array], outputs: &[(&[i32], Dtype)], in_place| {
        host_op(HostOp { name: c"refused", inputs, outputs, in_place }, |_, _| Ok(()))
            .expect_err("must be refused")
            .to_string()
    };
    refused(&[&input], &[], None);
    refused(&[&input], &[(&[2, 3], Dtype::Float32)], Some(1));
    let message = refused(&[&input], &[(&[2, 3], Dtype::Int32)], Some(0));
    assert!(message.contains("in-place"), "{message}");
    let message = refused(&[&input], &[(&[3, 2], Dtype::Float32)], Some(0));
    assert!(message.contains("in-place"), "{message}");
}
