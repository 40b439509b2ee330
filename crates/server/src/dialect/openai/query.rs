//! Parameters in a URL's query.

use crate::error::Fault;
use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

/// The query of a URL. Like `axum::extract::Query`, with this server's errors.
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Fault> {
        let query = Query::<T>::try_from_uri(&parts.uri);
        query.map(|Query(params)| Params(params)).map_err(|e| Fault::invalid(e.body_text()))
    }
}
