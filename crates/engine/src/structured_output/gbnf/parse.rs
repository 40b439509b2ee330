//! The parser of GBNF.

use super::{DEEPEST, Grammar, MOST_MARKS, MOST_REPETITIONS, MOST_RULES, Node};
use std::collections::HashMap;

/// Parses a grammar and checks that it has a `root` and that every rule is defined.
pub(super) fn grammar(source: &str) -> Result<Grammar, String> {
    let mut parser = Parser { rest: source, source, names: HashMap::new(), rules: Vec::new() };
    parser.skip_space(true);
    while !parser.rest.is_empty() {
        parser.rule()?;
    }
    let root = parser.names.get("root").copied();
    let Parser { rules, names, .. } = parser;
    let mut defined = Vec::with_capacity(rules.len());
    for (i, rule) in rules.into_iter().enumerate() {
        let Some(node) = rule.node else {
            let name = names.iter().find(|(_, index)| **index == i).map_or("", |(name, _)| name);
            return Err(at(source, rule.first, &format!("the rule `{name}` is not defined")));
        };
        defined.push(node);
    }
    let root = root.ok_or("it has no rule `root`, with which a text begins")?;
    Ok(Grammar { rules: defined, root })
}

/// A rule that was defined or used.
struct Rule {
    /// `None` until it is defined.
    node: Option<Node>,
    /// Where it was first used or defined.
    first: usize,
}

struct Parser<'a> {
    source: &'a str,
    rest: &'a str,
    names: HashMap<&'a str, usize>,
    rules: Vec<Rule>,
}

/// The message with the line and column of a byte of the source.
fn at(source: &str, byte: usize, what: &str) -> String {
    let before = source.get(..byte).unwrap_or(source);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    format!("line {line}, column {column}: {what}")
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Parser<'a> {
    fn position(&self) -> usize {
        self.source.len() - self.rest.len()
    }

    fn fault<T>(&self, what: &str) -> Result<T, String> {
        Err(at(self.source, self.position(), what))
    }

    /// Skips `text`, if it is next.
    fn skip(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn next_char(&mut self) -> Option<char> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        Some(c)
    }

    /// Skips blanks and comments, and line breaks if `lines`.
    fn skip_space(&mut self, lines: bool) {
        loop {
            self.rest = self.rest.trim_start_matches(|c| c == ' ' || c == '\t' || lines && (c == '\n' || c == '\r'));
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = self.rest.find(['\n', '\r']).map_or("", |end| &self.rest[end..]);
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let end = self.rest.find(|c| !is_name(c)).unwrap_or(self.rest.len());
        if end == 0 {
            return self.fault("the name of a rule is expected: letters, digits and dashes");
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }

    /// The index of a rule.
    fn index(&mut self, name: &'a str, first: usize) -> Result<usize, String> {
        if let Some(index) = self.names.get(name) {
            return Ok(*index);
        }
        if self.rules.len() == MOST_RULES {
            return self.fault(&format!("the grammar has more than {MOST_RULES} rules"));
        }
        self.rules.push(Rule { node: None, first });
        self.names.insert(name, self.rules.len() - 1);
        Ok(self.rules.len() - 1)
    }

    /// `name ::= alternatives`, to the end of the line.
    fn rule(&mut self) -> Result<(), String> {
        let begin = self.position();
        let name = self.name()?;
        let index = self.index(name, begin)?;
        if self.rules.get(index).is_some_and(|rule| rule.node.is_some()) {
            return Err(at(self.source, begin, &format!("the rule `{name}` is defined a second time")));
        }
        self.skip_space(false);
        if !self.skip("::=") {
            return self.fault(&format!("`::=` is expected after the name `{name}` of a rule"));
        }
        self.skip_space(true);
        let (node, _) = self.alternatives(0)?;
        if !(self.rest.is_empty() || self.rest.starts_with(['\n', '\r'])) {
            return self.fault("the end of the rule is expected: a line break, or `|` and another alternative");
        }
        if let Some(rule) = self.rules.get_mut(index) {
            rule.node = Some(node);
        }
        self.skip_space(true);
        Ok(())
    }

    /// Alternatives, and the product of their nested repetitions.
    fn alternatives(&mut self, depth: usize) -> Result<(Node, u64), String> {
        if depth == DEEPEST {
            return self.fault(&format!("groups are nested more than {DEEPEST} levels deep"));
        }
        let (first, mut weight) = self.sequence(depth)?;
        let mut all = vec![first];
        while self.skip("|") {
            self.skip_space(true);
            let (node, other) = self.sequence(depth)?;
            all.push(node);
            weight = weight.max(other);
        }
        let node = if all.len() == 1 { all.remove(0) } else { Node::Alternatives(all) };
        Ok((node, weight))
    }

    fn sequence(&mut self, depth: usize) -> Result<(Node, u64), String> {
        let mut all = Vec::new();
        let mut weight = 1;
        while let Some((mut node, mut own)) = self.item(depth)? {
            self.skip_space(depth > 0);
            let mut marks = 0;
            while let Some((least, most)) = self.repetition(depth)? {
                marks += 1;
                if marks > MOST_MARKS {
                    return self.fault(&format!("an element is repeated by more than {MOST_MARKS} marks; use a group"));
                }
                let times = u64::from(most.unwrap_or(least).max(1));
                own = own.saturating_mul(times);
                if own > MOST_REPETITIONS {
                    return self.fault(&format!("more than {MOST_REPETITIONS} repetitions, with those of groups"));
                }
                node = Node::Repeat { node: Box::new(node), least, most };
                self.skip_space(depth > 0);
            }
            weight = weight.max(own);
            all.push(node);
        }
        let node = if all.len() == 1 { all.remove(0) } else { Node::Sequence(all) };
        Ok((node, weight))
    }

    /// An element; `None` at the end of a sequence.
    fn item(&mut self, depth: usize) -> Result<Option<(Node, u64)>, String> {
        let node = match self.rest.chars().next() {
            Some('"') => self.literal()?,
            Some('[') => self.class()?,
            Some('<' | '!') => self.token()?,
            Some('.') => {
                self.skip(".");
                Node::Any
            }
            Some('(') => {
                let begin = self.position();
                self.skip("(");
                self.skip_space(true);
                let group = self.alternatives(depth + 1)?;
                if !self.skip(")") {
                    let open = at(self.source, begin, "");
                    return self.fault(&format!("`)` is expected, for the `(` in {}", open.trim_end_matches(": ")));
                }
                return Ok(Some(group));
            }
            Some('*' | '+' | '?' | '{') => return self.fault("nothing before it can be repeated"),
            Some(c) if is_name(c) => {
                let begin = self.position();
                let name = self.name()?;
                Node::Rule(self.index(name, begin)?)
            }
            _ => return Ok(None),
        };
        Ok(Some((node, 1)))
    }

    /// `*`, `+`, `?`, `{m}`, `{m,}` or `{m,n}`.
    fn repetition(&mut self, depth: usize) -> Result<Option<(u32, Option<u32>)>, String> {
        for (symbol, times) in [("*", (0, None)), ("+", (1, None)), ("?", (0, Some(1)))] {
            if self.skip(symbol) {
                return Ok(Some(times));
            }
        }
        if !self.skip("{") {
            return Ok(None);
        }
        let lines = depth > 0;
        self.skip_space(lines);
        let Some(least) = self.number()? else { return self.fault("a number of repetitions is expected") };
        self.skip_space(lines);
        let most = match self.skip(",") {
            false => Some(least),
            true => {
                self.skip_space(lines);
                self.number()?
            }
        };
        self.skip_space(lines);
        if !self.skip("}") {
            return self.fault("`}` is expected after a number of repetitions");
        }
        if most.is_some_and(|most| most < least) {
            return self.fault("the most repetitions are fewer than the least");
        }
        Ok(Some((least, most)))
    }

    fn number(&mut self) -> Result<Option<u32>, String> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        if digits.is_empty() {
            return Ok(None);
        }
        match digits.parse::<u32>() {
            Ok(number) if u64::from(number) <= MOST_REPETITIONS => {
                self.rest = rest;
                Ok(Some(number))
            }
            _ => self.fault(&format!("more than {MOST_REPETITIONS} repetitions")),
        }
    }

    fn literal(&mut self) -> Result<Node, String> {
        let begin = self.position();
        self.skip("\"");
        let mut text = String::new();
        while !self.skip("\"") {
            match self.character()? {
                Some(c) => text.push(c),
                None => return Err(at(self.source, begin, "this text has no closing quotation mark")),
            }
        }
        Ok(Node::Literal(text))
    }

    fn class(&mut self) -> Result<Node, String> {
        let begin = self.position();
        let open = || at(self.source, begin, "this class of characters has no closing bracket");
        self.skip("[");
        let negated = self.skip("^");
        let mut ranges = Vec::new();
        while !self.skip("]") {
            let Some(low) = self.character()? else { return Err(open()) };
            let mut high = low;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.skip("-");
                let Some(last) = self.character()? else { return Err(open()) };
                high = last;
            }
            if high < low {
                return self.fault(&format!("the range ends before it begins: {low:?} to {high:?}"));
            }
            ranges.push((low, high));
        }
        if ranges.is_empty() && !negated {
            return Err(at(self.source, begin, "this class has no characters"));
        }
        Ok(if ranges.is_empty() { Node::Any } else { Node::Class { negated, ranges } })
    }

    /// A character of a text or class; `None` at the end of the source.
    fn character(&mut self) -> Result<Option<char>, String> {
        let begin = self.position();
        let Some(c) = self.next_char() else { return Ok(None) };
        if c != '\\' {
            return Ok(Some(c));
        }
        let digits = match self.next_char() {
            None => return Ok(None),
            Some('t') => return Ok(Some('\t')),
            Some('r') => return Ok(Some('\r')),
            Some('n') => return Ok(Some('\n')),
            Some(c @ ('\\' | '"' | '[' | ']' | '-')) => return Ok(Some(c)),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(other) => return Err(at(self.source, begin, &format!("unknown escape `\\{other}`"))),
        };
        let code = self.rest.get(..digits).filter(|code| code.bytes().all(|b| b.is_ascii_hexdigit()));
        let Some(code) = code else {
            return Err(at(self.source, begin, &format!("this escape needs {digits} hexadecimal digits")));
        };
        self.rest = self.rest.get(digits..).unwrap_or_default();
        let c = u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        c.map(Some).ok_or_else(|| at(self.source, begin, &format!("no character has the code {code}")))
    }

    /// `<[id]>`, `!<[id]>` or `<name>`.
    fn token(&mut self) -> Result<Node, String> {
        let begin = self.position();
        let negated = self.skip("!");
        let fault = |what: &str| Err(at(self.source, begin, what));
        let Some(inner) = self.rest.strip_prefix('<').and_then(|rest| rest.split_once('>')).map(|(inner, _)| inner)
        else {
            return fault("a token is written <[id]> or <name>");
        };
        if inner.is_empty() || inner.len() > 256 || inner.contains(|c: char| c.is_whitespace() || c == '<') {
            return fault("a token is written <[id]> or <name>, without blanks");
        }
        let id = inner.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let lark = match (id, negated) {
            (None, false) => format!("<{inner}>"),
            (None, true) => return fault("a token that must not follow needs its id: !<[id]>"),
            (Some(id), _) => match id.parse::<u32>() {
                Ok(id) if negated => format!("<[^{id}]>"),
                Ok(id) => format!("<[{id}]>"),
                Err(_) => return fault("the id of a token is a number"),
            },
        };
        self.rest = self.rest.get(inner.len() + 2..).unwrap_or_default();
        Ok(Node::Token(lark))
    }
}
