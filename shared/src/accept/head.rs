//! A pure look at a request head's framing, before hyper sees it.
//!
//! Owns one question: how long is the body, and is that beyond doubt? hyper drops `Content-Length` when
//! `Transfer-Encoding` is there too, so the doubt cannot be seen afterwards. Anything else about a head, its grammar
//! included, is hyper's business: what this scanner misreads hyper refuses, and it never changes a byte.

/// Longest start of a line that is looked at: a name, a colon and the longest sensible number fit in it.
const LINE_BYTES: usize = 64;

/// How the body of a request is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Framing {
    /// Exactly this many bytes follow, perhaps none.
    Length(u64),
    /// Chunks follow.
    Chunked,
    /// Two answers are possible: the request must be refused.
    Ambiguous,
}

/// Scans one head, however it is cut into pieces.
#[derive(Debug, Default)]
pub(super) struct HeadScan {
    line: Vec<u8>,
    overlong: bool,
    started: bool,
    length: Option<u64>,
    chunked: bool,
    doubtful: bool,
}

impl HeadScan {
    /// Whether a byte of the head has come.
    pub(super) fn started(&self) -> bool {
        self.started || !self.line.is_empty()
    }

    /// Takes the next bytes. When the head ends within them: how many belong to it, and the framing.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<(usize, Framing)> {
        let mut used = 0;
        while let Some(end) = bytes[used..].iter().position(|&b| b == b'\n') {
            self.keep(&bytes[used..used + end]);
            used += end + 1;
            if self.end_of_line() {
                return Some((used, self.framing()));
            }
        }
        self.keep(&bytes[used..]);
        None
    }

    fn keep(&mut self, piece: &[u8]) {
        let room = LINE_BYTES - self.line.len();
        self.overlong |= piece.len() > room;
        self.line.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    /// True at the empty line that ends the head. Empty lines before the request line are skipped, as hyper does.
    fn end_of_line(&mut self) -> bool {
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        let ends = line.is_empty() && self.started;
        if self.started {
            let colon = line.iter().position(|&b| b == b':').unwrap_or(0);
            let (name, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
            if name.eq_ignore_ascii_case(b"content-length") {
                let number = if self.overlong { None } else { number(value) };
                self.doubtful |= number.is_none() || self.length.is_some();
                self.length = number;
            } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
                self.doubtful |= self.chunked;
                self.chunked = true;
            }
        }
        self.started |= !line.is_empty();
        self.line.clear();
        self.overlong = false;
        ends
    }

    fn framing(&self) -> Framing {
        match (self.doubtful, self.chunked, self.length) {
            (true, _, _) | (_, true, Some(_)) => Framing::Ambiguous,
            (_, true, None) => Framing::Chunked,
            (_, false, length) => Framing::Length(length.unwrap_or(0)),
        }
    }
}

/// Digits and surrounding blanks, nothing else.
fn number(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn framing(head: &str) -> Framing {
        HeadScan::default().feed(head.as_bytes()).expect("a complete head").1
    }

    #[test]
    fn lengths_and_chunks() {
        assert_eq!(framing("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Framing::Length(0));
        assert_eq!(framing("POST / HTTP/1.1\r\ncontent-LENGTH: 12 \r\n\r\n"), Framing::Length(12));
        assert_eq!(framing("POST / HTTP/1.1\nTransfer-Encoding: chunked\n\n"), Framing::Chunked);
    }

    #[test]
    fn doubts_are_refused() {
        for head in [
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1, 1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length:\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert_eq!(framing(head), Framing::Ambiguous, "{head:?}");
        }
        let padded = format!("POST / HTTP/1.1\r\nContent-Length: {}1\r\n\r\n", " ".repeat(100));
        assert_eq!(framing(&padded), Framing::Ambiguous);
    }

    proptest! {
        #[test]
        fn cuts_do_not_matter(cuts in proptest::collection::vec(0usize..120, 0..8), tail in "[a-z\r\n:]{0,20}") {
            let head = "\r\nPOST /v1/x HTTP/1.1\r\nHost: h\r\nContent-Length: 77\r\nX-Long: ".to_owned()
                + &"v".repeat(90) + "\r\n\r\n";
            let all = head.clone() + &tail;
            let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c.min(all.len())).collect();
            cuts.extend([0, all.len()]);
            cuts.sort_unstable();
            let (mut scan, mut seen) = (HeadScan::default(), 0);
            let mut found = None;
            for pair in cuts.windows(2) {
                if let Some((used, framing)) = scan.feed(&all.as_bytes()[pair[0]..pair[1]]) {
                    found = Some((seen + used, framing));
                    break;
                }
                seen = pair[1];
            }
            prop_assert_eq!(found, Some((head.len(), Framing::Length(77))));
        }
    }
}
