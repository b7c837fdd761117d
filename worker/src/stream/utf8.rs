//! Bytes in, whole characters out.
//!
//! Holds back the bytes of a character that is not complete yet. Bytes that no character can begin or continue with
//! become U+FFFD exactly as `String::from_utf8_lossy` has it; a character cut off by the end is dropped, because half
//! a character is nothing a reader can use.

/// An incremental UTF-8 reader.
#[derive(Debug, Default)]
pub(super) struct Utf8Pieces {
    held: Vec<u8>,
}

impl Utf8Pieces {
    /// Takes bytes and gives back all characters that are complete now.
    pub(super) fn push(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut rest: &[u8] = &self.held;
        let kept = loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    break 0;
                }
                Err(error) => {
                    let (valid, after) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or_default());
                    let Some(bad) = error.error_len() else { break after.len() };
                    text.push(char::REPLACEMENT_CHARACTER);
                    rest = &after[bad..];
                }
            }
        };
        self.held.drain(..self.held.len() - kept);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_family_of_emoji_comes_whole_however_it_is_cut() {
        let family = "👩‍👩‍👧‍👦é日";
        for cut in 0..=family.len() {
            let mut pieces = Utf8Pieces::default();
            let (head, tail) = family.as_bytes().split_at(cut);
            let text = pieces.push(head) + &pieces.push(tail);
            assert_eq!(text, family);
            assert!(pieces.held.is_empty());
        }
    }

    #[test]
    fn an_incomplete_character_is_neither_shown_nor_replaced() {
        let mut pieces = Utf8Pieces::default();
        assert_eq!(pieces.push(b"a\xF0\x9F\x98"), "a");
        assert_eq!(pieces.held.len(), 3);
    }

    proptest! {
        #[test]
        fn cutting_changes_nothing(bytes: Vec<u8>, cuts: Vec<prop::sample::Index>) {
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            at.extend([0, bytes.len()]);
            at.sort_unstable();
            let mut pieces = Utf8Pieces::default();
            let text: String = at.windows(2).map(|w| pieces.push(&bytes[w[0]..w[1]])).collect();
            let whole = String::from_utf8_lossy(&bytes);
            if !pieces.held.is_empty() {
                prop_assert_eq!(text + "\u{FFFD}", whole);
            } else {
                prop_assert_eq!(text, whole);
            }
        }
    }
}
