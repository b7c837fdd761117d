//! Properties of every plan, and whole lives of random loads.

use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;

use super::*;

fn decoding(slot: usize) -> Slot {
    Slot { slot, prompt_left: 0, arrival: slot as u64, kv_bytes: 1 }
}

fn prompt(slot: usize, left: usize) -> Slot {
    Slot { prompt_left: left, ..decoding(slot) }
}

fn rows_of(plan: &StepPlan) -> Vec<(usize, usize, bool)> {
    plan.segments.iter().map(|s| (s.slot, s.rows, s.wants_logits)).collect()
}

#[test]
fn decoding_goes_first_and_prompts_share_the_rest() {
    let limits = Limits::new(4, 100, 22, 1000);
    let slots = [decoding(0), prompt(1, 1000), decoding(2), prompt(3, 6)];
    let plan = plan(&[], &slots, &limits);
    assert_eq!(rows_of(&plan), [(0, 1, true), (1, 14, false), (2, 1, true), (3, 6, true)]);
}

#[test]
fn a_step_without_decoding_takes_larger_chunks() {
    let limits = Limits::new(2, 100, 22, 1000);
    assert_eq!(rows_of(&plan(&[], &[prompt(0, 250)], &limits)), [(0, 100, false)]);
    assert_eq!(rows_of(&plan(&[], &[prompt(0, 50)], &limits)), [(0, 50, true)]);
}

#[test]
fn a_large_request_is_not_passed_by_small_ones() {
    let limits = Limits::new(4, 64, 64, 10);
    let running = [Slot { kv_bytes: 6, ..decoding(1) }];
    let waiting = |arrival, kv_bytes| Waiting { prompt: 3, arrival, kv_bytes };
    let blocked = plan(&[waiting(5, 7), waiting(6, 1)], &running, &limits);
    assert!(blocked.admit.is_empty());
    let fitting = plan(&[waiting(5, 3), waiting(6, 1), waiting(7, 1)], &running, &limits);
    assert_eq!(fitting.admit, [0, 2]);
}

#[test]
fn shares_are_equal_up_to_what_each_wants() {
    assert_eq!(share(10, &[100, 100, 100]), [4, 3, 3]);
    assert_eq!(share(10, &[1, 100, 2]), [1, 7, 2]);
    assert_eq!(share(10, &[3, 3]), [3, 3]);
    assert_eq!(share(0, &[3]), [0]);
    assert!(share(5, &[]).is_empty());
}

fn loads() -> impl Strategy<Value = (Limits, Vec<Waiting>, Vec<usize>)> {
    let limits = (1usize..6, 1usize..40, 1usize..20)
        .prop_map(|(slots, prefill, shared)| Limits::new(slots, prefill, shared, 100));
    let requests = proptest::collection::vec((1usize..120, 0u64..=100, 1usize..9), 1..14);
    (limits, requests).prop_map(|(limits, requests)| {
        let waiting = requests.iter().enumerate().map(|(i, &(prompt, kv_bytes, _))| Waiting {
            prompt,
            arrival: i as u64,
            kv_bytes,
        });
        let outputs = requests.iter().map(|r| r.2).collect();
        (limits, waiting.collect(), outputs)
    })
}

proptest! {
    /// Runs a random load to its end. Every plan keeps the limits, every running request moves in every step,
    /// slots are given in order of arrival, and everything ends.
    #[test]
    fn every_request_reaches_its_end((limits, waiting, outputs) in loads()) {
        let mut queue: VecDeque<Waiting> = waiting.into();
        let mut slots: Vec<Slot> = Vec::new();
        let mut left = outputs.clone();
        let mut last_admitted = None;
        let mut ended = 0;
        for _ in 0..20_000 {
            if queue.is_empty() && slots.is_empty() {
                break;
            }
            let decoding = slots.iter().any(|s| s.prompt_left == 0);
            let plan = plan(queue.make_contiguous(), &slots, &limits);
            for &slot in &plan.admit {
                let request = queue.pop_front().expect("admitted from the queue");
                prop_assert!(last_admitted < Some(request.arrival), "passed in the queue");
                last_admitted = Some(request.arrival);
                prop_assert!(slots.iter().all(|s| s.slot != slot), "slot {} is taken", slot);
                let Waiting { prompt, arrival, kv_bytes } = request;
                slots.push(Slot { slot, prompt_left: prompt, arrival, kv_bytes });
            }
            prop_assert!(slots.len() <= limits.slots());
            prop_assert!(slots.iter().map(|s| s.kv_bytes).sum::<u64>() <= limits.kv_bytes());
            prop_assert!(plan.rows() <= limits.step_rows(decoding), "over the budget");
            let used: HashSet<_> = plan.segments.iter().map(|s| s.slot).collect();
            prop_assert_eq!(used.len(), plan.segments.len(), "a slot is used twice");
            prop_assert_eq!(used.len(), slots.len(), "a running request stands still");
            for segment in &plan.segments {
                let slot = slots.iter_mut().find(|s| s.slot == segment.slot).expect("a running slot");
                prop_assert!(segment.rows >= 1 && segment.rows <= slot.prompt_left.max(1));
                slot.prompt_left = slot.prompt_left.saturating_sub(segment.rows);
                prop_assert_eq!(segment.wants_logits, slot.prompt_left == 0);
                if segment.wants_logits {
                    left[slot.arrival as usize] -= 1;
                }
            }
            slots.retain(|s| left[s.arrival as usize] > 0);
            ended = left.iter().filter(|&&n| n == 0).count();
        }
        prop_assert_eq!(ended, outputs.len(), "somebody never got to the end");
    }

    /// Prompts of equal length that run together end within one step of each other.
    #[test]
    fn equal_prompts_advance_together(slots in 1usize..8, length in 1usize..300, rows in 1usize..64) {
        let limits = Limits::new(slots, rows, rows, 1000);
        let active: Vec<Slot> = (0..slots).map(|s| prompt(s, length)).collect();
        let plan = plan(&[], &active, &limits);
        let most = plan.segments.iter().map(|s| s.rows).max().expect("rows");
        let least = plan.segments.iter().map(|s| s.rows).min().expect("rows");
        prop_assert!(most - least < slots.max(2));
    }
}
