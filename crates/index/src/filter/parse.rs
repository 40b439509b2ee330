//! Filters from JSON, in the form of OpenAI's vector stores, and from the command line.

use serde_json::Value as Json;

use super::{Compare, Filter, Test};
use crate::document::Value;
use crate::error::{Error, Result};

/// How deep `and` and `or` may be nested.
const MAX_DEPTH: usize = 8;
/// How many comparisons a filter may have.
const MAX_COMPARISONS: usize = 256;
/// How many values `in` and `nin` may list.
const MAX_VALUES: usize = 1_000;
/// The longest key and the longest text, in bytes.
const MAX_BYTES: usize = 4_096;

impl Filter {
    /// Reads the form of OpenAI's vector stores: `{"type": "eq", "key": …, "value": …}` with `eq`,
    /// `ne`, `gt`, `gte`, `lt`, `lte`, `in`, `nin`, and `{"type": "and", "filters": […]}` with
    /// `and`, `or`. Our own `glob` takes a pattern with `*` and `?`.
    pub fn from_json(json: &Json) -> Result<Filter> {
        let mut comparisons = 0;
        read(json, 0, &mut comparisons)
    }

    /// Reads a comparison as written on a command line: `key=value`, `!=`, `>`, `>=`, `<`, `<=`, or
    /// `key:pattern` with `*` and `?`; or JSON, if the text begins with `{`. A value may be in
    /// double quotes, and is a text then; otherwise `true`, `false` and numbers stand for
    /// themselves, and `=` and `!=` also compare them as texts.
    pub fn parse(text: &str) -> Result<Filter> {
        if text.trim_start().starts_with('{') {
            let json = serde_json::from_str(text).map_err(|e| input(format!("filter: not JSON: {e}")))?;
            return Filter::from_json(&json);
        }
        let form = || input(format!("filter `{text}`: write key=value, with one of = != > >= < <= : after the key"));
        let at = text.find(['=', '!', '>', '<', ':']).ok_or_else(form)?;
        let (key, rest) = (text[..at].trim(), &text[at..]);
        let operators = ["!=", ">=", "<=", "=", ">", "<", ":"];
        let operator = operators.into_iter().find(|operator| rest.starts_with(operator)).ok_or_else(form)?;
        if key.is_empty() {
            return Err(form());
        }
        check_bytes(text)?;
        let word = rest[operator.len()..].trim();
        let test = match operator {
            "=" => Test::In(readings(word)),
            "!=" => Test::Nin(readings(word)),
            ":" => Test::Glob(unquoted(word).unwrap_or(word).into()),
            ">" => Test::Gt(reading(word)),
            ">=" => Test::Gte(reading(word)),
            "<" => Test::Lt(reading(word)),
            _ => Test::Lte(reading(word)),
        };
        Ok(Filter::Compare(Compare { key: key.into(), test }))
    }
}

fn input(why: String) -> Error {
    Error::Input(why)
}

fn check_bytes(text: &str) -> Result<()> {
    match text.len() {
        0..=MAX_BYTES => Ok(()),
        n => Err(input(format!("filter: a text of {n} bytes is too long; use at most {MAX_BYTES}"))),
    }
}

fn unquoted(word: &str) -> Option<&str> {
    word.strip_prefix('"')?.strip_suffix('"')
}

/// The value that a word stands for.
fn reading(word: &str) -> Value {
    if let Some(text) = unquoted(word) {
        return Value::Text(text.into());
    }
    let number = || word.parse().map(Value::Integer).ok().or_else(|| word.parse().map(Value::Float).ok());
    match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        // Words that `f64` parses and nobody means as numbers.
        _ if word.starts_with(|c: char| c.is_ascii_alphabetic()) => Value::Text(word.into()),
        _ => number().unwrap_or_else(|| Value::Text(word.into())),
    }
}

/// The value that a word stands for, and the word itself.
fn readings(word: &str) -> Vec<Value> {
    match reading(word) {
        text @ Value::Text(_) => vec![text],
        other => vec![other, Value::Text(word.into())],
    }
}

fn read(json: &Json, depth: usize, comparisons: &mut usize) -> Result<Filter> {
    if depth > MAX_DEPTH {
        return Err(input(format!("filter: nested deeper than {MAX_DEPTH} levels")));
    }
    let object = json.as_object().ok_or_else(|| input("filter: expected an object with `type`".into()))?;
    let kind = object.get("type").and_then(Json::as_str);
    let kind = kind.ok_or_else(|| input("filter: `type` is missing or not a text".into()))?;
    let known: &[&str] = if matches!(kind, "and" | "or") { &["type", "filters"] } else { &["type", "key", "value"] };
    if let Some(unknown) = object.keys().find(|key| !known.contains(&key.as_str())) {
        return Err(input(format!("filter: unknown field `{unknown}` beside type `{kind}`")));
    }
    if matches!(kind, "and" | "or") {
        let filters = object.get("filters").and_then(Json::as_array);
        let filters = filters.ok_or_else(|| input(format!("filter: `{kind}` needs `filters`, a list")))?;
        let filters = filters.iter().map(|filter| read(filter, depth + 1, comparisons)).collect::<Result<_>>()?;
        return Ok(if kind == "and" { Filter::And(filters) } else { Filter::Or(filters) });
    }
    *comparisons += 1;
    if *comparisons > MAX_COMPARISONS {
        return Err(input(format!("filter: more than {MAX_COMPARISONS} comparisons")));
    }
    let key = object.get("key").and_then(Json::as_str);
    let key = key.ok_or_else(|| input("filter: `key` is missing or not a text".into()))?;
    check_bytes(key)?;
    let json = object.get("value").ok_or_else(|| input(format!("filter on `{key}`: `value` is missing")))?;
    let one = || value(key, json);
    let test = match kind {
        "eq" => Test::Eq(one()?),
        "ne" => Test::Ne(one()?),
        "gt" => Test::Gt(one()?),
        "gte" => Test::Gte(one()?),
        "lt" => Test::Lt(one()?),
        "lte" => Test::Lte(one()?),
        "in" => Test::In(values(key, json)?),
        "nin" => Test::Nin(values(key, json)?),
        "glob" => match one()? {
            Value::Text(pattern) => Test::Glob(pattern),
            _ => return Err(input(format!("filter on `{key}`: the pattern of `glob` must be a text"))),
        },
        other => {
            let what = format!("filter: unknown type `{other}`; use eq, ne, gt, gte, lt, lte, in, nin, glob, and, or");
            return Err(input(what));
        }
    };
    Ok(Filter::Compare(Compare { key: key.into(), test }))
}

fn values(key: &str, json: &Json) -> Result<Vec<Value>> {
    let list = json.as_array().ok_or_else(|| input(format!("filter on `{key}`: `value` must be a list")))?;
    if list.len() > MAX_VALUES {
        return Err(input(format!("filter on `{key}`: {} values; use at most {MAX_VALUES}", list.len())));
    }
    list.iter().map(|json| value(key, json)).collect()
}

fn value(key: &str, json: &Json) -> Result<Value> {
    match json {
        Json::Bool(b) => Ok(Value::Bool(*b)),
        Json::String(text) => check_bytes(text).map(|()| Value::Text(text.clone())),
        Json::Number(n) => Ok(n.as_i64().map_or_else(|| Value::Float(n.as_f64().unwrap_or(f64::NAN)), Value::Integer)),
        _ => Err(input(format!("filter on `{key}`: a value must be a text, a number, true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Metadata;
    use serde_json::json;

    fn metadata() -> Metadata {
        let text = |text: &str| Value::Text(text.into());
        Metadata::from([
            ("path".into(), text("docs/guide.md")),
            ("year".into(), Value::Integer(2020)),
            ("zip".into(), text("01234")),
            ("draft".into(), Value::Bool(false)),
        ])
    }

    #[test]
    fn the_command_lines_form() {
        for (filter, expected) in [
            ("year=2020", true),
            ("year = 2020", true),
            ("year>=2020", true),
            ("year>2020", false),
            ("year<2020.5", true),
            ("year<=2019", false),
            ("year!=2020", false),
            ("year=\"2020\"", false),
            ("zip=01234", true),
            ("draft=false", true),
            ("draft!=true", true),
            ("author!=ann", true),
            ("author=ann", false),
            ("path:docs/*", true),
            ("path:*.txt", false),
            ("path=docs/guide.md", true),
            ("{\"type\":\"eq\",\"key\":\"year\",\"value\":2020}", true),
        ] {
            assert_eq!(Filter::parse(filter).unwrap().matches(&metadata()), expected, "{filter}");
        }
        for wrong in ["", "year", "=2020", "year!2020", "{", "{}", "{\"type\":\"eq\"}"] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_form_of_vector_stores() {
        let compare = |kind: &str, key: &str, value: Json| json!({"type": kind, "key": key, "value": value});
        for (filter, expected) in [
            (compare("eq", "year", json!(2020.0)), true),
            (compare("in", "year", json!([1, 2020])), true),
            (compare("nin", "year", json!([1, 2020])), false),
            (compare("nin", "author", json!(["ann"])), true),
            (
                json!({"type": "and", "filters": [compare("gt", "year", json!(2019)), compare("lt", "year", json!(2021))]}),
                true,
            ),
            (json!({"type": "or", "filters": []}), false),
        ] {
            assert_eq!(Filter::from_json(&filter).unwrap().matches(&metadata()), expected, "{filter}");
        }
    }

    #[test]
    fn what_is_wrong_or_too_large_is_refused() {
        let compare = json!({"type": "eq", "key": "a", "value": 1});
        let nested = |depth| (0..depth).fold(compare.clone(), |inner, _| json!({"type": "and", "filters": [inner]}));
        assert!(Filter::from_json(&nested(MAX_DEPTH)).is_ok());
        assert!(Filter::from_json(&nested(MAX_DEPTH + 1)).is_err());
        assert!(Filter::from_json(&json!({"type": "or", "filters": vec![compare; MAX_COMPARISONS + 1]})).is_err());
        for wrong in [
            json!([]),
            json!({"type": "like", "key": "a", "value": "b"}),
            json!({"type": "eq", "key": "a", "value": null}),
            json!({"type": "eq", "key": "a", "value": {"b": 1}}),
            json!({"type": "eq", "key": "a", "value": 1, "vlaue": 2}),
            json!({"type": "in", "key": "a", "value": 1}),
            json!({"type": "in", "key": "a", "value": vec![1; MAX_VALUES + 1]}),
            json!({"type": "eq", "key": "a", "value": "x".repeat(MAX_BYTES + 1)}),
        ] {
            assert!(Filter::from_json(&wrong).is_err(), "{wrong}");
        }
    }
}
