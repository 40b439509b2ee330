//! BERT (Devlin et al. 2018, arXiv:1810.04805): embeddings, then a stack of post-norm blocks. Also
//! MiniLM, E5, BGE and GTE.

use crate::block::{BERT, Embeddings, PostNorm, Shape, Stack};
use crate::config::{activation, defaults, head_size, parse, refuse};
use crate::head::{out, root, vocabulary};
use crate::{Backbone, Head, Limits, Result, Task};
use sconce_ops::{Activation, LayerNorm, Linear, Weights};
use serde_json::Value;

defaults! {
    /// BERT's `config.json` fields, which RoBERTa and ELECTRA share, with the defaults of
    /// transformers.
    pub(crate) struct Config {
        pub vocab_size: usize = 30522,
        pub hidden_size: usize = 768,
        pub num_hidden_layers: usize = 12,
        pub num_attention_heads: usize = 12,
        pub intermediate_size: usize = 3072,
        pub max_position_embeddings: usize = 512,
        pub type_vocab_size: usize = 2,
        pub layer_norm_eps: f32 = 1e-12,
        pub hidden_act: String = "gelu".into(),
        position_embedding_type: Option<String> = None,
        is_decoder: bool = false,
    }
}

impl Config {
    /// Refuses what none of BERT's relatives support here.
    pub(crate) fn check(&self) -> Result<()> {
        let positions = self.position_embedding_type.as_deref();
        refuse(positions.is_some_and(|kind| kind != "absolute"), || {
            format!("position_embedding_type `{}` is not supported; absolute is", positions.unwrap_or_default())
        })?;
        refuse(self.is_decoder, || "a decoder (is_decoder) is not supported; encoders are".into())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits { types: Some(self.type_vocab_size), ..Limits::new(self.vocab_size, self.max_position_embeddings) }
    }

    /// Loads embeddings of size `width` and the blocks, under BERT's names.
    pub(crate) fn stack(&self, w: &Weights, limits: Limits, width: usize) -> Result<Stack<PostNorm>> {
        let (shape, rows) = (self.shape()?, Some(self.max_position_embeddings));
        let embedding_shape = Shape { hidden: width, ..shape };
        let embeddings = Embeddings::load(&w.sub("embeddings"), &limits, rows, &embedding_shape)?;
        let layer = |i| PostNorm::load(&w.sub("encoder.layer").sub(i), &shape, &BERT);
        let layers = (0..self.num_hidden_layers).map(layer).collect::<Result<_>>()?;
        Ok(Stack::new(embeddings, layers, self.hidden_size, limits))
    }

    pub(crate) fn shape(&self) -> Result<Shape> {
        Ok(Shape {
            hidden: self.hidden_size,
            heads: self.num_attention_heads,
            size: head_size(self.hidden_size, self.num_attention_heads)?,
            inner: self.intermediate_size,
            activation: activation("hidden_act", &self.hidden_act)?,
            eps: self.layer_norm_eps,
        })
    }
}

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let c: Config = parse(config)?;
    c.check()?;
    Ok(Box::new(c.stack(&root(w, "bert", WORD_EMBEDDINGS)?, c.limits(), c.hidden_size)?))
}

pub(crate) fn head(task: Task, config: &Value, w: &Weights) -> Result<Head> {
    let c: Config = parse(config)?;
    let hidden = c.hidden_size;
    let bert = root(w, "bert", WORD_EMBEDDINGS)?;
    Ok(match task {
        Task::Classify => {
            let pooler = Linear::load(&bert.sub("pooler.dense"), hidden, hidden, true)?.with(Activation::Tanh);
            Head::new(Some(pooler), None, out(&w.sub("classifier"), hidden, true)?)
        }
        Task::Tag => Head::new(None, None, out(&w.sub("classifier"), hidden, true)?),
        Task::Vocabulary => {
            let p = w.sub("cls.predictions");
            let (words, decoder) = (bert.sub("embeddings.word_embeddings"), p.sub("decoder"));
            let t = p.sub("transform");
            let dense =
                Linear::load(&t.sub("dense"), hidden, hidden, true)?.with(activation("hidden_act", &c.hidden_act)?);
            let norm = LayerNorm::load(&t.sub("LayerNorm"), hidden, c.layer_norm_eps, true)?;
            let out = vocabulary(&decoder, &words, [c.vocab_size, hidden], &[(&p, "bias"), (&decoder, "bias")])?;
            Head::new(Some(dense), Some(norm), out)
        }
    })
}

pub(crate) const WORD_EMBEDDINGS: &str = "embeddings.word_embeddings.weight";
