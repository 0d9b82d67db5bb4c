//! What is left of a source when comments and strings are blank: the same length, so that places in it stay right.

/// Blanks the inside of comments, strings and characters; line breaks stay.
pub fn strip(source: &str) -> String {
    let bytes = source.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let (from, end) = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => (at, find(bytes, at, b"\n")),
            b'/' if bytes[at..].starts_with(b"/*") => (at, end_of_comment(bytes, at)),
            b'"' => (at + 1, end_of_string(bytes, at + 1)),
            b'r' if !follows_a_word(bytes, at) && raw_hashes(bytes, at).is_some() => {
                let hashes = raw_hashes(bytes, at).unwrap_or(0);
                let open = at + 2 + hashes;
                let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
                (open, find(bytes, open, &close) + close.len())
            }
            b'\'' if bytes.get(at + 1) == Some(&b'\\') => (at + 1, find(bytes, at + 3, b"'") + 1),
            b'\'' => match source[at + 1..].chars().next() {
                Some(char) if bytes.get(at + 1 + char.len_utf8()) == Some(&b'\'') => {
                    (at + 1, at + 2 + char.len_utf8())
                }
                _ => (at, at + 1),
            },
            _ => (at, at),
        };
        let end = end.min(bytes.len());
        if end > from && !(end == at + 1 && bytes[at] == b'\'') {
            for byte in &mut out[from..end] {
                if *byte != b'\n' {
                    *byte = b' ';
                }
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The place after the bracket that closes the one at `open`, in a stripped source.
pub fn closing(stripped: &str, open: usize) -> usize {
    let mut depth = 0;
    for (at, byte) in stripped.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    stripped.len()
}

pub fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// A `br"…"` is raw as well, an `r` at the end of a word is not.
fn follows_a_word(bytes: &[u8], at: usize) -> bool {
    let before = |n: usize| at.checked_sub(n).is_some_and(|at| is_word(bytes[at]));
    before(1) && (bytes[at - 1] != b'b' || before(2))
}

fn raw_hashes(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|&&byte| byte == b'#').count();
    (bytes.get(at + 1 + hashes) == Some(&b'"')).then_some(hashes)
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    rest.windows(what.len()).position(|window| window == what).map_or(bytes.len(), |place| from + place)
}

fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn end_of_comment(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        let (step, change) = match &bytes[at..] {
            [b'/', b'*', ..] => (2, 1),
            [b'*', b'/', ..] => (2, -1),
            _ => (1, 0),
        };
        at += step;
        depth += change;
        if depth == 0 {
            break;
        }
    }
    at
}
