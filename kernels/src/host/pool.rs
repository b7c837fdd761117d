//! Threads that share one call's work.
//!
//! Owns [`Pool`]: the caller and `threads - 1` helpers take jobs from one counter until none is left. Helpers spin for
//! [`SPIN`] between calls, because a layer's calls follow each other within microseconds, and sleep after that. A helper
//! that the system does not let run joins late or not at all and nobody waits for it: only for jobs that were begun.
//! A job's panic is the caller's panic, after the other jobs have ended. A call within a job, or beside another call, is
//! done by its caller alone.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long a thread looks for work, or for the end of it, before it sleeps.
pub const SPIN: Duration = Duration::from_micros(20);

/// A fixed number of threads.
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// Held by the call whose work the helpers see.
    calling: Mutex<()>,
}

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Upper half: number of the call, odd while it takes helpers in. Lower half: helpers inside.
    gate: AtomicU64,
    /// The next job to take.
    next: AtomicUsize,
    /// The call's work. Written while the gate is shut and no helper inside; read inside.
    work: UnsafeCell<Option<(Job, usize)>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Which helpers sleep.
    asleep: Vec<AtomicBool>,
    /// The caller, while it sleeps until the helpers are out.
    waiting: Mutex<Option<Thread>>,
    stop: AtomicBool,
}

// SAFETY: `work` is guarded by `gate` as said above, and what it points at is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

const CALL: u64 = 1 << 32;
const INSIDE: u64 = CALL - 1;

fn open(gate: u64) -> bool {
    gate & CALL != 0
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] counted as one.
    ///
    /// # Panics
    ///
    /// If the system starts no more threads.
    pub fn new(threads: usize) -> Self {
        let helpers = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            work: UnsafeCell::new(None),
            panic: Mutex::new(None),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            waiting: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let helpers = (0..helpers)
            .map(|helper| {
                let shared = Arc::clone(&shared);
                thread::Builder::new()
                    .name(format!("kernels-{}", helper + 1))
                    .spawn(move || shared.help(helper))
                    .expect("the system starts a thread")
            })
            .collect();
        Self { shared, helpers, calling: Mutex::new(()) }
    }

    /// Threads at work in a call.
    pub fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `job(0)` to `job(jobs - 1)`, each once, on any of the threads, and returns when all have ended.
    ///
    /// # Panics
    ///
    /// With the first panic of a job. The jobs that had not begun by then are left out.
    pub fn run(&self, jobs: usize, job: &(dyn Fn(usize) + Sync)) {
        let calling = match self.calling.try_lock() {
            Ok(calling) => Some(calling),
            Err(TryLockError::Poisoned(calling)) => Some(calling.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        if calling.is_none() || jobs <= 1 || self.helpers.is_empty() {
            return (0..jobs).for_each(job);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. No helper holds the pointer after `shut` below, which returns first.
        let erased = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), Job>(job) };
        // SAFETY: the gate is shut and nobody inside: the last call's `shut` saw to it.
        unsafe { *shared.work.get() = Some((erased, jobs)) };
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.fetch_add(CALL, Ordering::SeqCst);
        for (asleep, helper) in shared.asleep.iter().zip(&self.helpers).take(jobs - 1) {
            if asleep.load(Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
        shared.take_jobs(job, jobs);
        shared.shut();
        drop(calling);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Shared {
    /// A helper's life.
    fn help(&self, helper: usize) {
        let mut seen = 0;
        while let Some(gate) = self.next_call(helper, seen) {
            seen = gate & !INSIDE;
            let inside = self.enter(seen);
            if !inside {
                continue;
            }
            // SAFETY: inside the gate the work does not change, and the caller waits for us to leave.
            if let Some((job, jobs)) = unsafe { *self.work.get() } {
                // SAFETY: as above, the caller's closure lives until `shut` returns.
                self.take_jobs(unsafe { &*job }, jobs);
            }
            let left = self.gate.fetch_sub(1, Ordering::SeqCst) - 1;
            if !open(left) && left & INSIDE == 0 {
                let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).take();
                if let Some(caller) = waiting {
                    caller.unpark();
                }
            }
        }
    }

    /// Counts this helper in, unless the call is over.
    fn enter(&self, call: u64) -> bool {
        let mut gate = self.gate.load(Ordering::SeqCst);
        while gate & !INSIDE == call {
            match self.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Waits for an open call other than `seen`; `None` when the pool is dropped.
    fn next_call(&self, helper: usize, seen: u64) -> Option<u64> {
        let ready = || {
            let gate = self.gate.load(Ordering::SeqCst);
            (open(gate) && gate & !INSIDE != seen).then_some(gate)
        };
        let asleep = &self.asleep[helper];
        loop {
            if let Some(gate) = spin_for(ready) {
                return Some(gate);
            }
            asleep.store(true, Ordering::SeqCst);
            // The caller opens the gate and then looks for sleepers; we say that we sleep and then look at the gate.
            while ready().is_none() && !self.stop.load(Ordering::SeqCst) {
                thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
        }
    }

    /// Takes jobs until there are none. A panic ends the call's jobs and is kept.
    fn take_jobs(&self, job: &(dyn Fn(usize) + Sync), jobs: usize) {
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let next = self.next.fetch_add(1, Ordering::Relaxed);
                if next >= jobs {
                    return;
                }
                job(next);
            }
        }));
        if let Err(panic) = result {
            self.next.store(jobs, Ordering::Relaxed);
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }

    /// Lets no more helpers in and waits until all are out.
    fn shut(&self) {
        let out = || (self.gate.load(Ordering::SeqCst) & INSIDE == 0).then_some(());
        self.gate.fetch_add(CALL, Ordering::SeqCst);
        while spin_for(out).is_none() {
            *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
            // The last one out may have looked for us before we said so: then it is out by now.
            if out().is_none() {
                thread::park_timeout(Duration::from_millis(1));
            }
        }
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Looks again and again for [`SPIN`].
fn spin_for<T>(mut ready: impl FnMut() -> Option<T>) -> Option<T> {
    let mut started = None;
    loop {
        for _ in 0..64 {
            if let Some(found) = ready() {
                return Some(found);
            }
            std::hint::spin_loop();
        }
        if started.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return None;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // A helper's panics were caught job by job.
            let _ = helper.join();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("gate", &self.gate).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::{Pool, SPIN};

    #[test]
    fn every_job_runs_once() {
        for threads in 1..5 {
            let pool = Pool::new(threads);
            for jobs in (0..40).chain([1000]) {
                let runs: Vec<AtomicUsize> = (0..jobs).map(|_| AtomicUsize::new(0)).collect();
                pool.run(jobs, &|job| {
                    runs[job].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    runs.iter().all(|runs| runs.load(Ordering::Relaxed) == 1),
                    "{threads} {jobs}"
                );
            }
        }
    }

    #[test]
    fn helpers_wake_from_sleep() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        for round in 0..20 {
            // Long enough for the helpers to have gone to sleep.
            let started = std::time::Instant::now();
            while started.elapsed() < SPIN * 20 {
                std::thread::yield_now();
            }
            pool.run(16, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.load(Ordering::Relaxed), 16 * (round + 1));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = Pool::new(4);
        for round in 0..50 {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                pool.run(64, &|job| assert!(job != round, "job {job} failed"));
            }));
            let message = panic.unwrap_err().downcast::<String>().unwrap();
            assert_eq!(*message, format!("job {round} failed"));
            let count = AtomicUsize::new(0);
            pool.run(64, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 64);
        }
    }

    #[test]
    fn calls_within_and_beside_a_call_are_done() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(4, &|_| {
                            pool.run(4, &|_| {
                                count.fetch_add(1, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 3 * 200 * 16);
    }
}
