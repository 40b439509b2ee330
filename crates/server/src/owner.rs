//! Who made a file or a batch: the API key of the request. Other keys do not see it.

use crate::app::App;
use crate::config::Secret;
use crate::error::Fault;
use crate::layers::presented_key;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::sync::Arc;

/// Bytes of the hash that are kept: enough to tell keys apart.
const HASH_BYTES: usize = 16;

/// The key that made an object, as a hash; nobody on a server without keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Owner(Option<String>);

impl Owner {
    /// The owner of what this key makes.
    pub(crate) fn of_key(key: &str) -> Owner {
        let hash = Sha256::new_with_prefix(b"sconce owner\0").chain_update(key.trim()).finalize();
        let hex = hash.iter().take(HASH_BYTES).fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        Owner(Some(hex))
    }

    /// Whether this caller may see what `owner` made. What was made without a key is for everybody.
    pub(crate) fn sees(&self, owner: &Owner) -> bool {
        owner.0.is_none() || self == owner
    }

    /// The key of this owner, if it is still one of the server's.
    pub(crate) fn key<'a>(&self, keys: &'a [Secret]) -> Option<&'a Secret> {
        keys.iter().find(|key| Owner::of_key(key.expose()) == *self)
    }

    /// Whether a server with these keys still works for this owner.
    pub(crate) fn is_known(&self, keys: &[Secret]) -> bool {
        self.0.is_none() || self.key(keys).is_some()
    }
}

/// The owner of what a request makes.
impl FromRequestParts<Arc<App>> for Owner {
    type Rejection = Fault;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Fault> {
        // A line of a batch has its batch's.
        if let Some(owner) = parts.extensions.get::<Owner>() {
            return Ok(owner.clone());
        }
        // The key was checked before.
        let key = presented_key(&parts.headers).filter(|_| !app.config.api_keys.is_empty());
        Ok(key.map_or_else(Owner::default, Owner::of_key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_see_their_own_and_what_nobody_owns() {
        let [a, b] = ["a", "b"].map(Owner::of_key);
        let nobody = Owner::default();
        assert!(a.sees(&a) && a.sees(&nobody) && nobody.sees(&nobody));
        assert!(!a.sees(&b) && !nobody.sees(&a));
        let keys = [Secret::new("b").unwrap()];
        assert!(b.is_known(&keys) && nobody.is_known(&keys) && !a.is_known(&keys));
        assert!(nobody.key(&keys).is_none());
        let json = serde_json::to_string(&a).unwrap();
        assert_eq!(serde_json::from_str::<Owner>(&json).unwrap(), a);
        assert_eq!(json.len(), 2 + 2 * HASH_BYTES);
    }
}
