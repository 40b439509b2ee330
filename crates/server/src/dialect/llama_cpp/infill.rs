//! `POST /infill`: completion between a prefix and a suffix, with the vocabulary's
//! fill-in-the-middle tokens.

use super::completion;
use crate::app::App;
use crate::error::{Fault, FaultKind};
use crate::json_body::{self, JsonBody};
use axum::extract::State;
use axum::response::Response;
use sconce_api::llama_cpp::{Completion, CompletionRequest, CompletionResponse, InfillRequest};
use sconce_engine::{Llm, Start};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The tokens' names, by family: the prefix's, the suffix's and the gap's; then a project's and a
/// file's, which not all families have.
const TOKENS: [([&str; 3], [Option<&str>; 2]); 6] = [
    // Qwen Coder
    (["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"], [Some("<|repo_name|>"), Some("<|file_sep|>")]),
    // StarCoder, Granite, Refact
    (["<fim_prefix>", "<fim_suffix>", "<fim_middle>"], [Some("<reponame>"), Some("<file_sep>")]),
    (["<fim-prefix>", "<fim-suffix>", "<fim-middle>"], [None, None]),
    // DeepSeek Coder
    (["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"], [None, None]),
    // Code Llama
    (["<PRE>", "<SUF>", "<MID>"], [None, None]),
    // GLM
    (["<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"], [None, None]),
];

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(infill))
}

/// Completes the text between a prefix and a suffix.
#[utoipa::path(post, path = "/infill", request_body = InfillRequest, responses(
    (status = 200, description = "The completion; a stream of parts if `stream` is true", content(
        (CompletionResponse = "application/json"), (Completion = "text/event-stream")))))]
async fn infill(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<InfillRequest>,
) -> Result<Response, Fault> {
    let mut options = body.options.clone();
    options.insert("prompt".into(), body.prompt.clone().into());
    let options = serde_json::to_vec(&options).unwrap_or_default();
    let request: CompletionRequest = json_body::parse(&options, &context)?;
    completion::answer(&app, &context, ("infill", request), move |llm| Ok(vec![prompt(llm, &body)?])).await
}

/// The ids of the tokens of a model.
struct MiddleTokens {
    prefix: u32,
    suffix: u32,
    middle: u32,
    project: Option<u32>,
    file: Option<u32>,
}

impl MiddleTokens {
    fn of(llm: &Llm) -> Result<MiddleTokens, Fault> {
        let found = TOKENS.iter().find_map(|([prefix, suffix, middle], [project, file])| {
            Some(MiddleTokens {
                prefix: llm.added_token(prefix)?,
                suffix: llm.added_token(suffix)?,
                middle: llm.added_token(middle)?,
                project: project.and_then(|name| llm.added_token(name)),
                file: file.and_then(|name| llm.added_token(name)),
            })
        });
        found.ok_or_else(|| {
            let what = "the model's vocabulary has no tokens for filling in the middle; choose a model for code";
            Fault::new(FaultKind::UnsupportedTask, what).at("model")
        })
    }
}

/// The prompt: other files, then `PREFIX prefix SUFFIX suffix MIDDLE prompt`.
fn prompt(llm: &Llm, body: &InfillRequest) -> Result<Vec<u32>, Fault> {
    let special = MiddleTokens::of(llm)?;
    // Control tokens in the texts are ordinary text. What begins every text is once at the beginning.
    let begin = llm.encode(&Start::Text(String::new()))?;
    let encode = |text: &str| -> Result<Vec<u32>, Fault> {
        let all = llm.encode(&Start::Text(text.to_owned()))?;
        Ok(all.strip_prefix(&begin[..]).map(<[u32]>::to_vec).unwrap_or(all))
    };
    let mut tokens = begin.clone();
    if let Some(project) = special.project.filter(|_| !body.input_extra.is_empty()) {
        tokens.push(project);
        tokens.extend(encode("project\n")?);
    }
    for extra in &body.input_extra {
        match special.file {
            Some(file) => {
                tokens.push(file);
                tokens.extend(encode(&format!("{}\n", extra.filename.as_deref().unwrap_or("file")))?);
            }
            None => tokens.extend(encode("\n\n")?),
        }
        tokens.extend(encode(&extra.text)?);
    }
    if let Some(file) = special.file.filter(|_| !body.input_extra.is_empty()) {
        tokens.push(file);
        tokens.extend(encode("current\n")?);
    }
    tokens.push(special.prefix);
    tokens.extend(encode(&body.input_prefix)?);
    tokens.push(special.suffix);
    tokens.extend(encode(&body.input_suffix)?);
    tokens.push(special.middle);
    tokens.extend(encode(&body.prompt)?);
    Ok(tokens)
}
