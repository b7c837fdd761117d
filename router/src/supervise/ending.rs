//! How a worker ended, in words for operators and as an event for the restart policy.

use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use nix::sys::signal::Signal;
use sanctum_shared::exit;

use super::policy::Event;

/// Why the supervisor killed a worker itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Blame {
    /// It answered so many probes too late or not at all.
    Hung {
        /// Probes in a row.
        misses: u32,
    },
    /// It did not listen in the time allowed.
    NeverListened,
    /// It was asked to stop.
    Asked,
}

/// How a worker ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    /// By an exit code that we did not ask for.
    Code(i32),
    /// By a signal that we did not send.
    Signal {
        signal: i32,
        /// The kernel's count of processes killed for want of memory rose in the worker's lifetime.
        out_of_memory: bool,
    },
    /// By us.
    Ours(Blame),
    /// It never ran.
    NotStarted { why: String, missing: bool },
}

impl Ending {
    /// `blame` is why we signalled it, if we did; `out_of_memory` whether the kernel's count rose.
    pub(super) fn new(status: ExitStatus, blame: Option<Blame>, out_of_memory: bool) -> Self {
        match (blame, status.code(), status.signal()) {
            // What it says itself is worth more than that we were about to kill it.
            (Some(Blame::NeverListened | Blame::Hung { .. }), Some(code), _)
                if i32::from(exit::CONFIG) == code =>
            {
                Self::Code(code)
            }
            (Some(blame), _, _) => Self::Ours(blame),
            (None, Some(code), _) => Self::Code(code),
            (None, None, signal) => Self::Signal { signal: signal.unwrap_or(0), out_of_memory },
        }
    }

    /// What the restart policy makes of it.
    pub(super) fn event(&self) -> Event {
        match self {
            Self::Code(code) if *code == i32::from(exit::CONFIG) => Event::Hopeless,
            // Wrong arguments stay wrong.
            Self::Code(code) if *code == i32::from(exit::USAGE) => Event::Hopeless,
            Self::NotStarted { missing: true, .. } => Event::Hopeless,
            _ => Event::Failed,
        }
    }

    /// A short word for metric labels.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Self::Code(0) => "exit_0",
            Self::Code(code) if *code == i32::from(exit::CONFIG) => "refused",
            Self::Code(code) if *code == i32::from(exit::UNAVAILABLE) => "port_taken",
            Self::Code(_) => "exit_code",
            Self::Signal { out_of_memory: true, .. } => "out_of_memory",
            Self::Signal { .. } => "signal",
            Self::Ours(Blame::Hung { .. }) => "hung",
            Self::Ours(Blame::NeverListened) => "never_listened",
            Self::Ours(Blame::Asked) => "asked",
            Self::NotStarted { .. } => "not_started",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(0) => f.write_str("ended by itself (exit code 0)"),
            Self::Code(code) => match u8::try_from(*code).unwrap_or(0) {
                exit::CONFIG => {
                    write!(f, "refused to start (exit code {code}): its log says what is wrong")
                }
                exit::USAGE => write!(f, "did not understand its arguments (exit code {code})"),
                exit::UNAVAILABLE => write!(f, "found its port taken (exit code {code})"),
                _ => write!(f, "failed (exit code {code})"),
            },
            Self::Signal { out_of_memory: true, .. } => {
                f.write_str("was killed by the kernel: out of memory")
            }
            Self::Signal { signal, .. } => {
                let name = Signal::try_from(*signal).map_or("an unknown signal", Signal::as_str);
                write!(f, "was killed by {name}, which the router did not send")?;
                if *signal == Signal::SIGKILL as i32 {
                    f.write_str(" (out of memory?)")?;
                }
                Ok(())
            }
            Self::Ours(Blame::Hung { misses }) => {
                write!(f, "hung: {misses} probes in a row unanswered")
            }
            Self::Ours(Blame::NeverListened) => f.write_str("did not listen in time"),
            Self::Ours(Blame::Asked) => f.write_str("was stopped as asked"),
            Self::NotStarted { why, .. } => f.write_str(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wait statuses as the kernel encodes them.
    fn exited(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn codes_and_signals_become_words() {
        let ending = |status, out| Ending::new(status, None, out);
        let cases = [
            (ending(exited(78), false), Event::Hopeless, "refused to start (exit code 78)"),
            (ending(exited(2), false), Event::Hopeless, "did not understand"),
            (ending(exited(69), false), Event::Failed, "found its port taken"),
            (ending(exited(1), false), Event::Failed, "failed (exit code 1)"),
            (ending(exited(0), false), Event::Failed, "ended by itself"),
            (ending(ExitStatus::from_raw(9), true), Event::Failed, "out of memory"),
            (ending(ExitStatus::from_raw(9), false), Event::Failed, "killed by SIGKILL"),
            (ending(ExitStatus::from_raw(11), false), Event::Failed, "killed by SIGSEGV"),
        ];
        for (ending, event, words) in cases {
            assert_eq!(ending.event(), event, "{ending:?}");
            assert!(ending.to_string().contains(words), "{ending}");
        }
    }

    #[test]
    fn our_own_signals_are_not_blamed_on_the_kernel() {
        let hung = Ending::new(ExitStatus::from_raw(9), Some(Blame::Hung { misses: 3 }), true);
        assert_eq!(hung.to_string(), "hung: 3 probes in a row unanswered");
        let refused = Ending::new(exited(78), Some(Blame::NeverListened), false);
        assert_eq!(refused.event(), Event::Hopeless, "its own words count more");
    }
}
