//! GBNF, the grammar format of llama.cpp, translated to llguidance's dialect of Lark.
//!
//! A GBNF grammar describes characters, and a Lark grammar describes lexemes. What does not depend
//! on recursion is a regular language and becomes one lexeme, which is exact on its own. Between
//! lexemes of a recursive grammar the lexer takes the longest match, so such a grammar should not
//! rely on a shorter one: after `[a-z]+`, a literal `"end"` is never found. A text that satisfies
//! the translation always satisfies the grammar.

mod emit;
mod parse;
#[cfg(test)]
mod tests;

/// Most rules, groups not counted.
const MOST_RULES: usize = 2_000;
/// Most levels of rules and groups below `root`. Compiling them is recursive.
const DEEPEST: usize = 64;
/// Most marks of repetition behind one element: each is a level, `a**` for example has two.
const MOST_MARKS: usize = 4;
/// Most repetitions that follow each other within one lexeme, with those of the rules it uses: the time
/// and memory of llguidance grow with the square of their number.
const MOST_IN_A_ROW: usize = 2_000;
/// Most repetitions, multiplied over nested ones. llama.cpp has the same limit for one of them.
const MOST_REPETITIONS: u64 = 2_000;

/// One element of a rule.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    /// These characters.
    Literal(String),
    /// One character of these ranges, or, if negated, of none of them.
    Class { negated: bool, ranges: Vec<(char, char)> },
    /// Any character.
    Any,
    /// A token of the vocabulary, in Lark's syntax.
    Token(String),
    /// A rule, by its index.
    Rule(usize),
    /// One after another.
    Sequence(Vec<Node>),
    /// One of several.
    Alternatives(Vec<Node>),
    /// Between `least` and `most` times; `None`: without a limit.
    Repeat { node: Box<Node>, least: u32, most: Option<u32> },
}

/// A parsed grammar, in which every rule is defined.
#[derive(Debug)]
struct Grammar {
    rules: Vec<Node>,
    root: usize,
}

/// Whether a text is GBNF, not Lark: only GBNF has rules of the form `name ::= …`.
pub(super) fn is_gbnf(source: &str) -> bool {
    source.lines().any(|line| {
        let rest = line.trim_start().trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        rest.trim_start().starts_with("::=")
    })
}

/// The Lark grammar of a GBNF grammar. The error names line and column.
pub(super) fn to_lark(source: &str) -> Result<String, String> {
    emit::lark(&parse::grammar(source)?)
}
