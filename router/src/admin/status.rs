//! The status of an instance, as JSON for programs and for `sanctum status`.

use std::net::SocketAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use sanctum_shared::instance::Seat;
use serde::{Deserialize, Serialize};

use super::Admin;
use crate::supervise::{BackendStatus, State};

/// Everything an operator sees at a glance.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// The instance's name.
    pub name: String,
    /// The file it was read from.
    pub file: String,
    /// Version of the router.
    pub version: String,
    /// The router's process.
    pub pid: u32,
    /// Seconds since its start.
    pub uptime_s: u64,
    /// Where callers come in.
    pub listen: Vec<SocketAddr>,
    /// Seats, in the order of the file.
    pub seats: Vec<SeatStatus>,
    /// Backends, in the order of the file.
    pub backends: Vec<BackendStatus>,
}

/// One seat.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeatStatus {
    /// Its name.
    pub name: String,
    /// Who could answer now.
    pub state: SeatState,
    /// Its aliases.
    pub personas: Vec<String>,
    /// Who may answer, in order: `backend`, or `seat/backend` for those of a fallback seat.
    pub candidates: Vec<String>,
    /// The name of its second model.
    pub second_model: Option<String>,
}

/// Who could answer for a seat now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SeatState {
    /// A backend of its own.
    Ready,
    /// Only a fallback seat's.
    Fallback,
    /// Nobody.
    Down,
}

impl Status {
    pub(super) fn of(admin: &Admin) -> Self {
        let backends = admin.fleet.status();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            name: admin.instance.name.clone(),
            file: admin.instance.file.display().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_s: now.saturating_sub(admin.started_unix),
            listen: admin.listen.clone(),
            seats: admin.instance.seats.iter().map(|seat| seat_status(seat, &backends)).collect(),
            backends,
        }
    }
}

/// Whether a backend could answer: a worker that is down may still have URLs that stand in for it.
fn can_answer(backend: &BackendStatus) -> bool {
    match backend.state {
        State::Ready => true,
        State::NotConfigured => false,
        _ => !backend.fallback_urls.is_empty(),
    }
}

fn seat_status(seat: &Seat, backends: &[BackendStatus]) -> SeatStatus {
    let answers = |own: bool| {
        let wanted = seat.candidates.iter().filter(|c| (*c.seat == *seat.name) == own);
        let mut named = wanted.filter_map(|c| backends.iter().find(|b| b.name == c.backend.name));
        named.any(can_answer)
    };
    let state = match (answers(true), answers(false)) {
        (true, _) => SeatState::Ready,
        (false, true) => SeatState::Fallback,
        (false, false) => SeatState::Down,
    };
    let candidates = seat.candidates.iter().map(|candidate| {
        let backend = &candidate.backend.name;
        if *candidate.seat == *seat.name {
            backend.clone()
        } else {
            format!("{}/{backend}", candidate.seat)
        }
    });
    SeatStatus {
        name: seat.name.clone(),
        state,
        personas: seat.personas.clone(),
        candidates: candidates.collect(),
        second_model: seat.second_model.as_ref().map(|second| second.name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use sanctum_shared::instance::Instance;

    use crate::supervise::Kind;

    use super::*;

    fn backend(name: &str, state: State, fallback_urls: &[&str]) -> BackendStatus {
        BackendStatus {
            name: name.to_owned(),
            kind: Kind::Url,
            state,
            reason: None,
            model: None,
            url: None,
            fallback_urls: fallback_urls.iter().map(|url| (*url).to_owned()).collect(),
            worker: None,
        }
    }

    #[test]
    fn a_seat_says_who_stands_in_for_it() {
        let text = "
backends: { a: { url: 'http://h/v1' }, b: { url: 'http://i/v1' } }
seats: { one: { backends: [a], fallback: [two], personas: [p] }, two: { backends: [b] } }
";
        let instance = Instance::parse(text, Path::new("i.yaml")).expect("a valid file");
        let state = |a: BackendStatus, b: BackendStatus| seat_status(&instance.seats[0], &[a, b]);
        let down = || backend("a", State::Down, &[]);
        let seat = state(down(), backend("b", State::Ready, &[]));
        assert_eq!(
            (seat.state, seat.candidates),
            (SeatState::Fallback, vec!["a".into(), "two/b".into()])
        );
        assert_eq!(
            state(down(), backend("b", State::NotConfigured, &["http://x"])).state,
            SeatState::Down
        );
        assert_eq!(state(backend("a", State::Down, &["http://x"]), down()).state, SeatState::Ready);
        assert_eq!(state(backend("a", State::Ready, &[]), down()).state, SeatState::Ready);
    }
}
