//! From text to token ids, and what each id stands for.
//!
//! Owns the checkpoint's tokenizer and the small files beside it. It refuses a tokenizer whose decoder cannot be
//! streamed. Decoding happens in [`crate::stream`]: here is only the table it reads.

mod bytes;
mod special;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokenizers::Tokenizer;

pub use bytes::TokenBytes;
pub use special::{CheckpointText, SamplingDefaults};

/// Why a checkpoint's text side cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenizeError {
    /// A file cannot be read.
    #[error("{}: cannot be read", file.display())]
    Read {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not the JSON it should be.
    #[error("{}: not the JSON expected", file.display())]
    Parse {
        /// Which.
        file: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// tokenizer.json is absent or damaged.
    #[error("{}: {reason}", file.display())]
    Tokenizer {
        /// Which.
        file: PathBuf,
        /// Why, in the words of the tokenizers crate.
        reason: String,
    },
    /// The decoder cannot be streamed.
    #[error("tokenizer.json: the decoder is not supported: {0}")]
    Decoder(String),
    /// Text that the tokenizer refuses.
    #[error("the text cannot be tokenised: {0}")]
    Encode(String),
}

/// How much shorter a normaliser may make a text: composition (NFC) takes at most three bytes for one.
const NORMALISER_SHRINKS: usize = 3;

/// A checkpoint's tokenizer.
#[derive(Debug)]
pub struct TextTokenizer {
    inner: Tokenizer,
    bytes: Arc<TokenBytes>,
    eos_ids: Arc<[u32]>,
    longest_token: usize,
}

impl TextTokenizer {
    /// Loads `tokenizer.json` of the checkpoint in `dir`.
    ///
    /// The ids that end a reply are those of `text` plus the tokenizer's own `eos_token`.
    pub fn load(dir: &Path, text: &CheckpointText) -> Result<Self, TokenizeError> {
        let file = dir.join("tokenizer.json");
        let refuse = |error: tokenizers::Error| TokenizeError::Tokenizer {
            file: file.clone(),
            reason: error.to_string(),
        };
        let mut inner = Tokenizer::from_file(&file).map_err(refuse)?;
        // Left over from training in some files; transformers resets them on every call too.
        inner.with_truncation(None).map_err(refuse)?;
        inner.with_padding(None);
        let bytes = TokenBytes::new(&inner)?;
        let mut eos_ids = text.eos_ids.clone();
        eos_ids.extend(text.marks.get("eos_token").and_then(|mark| inner.token_to_id(mark)));
        eos_ids.sort_unstable();
        eos_ids.dedup();
        let longest_token = bytes.longest().max(1);
        Ok(Self { inner, bytes: Arc::new(bytes), eos_ids: eos_ids.into(), longest_token })
    }

    /// Token ids of `text`. `add_special` adds what the tokenizer puts around a text of its own accord (`<s>`): right
    /// for plain prompts, wrong for the output of a chat template, which has written its marks already.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizeError> {
        self.inner
            .encode_fast(text, add_special)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizeError::Encode(error.to_string()))
    }

    /// A number of tokens that `text` has at least. Costs nothing, so that an absurd prompt is refused unread.
    pub fn fewest_tokens(&self, text: &str) -> usize {
        text.len() / (self.longest_token * NORMALISER_SHRINKS)
    }

    /// The bytes of each token.
    pub fn bytes(&self) -> &Arc<TokenBytes> {
        &self.bytes
    }

    /// The id of the mark (a token that no reply shows) whose text is `text`.
    pub fn mark_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text).filter(|id| self.bytes.is_special(*id))
    }

    /// Ids that end a reply.
    pub fn eos_ids(&self) -> &Arc<[u32]> {
        &self.eos_ids
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The byte-level tokenizer shared by all fixture checkpoints.
    pub(crate) fn fixture_dir() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/checkpoints/llama-4bit-g64-f32")
    }

    pub(crate) fn fixture() -> TextTokenizer {
        let dir = fixture_dir();
        let text = CheckpointText::read(&dir).expect("readable");
        TextTokenizer::load(&dir, &text).expect("loads")
    }

    #[test]
    fn the_table_agrees_with_the_crates_decoder() {
        let tokenizer = fixture();
        for text in ["Hello, world", " naïve café ", "日本語", "👩‍👩‍👧", "a\n\n\tb", "<think>x</think>"]
        {
            let ids = tokenizer.encode(text, false).expect("encodes");
            let bytes: Vec<u8> =
                ids.iter().flat_map(|id| tokenizer.bytes().get(*id)).copied().collect();
            let whole = tokenizer.inner.decode(&ids, true).expect("decodes");
            assert_eq!(String::from_utf8_lossy(&bytes), whole, "{text}");
        }
    }

    #[test]
    fn marks_are_special_and_unknown_ids_are_empty() {
        let tokenizer = fixture();
        let id = tokenizer.inner.token_to_id("</s>").expect("in the vocabulary");
        assert!(tokenizer.bytes().is_special(id));
        assert!(tokenizer.eos_ids().contains(&id));
        assert!(tokenizer.bytes().get(u32::MAX).is_empty());
        assert!(!tokenizer.bytes().is_special(u32::MAX));
        assert_eq!((tokenizer.mark_id("</s>"), tokenizer.mark_id("<think>")), (Some(id), None));
        let think = tokenizer.inner.token_to_id("<think>").expect("in the vocabulary");
        assert!(!tokenizer.bytes().is_special(think), "added, but shown");
    }

    #[test]
    fn the_lower_bound_is_one() {
        let tokenizer = fixture();
        for text in ["", "a", "Hello, world, this is a text of some words"] {
            let exact = tokenizer.encode(text, false).expect("encodes").len();
            assert!(tokenizer.fewest_tokens(text) <= exact, "{text}");
        }
    }

    #[test]
    fn a_missing_tokenizer_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let error =
            TextTokenizer::load(dir.path(), &CheckpointText::default()).expect_err("absent");
        assert!(error.to_string().contains("tokenizer.json"), "{error}");
    }
}
