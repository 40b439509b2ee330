//! The Router of sentence-transformers (formerly Asym): some modules for queries, others for
//! documents.

use super::sentence_transformers::Entry;
use crate::error::{Error, Result};
use sconce_formats::json;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which modules a text passes through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Route {
    /// The model's default.
    #[default]
    Default,
    /// Those for queries.
    Query,
    /// Those for documents.
    Document,
}

/// The routes of a model.
pub(crate) struct Router {
    /// The file that describes them.
    pub(crate) path: PathBuf,
    /// The modules of each route, with paths from the model's folder.
    query: Vec<Entry>,
    document: Vec<Entry>,
    /// The default: never [`Route::Default`], unless requests must choose.
    pub(crate) default: Route,
}

#[derive(Deserialize)]
struct Config {
    types: BTreeMap<String, String>,
    /// In the order of the file.
    structure: Map<String, Value>,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Default, Deserialize)]
struct Parameters {
    default_route: Option<String>,
    allow_empty_key: Option<bool>,
    route_mappings: Option<Map<String, Value>>,
}

impl Router {
    /// Whether an entry of `modules.json` is a router.
    pub(crate) fn is_router(entry: &Entry) -> bool {
        matches!(entry.class(), "Router" | "Asym")
    }

    /// Reads the router that `entry` of the `modules.json` in `dir` names.
    pub(crate) fn read(entry: &Entry, dir: &Path) -> Result<Router> {
        let folder = entry.folder(dir, &dir.join("modules.json"))?;
        let path = folder.join("router_config.json");
        let config: Config = json(&path)?;
        let Config { types, structure, parameters } = config;
        let fault = |what: String| Err(Error::file(&path, what));
        if parameters.route_mappings.is_some_and(|mappings| !mappings.is_empty()) {
            return fault("route_mappings are not supported; routes `query` and `document` are".into());
        }
        if let Some(other) = structure.keys().find(|name| !["query", "document"].contains(&name.as_str())) {
            return fault(format!("the route `{other}` is not supported; `query` and `document` are"));
        }
        let modules = |route: &str| -> Result<Vec<Entry>> {
            let ids = structure.get(route).and_then(Value::as_array).cloned().unwrap_or_default();
            let module = |id: &Value| -> Result<Entry> {
                let id = id.as_str().unwrap_or_default();
                let kind = types.get(id).ok_or_else(|| Error::file(&path, format!("no type for the module `{id}`")))?;
                Ok(entry.inside(id, kind))
            };
            ids.iter().map(module).collect()
        };
        let route = |name: &str| if name == "query" { Route::Query } else { Route::Document };
        let default = match &parameters.default_route {
            Some(name) if structure.contains_key(name) => route(name),
            Some(name) => return fault(format!("the default route `{name}` is not among the routes")),
            // As in sentence-transformers: the first route.
            None if parameters.allow_empty_key != Some(false) => {
                structure.keys().next().map_or(Route::Default, |name| route(name))
            }
            None => Route::Default,
        };
        Ok(Router { query: modules("query")?, document: modules("document")?, default, path: path.clone() })
    }

    /// The modules for queries, and those for documents.
    pub(crate) fn routes(&self) -> [&[Entry]; 2] {
        [&self.query, &self.document]
    }

    /// All modules.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = Entry> {
        self.query.into_iter().chain(self.document)
    }
}
