//! Incremental parser of one tool call, `{"name": …, "arguments": …}`.
//!
//! A model writes JSON a few characters at a time, and the arguments are streamed on at once. So
//! this is not a full JSON parser: it finds the fields of one object by following strings and
//! brackets, and leaves validation of the arguments to the client.

use serde_json::Value;

/// What the parser found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObjectEvent {
    /// The function name; arguments follow.
    Name(String),
    /// More of the arguments.
    Arguments(String),
    /// The object is complete.
    End,
    /// It is not a tool call.
    Broken,
}

/// Position within the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Position {
    Start,
    Key,
    InKey,
    Colon,
    Value,
    InValue,
    Comma,
    /// After the end, or broken.
    Done,
}

/// The field whose value is being read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    Other,
}

/// JSON type of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueForm {
    /// An object, streamed on while it is read.
    Object,
    /// Anything else (a string that contains JSON, `null`), complete only at its end.
    Complete,
}

/// Parser state of one object.
#[derive(Clone, Debug)]
pub(super) struct Object {
    at: Position,
    field: Field,
    form: ValueForm,
    /// Open brackets within the value.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// Raw text of the current key or value.
    raw: String,
    name: Option<String>,
    emitted: bool,
    /// Arguments that were read before the name.
    early_arguments: String,
    has_arguments: bool,
}

/// Deepest nesting: stops a model that opens brackets endlessly.
const MAX_DEPTH: usize = 128;

impl Object {
    pub(super) fn new() -> Object {
        Object {
            at: Position::Start,
            field: Field::Other,
            form: ValueForm::Complete,
            depth: 0,
            in_string: false,
            escaped: false,
            raw: String::new(),
            name: None,
            emitted: false,
            early_arguments: String::new(),
            has_arguments: false,
        }
    }

    /// Reads the next character. Ignores further ones after the end or an error.
    pub(super) fn push(&mut self, c: char, found: &mut Vec<ObjectEvent>) {
        let whitespace = c.is_ascii_whitespace();
        match self.at {
            Position::Start if c == '{' => self.at = Position::Key,
            Position::Key if c == '"' => self.begin(Position::InKey),
            Position::Key | Position::Comma if c == '}' => self.end(found),
            Position::Colon if c == ':' => self.at = Position::Value,
            Position::Comma if c == ',' => self.at = Position::Key,
            Position::Start | Position::Key | Position::Colon | Position::Comma if whitespace => {}
            Position::InKey => self.key(c, found),
            Position::Value if whitespace => {}
            Position::Value => self.first(c, found),
            Position::InValue => self.value(c, found),
            Position::Done => {}
            _ => self.finish_with(ObjectEvent::Broken, found),
        }
    }

    fn finish_with(&mut self, event: ObjectEvent, found: &mut Vec<ObjectEvent>) {
        self.at = Position::Done;
        found.push(event);
    }

    /// Whether a value has just ended.
    pub(super) fn is_between(&self) -> bool {
        self.at == Position::Comma
    }

    fn begin(&mut self, at: Position) {
        (self.at, self.in_string, self.escaped) = (at, true, false);
        self.raw.clear();
        self.raw.push('"');
    }

    /// Reads a character of a string; returns whether it was the last.
    fn string(&mut self, c: char) -> bool {
        // JSON forbids line breaks within strings, but models write them.
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

    fn key(&mut self, c: char, found: &mut Vec<ObjectEvent>) {
        if !self.string(c) {
            return;
        }
        let Ok(key) = serde_json::from_str::<String>(&self.raw) else {
            return self.finish_with(ObjectEvent::Broken, found);
        };
        self.field = match key.as_str() {
            "name" => Field::Name,
            "arguments" | "parameters" => Field::Arguments,
            _ => Field::Other,
        };
        // A duplicate key would emit its value twice.
        let twice = match self.field {
            Field::Name => self.name.is_some(),
            Field::Arguments => self.has_arguments,
            Field::Other => false,
        };
        if twice {
            return self.finish_with(ObjectEvent::Broken, found);
        }
        self.at = Position::Colon;
    }

    /// Reads the first character of a value.
    fn first(&mut self, c: char, found: &mut Vec<ObjectEvent>) {
        self.raw.clear();
        self.at = Position::InValue;
        (self.depth, self.in_string, self.escaped) = (0, false, false);
        self.form = if c == '{' { ValueForm::Object } else { ValueForm::Complete };
        if self.field == Field::Arguments && self.form == ValueForm::Object {
            self.has_arguments = true;
            self.emit_name(found);
        }
        self.value(c, found);
    }

    fn value(&mut self, c: char, found: &mut Vec<ObjectEvent>) {
        let mut done = false;
        if self.in_string {
            done = self.string(c) && self.depth == 0;
        } else {
            match c {
                // The value ended before this character: a number, `true`, `null`.
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
                    if self.depth > MAX_DEPTH {
                        return self.finish_with(ObjectEvent::Broken, found);
                    }
                }
                '}' | ']' if self.depth == 0 => return self.finish_with(ObjectEvent::Broken, found),
                '}' | ']' => {
                    self.depth -= 1;
                    self.raw.push(c);
                    done = self.depth == 0;
                }
                c => self.raw.push(c),
            }
        }
        if self.field == Field::Arguments && self.form == ValueForm::Object {
            let raw = std::mem::take(&mut self.raw);
            self.emit_arguments(raw, found);
        }
        if done {
            self.complete(found);
        }
    }

    /// Ends a value.
    fn complete(&mut self, found: &mut Vec<ObjectEvent>) {
        let raw = std::mem::take(&mut self.raw);
        self.at = Position::Comma;
        match (self.field, self.form) {
            (Field::Name, _) => match serde_json::from_str::<String>(&raw) {
                Ok(name) if !name.is_empty() => {
                    self.name = Some(name);
                    self.emit_name(found);
                }
                _ => self.finish_with(ObjectEvent::Broken, found),
            },
            // Arguments within a string, or absent.
            (Field::Arguments, ValueForm::Complete) => {
                let text = match serde_json::from_str::<Value>(&raw) {
                    Ok(Value::String(text)) if !text.trim().is_empty() => text,
                    Ok(Value::Null | Value::String(_)) => "{}".into(),
                    _ => return self.finish_with(ObjectEvent::Broken, found),
                };
                self.has_arguments = true;
                self.emit_name(found);
                self.emit_arguments(text, found);
            }
            (Field::Arguments, ValueForm::Object) | (Field::Other, _) => {}
        }
    }

    fn emit_arguments(&mut self, text: String, found: &mut Vec<ObjectEvent>) {
        match self.emitted {
            false => self.early_arguments.push_str(&text),
            true => match found.last_mut() {
                Some(ObjectEvent::Arguments(before)) => before.push_str(&text),
                _ => found.push(ObjectEvent::Arguments(text)),
            },
        }
    }

    /// Emits the name once name and arguments are both seen: until then this may be any JSON.
    fn emit_name(&mut self, found: &mut Vec<ObjectEvent>) {
        if self.emitted || !self.has_arguments {
            return;
        }
        let Some(name) = self.name.clone() else { return };
        self.emitted = true;
        found.push(ObjectEvent::Name(name));
        let early = std::mem::take(&mut self.early_arguments);
        if !early.is_empty() {
            self.emit_arguments(early, found);
        }
    }

    fn end(&mut self, found: &mut Vec<ObjectEvent>) {
        self.finish_with(if self.emitted { ObjectEvent::End } else { ObjectEvent::Broken }, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `text`; returns the events, with argument fragments joined, and the rest of the text.
    fn read(text: &str) -> (Vec<ObjectEvent>, String) {
        let (mut object, mut all) = (Object::new(), Vec::new());
        for (i, c) in text.char_indices() {
            let mut found = Vec::new();
            object.push(c, &mut found);
            for event in found {
                match (all.last_mut(), event) {
                    (Some(ObjectEvent::Arguments(before)), ObjectEvent::Arguments(more)) => before.push_str(&more),
                    (_, event) => all.push(event),
                }
            }
            if matches!(all.last(), Some(ObjectEvent::End | ObjectEvent::Broken)) {
                return (all, text[i + c.len_utf8()..].into());
            }
        }
        (all, String::new())
    }

    fn call(name: &str, arguments: &str) -> Vec<ObjectEvent> {
        vec![ObjectEvent::Name(name.into()), ObjectEvent::Arguments(arguments.into()), ObjectEvent::End]
    }

    #[test]
    fn call_fields_parse_in_any_order_and_spelling() {
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
    fn arguments_are_emitted_before_they_are_complete() {
        let (found, _) = read(r#"{"name": "f", "arguments": {"a": "gr"#);
        assert_eq!(found, [ObjectEvent::Name("f".into()), ObjectEvent::Arguments(r#"{"a": "gr"#.into())]);
        // Nothing is emitted before the arguments begin.
        assert_eq!(read(r#"{"name": "f", "#).0, []);
    }

    #[test]
    fn control_characters_in_strings_are_escaped() {
        let (found, _) = read("{\"name\": \"f\", \"arguments\": {\"a\":\n\"x\ny\u{1}\"}}");
        assert_eq!(found, call("f", "{\"a\":\n\"x\\ny\\u0001\"}"));
        assert!(serde_json::from_str::<serde_json::Value>("{\"a\":\n\"x\\ny\\u0001\"}").is_ok());
    }

    #[test]
    fn malformed_calls_end_with_a_broken_event() {
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
            assert_eq!(found.last(), Some(&ObjectEvent::Broken), "{text}");
            assert!(!found.contains(&ObjectEvent::End), "{text}");
        }
        let deep = format!(r#"{{"name": "f", "arguments": {}"#, "[".repeat(10_000));
        assert_eq!(read(&deep).0.last(), Some(&ObjectEvent::Broken));
    }
}
