//! Backends: connections to URLs, kept, reused and remembered.
//!
//! Owns sockets to backends, their pool, the memory of recent failures and the count of running requests. An exchange
//! is polled by the caller's own task ([`link`]): no task and no channel stand between a backend's byte and the
//! client's, and dropping the exchange closes the backend's connection.

mod cooldown;
pub(crate) mod failure;
mod link;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::Instant;

use failure::Failure;
use link::Idle;
pub(crate) use link::Reply;

/// Everything behind the router.
#[derive(Debug)]
pub(crate) struct Backends {
    connector: HttpsConnector<HttpConnector>,
    connect_timeout: Duration,
    upstreams: Mutex<HashMap<Key, Arc<Upstream>>>,
    loads: Vec<Arc<AtomicUsize>>,
}

/// A URL and the model asked for there: one server may be well with one model and not with another.
type Key = (Uri, Option<Arc<str>>);

/// One URL, for one model.
#[derive(Debug)]
pub(crate) struct Upstream {
    url: Uri,
    host: HeaderValue,
    /// Path of the base URL without a trailing slash; `/v1` if it has none.
    base: String,
    idle: Mutex<Vec<Idle>>,
    cooldown: Mutex<cooldown::Cooldown>,
}

/// A request counted among those that a backend runs.
#[derive(Debug)]
pub(crate) struct Load(Arc<AtomicUsize>);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Backends {
    /// # Errors
    /// When the TLS library refuses its own defaults.
    pub(crate) fn new(backends: usize, connect_timeout: Duration) -> Result<Self, rustls::Error> {
        let mut http = HttpConnector::new();
        http.set_nodelay(true);
        http.enforce_http(false);
        let provider = rustls::crypto::ring::default_provider;
        // The system's own roots know private authorities; a bare container has none.
        let native = HttpsConnectorBuilder::new().with_provider_and_native_roots(provider());
        let builder = match native {
            Ok(builder) => builder,
            Err(_) => HttpsConnectorBuilder::new().with_provider_and_webpki_roots(provider())?,
        };
        let connector = builder.https_or_http().enable_http1().wrap_connector(http);
        let loads = (0..backends).map(|_| Arc::default()).collect();
        Ok(Self { connector, connect_timeout, upstreams: Mutex::default(), loads })
    }

    /// The memory and the pool of a URL, for `model` there.
    pub(crate) fn upstream(&self, url: &Uri, model: Option<&Arc<str>>) -> Arc<Upstream> {
        let key = (url.clone(), model.cloned());
        let mut upstreams = lock(&self.upstreams);
        upstreams.entry(key).or_insert_with(|| Arc::new(Upstream::new(url.clone()))).clone()
    }

    /// Whether a URL failed a moment ago, with `model`.
    pub(crate) fn cooling(&self, url: &Uri, model: Option<&Arc<str>>) -> bool {
        let upstreams = lock(&self.upstreams);
        let upstream = upstreams.get(&(url.clone(), model.cloned()));
        upstream.is_some_and(|upstream| upstream.pause().is_some())
    }

    /// Running requests of a backend.
    pub(crate) fn load(&self, backend: usize) -> usize {
        self.loads.get(backend).map_or(0, |load| load.load(Ordering::Relaxed))
    }

    /// Counts a request to `backend` until the result is dropped.
    pub(crate) fn begin(&self, backend: usize) -> Option<Load> {
        let load = self.loads.get(backend)?;
        load.fetch_add(1, Ordering::Relaxed);
        Some(Load(load.clone()))
    }

    /// Forgets URLs that `keep` refuses (a restarted worker has a new port) and closes connections unused for long.
    pub(crate) fn tidy(&self, keep: impl Fn(&Uri) -> bool) {
        let mut upstreams = lock(&self.upstreams);
        upstreams.retain(|(url, _), upstream| {
            upstream.close_unused();
            keep(url) || Arc::strong_count(upstream) > 1
        });
    }
}

impl Upstream {
    fn new(url: Uri) -> Self {
        let authority = url.authority().map_or("", |authority| authority.as_str());
        let host = authority.rsplit('@').next().unwrap_or_default();
        // A URI's authority is visible ASCII, hence a header value.
        let host = HeaderValue::from_str(host).unwrap_or_else(|_| HeaderValue::from_static(""));
        let path = url.path().trim_end_matches('/');
        let base = if path.is_empty() { "/v1".to_owned() } else { path.to_owned() };
        Self { url, host, base, idle: Mutex::default(), cooldown: Mutex::default() }
    }

    /// The request target for an endpoint's `path`.
    pub(crate) fn target(&self, path: &str, query: Option<&str>) -> Uri {
        let mut target = String::with_capacity(self.base.len() + path.len());
        target.push_str(&self.base);
        target.push_str(path);
        if let Some(query) = query {
            target.push('?');
            target.push_str(query);
        }
        PathAndQuery::try_from(target).map_or_else(|_| Uri::from_static("/"), Uri::from)
    }

    /// Whether this is the server of `url`: same scheme, name and port.
    pub(crate) fn is_server_of(&self, url: &Uri) -> bool {
        self.url.scheme() == url.scheme() && self.url.authority() == url.authority()
    }

    pub(crate) fn host(&self) -> HeaderValue {
        self.host.clone()
    }

    /// How much longer it should be left alone.
    pub(crate) fn pause(&self) -> Option<Duration> {
        lock(&self.cooldown).remaining(Instant::now())
    }

    pub(crate) fn failed(&self, failure: &Failure) {
        lock(&self.cooldown).failed(failure.blame(), Instant::now());
        if failure.before_sending() {
            // The others of the pool lead to the same dead end.
            lock(&self.idle).clear();
        }
    }

    pub(crate) fn succeeded(&self) {
        lock(&self.cooldown).succeeded();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_its_scheme_name_and_port() {
        let upstream = Upstream::new(Uri::from_static("https://api.example.com/v1"));
        for (url, same) in [
            ("https://API.example.com/other", true),
            ("http://api.example.com/v1", false),
            ("https://api.example.com:8443/v1", false),
            ("https://api.example.com.evil.net/v1", false),
        ] {
            assert_eq!(upstream.is_server_of(&Uri::from_static(url)), same, "{url}");
        }
    }
}
