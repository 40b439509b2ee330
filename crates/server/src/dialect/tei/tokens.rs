//! Tokenization and detokenization.

use crate::answer::Answer;
use crate::app::App;
use crate::call::Usage;
use crate::dialect::llama_cpp;
use crate::embedding;
use crate::error::{Dialect, Fault};
use crate::http_context::HttpContext;
use crate::json_body::{self, JsonBody};
use crate::served_model::RequestKind;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use sconce_api::input::Item;
use sconce_api::tei::{DecodeRequest, DecodeResponse, Ids, Token, TokenizeRequest, TokenizeResponse};
use sconce_engine::TaskModel;
use sconce_engine::TextToken;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(tokenize_either)).routes(routes!(decode))
}

/// Tokenizes texts, with character offsets. A body with `content` instead of `inputs` is in
/// llama.cpp's format.
#[utoipa::path(post, path = "/tokenize", request_body = TokenizeRequest,
    responses((status = 200, description = "The tokens of each text", body = TokenizeResponse)))]
async fn tokenize_either(State(app): State<Arc<App>>, request: Request) -> Result<Response, Fault> {
    let (bytes, context) = json_body::read(request, &app).await?;
    if llama_cpp::is_llama_cpp(&bytes) {
        context.set_dialect(Dialect::LlamaCpp);
        let body = json_body::parse(&bytes, &context)?;
        return Ok(llama_cpp::tokenize(&app, &context, body).await?.into_response());
    }
    let body = json_body::parse(&bytes, &context)?;
    Ok(tokenize(&app, &context, body).await?.into_response())
}

/// Tokenization in TEI's format.
async fn tokenize(
    app: &Arc<App>,
    context: &Arc<HttpContext>,
    body: TokenizeRequest,
) -> Result<Answer<TokenizeResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let call = app.call("tokenize", context, body.model.as_deref(), RequestKind::Tokenize)?;
    let (items, special, prompt_given) = (body.inputs.items, body.add_special_tokens, body.prompt_name.is_some());
    let prompt = app.prompt(body.prompt_name);
    if items.iter().any(|item| !matches!(item, Item::Text(_))) {
        return Err(call
            .failed(Fault::invalid("`inputs` must be texts; token ids and images cannot be tokenized").at("inputs")));
    }
    let characters = embedding::characters(&items);
    let all = call
        .run(move |served, _| {
            let prefix = match &served.model {
                TaskModel::Embed(embedder) => embedder.prompt(&prompt)?.to_owned(),
                _ => embedding::refuse_prompt(prompt_given).map(|()| String::new())?,
            };
            let of = |text: &str| -> Result<Vec<Token>, Fault> {
                let joined = format!("{prefix}{text}");
                Ok(served.model.loaded().tokenize(&joined, special)?.into_iter().map(api_token).collect())
            };
            embedding::texts(&items, "inputs")?.into_iter().map(of).collect::<Result<Vec<_>, _>>()
        })
        .await?;
    let tokens = all.iter().map(Vec::len).sum();
    Ok(call.answer(TokenizeResponse(all), Usage { tokens, characters }))
}

fn api_token(token: TextToken) -> Token {
    let (start, stop) = token.place.unzip();
    Token { id: token.id, text: token.text, special: token.special, start, stop }
}

/// Detokenizes token ids.
#[utoipa::path(post, path = "/decode", request_body = DecodeRequest,
    responses((status = 200, description = "The text of each list of ids", body = DecodeResponse)))]
async fn decode(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<DecodeRequest>,
) -> Result<Answer<DecodeResponse>, Fault> {
    let lists = match body.ids {
        Ids::One(ids) => vec![ids],
        Ids::Several(lists) => lists,
    };
    app.check_batch(lists.len(), "ids")?;
    let skip = body.skip_special_tokens;
    let tokens = lists.iter().map(Vec::len).sum();
    let call = app.call("decode", &context, body.model.as_deref(), RequestKind::Tokenize)?;
    let texts = call
        .run(move |served, _| {
            let of = |ids: &Vec<u32>| Ok(served.model.loaded().detokenize(ids, skip)?);
            lists.iter().map(of).collect::<Result<Vec<String>, Fault>>()
        })
        .await?;
    Ok(call.answer(DecodeResponse(texts), Usage { tokens, characters: 0 }))
}
