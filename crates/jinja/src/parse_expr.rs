//! Parser: expressions, in Jinja's order of precedence: `if`, `or`, `and`, `not`, comparisons, `+
//! -`, `~`, `* / // %`, `**`, signs, then attributes, items, calls, filters and tests.

use super::Fault;
use super::ast::{Arguments, Comparison, Expr, Operator};
use super::lex::Tok;
use super::parse::Parser;
use std::sync::Arc;

/// Longest chain of attributes, items, calls, filters, tests and conditions: each contains the one
/// before.
const MAX_CHAIN: usize = 64;

impl Parser {
    /// An expression, or a tuple where commas follow.
    pub(super) fn tuple(&mut self, conditional: bool) -> Result<Expr, Fault> {
        let mut items = Vec::new();
        let mut tuple = false;
        loop {
            if !items.is_empty() && (self.tuple_ends()) {
                break;
            }
            items.push(self.expression(conditional)?);
            if !self.skip_op(",") {
                break;
            }
            tuple = true;
        }
        Ok(if tuple { Expr::Tuple(items) } else { items.remove(0) })
    }

    fn tuple_ends(&self) -> bool {
        matches!(self.peek(), None | Some(Tok::Close | Tok::End)) || self.is_op(")") || self.is_name("recursive")
    }

    pub(super) fn expression(&mut self, conditional: bool) -> Result<Expr, Fault> {
        self.deeper(|p| {
            let start = p.at;
            let mut value = p.or()?;
            let mut links = 0;
            while conditional && p.skip_name("if") {
                p.link(&mut links)?;
                let test = p.or()?;
                let otherwise = if p.skip_name("else") { Some(p.expression(true)?) } else { None };
                value = Expr::If(Box::new((test, value, otherwise)));
                p.unknown.take_if(|(at, _)| *at > start);
            }
            Ok(value)
        })
    }

    fn or(&mut self) -> Result<Expr, Fault> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_name("or") {
            all.push(self.and()?);
        }
        Ok(Expr::Or(all))
    }

    fn and(&mut self) -> Result<Expr, Fault> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_name("and") {
            all.push(self.not()?);
        }
        Ok(Expr::And(all))
    }

    fn not(&mut self) -> Result<Expr, Fault> {
        if self.skip_name("not") {
            return self.deeper(|p| Ok(Expr::Not(Box::new(p.not()?))));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr, Fault> {
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match self.peek() {
                Some(Tok::Op("==")) => Comparison::Eq,
                Some(Tok::Op("!=")) => Comparison::Ne,
                Some(Tok::Op("<")) => Comparison::Lt,
                Some(Tok::Op("<=")) => Comparison::Le,
                Some(Tok::Op(">")) => Comparison::Gt,
                Some(Tok::Op(">=")) => Comparison::Ge,
                Some(Tok::Name(name)) if &**name == "in" => Comparison::In,
                Some(Tok::Name(name)) if &**name == "not" => {
                    match self.tokens.get(self.at + 1).map(|t| &t.tok) {
                        Some(Tok::Name(name)) if &**name == "in" => self.at += 1,
                        _ => break,
                    }
                    Comparison::NotIn
                }
                _ => break,
            };
            self.at += 1;
            rest.push((comparison, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    /// Operators of one precedence.
    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        operand: fn(&mut Parser) -> Result<Expr, Fault>,
    ) -> Result<Expr, Fault> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, operator)) = operators.iter().find(|(op, _)| self.is_op(op)) {
            self.at += 1;
            rest.push((*operator, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr, Fault> {
        self.chain(&[("+", Operator::Add), ("-", Operator::Sub)], Parser::concat)
    }

    fn concat(&mut self) -> Result<Expr, Fault> {
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_op("~") {
            all.push(self.product()?);
        }
        Ok(Expr::Concat(all))
    }

    fn product(&mut self) -> Result<Expr, Fault> {
        let ranks = [("*", Operator::Mul), ("/", Operator::Div), ("//", Operator::FloorDiv), ("%", Operator::Rem)];
        self.chain(&ranks, Parser::power)
    }

    fn power(&mut self) -> Result<Expr, Fault> {
        self.chain(&[("**", Operator::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, filtered: bool) -> Result<Expr, Fault> {
        let negative = self.is_op("-");
        let value = if negative || self.is_op("+") {
            self.at += 1;
            let value = Box::new(self.deeper(|p| p.unary(false))?);
            if negative { Expr::Negative(value) } else { Expr::Positive(value) }
        } else {
            let primary = self.primary()?;
            self.postfix(primary)?
        };
        if filtered { self.filtered(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Result<Expr, Fault> {
        Ok(match self.next() {
            Some(Tok::Name(name)) => match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => {
                    self.used.loop_var |= &*name == "loop";
                    self.used.varargs |= &*name == "varargs";
                    self.used.kwargs |= &*name == "kwargs";
                    self.used.caller |= &*name == "caller";
                    Expr::Name(name)
                }
            },
            Some(Tok::Str(text)) => {
                let Some(Tok::Str(_)) = self.peek() else { return Ok(Expr::Str(text)) };
                let mut whole = text.to_string();
                while let Some(Tok::Str(more)) = self.peek() {
                    whole.push_str(more);
                    self.at += 1;
                }
                Expr::Str(whole.into())
            }
            Some(Tok::Int(value)) => Expr::Int(value),
            Some(Tok::Float(value)) => Expr::Float(value),
            Some(Tok::Op("(")) => {
                if self.skip_op(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple(true)?;
                self.expect_op(")")?;
                inner
            }
            Some(Tok::Op("[")) => Expr::List(self.listed("]")?),
            Some(Tok::Op("{")) => {
                let mut pairs = Vec::new();
                while !self.skip_op("}") {
                    if !pairs.is_empty() {
                        self.expect_op(",")?;
                    }
                    if self.skip_op("}") {
                        break;
                    }
                    let key = self.expression(true)?;
                    self.expect_op(":")?;
                    pairs.push((key, self.expression(true)?));
                }
                Expr::Dict(pairs)
            }
            _ => {
                self.at -= 1;
                return Err(self.unexpected("a value"));
            }
        })
    }

    fn listed(&mut self, end: &str) -> Result<Vec<Expr>, Fault> {
        let mut items = Vec::new();
        while !self.skip_op(end) {
            if !items.is_empty() {
                self.expect_op(",")?;
            }
            if self.skip_op(end) {
                break;
            }
            items.push(self.expression(true)?);
        }
        Ok(items)
    }

    fn postfix(&mut self, mut value: Expr) -> Result<Expr, Fault> {
        let mut links = 0;
        loop {
            if self.skip_op(".") {
                value = match self.next() {
                    Some(Tok::Name(name)) => Expr::Attr(Box::new(value), name),
                    Some(Tok::Int(index)) => Expr::Item(Box::new(value), Box::new(Expr::Int(index))),
                    _ => {
                        self.at -= 1;
                        return Err(self.unexpected("a name or a number"));
                    }
                };
            } else if self.skip_op("[") {
                value = self.subscript(value)?;
            } else if self.is_op("(") {
                value = Expr::Call(Box::new(value), self.arguments()?);
            } else {
                return Ok(value);
            }
            self.link(&mut links)?;
        }
    }

    fn link(&self, links: &mut usize) -> Result<(), Fault> {
        *links += 1;
        if *links > MAX_CHAIN {
            return Err(self.fault(format!("more than {MAX_CHAIN} attributes, calls, filters or conditions in a row")));
        }
        Ok(())
    }

    fn subscript(&mut self, value: Expr) -> Result<Expr, Fault> {
        let mut parts: [Option<Expr>; 3] = [None, None, None];
        let mut colons = 0;
        while !self.is_op("]") {
            if self.skip_op(":") {
                colons += 1;
                if colons > 2 {
                    return Err(self.unexpected("\"]\""));
                }
            } else if parts[colons].is_none() {
                parts[colons] = Some(self.expression(true)?);
            } else {
                return Err(self.unexpected("\"]\""));
            }
        }
        self.expect_op("]")?;
        if colons > 0 {
            return Ok(Expr::Slice(Box::new(value), Box::new(parts)));
        }
        match parts {
            [Some(index), ..] => Ok(Expr::Item(Box::new(value), Box::new(index))),
            _ => Err(self.unexpected("an index")),
        }
    }

    /// Filters, tests and further calls.
    fn filtered(&mut self, mut value: Expr) -> Result<Expr, Fault> {
        let mut links = 0;
        loop {
            if self.skip_op("|") {
                value = self.filter(Some(Box::new(value)))?;
            } else if self.skip_name("is") {
                value = self.test(value)?;
            } else if self.is_op("(") {
                value = Expr::Call(Box::new(value), self.arguments()?);
            } else {
                return Ok(value);
            }
            self.link(&mut links)?;
        }
    }

    /// `a|b|c`; with no value, the filters apply to the text of a block.
    pub(super) fn filters(&mut self, value: Option<Box<Expr>>) -> Result<Expr, Fault> {
        let mut links = 0;
        let mut filter = self.filter(value)?;
        while self.skip_op("|") {
            self.link(&mut links)?;
            filter = self.filter(Some(Box::new(filter)))?;
        }
        Ok(filter)
    }

    fn dotted(&mut self) -> Result<Arc<str>, Fault> {
        let mut name = self.name()?.to_string();
        let mut links = 0;
        while self.skip_op(".") {
            self.link(&mut links)?;
            name.push('.');
            name.push_str(&self.name()?);
        }
        Ok(name.into())
    }

    fn filter(&mut self, value: Option<Box<Expr>>) -> Result<Expr, Fault> {
        let name = self.dotted()?;
        self.check(super::filters::NAMES, &name);
        let arguments = if self.is_op("(") { self.arguments()? } else { Arguments::default() };
        Ok(Expr::Filter(value, name, arguments))
    }

    fn test(&mut self, value: Expr) -> Result<Expr, Fault> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        self.check(super::checks::NAMES, &name);
        let starts_value = match self.peek() {
            Some(Tok::Name(name)) => !matches!(&**name, "else" | "or" | "and"),
            Some(Tok::Str(_) | Tok::Int(_) | Tok::Float(_) | Tok::Op("[" | "{")) => true,
            _ => false,
        };
        let arguments = if self.is_op("(") {
            self.arguments()?
        } else if starts_value {
            if self.is_name("is") {
                return Err(self.fault("tests cannot follow each other; use and"));
            }
            let primary = self.primary()?;
            Arguments { positional: vec![self.postfix(primary)?], ..Arguments::default() }
        } else {
            Arguments::default()
        };
        let test = Expr::Test(Box::new(value), name, arguments);
        Ok(if negated { Expr::Not(Box::new(test)) } else { test })
    }

    fn arguments(&mut self) -> Result<Arguments, Fault> {
        let mut arguments = Arguments::default();
        self.expect_op("(")?;
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            let named = matches!(self.peek(), Some(Tok::Name(_)))
                && matches!(self.tokens.get(self.at + 1).map(|t| &t.tok), Some(Tok::Op("=")));
            if self.skip_op("**") {
                arguments.spread_named = Some(Box::new(self.expression(true)?));
            } else if self.skip_op("*") {
                arguments.spread = Some(Box::new(self.expression(true)?));
            } else if named {
                let name = self.name()?;
                self.at += 1;
                arguments.named.push((name, self.expression(true)?));
            } else if !arguments.named.is_empty() || arguments.spread.is_some() {
                return Err(self.fault("a positional argument follows a named one"));
            } else {
                arguments.positional.push(self.expression(true)?);
            }
        }
        Ok(arguments)
    }
}
