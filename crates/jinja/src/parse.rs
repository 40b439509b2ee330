//! Parser: tokens to statements. Expressions are in `parse_expr`.

use super::Fault;
use super::ast::{Expr, For, Kind, MacroDef, Stmt, Target};
use super::lex::{Tok, Token, lex};
use std::sync::Arc;

/// Deepest nesting of brackets and blocks. Templates of models stay below some 20; the limit bounds
/// our own stack.
const MAX_DEPTH: usize = 64;

pub(super) fn parse(source: &str) -> Result<Vec<Stmt>, Fault> {
    let mut parser =
        Parser { tokens: lex(source)?, at: 0, depth: 0, used: NamesUsed::default(), soft: false, unknown: None };
    let body = parser.body(&[])?;
    parser.unknown.map_or(Ok(body), |(_, fault)| Err(fault))
}

/// Special names that a body uses.
#[derive(Clone, Copy, Default)]
pub(super) struct NamesUsed {
    pub(super) loop_var: bool,
    pub(super) varargs: bool,
    pub(super) kwargs: bool,
    pub(super) caller: bool,
}

/// Names with optional defaults.
type Parameters = Vec<(Arc<str>, Option<Expr>)>;

pub(super) struct Parser {
    pub(super) tokens: Vec<Token>,
    pub(super) at: usize,
    depth: usize,
    pub(super) used: NamesUsed,
    /// Whether an unknown filter or test is an error only when it runs, as inside an `if`.
    soft: bool,
    /// The first unknown name that is an error, and its position.
    pub(super) unknown: Option<(usize, Fault)>,
}

impl Parser {
    pub(super) fn peek(&self) -> Option<&Tok> {
        self.tokens.get(self.at).map(|t| &t.tok)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    pub(super) fn next(&mut self) -> Option<Tok> {
        let tok = self.peek().cloned();
        self.at += 1;
        tok
    }

    pub(super) fn fault(&self, what: impl Into<String>) -> Fault {
        Fault::Syntax { line: self.line(), what: what.into() }
    }

    pub(super) fn unexpected(&self, wanted: &str) -> Fault {
        let found = match self.peek() {
            None => "the end of the template".to_string(),
            Some(Tok::Data(_)) => "text".into(),
            Some(Tok::Open) => "{{".into(),
            Some(Tok::Close) => "}}".into(),
            Some(Tok::Begin) => "{%".into(),
            Some(Tok::End) => "the end of the tag".into(),
            Some(Tok::Name(name)) => format!("{name:?}"),
            Some(Tok::Str(_)) => "a string".into(),
            Some(Tok::Int(_) | Tok::Float(_)) => "a number".into(),
            Some(Tok::Op(op)) => format!("{op:?}"),
        };
        self.fault(format!("expected {wanted}, found {found}"))
    }

    pub(super) fn is_op(&self, op: &str) -> bool {
        matches!(self.peek(), Some(Tok::Op(o)) if *o == op)
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Tok::Name(n)) if &**n == name)
    }

    pub(super) fn skip_op(&mut self, op: &str) -> bool {
        let is = self.is_op(op);
        self.at += usize::from(is);
        is
    }

    pub(super) fn skip_name(&mut self, name: &str) -> bool {
        let is = self.is_name(name);
        self.at += usize::from(is);
        is
    }

    pub(super) fn expect_op(&mut self, op: &'static str) -> Result<(), Fault> {
        if self.skip_op(op) { Ok(()) } else { Err(self.unexpected(&format!("{op:?}"))) }
    }

    pub(super) fn name(&mut self) -> Result<Arc<str>, Fault> {
        match self.peek() {
            Some(Tok::Name(name)) => {
                let name = name.clone();
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            Some(Tok::End) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.unexpected("the end of the tag")),
        }
    }

    /// Runs `f` one level deeper.
    pub(super) fn deeper<T>(&mut self, f: impl FnOnce(&mut Parser) -> Result<T, Fault>) -> Result<T, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(self.fault(format!("nested more than {MAX_DEPTH} deep")));
        }
        self.depth += 1;
        let result = f(self);
        self.depth -= 1;
        result
    }

    /// Runs `f` with unknown names as errors at once, or only when they run.
    fn with_soft_names<T>(&mut self, soft: bool, f: impl FnOnce(&mut Parser) -> Result<T, Fault>) -> Result<T, Fault> {
        let before = std::mem::replace(&mut self.soft, soft);
        let result = f(self);
        self.soft = before;
        result
    }

    /// Records the name of a filter or test that is not in `names`.
    pub(super) fn check(&mut self, names: &str, name: &str) {
        if !self.soft && self.unknown.is_none() && !names.split(' ').any(|n| n == name) {
            self.unknown = Some((self.at, self.fault(format!("there is no filter or test {name}"))));
        }
    }

    /// Statements up to a tag with one of the names `ends`, which is not consumed; without names,
    /// up to the end of the template.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>, Fault> {
        let statements = |p: &mut Parser| {
            let mut body = Vec::new();
            loop {
                let line = p.line();
                let kind = match p.next() {
                    None if ends.is_empty() => return Ok(body),
                    None => return Err(p.fault(format!("{{% {} %}} is missing", ends[ends.len() - 1]))),
                    Some(Tok::Data(text)) => Kind::Data(text),
                    Some(Tok::Open) => {
                        let value = p.tuple(true)?;
                        match p.next() {
                            Some(Tok::Close) => Kind::Print(value),
                            _ => {
                                p.at -= 1;
                                return Err(p.unexpected("}}"));
                            }
                        }
                    }
                    Some(Tok::Begin) => {
                        if ends.iter().any(|end| p.is_name(end)) {
                            return Ok(body);
                        }
                        p.statement()?
                    }
                    Some(_) => return Err(p.fault("this tag closes no open block")),
                };
                body.push(Stmt { line, kind });
            }
        };
        self.deeper(|p| p.with_soft_names(ends.contains(&"endif"), statements))
    }

    /// A body and its closing tag.
    fn closed(&mut self, end: &str) -> Result<Vec<Stmt>, Fault> {
        let body = self.body(&[end])?;
        self.at += 1;
        self.end()?;
        Ok(body)
    }

    fn statement(&mut self) -> Result<Kind, Fault> {
        let name = self.name()?;
        match &*name {
            "if" => self.if_(),
            "for" => self.for_(),
            "set" => self.set(),
            "macro" => {
                let name = self.name()?;
                Ok(Kind::Macro(Arc::new(self.macro_(name, "endmacro", None)?)))
            }
            "call" => {
                let parameters = if self.is_op("(") { self.parameters()? } else { Vec::new() };
                let call = self.expression(true)?;
                if !matches!(call, Expr::Call(..)) {
                    return Err(self.fault("{% call %} needs a call"));
                }
                Ok(Kind::CallBlock(call, Arc::new(self.macro_("caller".into(), "endcall", Some(parameters))?)))
            }
            "with" => {
                let mut pairs = Vec::new();
                while !matches!(self.peek(), Some(Tok::End)) {
                    if !pairs.is_empty() {
                        self.expect_op(",")?;
                    }
                    let target = self.target(false)?;
                    self.expect_op("=")?;
                    pairs.push((target, self.expression(true)?));
                }
                self.end()?;
                Ok(Kind::With(pairs, self.closed("endwith")?))
            }
            "filter" => {
                let filter = self.with_soft_names(false, |p| p.filters(None))?;
                self.end()?;
                Ok(Kind::FilterBlock(filter, self.closed("endfilter")?))
            }
            "generation" => {
                self.end()?;
                Ok(Kind::Generation(self.closed("endgeneration")?))
            }
            "break" | "continue" => {
                self.end()?;
                Ok(if &*name == "break" { Kind::Break } else { Kind::Continue })
            }
            "include" | "import" | "from" | "extends" | "block" => {
                Err(self.fault(format!("{{% {name} %}} needs other templates, and a chat template has none")))
            }
            _ => Err(self.fault(format!("there is no tag {{% {name} %}}"))),
        }
    }

    fn if_(&mut self) -> Result<Kind, Fault> {
        let mut branches = Vec::new();
        let mut test = Some(self.with_soft_names(true, |p| p.tuple(false))?);
        loop {
            self.end()?;
            let body = match test {
                Some(_) => self.body(&["elif", "else", "endif"])?,
                None => self.body(&["endif"])?,
            };
            branches.push((test, body));
            if self.skip_name("elif") {
                test = Some(self.with_soft_names(true, |p| p.tuple(false))?);
            } else if self.skip_name("else") {
                test = None;
            } else {
                self.at += 1;
                self.end()?;
                return Ok(Kind::If(branches));
            }
        }
    }

    fn for_(&mut self) -> Result<Kind, Fault> {
        let target = self.target(false)?;
        if !self.skip_name("in") {
            return Err(self.unexpected("\"in\""));
        }
        let items = self.tuple(false)?;
        let before = std::mem::take(&mut self.used.loop_var);
        let test = if self.skip_name("if") { Some(self.with_soft_names(false, |p| p.expression(true))?) } else { None };
        let recursive = self.skip_name("recursive");
        self.end()?;
        let body = self.body(&["else", "endfor"])?;
        let uses_loop = std::mem::replace(&mut self.used.loop_var, before);
        let otherwise = if self.skip_name("else") {
            self.end()?;
            self.body(&["endfor"])?
        } else {
            Vec::new()
        };
        self.at += 1;
        self.end()?;
        Ok(Kind::For(Arc::new(For { target, items, test, recursive, uses_loop, body, otherwise })))
    }

    fn set(&mut self) -> Result<Kind, Fault> {
        let target = self.target(true)?;
        if self.skip_op("=") {
            let value = self.tuple(true)?;
            self.end()?;
            return Ok(Kind::Set(target, value));
        }
        let filter = if self.skip_op("|") { Some(self.with_soft_names(false, |p| p.filters(None))?) } else { None };
        self.end()?;
        Ok(Kind::SetBlock(target, filter, self.closed("endset")?))
    }

    fn parameters(&mut self) -> Result<Parameters, Fault> {
        let mut parameters = Parameters::new();
        self.expect_op("(")?;
        while !self.skip_op(")") {
            if !parameters.is_empty() {
                self.expect_op(",")?;
            }
            let name = self.name()?;
            let default =
                if self.skip_op("=") { Some(self.with_soft_names(false, |p| p.expression(true))?) } else { None };
            if default.is_none() && parameters.last().is_some_and(|(_, default)| default.is_some()) {
                return Err(self.fault("a parameter without a default follows one with a default"));
            }
            parameters.push((name, default));
        }
        Ok(parameters)
    }

    fn macro_(&mut self, name: Arc<str>, end: &str, parameters: Option<Parameters>) -> Result<MacroDef, Fault> {
        let before = std::mem::take(&mut self.used);
        let parameters = match parameters {
            Some(parameters) => parameters,
            None => self.parameters()?,
        };
        self.end()?;
        let body = self.closed(end)?;
        let used = std::mem::replace(&mut self.used, before);
        // A macro may read the `loop` and `caller` of the code around it, so their use counts there
        // too.
        self.used.loop_var |= used.loop_var;
        self.used.caller |= used.caller;
        Ok(MacroDef {
            name,
            parameters,
            takes_varargs: used.varargs,
            takes_kwargs: used.kwargs,
            takes_caller: used.caller,
            body,
        })
    }

    fn target(&mut self, attributes: bool) -> Result<Target, Fault> {
        self.deeper(|p| {
            let mut targets = Vec::new();
            let mut tuple = false;
            loop {
                if p.is_name("in") || p.is_op("=") || p.is_op(")") || matches!(p.peek(), Some(Tok::End)) {
                    break;
                }
                if p.skip_op("(") {
                    let inner = p.target(false)?;
                    p.expect_op(")")?;
                    targets.push(inner);
                } else {
                    let name = p.name()?;
                    if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
                        return Err(p.fault(format!("{name} cannot be set")));
                    }
                    if attributes && p.skip_op(".") {
                        let attribute = p.name()?;
                        targets.push(Target::Attr(name, attribute));
                    } else {
                        targets.push(Target::Name(name));
                    }
                }
                if !p.skip_op(",") {
                    break;
                }
                tuple = true;
            }
            match targets.len() {
                0 => Err(p.unexpected("a name")),
                1 if !tuple => Ok(targets.remove(0)),
                _ => Ok(Target::Tuple(targets)),
            }
        })
    }
}
