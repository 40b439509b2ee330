//! Where prompts come from: arguments, standard input, lines of files, JSON objects a line.

use crate::Failure;
use crate::input::{Line, Lines};
use crate::sampling::Sampling;
use clap::Args;
use sconce_engine::{ChatOptions, Llm, Message, Request, Start, Stream};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::io::{IsTerminal, Read};
use std::path::PathBuf;

#[derive(Args)]
pub(super) struct Input {
    /// Prompts. Without any, and without --file or --jsonl, all of standard input is one.
    #[arg(value_name = "PROMPT")]
    prompts: Vec<String>,
    /// Read prompts from this file, one a line (`-` is standard input). May be given more than once.
    #[arg(short, long, value_name = "FILE", conflicts_with = "prompts")]
    file: Vec<PathBuf>,
    /// Each line is a JSON object with `prompt`, or `messages` of a chat; and if need be `id`, which comes back with the answer,
    /// and any option of this command that says how answers are made (`max_tokens`, `temperature`, `stop`, `n`, …).
    #[arg(long, conflicts_with = "prompts")]
    jsonl: bool,
}

/// What is wanted of the answers besides how their tokens are chosen.
#[derive(Args, Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Wanted {
    /// Answers to each prompt.
    #[arg(short, value_name = "N")]
    pub(super) n: Option<u32>,
    /// Look for the likeliest whole answer among so many that are followed at once, with a model that reads a text and writes
    /// another (T5).
    #[arg(long, value_name = "N")]
    pub(super) beams: Option<u32>,
    /// Say how likely each token was, and the K most likely ones; in JSON.
    #[arg(long, value_name = "K")]
    pub(super) logprobs: Option<u32>,
    /// Begin each answer with its prompt.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) echo: Option<bool>,
    /// Go on where the model would end.
    #[arg(long, num_args = 0, default_missing_value = "true")]
    pub(super) ignore_eos: Option<bool>,
}

/// A prompt, how its answers are made, and where it came from.
pub(super) struct Prompt {
    pub(super) begin: Begin,
    pub(super) id: Option<Value>,
    pub(super) sampling: Sampling,
    pub(super) wanted: Wanted,
    pub(super) origin: String,
    pub(super) bytes: u64,
}

pub(super) enum Begin {
    Text(String),
    Chat(Vec<Message>),
}

type Prompts<'a> = Box<dyn Iterator<Item = Result<Prompt, Failure>> + 'a>;

impl Input {
    /// Whether it is one prompt for sure.
    pub(super) fn is_one(&self) -> bool {
        self.prompts.len() == 1 || self.prompts.is_empty() && self.file.is_empty() && !self.jsonl
    }

    /// Prompts one by one, read as they are asked for.
    pub(super) fn prompts(&self) -> Result<Prompts<'_>, Failure> {
        if !self.prompts.is_empty() {
            let prompt = |(i, text): (usize, &String)| Ok(Prompt::text(text.clone(), format!("argument {}", i + 1)));
            return Ok(Box::new(self.prompts.iter().enumerate().map(prompt)));
        }
        if self.is_one() {
            return Ok(Box::new(std::iter::once(whole_stdin())));
        }
        let stdin = [PathBuf::from("-")];
        let files = if self.file.is_empty() { &stdin[..] } else { &self.file };
        let open = files.iter().map(|path| Lines::open(path)).collect::<Result<Vec<_>, _>>()?;
        let lines = open.into_iter().flatten();
        if !self.jsonl {
            return Ok(Box::new(
                lines.map(|line| line.map(|l| Prompt { bytes: l.bytes, ..Prompt::text(l.text, l.origin) })),
            ));
        }
        let is_blank = |line: &Result<Line, Failure>| line.as_ref().is_ok_and(|l| l.text.trim().is_empty());
        Ok(Box::new(lines.filter(move |line| !is_blank(line)).map(|line| parse(line?))))
    }

    /// Bytes that will be read, where that is known.
    pub(super) fn bytes(&self) -> Option<u64> {
        if !self.prompts.is_empty() {
            return Some(self.prompts.iter().map(|t| t.len() as u64).sum());
        }
        let size = |path: &PathBuf| std::fs::metadata(path).ok().filter(|m| m.is_file()).map(|m| m.len());
        (!self.file.is_empty()).then(|| self.file.iter().map(size).sum()).flatten()
    }
}

/// All of standard input, without the end of its last line.
fn whole_stdin() -> Result<Prompt, Failure> {
    let mut text = String::new();
    if std::io::stdin().is_terminal() {
        eprintln!("reading a prompt from the terminal; end with Ctrl-D");
    }
    std::io::stdin().read_to_string(&mut text).map_err(|e| format!("stdin: {e}"))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Prompt::text(text.strip_suffix('\r').unwrap_or(text).to_string(), "stdin".into()))
}

/// A JSON object. A field that means nothing here is refused: it was meant to do something.
fn parse(Line { text, origin, bytes }: Line) -> Result<Prompt, Failure> {
    let fail = |why: String| -> Failure { format!("{origin}: {why}").into() };
    let mut all: Map<String, Value> =
        serde_json::from_str(&text).map_err(|e| fail(format!("not a JSON object: {e}")))?;
    let begin = match (all.remove("prompt"), all.remove("messages")) {
        (Some(Value::String(text)), None) => Begin::Text(text),
        (None, Some(messages)) => {
            Begin::Chat(serde_json::from_value(messages).map_err(|e| fail(format!("messages: {e}")))?)
        }
        (Some(Value::String(_)), Some(_)) => return Err(fail("both `prompt` and `messages`; give one".into())),
        (Some(other), _) => return Err(fail(format!("`prompt` is {other}, not a text"))),
        (None, None) => return Err(fail("neither `prompt` nor `messages`".into())),
    };
    let id = all.remove("id");
    let wanted = take(&mut all, &["n", "beams", "logprobs", "echo", "ignore_eos"]).map_err(fail)?;
    let sampling: Sampling = serde_json::from_value(Value::Object(all)).map_err(|e| fail(e.to_string()))?;
    sampling.check().map_err(fail)?;
    Ok(Prompt { begin, id, sampling, wanted, origin, bytes })
}

/// What the fields of these names say.
fn take<T: DeserializeOwned>(all: &mut Map<String, Value>, names: &[&str]) -> Result<T, String> {
    let own: Map<String, Value> = names.iter().filter_map(|n| Some((n.to_string(), all.remove(*n)?))).collect();
    serde_json::from_value(Value::Object(own)).map_err(|e| e.to_string())
}

impl Prompt {
    fn text(text: String, origin: String) -> Prompt {
        let bytes = text.len() as u64;
        let (sampling, wanted) = (Sampling::default(), Wanted::default());
        Prompt { begin: Begin::Text(text), id: None, sampling, wanted, origin, bytes }
    }
}

impl Begin {
    /// Starts on what there is to answer, as `request` says.
    pub(super) fn start(&self, llm: &Llm, request: Request) -> sconce_engine::Result<Stream> {
        match self {
            Begin::Text(text) => llm.stream(&Request { start: Start::Text(text.clone()), ..request }),
            Begin::Chat(messages) => llm.chat(messages, &ChatOptions::default(), &request),
        }
    }
}

impl Wanted {
    /// The same, and where something is not given, what `base` has.
    pub(super) fn over(self, base: Wanted) -> Wanted {
        Wanted {
            n: self.n.or(base.n),
            beams: self.beams.or(base.beams),
            logprobs: self.logprobs.or(base.logprobs),
            echo: self.echo.or(base.echo),
            ignore_eos: self.ignore_eos.or(base.ignore_eos),
        }
    }

    /// Asks for it.
    pub(super) fn of(self, mut request: Request) -> Request {
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
        let line = Line { text: text.into(), origin: "stdin:3".into(), bytes: 0 };
        parse(line).map_err(|e| e.to_string())
    }

    #[test]
    fn a_line_is_a_prompt_or_a_chat_with_options() {
        let prompt = line(r#"{"prompt": "a", "id": [1], "n": 2, "max_tokens": 3, "stop": "x"}"#).unwrap();
        assert!(matches!(prompt.begin, Begin::Text(text) if text == "a"));
        assert_eq!((prompt.id, prompt.wanted.n), (Some(serde_json::json!([1])), Some(2)));
        assert_eq!(prompt.sampling.max_tokens, Some(3));
        let chat = line(r#"{"messages": [{"role": "user", "content": "hi"}]}"#).unwrap();
        assert!(matches!(chat.begin, Begin::Chat(messages) if messages.len() == 1));
        for (text, why) in [
            ("[1]", "not a JSON object"),
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
