//! Cuts a backend's bytes at the ends of events and says what passed: a pure core.
//!
//! Owns the promise that a client sees whole events only. Complete ones pass at once and byte for byte; the start of
//! an unfinished one waits here, so that an error event can follow if the rest never comes. What is no event stream
//! does not pass at all.

use bytes::{Bytes, BytesMut};
use sanctum_shared::limits::SSE_EVENT_BYTES;
use sanctum_shared::sse::{Decoder, SseError};

use super::event::Look;

/// Why a stream is not to be relayed further.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    /// No event stream.
    Framing(SseError),
    /// An event stream of something else.
    Data,
}

/// What the bytes so far amount to, and which of them may pass.
#[derive(Debug, Default)]
pub(crate) struct Inspector {
    decoder: Decoder,
    /// The start of an unfinished block.
    tail: Tail,
}

#[derive(Debug, Default)]
enum Tail {
    #[default]
    Empty,
    Piece(Bytes),
    Joined(BytesMut),
}

/// The result of one piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Complete blocks, as they came. Empty if none was completed.
    pub(crate) bytes: Bytes,
    pub(crate) look: Look,
    /// What comes after `bytes` must not pass.
    pub(crate) fault: Option<Malformed>,
}

impl Inspector {
    /// Takes the next bytes. From a fault or an error event on, and after `[DONE]`, nothing passes: an error's words
    /// may tell where the backend lives. They are in [`Inspector::rest`] then.
    pub(crate) fn push(&mut self, piece: &Bytes) -> Passed {
        let mut input = &piece[..];
        let mut look = Look::default();
        let mut fault = None;
        let mut boundary = 0;
        loop {
            match self.decoder.next(&mut input) {
                Ok(None) => break,
                Err(error) => {
                    fault = Some(Malformed::Framing(error));
                    break;
                }
                Ok(Some(block)) => match Look::at(&block) {
                    None => {
                        fault = Some(Malformed::Data);
                        break;
                    }
                    Some(seen) => {
                        if !seen.error {
                            boundary = piece.len() - input.len();
                        }
                        look.content |= seen.content;
                        look.finished += seen.finished;
                        look.error |= seen.error;
                        look.done |= seen.done;
                        if seen.done || seen.error {
                            break;
                        }
                    }
                },
            }
        }
        let bytes = self.cut(piece, boundary);
        if fault.is_none() && self.tail.len() > SSE_EVENT_BYTES {
            // Comment lines without end: no event grows, but what we hold does.
            let limit_bytes = SSE_EVENT_BYTES;
            fault = Some(Malformed::Framing(SseError::EventTooLarge { limit_bytes }));
        }
        Passed { bytes, look, fault }
    }

    /// What is held at the end of the stream.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.tail).into_bytes()
    }

    /// Whether the held rest is a `[DONE]` or a chunk that only lacks its empty line.
    pub(crate) fn rest_is_whole(&mut self) -> Option<Look> {
        let mut input = &b"\n\n"[..];
        match self.decoder.next(&mut input) {
            Ok(Some(block)) if block.data.is_some() => Look::at(&block),
            _ => None,
        }
    }

    /// The held tail and `piece` up to `boundary`; what is behind becomes the tail.
    fn cut(&mut self, piece: &Bytes, boundary: usize) -> Bytes {
        let behind = piece.slice(boundary..);
        if boundary == 0 {
            self.tail.push(behind);
            return Bytes::new();
        }
        let mut tail = std::mem::take(&mut self.tail);
        let passed = if tail.len() == 0 {
            piece.slice(..boundary)
        } else {
            tail.push(piece.slice(..boundary));
            tail.into_bytes()
        };
        self.tail.push(behind);
        passed
    }
}

impl Tail {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Piece(piece) => piece.len(),
            Self::Joined(joined) => joined.len(),
        }
    }

    fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        *self = match std::mem::take(self) {
            Self::Empty => Self::Piece(piece),
            Self::Piece(first) => {
                let mut joined = BytesMut::with_capacity(first.len() + piece.len());
                joined.extend_from_slice(&first);
                joined.extend_from_slice(&piece);
                Self::Joined(joined)
            }
            Self::Joined(mut joined) => {
                joined.extend_from_slice(&piece);
                Self::Joined(joined)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Empty => Bytes::new(),
            Self::Piece(piece) => piece,
            Self::Joined(joined) => joined.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CHUNK: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"ä🦀\"}}]}\n\n";

    fn push(inspector: &mut Inspector, text: &str) -> Passed {
        inspector.push(&Bytes::from(text.to_owned()))
    }

    #[test]
    fn whole_events_pass_at_once_and_halves_wait() {
        let mut inspector = Inspector::default();
        let (half, rest) = CHUNK.split_at(20);
        let first = push(&mut inspector, &format!("{CHUNK}{half}"));
        assert_eq!(first.bytes, CHUNK);
        let second = push(&mut inspector, rest);
        assert_eq!((second.bytes, second.look.content), (CHUNK.into(), true));
        assert_eq!(push(&mut inspector, half).bytes, "");
        assert_eq!(inspector.rest(), half);
    }

    #[test]
    fn nothing_passes_from_the_fault_on() {
        for (bad, fault) in [
            ("data: <html>\n\n", Malformed::Data),
            ("data: {\"choices\":[{\"del\n\n", Malformed::Data),
        ] {
            let passed = push(&mut Inspector::default(), &format!("{CHUNK}{bad}{CHUNK}"));
            assert_eq!((passed.bytes, passed.fault), (CHUNK.into(), Some(fault)));
        }
        let error = format!("{CHUNK}data: {{\"error\":{{}}}}\n\n");
        let mut inspector = Inspector::default();
        let passed = push(&mut inspector, &format!("{error}{CHUNK}"));
        assert_eq!((passed.bytes, passed.look.error), (CHUNK.into(), true));
        assert!(inspector.rest().starts_with(b"data: {\"error\""));
    }

    #[test]
    fn endless_comments_are_bounded() {
        let mut inspector = Inspector::default();
        let line = Bytes::from(format!(": {}\n", "x".repeat(1000)));
        let pieces = (0..).take_while(|_| inspector.push(&line).fault.is_none()).count();
        assert!(pieces <= SSE_EVENT_BYTES / 1000 + 1, "{pieces} kB held");
    }

    #[test]
    fn an_end_without_its_empty_line_is_understood() {
        let mut inspector = Inspector::default();
        assert_eq!(push(&mut inspector, "data: [DONE]").bytes, "");
        assert!(inspector.rest_is_whole().expect("whole").done);
        assert_eq!(inspector.rest(), "data: [DONE]");
        let mut cut = Inspector::default();
        push(&mut cut, "data: {\"choices\":[");
        assert_eq!(cut.rest_is_whole(), None);
    }

    proptest! {
        #[test]
        fn bytes_pass_unchanged_however_they_are_cut(
            blocks in proptest::collection::vec(0usize..4, 0..10),
            cuts in proptest::collection::vec(0usize..600, 0..10),
        ) {
            let kinds = [CHUNK, ": ping\n\n", "data: {\"choices\":[]}\r\n\r\n", "event: x\rdata: {}\r\r"];
            let stream: String = blocks.iter().map(|kind| kinds[*kind]).collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let mut inspector = Inspector::default();
            let mut seen = Vec::new();
            for pair in cuts.windows(2) {
                let passed = inspector.push(&Bytes::from(stream.as_bytes()[pair[0]..pair[1]].to_vec()));
                prop_assert_eq!(passed.fault, None);
                seen.extend_from_slice(&passed.bytes);
            }
            seen.extend_from_slice(&inspector.rest());
            prop_assert_eq!(String::from_utf8(seen).expect("text"), stream);
        }
    }
}
