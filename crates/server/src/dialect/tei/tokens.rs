//! Tokens.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::call::Usage;
use crate::embedding;
use crate::error::Fault;
use crate::served::Want;
use axum::extract::State;
use sconce_api::input::Item;
use sconce_api::tei::{DecodeRequest, DecodeResponse, Ids, Token, TokenizeRequest, TokenizeResponse};
use sconce_engine::TaskModel;
use sconce_engine::TextToken;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(tokenize)).routes(routes!(decode))
}

/// The tokens of texts, and where in them they stand.
#[utoipa::path(post, path = "/tokenize", request_body = TokenizeRequest,
    responses((status = 200, description = "The tokens of each text", body = TokenizeResponse)))]
async fn tokenize(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<TokenizeRequest>,
) -> Result<Answer<TokenizeResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let call = app.call("tokenize", &trail, body.model.as_deref(), Want::Tokens)?;
    let (items, special, prompted) = (body.inputs.items, body.add_special_tokens, body.prompt_name.is_some());
    let prompt = app.prompt(body.prompt_name);
    if items.iter().any(|item| !matches!(item, Item::Text(_))) {
        return Err(call.failed(Fault::invalid("tokens are made of texts").at("inputs")));
    }
    let characters = embedding::characters(&items);
    let all = call
        .run(move |served, _| {
            let words = match &served.model {
                TaskModel::Embed(embedder) => embedder.prompt(&prompt)?.to_owned(),
                _ => embedding::unprompted(prompted).map(|()| String::new())?,
            };
            let of = |text: &str| -> Result<Vec<Token>, Fault> {
                let joined = format!("{words}{text}");
                Ok(served.model.loaded().tokenize(&joined, special)?.into_iter().map(told).collect())
            };
            embedding::texts(&items, "inputs")?.into_iter().map(of).collect::<Result<Vec<_>, _>>()
        })
        .await?;
    let tokens = all.iter().map(Vec::len).sum();
    Ok(call.answer(TokenizeResponse(all), Usage { tokens, characters }))
}

fn told(token: TextToken) -> Token {
    let (start, stop) = token.place.unzip();
    Token { id: token.id, text: token.text, special: token.special, start, stop }
}

/// The texts of tokens.
#[utoipa::path(post, path = "/decode", request_body = DecodeRequest,
    responses((status = 200, description = "The text of each", body = DecodeResponse)))]
async fn decode(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<DecodeRequest>,
) -> Result<Answer<DecodeResponse>, Fault> {
    let lists = match body.ids {
        Ids::One(ids) => vec![ids],
        Ids::Several(lists) => lists,
    };
    app.check_batch(lists.len(), "ids")?;
    let skip = body.skip_special_tokens;
    let tokens = lists.iter().map(Vec::len).sum();
    let call = app.call("decode", &trail, body.model.as_deref(), Want::Tokens)?;
    let texts = call
        .run(move |served, _| {
            let of = |ids: &Vec<u32>| Ok(served.model.loaded().detokenize(ids, skip)?);
            lists.iter().map(of).collect::<Result<Vec<String>, Fault>>()
        })
        .await?;
    Ok(call.answer(DecodeResponse(texts), Usage { tokens, characters: 0 }))
}
