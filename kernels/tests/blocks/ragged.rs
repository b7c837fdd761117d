//! Several slots in one call, prompts in chunks: each row is what it would be alone.
//!
//! In the host form to the bit, whatever the row's neighbours. The other forms use MLX's kernels, which choose their order
//! of addition by the number of rows, so there it holds within the tolerance only.

use super::*;

/// Two layers between a tied table, with one cache per layer and slot.
struct Model {
    embed: Embed,
    layers: Vec<(Attention, Mlp)>,
    head: Head,
}

type Slot = Vec<KvCache>;

const VOCAB: u32 = 151;

impl Model {
    fn new(form: Form, kind: Kind) -> Self {
        let backend = backend(form);
        let mut random = Random::new(77);
        let table = backend.prepare(random.matrix(kind, VOCAB as usize, HIDDEN)).expect("a table");
        let layers = (0..2)
            .map(|_| {
                let shape = attention_shape(4, 2, 64, ropes(64).remove(3));
                let weights = attention_weights(&mut random, &shape, kind);
                let attention = Attention::new(&backend, shape, weights).expect("a block");
                let shape = MlpShape { hidden: HIDDEN, intermediate: 256, norm_eps: NORM_EPS };
                let weights = mlp_weights(&mut random, 256, kind, false);
                (attention, Mlp::new(&backend, shape, weights).expect("a block"))
            })
            .collect();
        let embed = Embed::new(&backend, table.clone()).expect("a block");
        let shape = HeadShape { hidden: HIDDEN, norm_eps: NORM_EPS };
        let head = Head::new(&backend, shape, ones(&[HIDDEN]), table).expect("a block");
        Self { embed, layers, head }
    }

    fn slot(&self) -> Slot {
        self.layers.iter().map(|(attention, _)| attention.new_cache()).collect()
    }

    /// The logits, not yet computed, of all tokens of some slots' next positions.
    fn step(&self, parts: &mut [(&mut Slot, &[u32])]) -> Array {
        let ids: Vec<u32> = parts.iter().flat_map(|(_, ids)| ids.iter().copied()).collect();
        let mut x = self.embed.forward(&ids).expect("embed");
        for (layer, (attention, mlp)) in self.layers.iter().enumerate() {
            let mut start = 0;
            let mut segments: Vec<Segment<'_>> = parts
                .iter_mut()
                .map(|(slot, ids)| {
                    let rows = start..start + ids.len();
                    start = rows.end;
                    Segment { rows, cache: &mut slot[layer] }
                })
                .collect();
            x = attention.forward(&x, &mut segments).expect("attention");
            x = mlp.forward(&x).expect("mlp");
        }
        let rows: Vec<u32> = (0..ids.len() as u32).collect();
        self.head.forward(&x, &rows).expect("head")
    }

    /// The logits of one sequence alone, in chunks of the given lengths (the last one repeating).
    fn alone(&self, ids: &[u32], chunk: usize) -> Rows {
        let mut slot = self.slot();
        ids.chunks(chunk).flat_map(|ids| rows_of(&self.step(&mut [(&mut slot, ids)]))).collect()
    }
}

fn tokens(seed: u64, count: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.below(VOCAB)).collect()
}

/// To the bit for the host form, else within the tolerance.
#[track_caller]
fn assert_same(form: Form, found: &Rows, expected: &Rows, what: &str) {
    if form == Form::Host {
        assert!(found == expected, "{what}: bits differ");
    }
    assert_close(found, expected, what);
}

fn for_all(test: impl Fn(Form, &Model, &str)) {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        for kind in [KINDS[0], KINDS[2], KINDS[4], KINDS[6]] {
            test(form, &Model::new(form, kind), &format!("{form:?} {kind:?}"));
        }
    }
}

#[test]
fn chunks_do_not_matter() {
    for_all(|form, model, what| {
        let ids = tokens(1, 37);
        let whole = model.alone(&ids, 37);
        for chunk in [1, 2, 3, 8, 36] {
            let found = model.alone(&ids, chunk);
            assert_same(form, &found, &whole, &format!("{what}, chunks of {chunk}"));
        }
    });
}

#[test]
fn neighbours_do_not_matter() {
    for_all(|form, model, what| {
        let sequences: Vec<Vec<u32>> = [41, 23, 9].iter().map(|&n| tokens(n as u64, n)).collect();
        let expected: Vec<Rows> = sequences.iter().map(|ids| model.alone(ids, 64)).collect();

        // Prefill, decode and a check of several tokens, mixed and in changing order, as (sequence, tokens).
        let steps: [&[(usize, usize)]; 6] = [
            &[(0, 30)],
            &[(1, 20), (0, 1)],
            &[(0, 1), (2, 5), (1, 1)],
            &[(2, 1), (1, 1), (0, 4)],
            &[(0, 5), (1, 1), (2, 2)],
            &[(2, 1)],
        ];
        let mut slots: Vec<Slot> = sequences.iter().map(|_| model.slot()).collect();
        let mut found: Vec<Rows> = vec![vec![]; 3];
        for step in steps {
            let mut by_sequence: Vec<Option<&mut Slot>> = slots.iter_mut().map(Some).collect();
            let mut parts: Vec<(&mut Slot, &[u32])> = step
                .iter()
                .map(|&(sequence, count)| {
                    let at = found[sequence].len();
                    let slot = by_sequence[sequence].take().expect("once per step");
                    (slot, &sequences[sequence][at..at + count])
                })
                .collect();
            let mut logits = rows_of(&model.step(&mut parts)).into_iter();
            for &(sequence, count) in step {
                found[sequence].extend(logits.by_ref().take(count));
            }
        }
        for (sequence, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_same(form, found, expected, &format!("{what}, sequence {sequence}"));
        }
    });
}

#[test]
fn steps_need_not_be_evaluated_one_by_one() {
    for_all(|form, model, what| {
        let ids = tokens(3, 24);
        let expected = model.alone(&ids, 24);
        // The first chunks' results are thrown away unevaluated; their cache rows must still be written, in order.
        let mut slot = model.slot();
        drop(model.step(&mut [(&mut slot, &ids[..10])]));
        drop(model.step(&mut [(&mut slot, &ids[10..17])]));
        // Forgotten before they were ever computed.
        slot.iter_mut().for_each(|cache| cache.truncate(12));
        let found = rows_of(&model.step(&mut [(&mut slot, &ids[12..])]));
        assert_same(form, &found, &expected[12..].to_vec(), what);
    });
}
