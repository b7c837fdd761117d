//! A short memory of failures, per URL: a pure core.
//!
//! Owns for how long a URL that failed is asked after the others. It forbids nothing: with nobody else left a cooling
//! URL is asked all the same.

use std::time::Duration;

use sanctum_shared::limits::UPSTREAM_PAUSE;
use tokio::time::Instant;

use super::failure::Blame;

/// After the first failure; doubles with each further one in a row.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause after failures.
const LONGEST: Duration = Duration::from_secs(30);
/// Pause after a refusal that only an operator can lift: a wrong key, a missing model.
const REFUSED: Duration = Duration::from_secs(60);

/// The memory of one URL.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Cooldown {
    failures_in_a_row: u32,
    until: Option<Instant>,
}

impl Cooldown {
    pub(crate) fn failed(&mut self, blame: Blame, now: Instant) {
        let pause = match blame {
            Blame::Neutral => return,
            Blame::Config => REFUSED,
            Blame::Pressure(asked) => asked.unwrap_or(FIRST).min(UPSTREAM_PAUSE),
            Blame::Hard => {
                self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
                let doublings = (self.failures_in_a_row - 1).min(5);
                (FIRST * (1 << doublings)).min(LONGEST)
            }
        };
        self.until = self.until.max(Some(now + pause));
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// How much longer it should be left alone.
    pub(crate) fn remaining(&self, now: Instant) -> Option<Duration> {
        self.until
            .and_then(|until| until.checked_duration_since(now))
            .filter(|rest| !rest.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pauses_double_and_a_success_forgets() {
        let now = Instant::now();
        let mut memory = Cooldown::default();
        assert_eq!(memory.remaining(now), None);
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            memory.failed(Blame::Hard, now);
            assert_eq!(memory.remaining(now), Some(Duration::from_secs(seconds)));
        }
        assert_eq!(memory.remaining(now + Duration::from_secs(30)), None);
        memory.succeeded();
        memory.failed(Blame::Hard, now);
        assert_eq!(memory.remaining(now), Some(FIRST));
    }

    #[test]
    fn a_refusal_pauses_long_and_our_own_haste_not_at_all() {
        let now = Instant::now();
        let mut memory = Cooldown::default();
        memory.failed(Blame::Neutral, now);
        assert_eq!(memory.remaining(now), None);
        memory.failed(Blame::Config, now);
        assert_eq!(memory.remaining(now), Some(REFUSED));
    }

    proptest! {
        #[test]
        fn a_backend_cannot_ask_for_a_pause_without_end(asked in proptest::option::of(0u64..u64::MAX / 4)) {
            let now = Instant::now();
            let mut memory = Cooldown::default();
            memory.failed(Blame::Pressure(asked.map(Duration::from_secs)), now);
            prop_assert!(memory.remaining(now).unwrap_or_default() <= UPSTREAM_PAUSE);
            memory.failed(Blame::Hard, now);
            prop_assert!(memory.remaining(now).is_some());
        }
    }
}
