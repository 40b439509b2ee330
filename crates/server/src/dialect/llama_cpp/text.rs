//! `/tokenize`, `/detokenize`, `/apply-template` and counts of tokens.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::conversation;
use crate::error::Fault;
use crate::http_context::HttpContext;
use crate::json_body::JsonBody;
use crate::served_model::RequestKind;
use axum::Json;
use axum::extract::State;
use sconce_api::llama_cpp::{
    ApplyTemplateResponse, DetokenizeRequest, DetokenizeResponse, InputTokens, PromptPart, TokenPiece, TokenPieces,
    TokenizeRequest, TokenizeResponse,
};
use sconce_api::openai::chat::ChatRequest;
use sconce_engine::{Start, TaskModel};
use serde::de::IgnoredAny;
use std::collections::HashMap;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(detokenize))
        .routes(routes!(apply_template))
        .routes(routes!(input_tokens))
        .routes(routes!(input_tokens_v1))
}

/// Whether a body for `/tokenize` is in this API's format: it has `content` and no `inputs`.
pub(crate) fn is_llama_cpp(bytes: &[u8]) -> bool {
    let keys = serde_json::from_slice::<HashMap<String, IgnoredAny>>(bytes);
    keys.is_ok_and(|keys| keys.contains_key("content") && !keys.contains_key("inputs"))
}

/// Tokenizes a text, or texts and tokens in one.
pub(crate) async fn tokenize(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: TokenizeRequest,
) -> Result<Answer<TokenizeResponse>, Fault> {
    app.check_batch(body.content.items.len(), "content")?;
    let call = app.call("tokenize", context, body.model.as_deref(), RequestKind::Tokenize)?;
    let parts: Vec<PromptPart> = body.content.items.into_iter().flatten().collect();
    let length = |part: &PromptPart| if let PromptPart::Text(text) = part { text.chars().count() } else { 0 };
    let characters = parts.iter().map(length).sum();
    let (special, pieces, parsed) = (body.add_special, body.with_pieces, body.parse_special.unwrap_or(true));
    let tokens = call
        .run(move |served, _| {
            let mut all = Vec::new();
            for (i, part) in parts.into_iter().enumerate() {
                let begins = special && i == 0;
                match (part, &served.model) {
                    (PromptPart::Id(id), _) => all.push(id),
                    // The tokens of a text whose control tokens are ordinary text.
                    (PromptPart::Text(text), TaskModel::Generate(llm)) if !parsed => {
                        let begin = llm.encode(&Start::Text(String::new()))?;
                        let ids = llm.encode(&Start::Text(text))?;
                        let skipped = if begins || !ids.starts_with(&begin) { 0 } else { begin.len() };
                        all.extend(ids.into_iter().skip(skipped));
                    }
                    (PromptPart::Text(text), model) => {
                        all.extend(model.loaded().tokenize(&text, begins)?.into_iter().map(|token| token.id));
                    }
                }
            }
            let piece = |id: u32| -> Result<TokenPiece, Fault> {
                let TaskModel::Generate(llm) = &served.model else {
                    return Ok(TokenPiece::Text { id, piece: served.model.loaded().detokenize(&[id], false)? });
                };
                let token = llm.token(id)?;
                Ok(match token.bytes.map(String::from_utf8) {
                    Some(Ok(piece)) => TokenPiece::Text { id, piece },
                    Some(Err(part)) => TokenPiece::Bytes { id, piece: part.into_bytes() },
                    None => TokenPiece::Text { id, piece: token.text },
                })
            };
            match pieces {
                true => Ok(TokenPieces::Pieces(all.into_iter().map(piece).collect::<Result<_, _>>()?)),
                false => Ok(TokenPieces::Ids(all)),
            }
        })
        .await?;
    let count = match &tokens {
        TokenPieces::Ids(all) => all.len(),
        TokenPieces::Pieces(all) => all.len(),
    };
    Ok(call.answer(TokenizeResponse { tokens }, Usage { tokens: count, characters }))
}

/// Detokenizes tokens.
#[utoipa::path(post, path = "/detokenize", request_body = DetokenizeRequest,
    responses((status = 200, description = "The text", body = DetokenizeResponse)))]
async fn detokenize(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<DetokenizeRequest>,
) -> Result<Answer<DetokenizeResponse>, Fault> {
    let call = app.call("detokenize", &context, body.model.as_deref(), RequestKind::Tokenize)?;
    let tokens = body.tokens.len();
    let content = call.run(move |served, _| Ok(served.model.loaded().detokenize(&body.tokens, false)?)).await?;
    Ok(call.answer(DetokenizeResponse { content }, Usage { tokens, characters: 0 }))
}

/// The prompt that the model's chat template makes of a chat request.
#[utoipa::path(post, path = "/apply-template", request_body = ChatRequest,
    responses((status = 200, description = "The prompt", body = ApplyTemplateResponse)))]
async fn apply_template(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ChatRequest>,
) -> Result<Json<ApplyTemplateResponse>, Fault> {
    let prompt = conversation::render(&app, &context, "apply-template", body).await?;
    Ok(Json(ApplyTemplateResponse { prompt }))
}

/// The number of tokens of a chat's prompt.
#[utoipa::path(post, path = "/chat/completions/input_tokens", request_body = ChatRequest,
    responses((status = 200, description = "The number of tokens", body = InputTokens)))]
async fn input_tokens(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<ChatRequest>,
) -> Result<Json<InputTokens>, Fault> {
    let input_tokens = conversation::count_tokens(&app, &context, "chat/completions/input_tokens", body).await?;
    Ok(Json(InputTokens { input_tokens }))
}

/// The same as `/chat/completions/input_tokens`.
#[utoipa::path(post, path = "/v1/chat/completions/input_tokens", request_body = ChatRequest,
    responses((status = 200, description = "The number of tokens", body = InputTokens)))]
async fn input_tokens_v1(app: State<Arc<App>>, body: JsonBody<ChatRequest>) -> Result<Json<InputTokens>, Fault> {
    input_tokens(app, body).await
}
