//! When a failed worker is started again: a pure decision over events and the time they happened.
//!
//! Owns back-off, crash-loop and recovery rules. It starts nothing and reads no clock; time and chance are given.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sanctum_shared::instance::Restart;

/// What happened to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// It answers.
    Ready,
    /// It ended, or could not be started, in a way that another start may cure.
    Failed,
    /// It will fail the same way again: refused by its gate, wrongly configured, or its program is missing.
    Hopeless,
    /// An operator wants it started, whatever happened before.
    Ordered,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Leave it as it is.
    Keep,
    /// Start it after so long.
    StartAfter(Duration),
    /// Start it no more until an operator says so.
    Park(Verdict),
}

/// Why a worker is parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// So many failures that the next start would hardly end otherwise.
    CrashLoop {
        /// How many.
        failures: u32,
    },
    /// One failure that no restart cures.
    Hopeless,
}

/// The memory of one worker's failures.
#[derive(Debug)]
pub(super) struct Policy {
    rules: Restart,
    /// When it failed, within the window.
    recent: VecDeque<Instant>,
    /// Failures since it was last well; the exponent of the delay.
    streak: u32,
    /// Failures since it was last ready at all, however slowly they came.
    never_ready: u32,
    ready_since: Option<Instant>,
}

impl Policy {
    pub(super) fn new(rules: Restart) -> Self {
        Self { rules, recent: VecDeque::new(), streak: 0, never_ready: 0, ready_since: None }
    }

    /// Takes `event` at `now`; `chance` is uniform in 0..1 and spreads the delay.
    pub(super) fn step(&mut self, event: Event, now: Instant, chance: f64) -> Action {
        match event {
            Event::Ready => {
                self.never_ready = 0;
                self.ready_since.get_or_insert(now);
                Action::Keep
            }
            Event::Ordered => {
                self.forget();
                Action::StartAfter(Duration::ZERO)
            }
            Event::Hopeless => {
                self.ready_since = None;
                Action::Park(Verdict::Hopeless)
            }
            Event::Failed => self.failed(now, chance),
        }
    }

    fn failed(&mut self, now: Instant, chance: f64) -> Action {
        let was_well = self
            .ready_since
            .take()
            .is_some_and(|since| now.saturating_duration_since(since) >= self.rules.window);
        if was_well {
            self.forget();
        }
        self.recent.push_back(now);
        while let Some(first) = self.recent.front()
            && now.saturating_duration_since(*first) > self.rules.window
        {
            self.recent.pop_front();
        }
        self.never_ready += 1;
        let within = u32::try_from(self.recent.len()).unwrap_or(u32::MAX);
        // A worker that takes long to fail never has many failures in one window, and is no better for it.
        let failures = within.max(self.never_ready);
        if failures >= self.rules.failures {
            return Action::Park(Verdict::CrashLoop { failures });
        }
        let delay = self.delay(chance);
        self.streak += 1;
        Action::StartAfter(delay)
    }

    /// Doubles with the streak up to the most, then spreads by the jitter to either side.
    fn delay(&self, chance: f64) -> Duration {
        let factor = 1_u32.checked_shl(self.streak).unwrap_or(u32::MAX);
        let plain = self.rules.backoff_initial.saturating_mul(factor).min(self.rules.backoff_max);
        plain.mul_f64(1.0 + self.rules.jitter * (2.0 * chance.clamp(0.0, 1.0) - 1.0))
    }

    fn forget(&mut self) {
        self.recent.clear();
        self.streak = 0;
        self.never_ready = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules() -> Restart {
        Restart {
            backoff_initial: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            jitter: 0.5,
            window: Duration::from_secs(60),
            failures: 5,
            takeover: Duration::from_secs(600),
        }
    }

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn delays_double_and_five_failures_park() {
        let start = Instant::now();
        let mut policy = Policy::new(rules());
        let steps: Vec<Action> =
            (0..5).map(|n| policy.step(Event::Failed, after(start, n), 0.5)).collect();
        let wait = |ms| Action::StartAfter(Duration::from_millis(ms));
        let park = Action::Park(Verdict::CrashLoop { failures: 5 });
        assert_eq!(steps, [wait(250), wait(500), wait(1000), wait(2000), park]);
    }

    #[test]
    fn failures_far_apart_do_not_park_if_it_was_ready_between() {
        let start = Instant::now();
        let mut policy = Policy::new(rules());
        for n in 0..100 {
            let now = after(start, n * 30);
            policy.step(Event::Ready, now, 0.5);
            let action = policy.step(Event::Failed, now + Duration::from_secs(20), 0.5);
            assert!(matches!(action, Action::StartAfter(_)), "{n}: {action:?}");
        }
    }

    #[test]
    fn slow_failures_without_ready_park_too() {
        let start = Instant::now();
        let mut policy = Policy::new(rules());
        let last = (0..5).map(|n| policy.step(Event::Failed, after(start, n * 300), 0.5)).last();
        assert_eq!(last, Some(Action::Park(Verdict::CrashLoop { failures: 5 })));
    }

    #[test]
    fn a_window_of_health_resets_the_delay() {
        let start = Instant::now();
        let mut policy = Policy::new(rules());
        for n in 0..3 {
            policy.step(Event::Failed, after(start, n), 0.5);
        }
        policy.step(Event::Ready, after(start, 4), 0.5);
        let action = policy.step(Event::Failed, after(start, 64), 0.5);
        assert_eq!(action, Action::StartAfter(Duration::from_millis(250)));
    }

    #[test]
    fn a_refusal_parks_at_once_and_an_order_starts_again() {
        let now = Instant::now();
        let mut policy = Policy::new(rules());
        let refused = policy.step(Event::Hopeless, now, 0.5);
        assert_eq!(refused, Action::Park(Verdict::Hopeless));
        let ordered = policy.step(Event::Ordered, now, 0.5);
        assert_eq!(ordered, Action::StartAfter(Duration::ZERO));
        let failed = policy.step(Event::Failed, now, 0.5);
        assert_eq!(failed, Action::StartAfter(Duration::from_millis(250)), "a clean slate");
    }

    proptest! {
        /// Whatever happens: no delay leaves its bounds, and no window holds more failures than allowed unparked.
        #[test]
        fn delays_stay_in_bounds_and_storms_park(
            events in prop::collection::vec((0_u8..3, 0_u64..40_000, 0.0_f64..1.0), 1..200),
        ) {
            let rules = rules();
            let longest = rules.backoff_max.mul_f64(1.0 + rules.jitter);
            let shortest = rules.backoff_initial.mul_f64(1.0 - rules.jitter);
            let mut policy = Policy::new(rules.clone());
            let mut now = Instant::now();
            let mut failures: Vec<Instant> = Vec::new();
            for (kind, gap_ms, chance) in events {
                now += Duration::from_millis(gap_ms);
                let event = if kind == 0 { Event::Ready } else { Event::Failed };
                let action = policy.step(event, now, chance);
                match action {
                    Action::StartAfter(delay) => {
                        prop_assert!(delay <= longest && delay >= shortest, "{delay:?}");
                        failures.push(now);
                        let within = failures.iter().filter(|at| now - **at <= rules.window).count();
                        prop_assert!(within < 2 * rules.failures as usize, "{within} in a window");
                    }
                    Action::Park(_) => {
                        policy.step(Event::Ordered, now, chance);
                        failures.clear();
                    }
                    Action::Keep => prop_assert_eq!(event, Event::Ready),
                }
            }
        }

        /// Without recovery a worker is started at most `failures - 1` times more.
        #[test]
        fn nothing_restarts_for_ever(gaps in prop::collection::vec(0_u64..10_000_000, 5..20)) {
            let mut policy = Policy::new(rules());
            let mut now = Instant::now();
            let mut starts = 0;
            for gap in gaps {
                now += Duration::from_millis(gap);
                match policy.step(Event::Failed, now, 0.5) {
                    Action::StartAfter(_) => starts += 1,
                    _ => break,
                }
            }
            prop_assert_eq!(starts, 4);
        }
    }
}
