//! Stop strings, found across any boundary between tokens or flushes.
//!
//! Text is let go as soon as no stop string can still begin in it, and no sooner. The stop that is *complete* first
//! wins (the longer one among those that end together): so the result is the same however the text was cut.

/// Watches a text for stop strings.
#[derive(Debug)]
pub(super) struct StopWatch {
    stops: Vec<String>,
    held: String,
}

/// What is known after a piece of text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Watched {
    /// Text that may be shown now, possibly none.
    Text(String),
    /// The text before a stop string; the stop itself and all after it are gone.
    Stopped(String),
}

impl StopWatch {
    /// Watches for `stops`, none of them empty.
    pub(super) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece of text.
    pub(super) fn push(&mut self, piece: &str) -> Watched {
        self.held.push_str(piece);
        if let Some(start) = self.first_stop() {
            self.held.truncate(start);
            return Watched::Stopped(std::mem::take(&mut self.held));
        }
        let tail = self.held.split_off(self.held.len() - self.possible_prefix());
        Watched::Text(std::mem::replace(&mut self.held, tail))
    }

    /// The text still held back, when nothing more will come.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Where the stop that is complete first begins.
    fn first_stop(&self) -> Option<usize> {
        self.stops
            .iter()
            .filter_map(|stop| Some((self.held.find(stop.as_str())?, stop.len())))
            .min_by_key(|&(start, len)| (start + len, start))
            .map(|(start, _)| start)
    }

    /// Bytes at the end of the held text that begin some stop.
    fn possible_prefix(&self) -> usize {
        let held = self.held.as_bytes();
        self.stops
            .iter()
            .map(|stop| {
                let stop = stop.as_bytes();
                let longest = held.len().min(stop.len() - 1);
                (1..=longest).rev().find(|&len| held.ends_with(&stop[..len])).unwrap_or(0)
            })
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds `pieces` and returns what was shown, and whether a stop was met.
    fn run<'a>(stops: &[&str], pieces: impl IntoIterator<Item = &'a str>) -> (String, bool) {
        let mut watch = StopWatch::new(stops.iter().map(|stop| (*stop).to_owned()).collect());
        let mut shown = String::new();
        for piece in pieces {
            match watch.push(piece) {
                Watched::Text(text) => shown.push_str(&text),
                Watched::Stopped(text) => return (shown + &text, true),
            }
        }
        (shown + &watch.finish(), false)
    }

    #[test]
    fn the_text_before_a_stop_is_shown_and_the_stop_is_not() {
        assert_eq!(run(&["6"], ["1 2 3", " 4 5 6 7"]), ("1 2 3 4 5 ".into(), true));
        assert_eq!(run(&["\n\n"], ["a\n", "\nb"]), ("a".into(), true));
        assert_eq!(run(&["STOP"], ["a ST", "O", "P b"]), ("a ".into(), true));
    }

    #[test]
    fn a_prefix_that_comes_to_nothing_is_shown() {
        assert_eq!(run(&["STOP"], ["a ST", "ART", " STO"]), ("a START STO".into(), false));
    }

    #[test]
    fn only_what_may_begin_a_stop_is_held_back() {
        let mut watch = StopWatch::new(vec!["aab".into()]);
        assert_eq!(watch.push("xaaa"), Watched::Text("xa".into()));
        assert_eq!(watch.push("a"), Watched::Text("a".into()));
        assert_eq!(watch.push("b"), Watched::Stopped(String::new()));
    }

    #[test]
    fn the_stop_that_is_complete_first_wins() {
        assert_eq!(run(&["abcd", "bc"], ["xabcd"]), ("xa".into(), true));
        assert_eq!(run(&["bc", "abc"], ["xabcd"]), ("x".into(), true));
    }

    #[test]
    fn without_stops_nothing_is_held() {
        let mut watch = StopWatch::new(Vec::new());
        assert_eq!(watch.push("all"), Watched::Text("all".into()));
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,5}", 0..4),
            cut in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let ends: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let mut at: Vec<usize> = cut.iter().map(|cut| ends[cut.index(ends.len())]).collect();
            at.extend([0, text.len()]);
            at.sort_unstable();
            let whole = run(&stops, [text.as_str()]);
            prop_assert_eq!(run(&stops, at.windows(2).map(|w| &text[w[0]..w[1]])), whole.clone());
            prop_assert_eq!(whole.1, stops.iter().any(|stop| text.contains(stop)));
            prop_assert!(text.starts_with(&whole.0));
            prop_assert!(stops.iter().all(|stop| !whole.0.contains(stop)));
        }
    }
}
