//! Prompts of queries and documents, for models that put different ones before them.

use super::router::Route;
use super::sentence_transformers::{Prompt, Prompts};
use crate::error::{Error, Result};
use sconce_formats::optional_json;
use std::collections::BTreeMap;
use std::path::Path;

/// The texts that a model's files put before queries, documents and other texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoutePrompts {
    prompts: BTreeMap<String, String>,
    /// The prompt of a route that has none.
    default: String,
}

/// The names that sentence-transformers tries for a route, in this order.
const QUERY: &[&str] = &["query"];
const DOCUMENT: &[&str] = &["document", "passage", "corpus"];

impl RoutePrompts {
    /// Reads them from the sentence-transformers files in `dir`; without files there are none.
    pub(crate) fn read(dir: &Path) -> Result<RoutePrompts> {
        let path = dir.join("config_sentence_transformers.json");
        let Prompts { prompts, default_prompt_name } = optional_json(&path)?.unwrap_or_default();
        let prompts: BTreeMap<String, String> =
            prompts.into_iter().map(|(name, prompt)| (name, prompt.unwrap_or_default())).collect();
        let default = match &default_prompt_name {
            Some(name) => prompts.get(name).cloned().ok_or_else(|| {
                Error::file(
                    &path,
                    format!("the default prompt `{name}` (default_prompt_name) is not among the prompts"),
                )
            })?,
            None => String::new(),
        };
        Ok(RoutePrompts { prompts, default })
    }

    /// The text before inputs of a route, if the request names no other.
    pub(crate) fn of_route(&self, route: Route) -> &str {
        let names = match route {
            Route::Query => QUERY,
            Route::Document => DOCUMENT,
            Route::Default => &[],
        };
        names.iter().find_map(|name| self.prompts.get(*name)).unwrap_or(&self.default)
    }

    /// The text before inputs of a route.
    pub(crate) fn text<'a>(&'a self, prompt: &'a Prompt, route: Route) -> Result<&'a str> {
        match prompt {
            Prompt::Default => Ok(self.of_route(route)),
            Prompt::Text(text) => Ok(text),
            Prompt::Named(name) => self.prompts.get(name).map(String::as_str).ok_or_else(|| {
                let names = self.prompts.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
                Error::Input(format!("the model has no prompt `{name}`; it has: {names}"))
            }),
        }
    }
}
