//! Answers as they are written.

use crate::Failure;
use crate::input::Text;
use crate::output::Cell;
use crate::told::finish_reason;
use sconce_engine::{Answer, Answers, Finish, Generation, Llm, SampledToken, Seq2SeqAnswer};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// What came of one prompt.
pub(super) struct Outcome<'a> {
    pub(super) index: usize,
    pub(super) id: Option<Value>,
    pub(super) origin: &'a str,
    pub(super) made: Result<Made, String>,
}

/// Answers to a prompt, in JSON and as texts.
pub(super) struct Made {
    texts: Vec<String>,
    answers: Vec<Value>,
    /// Tokens that were read and written.
    pub(super) read: usize,
    pub(super) wrote: usize,
    /// Whether the prompt was too long, and was cut.
    pub(super) truncated: bool,
    seed: Option<u64>,
}

impl Made {
    /// By a language model.
    pub(super) fn spoken(llm: &Llm, generation: Generation, seed: Option<u64>) -> Result<Made, Failure> {
        let (read, wrote) = (generation.prompt_tokens, generation.answers.iter().map(|a| a.picks.len()).sum());
        let answers = generation.answers.iter().map(|a| answer(llm, a)).collect::<Result<_, _>>()?;
        let texts = generation.answers.into_iter().map(|a| a.text).collect();
        Ok(Made { texts, answers, read, wrote, truncated: false, seed })
    }

    /// By a model that reads a text and writes another.
    pub(super) fn written(answers: Answers, seed: Option<u64>) -> Made {
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
        Made { texts: all.into_iter().map(|a| a.text).collect(), answers, read, wrote, truncated, seed }
    }
}

/// Tokens that were read and written.
pub(super) fn usage(read: usize, wrote: usize) -> Value {
    json!({"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote})
}

fn answer(llm: &Llm, a: &Answer) -> Result<Value, Failure> {
    let ids: Vec<u32> = a.picks.iter().map(|p| p.id).collect();
    let stopped_by = match &a.finish {
        Some(Finish::Stop(text)) => Some(text),
        _ => None,
    };
    let reason = a.finish.as_ref().map(finish_reason);
    let mut all = json!({"text": a.text, "tokens": ids, "finish_reason": reason, "stop": stopped_by});
    if a.picks.iter().any(|p| p.logprobs.is_some()) {
        all["logprobs"] = a.picks.iter().map(|p| likely(llm, p)).collect::<Result<Value, _>>()?;
    }
    Ok(all)
}

/// How likely a token was, and the most likely ones in its place.
fn likely(llm: &Llm, pick: &SampledToken) -> Result<Value, Failure> {
    let token = |id: u32, logprob: f32| -> Result<Value, Failure> {
        let token = llm.token(id)?;
        Ok(json!({"id": id, "token": token.text, "bytes": token.bytes, "logprob": logprob}))
    };
    let Some(logprobs) = &pick.logprobs else { return Ok(Value::Null) };
    let mut all = token(pick.id, logprobs.chosen)?;
    all["top"] = logprobs.top.iter().map(|(id, p)| token(*id, *p)).collect::<Result<Value, _>>()?;
    Ok(all)
}

impl Serialize for Outcome<'_> {
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
        let Outcome { index, id, origin, made } = self;
        let made_of = made.as_ref().ok();
        Fields {
            index: *index,
            id,
            answers: made_of.map(|m| &m.answers[..]),
            usage: made_of.map(|m| usage(m.read, m.wrote)),
            truncated: made_of.is_some_and(|m| m.truncated),
            seed: made_of.and_then(|m| m.seed),
            error: made.as_ref().err().map(|why| super::located(origin, why)),
        }
        .serialize(s)
    }
}

impl Cell for Outcome<'_> {
    /// Each answer with the end of its line; of a prompt that failed, standard error tells.
    fn lines(&self, _: &Text) -> String {
        let texts = self.made.as_ref().map_or(&[][..], |made| &made.texts[..]);
        texts.iter().map(|text| if text.ends_with('\n') { text.clone() } else { text.clone() + "\n" }).collect()
    }
}
