//! Who is asked first: a pure function of what is known now.
//!
//! Owns the order. Within it a backend's own URL comes before its fallback URLs, and a seat's backends before those of
//! its fallback seats; load decides only between workers with the same model. URLs that failed a moment ago wait
//! behind the others, workers that are down behind those. What can never answer is left out.

use http::Uri;

use super::Place;
use crate::fleet::{BackendState, BackendView};

/// A URL to be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index of the backend in the fleet's view.
    pub(crate) backend: usize,
    pub(crate) url: Uri,
}

/// How ready a URL seems, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Good,
    /// It failed or asked for a pause a moment ago.
    Cooling,
    /// The worker behind it is said to be down, or not ready yet.
    Absent,
}

/// The URLs to ask, in order, none twice. `load` gives a backend's running requests; `cooling` tells whether
/// a URL failed a moment ago.
pub(crate) fn plan(
    places: &[Place],
    views: &[BackendView],
    load: impl Fn(usize) -> usize,
    cooling: impl Fn(&BackendView, &Uri) -> bool,
) -> Vec<Choice> {
    let mut places: Vec<&Place> = places.iter().collect();
    // Stable: with equal loads the order of the instance stands.
    places.sort_by_key(|place| (place.equals, load(place.backend) * 1000 / place.slots));
    let mut choices: Vec<(Standing, Choice)> = Vec::with_capacity(places.len());
    for place in places {
        let Some(view) = views.get(place.backend) else { continue };
        let own = match &view.state {
            BackendState::NotConfigured { .. } => continue,
            BackendState::Parked { .. } => None,
            BackendState::Ready => view.primary.as_ref().map(|url| (Standing::Good, url)),
            BackendState::Starting | BackendState::Down { .. } => {
                view.primary.as_ref().map(|url| (Standing::Absent, url))
            }
        };
        let fallbacks = view.fallbacks.iter().map(|url| (Standing::Good, url));
        for (standing, url) in own.into_iter().chain(fallbacks) {
            // One server may offer several models, each of them a backend.
            let same =
                |choice: &Choice| choice.url == *url && views[choice.backend].model == view.model;
            if choices.iter().any(|(_, choice)| same(choice)) {
                continue;
            }
            let standing =
                if cooling(view, url) { standing.max(Standing::Cooling) } else { standing };
            choices.push((standing, Choice { backend: place.backend, url: url.clone() }));
        }
    }
    choices.sort_by_key(|(standing, _)| *standing);
    choices.into_iter().map(|(_, choice)| choice).collect()
}

/// Whether a request would find anybody: some URL of some backend counts as ready.
pub(crate) fn served(places: &[Place], views: &[BackendView]) -> bool {
    places.iter().filter_map(|place| views.get(place.backend)).any(|view| match view.state {
        BackendState::NotConfigured { .. } => false,
        BackendState::Ready => view.primary.is_some() || !view.fallbacks.is_empty(),
        _ => !view.fallbacks.is_empty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(name: &str) -> Uri {
        format!("http://{name}/v1").parse().expect("a URL")
    }

    fn view(name: &str, state: BackendState, fallbacks: &[&str]) -> BackendView {
        BackendView {
            name: name.into(),
            primary: Some(url(name)),
            fallbacks: fallbacks.iter().map(|name| url(name)).collect(),
            model: None,
            authorization: None,
            state,
        }
    }

    fn down() -> BackendState {
        BackendState::Down { reason: "killed".into() }
    }

    fn places(equals: &[usize]) -> Vec<Place> {
        let place = |(backend, &equals)| Place { backend, slots: 2, equals };
        equals.iter().enumerate().map(place).collect()
    }

    fn hosts(choices: &[Choice]) -> Vec<&str> {
        choices.iter().map(|choice| choice.url.host().expect("a host")).collect()
    }

    #[test]
    fn own_url_then_fallback_urls_then_the_next_backend() {
        let views = [
            view("a", BackendState::Ready, &["x", "y"]),
            view("b", BackendState::Ready, &["x"]),
            view("c", BackendState::NotConfigured { variable: "K".into() }, &["z"]),
        ];
        let plan = |cooling: &[&str]| {
            let choices = plan(
                &places(&[1, 2, 3]),
                &views,
                |_| 0,
                |_, url| cooling.contains(&url.host().expect("a host")),
            );
            hosts(&choices).join("")
        };
        assert_eq!(plan(&[]), "axyb");
        assert_eq!(plan(&["a", "x"]), "ybax");
    }

    #[test]
    fn who_is_down_comes_last_and_who_is_parked_not_at_all() {
        let parked = BackendState::Parked { reason: "loop".into() };
        let views = [
            view("a", down(), &["x"]),
            view("b", parked, &["y"]),
            view("c", BackendState::Starting, &[]),
            view("d", BackendState::Ready, &[]),
        ];
        let choices = plan(&places(&[1, 2, 3, 4]), &views, |_| 0, |_, url| url.host() == Some("d"));
        assert_eq!(hosts(&choices).join(""), "xydac");
        assert!(served(&places(&[1]), &views) && !served(&places(&[1])[..0], &views));
        assert!(!served(&places(&[1, 2, 3])[2..], &views), "starting is not served yet");
    }

    #[test]
    fn one_url_may_offer_several_models() {
        let of = |model: &str| BackendView {
            model: Some(model.into()),
            ..view("a", BackendState::Ready, &[])
        };
        let views = [of("small"), of("large"), of("small")];
        let choices = plan(&places(&[1, 2, 3]), &views, |_| 0, |_, _| false);
        let backends: Vec<usize> = choices.iter().map(|choice| choice.backend).collect();
        assert_eq!(backends, [0, 1]);
    }

    #[test]
    fn load_decides_between_equals_only() {
        let ready = |name| view(name, BackendState::Ready, &[]);
        let views = [ready("a"), ready("b"), ready("c")];
        let choices = plan(&places(&[1, 1, 2]), &views, |backend| [2, 1, 0][backend], |_, _| false);
        assert_eq!(hosts(&choices).join(""), "bac");
    }

    proptest! {
        /// Whatever the states: everything that might answer is asked once, and the ready come before the rest.
        #[test]
        fn nobody_is_lost(states in proptest::collection::vec(0u8..5, 1..6), cool in any::<u8>()) {
            let views: Vec<BackendView> = states.iter().enumerate().map(|(n, state)| {
                let state = match state {
                    0 => BackendState::Starting,
                    1 => BackendState::Ready,
                    2 => down(),
                    3 => BackendState::Parked { reason: String::new() },
                    _ => BackendState::NotConfigured { variable: String::new() },
                };
                view(&format!("h{n}"), state, &[])
            }).collect();
            let cooling = |_: &BackendView, url: &Uri| {
                let n: u8 = url.host().expect("a host")[1..].parse().expect("a number");
                cool >> n & 1 == 1
            };
            let equals: Vec<usize> = (0..views.len()).collect();
            let choices = plan(&places(&equals), &views, |_| 0, cooling);
            prop_assert_eq!(choices.len(), states.iter().filter(|state| **state < 3).count());
            let ready = |choice: &Choice| states[choice.backend] == 1;
            prop_assert!(choices.is_sorted_by_key(|choice| !ready(choice)));
        }
    }
}
