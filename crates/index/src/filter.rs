//! Filters on the metadata of documents.
//!
//! A comparison is between values of one type; integers and floats are one type. Values of other
//! types are unequal and have no order. A key that a document lacks, or whose value is null, is
//! unequal to everything: [`Test::Ne`] and [`Test::Nin`] accept it, all other tests refuse it.

mod parse;

use std::cmp::Ordering;

use crate::document::{Metadata, Value};

/// A condition on the metadata of a document.
#[derive(Debug, Clone, PartialEq)]
pub enum Filter {
    /// A test of one key.
    Compare(Compare),
    /// All of these; true if there are none.
    And(Vec<Filter>),
    /// At least one of these; false if there are none.
    Or(Vec<Filter>),
}

/// A test of the value of one key.
#[derive(Debug, Clone, PartialEq)]
pub struct Compare {
    /// The key in the metadata.
    pub key: String,
    /// The test.
    pub test: Test,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq)]
pub enum Test {
    /// Equal.
    Eq(Value),
    /// Not equal, or missing.
    Ne(Value),
    /// Greater. Numbers and texts have an order; texts are ordered by their bytes.
    Gt(Value),
    /// Greater or equal.
    Gte(Value),
    /// Less.
    Lt(Value),
    /// Less or equal.
    Lte(Value),
    /// Equal to one of these.
    In(Vec<Value>),
    /// Equal to none of these, or missing.
    Nin(Vec<Value>),
    /// A text that fits a pattern: `*` stands for any characters, also for `/`; `?` for one.
    Glob(String),
}

impl Filter {
    /// Whether a document with this metadata passes.
    pub fn matches(&self, metadata: &Metadata) -> bool {
        match self {
            Filter::Compare(compare) => compare.test.matches(metadata.get(&compare.key)),
            Filter::And(all) => all.iter().all(|filter| filter.matches(metadata)),
            Filter::Or(any) => any.iter().any(|filter| filter.matches(metadata)),
        }
    }

    /// A filter that passes what all of `filters` pass; `None` if there are none.
    pub fn all(mut filters: Vec<Filter>) -> Option<Filter> {
        match filters.len() {
            0 | 1 => filters.pop(),
            _ => Some(Filter::And(filters)),
        }
    }
}

impl Test {
    /// Whether a value passes; `None`: the document lacks the key.
    pub fn matches(&self, value: Option<&Value>) -> bool {
        let value = match value {
            None | Some(Value::Null) => return matches!(self, Test::Ne(_) | Test::Nin(_)),
            Some(value) => value,
        };
        let order = |other: &Value| order(value, other);
        match self {
            Test::Eq(other) => is_equal(value, other),
            Test::Ne(other) => !is_equal(value, other),
            Test::Gt(other) => order(other) == Some(Ordering::Greater),
            Test::Gte(other) => matches!(order(other), Some(Ordering::Greater | Ordering::Equal)),
            Test::Lt(other) => order(other) == Some(Ordering::Less),
            Test::Lte(other) => matches!(order(other), Some(Ordering::Less | Ordering::Equal)),
            Test::In(others) => others.iter().any(|other| is_equal(value, other)),
            Test::Nin(others) => !others.iter().any(|other| is_equal(value, other)),
            Test::Glob(pattern) => match value {
                Value::Text(text) => fits(pattern, text),
                _ => false,
            },
        }
    }
}

/// Whether two values are equal. NaN and null are equal to nothing.
fn is_equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Bool(a), Value::Bool(b)) => a == b,
        _ => order(a, b) == Some(Ordering::Equal),
    }
}

/// The order of two numbers or of two texts; `None` for all other pairs.
fn order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Integer(a), Value::Integer(b)) => Some(a.cmp(b)),
        (Value::Float(a), Value::Float(b)) => a.partial_cmp(b),
        (Value::Integer(a), Value::Float(b)) => order_mixed(*a, *b),
        (Value::Float(a), Value::Integer(b)) => order_mixed(*b, *a).map(Ordering::reverse),
        (Value::Text(a), Value::Text(b)) => Some(a.cmp(b)),
        _ => None,
    }
}

/// The order of an integer and a float, exact also where f64 has gaps between integers.
fn order_mixed(integer: i64, float: f64) -> Option<Ordering> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0; // 2^63
    if float.is_nan() {
        return None;
    }
    if float >= LIMIT {
        return Some(Ordering::Less);
    }
    if float < -LIMIT {
        return Some(Ordering::Greater);
    }
    let whole = float.trunc();
    Some(integer.cmp(&(whole as i64)).then_with(|| 0.0f64.total_cmp(&(float - whole + 0.0))))
}

/// Whether a text fits a pattern with `*` and `?`. Time is at most the product of the lengths. It
/// compares bytes and allocates nothing: a pattern may be matched with a million paths.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go on after the last `*`: it takes one character more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            // Here begins a character: the bytes of the pattern's characters before have matched.
            Some(b'?') => {
                p += 1;
                t += character_bytes(text[t]);
            }
            Some(byte) if *byte == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after, taken)) => {
                    t = taken + character_bytes(text[taken]);
                    retry = Some((after, t));
                    p = after;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// How many bytes a character has that begins with this one.
fn character_bytes(first: u8) -> usize {
    match first {
        0..0x80 => 1,
        0x80..0xe0 => 2,
        0xe0..0xf0 => 3,
        0xf0.. => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    #[test]
    fn numbers_compare_across_types_and_exactly() {
        assert!(Test::Eq(Value::Float(3.0)).matches(Some(&Value::Integer(3))));
        assert!(Test::Gt(Value::Float(2.5)).matches(Some(&Value::Integer(3))));
        assert!(Test::Lt(Value::Float(-2.5)).matches(Some(&Value::Integer(-3))));
        assert!(Test::Gt(Value::Float(-2.5)).matches(Some(&Value::Integer(-2))));
        assert!(Test::Lt(Value::Integer(3)).matches(Some(&Value::Float(2.5))));
        let large = Value::Integer(9_007_199_254_740_993); // 2^53 + 1, which f64 lacks
        assert!(Test::Ne(Value::Float(9_007_199_254_740_992.0)).matches(Some(&large)));
        assert!(Test::Lt(Value::Float(1e300)).matches(Some(&Value::Integer(i64::MAX))));
        assert!(Test::Gt(Value::Float(f64::NEG_INFINITY)).matches(Some(&Value::Integer(i64::MIN))));
        assert!(!Test::Eq(Value::Float(f64::NAN)).matches(Some(&Value::Integer(0))));
        assert!(Test::Eq(Value::Integer(0)).matches(Some(&Value::Float(-0.0))));
    }

    #[test]
    fn other_types_and_missing_keys_are_unequal_and_have_no_order() {
        let number = Some(&Value::Integer(1));
        assert!(!Test::Eq(text("1")).matches(number) && Test::Ne(text("1")).matches(number));
        assert!(!Test::Gte(text("1")).matches(number) && !Test::Lte(text("1")).matches(number));
        for missing in [None, Some(&Value::Null)] {
            assert!(Test::Ne(text("a")).matches(missing) && Test::Nin(vec![text("a")]).matches(missing));
            assert!(!Test::Eq(Value::Null).matches(missing) && !Test::In(vec![Value::Null]).matches(missing));
            assert!(!Test::Lt(text("a")).matches(missing) && !Test::Glob("*".into()).matches(missing));
        }
    }

    #[test]
    fn combinations_of_none_are_true_and_false() {
        let metadata = Metadata::from([("year".into(), Value::Integer(2020)), ("draft".into(), Value::Bool(true))]);
        assert!(Filter::And(vec![]).matches(&metadata) && !Filter::Or(vec![]).matches(&metadata));
        let year = Filter::Compare(Compare { key: "year".into(), test: Test::Gte(Value::Integer(2020)) });
        let draft = Filter::Compare(Compare { key: "draft".into(), test: Test::Eq(Value::Bool(false)) });
        assert!(!Filter::And(vec![year.clone(), draft.clone()]).matches(&metadata));
        assert!(Filter::Or(vec![draft, year]).matches(&metadata));
    }

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("docs/*", "docs/a/b.md", true),
            ("*.md", "docs/a.md", true),
            ("*.md", "docs/a.mdx", false),
            ("d?cs*", "döcs", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            ("", "", true),
            ("**", "", true),
            ("?", "", false),
            ("?", "é", true),
            ("??", "é", false),
            ("*?é", "日本é", true),
            ("*é?", "aéè日é", false),
            ("*è?é", "aéè日é", true),
            ("?日*", "日本日本", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
        assert!(!fits(&"a*".repeat(200), &"a".repeat(199)));
    }
}
