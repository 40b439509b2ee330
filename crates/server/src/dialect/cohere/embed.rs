//! Embeddings in several formats.

use crate::answer::Answer;
use crate::app::App;
use crate::embedding::{self, EmbedParams};
use crate::error::Fault;
use crate::http_context::fresh_id;
use crate::json_body::JsonBody;
use axum::extract::State;
use sconce_api::cohere::{
    ApiVersion, BilledUnits, EmbedContent, EmbedInput, EmbedInputType, EmbedRequest, EmbedResponse, EmbedTruncate,
    EmbeddingType, EmbeddingsByType, Meta, Tokens,
};
use sconce_api::input::Item;
use sconce_engine::{Embeddings, Precision, Prompt, Quantized, Ranges, TaskModel, Truncate};
use std::sync::Arc;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(super) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(embed))
}

/// Embeds texts, or images with a CLIP model, in one or several formats.
#[utoipa::path(post, path = "/v2/embed", request_body = EmbedRequest,
    responses((status = 200, description = "The embeddings by format", body = EmbedResponse)))]
async fn embed(
    State(app): State<Arc<App>>,
    JsonBody { body, context }: JsonBody<EmbedRequest>,
) -> Result<Answer<EmbedResponse>, Fault> {
    let (items, param) = items(body.texts, body.images, body.inputs)?;
    app.check_batch(items.len(), param)?;
    let formats = formats(body.embedding_types)?;
    if body.max_tokens == Some(0) {
        return Err(Fault::invalid("`max_tokens` is 0; it must be at least 1, or left out").at("max_tokens"));
    }
    let texts: Vec<String> = items.iter().filter_map(text).map(str::to_owned).collect();
    let images = items.len() - texts.len();
    let purpose = match body.input_type {
        Some(EmbedInputType::Image) if !texts.is_empty() => {
            let what = "`input_type` is image, and the request has texts; say what the texts are for";
            return Err(Fault::invalid(what).at("input_type"));
        }
        purpose => purpose,
    };
    let mut params = EmbedParams {
        truncate: match body.truncate.unwrap_or_default() {
            EmbedTruncate::None => Truncate::Never,
            EmbedTruncate::Start => Truncate::Left,
            EmbedTruncate::End => Truncate::Right,
        },
        prompt: app.prompt(None),
        prompt_given: false,
        normalize: true,
        dimensions: body.output_dimension,
        max_tokens: body.max_tokens,
        pooling: app.config.pooling,
        pooling_given: false,
        param,
    };
    let call = app.call("v2/embed", &context, body.model.as_deref(), embedding::request_kind(&items))?;
    let (output, embeddings) = call
        .run(move |served, caller| {
            if let (TaskModel::Embed(embedder), Some(name)) = (&served.model, purpose.map(prompt_names)) {
                let known: Vec<&str> = embedder.prompts().collect();
                let found = name.iter().find(|name| known.contains(*name));
                params.prompt = found.map_or(params.prompt, |name| Prompt::Named((*name).to_owned()));
            }
            let output = embedding::embed(served, caller, items, &params).map_err(|fault| {
                if fault.param.as_deref() == Some("dimensions") { fault.at("output_dimension") } else { fault }
            })?;
            let embeddings = by_type(&output.rows, &formats)?;
            Ok((output.usage, embeddings))
        })
        .await?;
    let response = EmbedResponse {
        id: fresh_id(),
        response_type: "embeddings_by_type".into(),
        embeddings,
        texts: (!texts.is_empty()).then_some(texts),
        meta: Meta {
            api_version: ApiVersion { version: "2".into() },
            billed_units: BilledUnits {
                input_tokens: Some(output.tokens),
                images: (images > 0).then_some(images),
                search_units: None,
            },
            tokens: Tokens { input_tokens: output.tokens },
        },
    };
    Ok(call.answer(response, output))
}

/// The inputs, and the field that has them.
fn items(
    texts: Option<Vec<String>>,
    images: Option<Vec<String>>,
    inputs: Option<Vec<EmbedInput>>,
) -> Result<(Vec<Item>, &'static str), Fault> {
    let one = "set exactly one of `texts`, `images` and `inputs`";
    match (texts, images, inputs) {
        (Some(texts), None, None) => Ok((texts.into_iter().map(Item::Text).collect(), "texts")),
        (None, Some(images), None) => Ok((images.into_iter().map(Item::Image).collect(), "images")),
        (None, None, Some(inputs)) => {
            let each = inputs.into_iter().enumerate().map(|(i, input)| single(input.content, i));
            Ok((each.collect::<Result<_, _>>()?, "inputs"))
        }
        (None, None, None) => Err(Fault::invalid(format!("the request has no inputs: {one}")).at("texts")),
        _ => Err(Fault::invalid(format!("the request has several kinds of inputs: {one}")).at("inputs")),
    }
}

/// The only part of an input: no model here embeds several parts into one vector.
fn single(content: Vec<EmbedContent>, i: usize) -> Result<Item, Fault> {
    let parts = content.len();
    match (content.into_iter().next(), parts) {
        (Some(EmbedContent::Text { text }), 1) => Ok(Item::Text(text)),
        (Some(EmbedContent::ImageUrl { image_url }), 1) => Ok(Item::Image(image_url.url)),
        _ => {
            let what = format!("input {i} has {parts} parts; send one text or one image per input");
            Err(Fault::invalid(what).at(&format!("inputs[{i}].content")))
        }
    }
}

fn text(item: &Item) -> Option<&str> {
    match item {
        Item::Text(text) => Some(text),
        Item::Ids(_) | Item::Mixed(_) | Item::Image(_) => None,
    }
}

/// Each format once.
fn formats(requested: Option<Vec<EmbeddingType>>) -> Result<Vec<EmbeddingType>, Fault> {
    let mut formats = requested.unwrap_or_else(|| vec![EmbeddingType::Float]);
    formats.sort_unstable();
    formats.dedup();
    match formats.is_empty() {
        true => Err(Fault::invalid("`embedding_types` is empty; name a format, or leave it out").at("embedding_types")),
        false => Ok(formats),
    }
}

/// Names that models give to the prompt of a purpose, the usual one first.
fn prompt_names(purpose: EmbedInputType) -> &'static [&'static str] {
    match purpose {
        EmbedInputType::SearchQuery => &["search_query", "query", "retrieval.query"],
        EmbedInputType::SearchDocument => {
            &["search_document", "document", "passage", "retrieval.passage", "retrieval.document", "corpus"]
        }
        EmbedInputType::Classification => &["classification", "Classification"],
        EmbedInputType::Clustering => &["clustering", "Clustering", "separation"],
        EmbedInputType::Image => &[],
    }
}

fn by_type(rows: &[Vec<f32>], formats: &[EmbeddingType]) -> Result<EmbeddingsByType, Fault> {
    let mut all = EmbeddingsByType::default();
    for format in formats {
        match format {
            EmbeddingType::Float => all.float = Some(rows.to_vec()),
            EmbeddingType::Base64 => all.base64 = Some(rows.iter().map(|row| embedding::base64_of(row)).collect()),
            EmbeddingType::Int8 => all.int8 = Some(quantized(rows, Precision::Int8)?),
            EmbeddingType::Uint8 => all.uint8 = Some(quantized(rows, Precision::Uint8)?),
            EmbeddingType::Binary => all.binary = Some(quantized(rows, Precision::Binary)?),
            EmbeddingType::Ubinary => all.ubinary = Some(quantized(rows, Precision::Ubinary)?),
        }
    }
    Ok(all)
}

/// Quantizes each embedding on its own, so that its numbers do not depend on the other inputs: int8
/// and uint8 range from minus to plus its largest number. Cosine similarity ignores that scale.
fn quantized(rows: &[Vec<f32>], precision: Precision) -> Result<Vec<Vec<i16>>, Fault> {
    let one = |row: &Vec<f32>| -> Result<Vec<i16>, Fault> {
        let largest = row.iter().fold(0f32, |largest, v| largest.max(v.abs()));
        let ranges = Ranges::new(vec![-largest; row.len()], vec![largest; row.len()])?;
        let embeddings = Embeddings { values: row.clone(), dimension: row.len(), ..Embeddings::default() };
        let quantized = embeddings.quantize(precision, Some(&ranges))?;
        Ok(match quantized.is_signed {
            true => Quantized::signed(&quantized.bytes).map(i16::from).collect(),
            false => quantized.bytes.iter().map(|b| i16::from(*b)).collect(),
        })
    };
    rows.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantized_embeddings_keep_signs_and_proportions() {
        let rows = [vec![1.0, -1.0, 0.5, 0.0, -0.25, 0.1, 0.1, 0.1, 0.1], vec![0.0; 9]];
        let int8 = quantized(&rows, Precision::Int8).unwrap();
        // As in sentence-transformers: rounded down, in f32.
        assert_eq!(int8[0], [126, -128, 63, -1, -33, 12, 12, 12, 12]);
        let uint8 = quantized(&rows, Precision::Uint8).unwrap();
        assert!(int8.iter().flatten().zip(uint8.iter().flatten()).all(|(signed, unsigned)| signed + 128 == *unsigned));
        assert_eq!(quantized(&rows, Precision::Ubinary).unwrap(), [vec![0b1010_0111, 0b1000_0000], vec![0, 0]]);
        assert_eq!(quantized(&rows, Precision::Binary).unwrap()[1], [-128, -128]);
    }

    #[test]
    fn inputs_are_of_one_kind_and_have_one_part() {
        let text = || EmbedContent::Text { text: "a".into() };
        let read = |contents: Vec<Vec<EmbedContent>>| {
            items(None, None, Some(contents.into_iter().map(|content| EmbedInput { content }).collect()))
        };
        assert_eq!(read(vec![vec![text()]]).unwrap(), (vec![Item::Text("a".into())], "inputs"));
        assert_eq!(read(vec![vec![text()], vec![]]).unwrap_err().param.as_deref(), Some("inputs[1].content"));
        assert!(read(vec![vec![text(), text()]]).unwrap_err().message.contains("2 parts"));
        assert!(items(None, None, None).is_err() && items(Some(vec![]), Some(vec![]), None).is_err());
    }
}
