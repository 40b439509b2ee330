//! Results of prompts, as text and JSON.

use super::prompts::ThoughtFormat;
use crate::Failure;
use crate::input::Text;
use crate::output::ResultRow;
use crate::stream_printer::finish_reason;
use sconce_engine::{Answer, AnswerParser, Answers, Finish, Generation, Llm, SampledToken, Seq2SeqAnswer};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

macro_rules! columns {
    () => {
        "optional group answers (LIST) { repeated group list { required group element {
            required binary text (STRING);
            required group tokens (LIST) { repeated group list { required int64 element; } }
            optional binary finish_reason (STRING); optional binary stop (STRING);
            optional double score; optional binary logprobs (JSON);
            optional binary reasoning (STRING); } } }
        optional group usage { required int64 prompt_tokens; required int64 completion_tokens;
            required int64 total_tokens; }
        optional boolean truncated; optional int64 seed (INTEGER(64,false)); optional binary error (STRING);"
    };
}

/// The Parquet columns of a result.
pub(super) const COLUMNS: &str = columns!();

/// The same for prompts that are no rows, and may have an id.
pub(super) const COLUMNS_WITH_ID: &str = concat!("optional binary id (JSON);", columns!());

/// Result of one prompt.
pub(super) struct PromptResult<'a> {
    pub(super) index: usize,
    pub(super) id: Option<Value>,
    pub(super) origin: &'a str,
    pub(super) outcome: Result<PromptAnswers, String>,
}

/// Answers to a prompt, as JSON and as text.
pub(super) struct PromptAnswers {
    texts: Vec<String>,
    answers: Vec<Value>,
    /// Tokens of the prompt and of the answers.
    pub(super) read: usize,
    pub(super) wrote: usize,
    /// Whether the prompt was truncated.
    pub(super) truncated: bool,
    seed: Option<u64>,
}

impl PromptAnswers {
    /// The answers of a language model.
    pub(super) fn of_language_model(
        llm: &Llm,
        generation: Generation,
        thoughts: Option<ThoughtFormat>,
        seed: Option<u64>,
    ) -> Result<PromptAnswers, Failure> {
        let (read, wrote) = (generation.prompt_tokens, generation.answers.iter().map(|a| a.sampled.len()).sum());
        let (mut texts, mut answers) = (Vec::new(), Vec::new());
        for mut one in generation.answers {
            let thought = thoughts.map(|format| take_thought(llm, &mut one, format)).unwrap_or_default();
            let mut fields = answer(llm, &one)?;
            if !thought.is_empty() {
                fields["reasoning"] = thought.into();
            }
            answers.push(fields);
            texts.push(one.text);
        }
        Ok(PromptAnswers { texts, answers, read, wrote, truncated: false, seed })
    }

    /// The answers of a sequence-to-sequence model.
    pub(super) fn of_seq2seq(answers: Answers, seed: Option<u64>) -> PromptAnswers {
        let Answers { answers: all, input_tokens: read, truncated } = answers;
        let answer = |a: &Seq2SeqAnswer| {
            let reason = finish_reason(&a.finish);
            let mut all = json!({"text": a.text, "tokens": a.ids, "finish_reason": reason, "stop": null});
            if let Some(score) = a.score {
                all["score"] = score.into();
            }
            all
        };
        let (answers, wrote) = (all.iter().map(answer).collect(), all.iter().map(|a| a.ids.len()).sum());
        PromptAnswers { texts: all.into_iter().map(|a| a.text).collect(), answers, read, wrote, truncated, seed }
    }
}

/// Separates the thought from the text of an answer, and returns it.
fn take_thought(llm: &Llm, answer: &mut Answer, format: ThoughtFormat) -> String {
    let markers = llm.markers(&format.syntax.marks());
    let text = llm.with_markers(std::mem::take(&mut answer.text), &answer.sampled, &markers);
    let parsed = AnswerParser::default().with_thoughts(format.syntax, format.is_open).parse(&text);
    answer.text = parsed.text;
    parsed.reasoning
}

/// Token counts.
pub(super) fn usage(read: usize, wrote: usize) -> Value {
    json!({"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote})
}

fn answer(llm: &Llm, a: &Answer) -> Result<Value, Failure> {
    let ids: Vec<u32> = a.sampled.iter().map(|p| p.id).collect();
    let stopped_by = match &a.finish {
        Some(Finish::Stop(text)) => Some(text),
        _ => None,
    };
    let reason = a.finish.as_ref().map(finish_reason);
    let mut all = json!({"text": a.text, "tokens": ids, "finish_reason": reason, "stop": stopped_by});
    if a.sampled.iter().any(|p| p.logprobs.is_some()) {
        all["logprobs"] = a.sampled.iter().map(|p| logprobs_json(llm, p)).collect::<Result<Value, _>>()?;
    }
    Ok(all)
}

/// Log probabilities of a token and of the most likely ones in its place.
fn logprobs_json(llm: &Llm, pick: &SampledToken) -> Result<Value, Failure> {
    let token = |id: u32, logprob: f32| -> Result<Value, Failure> {
        let token = llm.token(id)?;
        Ok(json!({"id": id, "token": token.text, "bytes": token.bytes, "logprob": logprob}))
    };
    let Some(logprobs) = &pick.logprobs else { return Ok(Value::Null) };
    let mut all = token(pick.id, logprobs.chosen)?;
    all["top"] = logprobs.top.iter().map(|(id, p)| token(*id, *p)).collect::<Result<Value, _>>()?;
    Ok(all)
}

impl Serialize for PromptResult<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            index: usize,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: &'a Option<Value>,
            #[serde(skip_serializing_if = "Option::is_none")]
            answers: Option<&'a [Value]>,
            #[serde(skip_serializing_if = "Option::is_none")]
            usage: Option<Value>,
            #[serde(skip_serializing_if = "std::ops::Not::not")]
            truncated: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            seed: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<String>,
        }
        let PromptResult { index, id, origin, outcome } = self;
        let ok = outcome.as_ref().ok();
        Fields {
            index: *index,
            id,
            answers: ok.map(|m| &m.answers[..]),
            usage: ok.map(|m| usage(m.read, m.wrote)),
            truncated: ok.is_some_and(|m| m.truncated),
            seed: ok.and_then(|m| m.seed),
            error: outcome.as_ref().err().map(|why| super::with_origin(origin, why)),
        }
        .serialize(s)
    }
}

impl ResultRow for PromptResult<'_> {
    /// Each answer with a newline. The error of a failed prompt goes to standard error.
    fn lines(&self, _: &Text) -> String {
        let texts = self.outcome.as_ref().map_or(&[][..], |outcome| &outcome.texts[..]);
        texts.iter().map(|text| if text.ends_with('\n') { text.clone() } else { text.clone() + "\n" }).collect()
    }
}
