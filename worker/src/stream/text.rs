//! A reply's tokens become its text: bytes, characters, stop strings, in this order.
//!
//! Pure: no engine and no clock. One of these per choice.

use std::sync::Arc;

use super::stop::{StopWatch, Watched};
use super::utf8::Utf8Pieces;
use crate::tokenize::TokenBytes;

/// How a reply begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// A text of its own: the space that SentencePiece puts before the first word is dropped.
    Fresh,
    /// Goes on from a text: its first space belongs there.
    Continued,
}

/// What a token adds.
#[derive(Debug, PartialEq, Eq)]
pub enum Added {
    /// Text that may be shown now, possibly none.
    Text(String),
    /// The last text: a stop string followed it.
    Stopped(String),
}

/// The text of one reply, as it grows.
#[derive(Debug)]
pub struct ReplyText {
    tokens: Arc<TokenBytes>,
    characters: Utf8Pieces,
    stops: StopWatch,
    strip: usize,
}

impl ReplyText {
    /// A reply that ends at any of `stops`.
    pub fn new(tokens: Arc<TokenBytes>, opening: Opening, stops: Vec<String>) -> Self {
        let strip = if opening == Opening::Fresh { tokens.strip_leading() } else { 0 };
        Self { tokens, characters: Utf8Pieces::default(), stops: StopWatch::new(stops), strip }
    }

    /// Takes the next token. Special tokens are not shown.
    pub fn push(&mut self, id: u32) -> Added {
        if self.tokens.is_special(id) {
            return Added::Text(String::new());
        }
        let bytes = strip(self.tokens.get(id), &mut self.strip);
        let text = self.characters.push(bytes);
        match self.stops.push(&text) {
            Watched::Text(text) => Added::Text(text),
            Watched::Stopped(text) => Added::Stopped(text),
        }
    }

    /// What is still held back, when no token follows.
    pub fn finish(&mut self) -> String {
        self.stops.finish()
    }
}

/// Drops leading spaces, as many as `left` allows; the first byte that is none ends it.
fn strip<'a>(bytes: &'a [u8], left: &mut usize) -> &'a [u8] {
    let spaces = bytes.iter().take(*left).take_while(|byte| **byte == b' ').count();
    if !bytes.is_empty() {
        *left = 0;
    }
    &bytes[spaces..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::tests::fixture;
    use proptest::prelude::*;

    const SAMPLES: [&str; 6] = [
        "Hello there, how are you?",
        "👩‍👩‍👧‍👦 family, Zürich, Đà Nẵng",
        "日本語のテキスト。中文。한국어",
        "e\u{301}a\u{308} combining",
        "def f(x):\n    return x  # ok\n\n\n",
        "<think>hm</think> \u{FFFD} literal",
    ];

    fn deltas(ids: &[u32], stops: &[&str]) -> (Vec<String>, bool) {
        let tokenizer = fixture();
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let mut text = ReplyText::new(Arc::clone(tokenizer.bytes()), Opening::Fresh, stops);
        let mut deltas = Vec::new();
        for id in ids {
            match text.push(*id) {
                Added::Text(delta) => deltas.push(delta),
                Added::Stopped(delta) => {
                    deltas.push(delta);
                    return (deltas, true);
                }
            }
        }
        deltas.push(text.finish());
        (deltas, false)
    }

    #[test]
    fn the_deltas_are_the_text() {
        let tokenizer = fixture();
        for sample in SAMPLES {
            let ids = tokenizer.encode(sample, false).expect("encodes");
            // The fixture normalises to NFC.
            let expected = sample.replace("e\u{301}", "é").replace("a\u{308}", "ä");
            let (deltas, stopped) = deltas(&ids, &[]);
            assert_eq!((deltas.concat(), stopped), (expected, false));
        }
    }

    #[test]
    fn no_delta_holds_a_broken_character() {
        let tokenizer = fixture();
        for sample in &SAMPLES[..5] {
            let ids = tokenizer.encode(sample, false).expect("encodes");
            // Cut at every token: the worst end a length limit can choose.
            for cut in 0..=ids.len() {
                assert!(
                    !deltas(&ids[..cut], &[]).0.concat().contains('\u{FFFD}'),
                    "{sample} at {cut}"
                );
            }
        }
    }

    #[test]
    fn special_tokens_are_not_shown() {
        let tokenizer = fixture();
        let ids = tokenizer.encode("a</s>b", false).expect("encodes");
        assert_eq!(deltas(&ids, &[]).0.concat(), "ab");
    }

    #[test]
    fn leading_spaces_go_once_and_only_at_the_beginning() {
        let mut left = 1;
        assert_eq!(strip(b"", &mut left), b"");
        assert_eq!(strip(b"  a", &mut left), b" a");
        assert_eq!(strip(b" b", &mut left), b" b");
        let mut all = usize::MAX;
        assert_eq!(strip(b"   ", &mut all), b"");
        assert_eq!(strip(b" b", &mut all), b" b");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_stop_anywhere_in_the_text_ends_it_there(
            sample in prop::sample::select(&SAMPLES[..]),
            from: prop::sample::Index,
            len in 1_usize..8,
        ) {
            let text: String = sample.replace("e\u{301}", "é").replace("a\u{308}", "ä");
            let characters: Vec<char> = text.chars().collect();
            let from = from.index(characters.len());
            let stop: String = characters[from..].iter().take(len).collect();
            let ids = fixture().encode(sample, false).expect("encodes");
            let (deltas, stopped) = deltas(&ids, &[&stop]);
            prop_assert!(stopped);
            let expected = text.split(&stop).next().unwrap_or_default();
            prop_assert_eq!(deltas.concat(), expected);
        }
    }
}
