//! Embedding of texts, token ids and images, shared by all APIs.

use crate::call::Usage;
use crate::error::{Fault, FaultKind};
use crate::served_model::{RequestKind, ServedModel};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sconce_api::input::Item;
use sconce_api::llama_cpp::PromptPart;
use sconce_engine::{Clip, EmbedOptions, Embeddings, Image, Pooling, Prompt, RequestContext, TextOrTokens, Truncate};
use sconce_engine::{Loaded, M3Embedding, MultiVector, Outputs, TaskModel};
use std::sync::{Mutex, PoisonError};

/// Parameters of an embedding request.
#[derive(Clone, Debug)]
pub(crate) struct EmbedParams {
    /// Truncate texts that are too long, or refuse them.
    pub(crate) truncate: Truncate,
    /// Prompt prepended to each text.
    pub(crate) prompt: Prompt,
    /// Whether the request named the prompt.
    pub(crate) prompt_given: bool,
    /// L2-normalize embeddings.
    pub(crate) normalize: bool,
    /// Truncate embeddings to this dimension (Matryoshka).
    pub(crate) dimensions: Option<usize>,
    /// Most tokens of a text, if that is less than the model's limit.
    pub(crate) max_tokens: Option<usize>,
    /// Pooling; `None`: as the model's files say.
    pub(crate) pooling: Option<Pooling>,
    /// Whether the request named the pooling.
    pub(crate) pooling_given: bool,
    /// Name of the request field with the inputs.
    pub(crate) param: &'static str,
}

/// Embeddings and their cost.
pub(crate) struct EmbedOutput {
    pub(crate) rows: Vec<Vec<f32>>,
    pub(crate) usage: Usage,
}

/// The request kind that `items` need.
pub(crate) fn request_kind(items: &[Item]) -> RequestKind {
    if items.iter().any(|item| matches!(item, Item::Image(_))) { RequestKind::EmbedImage } else { RequestKind::Embed }
}

/// One embedding per item, in their order.
pub(crate) fn embed(
    served: &ServedModel,
    caller: &RequestContext,
    items: Vec<Item>,
    params: &EmbedParams,
) -> Result<EmbedOutput, Fault> {
    embed_items(served, caller, items, params).map_err(|fault| match fault.kind {
        FaultKind::TooLong | FaultKind::Tokenizer => fault.at(params.param),
        _ => fault,
    })
}

fn embed_items(
    served: &ServedModel,
    caller: &RequestContext,
    items: Vec<Item>,
    params: &EmbedParams,
) -> Result<EmbedOutput, Fault> {
    let items = items.into_iter().map(|item| in_tokens(served, item)).collect::<Result<Vec<_>, _>>()?;
    let most = match &served.model {
        TaskModel::Embed(embedder) => embedder.dimension(params.pooling)?,
        _ if params.pooling_given => {
            let what = format!("the pooling of `{}` cannot be changed: leave out `pooling`", served.id);
            return Err(Fault::invalid(what).at("pooling"));
        }
        model => model.loaded().plan().dimension,
    };
    if let Some(n) = params.dimensions.filter(|n| !(1..=most).contains(n)) {
        let what = format!("`dimensions` is {n}; it must be 1 to {most}, the embedding dimension of `{}`", served.id);
        return Err(Fault::invalid(what).at("dimensions"));
    }
    let images: Vec<&str> = items.iter().filter_map(image).collect();
    let (text_embeddings, image_embeddings) = match &served.model {
        TaskModel::Embed(embedder) if images.is_empty() => {
            let options = EmbedOptions::default()
                .with_prompt(params.prompt.clone())
                .with_normalize(Some(params.normalize))
                .with_dimensions(params.dimensions)
                .with_pooling(params.pooling);
            let embedder =
                embedder.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
            (embedder.embed_with(&inputs(&items), &options)?, Embeddings::default())
        }
        TaskModel::M3(m3) if images.is_empty() => {
            refuse_prompt(params.prompt_given)?;
            require_normalize(params)?;
            let m3 = m3.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
            (dense(m3.embed_inputs(&inputs(&items))?), Embeddings::default())
        }
        TaskModel::Clip(clip) => {
            refuse_prompt(params.prompt_given)?;
            require_normalize(params)?;
            let clip = clip.with_context(caller).with_truncation(params.truncate).with_max_tokens(params.max_tokens);
            let embedded = match texts(&items, params.param)? {
                none if none.is_empty() => Embeddings::default(),
                texts => clip.texts(&texts)?,
            };
            (embedded, embed_images(&clip, caller, &images, params.param)?)
        }
        _ => return Err(served.unsupported(request_kind(&items))),
    };
    let (mut texts, mut images) = (text_embeddings.rows(), image_embeddings.rows());
    let row = |item: &Item| match item {
        Item::Image(_) => images.next(),
        Item::Text(_) | Item::Ids(_) | Item::Mixed(_) => texts.next(),
    };
    let rows = items.iter().filter_map(row).map(|row| postprocess(row, params)).collect();
    Ok(EmbedOutput {
        rows,
        usage: Usage { tokens: text_embeddings.tokens.iter().sum(), characters: characters(&items) },
    })
}

/// Parameters of a request for embeddings of tokens.
#[derive(Clone, Debug)]
pub(crate) struct TokenParams {
    /// Truncate texts that are too long, or refuse them.
    pub(crate) truncate: Truncate,
    /// Prompt prepended to each text.
    pub(crate) prompt: Prompt,
    /// Whether the request named the prompt.
    pub(crate) prompt_given: bool,
    /// Most tokens of a text, if that is less than the model's limit.
    pub(crate) max_tokens: Option<usize>,
    /// Name of the request field with the inputs.
    pub(crate) param: &'static str,
}

/// One embedding per token of each text.
pub(crate) fn embed_tokens(
    served: &ServedModel,
    caller: &RequestContext,
    items: &[Item],
    params: &TokenParams,
) -> Result<Outputs<MultiVector>, Fault> {
    let TokenParams { truncate, max_tokens, .. } = *params;
    let items = items.iter().cloned().map(|item| in_tokens(served, item)).collect::<Result<Vec<_>, _>>()?;
    let items = &items[..];
    match &served.model {
        TaskModel::Embed(embedder) => {
            let embedder = embedder.with_context(caller).with_truncation(truncate).with_max_tokens(max_tokens);
            Ok(embedder.embed_all(&inputs(items), &params.prompt)?)
        }
        TaskModel::Multi(multi) => {
            refuse_prompt(params.prompt_given)?;
            let multi = multi.with_context(caller).with_truncation(truncate).with_max_tokens(max_tokens);
            Ok(multi.documents(&texts(items, params.param)?)?)
        }
        TaskModel::M3(m3) => {
            refuse_prompt(params.prompt_given)?;
            let m3 = m3.with_context(caller).with_truncation(truncate).with_max_tokens(max_tokens);
            Ok(m3.embed_inputs(&inputs(items))?.map(|outputs| outputs.multi))
        }
        _ => Err(served.unsupported(RequestKind::EmbedAll)),
    }
}

/// Cosine similarity of L2-normalized embeddings.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
}

/// Little-endian f32 in base64.
pub(crate) fn base64_of(row: &[f32]) -> String {
    let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

/// The tokens of an input of texts and token ids; any other input as it is. Special tokens are the
/// caller's.
fn in_tokens(served: &ServedModel, item: Item) -> Result<Item, Fault> {
    let Item::Mixed(parts) = item else { return Ok(item) };
    let mut ids = Vec::new();
    for part in parts {
        match part {
            PromptPart::Id(id) => ids.push(id),
            PromptPart::Text(text) => {
                ids.extend(served.model.loaded().tokenize(&text, false)?.into_iter().map(|token| token.id));
            }
        }
    }
    Ok(Item::Ids(ids))
}

fn image(item: &Item) -> Option<&str> {
    match item {
        Item::Image(image) => Some(image),
        Item::Text(_) | Item::Ids(_) | Item::Mixed(_) => None,
    }
}

/// Total characters of the texts.
pub(crate) fn characters(items: &[Item]) -> usize {
    let count = |item: &Item| match item {
        Item::Text(text) => text.chars().count(),
        Item::Ids(_) | Item::Mixed(_) | Item::Image(_) => 0,
    };
    items.iter().map(count).sum()
}

/// Texts and token ids as engine inputs.
pub(crate) fn inputs<'a>(items: &'a [Item]) -> Vec<TextOrTokens<'a>> {
    let input = |item: &'a Item| match item {
        Item::Text(text) => Some(TextOrTokens::Text(text)),
        Item::Ids(ids) => Some(TextOrTokens::Tokens(ids)),
        Item::Mixed(_) | Item::Image(_) => None,
    };
    items.iter().filter_map(input).collect()
}

/// Only the texts, for models that accept no token ids.
pub(crate) fn texts<'a>(items: &'a [Item], param: &str) -> Result<Vec<&'a str>, Fault> {
    let text = |item: &'a Item| match item {
        Item::Text(text) => Some(Ok(text.as_str())),
        Item::Ids(_) | Item::Mixed(_) => {
            Some(Err(Fault::invalid("this model accepts no token ids; send the text").at(param)))
        }
        Item::Image(_) => None,
    };
    items.iter().filter_map(text).collect()
}

/// Refuses `normalize: false` for models that always L2-normalize.
fn require_normalize(params: &EmbedParams) -> Result<(), Fault> {
    match params.normalize {
        true => Ok(()),
        false => {
            Err(Fault::invalid("this model's embeddings are always L2-normalized; leave out `normalize`")
                .at("normalize"))
        }
    }
}

/// Refuses a prompt that the request names, for models without prompts. The server's default prompt
/// is ignored for them.
pub(crate) fn refuse_prompt(prompt_given: bool) -> Result<(), Fault> {
    match prompt_given {
        false => Ok(()),
        true => Err(Fault::invalid("this model has no prompts; leave out `prompt_name`").at("prompt_name")),
    }
}

/// The dense embeddings in the outputs of bge-m3.
fn dense(outputs: Outputs<M3Embedding>) -> Embeddings {
    let dimension = outputs.results.first().map_or(0, |t| t.dense.len());
    let values = outputs.results.into_iter().flat_map(|t| t.dense).collect();
    Embeddings { values, dimension, tokens: outputs.tokens, truncated: outputs.truncated }
}

/// Truncates and L2-normalizes an embedding as requested.
fn postprocess(row: &[f32], params: &EmbedParams) -> Vec<f32> {
    let row = &row[..params.dimensions.unwrap_or(row.len())];
    if !params.normalize {
        return row.to_vec();
    }
    l2_normalized(row)
}

/// An L2-normalized vector.
pub(crate) fn l2_normalized(row: &[f32]) -> Vec<f32> {
    let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
    // A vector that is already normalized stays the same to the bit.
    if (length - 1.0).abs() < 1e-6 {
        row.to_vec()
    } else {
        row.iter().map(|v| (f64::from(*v) / length) as f32).collect()
    }
}

/// Embeds images. Only one image is decoded at a time across all requests: a small file may decode
/// to a large image.
fn embed_images(clip: &Clip, caller: &RequestContext, images: &[&str], param: &str) -> Result<Embeddings, Fault> {
    static DECODER: Mutex<()> = Mutex::new(());
    let mut all = Embeddings::default();
    for (i, source) in images.iter().enumerate() {
        if caller.is_cancelled() {
            return Err(Fault::new(FaultKind::Cancelled, "the request was cancelled"));
        }
        let bytes = image_bytes(source).map_err(|why| Fault::invalid(format!("image {}: {why}", i + 1)).at(param))?;
        let one = {
            let _decoder = DECODER.lock().unwrap_or_else(PoisonError::into_inner);
            if caller.is_cancelled() {
                continue;
            }
            let image = Image::decode(&bytes).map_err(|e| Fault::from(e).at(param))?;
            clip.images(&[image])?
        };
        all.dimension = one.dimension;
        all.values.extend(one.values);
    }
    Ok(all)
}

/// The bytes of an image in a `data:` URI or in plain base64. URLs are never fetched.
fn image_bytes(source: &str) -> Result<Vec<u8>, String> {
    let base64 = match source.strip_prefix("data:") {
        Some(rest) => {
            let (kind, data) = rest.split_once(',').ok_or("a data URI needs a comma before its data")?;
            if !kind.ends_with(";base64") {
                return Err("a data URI of an image must be in base64: data:image/png;base64,…".into());
            }
            data
        }
        None if source.contains("://") => {
            return Err("URLs are not fetched; send the image as data:image/png;base64,…".into());
        }
        None => source,
    };
    STANDARD.decode(base64.trim()).map_err(|e| format!("not base64: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_base64_and_never_fetched_by_url() {
        assert_eq!(image_bytes("data:image/png;base64,AAEC"), Ok(vec![0, 1, 2]));
        assert_eq!(image_bytes("AAEC"), Ok(vec![0, 1, 2]));
        for (source, why) in [
            ("http://169.254.169.254/", "not fetched"),
            ("file:///etc/passwd", "not fetched"),
            ("data:image/png,abc", "base64"),
            ("data:image/png;base64", "comma"),
            ("%%%", "not base64"),
        ] {
            assert!(image_bytes(source).unwrap_err().contains(why), "{source}");
        }
    }

    #[test]
    fn embeddings_are_truncated_then_normalized() {
        let params = |normalize, dimensions| EmbedParams {
            truncate: Truncate::Never,
            prompt: Prompt::Default,
            prompt_given: false,
            normalize,
            dimensions,
            max_tokens: None,
            pooling: None,
            pooling_given: false,
            param: "input",
        };
        assert_eq!(postprocess(&[3.0, 4.0, 12.0], &params(true, Some(2))), [0.6, 0.8]);
        assert_eq!(postprocess(&[3.0, 4.0, 12.0], &params(false, Some(2))), [3.0, 4.0]);
        assert_eq!(postprocess(&[0.0, 0.0], &params(true, None)), [0.0, 0.0]);
    }
}
