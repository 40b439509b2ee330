//! Ollama's API: chats and completions as NDJSON, embeddings, and the models of the server.
//!
//! A request waits for a model that is not loaded, as at Ollama, where the other APIs answer with
//! status 503. Only models of the server can be named; `/api/pull` adds further ones.

mod answer;
mod chat;
mod delete;
mod embed;
mod facts;
mod generate;
mod models;
mod params;
mod pull;
mod session;
mod show;

use super::admin;
use crate::app::App;
use crate::error::Fault;
use axum::middleware::from_fn_with_state;
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use facts::FactsCache;
pub(crate) use pull::PullPermits;

/// The version of Ollama whose API this is. Clients choose by it what they send: this one has
/// `think` with levels, and logprobs.
const API_VERSION: &str = "0.12.11";
/// The tag of a name without a tag.
const LATEST: &str = ":latest";
/// What Ollama's users write before the name of a model on the Hugging Face hub.
const HUB_PREFIXES: [&str; 4] = ["hf.co/", "huggingface.co/", "https://hf.co/", "https://huggingface.co/"];

/// Routes of this API.
pub(crate) fn routes(app: &Arc<App>) -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .merge(chat::routes())
        .merge(generate::routes())
        .merge(embed::routes())
        .merge(models::routes())
        .merge(show::routes())
        .merge(pull::routes())
        .merge(delete::routes())
        .layer(from_fn_with_state(app.clone(), admin::mark))
}

/// The server's name of a model that a request calls `given`: clients add `:latest`, and the address
/// of the Hugging Face hub.
fn model_name<'a>(app: &App, given: &'a str) -> Result<&'a str, Fault> {
    let given = given.trim();
    if given.is_empty() {
        return Err(Fault::invalid("`model` is empty; GET /api/tags lists the models").at("model"));
    }
    let name = plain_name(given);
    let known =
        [given, given.strip_suffix(LATEST).unwrap_or(given), name].into_iter().find(|name| app.models.knows(name));
    Ok(known.unwrap_or(name))
}

/// A name without the default tag and the address of the hub.
fn plain_name(given: &str) -> &str {
    let name = HUB_PREFIXES.iter().find_map(|prefix| given.strip_prefix(prefix)).unwrap_or(given);
    name.strip_suffix(LATEST).unwrap_or(name)
}

/// The name of a model in lists: clients expect a tag.
fn tagged(id: &str) -> String {
    let last = id.rsplit('/').next().unwrap_or(id);
    if last.contains(':') { id.to_owned() } else { format!("{id}{LATEST}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_the_default_tag_and_the_hub_and_get_a_tag_in_lists() {
        for (given, plain) in [
            ("llama3.2", "llama3.2"),
            ("llama3.2:latest", "llama3.2"),
            ("hf.co/org/name:Q4_K_M", "org/name:Q4_K_M"),
            ("https://huggingface.co/org/name:latest", "org/name"),
            (":latest", ""),
        ] {
            assert_eq!(plain_name(given), plain);
        }
        assert_eq!(tagged("minilm"), "minilm:latest");
        assert_eq!(tagged("org/name:Q4_K_M"), "org/name:Q4_K_M");
        assert_eq!(tagged("pip:name/model"), "pip:name/model:latest");
    }
}
