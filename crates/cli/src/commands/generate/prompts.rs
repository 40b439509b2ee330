//! Prompts: from arguments, standard input, or files of lines or rows.

use crate::Failure;
use crate::input::{
    Content, DEFAULT_FIELD, FileFormat, NO_FIELDS, NeededFields, Record, Records, columns_of, no_field,
};
use crate::row::{Columns, Row};
use crate::sampling::Sampling;
use clap::Args;
use sconce_engine::{ChatOptions, Llm, Message, ReasoningSyntax, Request, Start, Stream, Thoughts};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct Input {
    /// Prompts. Without PROMPT, --file and --jsonl, all of standard input is one prompt.
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Read prompts from this file (`-` is standard input). May be repeated.
    ///
    /// The extension decides: .jsonl has a JSON object per line, .json an array of objects or
    /// strings, .csv and .tsv name the fields in the first line, .parquet has columns. JSON objects
    /// with `prompt` or `messages` are read as with --jsonl. Of other rows the prompt is the field
    /// `text`, or that of --field. Other files have one prompt per line.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    file: Vec<PathBuf>,
    /// Take the prompt from field NAME. JSONL and Parquet output keep the other fields. Lines of
    /// standard input and of files with another extension are then JSON objects.
    #[arg(long, value_name = "NAME", conflicts_with = "jsonl")]
    field: Option<String>,
    /// Each line is a JSON object with `prompt`, or with `messages` of a chat; optionally with
    /// `id`, which the result repeats, and with generation options of this command (`max_tokens`,
    /// `temperature`, `stop`, `n`, …).
    #[arg(long, conflicts_with = "prompts")]
    jsonl: bool,
}

/// Generation options besides sampling.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct GenerateOptions {
    /// Number of answers to each prompt.
    #[arg(short, value_name = "N")]
    pub(super) n: Option<u32>,
    /// Beam search with N beams, for T5.
    #[arg(long, value_name = "N")]
    pub(super) beams: Option<u32>,
    /// Print the log probability of each token and of the K most likely ones, in JSON.
    #[arg(long, value_name = "K")]
    pub(super) logprobs: Option<u32>,
    /// Begin each answer with its prompt.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) echo: Option<bool>,
    /// Continue after the model's end-of-sequence token.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) ignore_eos: Option<bool>,
}

/// A prompt with its options and origin.
pub(super) struct Prompt {
    pub(super) input: PromptInput,
    pub(super) id: Option<Value>,
    /// The row, if the prompt is one of its fields.
    pub(super) row: Option<Row>,
    pub(super) sampling: Sampling,
    pub(super) generate_options: GenerateOptions,
    pub(super) origin: String,
    pub(super) bytes: u64,
}

pub(super) enum PromptInput {
    Text(String),
    Chat(Vec<Message>),
}

type Prompts<'a> = Box<dyn Iterator<Item = Result<Prompt, Failure>> + 'a>;

impl Input {
    /// Whether the input is a single prompt.
    pub(super) fn is_one(&self) -> bool {
        let is_stdin = self.prompts.is_empty() && self.file.is_empty();
        self.prompts.len() == 1 || is_stdin && !self.jsonl && self.field.is_none()
    }

    /// The prompts, read lazily. With `keep_fields`, they keep the other fields of their rows.
    pub(super) fn prompts(&self, keep_fields: bool) -> Result<Prompts<'_>, Failure> {
        if !self.prompts.is_empty() {
            if self.field.is_some() {
                return Err(NO_FIELDS.into());
            }
            let prompt = |(i, text): (usize, &String)| Ok(Prompt::text(text.clone(), format!("argument {}", i + 1)));
            return Ok(Box::new(self.prompts.iter().enumerate().map(prompt)));
        }
        if self.is_one() {
            return Ok(Box::new(std::iter::once(read_stdin())));
        }
        let stdin = [PathBuf::from("-")];
        let files = if self.file.is_empty() { &stdin[..] } else { &self.file };
        let field = self.field.as_deref();
        let only = [field.unwrap_or(DEFAULT_FIELD)];
        let needed = if keep_fields { NeededFields::All } else { NeededFields::Only(&only) };
        let open = |path: &PathBuf| -> Result<_, Failure> {
            let format = if self.jsonl { FileFormat::Jsonl } else { FileFormat::of(path, field.is_some()) };
            let records = Records::open(path, format, needed)?;
            records.check_field(only[0], "--field")?;
            // Only JSON objects can hold options.
            let is_json = matches!(format, FileFormat::Jsonl | FileFormat::Json);
            Ok(records.records.map(move |record| self.prompt(record?, is_json)))
        };
        let open = files.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        Ok(Box::new(open.into_iter().flatten()))
    }

    /// The arguments and files, if the arguments are names of files.
    pub(super) fn names(&self) -> Vec<String> {
        let files = self.file.iter().map(|path| path.display().to_string());
        self.prompts.iter().cloned().chain(files).collect()
    }

    /// The field with the prompt.
    pub(super) fn field(&self) -> &str {
        self.field.as_deref().unwrap_or(DEFAULT_FIELD)
    }

    /// The prompt of a line or a row.
    pub(super) fn prompt(&self, record: Record, is_json: bool) -> Result<Prompt, Failure> {
        let Record { content, origin, bytes } = record;
        let row = match content {
            Content::Text(_) if self.field.is_some() => {
                return Err(format!("{origin}: a string, which has no fields").into());
            }
            Content::Text(text) => return Ok(Prompt { bytes, ..Prompt::text(text, origin) }),
            Content::Row(row) => row,
        };
        let row = match row {
            Row::Object(object) if is_json && self.has_options(&object) => return parse(object, origin, bytes),
            row => row,
        };
        let field = self.field.as_deref().unwrap_or(DEFAULT_FIELD);
        let text = match row.text(field) {
            Some(text) => text.map(str::to_string),
            None => Err(no_field(field, row.names().into_iter(), "--field")),
        };
        let text = text.map_err(|why| format!("{origin}: {why}"))?;
        Ok(Prompt { bytes, row: Some(row), ..Prompt::text(text, origin) })
    }

    /// Whether a JSON object is a prompt with options, not a row that one of its fields is taken
    /// of.
    fn has_options(&self, object: &Map<String, Value>) -> bool {
        self.jsonl || self.field.is_none() && (object.contains_key("prompt") || object.contains_key("messages"))
    }

    /// The columns of the rows that prompts are fields of.
    pub(super) fn columns(&self) -> Result<Columns, Failure> {
        columns_of(if self.jsonl { &[] } else { &self.file }, self.field.is_some(), |object| !self.has_options(object))
    }

    /// Bytes of input, if known.
    pub(super) fn bytes(&self) -> Option<u64> {
        if !self.prompts.is_empty() {
            return Some(self.prompts.iter().map(|t| t.len() as u64).sum());
        }
        let size = |path: &PathBuf| std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
        (!self.file.is_empty()).then(|| self.file.iter().map(size).sum()).flatten()
    }
}

/// All of standard input, without its last newline.
fn read_stdin() -> Result<Prompt, Failure> {
    let mut text = String::new();
    if std::io::stdin().is_terminal() {
        eprintln!("reading a prompt from the terminal; end with Ctrl-D");
    }
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("stdin: {e}"))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Prompt::text(text.strip_suffix('\r').unwrap_or(text).to_string(), "stdin".into()))
}

/// Parses a JSON object. Unknown fields are errors, because they were meant to do something.
fn parse(mut all: Map<String, Value>, origin: String, bytes: u64) -> Result<Prompt, Failure> {
    let fail = |why: String| -> Failure { format!("{origin}: {why}").into() };
    let input = match (all.remove("prompt"), all.remove("messages")) {
        (Some(Value::String(text)), None) => PromptInput::Text(text),
        (None, Some(messages)) => {
            PromptInput::Chat(serde_json::from_value(messages).map_err(|e| fail(format!("messages: {e}")))?)
        }
        (Some(Value::String(_)), Some(_)) => return Err(fail("both `prompt` and `messages`; give one".into())),
        (Some(other), _) => return Err(fail(format!("`prompt` is {other}, not a text"))),
        (None, None) => return Err(fail("neither `prompt` nor `messages`".into())),
    };
    let id = all.remove("id");
    let generate_options = take_fields(&mut all, &["n", "beams", "logprobs", "echo", "ignore_eos"]).map_err(fail)?;
    let sampling: Sampling = serde_json::from_value(Value::Object(all)).map_err(|e| fail(e.to_string()))?;
    sampling.check().map_err(fail)?;
    Ok(Prompt { input, id, row: None, sampling, generate_options, origin, bytes })
}

/// Removes and parses the fields of these names.
fn take_fields<T: DeserializeOwned>(all: &mut Map<String, Value>, names: &[&str]) -> Result<T, String> {
    let fields: Map<String, Value> = names.iter().filter_map(|n| Some((n.to_string(), all.remove(*n)?))).collect();
    serde_json::from_value(Value::Object(fields)).map_err(|e| e.to_string())
}

impl Prompt {
    fn text(text: String, origin: String) -> Prompt {
        let bytes = text.len() as u64;
        let (sampling, generate_options) = (Sampling::default(), GenerateOptions::default());
        Prompt { input: PromptInput::Text(text), id: None, row: None, sampling, generate_options, origin, bytes }
    }
}

/// How to find the thought in the answers to a chat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThoughtFormat {
    pub(super) syntax: ReasoningSyntax,
    /// Whether the prompt opens the thought.
    pub(super) is_open: bool,
}

impl PromptInput {
    /// Starts generating. Answers to a chat may have thoughts; any other text is continued as it is.
    pub(super) fn start(&self, llm: &Llm, request: Request) -> sconce_engine::Result<(Stream, Option<ThoughtFormat>)> {
        match self {
            PromptInput::Text(text) => {
                Ok((llm.stream(&Request { start: Start::Text(text.clone()), ..request })?, None))
            }
            PromptInput::Chat(messages) => {
                let text = llm.render(messages, &ChatOptions::default())?;
                // With `echo`, an answer begins with the prompt.
                let syntax = llm.reasoning().map(|reasoning| reasoning.syntax).filter(|_| !request.echo);
                let format = syntax.map(|syntax| ThoughtFormat { syntax, is_open: syntax.is_opened_by(&text) });
                let thoughts = syntax.map(|syntax| Thoughts { syntax, budget: None });
                let stream = llm.stream(&Request { start: Start::Rendered(text), thoughts, ..request })?;
                Ok((stream, format))
            }
        }
    }
}

impl GenerateOptions {
    /// These options, with missing ones taken from `base`.
    pub(super) fn with_defaults(self, base: GenerateOptions) -> GenerateOptions {
        GenerateOptions {
            n: self.n.or(base.n),
            beams: self.beams.or(base.beams),
            logprobs: self.logprobs.or(base.logprobs),
            echo: self.echo.or(base.echo),
            ignore_eos: self.ignore_eos.or(base.ignore_eos),
        }
    }

    /// Adds the options to a request.
    pub(super) fn apply_to(self, mut request: Request) -> Request {
        if let Some(params) = &mut request.params {
            params.n = self.n.unwrap_or(1);
            params.logprobs = self.logprobs;
        }
        request.echo = self.echo.unwrap_or(false);
        request.ignore_end = self.ignore_eos.unwrap_or(false);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Prompt, String> {
        parse(serde_json::from_str(text).unwrap(), "stdin:3".into(), 0).map_err(|e| e.to_string())
    }

    #[test]
    fn jsonl_line_holds_prompt_or_chat_with_options() {
        let prompt = line(r#"{"prompt": "a", "id": [1], "n": 2, "max_tokens": 3, "stop": "x"}"#).unwrap();
        assert!(matches!(prompt.input, PromptInput::Text(text) if text == "a"));
        assert_eq!((prompt.id, prompt.generate_options.n), (Some(serde_json::json!([1])), Some(2)));
        assert_eq!(prompt.sampling.max_tokens, Some(3));
        let chat = line(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap();
        assert!(matches!(chat.input, PromptInput::Chat(messages) if messages.len() == 1));
        for (text, why) in [
            ("{}", "neither `prompt` nor `messages`"),
            (r#"{"prompt": 3}"#, "`prompt` is 3"),
            (r#"{"prompt": "a", "messages": []}"#, "give one"),
            (r#"{"prompt": "a", "warmth": 1}"#, "unknown field `warmth`"),
            (r#"{"prompt": "a", "n": "two"}"#, "invalid type"),
            (r#"{"prompt": "a", "temperature": -1}"#, "temperature is -1"),
            (r#"{"messages": [{"content": "hi"}]}"#, "needs a role"),
        ] {
            let e = line(text).err().unwrap_or_default();
            assert!(e.starts_with("stdin:3: ") && e.contains(why), "{text}: {e}");
        }
    }
}
