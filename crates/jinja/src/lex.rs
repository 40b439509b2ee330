//! Lexer: template source to tokens, with the whitespace rules of `trim_blocks` and
//! `lstrip_blocks`.

use super::Fault;
use super::print::is_space;
use std::sync::Arc;

/// Kind of a token.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    /// Text outside of tags.
    Data(Arc<str>),
    /// `{{` … `}}`
    Open,
    Close,
    /// `{%` … `%}`
    Begin,
    End,
    Name(Arc<str>),
    Str(Arc<str>),
    Int(i128),
    Float(f64),
    Op(&'static str),
}

/// A token and its line, counted from 1.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) tok: Tok,
    pub(super) line: u32,
}

/// Longer ones first, so that `**` is not read as two `*`.
const OPERATORS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",", ";",
];

/// Splits the whole source into tokens.
pub(super) fn lex(source: &str) -> Result<Vec<Token>, Fault> {
    let mut text = if source.contains('\r') { source.replace("\r\n", "\n").replace('\r', "\n") } else { source.into() };
    // As in Jinja, one newline at the end of the source is dropped.
    if text.ends_with('\n') {
        text.pop();
    }
    let mut lexer = Lexer { text: &text, at: 0, line: 1, line_start: true, out: Vec::new() };
    lexer.run()?;
    Ok(lexer.out)
}

struct Lexer<'s> {
    text: &'s str,
    at: usize,
    line: u32,
    /// Whether `at` is at the start of a line, for `lstrip_blocks`.
    line_start: bool,
    out: Vec<Token>,
}

impl<'s> Lexer<'s> {
    fn run(&mut self) -> Result<(), Fault> {
        while let Some(open) = self.find_open() {
            let kind = self.text.as_bytes()[open + 1];
            let sign = self.text.as_bytes().get(open + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
            let data = self.text_before(open, sign, kind != b'{');
            self.data(data);
            self.advance(open);
            if kind == b'%'
                && let Some(body) = raw_begin(&self.text[open..])
            {
                self.advance(open + body);
                self.raw()?;
                continue;
            }
            self.advance(open + 2 + usize::from(sign.is_some()));
            match kind {
                b'#' => self.comment()?,
                b'{' => self.tag(Tok::Open, Tok::Close)?,
                _ => self.tag(Tok::Begin, Tok::End)?,
            }
        }
        self.data(&self.text[self.at..]);
        Ok(())
    }

    fn find_open(&self) -> Option<usize> {
        let bytes = self.text.as_bytes();
        (self.at..bytes.len().saturating_sub(1))
            .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
    }

    /// The text before a tag, without the whitespace that the tag strips.
    fn text_before(&self, open: usize, sign: Option<u8>, strips: bool) -> &'s str {
        let data = &self.text[self.at..open];
        match sign {
            Some(b'-') => data.trim_end_matches(is_space),
            None if strips => {
                let line = data.rfind('\n').map_or(0, |i| i + 1);
                let blank = data[line..].chars().all(is_space);
                if blank && (line > 0 || self.line_start) { &data[..line] } else { data }
            }
            _ => data,
        }
    }

    fn data(&mut self, data: &str) {
        if !data.is_empty() {
            self.push(Tok::Data(data.into()));
        }
    }

    fn push(&mut self, tok: Tok) {
        self.out.push(Token { tok, line: self.line });
    }

    fn advance(&mut self, to: usize) {
        self.line += self.text[self.at..to].matches('\n').count() as u32;
        self.at = to;
    }

    fn rest(&self) -> &'s str {
        &self.text[self.at..]
    }

    fn fault(&self, what: impl Into<String>) -> Fault {
        Fault::Syntax { line: self.line, what: what.into() }
    }

    /// Skips the end of a tag at `close`, its `sign`, and the whitespace that the tag trims.
    fn skip_tag_end(&mut self, close: usize, sign: Option<u8>, trims: bool) {
        let mut end = close + 2;
        match sign {
            Some(b'-') => end += self.text[end..].len() - self.text[end..].trim_start_matches(is_space).len(),
            None if trims && self.text[end..].starts_with('\n') => end += 1,
            _ => {}
        }
        self.line_start = self.text[..end].ends_with('\n');
        self.advance(end);
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let Some(found) = self.rest().find("#}") else { return Err(self.fault("a comment is not closed with #}")) };
        let close = self.at + found;
        let sign = self.text.as_bytes()[self.at..close].last().copied().filter(|b| matches!(b, b'-' | b'+'));
        self.skip_tag_end(close, sign, true);
        Ok(())
    }

    fn raw(&mut self) -> Result<(), Fault> {
        self.line_start = self.text[..self.at].ends_with('\n');
        for (found, _) in self.rest().match_indices("{%") {
            let open = self.at + found;
            let sign = self.text.as_bytes().get(open + 2).copied().filter(|b| matches!(b, b'-' | b'+'));
            let name = self.text[open + 2 + usize::from(sign.is_some())..].trim_start_matches(is_space);
            let Some(tail) = name.strip_prefix("endraw") else { continue };
            let tail = tail.trim_start_matches(is_space);
            let end = tail.as_bytes().first().copied().filter(|b| matches!(b, b'-' | b'+'));
            if tail[usize::from(end.is_some())..].starts_with("%}") {
                let data = self.text_before(open, sign, true);
                self.data(data);
                self.skip_tag_end(self.text.len() - tail.len() + usize::from(end.is_some()), end, true);
                return Ok(());
            }
        }
        Err(self.fault("{% raw %} is not closed with {% endraw %}"))
    }

    /// Reads the inside of `{{ }}` or `{% %}`.
    fn tag(&mut self, open: Tok, close: Tok) -> Result<(), Fault> {
        let (mark, trims) = if close == Tok::End { ("%}", true) } else { ("}}", false) };
        self.push(open);
        let mut brackets = Vec::new();
        loop {
            let rest = self.rest();
            if brackets.is_empty() {
                let sign = rest.as_bytes().first().copied().filter(|b| *b == b'-' || (*b == b'+' && trims));
                let sign = sign.filter(|_| rest[1..].starts_with(mark));
                if sign.is_some() || rest.starts_with(mark) {
                    self.push(close);
                    self.skip_tag_end(self.at + usize::from(sign.is_some()), sign, trims);
                    return Ok(());
                }
            }
            let Some(c) = rest.chars().next() else {
                return Err(self.fault(format!("a tag is not closed with {mark}")));
            };
            if is_space(c) {
                self.advance(self.at + c.len_utf8());
            } else if c.is_ascii_digit() {
                self.number()?;
            } else if c.is_alphanumeric() || c == '_' {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.push(Tok::Name(rest[..end].into()));
                self.advance(self.at + end);
            } else if c == '"' || c == '\'' {
                self.string(c)?;
            } else {
                let Some(op) = OPERATORS.into_iter().find(|op| rest.starts_with(op)) else {
                    return Err(self.fault(format!("unexpected character {c:?}")));
                };
                match op {
                    "(" | "[" | "{" => brackets.push(op),
                    ")" | "]" | "}" => match brackets.pop() {
                        Some("(") if op == ")" => {}
                        Some("[") if op == "]" => {}
                        Some("{") if op == "}" => {}
                        _ => return Err(self.fault(format!("{op} closes nothing"))),
                    },
                    _ => {}
                }
                self.push(Tok::Op(op));
                self.advance(self.at + op.len());
            }
        }
    }

    fn number(&mut self) -> Result<(), Fault> {
        let rest = self.rest();
        let bytes = rest.as_bytes();
        let digits =
            |from: usize| from + bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'_').count();
        let radix = match bytes.get(..2) {
            Some(b"0x" | b"0X") => 16,
            Some(b"0o" | b"0O") => 8,
            Some(b"0b" | b"0B") => 2,
            _ => 10,
        };
        if radix != 10 {
            let end = 2 + bytes[2..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
            let value = i128::from_str_radix(&rest[2..end].replace('_', ""), radix);
            let value = value.map_err(|_| self.fault(format!("{} is not a number", &rest[..end])))?;
            self.push(Tok::Int(value));
            self.advance(self.at + end);
            return Ok(());
        }
        let mut end = digits(0);
        let mut float = false;
        // After a dot it is an index, as in `a.0.1`.
        if !self.text[..self.at].ends_with('.') {
            if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
                end = digits(end + 1);
                float = true;
            }
            if matches!(bytes.get(end), Some(b'e' | b'E')) {
                let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
                if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
                    end = digits(end + 1 + sign);
                    float = true;
                }
            }
        }
        let text = rest[..end].replace('_', "");
        let tok = if float { text.parse().ok().map(Tok::Float) } else { text.parse().ok().map(Tok::Int) };
        let tok = tok.ok_or_else(|| self.fault(format!("{text} is too large a number")))?;
        self.push(tok);
        self.advance(self.at + end);
        Ok(())
    }

    fn string(&mut self, quote: char) -> Result<(), Fault> {
        let rest = self.rest();
        let mut out = String::new();
        let mut chars = rest.char_indices().skip(1);
        while let Some((i, c)) = chars.next() {
            if c == quote {
                self.push(Tok::Str(out.into()));
                self.advance(self.at + i + 1);
                return Ok(());
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((i, c)) = chars.next() else { break };
            let hex = |n: usize| {
                let digits = rest.get(i + 1..i + 1 + n).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
                digits.and_then(|d| u32::from_str_radix(d, 16).ok()).and_then(char::from_u32)
            };
            match c {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\x07'),
                'b' => out.push('\x08'),
                'f' => out.push('\x0c'),
                'v' => out.push('\x0b'),
                '\\' | '\'' | '"' => out.push(c),
                '\n' => {}
                'x' | 'u' | 'U' => {
                    let n = [2, 4, 8][usize::from(c == 'u') + 2 * usize::from(c == 'U')];
                    let Some(code) = hex(n) else { return Err(self.fault("a string has a broken escape")) };
                    out.push(code);
                    chars.nth(n - 1);
                }
                '0'..='7' => {
                    let digits = rest[i..].bytes().take(3).take_while(|b| (b'0'..=b'7').contains(b)).count();
                    let code = u32::from_str_radix(&rest[i..i + digits], 8).ok().and_then(char::from_u32);
                    out.extend(code);
                    for _ in 1..digits {
                        chars.next();
                    }
                }
                'N' => return Err(self.fault("characters by name are not supported")),
                other => out.extend(['\\', other]),
            }
        }
        Err(self.fault("a string is not closed"))
    }
}

/// The length of a `{% raw %}` at the start of `text`, with the whitespace that it trims.
fn raw_begin(text: &str) -> Option<usize> {
    let body = text.strip_prefix("{%")?;
    let body = body.strip_prefix(['-', '+']).unwrap_or(body).trim_start_matches(is_space);
    let body = body.strip_prefix("raw")?.trim_start_matches(is_space);
    let body = match body.strip_prefix("-%}") {
        Some(body) => body.trim_start_matches(is_space),
        None => body.strip_prefix("%}")?,
    };
    Some(text.len() - body.len())
}
