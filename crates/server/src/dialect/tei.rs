//! text-embeddings-inference.

use crate::answer::Answer;
use crate::app::App;
use crate::asked::Asked;
use crate::call::Usage;
use crate::error::Fault;
use crate::served::{Task, Want};
use axum::extract::State;
use sconce_api::input::Item;
use sconce_api::tei::{EmbedRequest, EmbedResponse};
use sconce_engine::{Embeddings, Prompt};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// Its paths.
pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(embed))
}

/// A vector an input.
#[utoipa::path(post, path = "/embed", request_body = EmbedRequest,
    responses((status = 200, description = "A vector an input", body = EmbedResponse)))]
async fn embed(
    State(app): State<Arc<App>>,
    Asked { body, trail }: Asked<EmbedRequest>,
) -> Result<Answer<EmbedResponse>, Fault> {
    app.check_batch(body.inputs.items.len(), "inputs")?;
    let call = app.call("embed", &trail, body.model.as_deref(), Want::Embed)?;
    let prompt = body.prompt_name.map_or(Prompt::Default, Prompt::Named);
    let texts: Vec<String> = body
        .inputs
        .items
        .into_iter()
        .map(|item| match item {
            Item::Text(text) => Ok(text),
            Item::Ids(_) | Item::Image(_) => Err(Fault::invalid("only texts are read here").at("inputs")),
        })
        .collect::<Result<_, _>>()?;
    let characters = texts.iter().map(|t| t.chars().count()).sum();
    let embeddings: Embeddings = call
        .run(move |served, _| {
            Ok(match &served.task {
                Task::Embed(embedder) => embedder.embed(&texts, &prompt)?,
                Task::Clip(clip) => clip.texts(&texts)?,
                _ => return Err(served.unfit(Want::Embed)),
            })
        })
        .await?;
    let usage = Usage { tokens: embeddings.tokens.iter().sum(), characters };
    let rows = embeddings.rows().map(<[f32]>::to_vec).collect();
    Ok(call.answer(EmbedResponse(rows), usage))
}
