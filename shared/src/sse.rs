//! Event streams (`text/event-stream`): a decoder that takes bytes as they come, and a writer.
//!
//! Owns the framing: lines ended by CR, LF or CRLF, comments, several `data` lines, a byte order mark, characters cut
//! in two by the network. It bounds lines and events, refuses bytes that are no UTF-8, and understands no payload.
//! `id` and `retry` are read over: nothing here reconnects.

use bytes::Bytes;

use crate::limits::{SSE_EVENT_BYTES, SSE_LINE_BYTES};

/// The event that ends an OpenAI stream.
pub const DONE: &[u8] = b"data: [DONE]\n\n";
/// A comment that keeps a waiting client patient.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// A stream that is no event stream, or one that will not be endured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// A line has no end.
    #[error("a line of the event stream is longer than {limit_bytes} bytes")]
    LineTooLong {
        /// The limit.
        limit_bytes: usize,
    },
    /// An event has no end.
    #[error("an event of the event stream is larger than {limit_bytes} bytes")]
    EventTooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// Not text.
    #[error("the event stream is not UTF-8")]
    NotUtf8,
}

/// What stands between two empty lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    /// The `event` field; empty if there is none.
    pub name: &'a str,
    /// The `data` lines, joined by line feeds. `None`: comments or other fields only, which is no event.
    pub data: Option<&'a str>,
}

/// An incremental decoder. After an error it must not be fed again.
#[derive(Debug)]
pub struct Decoder {
    line_limit: usize,
    event_limit: usize,
    /// An unfinished line.
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    name: Vec<u8>,
    /// The last byte was CR: an LF now belongs to it.
    skip_lf: bool,
    /// No line has ended yet: a byte order mark may stand before it.
    at_start: bool,
    /// The last call returned a block, whose parts are still here.
    returned: bool,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(SSE_LINE_BYTES, SSE_EVENT_BYTES)
    }
}

impl Decoder {
    /// A decoder that bounds lines and events, in bytes.
    pub fn new(line_limit: usize, event_limit: usize) -> Self {
        Self {
            line_limit,
            event_limit,
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            name: Vec::new(),
            skip_lf: false,
            at_start: true,
            returned: false,
        }
    }

    /// Takes bytes from the front of `input` up to the end of a block and returns that block. `None`: `input` is
    /// used up and the block goes on in the next piece.
    pub fn next<'s, 'i: 's>(
        &'s mut self,
        input: &mut &'i [u8],
    ) -> Result<Option<Block<'s>>, SseError> {
        if std::mem::take(&mut self.returned) {
            self.data.clear();
            self.name.clear();
            self.has_data = false;
        }
        if let Some((data, rest)) = self.whole(input) {
            *input = rest;
            let data = std::str::from_utf8(data).map_err(|_| SseError::NotUtf8)?;
            return Ok(Some(Block { name: "", data: Some(data) }));
        }
        while let Some(piece) = self.line_end(input)? {
            if self.line.is_empty() {
                if self.take_line(piece)? {
                    return self.block().map(Some);
                }
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(piece);
                self.take_line(&line)?;
                line.clear();
                self.line = line;
            }
        }
        Ok(None)
    }

    /// Whether the bytes so far end between two blocks.
    pub fn at_boundary(&self) -> bool {
        self.line.is_empty() && (self.returned || (!self.has_data && self.name.is_empty()))
    }

    /// The common case without a copy: one `data` line and the empty line, all here.
    fn whole<'a>(&self, input: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        if self.at_start || self.has_data || !self.line.is_empty() || !self.name.is_empty() {
            return None;
        }
        let body = input.strip_prefix(b"data: ")?;
        let end = body.iter().position(|&b| b == b'\n' || b == b'\r')?;
        let rest = body[end..].strip_prefix(b"\n\n")?;
        (end < self.line_limit.min(self.event_limit)).then_some((&body[..end], rest))
    }

    /// The bytes before the next line end, which is consumed too. `None` keeps an unfinished line.
    fn line_end<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, SseError> {
        if std::mem::take(&mut self.skip_lf) {
            if let Some(rest) = input.strip_prefix(b"\n") {
                *input = rest;
            } else if input.is_empty() {
                self.skip_lf = true;
            }
        }
        let end = input.iter().position(|&b| b == b'\n' || b == b'\r');
        let piece = &input[..end.unwrap_or(input.len())];
        if self.line.len() + piece.len() > self.line_limit {
            return Err(SseError::LineTooLong { limit_bytes: self.line_limit });
        }
        let Some(end) = end else {
            self.line.extend_from_slice(piece);
            *input = &[];
            return Ok(None);
        };
        let rest = &input[end + 1..];
        *input = match (input[end], rest) {
            (b'\r', [b'\n', rest @ ..]) => rest,
            (b'\r', []) => {
                self.skip_lf = true;
                rest
            }
            _ => rest,
        };
        Ok(Some(piece))
    }

    /// Reads one line; true if it is the empty one that ends a block.
    fn take_line(&mut self, line: &[u8]) -> Result<bool, SseError> {
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            return Ok(true);
        }
        let colon = line.iter().position(|&b| b == b':').unwrap_or(line.len());
        let value = line.get(colon + 1..).unwrap_or_default();
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match &line[..colon] {
            b"data" => {
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"event" => {
                self.name.clear();
                self.name.extend_from_slice(value);
            }
            _ => {}
        }
        if self.data.len() + self.name.len() > self.event_limit {
            return Err(SseError::EventTooLarge { limit_bytes: self.event_limit });
        }
        Ok(false)
    }

    fn block(&mut self) -> Result<Block<'_>, SseError> {
        self.returned = true;
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| SseError::NotUtf8);
        let data = if self.has_data { Some(text(&self.data)?) } else { None };
        Ok(Block { name: text(&self.name)?, data })
    }
}

/// An event without a name.
pub fn event(data: &str) -> Bytes {
    named_event("", data)
}

/// An event with a name (none if empty). Line ends in `data` become `data` lines; `name` must hold none.
pub fn named_event(name: &str, data: &str) -> Bytes {
    let mut out = Vec::with_capacity(name.len() + data.len() + 18);
    if !name.is_empty() {
        out.extend_from_slice(b"event: ");
        out.extend_from_slice(name.as_bytes());
        out.push(b'\n');
    }
    let mut rest = Some(data);
    while let Some(text) = rest {
        let (line, after) = match text.find(['\r', '\n']) {
            Some(end) if text[end..].starts_with("\r\n") => (&text[..end], Some(&text[end + 2..])),
            Some(end) => (&text[..end], Some(&text[end + 1..])),
            None => (text, None),
        };
        out.extend_from_slice(b"data: ");
        out.extend_from_slice(line.as_bytes());
        out.push(b'\n');
        rest = after;
    }
    out.push(b'\n');
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Seen = Vec<(String, Option<String>)>;

    fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Seen, SseError> {
        let mut decoder = Decoder::new(64, 128);
        let mut seen = Vec::new();
        for piece in pieces {
            let mut input = piece;
            while let Some(block) = decoder.next(&mut input)? {
                seen.push((block.name.to_owned(), block.data.map(str::to_owned)));
            }
            assert!(input.is_empty());
            assert!(decoder.line.len() <= 64 && decoder.data.len() <= 128 + 64);
        }
        Ok(seen)
    }

    /// As [`decode`], without the blocks that are no events: an LF that comes late may seem to make one.
    fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Seen, SseError> {
        decode(pieces).map(|seen| seen.into_iter().filter(|(_, data)| data.is_some()).collect())
    }

    #[test]
    fn line_ends_comments_names_and_joined_lines() {
        let stream = "\u{feff}: hi\n\ndata: a\n\nevent: x\r\ndata:b\r\ndata:  c\r\n\r\nid: 7\rdata\r\r: only\n\n";
        let expected =
            [("", None), ("", Some("a")), ("x", Some("b\n c")), ("", Some("")), ("", None)];
        let expected: Seen =
            expected.map(|(name, data)| (name.to_owned(), data.map(str::to_owned))).into();
        assert_eq!(decode([stream.as_bytes()]).expect("decodes"), expected);
    }

    #[test]
    fn lines_events_and_garbage_are_bounded() {
        let long = "x".repeat(65);
        assert_eq!(decode([long.as_bytes()]), Err(SseError::LineTooLong { limit_bytes: 64 }));
        let wide = "data: 0123456789\n".repeat(20);
        assert_eq!(decode([wide.as_bytes()]), Err(SseError::EventTooLarge { limit_bytes: 128 }));
        assert_eq!(decode([&b"data: \xff\n\n"[..]]), Err(SseError::NotUtf8));
        assert_eq!(decode([&b"\ndata: \xff\n\n"[..]]), Err(SseError::NotUtf8));
    }

    #[test]
    fn the_boundary_is_between_blocks_only() {
        let mut decoder = Decoder::default();
        for (piece, boundary) in [
            ("data: a\n", false),
            ("\n", true),
            ("dat", false),
            ("a: b\n\n", true),
            (": c\n\n", true),
        ] {
            let mut input = piece.as_bytes();
            while decoder.next(&mut input).expect("decodes").is_some() {}
            assert_eq!(decoder.at_boundary(), boundary, "after {piece:?}");
        }
    }

    fn cut<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        cuts.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
    }

    proptest! {
        #[test]
        fn any_splitting_gives_the_same_events(
            lines in proptest::collection::vec("(data: ?|event: |: |id: |)[a-zäß🦀: ]{0,8}(\r\n|\n|\r)(\n|\r\n|\r|)", 0..12),
            cuts in proptest::collection::vec(0usize..400, 0..12),
        ) {
            let stream = lines.concat();
            let whole = events([stream.as_bytes()]);
            prop_assert_eq!(events(cut(stream.as_bytes(), &cuts)), whole.clone());
            let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
            prop_assert_eq!(events(bytes), whole);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..600), cuts in proptest::collection::vec(0usize..600, 0..5)) {
            let _ = decode(cut(&bytes, &cuts));
        }

        #[test]
        fn what_is_written_is_read(name in "[a-z.]{0,8}", data in "[a-zä{}\": \n\r]{0,40}", cuts in proptest::collection::vec(0usize..90, 0..5)) {
            let written = named_event(&name, &data);
            let seen = decode(cut(&written, &cuts)).expect("decodes");
            let data = data.replace("\r\n", "\n").replace('\r', "\n");
            prop_assert_eq!(seen, vec![(name, Some(data))]);
        }
    }
}
