//! Sampling against the textbook: slow, sorted, in f64.

use proptest::prelude::*;

use super::*;

fn params(change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
    let mut params = SamplingParams::default();
    change(&mut params);
    params
}

fn pick(logits: &[f32], params: &SamplingParams, history: &History, seed: u64) -> u32 {
    sample(&mut logits.to_vec(), params, history, seed, None).expect("finite").id
}

/// The tokens that may be chosen and their probabilities, by definition.
fn textbook(logits: &[f32], params: &SamplingParams) -> Vec<(u32, f64)> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let mut all: Vec<(u32, f64)> = logits
        .iter()
        .zip(0..)
        .map(|(&x, id)| (id, (f64::from(x - max) / f64::from(params.temperature)).exp()))
        .collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("numbers").then(a.0.cmp(&b.0)));
    if params.top_k > 0 {
        all.truncate(params.top_k);
    }
    let total: f64 = all.iter().map(|c| c.1).sum();
    let mut before = 0.0;
    all.retain(|c| {
        let keep = before < f64::from(params.top_p) * total || before == 0.0;
        before += c.1;
        keep
    });
    all.retain(|c| c.1 >= f64::from(params.min_p));
    let total: f64 = all.iter().map(|c| c.1).sum();
    all.iter().map(|&(id, p)| (id, p / total)).collect()
}

fn rows() -> impl Strategy<Value = Vec<f32>> {
    proptest::collection::vec(-6.0f32..6.0, 1..80)
}

fn cuts() -> impl Strategy<Value = SamplingParams> {
    (0.3f32..2.0, 0usize..12, 0.05f32..=1.0, 0.0f32..0.6, 0u8..8).prop_map(|(t, k, p, m, on)| {
        params(|s| {
            s.temperature = t;
            s.top_k = if on & 1 == 0 { 0 } else { k };
            s.top_p = if on & 2 == 0 { 1.0 } else { p };
            s.min_p = if on & 4 == 0 { 0.0 } else { m };
        })
    })
}

/// Whether a cut falls so close to a token's mass that rounding may decide it.
fn on_the_edge(logits: &[f32], params: &SamplingParams) -> bool {
    let nearby = |factor: f32| {
        let moved = SamplingParams {
            top_p: (params.top_p * factor).min(1.0),
            min_p: params.min_p * factor,
            ..params.clone()
        };
        textbook(logits, &moved).len()
    };
    nearby(1.0 - 1e-5) != nearby(1.0 + 1e-5)
}

proptest! {
    #[test]
    fn greedy_takes_the_lowest_id_among_equals(row in proptest::collection::vec(-3i8..3, 1..300)) {
        let row: Vec<f32> = row.into_iter().map(f32::from).collect();
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        let first = row.iter().position(|&x| x == max).expect("a maximum") as u32;
        prop_assert_eq!(pick(&row, &SamplingParams::greedy(), &History::default(), 1), first);
    }

    #[test]
    fn only_what_the_cuts_leave_is_chosen(row in rows(), params in cuts(), seed: u64) {
        prop_assume!(!on_the_edge(&row, &params));
        let allowed: Vec<u32> = textbook(&row, &params).into_iter().map(|c| c.0).collect();
        for i in 0..4 {
            let id = pick(&row, &params, &History::default(), seed.wrapping_add(i));
            prop_assert!(allowed.contains(&id), "{} is not among {:?}", id, allowed);
        }
    }

    #[test]
    fn token_i_depends_on_its_index_alone(row in rows(), seed: u64, index in 0u64..50) {
        let params = SamplingParams::default();
        let mut history = History::new(&[], &params);
        for _ in 0..index {
            history.push(0);
        }
        let alone = pick(&row, &params, &history, seed);
        // Drawing others in between changes nothing.
        pick(&row, &params, &History::default(), seed);
        prop_assert_eq!(pick(&row, &params, &history, seed), alone);
    }

    #[test]
    fn cold_sampling_is_greedy(row in rows(), seed: u64) {
        let cold = params(|p| p.temperature = 1e-9);
        let max = row.iter().copied().fold(f32::MIN, f32::max);
        prop_assert_eq!(row[pick(&row, &cold, &History::default(), seed) as usize], max);
    }
}

/// Pearson's χ² of 20,000 draws against the textbook; five sigma of its distribution.
#[test]
fn frequencies_follow_the_probabilities() {
    const DRAWS: u64 = 20_000;
    let row: Vec<f32> = (0..40).map(|i| ((i * 13) % 17) as f32 * 0.3).collect();
    let variants = [
        params(|_| {}),
        params(|p| p.temperature = 0.7),
        params(|p| p.top_k = 9),
        params(|p| p.top_p = 0.8),
        params(|p| p.min_p = 0.2),
        params(|p| (p.top_k, p.top_p, p.min_p, p.temperature) = (20, 0.9, 0.05, 1.3)),
    ];
    for params in variants {
        let expected = textbook(&row, &params);
        let mut counts = vec![0u64; row.len()];
        for seed in 0..DRAWS {
            counts[pick(&row, &params, &History::default(), seed) as usize] += 1;
        }
        let chi2: f64 = expected
            .iter()
            .map(|&(id, p)| {
                let mean = p * DRAWS as f64;
                (counts[id as usize] as f64 - mean).powi(2) / mean
            })
            .sum();
        let freedom = (expected.len() - 1) as f64;
        assert!(chi2 < freedom + 5.0 * (2.0 * freedom).sqrt(), "χ² {chi2} for {params:?}");
        assert_eq!(expected.iter().map(|c| counts[c.0 as usize]).sum::<u64>(), DRAWS);
    }
}

#[test]
fn consecutive_tokens_of_a_seed_are_independent() {
    let mean = (0..10_000).map(|i| uniform(7, i) * uniform(7, i + 1)).sum::<f64>() / 10_000.0;
    // 1/4 for independent numbers; 0.002 is the standard error.
    assert!((mean - 0.25).abs() < 0.01, "mean product {mean}");
    assert_ne!(uniform(1, 0), uniform(2, 0));
    assert!((0..1000).all(|i| (0.0..1.0).contains(&uniform(3, i))));
}

#[test]
fn penalties_are_those_of_the_papers() {
    let params = params(|p| {
        p.repetition_penalty = 2.0;
        p.frequency_penalty = 0.5;
        p.presence_penalty = 0.25;
        p.logit_bias = vec![(3, 1.5), (99, 1.0)];
    });
    let mut history = History::new(&[0, 1, 1], &params);
    history.push(1);
    history.push(2);
    history.push(2);
    let mut row = [4.0, -4.0, 4.0, 4.0, 4.0];
    assert!(history.apply(&params, &mut row));
    // 0 and 1 are in the prompt, 1 once and 2 twice in the output, 3 is biased, 4 untouched.
    assert_eq!(row, [2.0, -8.0 - 0.75, 2.0 - 1.25, 5.5, 4.0]);
}

#[test]
fn a_bias_can_forbid_and_force() {
    let greedy = |bias| SamplingParams { logit_bias: bias, ..SamplingParams::greedy() };
    let row = [1.0, 5.0, 2.0];
    assert_eq!(pick(&row, &greedy(vec![(1, -100.0)]), &History::default(), 0), 2);
    assert_eq!(pick(&row, &greedy(vec![(0, 100.0)]), &History::default(), 0), 0);
}

#[test]
fn log_probabilities_are_those_of_the_raw_logits() {
    let params = SamplingParams { logit_bias: vec![(0, 50.0)], ..SamplingParams::greedy() };
    let mut row = [1.0f32, 3.0, 3.0, -2.0];
    let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
    let exact = |x: f64| (x - total.ln()) as f32;
    let sampled = sample(&mut row, &params, &History::default(), 0, Some(2)).expect("finite");
    let logprob = sampled.logprob.expect("asked for");
    assert_eq!(sampled.id, 0);
    assert!((logprob.logprob - exact(1.0)).abs() < 1e-5);
    let ids: Vec<u32> = logprob.top.iter().map(|t| t.0).collect();
    assert_eq!(ids, [1, 2]);
    assert!((logprob.top[0].1 - exact(3.0)).abs() < 1e-5);
}

#[test]
fn anything_but_numbers_is_refused() {
    let refused = |x: f32| {
        let mut row = vec![0.5f32; 1000];
        row[777] = x;
        sample(&mut row, &SamplingParams::greedy(), &History::default(), 0, None)
    };
    assert_eq!(refused(f32::NAN), Err(NotFinite("NaN")));
    assert_eq!(refused(f32::INFINITY), Err(NotFinite("infinity")));
    assert_eq!(refused(f32::NEG_INFINITY), Err(NotFinite("infinity")));
    assert!(sample(&mut [], &SamplingParams::greedy(), &History::default(), 0, None).is_err());
}
