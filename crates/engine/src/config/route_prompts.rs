//! Prompts of queries and documents, for models that put different ones before them.

use super::router::Route;
use super::sentence_transformers::Prompts;
use crate::error::{Error, Result};
use sconce_formats::optional_json;
use std::path::Path;

/// The texts that a model's files put before queries, documents and other texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutePrompts {
    query: String,
    document: String,
    default: String,
}

/// The names that sentence-transformers tries for documents, in this order.
const DOCUMENT: [&str; 3] = ["document", "passage", "corpus"];

impl RoutePrompts {
    /// Reads them from the sentence-transformers files in `dir`; without files they are empty.
    pub(crate) fn read(dir: &Path) -> Result<RoutePrompts> {
        let path = dir.join("config_sentence_transformers.json");
        let Prompts { prompts, default_prompt_name } = optional_json(&path)?.unwrap_or_default();
        let named = |name: &str| prompts.get(name).map(|prompt| prompt.clone().unwrap_or_default());
        let default = match &default_prompt_name {
            Some(name) => named(name).ok_or_else(|| {
                Error::file(
                    &path,
                    format!("the default prompt `{name}` (default_prompt_name) is not among the prompts"),
                )
            })?,
            None => String::new(),
        };
        let [query, document] = [named("query"), DOCUMENT.into_iter().find_map(named)];
        // As in sentence-transformers: the default is also that of a route without a prompt.
        let of = |prompt: Option<String>| prompt.unwrap_or_else(|| default.clone());
        Ok(RoutePrompts { query: of(query), document: of(document), default })
    }

    /// The prompt of a route.
    pub(crate) fn of(&self, route: Route) -> &str {
        match route {
            Route::Query => &self.query,
            Route::Document => &self.document,
            Route::Default => &self.default,
        }
    }
}
