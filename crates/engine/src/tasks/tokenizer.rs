//! Tokenizers on their own.

use crate::error::Result;
use crate::options::LoadOptions;
use sconce_hub::{self as hub, Progress, Reference};
use sconce_text::Tokenizer;

/// Finds or fetches a model's tokenizer, without its weights where those are in files of their own.
///
/// ```no_run
/// use sconce_engine::{LoadOptions, load_tokenizer};
///
/// let tokenizer = load_tokenizer(&"minilm".parse()?, &LoadOptions::from_env()?, &())?;
/// assert_eq!(tokenizer.encode("A man is eating food.", true)?.ids[0], tokenizer.special_tokens()["cls_token"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_tokenizer(reference: &Reference, options: &LoadOptions, progress: &dyn Progress) -> Result<Tokenizer> {
    Ok(Tokenizer::open(&hub::resolve_tokenizer(reference, &options.hub, progress)?)?)
}
