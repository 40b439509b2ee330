//! Structured output (constrained decoding): JSON, a JSON schema, a regular expression or a
//! grammar.
//!
//! llguidance computes which tokens may follow. Schemas and expressions come from untrusted users,
//! so its limits are set here, and an impossible or too costly constraint fails when it is
//! compiled, not in the middle of a text.

mod gbnf;
#[cfg(test)]
mod tests;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use sconce_text::stream::{TokenBytes, token_bytes};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Longest token in bytes. Longer ones are excluded: the token trie is walked by recursion, and no
/// real vocabulary has such tokens.
const LONGEST_TOKEN: usize = 1024;
/// Most bytes of a schema, an expression or a grammar.
const LONGEST_SOURCE: usize = 256 << 10;
/// Most levels of a schema. Compiling it is recursive.
const DEEPEST_SCHEMA: usize = 64;
/// Most nested brackets in a grammar.
const MOST_BRACKETS: usize = 128;
/// Most marks of repetition in a regular expression: the time and memory of llguidance grow with the
/// square of their number.
const MOST_REPEATS: usize = 2_000;
/// Most rules and brackets of a grammar in Lark together. llguidance compiles a rule where another
/// first refers to it, and a bracket where it stands, by recursion: so these are its levels at most.
const MOST_LEVELS: usize = 16_000;
/// The stack for compiling, which has room for so many levels.
const COMPILE_STACK: usize = 128 << 20;
/// Consecutive whitespace allowed within JSON: enough for any layout, but finite, so that a model
/// cannot repeat whitespace forever.
const WHITESPACE: &str = r"[ \t\r\n]{1,64}";

/// The required format of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Any JSON object.
    JsonObject,
    /// JSON that satisfies a schema.
    JsonSchema(Value),
    /// A text that a regular expression matches as a whole.
    Regex(String),
    /// A text of a grammar in llguidance's dialect of Lark.
    Grammar(String),
    /// A text of a grammar in llama.cpp's format, GBNF.
    Gbnf(String),
}

impl Format {
    /// A grammar in either of the formats, which the text shows: only GBNF has rules of the form
    /// `name ::= …`.
    pub fn grammar(source: impl Into<String>) -> Format {
        let source = source.into();
        if gbnf::is_gbnf(&source) { Format::Gbnf(source) } else { Format::Grammar(source) }
    }
}

/// Why a format cannot be used, or was given up.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The model's vocabulary cannot be used.
    #[error("this model does not support structured output: {0}")]
    Vocab(String),
    /// The format is invalid, impossible or too costly.
    #[error("the {form} cannot be used: {why}")]
    Form {
        /// The kind of format: schema, expression or grammar.
        form: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The format does not allow the token here.
    #[error("token {0} is not allowed by the format here")]
    Token(u32),
    /// The format became too costly during generation.
    #[error("the {form} was given up: {why}")]
    Cost {
        /// The kind of format.
        form: &'static str,
        /// The exceeded limit.
        why: String,
    },
}

/// A model's tokens in a trie, for computing token masks. Made once per tokenizer.
pub(crate) struct Vocab {
    factory: ParserFactory,
    len: usize,
}

impl std::fmt::Debug for Vocab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vocab").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Vocab {
    /// The vocabulary of a model that has the first `len` ids of a tokenizer, some of which are end
    /// tokens.
    pub(crate) fn of(tokenizer: &Tokenizer, len: usize, ends: &BTreeSet<u32>) -> Result<Vocab, FormatError> {
        let mut tokens = token_bytes(tokenizer).map_err(FormatError::Vocab)?;
        tokens.truncate(len);
        // Files may name end tokens that their tokenizer lacks.
        let eos: Vec<u32> = ends.iter().copied().filter(|id| (*id as usize) < tokens.len()).collect();
        for id in &eos {
            // Files need not mark end tokens as special.
            if let TokenBytes::Text(bytes) = &tokens[*id as usize] {
                tokens[*id as usize] = TokenBytes::Special(String::from_utf8_lossy(bytes).into_owned());
            }
        }
        Vocab::new(&tokens, &eos)
    }

    /// From the bytes of each id and the end tokens.
    fn new(tokens: &[TokenBytes], eos: &[u32]) -> Result<Vocab, FormatError> {
        let fault = |what: &str| Err(FormatError::Vocab(what.into()));
        let Ok(len) = u32::try_from(tokens.len()) else { return fault("it has too many tokens") };
        if eos.is_empty() {
            return fault("it has no end token");
        }
        if let Some(id) = eos.iter().find(|id| **id >= len) {
            return fault(&format!("the end token {id} is outside of the vocabulary of {len}"));
        }
        let words: Vec<Vec<u8>> = tokens.iter().map(trie_bytes).collect();
        // The trie checks itself with assertions.
        let built = catch_unwind(AssertUnwindSafe(|| {
            let trie = TokTrie::from(&TokRxInfo::new(len, eos[0]), &words).with_eos_tokens(eos);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            let slices = SlicedBiasComputer::general_slices();
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|e| e.to_string())
        }));
        let mut factory = match built {
            Ok(Ok(factory)) => factory,
            Ok(Err(why)) => return fault(&why),
            Err(_) => return fault("its tokens are inconsistent"),
        };
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(Vocab { factory, len: tokens.len() })
    }
}

/// The bytes in the trie. Special tokens follow a marker byte that no text has, so that no text can
/// spell them.
fn trie_bytes(token: &TokenBytes) -> Vec<u8> {
    match token {
        TokenBytes::Text(bytes)
            if bytes.len() <= LONGEST_TOKEN && bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) =>
        {
            bytes.clone()
        }
        TokenBytes::Special(name) if name.len() <= LONGEST_TOKEN => {
            [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()
        }
        _ => Vec::new(),
    }
}

/// Limits: a fifth of a second to compile a constraint, a tenth for a mask, and some 100 MB. Large
/// public schemas take several times less.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        max_lexer_states: 50_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// The tokens that may come next.
#[derive(Clone, Debug)]
pub(crate) struct TokenMask(SimpleVob);

impl TokenMask {
    /// A bit per id, from the lowest bit of the first word. Ids beyond the last bit are not
    /// allowed.
    pub(crate) fn words(&self) -> &[u32] {
        self.0.as_slice()
    }

    /// Allows a further token.
    pub(crate) fn allow(&mut self, id: u32) {
        if (id as usize) < self.0.len() {
            self.0.allow_token(id);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_zero()
    }
}

/// The constraint of one text, and its state.
pub(crate) struct Constraint {
    matcher: Matcher,
    form: &'static str,
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("form", &self.form).finish_non_exhaustive()
    }
}

impl Constraint {
    /// Compiles a format. Fails if no text satisfies it, or if it is too costly.
    pub(crate) fn new(format: Format, vocab: &Vocab) -> Result<Constraint, FormatError> {
        let form = match &format {
            Format::JsonObject | Format::JsonSchema(_) => "JSON schema",
            Format::Regex(_) => "regular expression",
            Format::Grammar(_) | Format::Gbnf(_) => "grammar",
        };
        let fault = |why: String| FormatError::Form { form, why };
        let grammar = grammar(format).map_err(fault)?;
        let compiled = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("compile grammar".into()).stack_size(COMPILE_STACK);
            let thread = thread.spawn_scoped(scope, move || vocab.factory.create_parser(grammar))?;
            std::io::Result::Ok(thread.join())
        });
        let parser = match compiled {
            Ok(Ok(Ok(parser))) => parser,
            Ok(Ok(Err(why))) => return Err(fault(reason(&why.to_string()))),
            Ok(Err(_)) => return Err(fault("it is inconsistent".into())),
            Err(e) => return Err(fault(format!("no thread can be started: {e}"))),
        };
        let mut constraint = Constraint { matcher: Matcher::new(Ok(parser)), form };
        // The first mask shows whether any text satisfies it.
        match constraint.mask() {
            Ok(mask) if mask.is_empty() => Err(fault("no token of the model can begin it".into())),
            Ok(_) => Ok(constraint),
            Err(FormatError::Cost { why, .. }) => Err(fault(why)),
            Err(other) => Err(other),
        }
    }

    /// A copy with its own state.
    pub(crate) fn fork(&self) -> Constraint {
        // A deep clone: a shallow one shares a lock, and the two would wait for each other's masks.
        Constraint { matcher: self.matcher.deep_clone(), form: self.form }
    }

    /// The tokens that may come next; end tokens among them when the text may end.
    pub(crate) fn mask(&mut self) -> Result<TokenMask, FormatError> {
        let mask = self.matcher.compute_mask_or_eos();
        mask.map(TokenMask).map_err(|why| FormatError::Cost { form: self.form, why: reason(&why.to_string()) })
    }

    /// Advances by a token.
    pub(crate) fn commit(&mut self, token: u32) -> Result<(), FormatError> {
        match self.matcher.try_consume_tokens(&[token]) {
            Ok(1) => Ok(()),
            Ok(_) => Err(FormatError::Token(token)),
            Err(why) => Err(FormatError::Cost { form: self.form, why: reason(&why.to_string()) }),
        }
    }

    /// Whether the text satisfies the format and may end here.
    #[cfg(test)]
    pub(crate) fn can_stop(&mut self) -> bool {
        self.matcher.is_stopped() && !self.matcher.is_error() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// Whether nothing may follow.
    pub(crate) fn is_done(&self) -> bool {
        self.matcher.is_stopped()
    }
}

fn grammar(format: Format) -> Result<TopLevelGrammar, String> {
    let check_length = |len: usize| match len {
        0..=LONGEST_SOURCE => Ok(()),
        _ => Err(format!("it is longer than {LONGEST_SOURCE} bytes")),
    };
    Ok(match format {
        Format::Regex(source) => {
            check_length(source.len())?;
            check_repeats(&source)?;
            TopLevelGrammar::from_regex(&source)
        }
        Format::Grammar(source) => {
            check_length(source.len())?;
            check_nesting(&source)?;
            check_levels(&source)?;
            TopLevelGrammar::from_lark(source)
        }
        Format::Gbnf(source) => {
            check_length(source.len())?;
            let lark = gbnf::to_lark(&source)?;
            check_nesting(&lark)?;
            check_levels(&lark)?;
            TopLevelGrammar::from_lark(lark)
        }
        Format::JsonObject => schema(json!({"type": "object"}))?,
        Format::JsonSchema(source) => {
            check_depth(&source, DEEPEST_SCHEMA)?;
            check_length(source.to_string().len())?;
            schema(source)?
        }
    })
}

fn schema(mut schema: Value) -> Result<TopLevelGrammar, String> {
    let options = JsonCompileOptions { whitespace_pattern: Some(WHITESPACE.into()), ..JsonCompileOptions::default() };
    match &mut schema {
        // The schema `true` allows any JSON.
        Value::Bool(true) => schema = json!({}),
        Value::Object(_) => {}
        _ => return Err("a schema is an object".into()),
    }
    // Overrides any settings that came with the schema.
    options.apply_to(&mut schema);
    Ok(TopLevelGrammar::from_json_schema(schema))
}

fn check_depth(value: &Value, levels: usize) -> Result<(), String> {
    let Some(levels) = levels.checked_sub(1) else {
        return Err(format!("it is nested more than {DEEPEST_SCHEMA} levels deep"));
    };
    match value {
        Value::Array(items) => items.iter().try_for_each(|v| check_depth(v, levels)),
        Value::Object(map) => map.iter().try_for_each(|(key, v)| {
            // The keys of `patternProperties` are expressions.
            check_repeats(key)?;
            check_depth(v, levels)
        }),
        // It may be a `pattern`.
        Value::String(text) => check_repeats(text),
        _ => Ok(()),
    }
}

/// Limits the marks of repetition in a regular expression. Those that stand for themselves count too.
fn check_repeats(source: &str) -> Result<(), String> {
    match source.bytes().filter(|byte| b"*+?{".contains(byte)).count() {
        0..=MOST_REPEATS => Ok(()),
        marks => Err(format!("an expression has {marks} marks of repetition; the limit is {MOST_REPEATS}")),
    }
}

/// Limits nested brackets, because grammars are parsed by recursion. Brackets within strings count
/// too, which matters only if a grammar has many more opening than closing ones.
fn check_nesting(source: &str) -> Result<(), String> {
    let mut open = 0usize;
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        if open > MOST_BRACKETS {
            return Err(format!("its brackets are nested more than {MOST_BRACKETS} levels deep"));
        }
    }
    Ok(())
}

/// Limits rules and brackets. Colons and brackets within strings count too: whoever writes the grammar
/// must not be able to hide some.
fn check_levels(source: &str) -> Result<(), String> {
    match source.bytes().filter(|byte| b":([{".contains(byte)).count() {
        0..=MOST_LEVELS => Ok(()),
        levels => Err(format!("it has {levels} colons and opening brackets; the limit is {MOST_LEVELS}")),
    }
}

/// llguidance's message, shortened and without the traces it adds.
fn reason(why: &str) -> String {
    if why.contains("NoExtensionBias") {
        return "no text satisfies it".into();
    }
    let lines = || why.lines().map(str::trim).filter(|line| !line.is_empty());
    // llguidance quotes the expression before the error.
    let line = lines().find_map(|line| line.strip_prefix("error: ")).or_else(|| lines().next());
    line.unwrap_or("it failed").chars().take(300).collect()
}
