//! Output constraint of an answer: a value of --constrain, or a field of a JSON line.

use sconce_engine::Format;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Read;

/// Largest schema or grammar file; the engine's own limit is far lower.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// In JSON `"json"`, `{"schema": {…}}`, `{"regex": "…"}` or `{"grammar": "…"}`. A JSON line cannot
/// name files.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputConstraint {
    Json,
    Schema(Value),
    Regex(String),
    Grammar(String),
}

impl OutputConstraint {
    /// Parses the value of --constrain.
    pub(crate) fn parse(s: &str) -> Result<OutputConstraint, String> {
        match s.split_once(':') {
            None if s == "json" => Ok(OutputConstraint::Json),
            Some(("schema", path)) => {
                let schema = serde_json::from_str(&file(path)?).map_err(|e| format!("{path}: {e}"))?;
                Ok(OutputConstraint::Schema(schema))
            }
            Some(("regex", pattern)) => Ok(OutputConstraint::Regex(pattern.into())),
            Some(("grammar", path)) => file(path).map(OutputConstraint::Grammar),
            _ => Err("expected `json`, `schema:FILE`, `regex:PATTERN` or `grammar:FILE`".into()),
        }
    }

    pub(crate) fn format(&self) -> Format {
        match self.clone() {
            OutputConstraint::Json => Format::JsonObject,
            OutputConstraint::Schema(schema) => Format::JsonSchema(schema),
            OutputConstraint::Regex(pattern) => Format::Regex(pattern),
            OutputConstraint::Grammar(source) => Format::grammar(source),
        }
    }
}

fn file(path: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{path}: {e}");
    let mut text = String::new();
    std::fs::File::open(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(format!("{path}: larger than {MAX_FILE_BYTES} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn flag_and_json_field_parse_to_same_constraint() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a:b.json");
        std::fs::write(&path, r#"{"type": "integer"}"#).unwrap();
        let path = path.to_str().unwrap();
        for (flag, field) in [
            ("json".to_string(), json!("json")),
            (format!("schema:{path}"), json!({"schema": {"type": "integer"}})),
            ("regex:a:b".into(), json!({"regex": "a:b"})),
            (format!("grammar:{path}"), json!({"grammar": "{\"type\": \"integer\"}"})),
        ] {
            let parsed = OutputConstraint::parse(&flag).unwrap();
            assert_eq!(serde_json::to_value(&parsed).unwrap(), field);
            assert_eq!(serde_json::from_value::<OutputConstraint>(field).unwrap(), parsed);
        }
        std::fs::write(path, "{").unwrap();
        for (flag, why) in [
            ("yaml", "`json`, `schema:FILE`"),
            ("schema", "`schema:FILE`"),
            ("schema:absent.json", "absent.json: "),
            (&format!("schema:{path}"), "EOF"),
        ] {
            let e = OutputConstraint::parse(flag).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
        assert!(
            serde_json::from_value::<OutputConstraint>(json!("schema:/etc/hostname")).is_err(),
            "a JSON field must not name files"
        );
    }
}
