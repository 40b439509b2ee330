//! Tokens of a preprocessed source, and a view of them that skips white space.

use crate::Error;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    /// Numbers, strings, punctuation; distinguished by their text where that matters.
    Other,
    /// White space, line markers and pragmas.
    Space,
}

struct Token {
    kind: Kind,
    text: String,
}

/// The tokens of a file. Positions count tokens without white space, which is kept only for output.
pub(crate) struct Tokens {
    all: Vec<Token>,
    significant: Vec<usize>,
}

impl Tokens {
    pub(crate) fn lex(source: &str) -> Result<Self, Error> {
        let all = lex(source)?;
        let significant = (0..all.len()).filter(|&i| all[i].kind != Kind::Space).collect();
        Ok(Self { all, significant })
    }

    pub(crate) fn len(&self) -> usize {
        self.significant.len()
    }

    /// The token's text; empty past the end, and for a token that was removed.
    pub(crate) fn at(&self, at: usize) -> &str {
        self.significant.get(at).map_or("", |&i| self.all[i].text.as_str())
    }

    /// The text `back` tokens before `at`; empty before the beginning.
    pub(crate) fn before(&self, at: usize, back: usize) -> &str {
        at.checked_sub(back).map_or("", |at| self.at(at))
    }

    pub(crate) fn is_word(&self, at: usize) -> bool {
        self.significant.get(at).is_some_and(|&i| self.all[i].kind == Kind::Word)
    }

    pub(crate) fn replace(&mut self, at: usize, text: &str) {
        let i = self.significant[at];
        self.all[i].text = text.into();
    }

    pub(crate) fn erase(&mut self, range: impl IntoIterator<Item = usize>) {
        for at in range {
            self.replace(at, "");
        }
    }

    /// `[[`, which MSL uses for attributes only.
    pub(crate) fn is_attribute(&self, at: usize) -> bool {
        self.at(at) == "[" && self.at(at + 1) == "[" && self.touches_next(at)
    }

    fn touches_next(&self, at: usize) -> bool {
        at + 1 < self.significant.len() && self.significant[at + 1] == self.significant[at] + 1
    }

    /// First position from `at` on whose text is one of `stops`.
    pub(crate) fn find(&self, at: usize, stops: &[&str]) -> Result<usize, Error> {
        (at..self.len())
            .find(|&i| stops.contains(&self.at(i)))
            .ok_or_else(|| Error(format!("no `{}` after `{}`", stops.join("` or `"), self.source(at, at + 8))))
    }

    /// Position of the bracket that closes the one at `at`.
    pub(crate) fn closing(&self, at: usize) -> Result<usize, Error> {
        let open = self.at(at);
        let close = match open {
            "(" => ")",
            "[" => "]",
            "{" => "}",
            "<" => ">",
            other => return Err(Error(format!("`{other}` opens nothing"))),
        };
        // A `<` or `>` inside parentheses is a comparison, not a bracket.
        let (mut depth, mut inner) = (0, 0);
        for i in at..self.len() {
            let text = self.at(i);
            if open == "<" {
                match text {
                    "(" | "[" => inner += 1,
                    ")" | "]" => inner -= 1,
                    _ => {}
                }
            }
            if inner == 0 && text == open {
                depth += 1;
            } else if inner == 0 && text == close {
                depth -= 1;
                if depth == 0 {
                    return Ok(i);
                }
            }
        }
        Err(Error(format!("unbalanced `{open}` at `{}`", self.source(at, at + 8))))
    }

    /// Position of the `<` that the `>` at `at` closes.
    pub(crate) fn opening_angle(&self, at: usize) -> Result<usize, Error> {
        let mut depth = 0;
        for i in (0..=at).rev() {
            match self.at(i) {
                ">" => depth += 1,
                "<" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Ok(i);
            }
        }
        Err(Error("unbalanced `>`".into()))
    }

    /// Text of a range of tokens; white space becomes one space.
    pub(crate) fn source(&self, from: usize, to: usize) -> String {
        let mut text = String::new();
        for at in from..to.min(self.len()) {
            if self.at(at).is_empty() {
                continue;
            }
            if !text.is_empty() && !self.touches_next(at - 1) {
                text.push(' ');
            }
            text.push_str(self.at(at));
        }
        text
    }

    /// The whole file, with all replacements.
    pub(crate) fn write_all(&self) -> String {
        self.all.iter().map(|token| token.text.as_str()).collect()
    }
}

fn lex(source: &str) -> Result<Vec<Token>, Error> {
    let chars: Vec<char> = source.chars().collect();
    let mut tokens = Vec::new();
    let (mut start, mut line_start) = (0, true);
    while start < chars.len() {
        let rest = &chars[start..];
        let first = rest[0];
        let (kind, length) = if first == '#' && line_start {
            (Kind::Space, prefix(rest, |c| c != '\n'))
        } else if first.is_whitespace() {
            (Kind::Space, prefix(rest, char::is_whitespace))
        } else if first.is_alphabetic() || first == '_' {
            (Kind::Word, prefix(rest, |c| c.is_alphanumeric() || c == '_'))
        } else if first.is_ascii_digit() || (first == '.' && rest.get(1).is_some_and(char::is_ascii_digit)) {
            (Kind::Other, number(rest))
        } else if first == '"' || first == '\'' {
            (Kind::Other, literal(rest)?)
        } else {
            (Kind::Other, 1)
        };
        let text: String = rest[..length].iter().collect();
        line_start = kind == Kind::Space && (line_start || text.contains('\n'));
        tokens.push(Token { kind, text });
        start += length;
    }
    Ok(tokens)
}

fn prefix(chars: &[char], belongs: impl Fn(char) -> bool) -> usize {
    chars.iter().position(|&c| !belongs(c)).unwrap_or(chars.len())
}

/// A sign belongs to a number only after its exponent letter: `e` in decimal, `p` in hexadecimal.
fn number(chars: &[char]) -> usize {
    let hexadecimal = chars.get(1).is_some_and(|c| matches!(c, 'x' | 'X'));
    let exponent = |c: char| matches!(c, 'p' | 'P') || (!hexadecimal && matches!(c, 'e' | 'E'));
    (1..chars.len())
        .find(|&i| {
            let c = chars[i];
            let signed = matches!(c, '+' | '-') && exponent(chars[i - 1]);
            !(c.is_alphanumeric() || matches!(c, '.' | '\'') || signed)
        })
        .unwrap_or(chars.len())
}

fn literal(chars: &[char]) -> Result<usize, Error> {
    let mut i = 1;
    while i < chars.len() {
        match chars[i] {
            '\\' => i += 2,
            c if c == chars[0] => return Ok(i + 1),
            _ => i += 1,
        }
    }
    Err(Error("a string or character literal does not end".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        let tokens = Tokens::lex(source).unwrap();
        (0..tokens.len()).map(|at| tokens.at(at).to_string()).collect()
    }

    #[test]
    fn a_sign_joins_a_number_only_after_its_exponent() {
        assert_eq!(words("1e-5+2"), ["1e-5", "+", "2"]);
        assert_eq!(words("0x1e-5"), ["0x1e", "-", "5"]);
        assert_eq!(words("0x1.ffcp-3h"), ["0x1.ffcp-3h"]);
        assert_eq!(words("a.x-.5f"), ["a", ".", "x", "-", ".5f"]);
    }

    #[test]
    fn line_markers_and_pragmas_are_kept_as_whitespace() {
        let source = "a\n# 1 \"x.metal\" 2\n  #pragma b\nc # d\n";
        assert_eq!(words(source), ["a", "c", "#", "d"]);
        assert_eq!(Tokens::lex(source).unwrap().write_all(), source);
    }

    #[test]
    fn literals_keep_their_quotes_and_escapes() {
        assert_eq!(words(r#""a\"b" '\'' c"#), [r#""a\"b""#, r"'\''", "c"]);
        assert!(Tokens::lex("\"open").is_err());
    }

    #[test]
    fn a_comparison_inside_parentheses_closes_no_angle_bracket() {
        let tokens = Tokens::lex("<(a > b), c> d").unwrap();
        assert_eq!(tokens.source(tokens.closing(0).unwrap(), tokens.len()), "> d");
        assert!(Tokens::lex("( [ ]").unwrap().closing(0).is_err());
    }
}
