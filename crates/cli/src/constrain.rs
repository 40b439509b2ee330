//! What an answer must be: one word of the command line, or a field of a JSON line.

use sconce_engine::Format;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::Read;

/// A larger file is no schema or grammar; the engine refuses long before.
const LARGEST: u64 = 1 << 20;

/// In JSON `"json"`, `{"schema": {…}}`, `{"regex": "…"}` or `{"grammar": "…"}`: a line names no files.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Constrain {
    Json,
    Schema(Value),
    Regex(String),
    Grammar(String),
}

impl Constrain {
    /// From what stands behind --constrain.
    pub(crate) fn parse(s: &str) -> Result<Constrain, String> {
        match s.split_once(':') {
            None if s == "json" => Ok(Constrain::Json),
            Some(("schema", path)) => {
                let schema = serde_json::from_str(&file(path)?).map_err(|e| format!("{path}: {e}"))?;
                Ok(Constrain::Schema(schema))
            }
            Some(("regex", pattern)) => Ok(Constrain::Regex(pattern.into())),
            Some(("grammar", path)) => file(path).map(Constrain::Grammar),
            _ => Err("`json`, `schema:FILE`, `regex:PATTERN` or `grammar:FILE`".into()),
        }
    }

    pub(crate) fn format(&self) -> Format {
        match self.clone() {
            Constrain::Json => Format::JsonObject,
            Constrain::Schema(schema) => Format::JsonSchema(schema),
            Constrain::Regex(pattern) => Format::Regex(pattern),
            Constrain::Grammar(source) => Format::Grammar(source),
        }
    }
}

fn file(path: &str) -> Result<String, String> {
    let failed = |e: std::io::Error| format!("{path}: {e}");
    let mut text = String::new();
    std::fs::File::open(path).map_err(failed)?.take(LARGEST + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > LARGEST {
        return Err(format!("{path}: larger than {LARGEST} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_word_and_a_field_say_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a:b.json");
        std::fs::write(&path, r#"{"type": "integer"}"#).unwrap();
        let path = path.to_str().unwrap();
        for (word, field) in [
            ("json".to_string(), json!("json")),
            (format!("schema:{path}"), json!({"schema": {"type": "integer"}})),
            ("regex:a:b".into(), json!({"regex": "a:b"})),
            (format!("grammar:{path}"), json!({"grammar": "{\"type\": \"integer\"}"})),
        ] {
            let parsed = Constrain::parse(&word).unwrap();
            assert_eq!(serde_json::to_value(&parsed).unwrap(), field);
            assert_eq!(serde_json::from_value::<Constrain>(field).unwrap(), parsed);
        }
        std::fs::write(path, "{").unwrap();
        for (word, why) in [
            ("yaml", "`json`, `schema:FILE`"),
            ("schema", "`schema:FILE`"),
            ("schema:absent.json", "absent.json: "),
            (&format!("schema:{path}"), "EOF"),
        ] {
            let e = Constrain::parse(word).unwrap_err();
            assert!(e.contains(why), "{e}");
        }
        assert!(serde_json::from_value::<Constrain>(json!("schema:/etc/hostname")).is_err(), "a line names no files");
    }
}
