//! Limits of what clients give vector stores, as at OpenAI.

use crate::dialect::openai::metadata::{MAX_VALUE, check_pairs};
use crate::error::Fault;
use sconce_api::openai::vector_stores::{Attribute, Attributes, ChunkingStrategy, ExpiresAfter, StaticChunking};

/// The tokens of a chunk.
const CHUNK_TOKENS: std::ops::RangeInclusive<usize> = 100..=4_096;
/// The days until a store expires.
const DAYS: std::ops::RangeInclusive<u64> = 1..=365;

/// Checks a name or a description.
pub(super) fn text(text: &str, param: &str) -> Result<(), Fault> {
    match text.chars().count() {
        n if n > MAX_VALUE => {
            Err(Fault::invalid(format!("`{param}` has {n} characters; the limit is {MAX_VALUE}")).at(param))
        }
        _ => Ok(()),
    }
}

/// Checks the attributes of a file.
pub(super) fn attributes(attributes: &Attributes) -> Result<(), Fault> {
    check_pairs(attributes.iter().map(|(key, value)| (key.as_str(), text_of(value))), "attributes")
}

fn text_of(value: &Attribute) -> Option<&str> {
    match value {
        Attribute::Text(text) => Some(text),
        Attribute::Bool(_) | Attribute::Integer(_) | Attribute::Float(_) => None,
    }
}

/// Checks how a file is to be cut into chunks.
pub(super) fn chunking(strategy: ChunkingStrategy) -> Result<(), Fault> {
    let ChunkingStrategy::Static { sizes } = strategy else { return Ok(()) };
    let StaticChunking { max_chunk_size_tokens: tokens, chunk_overlap_tokens: overlap } = sizes;
    let what = if !CHUNK_TOKENS.contains(&tokens) {
        format!("`max_chunk_size_tokens` is {tokens}; it must be {} to {}", CHUNK_TOKENS.start(), CHUNK_TOKENS.end())
    } else if overlap > tokens / 2 {
        format!("`chunk_overlap_tokens` is {overlap}, more than half of `max_chunk_size_tokens` ({tokens})")
    } else {
        return Ok(());
    };
    Err(Fault::invalid(what).at("chunking_strategy"))
}

/// Checks when a store expires.
pub(super) fn expires_after(expires_after: &ExpiresAfter) -> Result<(), Fault> {
    if expires_after.anchor != "last_active_at" || !DAYS.contains(&expires_after.days) {
        let what = format!(
            "`expires_after` needs the `anchor` last_active_at, and `days` from {} to {}",
            DAYS.start(),
            DAYS.end()
        );
        return Err(Fault::invalid(what).at("expires_after"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_openais_limits() {
        let check = |max_chunk_size_tokens, chunk_overlap_tokens| {
            let sizes = StaticChunking { max_chunk_size_tokens, chunk_overlap_tokens };
            chunking(ChunkingStrategy::Static { sizes }).is_ok()
        };
        assert!(check(800, 400) && check(100, 0) && check(4_096, 2_048));
        assert!(!check(99, 0) && !check(4_097, 0) && !check(800, 401));
    }

    #[test]
    fn attributes_and_texts_are_bounded() {
        let many = |n: usize| (0..n).map(|i| (i.to_string(), Attribute::Integer(1))).collect::<Attributes>();
        assert!(attributes(&many(16)).is_ok() && attributes(&many(17)).is_err());
        assert!(text(&"é".repeat(512), "name").is_ok() && text(&"é".repeat(513), "name").is_err());
    }
}
