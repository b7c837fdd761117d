//! The engine as everyone else sees it: submit, watch, shut down. Cheap to clone, safe on any thread.
//!
//! A handle and an `Inbox` are the two ends of one queue. The engine's thread holds the inbox; a test that needs
//! no model may hold it instead (`EngineHandle::from_parts`) and answer by hand.
//! Refused here, before anything is queued: empty, over-long or out-of-vocabulary prompts, more requests at once
//! than the queue can ever take, a full queue, and everything after shutdown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use tokio::sync::{mpsc, watch};

use super::turn::KV_GROWTH_POSITIONS;
use super::{EngineError, EngineSnapshot, Event, GenerateRequest, ModelInfo};

/// Bounds of the advice given with `QueueFull`, in seconds (clients ignore less and give up on more).
const RETRY_AFTER_S: std::ops::RangeInclusive<u32> = 2..=120;

/// Why a request was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// As many requests wait as may.
    #[error("{waiting} requests are waiting already")]
    QueueFull {
        /// Requests waiting.
        waiting: usize,
        /// When a place is likely to be free, in seconds.
        retry_after_s: u32,
    },
    /// Prompt and completion do not fit the context.
    #[error("{prompt} prompt tokens and {max_tokens} to generate exceed the context of {context}")]
    PromptTooLong {
        /// Tokens in the prompt.
        prompt: usize,
        /// Tokens to generate.
        max_tokens: usize,
        /// Most tokens of both together.
        context: usize,
    },
    /// More requests at once than may ever wait.
    #[error("{requests} requests at once, at most {limit} may wait")]
    TooMany {
        /// Requests submitted together.
        requests: usize,
        /// Most that may wait.
        limit: usize,
    },
    /// Nothing to do: no prompt token, or nothing to generate.
    #[error("the prompt and max_tokens must not be empty")]
    Empty,
    /// A token the model does not have.
    #[error("token {id} is not one of the model's {vocab_size}")]
    UnknownToken {
        /// The token.
        id: u32,
        /// Tokens there are.
        vocab_size: usize,
    },
    /// Shutdown has begun.
    #[error("the worker is stopping")]
    ShuttingDown,
    /// The engine's thread has ended, or its steps keep failing.
    #[error("the engine is not healthy")]
    Unhealthy,
}

/// What the inbox receives.
#[derive(Debug)]
pub enum Command {
    /// Generate.
    Generate(Submission),
    /// Finish what runs and waits, then end.
    Drain,
    /// End now.
    Stop,
}

/// A request on its way to a slot, and where its events go.
#[derive(Debug)]
pub struct Submission {
    /// What is asked.
    pub request: GenerateRequest,
    /// Where the answer goes.
    pub events: EventSink,
    /// When it was submitted.
    pub submitted: Instant,
    /// Its place in the queue; dropping it frees the place.
    pub place: QueuePlace,
}

/// A place in the bounded queue, free again when dropped.
#[derive(Debug)]
pub struct QueuePlace(Arc<AtomicUsize>);

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The engine's end of an `EventStream`.
#[derive(Debug)]
pub struct EventSink(mpsc::UnboundedSender<Event>);

impl EventSink {
    /// Sends one event; false if the caller has left.
    pub fn send(&self, event: Event) -> bool {
        self.0.send(event).is_ok()
    }

    /// Whether the caller has left.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// A request's events, in order. Dropping it cancels the request within one step.
///
/// It never holds more than `max_tokens` events, so a slow reader needs no back-pressure here.
#[derive(Debug)]
pub struct EventStream(mpsc::UnboundedReceiver<Event>);

impl EventStream {
    /// The next event; `None` after the last one. `None` without a last one means that the engine's thread has
    /// died.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.recv().await
    }

    /// The next event, for callers outside an async runtime.
    pub fn next_blocking(&mut self) -> Option<Event> {
        self.0.blocking_recv()
    }
}

#[derive(Debug)]
struct Shared {
    info: ModelInfo,
    queue_limit: usize,
    fair_share: usize,
    commands: mpsc::UnboundedSender<Command>,
    waiting: Arc<AtomicUsize>,
    stopping: AtomicBool,
    snapshots: watch::Receiver<EngineSnapshot>,
}

/// The engine, from outside.
#[derive(Clone, Debug)]
pub struct EngineHandle(Arc<Shared>);

/// The engine's end of the queue.
#[derive(Debug)]
pub struct Inbox {
    commands: mpsc::UnboundedReceiver<Command>,
    snapshots: watch::Sender<EngineSnapshot>,
}

impl Inbox {
    /// The next command; `None` once every handle is gone.
    pub async fn next(&mut self) -> Option<Command> {
        self.commands.recv().await
    }

    /// Waits on this thread for the next command.
    pub fn next_blocking(&mut self) -> Option<Command> {
        self.commands.blocking_recv()
    }

    /// The next command if there is one now; `Err` once every handle is gone.
    pub fn try_next(&mut self) -> Result<Option<Command>, Disconnected> {
        match self.commands.try_recv() {
            Ok(command) => Ok(Some(command)),
            Err(mpsc::error::TryRecvError::Empty) => Ok(None),
            Err(mpsc::error::TryRecvError::Disconnected) => Err(Disconnected),
        }
    }

    /// Refuses everything further; what was accepted before still comes out of `try_next`.
    pub fn close(&mut self) {
        self.commands.close();
    }

    /// Makes a snapshot visible to every handle (`waiting` and `accepting` are the handles' own).
    pub fn publish(&self, snapshot: EngineSnapshot) {
        self.snapshots.send_replace(snapshot);
    }
}

/// Every handle is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disconnected;

impl EngineHandle {
    /// The two ends of a queue for a model of which these are the facts.
    #[must_use]
    pub fn from_parts(info: ModelInfo, initial: EngineSnapshot) -> (Self, Inbox) {
        let (commands, inbox) = mpsc::unbounded_channel();
        let (publish, snapshots) = watch::channel(initial);
        let shared = Shared {
            fair_share: fair_share(&info, &initial),
            info,
            queue_limit: initial.queue_limit,
            commands,
            waiting: Arc::default(),
            stopping: AtomicBool::new(false),
            snapshots,
        };
        (Self(Arc::new(shared)), Inbox { commands: inbox, snapshots: publish })
    }

    /// Queues a request.
    ///
    /// # Errors
    /// As `SubmitError` says; nothing was queued then.
    pub fn submit(&self, request: GenerateRequest) -> Result<EventStream, SubmitError> {
        self.check(&request)?;
        self.take_places(1)?;
        self.send(request)
    }

    /// Queues requests that belong together: all of them or none.
    ///
    /// # Errors
    /// As `SubmitError` says of any of them; nothing was queued then.
    pub fn submit_all(
        &self,
        requests: Vec<GenerateRequest>,
    ) -> Result<Vec<EventStream>, SubmitError> {
        requests.iter().try_for_each(|request| self.check(request))?;
        self.take_places(requests.len())?;
        // Sending fails only once the engine has ended: the streams of those sent before are dropped then.
        let sent: Vec<_> = requests.into_iter().map(|request| self.send(request)).collect();
        sent.into_iter().collect()
    }

    /// Sends a request for which a place has been taken.
    fn send(&self, request: GenerateRequest) -> Result<EventStream, SubmitError> {
        let place = QueuePlace(Arc::clone(&self.0.waiting));
        let (sink, stream) = mpsc::unbounded_channel();
        let submission =
            Submission { request, events: EventSink(sink), submitted: Instant::now(), place };
        self.0.commands.send(Command::Generate(submission)).map_err(|_| SubmitError::Unhealthy)?;
        Ok(EventStream(stream))
    }

    fn check(&self, request: &GenerateRequest) -> Result<(), SubmitError> {
        let shared = &*self.0;
        if shared.stopping.load(Ordering::Acquire) {
            return Err(SubmitError::ShuttingDown);
        }
        if !shared.snapshots.borrow().healthy {
            return Err(SubmitError::Unhealthy);
        }
        let (prompt, max_tokens) = (request.prompt.len(), request.max_tokens);
        if prompt == 0 || max_tokens == 0 {
            return Err(SubmitError::Empty);
        }
        let context = shared.info.context_length;
        let positions = prompt.saturating_add(max_tokens);
        if positions > context {
            return Err(SubmitError::PromptTooLong { prompt, max_tokens, context });
        }
        let vocab_size = shared.info.vocab_size;
        if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(SubmitError::UnknownToken { id, vocab_size });
        }
        Ok(())
    }

    /// Takes `count` places at once; every one becomes a `QueuePlace`, which gives it back.
    fn take_places(&self, count: usize) -> Result<(), SubmitError> {
        let shared = &*self.0;
        if count > shared.queue_limit {
            return Err(SubmitError::TooMany { requests: count, limit: shared.queue_limit });
        }
        shared
            .waiting
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n + count <= shared.queue_limit).then_some(n + count)
            })
            .map(|_| ())
            .map_err(|waiting| SubmitError::QueueFull {
                waiting,
                retry_after_s: self.retry_after_s(),
            })
    }

    /// Tokens of prompt and completion that a request may have for all slots to be taken at once.
    #[must_use]
    pub fn fair_share(&self) -> usize {
        self.0.fair_share
    }

    /// When the queue is likely to have moved, in whole seconds between 2 and 120.
    #[must_use]
    pub fn retry_after_s(&self) -> u32 {
        let snapshot = self.snapshot();
        let rounds = (snapshot.waiting as f32 + 1.0) / snapshot.slots.max(1) as f32;
        let seconds = (snapshot.mean_request_s * rounds).ceil();
        (seconds as u32).clamp(*RETRY_AFTER_S.start(), *RETRY_AFTER_S.end())
    }

    /// Facts about the model.
    #[must_use]
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// What the engine is doing; never waits for it.
    #[must_use]
    pub fn snapshot(&self) -> EngineSnapshot {
        let shared = &*self.0;
        let mut snapshot = *shared.snapshots.borrow();
        snapshot.waiting = shared.waiting.load(Ordering::Acquire);
        snapshot.accepting = !shared.stopping.load(Ordering::Acquire);
        snapshot.healthy &= !shared.commands.is_closed();
        snapshot
    }

    /// Refuses new requests, finishes those accepted, then ends the engine's thread.
    pub fn shutdown(&self) {
        self.0.stopping.store(true, Ordering::Release);
        // An engine that has ended already needs no telling.
        let _ = self.0.commands.send(Command::Drain);
    }

    /// Refuses new requests, fails those accepted with `EngineError::ShuttingDown`, then ends the thread.
    pub fn stop_now(&self) {
        self.0.stopping.store(true, Ordering::Release);
        let _ = self.0.commands.send(Command::Stop);
    }

    /// Completes when the engine has ended and the model is gone: closing the queue comes first, the inbox goes last.
    pub async fn closed(&self) {
        self.0.commands.closed().await;
        let mut snapshots = self.0.snapshots.clone();
        while snapshots.changed().await.is_ok() {}
    }

    /// [`stop_now`](Self::stop_now), then waits until the model is gone. For callers without a runtime.
    ///
    /// A process must not end before: MLX's destructors would run while its thread still computes.
    pub fn end(&self) {
        self.stop_now();
        let waiting = tokio::runtime::Builder::new_current_thread().build();
        waiting.expect("a runtime without drivers needs no resource").block_on(self.closed());
    }
}

/// An even part of the KV cache memory, in tokens and in whole steps of growth, within the context.
fn fair_share(info: &ModelInfo, initial: &EngineSnapshot) -> usize {
    let per_slot = initial.kv_limit_bytes / (initial.slots.max(1) as u64);
    let positions = per_slot.checked_div(info.kv_bytes_per_token).unwrap_or(u64::MAX);
    let positions = usize::try_from(positions).unwrap_or(usize::MAX);
    (positions / KV_GROWTH_POSITIONS * KV_GROWTH_POSITIONS).min(info.context_length)
}

impl Submission {
    /// Ends a request that never got a slot.
    pub fn fail(self, error: EngineError) {
        self.events.send(Event::Failed(error));
    }
}
