//! Keeps one backend's worker running: starts it, starts it again, replaces it, parks it, ends it.
//!
//! Owns the processes of one backend: the one that serves, at most one that is to follow it, and those that are
//! leaving. Whether and when to start again is `policy`'s decision; what requests see is `board`'s.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sanctum_shared::instance::Health as Rules;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval, sleep_until};

use super::board::{Board, LastExit, unix_now};
use super::ending::{Blame, Ending};
use super::launch::{Launch, LaunchError};
use super::order::{Order, RestartError, Restarted};
use super::policy::{Action, Event, Policy, Verdict};
use super::process::{News, Process, Report};
use super::{events, logfile, memory, state_file};
use crate::fleet::BackendState;

/// Time between two looks at the size of a worker's log.
const LOG_LOOK: Duration = Duration::from_secs(10);

/// Everything a keeper is made of.
pub(super) struct Parts {
    pub(super) index: usize,
    pub(super) backend: String,
    pub(super) launch: Launch,
    pub(super) rules: Rules,
    pub(super) drain: Duration,
    /// How long a restart may take until the new worker is ready.
    pub(super) takeover: Duration,
    pub(super) policy: Policy,
    pub(super) board: Arc<Board>,
    pub(super) state_dir: PathBuf,
    /// Uniform in 0..1.
    pub(super) chance: fn() -> f64,
}

type Reply = oneshot::Sender<Result<Restarted, RestartError>>;

pub(super) struct Keeper {
    parts: Parts,
    orders: mpsc::UnboundedReceiver<Order>,
    news: mpsc::UnboundedReceiver<Report>,
    reporter: mpsc::UnboundedSender<Report>,
    generation: u64,
    /// The process that serves, or is about to.
    current: Option<(Process, Instant)>,
    /// A process that takes over once it is ready.
    successor: Option<(Process, Instant)>,
    /// Processes that were told to stop.
    leaving: Vec<Process>,
    /// Who waits for the restart that runs, and until when.
    waiting: Option<(Reply, Instant)>,
    start_at: Option<Instant>,
    stopping: bool,
}

impl Keeper {
    pub(super) fn new(parts: Parts, orders: mpsc::UnboundedReceiver<Order>) -> Self {
        let (reporter, news) = mpsc::unbounded_channel();
        Self {
            parts,
            orders,
            news,
            reporter,
            generation: 0,
            current: None,
            successor: None,
            leaving: Vec::new(),
            waiting: None,
            start_at: None,
            stopping: false,
        }
    }

    /// Runs until it was told to stop and the last process is gone.
    pub(super) async fn run(mut self) {
        self.start();
        let mut log_look = interval(LOG_LOOK);
        log_look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !(self.stopping && self.is_empty()) {
            let start_at = self.start_at.unwrap_or_else(Instant::now).into();
            let give_up_at = self.waiting.as_ref().map_or_else(Instant::now, |(_, at)| *at).into();
            tokio::select! {
                biased;
                Some((generation, news)) = self.news.recv() => self.hear(generation, news),
                order = self.orders.recv() => self.obey(order.unwrap_or(Order::Kill)),
                () = sleep_until(start_at), if self.start_at.is_some() => self.start(),
                () = sleep_until(give_up_at), if self.waiting.is_some() => self.give_up(),
                _ = log_look.tick() => self.look_at_log(),
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.current.is_none() && self.successor.is_none() && self.leaving.is_empty()
    }

    fn hear(&mut self, generation: u64, news: News) {
        let is = |slot: &Option<(Process, Instant)>| {
            slot.as_ref().is_some_and(|(process, _)| process.generation == generation)
        };
        if is(&self.current) {
            self.hear_current(news);
        } else if is(&self.successor) {
            self.hear_successor(news);
        } else if let News::Ended(ending) = news {
            self.leaving.retain(|process| process.generation != generation);
            self.report_end(generation, &ending, false);
        }
    }

    fn hear_current(&mut self, news: News) {
        let Some((process, started)) = &mut self.current else { return };
        if process.asked && !matches!(news, News::Ended(_)) {
            // Told before the order reached it: what is about to end must not look ready again.
            return;
        }
        let Parts { index, backend, board, policy, .. } = &mut self.parts;
        match news {
            News::Listening(address) => {
                process.address = Some(address);
                board.note(*index, |status| status.address = Some(address));
            }
            News::Ready => {
                if std::mem::replace(&mut process.ready, true) {
                    return;
                }
                let (pid, after) = (process.pid, started.elapsed());
                policy.step(Event::Ready, Instant::now(), 0.0);
                board.set(*index, BackendState::Ready, process.address);
                board.note(*index, |status| {
                    status.phase = None;
                    status.progress = None;
                });
                events::Ready { backend, pid, after }.emit();
                if let Some((reply, _)) = self.waiting.take() {
                    // Whoever asked may have left; the restart is done all the same.
                    let _ = reply.send(Ok(Restarted { pid, seamless: false }));
                }
            }
            News::NotReady { phase, progress } => {
                let doing = phase.clone().unwrap_or_else(|| "not ready".to_owned());
                board.note(*index, |status| {
                    status.phase = phase;
                    status.progress = progress;
                });
                if std::mem::take(&mut process.ready) {
                    events::NotReady { backend, phase: &doing }.emit();
                    let reason = format!("not ready: {doing}");
                    board.set(*index, BackendState::Down { reason }, process.address);
                }
            }
            News::Ended(ending) => {
                let generation = process.generation;
                self.current = None;
                self.lost(generation, &ending);
            }
        }
    }

    fn hear_successor(&mut self, news: News) {
        let Some((process, _)) = &mut self.successor else { return };
        match news {
            News::Listening(address) => process.address = Some(address),
            News::NotReady { .. } => {}
            News::Ready => self.promote(),
            News::Ended(ending) => {
                let generation = process.generation;
                self.successor = None;
                self.report_end(generation, &ending, false);
                self.refuse(&ending);
            }
        }
    }

    /// The successor takes over; the old process finishes what it has.
    fn promote(&mut self) {
        let Some((process, started)) = self.successor.take() else { return };
        let (pid, generation) = (process.pid, process.generation);
        self.note_start(&process);
        let old = self.current.replace((process, started));
        let reply = self.waiting.take();
        // Published before the old one is told anything: whoever looks now finds the new one.
        self.hear(generation, News::Ready);
        if let Some((mut old, _)) = old {
            old.retire(self.parts.drain);
            self.leaving.push(old);
        }
        if let Some((reply, _)) = reply {
            let _ = reply.send(Ok(Restarted { pid, seamless: true }));
        }
    }

    /// The serving process is gone.
    fn lost(&mut self, generation: u64, ending: &Ending) {
        self.report_end(generation, ending, true);
        let Parts { index, board, .. } = &self.parts;
        board.note(*index, |status| {
            status.pid = None;
            status.address = None;
            status.started_unix = None;
            status.phase = None;
            status.progress = None;
        });
        if self.stopping {
            let reason = "the router is stopping".to_owned();
            board.set(*index, BackendState::Down { reason }, None);
            return;
        }
        if *ending == Ending::Ours(Blame::Asked) {
            // Stopped so that another can be started in its place.
            self.start();
            return;
        }
        let (now, chance) = (Instant::now(), (self.parts.chance)());
        let action = self.parts.policy.step(ending.event(), now, chance);
        if let Some((next, started)) = self.successor.take() {
            // The one that was to follow it is on its way already.
            self.note_start(&next);
            self.current = Some((next, started));
            self.set_down(ending.to_string());
            return;
        }
        self.refuse(ending);
        self.act(action, ending);
    }

    fn act(&mut self, action: Action, ending: &Ending) {
        let backend = self.parts.backend.as_str();
        match action {
            Action::Keep => {}
            Action::StartAfter(delay) => {
                events::StartingAgain { backend, delay }.emit();
                self.start_at = Some(Instant::now() + delay);
                let at = unix_now() + delay.as_secs_f64();
                let note = |status: &mut super::WorkerStatus| status.next_start_unix = Some(at);
                self.parts.board.note(self.parts.index, note);
                self.set_down(ending.to_string());
            }
            Action::Park(verdict) => {
                let reason = match verdict {
                    Verdict::Hopeless => ending.to_string(),
                    Verdict::CrashLoop { failures } => {
                        format!("crash loop: {failures} failures, the last: it {ending}")
                    }
                };
                events::Parked { backend, reason: &reason }.emit();
                self.parts.board.set(self.parts.index, BackendState::Parked { reason }, None);
            }
        }
    }

    fn set_down(&self, reason: String) {
        self.parts.board.set(self.parts.index, BackendState::Down { reason }, None);
    }

    fn report_end(&self, generation: u64, ending: &Ending, served: bool) {
        let reason = ending.to_string();
        let backend = self.parts.backend.as_str();
        events::Ended { backend, generation, reason: &reason, label: ending.label(), served }
            .emit();
        let last = LastExit { reason, at_unix: unix_now() as u64 };
        self.parts.board.note(self.parts.index, |status| status.last_exit = Some(last));
    }

    /// Tells whoever waits for a restart that it failed.
    fn refuse(&mut self, ending: &Ending) {
        if let Some((reply, _)) = self.waiting.take() {
            let _ = reply.send(Err(RestartError::Failed { reason: ending.to_string() }));
        }
    }

    /// Starts the serving process.
    fn start(&mut self) {
        self.start_at = None;
        self.parts.board.note(self.parts.index, |status| status.next_start_unix = None);
        match self.spawn() {
            Ok(process) => {
                self.parts.board.set(self.parts.index, BackendState::Starting, None);
                self.note_start(&process);
                self.current = Some((process, Instant::now()));
            }
            Err(error) => self.lost(self.generation, &not_started(&error)),
        }
    }

    fn spawn(&mut self) -> Result<Process, LaunchError> {
        self.generation += 1;
        let parts = &self.parts;
        let file =
            state_file::path(&parts.state_dir, &parts.backend, std::process::id(), self.generation);
        let news = self.reporter.clone();
        let process = Process::start(&parts.launch, &parts.rules, file, self.generation, news)?;
        let (backend, pid) = (parts.backend.as_str(), process.pid);
        events::Started { backend, pid, generation: self.generation }.emit();
        Ok(process)
    }

    /// Notes that `process` is now the serving one.
    fn note_start(&self, process: &Process) {
        let restarts = self.generation.saturating_sub(1);
        self.parts.board.note(self.parts.index, |status| {
            status.pid = Some(process.pid);
            status.address = process.address;
            status.started_unix = Some(process.started_unix);
            status.restarts = restarts;
        });
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Restart(reply) if self.stopping => {
                let _ = reply.send(Err(RestartError::Stopping));
            }
            Order::Restart(reply) if self.waiting.is_some() => {
                let _ = reply.send(Err(RestartError::Busy));
            }
            Order::Restart(reply) => self.restart(reply),
            Order::Stop(drain) => self.stop(|process| process.stop(drain)),
            Order::Kill => self.stop(Process::kill),
        }
    }

    fn restart(&mut self, reply: Reply) {
        let now = Instant::now();
        self.waiting = Some((reply, now + self.parts.takeover));
        self.parts.policy.step(Event::Ordered, now, 0.0);
        let Some((process, _)) = &mut self.current else {
            self.start();
            return;
        };
        let can_overlap =
            self.parts.launch.worker.port == 0 && memory::has_room_for_another(process.pid);
        if !(can_overlap && process.ready) {
            // Requests go elsewhere while there is none.
            process.stop(self.parts.drain);
            self.set_down("restarting".to_owned());
            return;
        }
        match self.spawn() {
            Ok(successor) => self.successor = Some((successor, now)),
            Err(error) => self.refuse(&not_started(&error)),
        }
    }

    /// Whoever waits for a restart has waited long enough. A successor that is not ready by now goes, so that another
    /// can be tried; a worker that has nobody beside it may go on.
    fn give_up(&mut self) {
        let Some((reply, _)) = self.waiting.take() else { return };
        let kept = self.successor.is_some();
        if let Some((mut slow, _)) = self.successor.take() {
            slow.kill();
            self.leaving.push(slow);
        }
        let limit_s = self.parts.takeover.as_secs();
        tracing::warn!(backend = self.parts.backend, limit_s, kept, "gave up on a restart");
        let _ = reply.send(Err(RestartError::TooSlow { limit_s, kept }));
    }

    fn stop(&mut self, how: impl Fn(&mut Process)) {
        self.stopping = true;
        self.start_at = None;
        if let Some((reply, _)) = self.waiting.take() {
            let _ = reply.send(Err(RestartError::Stopping));
        }
        let slots = self.current.iter_mut().chain(&mut self.successor).map(|(process, _)| process);
        slots.chain(&mut self.leaving).for_each(how);
    }

    fn look_at_log(&self) {
        let log = &self.parts.launch.log;
        if let Err(error) = logfile::turn_over(log, logfile::LOG_BYTES) {
            tracing::warn!(log = %log.display(), %error, "cannot turn over a worker's log");
        }
    }
}

fn not_started(error: &LaunchError) -> Ending {
    let missing = matches!(error, LaunchError::Program { missing: true, .. });
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    let why = format!("was not started: {error}{}", cause.unwrap_or_default());
    Ending::NotStarted { why, missing }
}
