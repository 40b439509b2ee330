//! Parameter counts of a language model.

use crate::error::Result;
use sconce_formats::Model;
use sconce_hub::Files;
use serde_json::Value;

/// Lookup tables: a token reads one row, unless the table is the tied head as well.
const TABLES: [&str; 4] = ["embed_tokens.weight", "word_embeddings.weight", "wte.weight", "wpe.weight"];

/// Output heads that are not tied to the embedding table.
const HEADS: [&str; 2] = ["lm_head.weight", "embed_out.weight"];

/// Parameter counts of a language model, from its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// All parameters.
    pub parameters: u64,
    /// Parameters that take part in the matrix products of one token: no lookup tables, and only
    /// the experts that a token is routed to.
    pub active: u64,
}

impl Size {
    /// Counts the parameters of a local model. Reads headers only.
    pub fn of(files: &Files) -> Result<Size> {
        let model = Model::open(files.root())?;
        let mut shapes = Vec::new();
        for name in model.store.names() {
            let dims = match &model.gguf {
                Some(gguf) => gguf.shape(&name).map(|(_, dims)| dims.to_vec()),
                None => model.store.get(&name)?.map(|raw| raw.dims),
            };
            let numbers = dims.unwrap_or_default().iter().map(|n| *n as u64).product::<u64>();
            shapes.push((name, numbers));
        }
        Ok(count(&shapes, &model.config))
    }
}

fn count(shapes: &[(String, u64)], config: &Value) -> Size {
    let is_image = |name: &str| name.contains("vision_tower.") || name.contains("multi_modal_projector.");
    let shapes: Vec<_> = shapes.iter().filter(|(name, _)| !is_image(name)).collect();
    let has_head = shapes.iter().any(|(name, _)| HEADS.iter().any(|head| name.ends_with(head)));
    let text = config.get("text_config").unwrap_or(config);
    let number = |names: &[&str]| names.iter().find_map(|name| text.get(*name).and_then(Value::as_u64));
    let experts = number(&["num_local_experts", "num_experts"]).filter(|n| *n > 0);
    let experts_per_token = number(&["num_experts_per_tok"]);
    let active = |(name, numbers): &&(String, u64)| match () {
        () if name.ends_with("wpe.weight") => 0,
        () if has_head && TABLES.iter().any(|table| name.ends_with(table)) => 0,
        () if name.contains(".experts.") => match (experts, experts_per_token) {
            (Some(experts), Some(experts_per_token)) => numbers / experts * experts_per_token.min(experts),
            _ => *numbers,
        },
        () => *numbers,
    };
    Size { parameters: shapes.iter().map(|(_, n)| n).sum(), active: shapes.iter().map(active).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn active_parameters_exclude_lookup_table_and_idle_experts() {
        let shapes = |all: &[(&str, u64)]| all.iter().map(|(name, n)| (name.to_string(), *n)).collect::<Vec<_>>();
        let layer = ("model.layers.0.mlp.down_proj.weight", 100);
        let (table, head) = (("model.embed_tokens.weight", 1000), ("lm_head.weight", 1000));
        let tied = count(&shapes(&[layer, table]), &json!({}));
        assert_eq!(tied, Size { parameters: 1100, active: 1100 });
        let untied = count(&shapes(&[layer, table, head]), &json!({}));
        assert_eq!(untied, Size { parameters: 2100, active: 1100 });
        let experts = ("model.layers.0.mlp.experts.0.up_proj.weight", 800);
        let some = count(&shapes(&[layer, experts]), &json!({"num_experts": 8, "num_experts_per_tok": 2}));
        assert_eq!(some, Size { parameters: 900, active: 300 });
    }
}
