//! Continues a prompt as it is, without messages and a chat template.

use super::events::Parsing;
use super::{Conversation, Generation, Seq2SeqRequest, SharedFields, begin_answers, check};
use crate::app::App;
use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::served_model::RequestKind;
use sconce_api::openai::chat::ChatRequest;
use sconce_engine::{Format, Llm, Loaded, Request, Start, TaskModel};
use std::sync::Arc;

/// A prompt without messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RawPrompt {
    /// A text whose control tokens are parsed.
    Text(String),
    /// Fill in the middle: the texts before and after the answer.
    Infill {
        /// The text before it.
        prefix: String,
        /// The text after it.
        suffix: String,
    },
}

/// Control tokens before the prefix, before the suffix and before the answer, in the order in which
/// the models were trained: Qwen and CodeGemma, StarCoder, SantaCoder, DeepSeek, CodeLlama.
const INFILL_TOKENS: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// The model's tokens for filling in the middle, if it was trained for that.
pub(crate) fn infill_tokens(llm: &Llm) -> Option<[u32; 3]> {
    let ids =
        |[prefix, suffix, middle]: [&str; 3]| Some([llm.control(prefix)?, llm.control(suffix)?, llm.control(middle)?]);
    INFILL_TOKENS.into_iter().find_map(ids)
}

/// Starts the answer to a prompt, with the parameters of `request`, whose messages and tools are
/// empty. `route` is the name of the path in the metrics.
pub(crate) async fn begin_raw(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    route: &'static str,
    (prompt, request): (RawPrompt, ChatRequest),
) -> Result<Conversation, Fault> {
    check(&request, context)?;
    let output = SharedFields::from(&request).output_params()?;
    output.check_answers(1, app.config.max_client_batch)?;
    let call = app.call(route, context, request.model.as_deref(), RequestKind::Generate)?;
    let (answers, ()) = begin_answers((app, context), call, move |served| {
        let fields = SharedFields::from(&request);
        let generation = match &served.model {
            TaskModel::Generate(llm) => {
                let request = Request {
                    start: prompt.start(llm)?,
                    params: Some(fields.params(llm.params(), llm.plan().vocabulary)?),
                    max_tokens: output.max_tokens,
                    stop: output.stop,
                    echo: false,
                    ignore_end: request.ignore_eos.unwrap_or(false),
                    format: output.format.map(Format::from),
                    thoughts: None,
                    progress: false,
                };
                Generation::Decode { requests: vec![request], marks: Vec::new() }
            }
            TaskModel::Seq2Seq(model) => {
                let RawPrompt::Text(text) = prompt else { return Err(no_infill(&served.id)) };
                Generation::Seq2Seq(Seq2SeqRequest::new(model, vec![Start::Text(text)], &fields, &output)?)
            }
            _ => return Err(served.unsupported(RequestKind::Generate)),
        };
        Ok((generation, ()))
    })
    .await?;
    Ok(Conversation::new(answers, &Parsing::default()))
}

impl RawPrompt {
    fn start(self, llm: &Llm) -> Result<Start, Fault> {
        // What the model's tokenizer puts before every text, usually one token.
        let mut ids = llm.encode(&Start::Text(String::new()))?;
        match self {
            RawPrompt::Text(text) => {
                let text = llm.encode(&Start::Rendered(text))?;
                // The text may have that token itself.
                if text.starts_with(&ids) {
                    ids.clear();
                }
                ids.extend(text);
            }
            RawPrompt::Infill { prefix, suffix } => {
                let [before_prefix, before_suffix, middle] =
                    infill_tokens(llm).ok_or_else(|| no_infill("this model"))?;
                let begin = ids.len();
                // Control tokens in the texts are text: the texts are a user's file.
                let text = |text: String| {
                    let mut ids = llm.encode(&Start::Text(text))?;
                    Ok::<_, Fault>(ids.split_off(begin.min(ids.len())))
                };
                let (prefix, suffix) = (text(prefix)?, text(suffix)?);
                ids.push(before_prefix);
                ids.extend(prefix);
                ids.push(before_suffix);
                ids.extend(suffix);
                ids.push(middle);
            }
        }
        Ok(Start::Tokens(ids))
    }
}

fn no_infill(model: &str) -> Fault {
    let what =
        format!("`{model}` was not trained to fill in the middle: it has no tokens for that; leave out `suffix`");
    Fault::invalid(what).at("suffix")
}
