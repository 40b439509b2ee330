//! Grammar of an answer that must call a tool, or that must be either a call or JSON.
//!
//! Every function is an alternative with its own schema, so that references within a schema stay
//! valid. The text around the arguments is exactly what the model was trained to write, so that the
//! grammar never forces unlikely tokens.

use super::syntax::ToolSyntax;
use serde_json::{Value, json};
use std::fmt::Write;

/// Most calls per answer: stops a model that repeats calls endlessly.
const MAX_CALLS: usize = 8;
/// Deepest nesting of a schema, as in the engine.
const MAX_DEPTH: usize = 64;
/// Whitespace within JSON, as in the engine.
const WHITESPACE: &str = r"[ \t\r\n]{1,64}";

/// A function that a model may call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolFunction {
    /// Its name.
    pub name: String,
    /// JSON schema of its arguments; `None` if it takes none.
    pub parameters: Option<Value>,
}

/// The calls that an answer must or may make.
pub struct CallGrammar<'a> {
    /// The model's tool-call syntax.
    pub syntax: ToolSyntax,
    /// Functions that may be called.
    pub functions: &'a [ToolFunction],
    /// Whether several calls are allowed.
    pub parallel: bool,
    /// JSON schema of an answer without calls.
    pub instead: Option<&'a Value>,
}

impl CallGrammar<'_> {
    /// The grammar in llguidance's dialect of Lark. `control` returns the token id of a marker that
    /// is a control token of the model.
    pub fn grammar(&self, control: &dyn Fn(&str) -> Option<u32>) -> Result<String, String> {
        let mark = |text: &str| control(text).map_or_else(|| literal(text), |id| format!("<[{id}]>"));
        // Further calls, each after a separator. llguidance does not support a range that ends at
        // 0.
        let more = |between: &str, call: &str| match self.parallel {
            true => format!(" ({} {call}){{0,{}}}", literal(between), MAX_CALLS - 1),
            false => String::new(),
        };
        let (open, close) = (mark(self.syntax.open()), self.syntax.close().map(mark));
        let calls = match (self.syntax, close) {
            (ToolSyntax::Tagged | ToolSyntax::Described, Some(close)) => {
                let call = format!("{open} {} call {} {close}", literal("\n"), literal("\n"));
                format!("{call}{}", more("\n", &call))
            }
            (ToolSyntax::MistralNamed, _) => {
                let more = match self.parallel {
                    true => format!(" (call){{0,{}}}", MAX_CALLS - 1),
                    false => String::new(),
                };
                format!("call{more}")
            }
            (ToolSyntax::Phi, Some(close)) => {
                format!("{open} {} call{} {} {close}", literal("["), more(", ", "call"), literal("]"))
            }
            // The marker is for code; a JSON call has none.
            (ToolSyntax::Llama, _) => format!("call{}", more("; ", "call")),
            _ => {
                let open = if control(self.syntax.open()).is_some() { open } else { literal("") };
                format!("{open} {} call{} {}", literal("["), more(", ", "call"), literal("]"))
            }
        };
        let mut text = String::new();
        let or = if self.instead.is_some() { "answer | calls" } else { "calls" };
        let names: Vec<String> = (0..self.functions.len()).map(|i| format!("call{i}")).collect();
        let _ = writeln!(text, "start: {or}\ncalls: {calls}\ncall: {}", names.join(" | "));
        for (i, function) in self.functions.iter().enumerate() {
            let schema = arguments(function)?;
            let call = match self.syntax {
                ToolSyntax::MistralNamed => {
                    format!("{} {} {} args{i}", mark(self.syntax.open()), literal(&function.name), mark("[ARGS]"))
                }
                _ => {
                    let name = json!(function.name);
                    let before = format!("{{\"name\": {name}, \"{}\": ", self.syntax.arguments());
                    format!("{} args{i} \"}}\"", literal(&before))
                }
            };
            let _ = writeln!(text, "call{i}: {call}\nargs{i}: %json {schema}");
        }
        if let Some(schema) = self.instead {
            let _ = writeln!(text, "answer: %json {}", checked_schema(schema)?);
        }
        Ok(text)
    }
}

/// Schema of a function's arguments, which are an object.
fn arguments(function: &ToolFunction) -> Result<Value, String> {
    let invalid = |why: String| format!("`parameters` of the function `{}`: {why}", function.name);
    let mut schema = match &function.parameters {
        None | Some(Value::Null) => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(schema) => checked_schema(schema).map_err(invalid)?,
    };
    if let Some(fields) = schema.as_object_mut()
        && !fields.contains_key("type")
        && !["$ref", "anyOf", "oneOf", "allOf"].iter().any(|key| fields.contains_key(*key))
    {
        fields.insert("type".into(), json!("object"));
    }
    Ok(with_options(schema))
}

/// Checks the nesting of a schema.
fn checked_schema(schema: &Value) -> Result<Value, String> {
    if !schema.is_object() {
        return Err("a JSON schema must be an object".into());
    }
    if !shallow(schema, MAX_DEPTH) {
        return Err(format!("the schema is nested more than {MAX_DEPTH} levels deep"));
    }
    Ok(with_options(schema.clone()))
}

/// Sets our llguidance options, replacing any that came with the schema.
fn with_options(mut schema: Value) -> Value {
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("x-guidance".into(), json!({"whitespace_pattern": WHITESPACE}));
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

/// A quoted string literal of the grammar.
fn literal(text: &str) -> String {
    json!(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, parameters: Option<Value>) -> ToolFunction {
        ToolFunction { name: name.into(), parameters }
    }

    #[test]
    fn grammar_wraps_arguments_in_the_models_call_syntax() {
        let (f, g) = (function("f", Some(json!({"type": "object"}))), function("g", None));
        let of = |syntax, parallel, control: &dyn Fn(&str) -> Option<u32>| {
            CallGrammar { syntax, functions: &[f.clone(), g.clone()], parallel, instead: None }
                .grammar(control)
                .unwrap()
        };
        let tagged = of(ToolSyntax::Tagged, true, &|_| None);
        assert!(
            tagged.contains(r#"calls: "<tool_call>" "\n" call "\n" "</tool_call>" ("\n" "<tool_call>""#),
            "{tagged}"
        );
        assert!(tagged.contains(r#"call0: "{\"name\": \"f\", \"arguments\": " args0 "}""#), "{tagged}");
        assert!(tagged.contains("call: call0 | call1\n") && tagged.contains("{0,7}"), "{tagged}");
        let control = of(ToolSyntax::Tagged, false, &|mark| (mark == "<tool_call>").then_some(7));
        assert!(control.contains(r#"calls: <[7]> "\n" call "\n" "</tool_call>""#), "{control}");
        assert!(!control.contains("{0,"), "{control}");
        let llama = of(ToolSyntax::Llama, true, &|_| Some(9));
        assert!(llama.contains("calls: call (\"; \" call)") && llama.contains("\\\"parameters\\\": "), "{llama}");
        let mistral = of(ToolSyntax::Mistral, true, &|_| Some(5));
        let named = of(ToolSyntax::MistralNamed, true, &|mark| Some(if mark == "[ARGS]" { 6 } else { 5 }));
        assert!(named.contains("calls: call (call){0,7}\n"), "{named}");
        assert!(named.contains("call0: <[5]> \"f\" <[6]> args0\nargs0: %json "), "{named}");
        let phi = of(ToolSyntax::Phi, false, &|_| None);
        assert!(phi.contains(r#"calls: "<|tool_call|>" "[" call "]" "<|/tool_call|>""#), "{phi}");
        assert!(mistral.contains("calls: <[5]> \"[\" call (\", \" call){0,7} \"]\""), "{mistral}");
    }

    #[test]
    fn invalid_parameter_schemas_are_refused() {
        let deep = (0..100).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
        for (bad, why) in [(json!("x"), "an object"), (deep, "nested")] {
            let f = function("f", Some(bad));
            let grammar = CallGrammar { syntax: ToolSyntax::Llama, functions: &[f], parallel: true, instead: None };
            let message = grammar.grammar(&|_| None).unwrap_err();
            assert!(message.contains("`f`") && message.contains(why), "{message}");
        }
    }
}
