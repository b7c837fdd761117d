//! The numbers of an instance: restarts, probes, timeouts and limits, each with its unit, range and default.

use std::time::Duration;

use super::fields::Fields;
use super::problem::Problems;

/// When and how often a failed worker is started again.
#[derive(Debug, Clone, PartialEq)]
pub struct Restart {
    /// Delay before the first restart; it doubles with each further one.
    pub backoff_initial: Duration,
    /// Longest delay.
    pub backoff_max: Duration,
    /// Share of each delay that is random, 0 to 1: 0.5 means between half and one and a half of it.
    pub jitter: f64,
    /// A worker that stays ready for so long has recovered, and failures older than that are forgotten.
    pub window: Duration,
    /// Failures within the window that make a crash loop: the worker is parked.
    pub failures: u32,
    /// For a restart that an operator asked for, from the order until the new worker is ready.
    pub takeover: Duration,
}

/// How workers are probed, on a path of their own beside inference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// Time between two probes of a worker that is ready.
    pub interval: Duration,
    /// Time in which a probe must be answered.
    pub timeout: Duration,
    /// Unanswered probes in a row after which a worker counts as hung, and is killed.
    pub misses: u32,
    /// Time from start to listening; a model loads afterwards, however long that takes.
    pub bind: Duration,
}

/// How long the router waits for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection to a backend.
    pub connect: Duration,
    /// For the first content of a reply.
    pub first_token: Duration,
    /// Between two pieces of content.
    pub stall: Duration,
    /// For a whole request, queueing and retries included.
    pub total: Duration,
    /// For running requests to end after SIGTERM.
    pub drain: Duration,
}

/// What a caller may send and hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// Largest request head, in bytes.
    pub header_bytes: usize,
    /// Most header fields of a request.
    pub header_count: usize,
    /// Deepest nesting of a JSON body.
    pub json_depth: usize,
    /// Most connections open at once.
    pub connections: usize,
    /// For a whole request head to arrive.
    pub header_timeout: Duration,
    /// For the next bytes of a request body to arrive.
    pub body_stall: Duration,
    /// For the next request on an idle connection.
    pub idle: Duration,
    /// For a reader to take the next bytes of its reply.
    pub slow_reader: Duration,
}

/// A whole number of the section, or its default.
fn whole(
    fields: &mut Fields<'_>,
    key: &'static str,
    (low, default, high): (u64, u64, u64),
    problems: &mut Problems,
) -> u64 {
    fields.whole(key, low..=high, problems).map_or(default, |number| number.value)
}

fn seconds(
    fields: &mut Fields<'_>,
    key: &'static str,
    range: (u64, u64, u64),
    problems: &mut Problems,
) -> Duration {
    Duration::from_secs(whole(fields, key, range, problems))
}

fn millis(
    fields: &mut Fields<'_>,
    key: &'static str,
    range: (u64, u64, u64),
    problems: &mut Problems,
) -> Duration {
    Duration::from_millis(whole(fields, key, range, problems))
}

/// A count that fits in memory on every machine we build for.
fn count(
    fields: &mut Fields<'_>,
    key: &'static str,
    range: (u64, u64, u64),
    problems: &mut Problems,
) -> usize {
    usize::try_from(whole(fields, key, range, problems)).unwrap_or(usize::MAX)
}

fn small(
    fields: &mut Fields<'_>,
    key: &'static str,
    range: (u64, u64, u64),
    problems: &mut Problems,
) -> u32 {
    u32::try_from(whole(fields, key, range, problems)).unwrap_or(u32::MAX)
}

// Each range below is (least, default, most).

impl Restart {
    pub(super) fn read(fields: &mut Fields<'_>, problems: &mut Problems) -> Self {
        let f = fields;
        let restart = Self {
            backoff_initial: millis(f, "backoff_initial_ms", (1, 250, 60_000), problems),
            backoff_max: seconds(f, "backoff_max_s", (1, 30, 3600), problems),
            jitter: f.real("jitter", 0.0..=1.0, problems).unwrap_or(0.5),
            window: seconds(f, "window_s", (1, 60, 86_400), problems),
            failures: small(f, "failures", (1, 5, 1000), problems),
            takeover: seconds(f, "takeover_s", (1, 600, 86_400), problems),
        };
        if restart.backoff_initial > restart.backoff_max {
            let name = f.name_of("backoff_initial_ms");
            let max = restart.backoff_max.as_secs();
            problems.add(
                f.at_key("backoff_initial_ms"),
                format!("{name}: is more than `backoff_max_s` ({max} s)"),
            );
        }
        restart
    }
}

impl Health {
    pub(super) fn read(f: &mut Fields<'_>, problems: &mut Problems) -> Self {
        Self {
            interval: millis(f, "interval_ms", (10, 500, 60_000), problems),
            timeout: millis(f, "timeout_ms", (10, 1000, 60_000), problems),
            misses: small(f, "misses", (1, 3, 100), problems),
            bind: seconds(f, "bind_s", (1, 30, 3600), problems),
        }
    }
}

impl Timeouts {
    pub(super) fn read(f: &mut Fields<'_>, problems: &mut Problems) -> Self {
        let mut timeouts = Self {
            connect: millis(f, "connect_ms", (1, 1000, 60_000), problems),
            first_token: seconds(f, "first_token_s", (1, 120, 3600), problems),
            stall: seconds(f, "stall_s", (1, 60, 3600), problems),
            total: seconds(f, "total_s", (1, 600, 86_400), problems),
            drain: seconds(f, "drain_s", (0, 30, 3600), problems),
        };
        let total = timeouts.total;
        for (key, part) in
            [("first_token_s", &mut timeouts.first_token), ("stall_s", &mut timeouts.stall)]
        {
            if *part > total && f.has(key) {
                let (name, part, total) = (f.name_of(key), part.as_secs(), total.as_secs());
                problems
                    .add(f.at_key(key), format!("{name}: {part} is more than `total_s` ({total})"));
            }
            // A default gives way to a short total; only what was written can contradict it.
            *part = total.min(*part);
        }
        timeouts
    }
}

impl Limits {
    pub(super) fn read(f: &mut Fields<'_>, problems: &mut Problems) -> Self {
        Self {
            body_bytes: count(f, "body_bytes", (1024, 16 << 20, 1 << 30), problems),
            header_bytes: count(f, "header_bytes", (8192, 64 << 10, 1 << 20), problems),
            header_count: count(f, "header_count", (8, 100, 1000), problems),
            json_depth: count(f, "json_depth", (4, 64, 128), problems),
            connections: count(f, "connections", (1, 16_384, 1_000_000), problems),
            header_timeout: seconds(f, "header_timeout_s", (1, 10, 600), problems),
            body_stall: seconds(f, "body_stall_s", (1, 30, 600), problems),
            idle: seconds(f, "idle_s", (1, 90, 3600), problems),
            slow_reader: seconds(f, "slow_reader_s", (1, 60, 3600), problems),
        }
    }
}
