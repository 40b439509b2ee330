//! Writes a parsed grammar in llguidance's dialect of Lark.

use super::{DEEPEST, Grammar, MOST_IN_A_ROW, Node};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

/// The Lark grammar.
pub(super) fn lark(grammar: &Grammar) -> Result<String, String> {
    let mut regular = Regular { grammar, known: vec![None; grammar.rules.len()] };
    let mut used = BTreeMap::new();
    regular.visit(grammar.root, 0, &mut used)?;
    let known: Vec<bool> = regular.known.iter().map(|rule| *rule == Some(true)).collect();
    let mut rows = Rows { grammar, known: &known, rows: vec![None; known.len()] };
    if used.keys().any(|rule| rows.rule(*rule) > MOST_IN_A_ROW) {
        return Err(format!("more than {MOST_IN_A_ROW} repetitions follow each other, with those of rules"));
    }
    let mut emitter = Emitter { grammar, known, terminals: HashMap::new(), text: String::new() };
    let root = emitter.node(&Node::Rule(grammar.root));
    let _ = writeln!(emitter.text, "start: {root}");
    for rule in used.into_keys() {
        emitter.rule(rule);
    }
    Ok(emitter.text)
}

/// Finds the rules that are regular: without recursion and without tokens.
struct Regular<'a> {
    grammar: &'a Grammar,
    /// `None`: not known yet.
    known: Vec<Option<bool>>,
}

impl Regular<'_> {
    /// Whether a rule is regular. `used` collects the rules that were visited, with whether the
    /// visit is not over.
    fn visit(&mut self, rule: usize, depth: usize, used: &mut BTreeMap<usize, bool>) -> Result<bool, String> {
        if depth > DEEPEST {
            return Err(format!("its rules and groups are nested more than {DEEPEST} levels deep"));
        }
        if used.get(&rule) == Some(&true) {
            // Recursion: every rule of the cycle refers to one that is not regular.
            return Ok(false);
        }
        if let Some(known) = self.known.get(rule).copied().flatten() {
            return Ok(known);
        }
        used.insert(rule, true);
        let grammar = self.grammar;
        let is_regular = match grammar.rules.get(rule) {
            Some(node) => self.node(node, depth + 1, used)?,
            None => false,
        };
        used.insert(rule, false);
        if let Some(known) = self.known.get_mut(rule) {
            *known = Some(is_regular);
        }
        Ok(is_regular)
    }

    fn node(&mut self, node: &Node, depth: usize, used: &mut BTreeMap<usize, bool>) -> Result<bool, String> {
        match node {
            Node::Literal(_) | Node::Class { .. } | Node::Any => Ok(true),
            Node::Token(_) => Ok(false),
            Node::Rule(rule) => self.visit(*rule, depth, used),
            Node::Repeat { node, .. } => self.node(node, depth, used),
            Node::Sequence(all) | Node::Alternatives(all) => {
                // All are visited, also after one that is not regular.
                let mut is_regular = true;
                for node in all {
                    is_regular &= self.node(node, depth + 1, used)?;
                }
                Ok(is_regular)
            }
        }
    }
}

/// Counts repetitions that follow each other in a text without recursion.
struct Rows<'a> {
    grammar: &'a Grammar,
    /// Which rules are regular.
    known: &'a [bool],
    /// Of each rule, once it is known.
    rows: Vec<Option<usize>>,
}

impl Rows<'_> {
    fn rule(&mut self, rule: usize) -> usize {
        if let Some(row) = self.rows.get(rule).copied().flatten() {
            return row;
        }
        let grammar = self.grammar;
        let row = grammar.rules.get(rule).map_or(0, |node| self.node(node));
        if let Some(known) = self.rows.get_mut(rule) {
            *known = Some(row);
        }
        row
    }

    fn node(&mut self, node: &Node) -> usize {
        match node {
            Node::Literal(_) | Node::Class { .. } | Node::Any | Node::Token(_) => 0,
            // A rule that is not regular ends the lexeme.
            Node::Rule(rule) if self.known.get(*rule) == Some(&true) => self.rule(*rule),
            Node::Rule(_) => 0,
            Node::Repeat { node, .. } => self.node(node).saturating_add(1),
            Node::Sequence(all) => all.iter().fold(0, |sum: usize, node| sum.saturating_add(self.node(node))),
            Node::Alternatives(all) => all.iter().map(|node| self.node(node)).max().unwrap_or(0),
        }
    }
}

struct Emitter<'a> {
    grammar: &'a Grammar,
    /// Which rules are regular.
    known: Vec<bool>,
    /// The names of lexemes within recursive rules, by their definition.
    terminals: HashMap<String, usize>,
    text: String,
}

impl Emitter<'_> {
    fn is_regular(&self, node: &Node) -> bool {
        match node {
            Node::Literal(_) | Node::Class { .. } | Node::Any => true,
            Node::Token(_) => false,
            Node::Rule(rule) => self.known.get(*rule).copied().unwrap_or(false),
            Node::Repeat { node, .. } => self.is_regular(node),
            Node::Sequence(all) | Node::Alternatives(all) => all.iter().all(|node| self.is_regular(node)),
        }
    }

    /// Writes the definition of a rule.
    fn rule(&mut self, rule: usize) {
        let Some(node) = self.grammar.rules.get(rule) else { return };
        let (name, definition) = match self.known.get(rule) {
            Some(true) => (format!("T{rule}"), self.regular(node)),
            _ => (format!("r{rule}"), self.node(node)),
        };
        let _ = writeln!(self.text, "{name}: {definition}");
    }

    /// A node within a rule. Its largest regular parts are lexemes.
    fn node(&mut self, node: &Node) -> String {
        match node {
            Node::Rule(rule) if self.is_regular(node) => format!("T{rule}"),
            node if self.is_regular(node) => self.terminal(self.regular(node)),
            Node::Rule(rule) => format!("r{rule}"),
            Node::Token(lark) => lark.clone(),
            Node::Repeat { node, least, most } => {
                let node = self.node(node);
                repeated(&node, *least, *most)
            }
            Node::Alternatives(all) => {
                let all: Vec<String> = all.iter().map(|node| self.node(node)).collect();
                format!("({})", all.join(" | "))
            }
            Node::Sequence(all) => {
                let parts = all.chunk_by(|a, b| self.is_regular(a) && self.is_regular(b));
                let parts: Vec<&[Node]> = parts.collect();
                let each = parts.into_iter().map(|part| match part {
                    [node] => self.node(node),
                    part => self.node(&Node::Sequence(part.to_vec())),
                });
                let each: Vec<String> = each.collect();
                format!("({})", each.join(" "))
            }
            Node::Literal(_) | Node::Class { .. } | Node::Any => self.regular(node),
        }
    }

    /// The name of a lexeme with this definition.
    fn terminal(&mut self, definition: String) -> String {
        // The empty text is no lexeme.
        if definition == "\"\"" {
            return definition;
        }
        let next = self.terminals.len();
        match self.terminals.get(&definition) {
            Some(number) => format!("X{number}"),
            None => {
                let _ = writeln!(self.text, "X{next}: {definition}");
                self.terminals.insert(definition, next);
                format!("X{next}")
            }
        }
    }

    /// A regular node within the definition of a lexeme.
    fn regular(&self, node: &Node) -> String {
        match node {
            Node::Literal(text) => literal(text),
            Node::Any => "/(?s:.)/".into(),
            Node::Class { negated, ranges } => class(*negated, ranges),
            Node::Rule(rule) => format!("T{rule}"),
            Node::Repeat { node, least, most } => repeated(&self.regular(node), *least, *most),
            Node::Sequence(all) if all.is_empty() => literal(""),
            Node::Sequence(all) => format!("({})", self.all(all).join(" ")),
            Node::Alternatives(all) => format!("({})", self.all(all).join(" | ")),
            // A token is not regular.
            Node::Token(lark) => lark.clone(),
        }
    }

    fn all(&self, nodes: &[Node]) -> Vec<String> {
        nodes.iter().map(|node| self.regular(node)).collect()
    }
}

fn repeated(node: &str, least: u32, most: Option<u32>) -> String {
    match (least, most) {
        (0, None) => format!("({node})*"),
        (1, None) => format!("({node})+"),
        (0, Some(1)) => format!("({node})?"),
        // llguidance does not support a range that ends at 0.
        (_, Some(0)) => literal(""),
        (least, None) => format!("({node}){{{least},}}"),
        (least, Some(most)) => format!("({node}){{{least},{most}}}"),
    }
}

/// A string of Lark. Only letters and digits are written as they are: brackets would count as
/// nesting.
fn literal(text: &str) -> String {
    let mut lark = String::from("\"");
    for c in text.chars() {
        if c.is_ascii_alphanumeric() || c == ' ' {
            lark.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(lark, "\\u{unit:04x}");
            }
        }
    }
    lark.push('"');
    lark
}

fn class(negated: bool, ranges: &[(char, char)]) -> String {
    let mut lark = String::from(if negated { "/[^" } else { "/[" });
    for (low, high) in ranges {
        let _ = write!(lark, "\\x{{{:x}}}-\\x{{{:x}}}", u32::from(*low), u32::from(*high));
    }
    lark.push_str("]/");
    lark
}
