//! DeBERTa v2 and v3 (He et al. 2021, arXiv:2111.09543): relative positions in logarithmic buckets,
//! projected with the weights of the content, and in the largest models a convolution parallel to
//! the first block.

use crate::bert::WORD_EMBEDDINGS;
use crate::block::{BERT, Names, PostNorm};
use crate::config::{activation, parse, refuse};
use crate::deberta::{Config, Deberta, Embeddings, Relative};
use crate::head::root;
use crate::{Backbone, Batch, Error, Result};
use sconce_ops::{Bias, LayerNorm, Linear, Tensor, Weights, unfold};
use serde::Deserialize;
use serde_json::Value;

/// The `config.json` fields that the second version adds.
#[derive(Default, Deserialize)]
#[serde(default)]
struct V2Config {
    position_buckets: i64,
    share_att_key: bool,
    norm_rel_ebd: Option<String>,
    attention_head_size: Option<usize>,
    conv_kernel_size: usize,
    conv_act: Option<String>,
    conv_groups: Option<usize>,
    z_steps: usize,
}

pub(crate) use crate::deberta::head;

pub(crate) fn backbone(config: &Value, w: &Weights) -> Result<Box<dyn Backbone>> {
    let (c, v2): (Config, V2Config) = (parse(config)?, parse(config)?);
    let shape = c.shape()?;
    refuse(v2.attention_head_size.is_some_and(|size| size != shape.size), || {
        "an attention_head_size other than hidden_size / num_attention_heads is not supported".into()
    })?;
    refuse(v2.z_steps > 1, || "z_steps (the last layer several times) is not supported".into())?;
    let w = root(w, "deberta", WORD_EMBEDDINGS)?;
    let relative =
        c.max_relative().map(|max_relative| load_relative(&w.sub("encoder"), &c, &v2, max_relative)).transpose()?;
    let layer = |i| {
        let w = w.sub("encoder.layer").sub(i);
        let mut block = PostNorm::load(&w, &shape, &NAMES)?;
        block.attention.scale = c.scale(shape.size)?;
        block.attention.bias = bias(&w.sub("attention.self"), &c, v2.share_att_key, relative.as_ref())?;
        Ok(block)
    };
    let convolution =
        (v2.conv_kernel_size > 0).then(|| Convolution::load(&w.sub("encoder.conv"), &c, &v2)).transpose()?;
    Ok(Box::new(Deberta {
        embeddings: Embeddings::load(&w.sub("embeddings"), &c)?,
        layers: (0..c.num_hidden_layers).map(layer).collect::<Result<_>>()?,
        convolution,
        hidden_size: c.hidden_size,
        limits: c.limits(),
    }))
}

const NAMES: Names =
    Names { qkv: ["attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj"], ..BERT };

/// Loads the relative position embeddings, with buckets (`position_buckets`) and a norm
/// (`norm_rel_ebd`) if configured.
fn load_relative(w: &Weights, c: &Config, v2: &V2Config, max_relative: usize) -> Result<Relative> {
    let buckets = usize::try_from(v2.position_buckets).ok().filter(|n| *n > 0);
    if let Some(buckets) = buckets.filter(|n| *n < 4 || n / 2 + 1 >= max_relative) {
        let what = format!(
            "position_buckets {buckets} is not supported for relative positions up to {max_relative}; it must be at least 4, and half of it plus 1 below that"
        );
        return Err(Error::Config(what));
    }
    let mut relative = Relative::load(w, c, buckets.unwrap_or(max_relative))?;
    relative.max_distance = buckets.map(|_| max_relative);
    match v2.norm_rel_ebd.as_deref().unwrap_or("none").trim().to_lowercase().as_str() {
        "none" => {}
        "layer_norm" => {
            let norm = LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?;
            relative.rows = norm.forward(&relative.rows)?;
        }
        other => {
            return Err(Error::Config(format!("norm_rel_ebd `{other}` is not supported; none and layer_norm are")));
        }
    }
    Ok(relative)
}

/// The disentangled bias of a layer. Positions are projected with the weights of the content
/// (`shared`, i.e. `share_att_key`) or with weights of their own.
fn bias(w: &Weights, c: &Config, shared: bool, relative: Option<&Relative>) -> Result<Bias> {
    let (hidden, Some(relative)) = (c.hidden_size, relative) else { return Ok(Bias::None) };
    let names = if shared { ["key_proj", "query_proj"] } else { ["pos_key_proj", "pos_query_proj"] };
    let (c2p, p2c) = c.terms()?;
    let project = |wanted: bool, name| wanted.then(|| Linear::load(&w.sub(name), hidden, hidden, true)).transpose();
    relative.bias(project(c2p, names[0])?, project(p2c, names[1])?, c.num_attention_heads)
}

/// norm(y + act(conv(x))), where x is the input of the first block and y its output.
pub(crate) struct Convolution {
    conv: Linear,
    norm: LayerNorm,
    width: usize,
}

impl Convolution {
    fn load(w: &Weights, c: &Config, v2: &V2Config) -> Result<Convolution> {
        let width = v2.conv_kernel_size;
        refuse(v2.conv_groups.is_some_and(|n| n != 1) || width.is_multiple_of(2), || {
            "conv_groups other than 1 and an even conv_kernel_size are not supported".into()
        })?;
        let conv = Linear::shaped(&[(w.sub("conv"), "weight")], &[c.hidden_size, c.hidden_size, width])?
            .with_bias(w.sub("conv").tensor("bias", &[c.hidden_size])?)?
            .with(activation("conv_act", v2.conv_act.as_deref().unwrap_or("tanh"))?);
        Ok(Convolution {
            conv,
            norm: LayerNorm::load(&w.sub("LayerNorm"), c.hidden_size, c.layer_norm_eps, true)?,
            width,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor, y: &Tensor, b: &Batch) -> Result<Tensor> {
        let out = self.conv.forward(&unfold(x, &b.segments, self.width)?)?;
        Ok(self.norm.forward_residual(&out, y)?)
    }
}
