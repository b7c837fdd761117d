//! From a name to an ordered list of URLs.
//!
//! Owns what each name means (seat, persona, second model) and, in [`plan`], who is asked first. It knows no socket:
//! the plan is a pure function of the fleet's view, of loads and of recent failures.

pub(crate) mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use sanctum_shared::instance::{Backend, BackendKind, Candidate, Instance, Seat};
use sanctum_shared::openai::error::ApiError;

use crate::admission::{Capacity, Gate, SeatText};

/// Slots of a worker that does not say how many it has.
const WORKER_SLOTS: usize = 8;
/// Waiting requests of a worker that does not say how many it takes.
const WORKER_QUEUE: usize = 32;
/// Requests that run at once on somebody else's server, and as many may wait.
const REMOTE_SLOTS: usize = 64;

/// A seat as the data path sees it.
#[derive(Debug)]
pub(crate) struct SeatDesk {
    pub(crate) name: Arc<str>,
    pub(crate) text: SeatText,
}

/// What one name means.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) seat: Arc<SeatDesk>,
    /// Slots and queue: one for the seat and its personas, one for its second model.
    pub(crate) gate: Arc<Gate>,
    pub(crate) candidates: Vec<Place>,
}

/// A backend that may answer, in the order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the backend in the instance and in the fleet's view.
    pub(crate) backend: usize,
    /// Requests it runs at once.
    pub(crate) slots: usize,
    /// Neighbours with the same number serve the same model on workers of ours: the load decides between them.
    pub(crate) equals: usize,
}

/// All names of an instance.
#[derive(Debug)]
pub(crate) struct Routes {
    names: HashMap<String, Arc<Route>>,
    seats: Vec<Arc<Route>>,
}

impl Routes {
    pub(crate) fn new(instance: &Instance) -> Self {
        let mut routes = Self { names: HashMap::new(), seats: Vec::new() };
        for seat in &instance.seats {
            routes.add(instance, seat);
        }
        routes
    }

    fn add(&mut self, instance: &Instance, seat: &Seat) {
        let desk = Arc::new(SeatDesk {
            name: seat.name.as_str().into(),
            text: SeatText::new(&seat.defaults, seat.system.as_deref()),
        });
        let route = |candidates: &[Candidate]| {
            Arc::new(Route {
                seat: desk.clone(),
                gate: Gate::new(capacity(&seat.name, candidates)),
                candidates: places(instance, candidates),
            })
        };
        let own = route(&seat.candidates);
        for name in std::iter::once(&seat.name).chain(&seat.personas) {
            self.names.insert(name.clone(), own.clone());
        }
        self.seats.push(own);
        if let Some(second) = &seat.second_model {
            self.names.insert(second.name.clone(), route(&second.candidates));
        }
    }

    /// What `model` means.
    ///
    /// # Errors
    /// 404 with the nearest name.
    pub(crate) fn find(&self, model: &str) -> Result<&Arc<Route>, ApiError> {
        self.names.get(model).ok_or_else(|| {
            let mut error = ApiError::model_not_found(model);
            if let Some(name) = self.nearest(model) {
                error.message.push_str(&format!(" Did you mean `{name}`?"));
            }
            error
        })
    }

    /// The routes of the seats themselves, in the order of the instance.
    pub(crate) fn seats(&self) -> &[Arc<Route>] {
        &self.seats
    }

    fn nearest(&self, model: &str) -> Option<&str> {
        // Long names are no slips of the pen, and comparing them is work.
        const NAME_BYTES: usize = 64;
        if model.len() > NAME_BYTES {
            return None;
        }
        let model = model.to_lowercase();
        self.names
            .keys()
            .map(|name| (strsim::osa_distance(&model, &name.to_lowercase()), name))
            .filter(|(slips, name)| *slips <= 1 + name.chars().count() / 5)
            .min()
            .map(|(_, name)| name.as_str())
    }
}

/// Slots and queue of a route: those of its own backends. Fallback seats have gates of their own for their own callers.
fn capacity(seat: &str, candidates: &[Candidate]) -> Capacity {
    let own = || candidates.iter().filter(|candidate| &*candidate.seat == seat);
    let (running, waiting) = own().fold((0, 0), |(running, waiting), candidate| {
        let queue = match &candidate.backend.kind {
            BackendKind::Worker(worker) => worker.queue.map_or(WORKER_QUEUE, |n| n as usize),
            BackendKind::Remote(_) => REMOTE_SLOTS,
        };
        (running + slots(&candidate.backend), waiting + queue)
    });
    Capacity { running: running.max(1), waiting }
}

fn slots(backend: &Backend) -> usize {
    match &backend.kind {
        BackendKind::Worker(worker) => worker.slots.map_or(WORKER_SLOTS, |n| n as usize).max(1),
        BackendKind::Remote(_) => REMOTE_SLOTS,
    }
}

fn places(instance: &Instance, candidates: &[Candidate]) -> Vec<Place> {
    let mut places = Vec::with_capacity(candidates.len());
    let mut equals = 0;
    let mut before: Option<&Candidate> = None;
    for candidate in candidates {
        let Some(backend) =
            instance.backends.iter().position(|b| Arc::ptr_eq(b, &candidate.backend))
        else {
            continue;
        };
        if !before.is_some_and(|before| alike(before, candidate)) {
            equals += 1;
        }
        before = Some(candidate);
        places.push(Place { backend, slots: slots(&candidate.backend), equals });
    }
    places
}

/// Two workers of ours, for the same seat, on the same model.
fn alike(a: &Candidate, b: &Candidate) -> bool {
    match (&a.backend.kind, &b.backend.kind) {
        (BackendKind::Worker(x), BackendKind::Worker(y)) => {
            a.seat == b.seat && x.model.name == y.model.name
        }
        _ => false,
    }
}
