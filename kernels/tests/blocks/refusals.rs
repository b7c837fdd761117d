//! Wrong sizes are errors that name what was expected, in every form, and change nothing.

use sanctum_kernels::KernelError;
use sanctum_kernels::matrix::{Linear, Matrix};

use super::*;

fn linear(rows: usize, cols: usize, bias: Option<usize>) -> Linear {
    let matrix = Matrix::dense(ones(&[rows, cols])).expect("a matrix");
    Linear { matrix, bias: bias.map(|len| ones(&[len])) }
}

fn shape() -> AttentionShape {
    AttentionShape { max_positions: 6, ..attention_shape(4, 2, 64, ropes(64).remove(0)) }
}

fn weights() -> AttentionWeights {
    AttentionWeights {
        norm: ones(&[HIDDEN]),
        q: linear(256, HIDDEN, None),
        k: linear(128, HIDDEN, None),
        v: linear(128, HIDDEN, None),
        o: linear(HIDDEN, 256, None),
    }
}

#[test]
fn weights_of_another_shape() {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        let backend = backend(form);
        let refused = |shape, weights| {
            Attention::new(&backend, shape, weights).expect_err("must be refused").to_string()
        };
        assert_eq!(
            refused(shape(), AttentionWeights { k: linear(256, HIDDEN, None), ..weights() }),
            "attention k: expected [128, 128], found [256, 128]"
        );
        assert_eq!(
            refused(shape(), AttentionWeights { o: linear(HIDDEN, 256, Some(3)), ..weights() }),
            "attention o: expected a bias [128], found [3]"
        );
        assert_eq!(
            refused(shape(), AttentionWeights { norm: ones(&[1, HIDDEN]), ..weights() }),
            "attention norm: expected [128], found [1, 128]"
        );
        assert_eq!(
            refused(AttentionShape { kv_heads: 3, ..shape() }, weights()),
            "attention heads: expected a positive multiple of kv_heads, found 4 and 3"
        );
        let rope = Rope { dims: 66, ..shape().rope };
        assert_eq!(
            refused(AttentionShape { rope, ..shape() }, weights()),
            "attention rope: expected 2 x periods, at most head_dim 64, found 66 dims and 32 periods"
        );
        let mlp = MlpWeights {
            norm: ones(&[HIDDEN]),
            gate: linear(256, HIDDEN, None),
            up: linear(256, HIDDEN, None),
            down: linear(256, HIDDEN, None),
        };
        let shape = MlpShape { hidden: HIDDEN, intermediate: 256, norm_eps: NORM_EPS };
        assert_eq!(
            Mlp::new(&backend, shape, mlp).unwrap_err().to_string(),
            "mlp down: expected [128, 256], found [256, 128]"
        );
    }
}

#[test]
fn inputs_of_another_shape() {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        let backend = backend(form);
        let table = backend.prepare(Matrix::dense(ones(&[10, HIDDEN])).unwrap()).unwrap();
        let embed = Embed::new(&backend, table.clone()).unwrap();
        assert_eq!(
            embed.forward(&[3, 10]).unwrap_err().to_string(),
            "token ids: expected indices below 10, found 10"
        );
        let head_shape = HeadShape { hidden: HIDDEN, norm_eps: NORM_EPS };
        let head = Head::new(&backend, head_shape, ones(&[HIDDEN]), table).unwrap();
        let x = embed.forward(&[1, 2, 3]).unwrap();
        assert_eq!(
            head.forward(&x, &[0, 3]).unwrap_err().to_string(),
            "head rows: expected indices below 3, found 3"
        );
        let narrow = Array::from_slice(&[1f32; 6], &[2, 3]);
        let flat = Array::from_slice(&[1f32; HIDDEN], &[HIDDEN as i32]);
        let whole = Array::from_slice(&[1i32; HIDDEN], &[1, HIDDEN as i32]);
        let attention = Attention::new(&backend, shape(), weights()).unwrap();
        for wrong in [&narrow, &flat, &whole] {
            let message = head.forward(wrong, &[0]).unwrap_err().to_string();
            assert!(message.starts_with("hidden states: expected floats [N, 128]"), "{message}");
            assert!(attention.forward(wrong, &mut []).is_err());
        }
        assert_eq!(read_f32(&head.forward(&x, &[]).unwrap()).unwrap(), []);
        assert_eq!(read_f32(&embed.forward(&[]).unwrap()).unwrap(), []);
    }
}

#[test]
fn segments_that_do_not_tile_or_fit() {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        let backend = backend(form);
        let block = Attention::new(&backend, shape(), weights()).unwrap();
        let x = hidden_states(&mut Random::new(1), 5);
        let (mut a, mut b) = (block.new_cache(), block.new_cache());
        for (first, second) in
            [(0..2, 3..5), (0..2, 2..4), (0..3, 2..5), (0..5, 5..5), (2..5, 0..2), (0..2, 2..6)]
        {
            let mut segments =
                [Segment { rows: first, cache: &mut a }, Segment { rows: second, cache: &mut b }];
            let message = block.forward(&x, &mut segments).unwrap_err().to_string();
            assert!(
                message.starts_with("attention segments: expected segments that tile 0..5"),
                "{message}"
            );
        }
        assert_eq!((a.len(), b.len()), (0, 0));
        block.forward(&x, &mut [Segment { rows: 0..5, cache: &mut a }]).unwrap();
        let error = block.forward(&x, &mut [Segment { rows: 0..5, cache: &mut a }]).unwrap_err();
        assert!(matches!(error, KernelError::CacheFull { held: 5, adding: 5, max: 6 }), "{error}");
        assert_eq!(a.len(), 5);
    }
}

#[test]
fn what_another_form_or_block_made() {
    let (reference, graph) = (backend(Form::Reference), backend(Form::Graph));
    let table = reference.prepare(Matrix::dense(ones(&[10, HIDDEN])).unwrap()).unwrap();
    assert!(matches!(Embed::new(&graph, table), Err(KernelError::Foreign { .. })));
    let mut cache = Attention::new(&reference, shape(), weights()).unwrap().new_cache();
    let block = Attention::new(&graph, shape(), weights()).unwrap();
    let x = hidden_states(&mut Random::new(1), 1);
    let error = block.forward(&x, &mut [Segment { rows: 0..1, cache: &mut cache }]).unwrap_err();
    assert!(matches!(error, KernelError::Foreign { .. }), "{error}");
    assert_eq!(cache.len(), 0);
    let no_threads = BackendOptions { form: Form::Host, threads: 0 };
    assert!(matches!(Backend::new(no_threads), Err(KernelError::Options(_))));
}
