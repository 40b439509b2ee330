//! One call, `{"name": …, "arguments": …}`, read as it comes.
//!
//! A model's JSON comes a few characters at a time, and its arguments are to be passed on as they come. So this is no parser of
//! JSON but a reader of one object's fields: it follows strings and brackets, and leaves judging the rest to whoever reads the
//! arguments.

use serde_json::Value;

/// What came to light.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The name, and that arguments follow.
    Name(String),
    /// More of the arguments.
    Arguments(String),
    /// The object is complete.
    End,
    /// It is no call.
    Broken,
}

/// Where in the object we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Start,
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    Comma,
    /// It ended, well or not.
    Over,
}

/// Whose value is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// How arguments are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// As an object, which is passed on as it comes.
    Object,
    /// As something else (a text that holds JSON, `null`), which is known at its end.
    Whole,
}

/// An object in the making.
#[derive(Clone, Debug)]
pub(super) struct Object {
    at: At,
    field: Field,
    form: Form,
    /// Brackets that are open within the value.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The key or the value that is being read, as it is written.
    raw: String,
    name: Option<String>,
    told: bool,
    /// Arguments that came before the name.
    early: String,
    argued: bool,
}

/// A model that has lost its way in brackets is stopped; arguments are not deeper.
const DEEPEST: usize = 128;

impl Object {
    pub(super) fn new() -> Object {
        Object {
            at: At::Start,
            field: Field::Other,
            form: Form::Whole,
            depth: 0,
            in_string: false,
            escaped: false,
            raw: String::new(),
            name: None,
            told: false,
            early: String::new(),
            argued: false,
        }
    }

    /// Takes the next character. Once it has found its end, or is broken, it takes no more.
    pub(super) fn push(&mut self, c: char, found: &mut Vec<Found>) {
        let blank = c.is_ascii_whitespace();
        match self.at {
            At::Start if c == '{' => self.at = At::Key,
            At::Key if c == '"' => self.begin(At::InKey),
            At::Key | At::Comma if c == '}' => self.end(found),
            At::Colon if c == ':' => self.at = At::Value,
            At::Comma if c == ',' => self.at = At::Key,
            At::Start | At::Key | At::Colon | At::Comma if blank => {}
            At::InKey => self.key(c, found),
            At::Value if blank => {}
            At::Value => self.first(c, found),
            At::InValue => self.value(c, found),
            At::Over => {}
            _ => self.over(Found::Broken, found),
        }
    }

    fn over(&mut self, how: Found, found: &mut Vec<Found>) {
        self.at = At::Over;
        found.push(how);
    }

    /// Whether a value has ended and nothing has come since.
    pub(super) fn is_between(&self) -> bool {
        self.at == At::Comma
    }

    fn begin(&mut self, at: At) {
        (self.at, self.in_string, self.escaped) = (at, true, false);
        self.raw.clear();
        self.raw.push('"');
    }

    /// A character of a string. Whether it was its last.
    fn string(&mut self, c: char) -> bool {
        // JSON has no line breaks within strings; models do.
        match c {
            '\n' => self.raw.push_str("\\n"),
            '\r' => self.raw.push_str("\\r"),
            '\t' => self.raw.push_str("\\t"),
            c if c < ' ' => self.raw.push_str(&format!("\\u{:04x}", c as u32)),
            c => self.raw.push(c),
        }
        match (self.escaped, c) {
            (true, _) => self.escaped = false,
            (false, '\\') => self.escaped = true,
            (false, '"') => {
                self.in_string = false;
                return true;
            }
            _ => {}
        }
        false
    }

    fn key(&mut self, c: char, found: &mut Vec<Found>) {
        if !self.string(c) {
            return;
        }
        let Ok(key) = serde_json::from_str::<String>(&self.raw) else { return self.over(Found::Broken, found) };
        self.field = match key.as_str() {
            "name" => Field::Name,
            "arguments" | "parameters" => Field::Arguments,
            _ => Field::Other,
        };
        // A second one would be told twice, and the first is what was told.
        let twice = match self.field {
            Field::Name => self.name.is_some(),
            Field::Arguments => self.argued,
            Field::Other => false,
        };
        if twice {
            return self.over(Found::Broken, found);
        }
        self.at = At::Colon;
    }

    /// The first character of a value.
    fn first(&mut self, c: char, found: &mut Vec<Found>) {
        self.raw.clear();
        self.at = At::InValue;
        (self.depth, self.in_string, self.escaped) = (0, false, false);
        self.form = if c == '{' { Form::Object } else { Form::Whole };
        if self.field == Field::Arguments && self.form == Form::Object {
            self.argued = true;
            self.tell(found);
        }
        self.value(c, found);
    }

    fn value(&mut self, c: char, found: &mut Vec<Found>) {
        let mut done = false;
        if self.in_string {
            done = self.string(c) && self.depth == 0;
        } else {
            match c {
                // It ended before this: a number, `true`, `null`.
                ',' | '}' if self.depth == 0 => {
                    self.complete(found);
                    return self.push(c, found);
                }
                '"' => {
                    self.in_string = true;
                    self.raw.push(c);
                }
                '{' | '[' => {
                    self.depth += 1;
                    self.raw.push(c);
                    if self.depth > DEEPEST {
                        return self.over(Found::Broken, found);
                    }
                }
                '}' | ']' if self.depth == 0 => return self.over(Found::Broken, found),
                '}' | ']' => {
                    self.depth -= 1;
                    self.raw.push(c);
                    done = self.depth == 0;
                }
                c => self.raw.push(c),
            }
        }
        if self.field == Field::Arguments && self.form == Form::Object {
            let raw = std::mem::take(&mut self.raw);
            self.argue(raw, found);
        }
        if done {
            self.complete(found);
        }
    }

    /// A value is complete.
    fn complete(&mut self, found: &mut Vec<Found>) {
        let raw = std::mem::take(&mut self.raw);
        self.at = At::Comma;
        match (self.field, self.form) {
            (Field::Name, _) => match serde_json::from_str::<String>(&raw) {
                Ok(name) if !name.is_empty() => {
                    self.name = Some(name);
                    self.tell(found);
                }
                _ => self.over(Found::Broken, found),
            },
            // Within a text, or not there at all.
            (Field::Arguments, Form::Whole) => {
                let text = match serde_json::from_str::<Value>(&raw) {
                    Ok(Value::String(text)) if !text.trim().is_empty() => text,
                    Ok(Value::Null | Value::String(_)) => "{}".into(),
                    _ => return self.over(Found::Broken, found),
                };
                self.argued = true;
                self.tell(found);
                self.argue(text, found);
            }
            (Field::Arguments, Form::Object) | (Field::Other, _) => {}
        }
    }

    fn argue(&mut self, text: String, found: &mut Vec<Found>) {
        match self.told {
            false => self.early.push_str(&text),
            true => match found.last_mut() {
                Some(Found::Arguments(before)) => before.push_str(&text),
                _ => found.push(Found::Arguments(text)),
            },
        }
    }

    /// The name is told once it and the arguments are certain: until then this may be any JSON.
    fn tell(&mut self, found: &mut Vec<Found>) {
        if self.told || !self.argued {
            return;
        }
        let Some(name) = self.name.clone() else { return };
        self.told = true;
        found.push(Found::Name(name));
        let early = std::mem::take(&mut self.early);
        if !early.is_empty() {
            self.argue(early, found);
        }
    }

    fn end(&mut self, found: &mut Vec<Found>) {
        self.over(if self.told { Found::End } else { Found::Broken }, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in `text`, the fragments of the arguments put together, and what is left of it.
    fn read(text: &str) -> (Vec<Found>, String) {
        let (mut object, mut all) = (Object::new(), Vec::new());
        for (i, c) in text.char_indices() {
            let mut found = Vec::new();
            object.push(c, &mut found);
            for one in found {
                match (all.last_mut(), one) {
                    (Some(Found::Arguments(before)), Found::Arguments(more)) => before.push_str(&more),
                    (_, one) => all.push(one),
                }
            }
            if matches!(all.last(), Some(Found::End | Found::Broken)) {
                return (all, text[i + c.len_utf8()..].into());
            }
        }
        (all, String::new())
    }

    fn call(name: &str, arguments: &str) -> Vec<Found> {
        vec![Found::Name(name.into()), Found::Arguments(arguments.into()), Found::End]
    }

    #[test]
    fn calls_in_any_order_and_spelling() {
        let same = [
            r#"{"name": "f", "arguments": {"a": [1, {"b": "}\"]"}]}} rest"#,
            r#"{"arguments": {"a": [1, {"b": "}\"]"}]}, "name": "f"} rest"#,
            r#" {"type" : "function" , "name":"f","parameters":{"a": [1, {"b": "}\"]"}]} , "id": 3} rest"#,
            r#"{"name": "\u0066", "arguments": "{\"a\": [1, {\"b\": \"}\\\"]\"}]}"} rest"#,
        ];
        for text in same {
            assert_eq!(read(text), (call("f", r#"{"a": [1, {"b": "}\"]"}]}"#), " rest".into()), "{text}");
        }
        assert_eq!(read(r#"{"name": "f", "arguments": null}"#).0, call("f", "{}"));
        assert_eq!(read(r#"{"name": "f", "arguments": {}}"#).0, call("f", "{}"));
    }

    #[test]
    fn arguments_come_before_they_are_complete() {
        let (found, _) = read(r#"{"name": "f", "arguments": {"a": "gr"#);
        assert_eq!(found, [Found::Name("f".into()), Found::Arguments(r#"{"a": "gr"#.into())]);
        // Nothing is certain before the arguments begin.
        assert_eq!(read(r#"{"name": "f", "#).0, []);
    }

    #[test]
    fn line_breaks_within_strings_become_json() {
        let (found, _) = read("{\"name\": \"f\", \"arguments\": {\"a\":\n\"x\ny\u{1}\"}}");
        assert_eq!(found, call("f", "{\"a\":\n\"x\\ny\\u0001\"}"));
        assert!(serde_json::from_str::<serde_json::Value>("{\"a\":\n\"x\\ny\\u0001\"}").is_ok());
    }

    #[test]
    fn what_is_no_call() {
        let broken = [
            "[1]",
            "{}",
            r#"{"name": "f"}"#,
            r#"{"arguments": {}}"#,
            r#"{"name": 3, "arguments": {}}"#,
            r#"{"name": "", "arguments": {}}"#,
            r#"{"name": "f", "arguments": 3}"#,
            r#"{"name": "f" "arguments": {}}"#,
            r#"{"name": "f", "name": "g", "arguments": {}}"#,
            r#"{name: "f"}"#,
            r#"{"name": ]}"#,
        ];
        for text in broken {
            let found = read(text).0;
            assert_eq!(found.last(), Some(&Found::Broken), "{text}");
            assert!(!found.contains(&Found::End), "{text}");
        }
        let deep = format!(r#"{{"name": "f", "arguments": {}"#, "[".repeat(10_000));
        assert_eq!(read(&deep).0.last(), Some(&Found::Broken));
    }
}
