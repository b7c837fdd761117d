//! One worker process from its start to its end.
//!
//! Owns the child: its pipe, its probes, its signals, its group. It tells what happens and decides nothing but one
//! thing: a worker that never listens or no longer answers is killed. Its exit is seen at once, whatever probe runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use sanctum_shared::instance::Health as Rules;
use tokio::process::Child;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::board::unix_now;
use super::ending::{Blame, Ending};
use super::launch::{Launch, LaunchError};
use super::memory;
use super::probe::{Health, ask};
use super::state_file;

/// Time between two looks at a worker that is not ready yet.
const STARTING_INTERVAL: Duration = Duration::from_millis(25);

/// How long a worker that was replaced goes on before it is told to stop: requests that were sent its way just before
/// are then with it.
const HANDOVER: Duration = Duration::from_millis(250);
/// What a worker gets beyond the drain limit, which it keeps itself, for its last words.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What happens to a process.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum News {
    /// It listens there.
    Listening(SocketAddr),
    /// It takes requests.
    Ready,
    /// It lives, but does not take requests.
    NotReady { phase: Option<String>, progress: Option<f64> },
    /// It is gone, and its group with it.
    Ended(Ending),
}

/// News of the process of that generation.
pub(super) type Report = (u64, News);

/// What a process is told.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// Finish what runs, for so long at most, then end. It is told so `after` a while.
    Stop { after: Duration, drain: Duration },
    /// End now.
    Kill,
}

/// A running process, as its keeper holds it. Dropping it kills the process.
#[derive(Debug)]
pub(super) struct Process {
    /// Counts the processes of one backend in the router's life.
    pub(super) generation: u64,
    pub(super) pid: u32,
    pub(super) address: Option<SocketAddr>,
    pub(super) ready: bool,
    /// It was told to stop or killed.
    pub(super) asked: bool,
    /// When it was started, in Unix seconds.
    pub(super) started_unix: u64,
    orders: mpsc::UnboundedSender<Order>,
}

impl Process {
    /// Starts one and watches it in a task of its own, which reports to `news`.
    pub(super) fn start(
        launch: &Launch,
        rules: &Rules,
        state_file: PathBuf,
        generation: u64,
        news: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, LaunchError> {
        state_file::remove(&state_file);
        let kills_before = memory::kills();
        let child = launch.start(&state_file)?;
        let pid = child.id().unwrap_or_default();
        let (orders, received) = mpsc::unbounded_channel();
        let watched = Watched {
            child,
            pid: Pid::from_raw(pid.cast_signed()),
            rules: rules.clone(),
            state_file,
            kills_before,
            report: Reporter { generation, news },
        };
        tokio::spawn(watched.watch(received));
        let started_unix = unix_now() as u64;
        Ok(Self {
            generation,
            pid,
            address: None,
            ready: false,
            asked: false,
            started_unix,
            orders,
        })
    }

    /// Asks it to finish within `drain`; a little after that it is killed.
    pub(super) fn stop(&mut self, drain: Duration) {
        self.tell(Order::Stop { after: Duration::ZERO, drain });
    }

    /// The same for one that another has just taken over from.
    pub(super) fn retire(&mut self, drain: Duration) {
        self.tell(Order::Stop { after: HANDOVER, drain });
    }

    /// Ends it now.
    pub(super) fn kill(&mut self) {
        self.tell(Order::Kill);
    }

    fn tell(&mut self, order: Order) {
        self.asked = true;
        // A closed channel means that it has ended.
        let _ = self.orders.send(order);
    }
}

#[derive(Debug, Clone)]
struct Reporter {
    generation: u64,
    news: mpsc::UnboundedSender<Report>,
}

impl Reporter {
    fn tell(&self, news: News) {
        // Nobody listens only when the router itself is going down.
        let _ = self.news.send((self.generation, news));
    }
}

struct Watched {
    child: Child,
    pid: Pid,
    rules: Rules,
    state_file: PathBuf,
    kills_before: Option<u64>,
    report: Reporter,
}

impl Watched {
    async fn watch(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        // Held to the end: its closing is how the worker learns that we are gone.
        let pipe = self.child.stdin.take();
        let mut blame = None;
        let mut ask_at: Option<(Instant, Duration)> = None;
        let mut kill_at: Option<Instant> = None;
        let mut health = Box::pin(watch_health(
            self.pid,
            self.rules.clone(),
            self.state_file.clone(),
            self.report.clone(),
        ));
        let status = loop {
            tokio::select! {
                biased;
                status = self.child.wait() => break status,
                order = orders.recv() => {
                    blame.get_or_insert(Blame::Asked);
                    match order {
                        Some(Order::Stop { after, drain }) if kill_at.is_none() => {
                            ask_at = Some((Instant::now() + after, drain));
                        }
                        Some(Order::Stop { .. }) => {}
                        Some(Order::Kill) | None => self.kill_group(),
                    }
                    if order.is_none() {
                        break self.child.wait().await;
                    }
                }
                verdict = &mut health, if blame.is_none() => {
                    blame = Some(verdict);
                    self.kill_group();
                }
                () = sleep_until(ask_at.map_or_else(Instant::now, |(at, _)| at)), if ask_at.is_some() => {
                    self.signal(Signal::SIGTERM);
                    let drain = ask_at.take().map_or(Duration::ZERO, |(_, drain)| drain);
                    kill_at = Some(Instant::now() + drain + LAST_WORDS);
                }
                () = sleep_until(kill_at.unwrap_or_else(Instant::now)), if kill_at.is_some() => {
                    tracing::warn!(pid = self.pid.as_raw(), "the drain limit is over: killing the worker");
                    self.kill_group();
                    kill_at = None;
                }
            }
        };
        drop(pipe);
        // The leader is gone; nothing that it started may stay.
        self.kill_group();
        state_file::remove(&self.state_file);
        let ending = match status {
            Ok(status) => {
                let rose = memory::kills() > self.kills_before;
                Ending::new(status, blame, rose && self.kills_before.is_some())
            }
            Err(error) => Ending::NotStarted {
                why: format!("ended, but its exit status could not be read: {error}"),
                missing: false,
            },
        };
        self.report.tell(News::Ended(ending));
    }

    fn signal(&self, signal: Signal) {
        // The one failure is that it has ended, which `wait` tells.
        let _ = kill(self.pid, signal);
    }

    fn kill_group(&self) {
        let _ = killpg(self.pid, Signal::SIGKILL);
    }
}

/// Looks after a process until it should be killed, and says why. Never returns for a healthy one.
async fn watch_health(leader: Pid, rules: Rules, state_file: PathBuf, report: Reporter) -> Blame {
    let Some(address) = wait_for_address(leader, &rules, &state_file).await else {
        return Blame::NeverListened;
    };
    report.tell(News::Listening(address));
    let mut misses = 0;
    let mut last: Option<Health> = None;
    loop {
        let health = ask(address, rules.timeout).await;
        misses = if health == Health::Silent { misses + 1 } else { 0 };
        if misses >= rules.misses {
            return Blame::Hung { misses };
        }
        if last.as_ref() != Some(&health) {
            match &health {
                Health::Ready => report.tell(News::Ready),
                Health::NotReady { phase, progress } => {
                    report.tell(News::NotReady { phase: phase.clone(), progress: *progress });
                }
                // One miss is not news; a request that meets it fails over by itself.
                Health::Silent => {}
            }
        }
        let settled = health == Health::Ready;
        // After a miss the state is told again, so that a listener never keeps what is no longer known.
        last = (health != Health::Silent).then_some(health);
        sleep(if settled { rules.interval } else { STARTING_INTERVAL.min(rules.interval) }).await;
    }
}

async fn wait_for_address(leader: Pid, rules: &Rules, state_file: &Path) -> Option<SocketAddr> {
    let deadline = Instant::now() + rules.bind;
    loop {
        // Who writes there need not be ours: a worker may have outlived an earlier router.
        if let Some(state) = state_file::read(state_file)
            && state.is_in_group(leader)
        {
            return Some(state.address);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(STARTING_INTERVAL).await;
    }
}
