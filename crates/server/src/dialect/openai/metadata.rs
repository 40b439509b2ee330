//! Key–value pairs that clients attach to objects, within OpenAI's limits.

use crate::error::Fault;
use std::collections::BTreeMap;

/// The most pairs.
const MAX_PAIRS: usize = 16;
/// The longest key, in characters.
const MAX_KEY: usize = 64;
/// The longest value, in characters.
const MAX_VALUE: usize = 512;

/// Checks `metadata`.
pub(super) fn check(metadata: &BTreeMap<String, String>) -> Result<(), Fault> {
    check_pairs(metadata.iter().map(|(key, value)| (key.as_str(), Some(value.as_str()))), "metadata")
}

/// Checks the pairs of the field `param`. A value that is no text is `None`.
pub(super) fn check_pairs<'a>(
    pairs: impl ExactSizeIterator<Item = (&'a str, Option<&'a str>)>,
    param: &str,
) -> Result<(), Fault> {
    if pairs.len() > MAX_PAIRS {
        let what = format!("`{param}` has {} pairs; the limit is {MAX_PAIRS}", pairs.len());
        return Err(Fault::invalid(what).at(param));
    }
    for (key, value) in pairs {
        if key.chars().count() > MAX_KEY {
            return Err(Fault::invalid(format!("`{param}` has a key of more than {MAX_KEY} characters")).at(param));
        }
        if value.is_some_and(|value| value.chars().count() > MAX_VALUE) {
            let what = format!("`{param}`: the value of `{key}` has more than {MAX_VALUE} characters");
            return Err(Fault::invalid(what).at(param));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_bounded() {
        let one = |key: usize, value: usize| [("é".repeat(key), "é".repeat(value))].into();
        assert!(check(&one(64, 512)).is_ok() && check(&one(65, 1)).is_err() && check(&one(1, 513)).is_err());
        let many = |n: usize| (0..n).map(|i| (i.to_string(), String::new())).collect();
        assert!(check(&many(16)).is_ok() && check(&many(17)).is_err());
    }
}
