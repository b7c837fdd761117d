//! When to stop: signals, and the end of standard input.
//!
//! The first request to stop drains, the second one does not wait. Standard input stands for the parent: the
//! supervisor holds the other end of the pipe, and the kernel closes it however the supervisor dies. (Linux's
//! parent-death signal is not used: it follows the *thread* that spawned us, which may end long before the process.)

use std::io::{self, Read};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How urgent it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stop {
    /// Not at all.
    #[default]
    No,
    /// Finish what runs.
    Drain,
    /// At once.
    Now,
}

impl Stop {
    fn further(self) -> Self {
        match self {
            Self::No => Self::Drain,
            Self::Drain | Self::Now => Self::Now,
        }
    }
}

/// Watches SIGTERM, SIGINT and, if asked, standard input.
pub(super) fn watch_for_stop(with_parent: bool) -> io::Result<watch::Receiver<Stop>> {
    let (sender, receiver) = watch::channel(Stop::No);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let signals = sender.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            signals.send_modify(|stop| *stop = stop.further());
        }
    });
    if with_parent {
        // A thread of its own: tokio's standard input would keep the runtime from ending.
        thread::Builder::new().name("parent".into()).spawn(move || {
            wait_for_end(&mut io::stdin().lock());
            tracing::info!("standard input ended: stopping with the parent");
            sender.send_modify(|stop| *stop = (*stop).max(Stop::Drain));
        })?;
    }
    Ok(receiver)
}

/// Reads to the end; an error is an end too.
fn wait_for_end(input: &mut impl Read) {
    let mut ignored = [0; 64];
    loop {
        match input.read(&mut ignored) {
            Ok(0) => return,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

/// Completes when it is as urgent as `level`.
pub(super) async fn reached(mut stop: watch::Receiver<Stop>, level: Stop) {
    if stop.wait_for(|now| *now >= level).await.is_err() {
        // Nobody can ask any more.
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_request_does_not_wait() {
        assert_eq!(Stop::No.further(), Stop::Drain);
        assert_eq!(Stop::Drain.further(), Stop::Now);
    }

    #[test]
    fn only_the_end_of_input_ends_the_wait() {
        struct Fussy(Vec<io::Result<usize>>);
        impl Read for Fussy {
            fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
                self.0.pop().expect("not read after the end")
            }
        }
        let interrupted = || Err(io::Error::from(io::ErrorKind::Interrupted));
        wait_for_end(&mut Fussy(vec![Ok(0), Ok(3), interrupted()]));
        wait_for_end(&mut Fussy(vec![Err(io::Error::from(io::ErrorKind::BrokenPipe)), Ok(1)]));
    }

    #[tokio::test]
    async fn levels_are_reached_from_below() {
        let (sender, receiver) = watch::channel(Stop::No);
        sender.send_replace(Stop::Now);
        reached(receiver.clone(), Stop::Drain).await;
        reached(receiver, Stop::Now).await;
    }
}
