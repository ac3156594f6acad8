//! Cuts a log into lines with their positions.

/// Longest line; a longer one is cut, so that work without line ends cannot fill memory.
const LINE_BYTES_MAX: usize = 64 * 1_024;

/// Bytes that arrive in any pieces, given out as lines.
#[derive(Debug)]
pub struct Lines {
    position: u64,
    rest: Vec<u8>,
    bytes_max: usize,
}

impl Lines {
    /// Begins at a position.
    pub fn from(position: u64) -> Self {
        Self {
            position,
            rest: Vec::new(),
            bytes_max: LINE_BYTES_MAX,
        }
    }

    /// For the JSON form of lines, whose escapes make them longer.
    pub fn of_json() -> Self {
        Self {
            bytes_max: 8 * LINE_BYTES_MAX,
            ..Self::from(0)
        }
    }

    /// The position behind everything that was pushed.
    pub fn end(&self) -> u64 {
        self.position.saturating_add(self.rest.len() as u64)
    }

    /// Skips to a position behind what was rotated away.
    pub fn skip_to(&mut self, position: u64) {
        self.rest.clear();
        self.position = position;
    }

    /// Takes bytes; gives each line that is whole now, with the position behind it.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<(u64, String)> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        let mut begin = 0;
        while let Some(length) = line_length(&self.rest[begin..], self.bytes_max) {
            lines.push(self.cut(begin, length));
            begin += length;
        }
        self.rest.drain(..begin);
        lines
    }

    /// Gives what is left, which has no line end.
    pub fn finish(&mut self) -> Option<(u64, String)> {
        let length = self.rest.len();
        let line = (length > 0).then(|| self.cut(0, length));
        self.rest.clear();
        line
    }

    fn cut(&mut self, begin: usize, length: usize) -> (u64, String) {
        self.position = self.position.saturating_add(length as u64);
        (
            self.position,
            String::from_utf8_lossy(&self.rest[begin..begin + length]).into_owned(),
        )
    }
}

fn line_length(bytes: &[u8], bytes_max: usize) -> Option<usize> {
    match bytes.iter().take(bytes_max).position(|byte| *byte == b'\n') {
        Some(end) => Some(end + 1),
        None => (bytes.len() >= bytes_max).then_some(bytes_max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_the_bytes_arrive() {
        let text = b"one\ntwo\n\nthr";
        for size in 1..text.len() {
            let mut lines = Lines::from(100);
            let mut out: Vec<(u64, String)> = text.chunks(size).flat_map(|chunk| lines.push(chunk)).collect();
            assert_eq!(lines.end(), 112);
            out.extend(lines.finish());
            let expected = [(104, "one\n"), (108, "two\n"), (109, "\n"), (112, "thr")];
            assert_eq!(out, expected.map(|(position, line)| (position, line.to_owned())));
        }
    }

    #[test]
    fn a_line_without_an_end_is_cut_at_the_limit() {
        let mut lines = Lines::from(0);
        let out = lines.push(&vec![b'x'; LINE_BYTES_MAX + 5]);
        assert_eq!(out.len(), 1);
        assert_eq!(lines.finish(), Some((LINE_BYTES_MAX as u64 + 5, "xxxxx".to_owned())));
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_as_such() {
        let mut lines = Lines::from(0);
        assert_eq!(lines.push(b"a\xffb\n"), [(4, "a\u{fffd}b\n".to_owned())]);
    }
}
