//! Tool calls as Python writes them, `weather(city='Rome', days=3)`: Llama 3.2 and 3.3, Gemma.
//!
//! Arguments are keywords with literals as values, and become a JSON object. A call is read when it
//! is complete.

use serde_json::{Map, Number, Value};

/// Longest call in bytes. Longer text is none.
const LONGEST: usize = 1 << 16;
/// Deepest nesting of lists and dictionaries.
const DEEPEST: usize = 32;

/// What begins at the start of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PythonCall {
    /// A call.
    Call {
        /// The function.
        name: String,
        /// Its arguments as a JSON object.
        arguments: String,
        /// Bytes of the text that the call has.
        len: usize,
    },
    /// More text decides.
    Incomplete,
    /// No call.
    None,
}

/// Reads the call at the start of `text`. `is_known` says whether a function has a name that begins
/// with these letters, or is exactly that name. A `print` around the call is left out.
pub(super) fn read(text: &str, is_known: &dyn Fn(&str, NameLength) -> bool) -> PythonCall {
    let inner = text.strip_prefix("print(").map(|inner| (inner, "print(".len()));
    let (call, before) = inner.unwrap_or((text, 0));
    let name_len = call.find(|c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c))).unwrap_or(call.len());
    let (name, rest) = call.split_at(name_len);
    if rest.is_empty() {
        let begins_print = before == 0 && "print(".starts_with(text);
        let may_grow = begins_print || is_known(name, NameLength::Prefix);
        return if may_grow { PythonCall::Incomplete } else { PythonCall::None };
    }
    if !rest.starts_with('(') || !is_known(name, NameLength::Whole) || call.len() > LONGEST {
        return if "print(".starts_with(text) { PythonCall::Incomplete } else { PythonCall::None };
    }
    let mut reader = Reader { rest: rest.get(1..).unwrap_or_default(), ended: false };
    let Some(arguments) = reader.arguments() else {
        return if reader.ended { PythonCall::Incomplete } else { PythonCall::None };
    };
    if before > 0 && !reader.skip(")") {
        return if reader.rest.trim_start().is_empty() { PythonCall::Incomplete } else { PythonCall::None };
    }
    let arguments = Value::Object(arguments).to_string();
    PythonCall::Call { name: name.to_owned(), arguments, len: text.len() - reader.rest.len() }
}

/// Whether a name is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameLength {
    Prefix,
    Whole,
}

/// Reads Python literals.
struct Reader<'a> {
    rest: &'a str,
    /// Whether the text ended before the literal.
    ended: bool,
}

impl Reader<'_> {
    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.rest.trim_start().strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// The next character after whitespace.
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        let next = self.rest.chars().next();
        self.ended |= next.is_none();
        next
    }

    /// Keywords up to the closing parenthesis.
    fn arguments(&mut self) -> Option<Map<String, Value>> {
        let mut all = Map::new();
        loop {
            if self.peek()? == ')' {
                self.skip(")");
                return Some(all);
            }
            let len = self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
            self.ended |= len.is_none();
            let (key, rest) = self.rest.split_at_checked(len?)?;
            let key = key.to_owned();
            self.rest = rest;
            if key.is_empty() || self.peek()? != '=' {
                return None;
            }
            self.skip("=");
            all.insert(key, self.value(DEEPEST)?);
            if self.peek()? != ')' && !self.skip(",") {
                return None;
            }
        }
    }

    fn value(&mut self, levels: usize) -> Option<Value> {
        let levels = levels.checked_sub(1)?;
        match self.peek()? {
            '\'' | '"' => self.string().map(Value::String),
            '[' => self.list("[", ']', levels),
            '(' => self.list("(", ')', levels),
            '{' => self.dictionary(levels),
            _ => self.word(),
        }
    }

    fn list(&mut self, open: &str, close: char, levels: usize) -> Option<Value> {
        self.skip(open);
        let mut all = Vec::new();
        loop {
            if self.peek()? == close {
                self.rest = self.rest.get(1..)?;
                return Some(Value::Array(all));
            }
            all.push(self.value(levels)?);
            if self.peek()? != close && !self.skip(",") {
                return None;
            }
        }
    }

    fn dictionary(&mut self, levels: usize) -> Option<Value> {
        self.skip("{");
        let mut all = Map::new();
        loop {
            if self.peek()? == '}' {
                self.skip("}");
                return Some(Value::Object(all));
            }
            let key = match self.value(levels)? {
                Value::String(key) => key,
                other => other.to_string(),
            };
            if self.peek()? != ':' {
                return None;
            }
            self.skip(":");
            all.insert(key, self.value(levels)?);
            if self.peek()? != '}' && !self.skip(",") {
                return None;
            }
        }
    }

    /// A string between single or double quotes, or three of them.
    fn string(&mut self) -> Option<String> {
        let quote = self.peek()?;
        let three: String = [quote; 3].iter().collect();
        let end = if self.rest.starts_with(&three) { three } else { quote.to_string() };
        let (mut text, mut chars) = (String::new(), self.rest.get(end.len()..)?.chars());
        loop {
            if let Some(rest) = chars.as_str().strip_prefix(&end) {
                self.rest = rest;
                return Some(text);
            }
            let Some(c) = chars.next() else {
                self.ended = true;
                return None;
            };
            if c != '\\' {
                text.push(c);
                continue;
            }
            match chars.next() {
                Some('n') => text.push('\n'),
                Some('t') => text.push('\t'),
                Some('r') => text.push('\r'),
                Some('\n') => {}
                Some('u') if chars.as_str().len() < 4 => {
                    self.ended = true;
                    return None;
                }
                Some('u') => text.push(unicode(&mut chars)?),
                Some(other @ ('\\' | '\'' | '"')) => text.push(other),
                // Python keeps the backslash of an unknown escape.
                Some(other) => text.extend(['\\', other]),
                None => {
                    self.ended = true;
                    return None;
                }
            }
        }
    }

    /// A number, or the name of a constant; JSON's names too, because models mix them up.
    fn word(&mut self) -> Option<Value> {
        let len = self.rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c)));
        self.ended |= len.is_none();
        let (word, rest) = self.rest.split_at_checked(len?)?;
        let value = match word {
            "None" | "null" => Value::Null,
            "True" | "true" => Value::Bool(true),
            "False" | "false" => Value::Bool(false),
            number => Value::Number(self::number(number)?),
        };
        self.rest = rest;
        Some(value)
    }
}

/// The character of `\uXXXX`.
fn unicode(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let (digits, rest) = chars.as_str().split_at_checked(4)?;
    *chars = rest.chars();
    char::from_u32(u32::from_str_radix(digits, 16).ok()?)
}

fn number(word: &str) -> Option<Number> {
    let word = word.replace('_', "");
    match word.parse::<i64>() {
        Ok(integer) => Some(integer.into()),
        Err(_) => word.parse::<f64>().ok().and_then(Number::from_f64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(text: &str) -> PythonCall {
        let names = ["get_weather", "add", "now"];
        read(text, &|name, length| match length {
            NameLength::Prefix => names.iter().any(|known| known.starts_with(name)),
            NameLength::Whole => names.contains(&name),
        })
    }

    fn is_call(text: &str, name: &str, arguments: &str, rest: &str) {
        let len = text.len() - rest.len();
        let expected = PythonCall::Call { name: name.into(), arguments: arguments.into(), len };
        assert_eq!(call(text), expected, "{text}");
        // Any beginning may become a call, and is none yet.
        for at in (0..len).filter(|at| text.is_char_boundary(*at)) {
            assert_eq!(call(&text[..at]), PythonCall::Incomplete, "{}", &text[..at]);
        }
    }

    #[test]
    fn keywords_become_a_json_object() {
        is_call(
            "get_weather(city='San Francisco', metric='celsius'), x",
            "get_weather",
            r#"{"city":"San Francisco","metric":"celsius"}"#,
            ", x",
        );
        is_call("now()", "now", "{}", "");
        is_call("print(add(a=1, b=-2.5))\n", "add", r#"{"a":1,"b":-2.5}"#, "\n");
        is_call(
            "add(a=[1, 'it\\'s', (True, None)], b={'k': \"v)\", 2: False},)",
            "add",
            r#"{"a":[1,"it's",[true,null]],"b":{"k":"v)","2":false}}"#,
            "",
        );
        is_call("add( a = \"x\\ny\", b='''Köln \"ist\" da''' )", "add", r#"{"a":"x\ny","b":"Köln \"ist\" da"}"#, "");
        is_call("add(a='\\u00e9\\d', b=1e3)", "add", r#"{"a":"é\\d","b":1000.0}"#, "");
    }

    #[test]
    fn other_text_is_no_call() {
        let others = [
            "hello world",
            "add",
            "add[1]",
            "sub(a=1)",
            "add(1, 2)",
            "add(a=f(x))",
            "add(a=1; b=2)",
            "add(a:1)",
            "(add)",
            "print('x')",
            "print(add(a=1), 2)",
            "add(a=1.2.3)",
        ];
        for text in others {
            // A name alone may still become a call.
            let expected = if text == "add" { PythonCall::Incomplete } else { PythonCall::None };
            assert_eq!(call(text), expected, "{text}");
        }
        let deep = format!("add(a={}", "[".repeat(10_000));
        assert_eq!(call(&deep), PythonCall::None);
        assert_eq!(call(&format!("add(a='{}", "x".repeat(LONGEST))), PythonCall::None);
    }
}
