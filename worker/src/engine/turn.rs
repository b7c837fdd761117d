//! The step loop: take commands, plan, compute, choose tokens, tell callers; until told to end.
//!
//! A step that fails takes only its own requests with it. After several failures in a row the engine computes a
//! trial of its own; if that fails too, it ends, so that the process ends and the supervisor starts another one.

use std::collections::VecDeque;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use super::running::{After, Running};
use super::step_model::StepModel;
use super::{Command, EngineError, EngineSnapshot, Inbox, ModelInfo, Submission};
use crate::schedule::{self, Limits, SegmentPlan, Slot, Waiting};

/// Failed steps in a row after which the engine tries itself.
const FAILURES_BEFORE_TRIAL: u32 = 3;
/// Positions by which caches grow, in every form: what a request reserves is rounded up to them.
pub(super) const KV_GROWTH_POSITIONS: usize = 256;
/// Steps between two looks at the numeric library's memory.
const MEMORY_EVERY_STEPS: u64 = 32;
/// Share of the newest request in the mean duration.
const MEAN_SHARE: f32 = 0.2;

/// Requests, their states, and the model that moves them.
pub(super) struct Engine<M: StepModel> {
    queue: VecDeque<Queued>,
    running: Vec<(usize, Running<M::Cache>)>,
    model: M,
    info: ModelInfo,
    limits: Limits,
    arrivals: u64,
    failures_in_a_row: u32,
    ending: Ending,
    state: EngineSnapshot,
    /// Last, so that handles see the end only after everything else is gone.
    inbox: Inbox,
}

struct Queued {
    submission: Submission,
    waiting: Waiting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    NotYet,
    WhenIdle,
    Now,
}

impl<M: StepModel> Engine<M> {
    pub(super) fn new(
        model: M,
        info: ModelInfo,
        limits: Limits,
        state: EngineSnapshot,
        inbox: Inbox,
    ) -> Self {
        Self {
            queue: VecDeque::new(),
            running: Vec::new(),
            model,
            info,
            limits,
            arrivals: 0,
            failures_in_a_row: 0,
            ending: Ending::NotYet,
            state,
            inbox,
        }
    }

    /// Runs until told to end, until every handle is gone and nothing is left to do, or until the model is broken.
    pub(super) fn run(mut self) {
        loop {
            self.take_commands();
            self.drop_left();
            let idle = self.queue.is_empty() && self.running.is_empty();
            match self.ending {
                Ending::Now => break,
                Ending::WhenIdle if idle => break,
                Ending::NotYet if idle => self.rest(),
                _ => self.turn(),
            }
        }
        self.inbox.close();
        self.take_commands();
        self.fail_all(&EngineError::ShuttingDown);
    }

    fn take_commands(&mut self) {
        loop {
            match self.inbox.try_next() {
                Ok(Some(command)) => self.obey(command),
                Ok(None) => return,
                Err(_) => return self.end(Ending::WhenIdle),
            }
        }
    }

    /// Waits for work, having given back what memory it can.
    fn rest(&mut self) {
        self.model.rest();
        self.look_at_memory();
        self.publish();
        match self.inbox.next_blocking() {
            Some(command) => self.obey(command),
            None => self.end(Ending::WhenIdle),
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Generate(submission) => self.enqueue(submission),
            Command::Drain => self.end(Ending::WhenIdle),
            Command::Stop => self.end(Ending::Now),
        }
    }

    fn end(&mut self, ending: Ending) {
        if self.ending != Ending::Now {
            self.ending = ending;
        }
    }

    fn enqueue(&mut self, submission: Submission) {
        if !self.state.healthy {
            let why = "the model does not compute any more".to_owned();
            return submission.fail(EngineError::Step(why));
        }
        let request = &submission.request;
        let positions = request.prompt.len() + request.max_tokens;
        let grown = positions.next_multiple_of(KV_GROWTH_POSITIONS) as u64;
        let kv_bytes = self.info.kv_bytes_per_token.saturating_mul(grown);
        let waiting = Waiting {
            prompt: request.prompt.len(),
            arrival: self.arrivals,
            // The handle has seen that the request alone fits; rounding must not keep it waiting for ever.
            kv_bytes: kv_bytes.min(self.limits.kv_bytes()),
        };
        self.arrivals += 1;
        self.queue.push_back(Queued { submission, waiting });
    }

    /// Forgets requests whose callers have left.
    fn drop_left(&mut self) {
        let before = self.queue.len() + self.running.len();
        self.queue.retain(|queued| !queued.submission.events.is_closed());
        self.running.retain(|(_, running)| !running.is_left());
        self.state.cancelled += (before - self.queue.len() - self.running.len()) as u64;
    }

    /// One step.
    fn turn(&mut self) {
        let waiting: Vec<Waiting> = self.queue.iter().map(|queued| queued.waiting).collect();
        let slots: Vec<Slot> = self.running.iter().map(|(slot, r)| view(*slot, r)).collect();
        let plan = schedule::plan(&waiting, &slots, &self.limits);
        self.admit(&plan.admit);
        match self.compute(&plan.segments) {
            Ok(logits) => self.advance(&plan.segments, logits),
            Err(why) => self.fail_step(&plan.segments, why),
        }
        self.state.steps += 1;
        self.state.last_step_rows = plan.rows();
        if self.state.steps.is_multiple_of(MEMORY_EVERY_STEPS) {
            self.look_at_memory();
        }
        self.publish();
    }

    fn admit(&mut self, slots: &[usize]) {
        let now = Instant::now();
        for &slot in slots {
            let Some(Queued { submission, waiting }) = self.queue.pop_front() else { return };
            let cache = self.model.new_cache();
            let running = Running::admit(submission, cache, waiting.arrival, waiting.kv_bytes, now);
            self.running.push((slot, running));
        }
    }

    /// The logits of the segments that want them, or why there are none. Panics end here.
    fn compute(&mut self, segments: &[SegmentPlan]) -> Result<Vec<f32>, String> {
        let mut ids = Vec::new();
        let mut wanted = Vec::new();
        let mut sequences: Vec<(Range<usize>, &mut M::Cache)> = Vec::new();
        // The plan names each slot once; walking both in the plan's order lends every state out once.
        let mut lent: Vec<Option<&mut Running<M::Cache>>> = Vec::new();
        lent.resize_with(self.limits.slots(), || None);
        for (slot, running) in &mut self.running {
            lent[*slot] = Some(running);
        }
        for segment in segments {
            let Some(running) = lent[segment.slot].take() else { continue };
            let start = ids.len();
            ids.extend_from_slice(running.tokens(segment.rows));
            if segment.wants_logits {
                wanted.push(ids.len() as u32 - 1);
            }
            sequences.push((start..ids.len(), &mut running.cache));
        }
        let model = &self.model;
        let step = AssertUnwindSafe(|| model.step(&ids, &mut sequences, &wanted));
        let logits = catch_unwind(step).unwrap_or_else(|panic| Err(panic_text(&*panic)))?;
        let expected = wanted.len() * self.info.vocab_size;
        if logits.len() == expected {
            return Ok(logits);
        }
        Err(format!("{} logits instead of {expected}", logits.len()))
    }

    fn advance(&mut self, segments: &[SegmentPlan], mut logits: Vec<f32>) {
        let now = Instant::now();
        let mut rows = logits.chunks_exact_mut(self.info.vocab_size);
        let mut any_failed = false;
        for segment in segments {
            let Some(at) = self.running.iter().position(|(slot, _)| *slot == segment.slot) else {
                continue;
            };
            let running = &mut self.running[at].1;
            self.state.prefill_tokens += running.computed(segment.rows) as u64;
            if !segment.wants_logits {
                continue;
            }
            let Some(row) = rows.next() else { continue };
            let after = running.choose(row, now);
            if after != After::Failed {
                self.state.decode_tokens += 1;
            }
            match after {
                After::Goes => continue,
                After::Left => self.state.cancelled += 1,
                After::Failed => {
                    self.state.failed += 1;
                    any_failed = true;
                }
                After::Ended => {
                    self.state.finished += 1;
                    // The first one is the whole mean: it has nothing to be mixed with.
                    let share = if self.state.finished == 1 { 1.0 } else { MEAN_SHARE };
                    let mean = &mut self.state.mean_request_s;
                    *mean += share * (running.age(now) - *mean);
                }
            }
            self.running.swap_remove(at);
        }
        if any_failed { self.count_failure() } else { self.failures_in_a_row = 0 }
    }

    fn fail_step(&mut self, segments: &[SegmentPlan], why: String) {
        tracing::error!(%why, requests = segments.len(), "a step failed");
        self.state.failed_steps += 1;
        let error = EngineError::Step(why);
        let in_step = |slot: usize| segments.iter().any(|segment| segment.slot == slot);
        let (failed, kept) =
            std::mem::take(&mut self.running).into_iter().partition(|(slot, _)| in_step(*slot));
        self.running = kept;
        let failed: Vec<(usize, Running<M::Cache>)> = failed;
        self.state.failed += failed.len() as u64;
        failed.into_iter().for_each(|(_, running)| running.fail(error.clone()));
        self.count_failure();
    }

    fn count_failure(&mut self) {
        self.failures_in_a_row += 1;
        if self.failures_in_a_row < FAILURES_BEFORE_TRIAL {
            return;
        }
        let tried = catch_unwind(AssertUnwindSafe(|| trial(&self.model, &self.info, 1)));
        match tried.unwrap_or_else(|panic| Err(panic_text(&*panic))) {
            Ok(()) => self.failures_in_a_row = 0,
            Err(why) => {
                tracing::error!(%why, "the engine's own trial failed: it ends");
                self.state.healthy = false;
                self.fail_all(&EngineError::Step(why));
                // A fresh process may compute again; this one would only refuse.
                self.end(Ending::Now);
            }
        }
    }

    fn fail_all(&mut self, error: &EngineError) {
        self.state.failed += (self.running.len() + self.queue.len()) as u64;
        self.running.drain(..).for_each(|(_, running)| running.fail(error.clone()));
        self.queue.drain(..).for_each(|queued| queued.submission.fail(error.clone()));
        self.publish();
    }

    fn look_at_memory(&mut self) {
        (self.state.mlx_active_bytes, self.state.mlx_cache_bytes) = self.model.memory();
    }

    fn publish(&mut self) {
        let running = || self.running.iter().map(|(_, running)| running);
        self.state.running = self.running.len();
        self.state.kv_bytes = running().map(|r| M::cache_bytes(&r.cache)).sum();
        self.state.kv_reserved_bytes = running().map(|r| r.kv_reserved).sum();
        self.inbox.publish(self.state);
    }
}

fn view<C>(slot: usize, running: &Running<C>) -> Slot {
    Slot {
        slot,
        prompt_left: running.prompt_left(),
        arrival: running.arrival,
        kv_bytes: running.kv_reserved,
    }
}

/// A prompt of `rows` tokens and one more token, thrown away: whether the model computes numbers. Panics pass.
pub(super) fn trial<M: StepModel>(model: &M, info: &ModelInfo, rows: usize) -> Result<(), String> {
    let token = info.bos_token_id.filter(|&id| (id as usize) < info.vocab_size).unwrap_or(0);
    let mut cache = model.new_cache();
    for rows in [rows, 1] {
        let ids = vec![token; rows];
        let logits = model.step(&ids, &mut [(0..rows, &mut cache)], &[rows as u32 - 1])?;
        if logits.len() != info.vocab_size || logits.iter().any(|x| !x.is_finite()) {
            return Err("the model does not produce numbers".to_owned());
        }
    }
    Ok(())
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_else(|| "without a message".to_owned()))
}
