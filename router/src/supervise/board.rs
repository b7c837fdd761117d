//! What is known of the fleet, for those who only read: the data path's view, and the operators' status.
//!
//! Owns both publications. Keepers write, everybody else reads the last state without waiting.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use http::{HeaderValue, Uri};
use sanctum_shared::instance::{Backend, BackendKind, Instance};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::fleet::{BackendState, BackendView, FleetView};

/// What operators see of one worker.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Its process, if one runs.
    pub pid: Option<u32>,
    /// Where it listens.
    pub address: Option<SocketAddr>,
    /// What it says it is doing while it is not ready.
    pub phase: Option<String>,
    /// How far it is with that, 0 to 1.
    pub progress: Option<f64>,
    /// When the running process was started, in Unix seconds.
    pub started_unix: Option<u64>,
    /// Starts after the first.
    pub restarts: u64,
    /// How the last process that ended did so.
    pub last_exit: Option<LastExit>,
    /// When it will be started again, in Unix seconds with fraction, if it waits for that.
    pub next_start_unix: Option<f64>,
}

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastExit {
    /// In words.
    pub reason: String,
    /// Unix seconds.
    pub at_unix: u64,
}

/// Both publications of one fleet.
#[derive(Debug)]
pub(super) struct Board {
    views: watch::Sender<Arc<Vec<BackendView>>>,
    statuses: Vec<watch::Sender<WorkerStatus>>,
}

impl Board {
    /// The board at start: workers not started yet, URLs ready if their key is there.
    pub(super) fn new(instance: &Instance, variable: impl Fn(&str) -> Option<String>) -> Self {
        let views = instance.backends.iter().map(|backend| first_view(backend, &variable));
        Self {
            views: watch::Sender::new(Arc::new(views.collect())),
            statuses: instance.backends.iter().map(|_| watch::Sender::default()).collect(),
        }
    }

    pub(super) fn view(&self) -> FleetView {
        FleetView::new(self.views.subscribe())
    }

    pub(super) fn status(&self, index: usize) -> WorkerStatus {
        self.statuses.get(index).map(|status| status.borrow().clone()).unwrap_or_default()
    }

    /// Publishes a worker's state, and where it is to be reached in it.
    pub(super) fn set(&self, index: usize, state: BackendState, address: Option<SocketAddr>) {
        self.views.send_if_modified(|views| {
            let Some(view) = views.get(index) else { return false };
            let primary = address.and_then(base_url);
            if view.state == state && view.primary == primary {
                return false;
            }
            let mut changed = views.as_ref().clone();
            changed[index].state = state;
            changed[index].primary = primary;
            *views = Arc::new(changed);
            true
        });
    }

    pub(super) fn note(&self, index: usize, change: impl FnOnce(&mut WorkerStatus)) {
        if let Some(status) = self.statuses.get(index) {
            status.send_modify(change);
        }
    }
}

fn base_url(address: SocketAddr) -> Option<Uri> {
    // A socket address is always a valid authority.
    Uri::builder().scheme("http").authority(address.to_string()).path_and_query("/v1").build().ok()
}

fn first_view(backend: &Backend, variable: &impl Fn(&str) -> Option<String>) -> BackendView {
    let view = BackendView {
        name: Arc::from(backend.name.as_str()),
        primary: None,
        fallbacks: backend.fallback_urls.clone(),
        model: None,
        authorization: None,
        state: BackendState::Starting,
    };
    match &backend.kind {
        BackendKind::Worker(worker) => {
            BackendView { model: Some(Arc::from(worker.model.name.as_str())), ..view }
        }
        BackendKind::Remote(remote) => {
            let authorization = remote.api_key_env.as_ref().map(|name| bearer(variable(name)));
            let state = match (&remote.api_key_env, &authorization) {
                (Some(variable), Some(None)) => {
                    BackendState::NotConfigured { variable: variable.clone() }
                }
                _ => BackendState::Ready,
            };
            BackendView {
                primary: Some(remote.url.clone()),
                model: remote.model.as_deref().map(Arc::from),
                authorization: authorization.flatten(),
                state,
                ..view
            }
        }
    }
}

/// The header for a key; an empty key, or one that no header can hold, counts as none.
fn bearer(key: Option<String>) -> Option<HeaderValue> {
    let key = key?;
    let key = key.trim();
    if key.is_empty() {
        return None;
    }
    let mut value = HeaderValue::try_from(format!("Bearer {key}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Seconds since 1970, for people who read a status.
pub(super) fn unix_now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn instance() -> Instance {
        let text = "
models: { small: { path: m } }
backends:
  near: { worker: { model: small }, fallback_urls: ['http://127.0.0.1:7/v1'] }
  far: { url: 'https://far.example/v1', model: big, api_key_env: FAR_KEY }
seats: { a: { backends: [near, far] } }
";
        Instance::parse(text, Path::new("i.yaml")).expect("a valid file")
    }

    #[test]
    fn a_url_without_its_key_is_not_configured() {
        for key in [None, Some(" "), Some("a\nb")] {
            let board = Board::new(&instance(), |_| key.map(str::to_owned));
            let view = board.view().now();
            let variable = "FAR_KEY".to_owned();
            assert_eq!(view[1].state, BackendState::NotConfigured { variable }, "{key:?}");
        }
        let board = Board::new(&instance(), |name| (name == "FAR_KEY").then(|| "k".to_owned()));
        let view = board.view().now();
        assert_eq!(view[1].state, BackendState::Ready);
        let header = view[1].authorization.as_ref().expect("the key");
        assert_eq!(header, "Bearer k");
        assert!(header.is_sensitive());
    }

    #[test]
    fn a_worker_appears_with_its_address() {
        let board = Board::new(&instance(), |_| None);
        let reader = board.view();
        assert_eq!(reader.now()[0].state, BackendState::Starting);
        board.set(0, BackendState::Ready, Some(SocketAddr::from(([127, 0, 0, 1], 4000))));
        let view = &reader.now()[0];
        assert_eq!(view.state, BackendState::Ready);
        assert_eq!(
            view.primary.as_ref().map(Uri::to_string).as_deref(),
            Some("http://127.0.0.1:4000/v1")
        );
        assert_eq!(view.model.as_deref(), Some("small"));
    }
}
