//! The grammar of an answer that must call a tool, or of one that must be either a call or JSON.
//!
//! Every function is an alternative of its own with its schema as it came, so that references within a schema stay sound. What
//! stands around the arguments is what the model was trained to write, letter by letter: then a call costs it no surprise.

use super::style::Style;
use sconce_api::openai::tools::Function;
use serde_json::{Value, json};
use std::fmt::Write;

/// The most calls of one answer: an end for a model that has lost its way in calls.
const MOST_CALLS: usize = 8;
/// Levels of a schema, as the engine has it for schemas alone.
const DEEPEST: usize = 64;
/// Blanks within JSON, likewise.
const BLANKS: &str = r"[ \t\r\n]{1,64}";

/// What an answer must be.
pub(crate) struct Demand<'a> {
    /// How the model writes calls.
    pub(crate) style: Style,
    /// The functions it may call.
    pub(crate) functions: &'a [&'a Function],
    /// Whether it may call several.
    pub(crate) parallel: bool,
    /// What it may be instead of calls.
    pub(crate) instead: Option<&'a Value>,
}

impl Demand<'_> {
    /// In llguidance's dialect of Lark. `control` gives the id of a mark that is a control token of the model, and no text.
    pub(crate) fn grammar(&self, control: &dyn Fn(&str) -> Option<u32>) -> Result<String, String> {
        let mark = |text: &str| control(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"));
        // More calls, each behind a mark. A range that ends at 0 is not known to llguidance.
        let more = |between: &str, call: &str| match self.parallel {
            true => format!(" ({} {call}){{0,{}}}", literal(between), MOST_CALLS - 1),
            false => String::new(),
        };
        let (open, close) = (mark(self.style.open()), self.style.close().map(mark));
        let calls = match (self.style, close) {
            (Style::Tagged | Style::Told, Some(close)) => {
                let call = format!("{open} {} call {} {close}", literal("\n"), literal("\n"));
                format!("{call}{}", more("\n", &call))
            }
            // The mark is for code; a plain call has none.
            (Style::Llama, _) => format!("call{}", more("; ", "call")),
            _ => {
                let open = if control(self.style.open()).is_some() { open } else { literal("") };
                format!("{open} {} call{} {}", literal("["), more(", ", "call"), literal("]"))
            }
        };
        let mut text = String::new();
        let or = if self.instead.is_some() { "answer | calls" } else { "calls" };
        let names: Vec<String> = (0..self.functions.len()).map(|i| format!("call{i}")).collect();
        let _ = writeln!(text, "start: {or}\ncalls: {calls}\ncall: {}", names.join(" | "));
        for (i, function) in self.functions.iter().enumerate() {
            let before = format!("{{\"name\": {}, \"{}\": ", json!(function.name), self.style.arguments());
            let schema = arguments(function)?;
            let _ = writeln!(text, "call{i}: {} args{i} \"}}\"\nargs{i}: %json {schema}", literal(&before));
        }
        if let Some(schema) = self.instead {
            let _ = writeln!(text, "answer: %json {}", ours(schema)?);
        }
        Ok(text)
    }
}

/// The schema of a function's arguments, which are an object.
fn arguments(function: &Function) -> Result<Value, String> {
    let wrong = |why: String| format!("the parameters of `{}`: {why}", function.name);
    let mut schema = match &function.parameters {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(schema) => ours(schema).map_err(wrong)?,
    };
    if let Some(fields) = schema.as_object_mut()
        && !fields.contains_key("type")
        && !["$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| fields.contains_key(*key))
    {
        fields.insert("type".into(), json!("object"));
    }
    Ok(with_blanks(schema))
}

/// A schema that is not too deep to be read.
fn ours(schema: &Value) -> Result<Value, String> {
    if !schema.is_object() {
        return Err("a schema is an object".into());
    }
    if !shallow(schema, DEEPEST) {
        return Err(format!("it is nested more than {DEEPEST} deep"));
    }
    Ok(with_blanks(schema.clone()))
}

/// Our settings, and none that came with the schema.
fn with_blanks(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".into(), json!({"whitespace_pattern": BLANKS}));
    }
    schema
}

fn shallow(value: &Value, levels: usize) -> bool {
    let Some(levels) = levels.checked_sub(1) else { return false };
    match value {
        Value::Array(items) => items.iter().all(|v| shallow(v, levels)),
        Value::Object(map) => map.values().all(|v| shallow(v, levels)),
        _ => true,
    }
}

/// A text, quoted as the grammar has it.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, parameters: Option<Value>) -> Function {
        Function { name: name.into(), description: None, parameters, strict: None }
    }

    #[test]
    fn around_the_arguments_stands_what_the_model_would_write() {
        let (f, g) = (function("f", Some(json!({"type": "object"}))), function("g", None));
        let of = |style, parallel, control: &dyn Fn(&str) -> Option<u32>| {
            Demand { style, functions: &[&f, &g], parallel, instead: None }.grammar(control).unwrap()
        };
        let tagged = of(Style::Tagged, true, &|_| None);
        assert!(
            tagged.contains(r#"calls: "<tool_call>" "\n" call "\n" "</tool_call>" ("\n" "<tool_call>""#),
            "{tagged}"
        );
        assert!(tagged.contains(r#"call0: "{\"name\": \"f\", \"arguments\": " args0 "}""#), "{tagged}");
        assert!(tagged.contains("call: call0 | call1\n") && tagged.contains("{0,7}"), "{tagged}");
        let control = of(Style::Tagged, false, &|mark| (mark == "<tool_call>").then_some(7));
        assert!(control.contains(r#"calls: <[7]> "\n" call "\n" "</tool_call>""#), "{control}");
        assert!(!control.contains("{0,"), "{control}");
        let llama = of(Style::Llama, true, &|_| Some(9));
        assert!(llama.contains("calls: call (\"; \" call)") && llama.contains("\\\"parameters\\\": "), "{llama}");
        let mistral = of(Style::Mistral, true, &|_| Some(5));
        assert!(mistral.contains("calls: <[5]> \"[\" call (\", \" call){0,7} \"]\""), "{mistral}");
    }

    #[test]
    fn schemas_that_cannot_be() {
        let deep = (0..100).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
        for (bad, why) in [(json!("x"), "an object"), (deep, "nested")] {
            let f = function("f", Some(bad));
            let demand = Demand { style: Style::Llama, functions: &[&f], parallel: true, instead: None };
            let said = demand.grammar(&|_| None).unwrap_err();
            assert!(said.contains("`f`") && said.contains(why), "{said}");
        }
    }
}
