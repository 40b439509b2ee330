//! Syntax tree of a template.

use std::sync::Arc;

/// An expression.
#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Or(Vec<Expr>),
    And(Vec<Expr>),
    Not(Box<Expr>),
    Compare(Box<Expr>, Vec<(Comparison, Expr)>),
    /// Operators of one precedence, from left to right. Flat, so that a long sum is not a deep
    /// tree.
    Chain(Box<Expr>, Vec<(Operator, Expr)>),
    /// `a ~ b ~ c`
    Concat(Vec<Expr>),
    Negative(Box<Expr>),
    Positive(Box<Expr>),
    /// Condition, then, else.
    If(Box<(Expr, Expr, Option<Expr>)>),
    Attr(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Arguments),
    /// The value is `None` if the filter applies to the text of a block.
    Filter(Option<Box<Expr>>, Arc<str>, Arguments),
    Test(Box<Expr>, Arc<str>, Arguments),
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    /// `*rest` and `**rest`
    pub(super) spread: Option<Box<Expr>>,
    pub(super) spread_named: Option<Box<Expr>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Operator {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

/// Target of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    /// `namespace.attribute`
    Attr(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

/// A statement and its line.
#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: u32,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Data(Arc<str>),
    Print(Expr),
    /// Conditions with their bodies; `else` has no condition.
    If(Vec<(Option<Expr>, Vec<Stmt>)>),
    For(Arc<For>),
    Set(Target, Expr),
    /// A block of text, filtered if there is a filter.
    SetBlock(Target, Option<Expr>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    FilterBlock(Expr, Vec<Stmt>),
    Macro(Arc<MacroDef>),
    CallBlock(Expr, Arc<MacroDef>),
    /// `{% generation %}`: marks text of the assistant; for rendering, only a scope.
    Generation(Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) items: Expr,
    pub(super) test: Option<Expr>,
    pub(super) recursive: bool,
    /// Whether the body names `loop`: only then are the items needed before the loop starts.
    pub(super) uses_loop: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) struct MacroDef {
    pub(super) name: Arc<str>,
    pub(super) parameters: Vec<(Arc<str>, Option<Expr>)>,
    /// Whether the body names `varargs`, `kwargs` or `caller`, and so accepts surplus arguments.
    pub(super) takes_varargs: bool,
    pub(super) takes_kwargs: bool,
    pub(super) takes_caller: bool,
    pub(super) body: Vec<Stmt>,
}
