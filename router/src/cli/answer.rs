//! One answer as it streams in: text to print, an end, or an error in the middle.

use sanctum_shared::limits::{SSE_EVENT_BYTES, SSE_LINE_BYTES};
use sanctum_shared::sse::{Decoder, SseError};
use serde::Deserialize;

use super::call::message_of;

/// What a chunk of the stream brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text to print.
    Text(String),
    /// The answer is whole; why it ended, if it was said.
    End,
    /// The server gave up in the middle, and said why.
    Failed(String),
}

/// Reads a chat stream.
#[derive(Debug)]
pub(super) struct Answer {
    decoder: Decoder,
    /// `finish_reason`, once it came.
    pub(super) finish: Option<String>,
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    error: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    delta: Delta,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

impl Answer {
    pub(super) fn new() -> Self {
        Self { decoder: Decoder::new(SSE_LINE_BYTES, SSE_EVENT_BYTES), finish: None }
    }

    /// Takes bytes as they came; gives what they brought, in order.
    pub(super) fn take(&mut self, mut bytes: &[u8]) -> Result<Vec<Piece>, SseError> {
        let mut pieces = Vec::new();
        while let Some(block) = self.decoder.next(&mut bytes)? {
            let Some(data) = block.data else { continue };
            if data == "[DONE]" {
                pieces.push(Piece::End);
                continue;
            }
            let Ok(chunk) = serde_json::from_str::<Chunk>(data) else {
                pieces.push(Piece::Failed(format!(
                    "not a chat chunk: {}",
                    message_of(data.as_bytes())
                )));
                continue;
            };
            if chunk.error.is_some() {
                pieces.push(Piece::Failed(message_of(data.as_bytes())));
            }
            for choice in chunk.choices {
                let text = [choice.delta.reasoning_content, choice.delta.content];
                pieces
                    .extend(text.into_iter().flatten().filter(|t| !t.is_empty()).map(Piece::Text));
                self.finish = choice.finish_reason.or(self.finish.take());
            }
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        ": keep-alive\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"4 é\"},\"finish_reason\":null}]}\n\n",
        "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"choices\":[],\"usage\":{\"total_tokens\":3}}\n\n",
        "data: [DONE]\n\n",
    );

    #[test]
    fn a_stream_reads_the_same_however_it_is_cut() {
        for size in 1..STREAM.len() {
            let mut answer = Answer::new();
            let mut pieces = Vec::new();
            for part in STREAM.as_bytes().chunks(size) {
                pieces.extend(answer.take(part).expect("a good stream"));
            }
            assert_eq!(pieces, [Piece::Text("4 é".into()), Piece::End], "in parts of {size}");
            assert_eq!(answer.finish.as_deref(), Some("stop"));
        }
    }

    #[test]
    fn an_error_in_the_middle_is_told() {
        let mut answer = Answer::new();
        let event = b"data: {\"error\":{\"message\":\"the backend died\",\"code\":\"x\"}}\n\n";
        let pieces = answer.take(event).expect("a good stream");
        assert_eq!(pieces, [Piece::Failed("the backend died".into())]);
    }
}
