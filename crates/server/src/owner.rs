//! Who owns what a server keeps for its clients.

use crate::app::App;
use crate::layers::presented_key;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;

/// The owner of an object: the API key that made it, as a hash, so that keys are not written to disk.
/// All clients of a server without keys are one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner(String);

impl Owner {
    /// The owner of what a client with this key makes.
    pub(crate) fn of(key: &str) -> Owner {
        let digest = Sha256::new().chain_update("owner\0").chain_update(key).finalize();
        let mut hash = String::with_capacity(2 * digest.len());
        for byte in digest {
            // Writing to a string cannot fail.
            let _ = write!(hash, "{byte:02x}");
        }
        Owner(hash)
    }
}

impl FromRequestParts<Arc<App>> for Owner {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Owner, Infallible> {
        // A server without keys ignores the ones that clients send.
        let has_keys = !app.config.api_keys.is_empty();
        let key = presented_key(&parts.headers).filter(|_| has_keys);
        Ok(key.map(Owner::of).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart_and_not_shown() {
        assert_eq!(Owner::of("a"), Owner::of("a"));
        assert_ne!(Owner::of("a"), Owner::of("b"));
        assert_ne!(Owner::of(""), Owner::default());
        let shown = serde_json::to_string(&Owner::of("s3cret")).unwrap();
        assert!(!shown.contains("s3cret") && shown.len() == 66, "{shown}");
    }
}
