//! What bytes a token stands for: a table made once from the tokenizer's own decoder.
//!
//! A table of bytes makes streaming exact: text is the concatenation of its tokens' bytes, whatever the boundaries.
//! It knows the two ways language models decode, byte-level BPE and SentencePiece with byte fallback, and refuses any
//! other: a decoder that looks at neighbours (WordPiece, CTC) has no such table.

use serde::Deserialize;
use tokenizers::Tokenizer;

use super::TokenizeError;

/// The bytes of every token, in one arena.
#[derive(Debug)]
pub struct TokenBytes {
    bytes: Vec<u8>,
    /// Where token `i` ends; it begins where the one before ends.
    ends: Vec<usize>,
    special: Vec<bool>,
    strip_leading: usize,
}

impl TokenBytes {
    /// Reads the decoder out of `tokenizer` and applies it to every token.
    pub fn new(tokenizer: &Tokenizer) -> Result<Self, TokenizeError> {
        let decoder = serde_json::to_value(tokenizer.get_decoder())
            .and_then(serde_json::from_value::<Option<DecoderFile>>)
            .map_err(|error| TokenizeError::Decoder(error.to_string()))?
            .ok_or_else(|| TokenizeError::Decoder("none is given".into()))?;
        let decoder = Decoder::new(decoder)?;
        let mut table = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
            special: Vec::new(),
            strip_leading: decoder.strip_leading,
        };
        let added = tokenizer.get_added_tokens_decoder();
        let highest = tokenizer.get_vocab(true).into_values().max().unwrap_or(0);
        for id in 0..=highest {
            if let Some(token) = tokenizer.id_to_token(id) {
                decoder.append(&token, &mut table.bytes);
            }
            table.ends.push(table.bytes.len());
            table.special.push(added.get(&id).is_some_and(|token| token.special));
        }
        Ok(table)
    }

    /// A token's bytes; none for an id without a token (models often have more rows than the tokenizer has tokens).
    pub fn get(&self, id: u32) -> &[u8] {
        let index = id as usize;
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..end]
    }

    /// Whether the token is a mark (`<|im_end|>`) that no reply shows.
    pub fn is_special(&self, id: u32) -> bool {
        self.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Spaces dropped from the very beginning of a decoded text.
    pub fn strip_leading(&self) -> usize {
        self.strip_leading
    }

    /// Bytes of the longest token: a text of `n` bytes has at least `n / longest` tokens.
    pub fn longest(&self) -> usize {
        let mut start = 0;
        self.ends.iter().map(|&end| end - std::mem::replace(&mut start, end)).max().unwrap_or(1)
    }
}

/// The `decoder` of a tokenizer.json.
#[derive(Deserialize)]
#[serde(tag = "type")]
enum DecoderFile {
    ByteLevel,
    ByteFallback,
    Fuse,
    Metaspace {
        replacement: char,
        prepend_scheme: String,
    },
    Replace {
        pattern: Pattern,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Sequence {
        decoders: Vec<DecoderFile>,
    },
    #[serde(other)]
    Other,
}

/// `{"String": …}`, or `{"Regex": …}` which is not read.
#[derive(Deserialize)]
struct Pattern {
    #[serde(rename = "String")]
    literal: Option<String>,
}

enum Step {
    ByteLevel,
    ByteFallback,
    Replace { from: String, to: String },
}

struct Decoder {
    steps: Vec<Step>,
    strip_leading: usize,
}

impl Decoder {
    fn new(file: DecoderFile) -> Result<Self, TokenizeError> {
        let mut decoder = Self { steps: Vec::new(), strip_leading: 0 };
        let mut fused = false;
        let parts = match file {
            DecoderFile::Sequence { decoders } => decoders,
            one => vec![one],
        };
        let refuse = |what: &str| Err(TokenizeError::Decoder(what.to_owned()));
        for part in parts {
            match part {
                DecoderFile::ByteLevel => decoder.steps.push(Step::ByteLevel),
                DecoderFile::ByteFallback => decoder.steps.push(Step::ByteFallback),
                DecoderFile::Fuse => fused = true,
                DecoderFile::Replace { pattern: Pattern { literal: Some(from) }, content }
                    if !fused =>
                {
                    decoder.steps.push(Step::Replace { from, to: content });
                }
                DecoderFile::Metaspace { replacement, prepend_scheme } => {
                    let (from, to) = (replacement.to_string(), " ".to_owned());
                    decoder.steps.push(Step::Replace { from, to });
                    if prepend_scheme != "never" {
                        decoder.strip_leading = usize::MAX;
                    }
                }
                // Only on the fused text does it mean "the beginning of everything".
                DecoderFile::Strip { content: ' ', start, stop: 0 } if fused => {
                    decoder.strip_leading = start;
                }
                DecoderFile::Replace { .. } | DecoderFile::Strip { .. } => {
                    return refuse("its Replace or Strip looks at neighbours");
                }
                DecoderFile::Sequence { .. } | DecoderFile::Other => {
                    return refuse("it is neither byte-level nor SentencePiece's");
                }
            }
        }
        Ok(decoder)
    }

    fn append(&self, token: &str, out: &mut Vec<u8>) {
        let mut text = token.to_owned();
        for step in &self.steps {
            match step {
                Step::Replace { from, to } => text = text.replace(from.as_str(), to),
                Step::ByteFallback => {
                    if let Some(byte) = fallback_byte(&text) {
                        out.push(byte);
                        return;
                    }
                }
                Step::ByteLevel => {
                    // A token with a character outside the alphabet is an added one, written as it is.
                    let mapped: Option<Vec<u8>> = text.chars().map(byte_of).collect();
                    out.extend(mapped.unwrap_or_else(|| text.into_bytes()));
                    return;
                }
            }
        }
        out.extend(text.into_bytes());
    }
}

/// The byte of a `<0xE5>` token.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (hex.len() == 2).then(|| u8::from_str_radix(hex, 16).ok()).flatten()
}

/// The byte that a character of GPT-2's byte-level alphabet stands for.
///
/// Printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for U+0100 onwards.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    if let Ok(byte) = u8::try_from(code) {
        return stands_for_itself(byte).then_some(byte);
    }
    let nth = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..=u8::MAX).filter(|byte| !stands_for_itself(*byte)).nth(nth)
}

fn stands_for_itself(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoder(json: serde_json::Value) -> Result<Decoder, TokenizeError> {
        Decoder::new(serde_json::from_value(json).expect("a decoder"))
    }

    fn bytes(decoder: &Decoder, token: &str) -> Vec<u8> {
        let mut out = Vec::new();
        decoder.append(token, &mut out);
        out
    }

    #[test]
    fn the_byte_level_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for code in 0..0x200 {
            let Some(byte) = char::from_u32(code).and_then(byte_of) else { continue };
            assert!(!std::mem::replace(&mut seen[usize::from(byte)], true), "byte {byte} twice");
        }
        assert!(seen.iter().all(|seen| *seen));
        assert_eq!(
            (byte_of('Ġ'), byte_of('Ċ'), byte_of('a')),
            (Some(b' '), Some(b'\n'), Some(b'a'))
        );
    }

    #[test]
    fn byte_level_writes_added_tokens_as_they_are() {
        let decoder = decoder(serde_json::json!({"type": "ByteLevel"})).expect("known");
        assert_eq!(bytes(&decoder, "Ġhi"), b" hi");
        assert_eq!(bytes(&decoder, "a b"), b"a b");
        assert_eq!(bytes(&decoder, "ðŁĺ"), [0xF0, 0x9F, 0x98]);
    }

    #[test]
    fn sentencepiece_has_marks_for_spaces_and_tokens_for_bytes() {
        let decoder = decoder(serde_json::json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]}))
        .expect("known");
        assert_eq!(bytes(&decoder, "▁hi"), b" hi");
        assert_eq!(bytes(&decoder, "<0xE5>"), [0xE5]);
        assert_eq!(bytes(&decoder, "<0xZZ>"), b"<0xZZ>");
        assert_eq!(decoder.strip_leading, 1);
    }

    #[test]
    fn decoders_that_look_at_neighbours_are_refused() {
        for json in [
            serde_json::json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
            serde_json::json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}),
            serde_json::json!({"type": "Replace", "pattern": {"Regex": " +"}, "content": ""}),
        ] {
            assert!(decoder(json.clone()).is_err(), "{json}");
        }
    }
}
