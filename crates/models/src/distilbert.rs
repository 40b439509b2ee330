//! DistilBERT (Sanh et al. 2019, arXiv:1910.01108): BERT with half as many blocks and without token
//! types. Files store sinusoidal positions like learned ones.

use crate::bert::WORD_EMBEDDINGS;
use crate::block::{Embeddings, Names, PostNorm, Shape, Stack};
use crate::config::{activation, defaults, head_size, parse};
use crate::head::{out, root, vocabulary};
use crate::{Backbone, Head, Limits, Result, Task};
use sconce_ops::{Activation, LayerNorm, Linear, Weights};
use serde_json::Value;

defaults! {
    struct Config {
        vocab_size: usize = 30522,
        dim: usize = 768,
        hidden_dim: usize = 3072,
        n_layers: usize = 6,
        n_heads: usize = 12,
        max_position_embeddings: usize = 512,
        activation: String = "gelu".into(),
    }
}

/// A constant in the reference; no configuration field sets it.
const EPS: f32 = 1e-12;

const NAMES: Names = Names {
    qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    attention_norm: "sa_layer_norm",
    up: "ffn.lin1",
    down: "ffn.lin2",
    norm: "output_layer_norm",
};

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    let shape = Shape {
        hidden: c.dim,
        heads: c.n_heads,
        size: head_size(c.dim, c.n_heads)?,
        inner: c.hidden_dim,
        activation: activation("activation", &c.activation)?,
        eps: EPS,
    };
    let w = root(w, "distilbert", WORD_EMBEDDINGS)?;
    let limits = Limits::new(c.vocab_size, c.max_position_embeddings);
    let embeddings = Embeddings::load(&w.sub("embeddings"), &limits, Some(limits.positions), &shape)?;
    let layer = |i| PostNorm::load(&w.sub("transformer.layer").sub(i), &shape, &NAMES);
    let layers = (0..c.n_layers).map(layer).collect::<Result<_>>()?;
    Ok(Box::new(Stack::new(embeddings, layers, c.dim, limits)))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let dense = |name| Linear::load(&w.sub(name), c.dim, c.dim, true);
    let classifier = || out(&w.sub("classifier"), c.dim, true);
    Ok(match task {
        Task::Classify => Head::new(Some(dense("pre_classifier")?.with(Activation::Relu)), None, classifier()?),
        Task::Tag => Head::new(None, None, classifier()?),
        Task::Vocabulary => {
            let words = root(w, "distilbert", WORD_EMBEDDINGS)?.sub("embeddings.word_embeddings");
            let projector = w.sub("vocab_projector");
            let dense = dense("vocab_transform")?.with(activation("activation", &c.activation)?);
            let norm = LayerNorm::load(&w.sub("vocab_layer_norm"), c.dim, EPS, true)?;
            let out = vocabulary(&projector, &words, [c.vocab_size, c.dim], &[(&projector, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}
