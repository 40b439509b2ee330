//! What a server has: `/props`, `/slots` and `/lora-adapters`.

use super::settings::GenerationSettings;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /props`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppProps)]
pub struct Props {
    /// The settings of a request that has none.
    pub default_generation_settings: DefaultSettings,
    /// Most sequences that run at once.
    pub total_slots: usize,
    /// Name of the model.
    pub model_alias: String,
    /// Where the model comes from.
    pub model_path: String,
    /// What the model reads besides text.
    pub modalities: Modalities,
    /// Whether `/slots` is served.
    pub endpoint_slots: bool,
    /// Always false: properties cannot be changed.
    pub endpoint_props: bool,
    /// Whether `/metrics` is served.
    pub endpoint_metrics: bool,
    /// Source of the chat template; empty if the model has none.
    pub chat_template: String,
    /// The token that begins a text; empty if there is none.
    pub bos_token: String,
    /// The token that ends an answer; empty if there is none.
    pub eos_token: String,
    /// Version of the server.
    pub build_info: String,
    /// Always false.
    pub is_sleeping: bool,
}

/// The settings of a request that has none.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppDefaultSettings)]
pub struct DefaultSettings {
    /// The settings.
    pub params: GenerationSettings,
    /// Tokens of the context.
    pub n_ctx: usize,
}

/// What a model reads besides text.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppModalities)]
pub struct Modalities {
    /// Images.
    pub vision: bool,
    /// Videos.
    pub video: bool,
    /// Sounds.
    pub audio: bool,
}

/// A sequence that may run. `GET /slots` lists all.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppSlot)]
pub struct Slot {
    /// Its number.
    pub id: usize,
    /// Tokens of the context.
    pub n_ctx: usize,
    /// Always false.
    pub speculative: bool,
    /// Whether a request runs in it.
    pub is_processing: bool,
}

/// An adapter of the weights. `GET /lora-adapters` lists all, and this server has none.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = LlamaCppLoraAdapter)]
pub struct LoraAdapter {
    /// Its id.
    pub id: u32,
    /// Its file.
    pub path: String,
    /// Its weight.
    pub scale: f32,
}
