//! The loop with a model that counts upwards, and that waits, fails, panics or goes mad when told to.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use super::*;

mod checkpoint;

const VOCAB: usize = 10;
const CONTEXT: usize = 1000;
/// Longer than any machine needs; a test that reaches it has failed.
const DEADLINE: Duration = Duration::from_secs(20);

/// What a step must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Do {
    Count,
    Fail,
    Panic,
    Nan,
}

/// After token `t` comes `t + 1`, modulo the vocabulary. A state is the tokens seen.
struct Counting {
    /// One permission a step, if steps are to wait.
    gate: Option<mpsc::Receiver<Do>>,
    /// The rows of every step's sequences.
    steps: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl StepModel for Counting {
    type Cache = Vec<u32>;

    fn new_cache(&self) -> Vec<u32> {
        Vec::new()
    }

    fn cache_bytes(cache: &Vec<u32>) -> u64 {
        cache.len() as u64
    }

    fn step(
        &self,
        ids: &[u32],
        sequences: &mut [(Range<usize>, &mut Vec<u32>)],
        wanted: &[u32],
    ) -> Result<Vec<f32>, String> {
        let order = match &self.gate {
            Some(gate) => gate.recv().map_err(|_| "the test has ended".to_owned())?,
            None => Do::Count,
        };
        let mut next = 0;
        for (rows, cache) in sequences.iter_mut() {
            assert_eq!(rows.start, next, "segments tile the rows");
            next = rows.end;
            cache.extend_from_slice(&ids[rows.clone()]);
        }
        assert_eq!(next, ids.len());
        let rows = sequences.iter().map(|(rows, _)| rows.len()).collect();
        self.steps.lock().expect("no panic inside").push(rows);
        match order {
            Do::Fail => Err("told to fail".to_owned()),
            Do::Panic => panic!("told to panic"),
            Do::Nan => Ok(vec![f32::NAN; wanted.len() * VOCAB]),
            Do::Count => {
                Ok(wanted.iter().flat_map(|&row| logits_after(ids[row as usize])).collect())
            }
        }
    }
}

fn logits_after(token: u32) -> Vec<f32> {
    let mut row = vec![0.0; VOCAB];
    row[(token as usize + 1) % VOCAB] = 5.0;
    row
}

fn info() -> ModelInfo {
    ModelInfo {
        id: "counting".to_owned(),
        model_type: "counting".to_owned(),
        vocab_size: VOCAB,
        context_length: CONTEXT,
        quantization: String::new(),
        eos_token_ids: vec![9],
        bos_token_id: None,
        weight_bytes: 0,
        kv_bytes_per_token: 1,
        unused_tensors: Vec::new(),
    }
}

/// An engine, the gate of its steps, and what they were.
struct Bench {
    engine: EngineHandle,
    gate: mpsc::Sender<Do>,
    steps: Arc<Mutex<Vec<Vec<usize>>>>,
}

impl Bench {
    /// An engine whose steps wait for `order` (the two of prewarming have had it).
    fn gated(options: &EngineOptions) -> Self {
        let (gate, orders) = mpsc::channel();
        let steps = Arc::<Mutex<Vec<Vec<usize>>>>::default();
        let model = Counting { gate: Some(orders), steps: Arc::clone(&steps) };
        gate.send(Do::Count).expect("the model is there");
        gate.send(Do::Count).expect("the model is there");
        let engine = start(options, on, move |_| Ok((model, info()))).expect("starts");
        steps.lock().expect("no panic inside").clear();
        Self { engine, gate, steps }
    }

    fn order(&self, order: Do) {
        self.gate.send(order).expect("the engine runs");
    }

    fn steps(&self) -> Vec<Vec<usize>> {
        self.steps.lock().expect("no panic inside").clone()
    }

    fn wait(&self, what: &str, met: impl Fn(&EngineSnapshot) -> bool) {
        let start = Instant::now();
        while !met(&self.engine.snapshot()) {
            assert!(start.elapsed() < DEADLINE, "never: {what}: {:?}", self.engine.snapshot());
            std::thread::yield_now();
        }
    }
}

/// Wants the load to go on.
fn on(_: Progress) -> std::ops::ControlFlow<()> {
    std::ops::ControlFlow::Continue(())
}

fn free(options: &EngineOptions) -> EngineHandle {
    let model = Counting { gate: None, steps: Arc::default() };
    start(options, on, move |_| Ok((model, info()))).expect("starts")
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest {
        id: "test".to_owned(),
        prompt,
        max_tokens,
        sampling: SamplingParams::greedy(),
        seed: 0,
        stop_tokens: Arc::from([9]),
        ignore_eos: false,
        top_logprobs: None,
    }
}

/// A stream's token ids and how it ended.
fn ids(stream: EventStream) -> (Vec<u32>, Result<Finish, EngineError>) {
    let (tokens, end) = collect(stream);
    (tokens.iter().map(|token| token.id).collect(), end)
}

/// A stream's tokens and how it ended.
fn collect(mut stream: EventStream) -> (Vec<TokenEvent>, Result<Finish, EngineError>) {
    let mut tokens = Vec::new();
    while let Some(event) = stream.next_blocking() {
        match event {
            Event::Started { .. } => assert!(tokens.is_empty()),
            Event::Token(token) => tokens.push(token),
            Event::Finished(finish) => return (tokens, Ok(finish)),
            Event::Failed(error) => return (tokens, Err(error)),
        }
    }
    panic!("a stream ended without saying how, after {tokens:?}");
}

#[test]
fn a_request_ends_at_its_stop_token_or_its_limit() {
    let engine = free(&EngineOptions::default());
    let (tokens, end) = ids(engine.submit(request(vec![1, 6], 50)).expect("accepted"));
    let finish = end.expect("finished");
    assert_eq!((tokens, finish.reason), (vec![7, 8], FinishReason::StopToken));
    assert_eq!((finish.timings.prompt_tokens, finish.timings.completion_tokens), (2, 3));

    let (tokens, end) = ids(engine.submit(request(vec![3], 2)).expect("accepted"));
    assert_eq!((tokens, end.expect("finished").reason), (vec![4, 5], FinishReason::Length));

    let through = GenerateRequest { ignore_eos: true, ..request(vec![7], 4) };
    assert_eq!(ids(engine.submit(through).expect("accepted")).0, [8, 9, 0, 1]);
}

#[test]
fn requests_decode_together_while_a_long_prompt_is_computed_in_chunks() {
    let options =
        EngineOptions { slots: 2, prefill_rows: 50, shared_rows: 11, ..EngineOptions::default() };
    let bench = Bench::gated(&options);
    let short = bench.engine.submit(request(vec![0], 6)).expect("accepted");
    bench.order(Do::Count);
    bench.wait("the short prompt is done", |s| s.decode_tokens == 1);
    let long = bench.engine.submit(request(vec![5; 35], 2)).expect("accepted");
    // The step that was waiting when the long one came, three shared chunks of 10 and one of 5, and the rest.
    (0..7).for_each(|_| bench.order(Do::Count));
    assert_eq!(ids(short).0, [1, 2, 3, 4, 5, 6]);
    assert_eq!(ids(long).0, [6, 7]);
    let steps = bench.steps();
    let chunked: Vec<&Vec<usize>> = steps.iter().filter(|rows| rows.len() == 2).collect();
    assert_eq!(chunked[..4], [&vec![1, 10], &vec![1, 10], &vec![1, 10], &vec![1, 5]], "{steps:?}");
}

#[test]
fn leaving_frees_the_slot_within_a_step() {
    let bench = Bench::gated(&EngineOptions { slots: 1, ..EngineOptions::default() });
    let left = bench.engine.submit(request(vec![0], 100)).expect("accepted");
    let waits = bench.engine.submit(request(vec![2], 1)).expect("accepted");
    bench.order(Do::Count);
    bench.wait("the first runs", |s| s.running == 1 && s.decode_tokens == 1);
    drop(left);
    // At most the step under way, then the second request's own.
    bench.order(Do::Count);
    bench.order(Do::Count);
    assert_eq!(ids(waits).0, [3]);
    bench.wait("both are gone", |s| s.running == 0 && s.cancelled == 1 && s.finished == 1);
}

#[test]
fn leaving_the_queue_frees_the_place() {
    let bench = Bench::gated(&EngineOptions { slots: 1, queue: 1, ..EngineOptions::default() });
    let _runs = bench.engine.submit(request(vec![0], 100)).expect("accepted");
    bench.wait("it runs", |s| s.waiting == 0);
    let waits = bench.engine.submit(request(vec![1], 1)).expect("accepted");
    let full = bench.engine.submit(request(vec![1], 1)).expect_err("the queue is full");
    assert_eq!(full, SubmitError::QueueFull { waiting: 1, retry_after_s: 2 });
    drop(waits);
    bench.order(Do::Count);
    bench.order(Do::Count);
    bench.wait("the place is free", |s| s.waiting == 0 && s.cancelled == 1);
}

#[test]
fn a_failed_step_takes_only_its_own_requests() {
    for (order, text) in [(Do::Fail, "told to fail"), (Do::Panic, "told to panic")] {
        let bench = Bench::gated(&EngineOptions { slots: 1, ..EngineOptions::default() });
        let struck = bench.engine.submit(request(vec![0], 5)).expect("accepted");
        let waits = bench.engine.submit(request(vec![2], 1)).expect("accepted");
        bench.order(order);
        let error = ids(struck).1.expect_err("its step failed");
        assert!(error.to_string().contains(text), "{error}");
        bench.order(Do::Count);
        assert_eq!(ids(waits).0, [3]);
        assert!(bench.engine.snapshot().healthy);
    }
}

#[test]
fn logits_that_are_not_numbers_fail_their_request() {
    let bench = Bench::gated(&EngineOptions::default());
    let struck = bench.engine.submit(request(vec![0], 5)).expect("accepted");
    bench.order(Do::Nan);
    assert_eq!(ids(struck).1, Err(EngineError::NotANumber { what: "NaN" }));
}

#[test]
fn an_engine_whose_trial_fails_too_ends() {
    let bench = Bench::gated(&EngineOptions::default());
    for _ in 0..3 {
        let struck = bench.engine.submit(request(vec![0], 5)).expect("accepted");
        bench.order(Do::Fail);
        ids(struck).1.expect_err("its step failed");
    }
    bench.order(Do::Nan);
    bench.wait("it is unhealthy", |s| !s.healthy);
    let refused = bench.engine.submit(request(vec![0], 5)).expect_err("no more work");
    assert_eq!(refused, SubmitError::Unhealthy);
    // Nobody told it to: that it closes is what ends the process.
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(async { tokio::time::timeout(DEADLINE, bench.engine.closed()).await })
        .expect("the thread ends");
}

#[test]
fn an_engine_whose_trial_succeeds_goes_on() {
    let bench = Bench::gated(&EngineOptions::default());
    for _ in 0..3 {
        let struck = bench.engine.submit(request(vec![0], 5)).expect("accepted");
        bench.order(Do::Fail);
        ids(struck).1.expect_err("its step failed");
    }
    // The trial takes two steps.
    (0..3).for_each(|_| bench.order(Do::Count));
    assert_eq!(ids(bench.engine.submit(request(vec![0], 1)).expect("accepted")).0, [1]);
    assert!(bench.engine.snapshot().healthy);
}

#[test]
fn what_cannot_be_served_is_refused_at_once() {
    let options = EngineOptions { kv_limit_bytes: 100, ..EngineOptions::default() };
    let engine = free(&options);
    let refusal = |prompt, max_tokens| {
        engine.submit(request(prompt, max_tokens)).expect_err("cannot be served")
    };
    assert_eq!(refusal(vec![], 1), SubmitError::Empty);
    assert_eq!(refusal(vec![1], 0), SubmitError::Empty);
    assert_eq!(refusal(vec![10], 1), SubmitError::UnknownToken { id: 10, vocab_size: VOCAB });
    // The context is what the memory holds, and everybody is told so.
    assert_eq!(engine.info().context_length, 100);
    let too_long = SubmitError::PromptTooLong { prompt: 50, max_tokens: 51, context: 100 };
    assert_eq!(refusal(vec![1; 50], 51), too_long);
    let whole = free(&EngineOptions::default());
    assert_eq!(whole.info().context_length, CONTEXT);
}

#[test]
fn memory_for_less_than_a_prompt_and_a_token_is_refused() {
    let options = EngineOptions { kv_limit_bytes: 1, ..EngineOptions::default() };
    let model = Counting { gate: None, steps: Arc::default() };
    let error = start(&options, on, move |_| Ok((model, info()))).expect_err("does not start");
    assert!(matches!(error, StartError::KvMemory { positions: 1 }), "{error}");
}

#[test]
fn requests_that_belong_together_are_queued_together() {
    let bench = Bench::gated(&EngineOptions { slots: 1, queue: 3, ..EngineOptions::default() });
    let _runs = bench.engine.submit(request(vec![0], 100)).expect("accepted");
    bench.wait("it runs", |s| s.waiting == 0);
    let several = |count| bench.engine.submit_all(vec![request(vec![1], 1); count]);
    let two = several(2).expect("accepted");
    assert!(matches!(several(2), Err(SubmitError::QueueFull { waiting: 2, .. })));
    assert_eq!(bench.engine.snapshot().waiting, 2, "nothing of the refused is left");
    assert_eq!(several(4).err(), Some(SubmitError::TooMany { requests: 4, limit: 3 }));
    assert_eq!(two.len(), 2);
}

#[test]
fn a_load_can_be_given_up() {
    let model = Counting { gate: None, steps: Arc::default() };
    let off = |_| std::ops::ControlFlow::Break(());
    let error = start(&EngineOptions::default(), off, move |_| Ok((model, info())));
    let error = error.expect_err("given up");
    assert!(matches!(error, StartError::Load(crate::load::LoadError::GivenUp)), "{error}");
}

#[test]
fn memory_that_is_promised_to_one_makes_another_wait() {
    let options = EngineOptions { kv_limit_bytes: 300, ..EngineOptions::default() };
    let bench = Bench::gated(&options);
    let first = bench.engine.submit(request(vec![0, 1], 6)).expect("accepted");
    let second = bench.engine.submit(request(vec![4], 2)).expect("accepted");
    bench.order(Do::Count);
    bench.wait("one runs", |s| s.decode_tokens == 1);
    assert_eq!(
        (bench.engine.snapshot().running, bench.engine.snapshot().kv_reserved_bytes),
        (1, 256)
    );
    (0..7).for_each(|_| bench.order(Do::Count));
    assert_eq!(ids(first).0.len(), 6);
    assert_eq!(ids(second).0, [5, 6]);
}

#[tokio::test]
async fn draining_finishes_what_was_accepted() {
    let bench = Bench::gated(&EngineOptions { slots: 1, ..EngineOptions::default() });
    let streams: Vec<EventStream> =
        (0..3).map(|i| bench.engine.submit(request(vec![i], 2)).expect("accepted")).collect();
    bench.engine.shutdown();
    assert_eq!(bench.engine.submit(request(vec![0], 1)).err(), Some(SubmitError::ShuttingDown));
    (0..6).for_each(|_| bench.order(Do::Count));
    for mut stream in streams {
        let mut last = None;
        while let Some(event) = stream.next().await {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::Finished(_))), "{last:?}");
    }
    tokio::time::timeout(DEADLINE, bench.engine.closed()).await.expect("the thread ends");
    assert!(!bench.engine.snapshot().healthy);
}

#[tokio::test]
async fn stopping_fails_what_was_accepted() {
    let bench = Bench::gated(&EngineOptions { slots: 1, ..EngineOptions::default() });
    let streams: Vec<EventStream> =
        (0..3).map(|i| bench.engine.submit(request(vec![i], 50)).expect("accepted")).collect();
    bench.engine.stop_now();
    bench.order(Do::Count);
    for mut stream in streams {
        let mut last = None;
        while let Some(event) = stream.next().await {
            last = Some(event);
        }
        assert!(matches!(last, Some(Event::Failed(EngineError::ShuttingDown))), "{last:?}");
    }
    tokio::time::timeout(DEADLINE, bench.engine.closed()).await.expect("the thread ends");
}

#[test]
fn a_model_that_cannot_compute_does_not_start() {
    let (gate, orders) = mpsc::channel();
    gate.send(Do::Nan).expect("the receiver is here");
    let model = Counting { gate: Some(orders), steps: Arc::default() };
    let error = start(&EngineOptions::default(), on, move |_| Ok((model, info())));
    let error = error.expect_err("does not start");
    assert!(error.to_string().contains("does not produce numbers"), "{error}");
}

#[test]
fn loading_tells_how_far_it_has_come() {
    let told = Arc::<Mutex<Vec<Progress>>>::default();
    let tell = Arc::clone(&told);
    let model = Counting { gate: None, steps: Arc::default() };
    let load = move |progress: &mut crate::load::LoadProgress<'_>| {
        assert!(progress(0.5).is_continue());
        Ok((model, info()))
    };
    let on_progress = move |p| {
        tell.lock().expect("no panic inside").push(p);
        std::ops::ControlFlow::Continue(())
    };
    let engine = start(&EngineOptions::default(), on_progress, load).expect("starts");
    let told = told.lock().expect("no panic inside").clone();
    assert_eq!(told[0], Progress { phase: Phase::Loading, fraction: 0.5 });
    assert_eq!(told.last(), Some(&Progress { phase: Phase::Prewarming, fraction: 1.0 }));
    assert_eq!(engine.info().id, "counting");
}

#[test]
fn sampled_streams_do_not_depend_on_company() {
    let engine = free(&EngineOptions { slots: 8, ..EngineOptions::default() });
    let sampled = |seed| GenerateRequest {
        sampling: SamplingParams { temperature: 3.0, ..SamplingParams::default() },
        seed,
        ignore_eos: true,
        ..request(vec![1, 2, 3], 40)
    };
    let alone: Vec<Vec<u32>> =
        (0..8).map(|seed| ids(engine.submit(sampled(seed)).expect("accepted")).0).collect();
    let together: Vec<EventStream> =
        (0..8).map(|seed| engine.submit(sampled(seed)).expect("accepted")).collect();
    let together: Vec<Vec<u32>> = together.into_iter().map(|stream| ids(stream).0).collect();
    assert_eq!(alone, together);
    assert!(alone.iter().collect::<BTreeSet<_>>().len() == 8, "seeds give different replies");
}
