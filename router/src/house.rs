//! Everything that a request needs, made once from the instance.
//!
//! Owns the long-lived parts of the data path and what health and models answer from. It holds no request.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use sanctum_shared::instance::{BackendKind, Candidate, Instance, Limits, Timeouts};
use sanctum_shared::openai::json::JsonLimits;
use sanctum_shared::openai::models::{Model, list_json};

use crate::admission::BodyLimits;
use crate::backend::Backends;
use crate::fleet::FleetView;
use crate::route::{Routes, plan};

/// The data path's long-lived parts.
#[derive(Debug)]
pub(crate) struct House {
    pub(crate) routes: Routes,
    pub(crate) backends: Backends,
    pub(crate) fleet: FleetView,
    pub(crate) timeouts: Timeouts,
    pub(crate) body: BodyLimits,
    models: HashMap<String, Bytes>,
    models_list: Bytes,
    draining: AtomicBool,
}

impl House {
    /// `started_unix` is when names began to be served, in seconds.
    ///
    /// # Errors
    /// When the TLS library refuses its own defaults.
    pub(crate) fn new(
        instance: &Instance,
        fleet: FleetView,
        started_unix: u64,
    ) -> Result<Self, rustls::Error> {
        let models = models(instance, started_unix);
        Ok(Self {
            routes: Routes::new(instance),
            backends: Backends::new(instance.backends.len(), instance.timeouts.connect)?,
            fleet,
            timeouts: instance.timeouts.clone(),
            body: body_limits(&instance.limits),
            models_list: Bytes::from(list_json(&models)),
            models: models
                .iter()
                .map(|model| (model.id.clone(), Bytes::from(model.to_json())))
                .collect(),
            draining: AtomicBool::new(false),
        })
    }

    /// From now on `/readyz` sends new clients elsewhere.
    pub(crate) fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// The list of models, as JSON.
    pub(crate) fn models_list(&self) -> Bytes {
        self.models_list.clone()
    }

    /// One model, as JSON.
    pub(crate) fn model(&self, name: &str) -> Option<Bytes> {
        self.models.get(name).cloned()
    }

    /// Each seat, and whether somebody could answer for it now.
    pub(crate) fn seats(&self) -> Vec<(&str, bool)> {
        let views = self.fleet.now();
        let seats = self.routes.seats().iter();
        seats.map(|route| (&*route.seat.name, plan::served(&route.candidates, &views))).collect()
    }

    /// Closes connections that are not used and forgets URLs that are gone. To be called every few seconds.
    pub(crate) fn tidy(&self) {
        let views = self.fleet.now();
        self.backends.tidy(|url| {
            views
                .iter()
                .any(|view| view.primary.as_ref() == Some(url) || view.fallbacks.contains(url))
        });
    }
}

fn body_limits(limits: &Limits) -> BodyLimits {
    let json = JsonLimits { depth: limits.json_depth, ..JsonLimits::default() };
    BodyLimits { bytes: limits.body_bytes, json }
}

fn models(instance: &Instance, created: u64) -> Vec<Model> {
    let named = |name: &str| {
        let target = instance.target(name)?;
        Some(Model {
            id: name.to_owned(),
            created,
            owned_by: "sanctum".to_owned(),
            context_length: target.candidates.iter().find_map(context),
        })
    };
    instance.names().filter_map(named).collect()
}

fn context(candidate: &Candidate) -> Option<usize> {
    match &candidate.backend.kind {
        BackendKind::Worker(worker) => worker.context().map(|tokens| tokens as usize),
        BackendKind::Remote(_) => None,
    }
}
