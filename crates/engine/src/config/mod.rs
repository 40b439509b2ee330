//! What the files of a model say besides its weights.

pub(crate) mod generation_config;
pub(crate) mod lm_text;
