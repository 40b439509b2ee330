//! text-embeddings-inference: what its clients send, and what they expect.

use crate::input::{Inputs, InputsSchema};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Which end of a text that is too long goes.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum TruncationDirection {
    /// Its beginning.
    #[serde(rename = "left", alias = "Left")]
    Left,
    /// Its end.
    #[default]
    #[serde(rename = "right", alias = "Right")]
    Right,
}

fn yes() -> bool {
    true
}

/// `POST /embed`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbedRequest {
    /// What is to be embedded.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Which model, where several are served; the first that embeds where none is said.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// One of the model's prompts, by name.
    pub prompt_name: Option<String>,
    /// Whether vectors are brought to length one.
    #[serde(default = "yes")]
    pub normalize: bool,
    /// Only so many numbers of each vector.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
}

/// A vector an input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedResponse(pub Vec<Vec<f32>>);

/// What went wrong.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ErrorResponse {
    /// In words.
    pub error: String,
    /// In one of a few.
    pub error_type: ErrorType,
}

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub enum ErrorType {
    /// The server or model cannot serve now.
    Unhealthy,
    /// The model failed.
    Backend,
    /// Too much is asked at once.
    Overloaded,
    /// What was asked cannot be.
    Validation,
    /// The texts could not be read.
    Tokenizer,
    /// Nothing was asked.
    Empty,
    /// No key, or a wrong one.
    Unauthorized,
    /// There is no such thing.
    NotFound,
}

/// `POST /embed_all` and `POST /embed_sparse`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct EmbedAllRequest {
    /// What is to be embedded.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// One of the model's prompts, by name.
    pub prompt_name: Option<String>,
}

/// A vector a token of each input.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedAllResponse(pub Vec<Vec<Vec<f32>>>);

/// A weight of the vocabulary.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct SparseValue {
    /// The token.
    pub index: u32,
    /// Its weight.
    pub value: f32,
}

/// Weights of each input; all others are zero.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EmbedSparseResponse(pub Vec<Vec<SparseValue>>);

/// One text, or two that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextOrPair {
    /// The first.
    pub text: String,
    /// The second.
    pub pair: Option<String>,
}

/// One thing to be labelled, or several: `"a"`, `["a"]` and `["a", "b"]` are one, `[["a"], ["a", "b"]]` are two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PredictInputs {
    /// In the order given.
    pub items: Vec<TextOrPair>,
    /// Whether it was one by itself.
    pub alone: bool,
}

/// How [`PredictInputs`] look, for the OpenAPI document.
#[derive(ToSchema)]
#[schema(as = PredictInputs)]
#[serde(untagged)]
#[allow(dead_code, reason = "read by the derive alone")]
pub enum PredictInputsSchema {
    /// A text.
    One(String),
    /// A text, or a pair of texts.
    Pair(Vec<String>),
    /// Several, each a text or a pair of texts.
    Several(Vec<Vec<String>>),
}

impl<'de> Deserialize<'de> for PredictInputs {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<PredictInputs, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a text, a pair of texts, or a list of lists of one or two texts")]
        enum Given {
            One(String),
            Pair(Vec<String>),
            Several(Vec<Vec<String>>),
        }
        let of = |texts: Vec<String>| match <[String; 2]>::try_from(texts) {
            Ok([text, pair]) => Ok(TextOrPair { text, pair: Some(pair) }),
            Err(texts) => match <[String; 1]>::try_from(texts) {
                Ok([text]) => Ok(TextOrPair { text, pair: None }),
                Err(texts) => {
                    let what = format!("a list of {} texts where one or two are read together", texts.len());
                    Err(serde::de::Error::custom(what))
                }
            },
        };
        Ok(match Given::deserialize(from)? {
            Given::One(text) => PredictInputs { items: vec![TextOrPair { text, pair: None }], alone: true },
            Given::Pair(texts) if texts.is_empty() => PredictInputs { items: Vec::new(), alone: false },
            Given::Pair(texts) => PredictInputs { items: vec![of(texts)?], alone: true },
            Given::Several(all) => {
                PredictInputs { items: all.into_iter().map(of).collect::<Result<_, _>>()?, alone: false }
            }
        })
    }
}

/// `POST /predict`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct PredictRequest {
    /// What is to be labelled.
    #[schema(value_type = PredictInputsSchema)]
    pub inputs: PredictInputs,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Leave the model's numbers as they are, instead of shares of one.
    #[serde(default)]
    pub raw_scores: bool,
}

/// A label and how sure the model is of it.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Prediction {
    /// How sure.
    pub score: f32,
    /// Its name, as the model's configuration has it.
    pub label: String,
}

/// The labels of one thing, or of several; the best first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum PredictResponse {
    /// Of one that was given by itself.
    One(Vec<Prediction>),
    /// Of a list.
    Several(Vec<Vec<Prediction>>),
}

/// `POST /rerank`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[schema(as = TeiRerankRequest)]
pub struct RerankRequest {
    /// What is looked for.
    pub query: String,
    /// Where it may be found.
    pub texts: Vec<String>,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// Leave the model's numbers as they are, instead of scores between 0 and 1.
    #[serde(default)]
    pub raw_scores: bool,
    /// Give the texts back.
    #[serde(default)]
    pub return_text: bool,
}

/// A text in its place.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, ToSchema)]
pub struct Rank {
    /// Which text.
    pub index: usize,
    /// The text, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// How well it answers.
    pub score: f32,
}

/// All texts, the best first.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = TeiRerankResponse)]
pub struct RerankResponse(pub Vec<Rank>);

/// `POST /similarity`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SimilarityRequest {
    /// What is compared.
    pub inputs: SimilarityInputs,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// How texts are read.
    pub parameters: Option<SimilarityParameters>,
}

/// What is compared.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct SimilarityInputs {
    /// This,
    pub source_sentence: String,
    /// with each of these.
    pub sentences: Vec<String>,
}

/// How texts are read.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub struct SimilarityParameters {
    /// Cut texts that are longer than the model can take, instead of refusing them.
    pub truncate: Option<bool>,
    /// Which end goes.
    #[serde(default)]
    pub truncation_direction: TruncationDirection,
    /// One of the model's prompts, by name.
    pub prompt_name: Option<String>,
}

/// The cosine with each, in their order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct SimilarityResponse(pub Vec<f32>);

/// `POST /tokenize`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    /// A text or several.
    #[schema(value_type = InputsSchema)]
    pub inputs: Inputs,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// Whether those that begin and end a text are there.
    #[serde(default = "yes")]
    pub add_special_tokens: bool,
    /// One of the model's prompts, by name, to stand before each text.
    pub prompt_name: Option<String>,
}

/// A token in its place.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq, ToSchema)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The part of the text that it stands for; of a special one its name.
    pub text: String,
    /// Whether it is there whatever the text is.
    pub special: bool,
    /// The first character of that part, where it has one.
    pub start: Option<usize>,
    /// The character behind it.
    pub stop: Option<usize>,
}

/// The tokens of each text.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct TokenizeResponse(pub Vec<Vec<Token>>);

/// Token ids of one text or of several.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a list of token ids, or a list of such lists")]
pub enum Ids {
    /// Of one.
    One(Vec<u32>),
    /// Of several.
    Several(Vec<Vec<u32>>),
}

/// `POST /decode`.
#[derive(Clone, Debug, Deserialize, ToSchema)]
pub struct DecodeRequest {
    /// Tokens.
    pub ids: Ids,
    /// Which model, where several are served.
    pub model: Option<String>,
    /// Whether those that begin and end a text are left out.
    #[serde(default = "yes")]
    pub skip_special_tokens: bool,
}

/// The text of each.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct DecodeResponse(pub Vec<String>);

/// `GET /info`: the first model in TEI's words, and all of them in ours.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Info {
    /// Its name in requests.
    pub model_id: String,
    /// Its commit, where it came from a hub.
    pub model_sha: Option<String>,
    /// The format of its weights and activations.
    pub model_dtype: String,
    /// What it does.
    #[schema(value_type = Object)]
    pub model_type: serde_json::Value,
    /// The most requests that are worked on at once.
    pub max_concurrent_requests: usize,
    /// The longest text, in tokens.
    pub max_input_length: usize,
    /// The most tokens of a batch.
    pub max_batch_tokens: usize,
    /// The most texts of a batch, where there is such a bound.
    pub max_batch_requests: Option<usize>,
    /// The most inputs of a request.
    pub max_client_batch_size: usize,
    /// Whether texts that are too long are cut where a request does not say.
    pub auto_truncate: bool,
    /// Threads that make tokens.
    pub tokenization_workers: usize,
    /// Of this server.
    pub version: String,
    /// Of its sources.
    pub sha: Option<String>,
    /// Of its image.
    pub docker_label: Option<String>,
    /// Every model.
    pub models: Vec<ModelInfo>,
}

/// How it stands with a model.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ModelInfo {
    /// Its name in requests.
    pub id: String,
    /// `loading`, `ready`, `failed`, or `resting` until the next request.
    pub state: String,
    /// What it is loaded as.
    pub task: Option<String>,
    /// Where it runs.
    pub device: Option<String>,
    /// The format of its weights and activations.
    pub dtype: Option<String>,
    /// Where its files came from.
    pub source: Option<String>,
    /// The longest text, in tokens.
    pub max_input_length: Option<usize>,
    /// Numbers in a vector.
    pub dimension: Option<usize>,
    /// What was planned for it.
    pub planned_bytes: Option<u64>,
    /// The most bytes that its tensors held at once.
    pub peak_bytes: Option<u64>,
    /// What really ran since it was loaded.
    pub ran: Vec<OpCount>,
}

/// Calls of an op that one rung took.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct OpCount {
    /// The op.
    pub op: String,
    /// Where it ran.
    pub device: String,
    /// In what.
    pub dtype: String,
    /// `fused`, `composed` or `host`.
    pub rung: String,
    /// How often.
    pub calls: u64,
}
